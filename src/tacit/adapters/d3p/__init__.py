"""d3p 0.2.0's interface on tacit's parts: change the imports and keep the script (docs/from-d3p.md).

Names are reachable as in d3p, ``from tacit.adapters.d3p.svi import DPSVI``, and flat, ``from tacit.adapters.d3p import
DPSVI``. Same scripts, not same numbers: clipping, noise, subsets and accounting are the wall's and the accountant's.

**No certificate comes out of this module.** The script holds the records and draws the batches, so tacit cannot vouch
for what was released: there is no ledger, nothing is sealed, and losses are returned as d3p returns them. The figures
of ``get_epsilon`` and ``approximate_sigma`` hold under conditions that are the script's to meet:

- a batch is drawn afresh for every update by ``poisson_batchify_data`` ("add-remove" or "replace-one") or by
  ``subsample_batchify_data`` without replacement ("replace-one" only);
- the key is secret: ``PRNGKey()`` without a seed, and used for one fit;
- only parameters leave: losses are computed from records without noise;
- all numbers given to model, guide and optimiser are public, the number of records included.
"""

from tacit.adapters.d3p import dputil, gmm, minibatch, modelling, optimizers, random, svi, util
from tacit.adapters.d3p.dputil import approximate_sigma, approximate_sigma_remove_relation
from tacit.adapters.d3p.gmm import GaussianMixture
from tacit.adapters.d3p.minibatch import (
    batch_size_to_q,
    poisson_batchify_data,
    q_to_batch_size,
    split_batchify_data,
    subsample_batchify_data,
)
from tacit.adapters.d3p.modelling import (
    get_samples_from_trace,
    make_observed_model,
    map_args_obs_to_shape,
    sample_multi_posterior_predictive,
    sample_multi_prior_predictive,
    sample_posterior_predictive,
    sample_prior_predictive,
)
from tacit.adapters.d3p.optimizers import ADADP, adadp
from tacit.adapters.d3p.random import (
    PRNGKey,
    convert_to_jax_rng_key,
    fold_in,
    normal,
    randint,
    random_bits,
    split,
    uniform,
)
from tacit.adapters.d3p.svi import (
    DPSVI,
    DPSVIState,
    clip_gradient,
    full_norm,
    get_observations_scale,
    normalize_gradient,
)
from tacit.adapters.d3p.util import example_count, unvectorize_shape
from tacit.adapters.d3p.warning import NotCertified

__all__ = [
    "ADADP",
    "DPSVI",
    "DPSVIState",
    "GaussianMixture",
    "NotCertified",
    "PRNGKey",
    "adadp",
    "approximate_sigma",
    "approximate_sigma_remove_relation",
    "batch_size_to_q",
    "clip_gradient",
    "convert_to_jax_rng_key",
    "dputil",
    "example_count",
    "fold_in",
    "full_norm",
    "get_observations_scale",
    "get_samples_from_trace",
    "gmm",
    "make_observed_model",
    "map_args_obs_to_shape",
    "minibatch",
    "modelling",
    "normal",
    "normalize_gradient",
    "optimizers",
    "poisson_batchify_data",
    "q_to_batch_size",
    "randint",
    "random",
    "random_bits",
    "sample_multi_posterior_predictive",
    "sample_multi_prior_predictive",
    "sample_posterior_predictive",
    "sample_prior_predictive",
    "split",
    "split_batchify_data",
    "subsample_batchify_data",
    "svi",
    "uniform",
    "unvectorize_shape",
    "util",
]
