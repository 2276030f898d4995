"""Conjugate families for ``tacit.conjugate``: each is its two functions, a start, a repair and a draw.

``bound`` is always a public figure: the largest norm of a record's ``x``. Longer ones are shortened to it.
"""

from tacit.methods.families._chances import bernoulli, categorical
from tacit.methods.families._factors import factors
from tacit.methods.families._family import Family
from tacit.methods.families._hidden_markov import hidden_markov
from tacit.methods.families._linear import linear
from tacit.methods.families._mixture import mixture
from tacit.methods.families._table import table

__all__ = ["Family", "bernoulli", "categorical", "factors", "hidden_markov", "linear", "mixture", "table"]
