"""What is public about records: columns, their bounds and levels, who is protected, and the design of a formula.

Facts are declared by people and may be published; nothing here reads a record, and nothing is learned from one.
Distributions and priors belong to `tacit.models`; sealing records by these facts belongs to `tacit.wall`.
"""
