"""Opinion polls before the election of 1988: multilevel regression, private and not.

    TACIT_DATA=folder python examples/election88.py

11566 people said whom they would vote for. Their answers are protected; the effects of state, age and education are
estimated with partial pooling. Writes election88.png into the current folder. (Data: Gelman and Hill, in
bayes_demos.json.gz.)
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import tacit
from tacit.results.plots import COLOURS

FOLDER = os.environ.get("TACIT_DATA")
if not FOLDER:
    sys.exit("skipped: set TACIT_DATA to the folder that holds bayes_demos.json.gz")

with gzip.open(Path(FOLDER) / "bayes_demos.json.gz") as file:
    poll = {name: np.asarray(values) for name, values in json.load(file)["election88"].items()}
STATES = 51
# How a state voted before is public. Two states were not polled: they get the middle.
PREVIOUS = np.full(STATES, 0.5, np.float32)
PREVIOUS[poll["state"] - 1] = poll["v_prev_full"]
PREVIOUS = jnp.asarray((PREVIOUS - 0.5) * 10)

SCHEMA = tacit.Schema(
    {
        "state": {"levels": list(range(1, STATES + 1))},
        "age": {"levels": [1, 2, 3, 4]},
        "edu": {"levels": [1, 2, 3, 4]},
        "female": {"levels": [0, 1]},
        "black": {"levels": [0, 1]},
        "y": {"levels": [0, 1]},
    },
    unit="person",
    size=11566,
)


def model(state, age, edu, female, black, y=None):
    """Predict a vote for the Republican by sex, race, age, education and state."""
    level = numpyro.sample("level", dist.Normal(0, 1))
    slopes = {name: numpyro.sample(name, dist.Normal(0, 1)) for name in ("female_", "black_", "previous")}
    spread = numpyro.sample("spread", dist.HalfNormal(0.5).expand([3]).to_event(1))
    by_age = numpyro.sample("by_age", dist.Normal(0, spread[0]).expand([4]).to_event(1))
    by_edu = numpyro.sample("by_edu", dist.Normal(0, spread[1]).expand([4]).to_event(1))
    by_state = numpyro.sample("by_state", dist.Normal(slopes["previous"] * PREVIOUS, spread[2]).to_event(1))
    odds = level + slopes["female_"] * female + slopes["black_"] * black + by_age[age] + by_edu[edu] + by_state[state]
    with numpyro.plate("people", state.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=odds), obs=y)


def main() -> None:
    """Fit both, print, draw."""
    table = {name: poll[name] for name in SCHEMA.columns}
    budget = tacit.Budget(epsilon=1.0, delta=1e-6, unit="person")
    # A person's score is |y - p| in six coordinates at most: its length is below the root of 6.
    posterior = tacit.fit(tacit.vi(model), tacit.PrivateData(table, SCHEMA), budget, clip=1.8, progress=False)
    coded = {name: table[name] - (name in ("state", "age", "edu")) for name in table}
    reference = tacit.fit_public(tacit.vi(model), coded, steps=2000, key=jax.random.key(0))

    print("                 private           non-private")
    for name in ("level", "female_", "black_", "previous"):
        pairs = ((p.draws[name].mean(), p.draws[name].std()) for p in (posterior, reference))
        print(f"{name:10}" + "".join(f"{mean:10.2f} ± {std:.2f}" for mean, std in pairs))
    for name in ("by_age", "by_edu", "by_state"):
        gap = posterior.draws[name].mean(0) - reference.draws[name].mean(0)
        print(f"{name}: the private means are off by {np.sqrt(np.mean(gap**2)):.2f} (root mean square)")
    print(posterior.certificate.explain())
    plot(posterior, reference)


def plot(posterior: tacit.Posterior, reference: tacit.Posterior) -> None:
    """Show every state's effect with its central 90% interval, in the order of how it voted before."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    order = np.argsort(PREVIOUS)
    figure, ax = plt.subplots(figsize=(9, 3.6), layout="constrained")
    both = {"private, ε = 1": posterior, "non-private": reference}
    for shift, paint, (title, one) in zip((-0.18, 0.18), COLOURS[:2], both.items(), strict=True):
        site = one.summary(unvalidated=True)["by_state"]
        mean, low, high = (np.asarray(site[name])[order] for name in ("mean", "low", "high"))
        places, error = np.arange(STATES) + shift, (mean - low, high - mean)
        ax.errorbar(places, mean, yerr=error, fmt=".", ms=4, lw=1, color=paint, label=title)
    ax.set(xlabel="state, by its Republican share in earlier elections", ylabel="effect (log odds)")
    ax.set_title("State effects: mean and central 90% of the draws (not validated)", loc="left", fontsize="medium")
    ax.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    figure.savefig("election88.png", dpi=110)
    print("picture: election88.png")


if __name__ == "__main__":
    main()
