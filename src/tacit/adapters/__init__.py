"""Other packages' interfaces on tacit's parts: scikit-learn's, ArviZ's, d3p's.

An adapter translates names and shapes; it decides nothing about privacy and computes no noise of its own. What only one
other package needs belongs here, and nothing else in tacit may import it.
"""
