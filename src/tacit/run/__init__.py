"""What is done with private records, from the plan of a run to a certificate.

Every access to records goes through the wall and is charged to a ledger first; a plan takes none. Methods and
models, and what is made of results, belong to packages of their own below.
"""
