"""Helpers that several test files use."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src import compiler

from tacit.accounting.mechanism import Mechanism
from tacit.engine import random
from tacit.engine.runner import Runner
from tacit.engine.sizes import QUICK_OPTIONS, is_known
from tacit.ledger.file import Ledger
from tacit.types import Method
from tacit.wall.data import PrivateData

# Tracing makes very many small objects that live on: cycles among them are looked for less often.
gc.set_threshold(50_000, 20, 100)
# Many tests open a door on the same program: compile it once. The folder is new for every run of the tests, and its
# name passes to the processes that are started, by pytest-xdist or by a test.
if "TACIT_TEST_PROGRAMS" not in os.environ:
    _PROGRAMS = tempfile.TemporaryDirectory(prefix="tacit-tests-")
    os.environ["TACIT_TEST_PROGRAMS"] = _PROGRAMS.name
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ["TACIT_TEST_PROGRAMS"]
os.environ["XDG_STATE_HOME"] = os.path.join(os.environ["TACIT_TEST_PROGRAMS"], "state")  # the list of trusted runs
jax.config.update("jax_compilation_cache_dir", os.environ["TACIT_TEST_PROGRAMS"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


LONG = (
    *("tests/adapters/", "tests/methods/", "tests/papers/", "tests/privacy/test_audit", "tests/privacy/test_float"),
    *("tests/test_audit", "tests/test_auto", "tests/test_distribute", "tests/test_effects"),
    *(
        "tests/test_estimators",
        "tests/test_examples",
        "tests/test_foresight",
        "tests/test_formula",
        "tests/test_testing",
        "tests/test_plots",
        "tests/test_posterior",
    ),
    *("tests/test_properties", "tests/test_recalibrate", "tests/test_rehearse", "tests/test_select"),
    *("tests/test_synthetic", "tests/test_topics", "tests/engine/test_disk"),
    "tests/engine/test_places.py::test_no_place_matters_here",
    "tests/engine/test_places.py::test_no_place_matters_with_fewer_instructions",
    "tests/test_system.py::test_the_ledger_with_the_locks_of_windows",
    *("tests/wall/test_precision", "tests/engine/test_rewrite", "tests/engine/test_rows"),
    "tests/wall/test_units",
    "tests/privacy/test_neighbours.py::test_no_neighbour_is_further_away_than_the_radius[much noise]",
    "tests/privacy/test_neighbours.py::test_no_neighbour_is_further_away_than_the_radius[one number]",
    "tests/privacy/test_neighbours.py::test_no_neighbour_is_further_away_than_the_radius[vi]",
    "tests/privacy/test_neighbours.py::test_no_neighbour_is_further_away_than_the_radius_with_products",
    "tests/privacy/test_neighbours.py::test_no_neighbour_is_further_away_than_the_radius_with_single_column_products",
    "tests/privacy/test_neighbours.py::test_the_allowance_for_rounding_is_needed",
    "tests/test_accounting.py::test_subsets_of_a_fixed_size_by_a_second_accountant",
    "tests/test_cli.py::test_from_fit_to_report",
    "tests/test_docs.py::test_sketches_of_methods_can_be_planned",
    "tests/test_docs.py::test_the_code_of_a_page_runs_as_printed",
    "tests/test_docstrings.py::test_examples_run_as_they_are_printed",
    "tests/test_errors.py::test_the_same_calls_without_a_mistake_go_through",
    "tests/test_every_method.py::test_it_passes_what_an_author_s_own_method_must_pass",
    "tests/test_every_method.py::test_removing_a_record_moves_the_sum_of_any_method_by_its_own_integers",
    "tests/test_every_method.py::test_without_sampling_clip_and_noise_it_is_the_textbook_algorithm",
    "tests/test_faults.py::test_no_look_is_lost_or_free[checkpoint",
    "tests/test_faults.py::test_no_look_is_lost_or_free[disk",
    "tests/test_faults.py::test_no_look_is_lost_or_free[ledger",
    "tests/test_faults.py::test_no_look_is_lost_or_free[run.json",
    "tests/test_faults.py::test_no_look_is_lost_or_free[secret cut",
    "tests/test_faults.py::test_no_look_is_lost_or_free[secret:",
    "tests/test_faults.py::test_replays_and_faults_where_constants_are_arguments",
    "tests/test_fit.py::test_a_method_brings_block_weights_and_the_user_has_the_last_word",
    "tests/test_fit.py::test_anything_changed_is_charged_again_under_new_noise[array",
    "tests/test_fit.py::test_anything_changed_is_charged_again_under_new_noise[data",
    "tests/test_fit.py::test_anything_changed_is_charged_again_under_new_noise[program",
    "tests/test_fit.py::test_anything_changed_is_charged_again_under_new_noise[secret",
    "tests/test_fit.py::test_anything_changed_is_charged_again_under_new_noise[start",
    "tests/test_fit.py::test_kills_at_random_moments_change_nothing",
    "tests/engine/test_alias.py::test_every_draw_is_that_of_128_bits",
    "tests/engine/test_alias.py::test_tables_are_combined_as_they_are_drawn",
    "tests/engine/test_clip.py::test_no_record_with_factors_exceeds_its_share",
    "tests/engine/test_outer.py::test_equinox_and_stax",
    "tests/engine/test_outer.py::test_no_array_holds_every_record_s_product",
    "tests/engine/test_outer.py::test_taken_apart_or_not_the_sum_is_the_same",
    "tests/engine/test_outer.py::test_the_memory_of_a_step_does_not_follow_the_records",
    "tests/engine/test_outer.py::test_weights_of_dense_layers",
    "tests/engine/test_sample.py::test_empty_subsets_happen_as_often_as_they_should",
    "tests/engine/test_sample.py::test_large_data_margins",
    "tests/engine/test_sample.py::test_neighbouring_halves_are_independent",
    "tests/engine/test_sample.py::test_rate_one_takes_everyone",
    "tests/engine/test_sample.py::test_small_data_single_pairs_and_sizes",
    "tests/engine/test_sample.py::test_subsets_belong_to_their_step",
    "tests/engine/test_step.py::test_given_the_words_of_the_step_noise_and_subsets_are_those_it_draws",
    "tests/engine/test_step.py::test_however_many_steps_words_are_given_for_the_bits_are_the_same[1]",
    "tests/engine/test_step.py::test_however_many_steps_words_are_given_for_the_bits_are_the_same[2]",
    "tests/test_help.py::test_the_examples_run_one_after_the_other",
    "tests/test_help.py::test_the_demo_needs_no_extra",
    "tests/test_pair_scores.py::test_a_numpyro_model",
    "tests/test_pair_scores.py::test_made_up_covariates_are_like_the_true_ones",
    "tests/test_pair_scores.py::test_no_record_is_longer_than_the_clip[bernoulli]",
    "tests/test_fit.py::test_a_method_is_built_for_the_steps_it_is_given",
    "tests/test_fit.py::test_three_arguments_suffice",
    "tests/test_fit.py::test_certificate_holds_what_was_looked_at",
    "tests/engine/test_lattice.py::test_noise_belongs_to_its_step",
    "tests/engine/test_lattice.py::test_moments_of_the_noise",
    "tests/engine/test_lattice.py::test_the_fine_table_is_the_rounded_gaussian",
    "tests/test_anchors.py::test_without_a_state_folder_the_certificate_says_so",
    "tests/test_anchors.py::test_two_processes_never_move_an_anchor_back",
    "tests/engine/test_outer.py::test_what_rearranges_or_scales_is_looked_through",
    "tests/engine/test_outer.py::test_batches_of_one_and_own_keys_are_taken_apart_too",
    "tests/engine/test_outer.py::test_what_is_not_an_outer_product_stays_as_it_is",
    "tests/engine/test_outer.py::test_records_one_at_a_time_give_the_same_factors",
    "tests/privacy/test_neighbours.py::test_the_subset_depends_on_no_record_value",
)
"""Where the names of tests begin that ``make quick`` leaves out; tests/test_mutants.py says what it must keep."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import files that are left out as a whole."""
    name = collection_path.relative_to(config.rootpath).as_posix() if config.rootpath in collection_path.parents else ""
    return True if "not long" in config.option.markexpr and name.endswith(".py") and name.startswith(LONG) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(LONG):
            item.add_marker(pytest.mark.long)


def _open_runner(method: Method, data: PrivateData, mechanism: Mechanism, seed: int = 1, **facts: Any) -> Runner:
    facts = {"ledgers": [Ledger()], "run": "test", "kind": "fit", "title": "test", "simulation": True} | facts
    return Runner(method, data, mechanism, secret=random.fixed(seed), key=jax.random.key(0), **facts)


def _recorder(steps: int) -> Method:
    """Contribute the record itself, and write down the first coordinate of every release."""
    return Method(
        init=lambda key: (jnp.int32(0), jnp.zeros(steps)),
        contribute=lambda state, record, key: record,
        update=lambda state, release, key: (state[0] + 1, state[1].at[state[0]].set(release.total[0])),
        draw=lambda state, key: {"released": state[1]},
    )


@pytest.fixture(scope="session")
def open_runner() -> Callable[..., Runner]:
    """Open a Runner with a fixed secret: open_runner(method, data, mechanism, seed=1, ledgers=[...], ...)."""
    return _open_runner


@pytest.fixture(scope="session")
def recorder() -> Callable[[int], Method]:
    """Make a method whose state is the list of what was released: recorder(steps)."""
    return _recorder


@contextmanager
def _quickly() -> Iterator[None]:
    """Compile without most optimisations: these programs run for a second, and compiling them takes ten."""
    plain = compiler.get_compile_options
    known = {name: value for name, value in QUICK_OPTIONS.items() if is_known(name, value)}

    def quick(*given: Any, **more: Any) -> Any:
        # The wall sets these options for short runs itself. With them, a program of one operation takes half the time.
        options = plain(*given, **more)
        options.env_option_overrides = list({**known, **dict(options.env_option_overrides)}.items())
        return options

    before = jax.config.read("jax_disable_most_optimizations")
    compiler.get_compile_options = quick
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
        compiler.get_compile_options = plain


def quick_flags() -> str:
    """Return XLA's flags of this process, with those of the quick compiler, for a process that it starts."""
    known = [f"--{name}={str(value).lower()}" for name, value in QUICK_OPTIONS.items() if is_known(name, value)]
    return " ".join([os.environ.get("XLA_FLAGS", ""), *known])


@pytest.fixture(scope="module", autouse=True)
def _compiler(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile quickly, except in tests of the wall, the engine and privacy: the proofs are about the real compiler."""
    real = {"wall", "engine", "privacy"} & set(request.path.parts[len(Path(__file__).parts) - 1 :])
    with nullcontext() if real else _quickly():
        yield


def with_constants_as_arguments(*tests: str) -> subprocess.CompletedProcess[str]:
    """Run tests where JAX hands arrays that a program holds over as arguments, which is announced as its default.

    In a process of its own: set later, ``jax_use_simplified_jaxpr_constants`` still leaves arrays in the text.
    """
    environment = {**os.environ, "JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    root = Path(__file__).parents[1]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def quick_compiler() -> Iterator[None]:
    """Compile quickly where a test of the wall, the engine or privacy does not turn on the compiled code."""
    with _quickly():
        yield


def without_noise(sizes: Sequence[int], words: Any, keys: Any, fines: Any = None) -> list[Any]:
    """Stand in for the noise of the wall where a test takes it out."""
    return [jnp.zeros((1 if words.row is not None else len(words.rows), size), jnp.int32) for size in sizes]
