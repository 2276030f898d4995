"""The engine: what makes a private step fast.

Chunks of records, factored sums, sparse rows, random words in bulk, rewritten traces, records on disk and in shards:
the same integers as the reference in ``tacit.wall``, bit for bit where nothing is factored, and within the proved
radius where a sum is. It decides nothing that a step may reveal: what a record may contribute, the noise and the charge
are the wall's.

Begin with `runner`; ``python -m tests.test_engine`` compares it with the reference.
"""
