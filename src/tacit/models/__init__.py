"""NumPyro models: those that a formula makes, with their families and priors, and what the trace of one tells.

A model here is a function of public constants and of the columns that it is called with. What is known without a
distribution belongs to `tacit.facts`; how a model is fitted belongs to `tacit.methods`.
"""
