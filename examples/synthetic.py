"""Synthetic hospital stays: copies that may be handed out, and an interval from them that is honest.

Simulated patients only. Nothing is fixed, so the printed numbers differ from run to run.
"""

import jax
import numpy as np

import tacit
from tacit.datasets import HOSPITAL, hospital

COLUMNS = ("emergency", "earlier_stays", "diabetes", "readmitted")
stays = hospital(seed=1)
schema = tacit.Schema({name: HOSPITAL.columns[name] for name in COLUMNS}, unit="patient")
data = tacit.PrivateData({name: stays[name] for name in COLUMNS}, schema)

method = tacit.marginals(schema, bins={"earlier_stays": [1, 2, 3]})
posterior = tacit.fit(method, data, tacit.Budget(1.0, 1e-6, unit="patient"), key=jax.random.key(0), progress=False)
copies = posterior.synthesize(20000, copies=20, key=jax.random.key(1))


def effect(table):
    """Return how much oftener emergencies are readmitted than others, and the variance of that."""
    again, urgent = table["readmitted"] == "yes", table["emergency"] == "yes"
    shares = np.array([again[urgent].mean(), again[~urgent].mean()])
    return shares[0] - shares[1], np.sum(shares * (1 - shares) / [urgent.sum(), (~urgent).sum()])


estimates, variances = np.transpose([effect(table) for table in copies])
combined = tacit.synthetic.combine(estimates, variances)
alone = 1.96 * variances[0] ** 0.5
print(f"one copy, taken for real: {estimates[0]:.3f} +- {alone:.3f}")
print(f"20 copies, combined:      {combined.mean:.3f}, 95% interval {combined.low:.3f} to {combined.high:.3f}")
print(f"the records themselves:   {effect(stays)[0]:.3f}")
assert posterior.certificate is not None
print(f"certified: epsilon {posterior.certificate.epsilon:.3f} for each patient")
