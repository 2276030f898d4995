"""Expectation propagation on public records: the oracles that ``tacit.sep`` is compared with. There is no private path.

    full EP       q = p0 f_1 ... f_N
                  repeat, record by record:  cavity  theta - alpha theta_n
                                             theta_n <- theta_n + damping (site at the cavity - theta_n)
    averaged EP   q = p0 f^N: one cavity, theta - alpha theta_f, and one site, the mean of all

Full EP remembers a site for each record, so that a record influences steps that it is not part of: a private release
would have to count it in all of them. Stochastic EP rests where averaged EP does, and both come close to full EP when
records are many.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tacit.methods.arguments import deviation
from tacit.methods.gaussians import Natural, moments, plus
from tacit.methods.sep import sep
from tacit.methods.sites import Site
from tacit.results.posterior import Posterior
from tacit.run.draws import posterior_of
from tacit.run.public import fit_public
from tacit.types import Array, Key, Plan, PyTree
from tacit.wall.data import PrivateData


def ep(
    site: Site,
    records: PyTree,
    *,
    key: Key,
    prior_std: float = 1.0,
    sweeps: int = 50,
    damping: float = 0.5,
    averaged: bool = False,
    prior: float | None = None,
) -> Posterior:
    """Fit a Gaussian posterior to public records by expectation propagation.

    Privacy: none. It is the reference that a private posterior is compared with; sealed records are refused.

    Parameters
    ----------
    site
        The likelihood, as for ``tacit.sep``.
    records
        Public records: arrays with a leading axis.
    key
        Of the draws, and of prior means where the site has random ones.
    prior_std
        Standard deviation of the independent normal prior of the weights.
    sweeps
        How often all sites are revised.
    damping
        Share of the way that a site is moved; smaller is safer.
    averaged
        One site for all records, as stochastic EP has it, instead of one for each.
    prior
        Deprecated: the prior's precision, which follows from ``prior_std``.

    Returns
    -------
    Posterior
        As of ``tacit.sep``; without a certificate.

    Examples
    --------
    >>> import jax, numpy as np, tacit
    >>> x = np.random.default_rng(0).normal(size=(50, 2))
    >>> records = {"x": x, "y": (x[:, 0] > 0).astype(int)}
    >>> posterior = tacit.ep(tacit.sites.probit(), records, key=jax.random.key(0))
    >>> posterior.draws["w"].shape
    (1000, 2)
    """
    if isinstance(records, PrivateData):
        raise TypeError(
            "ep gives no protection, so it does not take sealed records. Use tacit.fit(tacit.sep(...), ...)."
        )
    if sweeps < 1 or not 0 < damping <= 1:
        raise ValueError(f"sweeps is {sweeps}, damping is {damping:g}. Write sweeps=50, damping=0.5.")
    prior_std = deviation(prior_std, "prior", prior, -0.5)
    records = jax.tree.map(jnp.asarray, records)
    size = len(jax.tree.leaves(records)[0])
    method = sep(site, prior_std=prior_std, pace=lambda step: jnp.float32(damping))
    if averaged:
        return fit_public(method, records, steps=sweeps, key=key)
    built = method(Plan(jax.tree.map(lambda leaf: leaf[0], records), size))
    state = built.init(key)

    def visit(i: Array, memory: tuple[Natural, Natural]) -> tuple[Natural, Natural]:
        sites, total = memory
        old = jax.tree.map(lambda leaf: leaf[i], sites)
        record = jax.tree.map(lambda leaf: leaf[i], records)
        cavity = plus(plus(state.prior, total), old, -site.alpha)
        change = plus(site.natural(moments(cavity, site.matrices), record), old, -1.0)
        after = plus(total, change, damping)
        # A site that would leave no distribution behind waits for another sweep.
        allowed = _proper(cavity, site.matrices) & _proper(plus(state.prior, after), site.matrices)
        change = jax.tree.map(lambda leaf: jnp.where(allowed, damping * leaf, 0), change)
        return jax.tree.map(lambda leaf, by: leaf.at[i].add(by), sites, change), plus(total, change)

    def sweep(_: Array, sites: Natural) -> Natural:
        return jax.lax.fori_loop(0, size, visit, (sites, _sum(sites)))[0]

    first = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape)), state.sites)
    sites = jax.jit(lambda first: jax.lax.fori_loop(0, sweeps, sweep, first))(first)
    state = state._replace(sites=_sum(sites))
    return posterior_of(built, state, jax.random.fold_in(key, sweeps), None)


def _sum(sites: Natural) -> Natural:
    return jax.tree.map(lambda leaf: jnp.sum(leaf, 0), sites)


def _proper(natural: Natural, matrices: bool) -> Array:
    """Say whether natural parameters are those of a distribution."""
    if matrices:
        return jnp.all(jnp.isfinite(jnp.linalg.cholesky(natural.precision)))
    return jnp.all(jnp.asarray([jnp.all(leaf > 0) for leaf in jax.tree.leaves(natural.precision)]))
