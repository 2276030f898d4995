"""NumPyro models: those that a formula makes, with their families of responses and default priors.

A model here is a function of public constants and of the columns that it is called with. What is known without a
distribution belongs to `tacit.facts`; how a model is fitted belongs to `tacit.methods`.
"""
