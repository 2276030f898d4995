"""The wall: sealed records, and the reference, one private step written to be read once, with no speed in it.

Here records are sealed and methods are checked before they meet them, and here is all that decides what a step may
reveal: the subset, one record's contribution at a time, the clip, the exact sum, the noise, the charge. It imports
public facts, accounting and the ledger; never ``tacit.engine``, which computes the same integers faster.

Read `samplers`, `keys`, `streams`, `clip`, `step` and `reference`, each beside the page of docs/proofs that it names.
"""
