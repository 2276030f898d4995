"""Known faults, planted one at a time: ``python -m tests.mutants`` shows that a test of every commit catches each.

A mutant is a small edit of one file of ``src/tacit``, made in a copy of the package. The tests named beside it are run
against the copy, and one of them must fail. The command writes tests/results/mutants.md; it can be stopped and goes on:
lines that are in the file are kept. Delete it to begin anew. ``--engine`` runs tests/test_engine.py alone on the faults
of the engine's arithmetic, and prints which of them it finds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "tacit"


class Mutant(NamedTuple):
    """A fault in words, the edit that plants it, and the tests that must find it."""

    fault: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


NEIGHBOURS, EVERY, FIT = "tests/privacy/test_neighbours.py", "tests/test_every_method.py", "tests/test_fit.py"
LEDGER, ANCHORS, FAULTS = "tests/test_ledger.py", "tests/test_anchors.py", "tests/test_faults.py"
CERTIFICATE, PAIRS = "tests/test_certificate.py", "tests/test_pair_scores.py"
WALL = "engine/runner.py"
BORDER, ACCOUNTING = "tests/privacy/test_border.py", "tests/test_accounting.py"

LEFT_OUT = (
    (
        "the public key",
        "machine, np.asarray(jax.random.key_data(key)))\n",
        "machine, np.zeros(2, np.uint32))\n",
        "test_each_of_the_facts_of_a_run_is_in_the_tag",
    ),
    (
        "the program",
        "    facts = [program, versions(), origin]",
        "    facts = [versions(), origin]",
        "test_each_of_the_facts_of_a_run_is_in_the_tag",
    ),
    (
        "the versions",
        "    facts = [program, versions(), origin]",
        "    facts = [program, origin]",
        "test_each_of_the_surroundings_is_in_the_tag",
    ),
    (
        "the machine",
        "facts, machine, np",
        "facts, [], np",
        "test_each_of_the_surroundings_is_in_the_tag",
    ),
    (
        "the system",
        "    machine = [platform.platform(), ",
        "    machine = [",
        "test_each_of_the_surroundings_is_in_the_tag",
    ),
    (
        "the cores",
        "system.cores(), _processor(), _conf",
        "_processor(), _conf",
        "test_each_of_the_surroundings_is_in_the_tag",
    ),
    (
        "the processor",
        "_processor(), _configuration()]",
        "_configuration()]",
        "test_each_of_the_surroundings_is_in_the_tag",
    ),
    (
        "the variables of XLA and threads",
        '    return sorted((held | {name: os.environ.get(name, "") for name in variables}).items())\n',
        "    return sorted(held.items())\n",
        "test_each_of_the_surroundings_is_in_the_tag",
    ),
    (
        "the flags of XLA",
        '    variables = ("XLA_FLAGS", ',
        "    variables = (",
        "test_each_of_the_surroundings_is_in_the_tag",
    ),
    (
        "the number of OpenMP threads",
        '"OMP_NUM_THREADS", "TF_XLA_FLAGS")\n',
        '"TF_XLA_FLAGS")\n',
        "test_each_of_the_surroundings_is_in_the_tag",
    ),
    (
        "the version of jaxlib",
        '    packages = ("tacit", "jax", "jaxlib", ',
        '    packages = ("tacit", "jax", ',
        "test_each_of_the_surroundings_is_in_the_tag",
    ),
    (
        "the kind of device",
        ', "device": jax.devices()[0].device_kind}',
        "}",
        "test_each_of_the_surroundings_is_in_the_tag",
    ),
    (
        "the options of the compiler",
        "        parts = (step.sizes.options, random",
        "        parts = (random",
        "test_each_part_of_a_step_is_in_the_tag",
    ),
    (
        "the parts in which words are made",
        "random.WORDS_AT_ONCE, alias.GROUP,",
        "alias.GROUP,",
        "test_each_part_of_a_step_is_in_the_tag",
    ),
    (
        "the number of segments",
        "(sizes.SEGMENTS, LONG_SEGMENT, step",
        "(LONG_SEGMENT, step",
        "test_each_part_of_a_step_is_in_the_tag",
    ),
    (
        "the chunks that a step is expected to have",
        "LONG_SEGMENT, step.sizes.expected_chunks)",
        "LONG_SEGMENT)",
        "test_the_declared_size_is_in_the_tag_where_it_decides_when_fingerprints_are_taken",
    ),
    (
        "when fingerprints are taken",
        "SEGMENTS, LONG_SEGMENT, step",
        "SEGMENTS, step",
        "test_each_part_of_a_step_is_in_the_tag",
    ),
    (
        "the program of the start",
        "        self._text = self._programs.text + started + repr(parts)\n",
        "        self._text = self._programs.text + repr(parts)\n",
        "test_the_program_of_the_start_is_in_the_tag",
    ),
)
"""What the tag may leave out: each is a mutant of its own."""

MUTANTS = [
    Mutant(
        "divides by the realised size of the subset",
        "engine/memory.py",
        "            return step.finish(state, total, keys[i])\n",
        "            release, count = step.release(total), step.sizes.count\n"
        "            size = jnp.sum(subsets[row if len(subsets) > 1 else 0] < count)\n"
        "            share = jnp.maximum(size, 1) / max(count, 1)\n"
        "            release = release._replace(full=jax.tree.map(lambda part: part / share, release.total))\n"
        "            return jax.tree.map(jnp.asarray, step.method.update(state, release, keys[i]))\n",
        (f"{NEIGHBOURS}::test_released_numbers_lie_on_the_lattice",),
    ),
    Mutant(
        "noise scaled to the mean instead of the sum",
        "engine/memory.py",
        "            total = sum_over(step, state, records, subsets, row, keys[i], mine, noise)\n",
        "            noise = [block // 4 for block in noise]\n"
        "            total = sum_over(step, state, records, subsets, row, keys[i], mine, noise)\n",
        (f"{NEIGHBOURS}::test_no_records_at_all_still_give_noise",),
    ),
    Mutant(
        "leaves clipped one by one, accounted jointly",
        "engine/contributions.py",
        "            return clip.Scaled(clip.to_integers(plain, self.mechanism.clip, self.radius, fits), [], places)\n",
        "            each = [clip.to_integers(one, self.mechanism.clip, self.radius) for one in flat]\n"
        "            return clip.Scaled(jnp.concatenate(each, axis=1), [], places)\n",
        (f"{NEIGHBOURS}::test_no_neighbour_is_further_away_than_the_radius[two leaves]",),
    ),
    Mutant(
        "no noise where nothing was summed (a rejected update)",
        "engine/memory.py",
        "            total = sum_over(step, state, records, subsets, row, keys[i], mine, noise)\n",
        "            bare = sum_over(step, state, records, subsets, row, keys[i], mine)\n"
        "            something = sum(jnp.any(total.low != 0) for total in bare) > 0\n"
        "            noise = [jnp.where(something, block, 0) for block in noise]\n"
        "            total = sum_over(step, state, records, subsets, row, keys[i], mine, noise)\n",
        (f"{NEIGHBOURS}::test_no_records_at_all_still_give_noise",),
    ),
    Mutant(
        "shuffled passes, accounted as Poisson subsets",
        "engine/draws.py",
        "        return jnp.pad(sample.subsets(digits, count), ((0, 0), (0, width - drawn)), constant_values=count)\n",
        "        size = max(1, round(drawn / 2))\n"
        "        order = jax.vmap(lambda key: jax.random.permutation(key, count))(more)[:, :size]\n"
        "        room = ((0, 0), (0, width - size))\n"
        "        return jnp.pad(jnp.sort(order.astype(jnp.int32), 1), room, constant_values=count)\n",
        ("tests/privacy/test_subset_attack.py::test_the_subsets_are_those_of_independent_coins",),
    ),
    Mutant(
        "subsets cut short at one chunk",
        "engine/sums.py",
        "        included = jnp.sum(subsets[row] < count)\n",
        "        included = jnp.minimum(jnp.sum(subsets[row] < count), full)\n",
        ("tests/engine/test_own.py::test_the_sum_of_a_subset_in_several_chunks_uses_a_key_for_every_slot",),
    ),
    Mutant(
        "subsets kept for several steps",
        "engine/draws.py",
        "        return jnp.pad(sample.subsets(digits, count), ((0, 0), (0, width - drawn)), constant_values=count)\n",
        "        found = jnp.pad(sample.subsets(digits, count), ((0, 0), (0, width - drawn)), constant_values=count)\n"
        "        return found[jnp.arange(len(found)) // 2 * 2]\n",
        ("tests/privacy/test_subset_attack.py::test_the_subsets_are_those_of_independent_coins",),
    ),
    Mutant(
        "noise keys used again in every step",
        "engine/draws.py",
        "            keys = random.fold_in(secret, 2 * steps)\n",
        "            keys = random.fold_in(secret, 0 * steps)\n",
        (f"{NEIGHBOURS}::test_no_records_at_all_still_give_noise",),
    ),
    Mutant(
        "pair scores without their clip",
        "methods/pair_posterior.py",
        "    return vectors * jnp.minimum(1, clip / norms)\n",
        "    return vectors\n",
        (f"{PAIRS}::test_no_record_is_longer_than_the_clip[gaussian]",),
    ),
    Mutant(
        "a pair that is not exchangeable: the shown score is clipped alone",
        "methods/pair_posterior.py",
        "self.clipped((shown - drawn) @ state.whitening.T, state.clip), 0)",
        "self.clipped(shown[None] @ state.whitening.T, state.clip) - drawn @ state.whitening.T, 0)",
        (f"{PAIRS}::test_the_mean_at_the_truth_is_zero[gaussian]",),
    ),
    Mutant(
        "outcomes of a pair drawn at another place",
        "methods/pair_posterior.py",
        "self.reading.simulated(state.place, record, key))\n",
        "self.reading.simulated(1.3 * state.place, record, key))\n",
        (f"{PAIRS}::test_the_mean_at_the_truth_is_zero[gaussian]",),
    ),
    Mutant(
        "outcomes of a pair drawn by the public key, the same for all records",
        "methods/pair_scores.py",
        "public.pair_score(state.posterior, record, record_key)",
        "public.pair_score(state.posterior, record, key)",
        (f"{PAIRS}::test_records_draw_by_their_own_keys",),
    ),
    Mutant(
        "a mean of the release without importance weights",
        "methods/pair_posterior.py",
        "one.psi, ratio - 1)",
        "one.psi, jnp.ones_like(ratio) - 1)",
        (f"{PAIRS}::test_the_posterior_finds_where_the_release_comes_from",),
    ),
    Mutant(
        "the prior's gradient in every contribution, and in the update",
        "methods/vi.py",
        "                return guided.record_term({**state.params, "
        "**direct}, guided.constrain(w), record, record_key)\n",
        "                values = guided.constrain(w)\n"
        "                term = guided.record_term({**state.params, **direct}, values, record, record_key)\n"
        "                return term + guided.log_prior({**state.params, **direct}, values)\n",
        (f"{EVERY}::test_one_step_is_a_step_along_the_gradient_of_numpyros_own_elbo[vi, logistic regression]",),
    ),
    Mutant(
        "NaN poisons the sum: all its coordinates count as the largest number",
        "engine/clip.py",
        "jnp.rint(jnp.where(valid, numbers, 0))",
        "jnp.rint(jnp.where(valid, numbers, radius))",
        ("tests/engine/test_clip.py::test_one_value_that_is_not_finite_makes_the_row_zero_and_no_other",),
    ),
    Mutant(
        "replace-one sensitivity with an add-remove accountant",
        "accounting/gaussian.py",
        '    return (1.0 if adjacency == "add-remove" else 2.0) * math.sqrt(steps) / noise\n',
        "    return math.sqrt(steps) / noise\n",
        ("tests/test_accounting.py::test_replacing_doubles_the_sensitivity",),
    ),
    Mutant(
        "certain disclosure forgotten when losses are composed",
        "accounting/losses.py",
        "_self_convolved(masses, steps, low, high), certain)",
        "_self_convolved(masses, steps, low, high), 0.0)",
        ("tests/test_accounting.py::test_a_loss_distribution_is_read_as_dp_accounting_reads_it",),
    ),
    Mutant(
        "losses composed one step short",
        "accounting/losses.py",
        "_self_convolved(masses, steps, low, high), certain)",
        "_self_convolved(masses, steps - 1, low, high), certain)",
        ("tests/test_accounting.py::test_a_loss_distribution_is_read_as_dp_accounting_reads_it",),
    ),
    Mutant(
        "float sums in place of integers",
        "engine/sums.py",
        "jnp.sum(jnp.where(present[:, None], integers, 0), axis=0)",
        "jnp.sum(jnp.where(present[:, None], integers, 0).astype(jnp.float32), axis=0).astype(jnp.int32)",
        (f"{NEIGHBOURS}::test_no_neighbour_is_further_away_than_the_radius[little noise]",),
    ),
    Mutant(
        "one step fewer certified than taken",
        "ledger/totals.py",
        "        steps = sum(charge.steps for charge in of_run)\n",
        "        steps = sum(charge.steps for charge in of_run) - 1\n",
        (f"{LEDGER}::test_runs_count_repeated_steps",),
    ),
    Mutant(
        "one step more taken than charged",
        WALL,
        "        return self._advance(state, first, stop)\n",
        "        return self._advance(state, first, stop + 1)\n",
        (f"{EVERY}::test_splitting_segments_changes_no_bit[conjugate, mixture of two]",),
    ),
    Mutant(
        "a seeded key in a real run",
        "engine/random.py",
        "    return from_bytes(os.urandom(LENGTH))\n",
        "    return fixed(0)\n",
        ("tests/engine/test_random.py::test_fresh_keys_are_the_operating_systems_32_bytes",),
    ),
    Mutant(
        "the same words in every part of a step",
        "engine/random.py",
        "            _write(cipher, 2 * start, row[start:stop])\n",
        "            _write(cipher, 0, row[start:stop])\n",
        ("tests/engine/test_random.py::test_the_words_of_openssl_are_the_counter_mode_of_aes",),
    ),
    Mutant(
        "the tag of the cipher left among the words",
        "engine/random.py",
        "            row[cut:stop] = spare[: stop - cut]\n",
        "",
        ("tests/engine/test_random.py::test_the_words_of_openssl_are_the_counter_mode_of_aes",),
    ),
    Mutant(
        "records of a smaller last chunk counted as often as a whole one has places",
        "engine/sums.py",
        "        lows = jax.lax.fori_loop(0, jnp.where(fast, 0, len(present)), add_one, lows)\n",
        "        lows = jax.lax.fori_loop(0, jnp.where(fast, 0, self.sizes.chunk), add_one, lows)\n",
        ("tests/engine/test_outer.py::test_with_a_smaller_last_chunk_sums_are_what_they_are_without",),
    ),
    Mutant(
        "a smaller last chunk, whatever it does to contributions",
        "engine/step.py",
        "        self.sizes = sizes if same else replace(sizes, tail=0)\n",
        "        self.sizes = sizes\n",
        (
            "tests/engine/test_outer.py::test_a_last_chunk_of_another_size_is_taken_only_where_it_changes_no_contribution",
        ),
    ),
    Mutant(
        "a user's seed makes the noise, and the certificate does not say so",
        "run/folder.py",
        "            return cls(folder, uuid.uuid4().hex, key, secret, simulate is not None)\n",
        "            return cls(folder, uuid.uuid4().hex, key, secret, False)\n",
        (f"{FIT}::test_a_fresh_run_has_fresh_noise_and_a_simulation_says_so",),
    ),
    Mutant(
        "a record's own draw kept across steps (memory of a record)",
        "engine/draws.py",
        "        return random.fold_in(jax.random.split(secret, 1)[0], steps)\n",
        "        return random.fold_in(jax.random.split(secret, 1)[0], 0 * steps)\n",
        ("tests/engine/test_own.py::test_no_two_keys_of_a_run_are_the_same",),
    ),
    Mutant(
        "a number without noise beside the release (a loss)",
        "engine/memory.py",
        "            return step.finish(state, total, keys[i])\n",
        "            bare = sum_over(step, state, records, subsets, row, keys[i], mine)\n"
        "            release = step.release(total)._replace(full=step.release(bare).full)\n"
        "            return jax.tree.map(jnp.asarray, step.method.update(state, release, keys[i]))\n",
        (f"{NEIGHBOURS}::test_released_numbers_lie_on_the_lattice",),
    ),
    Mutant(
        "the ledger's line after the look",
        WALL,
        "        for ledger in self._ledgers:\n            ledger.charge(charge)\n"
        "        self._programs.charged(first)\n",
        "        state = self._advance(state, first, stop)\n        for ledger in self._ledgers:\n"
        "            ledger.charge(charge)\n        return state\n",
        ("tests/engine/test_step.py::test_the_ledger_is_charged_before_words_are_drawn",),
    ),
    Mutant(
        "the ledger's line is not synced to the disk",
        "ledger/storage.py",
        "            system.flush_to_disk(file)\n            if self._synced < 0:\n",
        "            if self._synced < 0:\n",
        (f"{LEDGER}::test_the_line_is_on_the_disk_before_charge_returns",),
    ),
    Mutant(
        "a line goes to a file that was replaced while its lock was waited for",
        "ledger/storage.py",
        "                    if is_in_place(self.path, file):\n",
        "                    if True:\n",
        (f"{LEDGER}::test_a_file_replaced_while_its_lock_is_waited_for_loses_no_look",),
    ),
    Mutant(
        "a line that was synced to a replaced file counts as written",
        "ledger/storage.py",
        "            self._sync(file, self._end + len(data))\n            self._still_in_place(file)\n",
        "            self._sync(file, self._end + len(data))\n",
        (f"{LEDGER}::test_a_file_replaced_while_a_line_is_synced_means_no_look",),
    ),
    Mutant(
        "a replay is free by a line that was synced to a replaced file",
        "ledger/storage.py",
        "            self._sync(file, self._end)\n            self._still_in_place(file)\n",
        "            self._sync(file, self._end)\n",
        (f"{LEDGER}::test_a_file_replaced_while_a_line_is_synced_means_no_look",),
    ),
    Mutant(
        "the ledger is not compared with its anchor",
        "ledger/storage.py",
        "        if said := anchors.problem(self.path, self.contents.lines, self._run_anchor):\n",
        '        if said := "":\n',
        (f"{ANCHORS}::test_a_cap_is_not_won_back_by_an_older_copy",),
    ),
    Mutant(
        "a ledger is compared with its anchor when it is opened, and not when a look is charged",
        "ledger/file.py",
        "            if compare:\n",
        "            if not compare:\n",
        (f"{ANCHORS}::test_a_ledger_that_was_opened_before_its_file_went_back_charges_nothing",),
    ),
    Mutant(
        "the anchor is written after the look",
        "ledger/storage.py",
        "            anchors.move(self.path, self.contents.lines, self._run_anchor, self.compare)\n",
        "            anchors.move(self.path, self.contents.lines[:-1], self._run_anchor, self.compare)\n",
        (f"{ANCHORS}::test_the_anchor_is_written_after_the_line_and_before_records_are_read",),
    ),
    Mutant(
        "a replay reads records before the anchor knows its line",
        "ledger/storage.py",
        "            self._still_in_place(file)\n        self._move_anchors()\n",
        "            self._still_in_place(file)\n",
        (f"{ANCHORS}::test_a_ledger_ahead_of_its_anchor_goes_on",),
    ),
    Mutant(
        "a ledger that is gone is created anew although an anchor names it",
        "ledger/storage.py",
        "                    if not self.path.exists():\n                        raise\n"
        "                    return os.open(self.path, flags)  # another",
        "                    return os.open(self.path, flags | os.O_CREAT, 0o644) if write else None  # another",
        (f"{ANCHORS}::test_a_deleted_ledger_is_not_begun_anew",),
    ),
    Mutant(
        "the anchor in a run's folder is not compared",
        "ledger/anchors.py",
        "    if run_anchor is not None and of_run is not None and",
        "    if run_anchor is not None and of_run is None and",
        (f"{ANCHORS}::test_a_run_folder_is_an_anchor_without_a_state_folder",),
    ),
    Mutant(
        "two copies of a ledger move one anchor, each from where it was",
        "ledger/anchors.py",
        "        check()\n",
        "",
        (f"{ANCHORS}::test_two_copies_cannot_be_charged_at_once",),
    ),
    Mutant(
        "a longer ledger is taken for the one that its anchor knows",
        "ledger/anchors.py",
        "        if lines[self.lines - 1].hash != self.head:\n",
        "        if False:\n",
        (f"{ANCHORS}::test_an_older_copy_that_went_on_elsewhere_is_refused",),
    ),
    Mutant(
        "the cap of a ledger that is gone is lost with it",
        "ledger/file.py",
        '                known.cap = Budget.from_dict(before["cap"]) if "cap" in before else None\n',
        "",
        (f"{ANCHORS}::test_a_ledger_that_is_gone_goes_on_under_its_cap",),
    ),
    Mutant(
        "a replay is free whatever the records are",
        "wall/storage.py",
        '            digest.update(np.ascontiguousarray(leaf).view(np.uint8).data if leaf.size else b"")\n',
        "",
        (f"{FAULTS}::test_no_look_is_lost_or_free[records changed-in the middle]",),
    ),
    Mutant(
        "a replay is free whatever the state is",
        WALL,
        "    facts = [program, versions(), origin]\n",
        "    facts = [program, versions()]\n",
        (f"{FAULTS}::test_no_look_is_lost_or_free[records changed, killed again, checkpoint lost-in the middle]",),
    ),
    Mutant(
        "one secret makes the same noise for other records",
        "engine/programs.py",
        "        if simulation:\n            return secret\n",
        "        return secret\n",
        (f"{FIT}::test_other_data_never_meet_the_same_noise_under_a_copied_secret",),
    ),
    Mutant(
        "a changed checkpoint is gone on from under the old key",
        "run/folder.py",
        "            replays, origin = seal == runner.seal(sealed), hashlib.sha256(sealed).digest()\n",
        "            replays, origin = True, hashlib.sha256(sealed).digest()\n",
        (
            f"{FAULTS}::test_no_look_is_lost_or_free[secret deleted-in the middle]",
            f"{FIT}::test_anything_changed_is_charged_again_under_new_noise[checkpoint-7]",
        ),
    ),
    Mutant(
        "a fit's steps are not those that the method was built for",
        "run/plan.py",
        "    if built.for_steps not in (None, steps):\n",
        "    if False:\n",
        (f"{FIT}::test_no_number_is_said_twice",),
    ),
    Mutant(
        "a method that was built for another number of records is run",
        "run/plan.py",
        "    if built.for_size is not None and not plan.agrees(built.for_size):\n",
        "    if False:\n",
        (f"{FIT}::test_no_number_is_said_twice",),
    ),
    Mutant(
        "a method's own size goes before that of the records",
        "methods/arguments.py",
        "    if given is not None and plan.agrees(given):\n",
        "    if given is not None:\n",
        (f"{FIT}::test_no_number_is_said_twice",),
    ),
    Mutant(
        "contributions that must be whole are shortened by the user's clip",
        "run/plan.py",
        "    if built.bounded:\n",
        "    if False:\n",
        (f"{FIT}::test_settings_that_would_spoil_a_method_are_refused_before_anything_is_spent",),
    ),
    Mutant(
        "a chain that ends before its burn-in is drawn from",
        "run/plan.py",
        "    if steps < built.min_steps:\n",
        "    if False:\n",
        (f"{FIT}::test_settings_that_would_spoil_a_method_are_refused_before_anything_is_spent",),
    ),
    Mutant(
        "two processes in one folder",
        "run/folder.py",
        "            held.enter_context(system.locked_folder(folder))\n",
        "            pass\n",
        (f"{FAULTS}::test_no_look_is_lost_or_free[another process in the folder-in the middle]",),
    ),
    Mutant(
        "the locks of Windows keep nobody out",
        "system.py",
        "    while not _lock_byte(file, msvcrt.LK_NBLCK):\n",
        "    while _lock_byte(file, msvcrt.LK_NBLCK) is None:\n",
        ("tests/test_system.py::test_a_lock_is_held_by_one_open_file[True]",),
    ),
    Mutant(
        "records are columns of matrix products",
        "engine/rewrite.py",
        "        if batched == [False, True] and not batches[0]:\n",
        "        if not batched:\n",
        ("tests/engine/test_places.py::test_records_are_rows_of_the_left_factor[right]",),
    ),
    Mutant(
        "the secret stays when the run has ended",
        "run/folder.py",
        '            (self.folder / "secret.key").unlink(missing_ok=True)\n            (self.folder',
        "            (self.folder",
        (f"{FAULTS}::test_no_look_is_lost_or_free[SIGKILL-in the middle]",),
    ),
    Mutant(
        "no allowance for rounding in the clip",
        "wall/clip.py",
        "    share = (1 - math.sqrt(dimension) / (2 * radius)) / (1 + (additions(dimension) + 16) * UNIT_ROUNDOFF)\n",
        "    share = 1.0\n",
        ("tests/engine/test_clip.py::test_no_row_exceeds_other_radii",),
    ),
    Mutant(
        "less noise than asked for: the radius rounded up",
        "wall/samplers.py",
        "    largest = math.isqrt(math.floor(shares * Fraction(RHO_SQUARED) / sigma**2))\n",
        "    largest = math.isqrt(math.floor(shares * Fraction(RHO_SQUARED) / sigma**2)) + 1\n",
        ("tests/engine/test_lattice.py::test_the_radius_is_the_largest_safe_one",),
    ),
    Mutant(
        "contributions 5% longer than the clip",
        "engine/clip.py",
        "    return radius * jnp.minimum(1, jnp.float32(share) / jnp.sqrt(squares))\n",
        "    return radius * jnp.minimum(1, jnp.float32(1.05 * share) / jnp.sqrt(squares))\n",
        (f"{NEIGHBOURS}::test_no_neighbour_is_further_away_than_the_radius[five numbers]",),
    ),
    Mutant(
        "nothing of the clip kept for what float32 errs within a block of records",
        "engine/clip.py",
        "        relative = roundings * UNIT_ROUNDOFF / (1 - roundings * UNIT_ROUNDOFF)\n",
        "        relative = 0.0\n",
        ("tests/engine/test_clip.py::test_what_single_column_products_take",),
    ),
    Mutant(
        "the rate of the subsets rounded to float32",
        "wall/samplers.py",
        "    stay = Fraction(1) - Fraction(rate)\n",
        "    stay = Fraction(1) - Fraction(float(np.float32(rate)))\n",
        ("tests/engine/test_sample.py::test_the_rate_is_the_floats_exact_value",),
    ),
    Mutant(
        "noise from 32 bits a draw: what was cut off is not drawn",
        "engine/alias.py",
        "    return jax.lax.while_loop(lambda carry: jnp.any(carry[1]), settle, carry)[0]\n",
        "    return blocks\n",
        ("tests/engine/test_alias.py::test_what_is_cut_off_is_parted_by_96_more_bits_to_the_last_unit",),
    ),
    Mutant(
        "shapes follow the private number of records",
        "engine/step.py",
        "        expected = None if data.size is None else mechanism.rate * data.size / self.shares\n",
        "        expected = mechanism.rate * data._count / self.shares\n",
        (f"{NEIGHBOURS}::test_neighbouring_data_sets_run_the_same_shapes",),
    ),
    Mutant(
        "weights that float32 may flush to zero",
        "accounting/mechanism.py",
        "not all(1 / checks.LARGEST_WEIGHT <= weight <= checks.LARGEST_WEIGHT for weight in weights)",
        "not all(0 < weight < math.inf for weight in weights)",
        ("tests/engine/test_clip.py::test_weights_that_float32_may_flush_to_zero_are_refused",),
    ),
    Mutant(
        "nothing of delta kept for what the samplers lack",
        "accounting/mechanism.py",
        "    recipe = (budget.epsilon, budget.delta * (1 - RESERVE), rate, steps, adjacency)\n",
        "    recipe = (budget.epsilon, budget.delta * (1 + 1e-2), rate, steps, adjacency)\n",
        ("tests/test_mechanism.py::test_calibrated_recipe_fits_the_budget_with_its_reserve",),
    ),
    Mutant(
        "a look beyond the cap",
        "ledger/contents.py",
        "        if after <= cap.epsilon:\n",
        "        if after <= 1.1 * cap.epsilon:\n",
        (f"{LEDGER}::test_the_cap_refuses_before_writing",),
    ),
    Mutant(
        "an error message that shows a value",
        "wall/data.py",
        "has a value that is none of its {len(codes)} declared levels",
        "has a value in {flat!r} that is none of its {len(codes)} declared levels",
        ("tests/wall/test_data.py::test_an_unknown_level_is_refused_and_not_shown",),
    ),
    Mutant(
        "a certificate holds for whatever numbers lie beside it",
        "ledger/verify.py",
        "    if other:\n        raise CertificateError(\n            f\"The {' and '",
        "    if False:\n        raise CertificateError(\n            f\"The {' and '",
        ("tests/test_numbers.py::test_a_posterior_with_other_numbers_is_refused",),
    ),
    Mutant(
        "a posterior is loaded without a look at its numbers",
        "results/posterior.py",
        "    certificate.verify(posterior=None if saved.derived else saved)\n",
        "    certificate.verify()\n",
        ("tests/test_numbers.py::test_a_posterior_with_other_numbers_is_refused",),
    ),
    Mutant(
        "numbers are hashed without their names",
        "results/numbers.py",
        "        head = canonical([name, kind, list(array.shape)])\n",
        "        head = canonical([kind, list(array.shape)])\n",
        ("tests/test_numbers.py::test_the_hash_is_of_names_types_shapes_and_bits",),
    ),
    Mutant(
        "a certificate that names no numbers passes as one that does",
        "results/posterior.py",
        'saved.derived else "" if certificate.numbers else UNTIED',
        'saved.derived else ""',
        ("tests/test_numbers.py::test_certificates_of_the_format_before_hold_and_say_that_they_name_no_numbers",),
    ),
    Mutant(
        "samplers that are said to be exact",
        "ledger/verify.py",
        "    if not 0 < slack < delta or",
        "    if not 0 <= slack < delta or",
        (f"{CERTIFICATE}::test_a_forger_with_a_fitting_digest_cannot_claim_less",),
    ),
    Mutant(
        "more spent than the budget, and nobody asks why",
        "ledger/verify.py",
        "    if epsilon > certificate.budget.epsilon * (1 + TOLERANCE) and not repeated:\n",
        "    if False:\n",
        (f"{CERTIFICATE}::test_a_forger_with_a_fitting_digest_cannot_claim_less",),
    ),
    Mutant(
        "a text on a certificate that runs backwards",
        "accounting/mechanism.py",
        "for sign in text if not sign.isprintable()",
        "for sign in text if ord(sign) < 32",
        (f"{CERTIFICATE}::test_a_forger_with_a_fitting_digest_cannot_claim_less",),
    ),
    Mutant(
        "lines of the ledger that no look explains",
        "ledger/verify.py",
        "(certificate.ledger_lines > least and not others)",
        "False",
        (f"{CERTIFICATE}::test_a_forger_with_a_fitting_digest_cannot_claim_less",),
    ),
    Mutant(
        "a forged recipe that takes a gigabyte to refuse",
        "accounting/losses.py",
        "_MOST_SUMS = 2**20\n",
        "_MOST_SUMS = 2**40\n",
        (f"{CERTIFICATE}::test_a_hostile_certificate_takes_neither_time_nor_memory",),
    ),
    Mutant(
        "a user's code passes as tacit's own by its name",
        "ledger/provenance.py",
        "        return _package(name) and module is not None and module.__dict__ is one.__globals__\n",
        "        return _package(one.__module__ or name)\n",
        ("tests/test_provenance.py::test_a_name_alone_does_not_make_it_tacits",),
    ),
    Mutant(
        "records that can be pickled",
        "wall/data.py",
        "    __reduce__ = __reduce_ex__ = __getstate__ = _sealed(",
        "    _unused = _sealed(",
        ("tests/wall/test_data.py::test_sealed",),
    ),
    Mutant(
        "a model that prints records is let in",
        "wall/border.py",
        "        if calls:\n",
        "        if False:\n",
        ("tests/test_errors.py::test_a_model_that_calls_out_of_the_program_is_refused[print]",),
    ),
    Mutant(
        "XLA may write programs, records and keys to files",
        "wall/environment.py",
        "        if any(part in name for part in TELLING_FLAGS):\n",
        "        if False:\n",
        ("tests/wall/test_environment.py::test_variables_that_write_programs_are_refused",),
    ),
    Mutant(
        "flags of XLA are looked for in the environment only, from which they can be taken back",
        "wall/environment.py",
        "    if in_force:\n",
        "    if False:\n",
        ("tests/wall/test_environment.py::test_flags_that_are_taken_back_after_xla_has_read_them_are_refused",),
    ),
    Mutant(
        "a secret is written to a file that somebody planted",
        "system.py",
        'os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)',
        "os.O_CREAT | os.O_TRUNC",
        (f"{LEDGER}::test_nothing_is_written_to_a_file_that_somebody_planted",),
    ),
    Mutant(
        "a secret that others may know is gone on with",
        "system.py",
        '        if hasattr(os, "geteuid") and (',
        "        if False and (",
        (f"{FIT}::test_a_secret_that_others_may_know_is_not_gone_on_with",),
    ),
    Mutant(
        "made-up tables hold formulas that a spreadsheet runs",
        "cli/runs.py",
        "        lines.writerows(zip(*(map(escaped, table[name]) for name in table), strict=True))\n",
        "        lines.writerows(zip(*(list(table[name]) for name in table), strict=True))\n",
        ("tests/wall/test_tables.py::test_formulas_are_escaped_and_read_back",),
    ),
    Mutant(
        "a scaler fitted to the raw records travels with the certificate",
        "adapters/sklearn/base.py",
        '    return "is or was fitted to the same records without noise"\n',
        '    return ""\n',
        ("tests/test_estimators.py::test_company_that_no_certificate_counts_is_refused[a scaler]",),
    ),
    Mutant(
        "settings chosen by a search on the records",
        "adapters/sklearn/base.py",
        "    if classes and not classes & COMPOSED.keys():\n",
        "    if False:\n",
        ("tests/test_estimators.py::test_company_that_no_certificate_counts_is_refused[GridSearchCV]",),
    ),
    Mutant(
        "a function of all records in a pipeline",
        "adapters/sklearn/base.py",
        "        return bool(np.allclose(whole, np.concatenate(single), rtol=1e-6, equal_nan=True))\n",
        "        return True\n",
        ("tests/test_estimators.py::test_company_that_no_certificate_counts_is_refused[a function of all records]",),
    ),
    Mutant(
        "fits in scikit-learn's threads, where nobody sees what else is fitted",
        "adapters/sklearn/base.py",
        "        if outermost == WORKERS:\n",
        "        if False:\n",
        ("tests/test_estimators.py::test_loops_of_fits_are_refused_unless_a_capped_ledger_pays",),
    ),
    Mutant(
        "code of a folder that somebody sent is run unasked",
        "cli/trust.py",
        "    asks_for = MODEL if code else COMMAND\n    if asks_for in named:\n",
        "    asks_for = MODEL if code else COMMAND\n    if True:\n",
        ("tests/test_cli.py::test_code_of_a_folder_that_somebody_sent_is_run_only_when_trusted",),
    ),
    Mutant(
        "a model that was changed since the user's own fit is run unasked",
        "cli/trust.py",
        "    names = (COMMAND, SCHEMA, MODEL) if code else (COMMAND, SCHEMA)\n",
        "    names = (COMMAND, SCHEMA)\n",
        ("tests/test_cli.py::test_a_users_own_run_needs_no_trust_until_it_is_changed[model.py]",),
    ),
    Mutant(
        "arrays that a program holds are not in the tag",
        "wall/trace.py",
        "        digest.update(repr((held.shape, held.dtype.str)).encode() + np.ascontiguousarray(held).tobytes())\n",
        "        pass\n",
        ("tests/privacy/test_border.py::test_the_same_where_constants_are_arguments",),
    ),
    Mutant(
        "noise does not depend on what the program does",
        "engine/runner.py",
        '        tag = f"{self.tag} {segment} {chain.hex()}"\n',
        '        tag = f"{self.tag} {segment}"\n',
        ("tests/privacy/test_border.py::test_noise_does_not_cancel_even_if_the_tag_is_wrong",),
    ),
    Mutant(
        "the fingerprint is that of the first state",
        "engine/runner.py",
        "        if now_and_then or not before or",
        "        if not before or",
        ("tests/privacy/test_border.py::test_noise_does_not_cancel_where_programs_part_late",),
    ),
    Mutant(
        "settings of JAX are not in the tag",
        "engine/runner.py",
        "system.cores(), _processor(), _configuration()]",
        "system.cores(), _processor()]",
        ("tests/privacy/test_border.py::test_settings_of_jax_are_in_the_tag",),
    ),
    Mutant(
        "every place counts as alike",
        "engine/made_up.py",
        "        alike = all(self._same(here, state, key, _turned(chunk, turn)) for turn in (1, chunk // 2 + 1))\n",
        "        alike = True\n",
        ("tests/privacy/test_border.py::test_a_contribution_that_depends_on_its_place_is_found",),
    ),
    Mutant(
        "places are not looked at later",
        "engine/made_up.py",
        "        return digest.digest(), not asked or",
        "        return digest.digest(), True or not asked or",
        ("tests/privacy/test_border.py::test_a_contribution_that_depends_on_its_place_later_releases_nothing",),
    ),
    Mutant(
        "files may change while steps are taken",
        "engine/fetch.py",
        "        # Before anything leaves: what was read is what was hashed.\n        self.storage.unchanged()\n",
        "",
        ("tests/privacy/test_border.py::test_a_file_that_changes_while_steps_are_taken_releases_nothing",),
    ),
    Mutant(
        "a primitive is trusted by its name",
        "engine/independence.py",
        "        if equation.primitive not in TRUSTED:  # a name alone can be anyone's\n            return unknown\n",
        "",
        ("tests/engine/test_independence.py::test_a_primitive_of_someone_s_own_is_not_trusted_by_its_name",),
    ),
    Mutant(
        "any loop counts as frozen",
        "engine/independence.py",
        "        facts = equation.params\n"
        '        test, body = facts["cond_jaxpr"].jaxpr, facts["body_jaxpr"].jaxpr\n'
        "        ahead",
        "        return True\n"
        "        facts = equation.params\n"
        '        test, body = facts["cond_jaxpr"].jaxpr, facts["body_jaxpr"].jaxpr\n'
        "        ahead",
        ("tests/engine/test_independence.py::test_a_loop_that_is_not_frozen_is_found_beside_one_that_is",),
    ),
    Mutant(
        "what has no rule counts as apart",
        "engine/rules.py",
        "    return [MIXED] * len(equation.outvars)\n",
        "    return [join_all(inputs)] * len(equation.outvars)\n",
        ("tests/engine/test_independence.py::test_a_primitive_of_someone_s_own_is_not_trusted_by_its_name",),
    ),
    Mutant(
        "draws that see the batch are trusted",
        "engine/rules.py",
        'TRUSTED_KEYS = ("fry", "chacha20")\n',
        'TRUSTED_KEYS = ("",)\n',
        ("tests/engine/test_independence.py::test_an_rbg_key_becomes_one_whose_draws_do_not_see_the_batch",),
    ),
    Mutant(
        "a program that mixes records is compiled",
        "engine/contributions.py",
        "        if self.slot_invariant and not independence.apart(closed, kinds, size):\n",
        "        if False:\n",
        ("tests/engine/test_independence.py::test_a_rule_for_batches_gets_one_record_at_a_time",),
    ),
    Mutant(
        "a method is traced again for the step",
        "engine/contributions.py",
        "        if (size, record_key is None) not in self._traced:\n",
        "        if True:\n",
        ("tests/engine/test_independence.py::test_what_was_checked_is_what_is_compiled",),
    ),
    Mutant(
        "call-backs of a batching rule are not seen",
        "engine/contributions.py",
        "        if calls := trace.contents(closed)[1]:\n",
        "        if calls := set():\n",
        ("tests/engine/test_independence.py::test_a_call_out_of_a_rule_for_batches_is_refused",),
    ),
    Mutant(
        "records that do not fit are counted",
        "engine/clip.py",
        "    finite = squares < jnp.inf  # false for NaN too; a norm beyond float32 counts as infinite\n"
        "    finite = finite if fits is None else finite & fits\n",
        "    finite = squares < jnp.inf  # false for NaN too; a norm beyond float32 counts as infinite\n",
        ("tests/privacy/test_border.py::test_a_record_that_does_not_fit_contributes_nothing",),
    ),
    Mutant(
        "a caller's question is answered by a refusal",
        "wall/border.py",
        "fixed=need.fixed and _is_ours(need.predicate))",
        "fixed=need.fixed)",
        ("tests/privacy/test_border.py::test_a_need_of_the_caller_s_answers_no_question[True]",),
    ),
    Mutant(
        "the number of records shows in a refusal",
        "wall/border.py",
        "    lengths = {data.size} - {None, 0, 1}\n",
        "    lengths = {data._count} - {None, 0, 1}\n",
        ("tests/privacy/test_border.py::test_the_number_of_records_shows_in_no_refusal",),
    ),
    Mutant(
        "records are converted into a file that somebody planted",
        "engine/disk.py",
        '    with os.fdopen(system.create(partial, 0o600), "wb") as out:\n',
        '    with open(partial, "wb") as out:\n',
        (f"{BORDER}::test_records_are_written_to_no_file_that_somebody_planted",),
    ),
    Mutant(
        "a caller's question passes as tacit's own behind the sum over a unit",
        WALL,
        "        method = with_own_checks(method)\n"
        "        # Here alone methods meet data: what is written for one record is summed over those of a unit.\n"
        "        method = sum_over_unit(method) if isinstance(data._stand_in, Unit) else method\n",
        "        method = sum_over_unit(method) if isinstance(data._stand_in, Unit) else method\n"
        "        method = with_own_checks(method)\n",
        (f"{BORDER}::test_a_need_of_the_caller_s_answers_no_question_of_units",),
    ),
    Mutant(
        "a caller's question passes as tacit's own behind a function of tacit's",
        "wall/border.py",
        "        if not all(_is_ours(part) for part in given if callable(part)):\n",
        "        if not given:\n",
        (f"{BORDER}::test_a_need_that_was_handed_to_a_function_of_tacit_s_is_the_caller_s",),
    ),
    Mutant(
        "what the program did is forgotten where it is not asked again",
        WALL,
        "        chain, now_and_then = before,",
        '        chain, now_and_then = b"",',
        (f"{BORDER}::test_noise_does_not_cancel_even_if_the_tag_is_wrong",),
    ),
    Mutant(
        "what the program did before does not count",
        WALL,
        "hashlib.sha256(before + self._programs.agreed(found))",
        "hashlib.sha256(self._programs.agreed(found))",
        (f"{BORDER}::test_noise_does_not_cancel_where_programs_agree_again",),
    ),
    Mutant(
        "long segments ask for no fingerprint",
        WALL,
        "        if now_and_then or not before or self.segment * self._step.sizes.expected_chunks >= LONG_SEGMENT:\n",
        "        if now_and_then or not before:\n",
        (f"{BORDER}::test_short_segments_ask_for_few_fingerprints",),
    ),
    Mutant(
        "steps are taken in any order under the noise of another past",
        WALL,
        "        elif not inside and (self._segment is None or segment == self._segment + 1):\n",
        "        elif not inside:\n",
        (f"{BORDER}::test_steps_are_taken_in_order_under_their_noise",),
    ),
    Mutant(
        "a resumed run begins its fingerprints anew, uncharged",
        WALL,
        "        self.chain = chain\n",
        "        pass\n",
        (f"{FIT}::test_an_interrupted_run_replays_for_free[7]",),
    ),
    Mutant(
        "a checkpoint's fingerprints are not sealed",
        "run/folder.py",
        "    return repr((done, chain)).encode()",
        "    return repr(done).encode()",
        (f"{FIT}::test_anything_changed_is_charged_again_under_new_noise[chain-7]",),
    ),
    *(
        Mutant(f"the tag leaves out {what}", WALL, old, new, (f"{BORDER}::{test}",))
        for what, old, new, test in LEFT_OUT
    ),
    Mutant(
        "a fingerprint of a program that is not the one that runs",
        "engine/step.py",
        "            # Compiled anew: a fingerprint is of the program that runs.\n"
        "            self.made_up = MadeUp(self.contributions, sizes, data._stand_in)\n",
        "",
        (f"{BORDER}::test_a_fingerprint_is_of_the_program_that_runs",),
    ),
    Mutant(
        "the tag leaves out the shapes and types of records",
        "wall/storage.py",
        "            digest.update(repr((leaf.shape, leaf.dtype.str)).encode())\n",
        "",
        (f"{BORDER}::test_records_are_in_the_tag_with_their_shapes_and_types",),
    ),
    Mutant(
        "the tag leaves out the origin, in shards",
        "engine/shards.py",
        "repr([*program, key.tolist()])",
        "repr([*program[:-1], key.tolist()])",
        (f"{BORDER}::test_each_of_the_facts_of_a_run_is_in_the_tag",),
    ),
    Mutant(
        "the tag leaves out the public key, in shards",
        "engine/shards.py",
        "repr([*program, key.tolist()])",
        "repr(program)",
        (f"{BORDER}::test_each_of_the_facts_of_a_run_is_in_the_tag",),
    ),
    Mutant(
        "only the removal of a record is accounted for",
        "accounting/losses.py",
        '"add-remove": ("remove", "add"),',
        '"add-remove": ("remove",),',
        (f"{ACCOUNTING}::test_the_attacker_may_ask_for_a_record_that_is_there_or_one_that_is_missing",),
    ),
    Mutant(
        "mass at infinity counted for one step, not for all",
        "accounting/losses.py",
        "        certain = _TAIL - math.expm1(steps * math.log1p(-certain))\n",
        "        certain = _TAIL - math.expm1(math.log1p(-certain))\n",
        (f"{ACCOUNTING}::test_what_is_certain_in_one_step_adds_up_over_steps",),
    ),
]


ARITHMETIC = (
    "divides by the realised size of the subset",
    "noise scaled to the mean instead of the sum",
    "leaves clipped one by one, accounted jointly",
    "no noise where nothing was summed (a rejected update)",
    "shuffled passes, accounted as Poisson subsets",
    "subsets cut short at one chunk",
    "subsets kept for several steps",
    "noise keys used again in every step",
    "NaN poisons the sum: all its coordinates count as the largest number",
    "float sums in place of integers",
    "one step more taken than charged",
    "the same words in every part of a step",
    "the tag of the cipher left among the words",
    "records of a smaller last chunk counted as often as a whole one has places",
    "a smaller last chunk, whatever it does to contributions",
    "a record's own draw kept across steps (memory of a record)",
    "a number without noise beside the release (a loss)",
    "records are columns of matrix products",
    "contributions 5% longer than the clip",
    "nothing of the clip kept for what float32 errs within a block of records",
    "noise from 32 bits a draw: what was cut off is not drawn",
    "records that do not fit are counted",
)
"""Faults in the arithmetic of the engine: ``python -m tests.mutants --engine`` says which of them tests/test_engine.py
finds by itself."""


def plant(mutant: Mutant, folder: Path) -> Path:
    """Copy the package into a folder and make the edit; give the folder to import it from."""
    copy = folder / "src" / "tacit"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / mutant.file).write_text(edited(mutant), encoding="utf-8")
    return folder / "src"


def edited(mutant: Mutant) -> str:
    text = (SOURCE / mutant.file).read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.fault}: its text occurs {text.count(mutant.old)} times in {mutant.file}, not once.")
    return text.replace(mutant.old, mutant.new)


def hunt(mutant: Mutant) -> tuple[str, float]:
    """Return the test that found the mutant, or what happened instead; and the processor seconds it took."""
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "out", "w+", encoding="utf-8") as out:
        environment = {**os.environ, "PYTHONPATH": str(plant(mutant, Path(folder)))}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *mutant.tests]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        out.seek(0)
        said = out.read()
    seconds = usage.ru_utime + usage.ru_stime
    failed = [line.split()[1] for line in said.splitlines() if line.startswith("FAILED")]
    if code == 1 and failed:
        return f"`{failed[0].split('[')[0]}`", seconds
    print(said[-1500:])
    return ("**SURVIVED**" if code == 0 else f"**BROKEN** ({code})"), seconds


def main() -> int:
    file = ROOT / "tests" / "results" / "mutants.md"
    file.parent.mkdir(exist_ok=True)
    kept = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    known = {line.split(" | ")[0]: line for line in kept if line.startswith("| ") and "**" not in line}
    lines = ["| fault | planted in | found by | processor seconds |", "|---|---|---|---|"]

    def row(mutant: Mutant) -> str:
        start = f"| {mutant.fault}"
        if start in known:
            return known[start]
        killer, seconds = hunt(mutant)
        return f"{start} | `{mutant.file}` | {killer} | {seconds:.0f} |"

    with ThreadPoolExecutor(2) as pool:
        for line in pool.map(row, MUTANTS):
            lines.append(line)
            print(line, flush=True)
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    alive = sum("**" in line for line in lines)
    seconds = sum(int(line.split(" | ")[-1].removesuffix(" |")) for line in lines[2:])
    lines += ["", f"{len(MUTANTS) - alive} of {len(MUTANTS)} found, in {seconds} processor seconds; two run at a time."]
    print(lines[-1])
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return alive


def engine() -> int:
    """Run tests/test_engine.py alone on each fault of the engine's arithmetic, and print the share it finds."""
    found = 0
    mutants = [mutant for mutant in MUTANTS if mutant.fault in ARITHMETIC]
    for mutant in mutants:
        killer, seconds = hunt(mutant._replace(tests=("tests/test_engine.py",)))
        found += "**" not in killer
        print(f"{mutant.fault} | {killer} | {seconds:.0f}", flush=True)
    print(f"{found} of {len(mutants)} found ({found / len(mutants):.0%}) by tests/test_engine.py alone.")
    return int(found < 0.8 * len(mutants))


if __name__ == "__main__":
    sys.exit(engine() if "--engine" in sys.argv else main())
