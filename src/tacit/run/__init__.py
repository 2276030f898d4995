"""What is done with private records, from the first look at them to a certificate.

Everything here goes through the wall's door and is charged to a ledger first. Methods and models, and what is made of
results, belong to packages of their own below.
"""
