"""Radon in the homes of 386 counties: a hierarchical regression, private and not.

    TACIT_DATA=folder python examples/radon.py

12573 homes, a few hundred in some counties and one in others: every home's measurement is protected, and a county's
effect is shrunk towards what its uranium predicts. Writes radon.png into the current folder. (Data: Gelman and Hill;
radon_all.csv.gz.)

What to see: effects of counties with many homes are found again, those of the others are hidden by the privacy noise;
and noise in county effects looks like differences between counties, so their spread comes out too large.
"""

from __future__ import annotations

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
    sys.exit("skipped: set TACIT_DATA to the folder that holds radon_all.csv.gz")

import pandas as pd  # noqa: E402  (only where there is something to read)

homes = pd.read_csv(Path(FOLDER) / "radon_all.csv.gz")
# Uranium in the soil is public: it is known for each county, whoever took part in the survey.
URANIUM = jnp.asarray(homes.groupby("county_idx")["log_uppm"].first().to_numpy(np.float32))
COUNTIES = len(URANIUM)

SCHEMA = tacit.Schema(
    {
        "county": {"levels": list(range(1, COUNTIES + 1))},
        "floor": {"levels": [0, 1, 2, 3, 9]},  # 0 is the basement, 9 unknown
        "log_radon": {"low": -3, "high": 5},
    },
    unit="home",
    size=12573,
)


def model(county, floor, log_radon=None):
    """Let counties vary around a line in uranium; a measurement above the basement is lower."""
    level = numpyro.sample("level", dist.Normal(1, 1))
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    spread = numpyro.sample("spread", dist.HalfNormal(0.5))
    above = numpyro.sample("above", dist.Normal(0, 1))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    with numpyro.plate("counties", COUNTIES):
        effect = numpyro.sample("effect", dist.Normal(level + slope * URANIUM, spread))
    with numpyro.plate("homes", county.shape[0]):
        numpyro.sample("log_radon", dist.Normal(effect[county] + above * (floor > 0), noise), obs=log_radon)


def main() -> None:
    """Fit both, print, draw."""
    table = {"county": homes["county_idx"], "floor": homes["floor_measure"], "log_radon": homes["log_radon"]}
    budget = tacit.Budget(epsilon=4.0, delta=1e-5, unit="home")
    # A home's score lies in three coordinates, those of its county, the floor and the noise: seldom longer than 3,
    # far from the default, twice the root of all 391.
    posterior = tacit.fit(tacit.vi(model), tacit.PrivateData(table, SCHEMA), budget, clip=3.0, progress=False)
    public = {
        "county": homes["county_idx"].to_numpy() - 1,
        "floor": (homes["floor_measure"].to_numpy() > 0).astype(int),
        "log_radon": homes["log_radon"].to_numpy(np.float32),
    }
    reference = tacit.fit_public(tacit.vi(model), public, steps=2000, key=jax.random.key(0))

    print("                 private           non-private")
    for name in ("level", "slope", "above", "noise", "spread"):
        pairs = ((p.draws[name].mean(), p.draws[name].std()) for p in (posterior, reference))
        print(f"{name:10}" + "".join(f"{mean:10.2f} ± {std:.2f}" for mean, std in pairs))
    gap = posterior.draws["effect"].mean(0) - reference.draws["effect"].mean(0)
    sizes = np.bincount(public["county"], minlength=COUNTIES)
    for least, most in ((100, 10**6), (30, 99), (10, 29), (1, 9)):
        these = (sizes >= least) & (sizes <= most)
        off = np.sqrt(np.mean(gap[these] ** 2))
        print(f"{these.sum():4} counties with {least} homes or more: private means are off by {off:.2f} (rms)")
    print(posterior.certificate.explain())
    plot(posterior, reference, sizes)


def plot(posterior: tacit.Posterior, reference: tacit.Posterior, sizes: np.ndarray) -> None:
    """Show the effects of every fifth county with central 90% intervals, counties with many homes first."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # How many homes a county has is taken from the records: fine for this public survey, not for sealed ones.
    order = np.argsort(-sizes, kind="stable")[::5]
    figure, ax = plt.subplots(figsize=(10, 3.6), layout="constrained")
    both = {"private, ε = 4": posterior, "non-private": reference}
    for shift, paint, (title, one) in zip((-0.18, 0.18), COLOURS[:2], both.items(), strict=True):
        site = one.summary(unvalidated=True)["effect"]
        mean, low, high = (np.asarray(site[name])[order] for name in ("mean", "low", "high"))
        places, error = np.arange(len(order)) + shift, (mean - low, high - mean)
        ax.errorbar(places, mean, yerr=error, fmt=".", ms=4, lw=1, color=paint, label=title)
    ax.set_xlabel(f"every fifth county, from {sizes.max()} homes (left) to one (right)")
    ax.set_ylabel("log radon in the basement")
    ax.set_title("County effects: mean and central 90% of the draws (not validated)", loc="left", fontsize="medium")
    ax.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    figure.savefig("radon.png", dpi=110)
    print("picture: radon.png")


if __name__ == "__main__":
    main()
