"""Differentially private Bayesian inference on JAX and NumPyro."""

from tacit.accounting import advantage, epsilon, true_positive_rate
from tacit.certificate import Certificate, CertificateError
from tacit.ep import ep
from tacit.explain import explain
from tacit.fit import Answer, ask, fit, fit_public
from tacit.ledger import BudgetExceeded, Ledger
from tacit.mechanism import Budget, Mechanism, calibrate
from tacit.methods import families, sites
from tacit.methods.backprop import backprop
from tacit.methods.belief_net import belief_net
from tacit.methods.conjugate import conjugate
from tacit.methods.lda import lda
from tacit.methods.logistic import logistic
from tacit.methods.marginals import marginals
from tacit.methods.natural import natural
from tacit.methods.networks import network
from tacit.methods.pbp import pbp
from tacit.methods.sep import sep
from tacit.methods.sgd import dropout, sgd
from tacit.methods.sgld import sgld
from tacit.methods.vi import vi
from tacit.posterior import Posterior
from tacit.rehearse import Rehearsal, rehearse
from tacit.schema import Schema
from tacit.select import Selected, select
from tacit.synthetic import choose_pairs, combine, mix
from tacit.topics import documents
from tacit.types import Method, Release, Rows
from tacit.wall.data import PrivateData

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Budget",
    "BudgetExceeded",
    "Certificate",
    "CertificateError",
    "Ledger",
    "Mechanism",
    "Method",
    "Posterior",
    "PrivateData",
    "Rehearsal",
    "Release",
    "Rows",
    "Schema",
    "Selected",
    "advantage",
    "ask",
    "backprop",
    "belief_net",
    "calibrate",
    "choose_pairs",
    "combine",
    "conjugate",
    "documents",
    "dropout",
    "ep",
    "epsilon",
    "explain",
    "families",
    "fit",
    "fit_public",
    "lda",
    "logistic",
    "marginals",
    "mix",
    "natural",
    "network",
    "pbp",
    "rehearse",
    "select",
    "sep",
    "sgd",
    "sgld",
    "sites",
    "true_positive_rate",
    "vi",
]
