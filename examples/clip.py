"""What the clip does to a posterior: bias that more records do not cure, against noise that they do.

Simulated records only, with the secret randomness fixed, so that the printed numbers can be repeated.
"""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import tacit


def model(x, y=None):
    """Linear regression with an unknown noise scale: its score has long tails."""
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(slope * x, scale), obs=y)


generator = np.random.default_rng(0)
x = generator.normal(size=3000).astype(np.float32)
y = (0.5 * x + 0.75 * generator.normal(size=3000)).astype(np.float32)
data = tacit.PrivateData({"x": x, "y": y}, size=3000)

print("truth: slope 0.5, scale 0.75\nclip / sqrt(2)   slope    std   scale    std")
for factor in (1.0, 2.0):
    posterior = tacit.fit(
        tacit.vi(model),
        data,
        tacit.Budget(1.0, 1e-6),
        clip=factor * np.sqrt(2),
        key=jax.random.key(0),
        simulate=0,
        progress=False,
    )
    numbers = "".join(f"{mean:8.3f}{std:7.3f}" for _, mean, std, _, _ in sorted(posterior.rows(), reverse=True))
    print(f"{factor:14.1f}{numbers}")
