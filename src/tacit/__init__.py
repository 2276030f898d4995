"""Differentially private Bayesian inference on JAX and NumPyro."""
