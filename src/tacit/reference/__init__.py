"""The reference: one private step, written to be read once, with no speed in it.

It lives here and may import the types, the schema and the sealed records, the mechanism and the ledger; never the
engine (``tacit.wall``'s chunks, factored sums and storage), which imports the tables of its samplers from here.
``tacit.fit(..., engine="reference")`` runs it, and tests/test_engine.py holds the engine to it.

Read `samplers`, then `clip`, `step` and `door`, each beside the page of docs/proofs that it names.
"""
