"""Another name of `tacit.adapters.d3p`, and of its modules: ``from tacit.compat.d3p.svi import DPSVI``."""

import sys

from tacit.adapters.d3p import *  # noqa: F403
from tacit.adapters.d3p import dputil, gmm, minibatch, modelling, optimizers, random, svi, util

for _module in (random.debug, random, svi, minibatch, dputil, modelling, gmm, optimizers, util):
    sys.modules[_module.__name__.replace("tacit.adapters", "tacit.compat")] = _module
