"""What was spent, and what may be shown of it: the ledger, its anchors, and certificates.

A ledger is a chain of lines in one append-only file, written before records are read; a certificate is made from it and
checked against it. Neither sees a record, and neither decides what a step costs: that is `tacit.accounting`.

Begin with `file`: what may be done with a ledger, over its `contents` (the rules) and its `storage` (the file).
`record` is what a certificate holds, `verify` what it is held to, `page` what it says.
"""
