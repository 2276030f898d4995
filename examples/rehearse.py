"""What a private fit will give, before anything is spent: rehearse on made-up patients, then fit with the best setting.

    python examples/rehearse.py

The inputs are made up from what is publicly known of such patients, and what the model observes from its prior. Nothing
is saved; the last lines fit the simulated hospital of ``tacit demo``, whose true coefficients are printed beside.
"""

from __future__ import annotations

import jax
import numpy as np

import tacit
from tacit.simulate import HOSPITAL, HOSPITAL_TRUTH, hospital, hospital_model

METHOD = tacit.vi(hospital_model)
BUDGET = tacit.Budget(epsilon=1.0, delta=1e-6, unit="patient")


def patients(key: jax.Array, size: int) -> dict[str, np.ndarray]:
    """Make up the inputs of patients; the model draws whether they come back."""
    random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    return {
        "age": random.normal(62, 16, size),  # moved inside its bounds, as real records are
        "sex": random.choice(["female", "male"], size),
        "emergency": random.choice(["no", "yes"], size),
        "days": random.gamma(2, 2.5, size),
        "earlier_stays": random.poisson(1, size),
        "diabetes": random.choice(["no", "yes"], size, p=[0.8, 0.2]),
    }


def main() -> None:
    """Rehearse, print, fit."""
    rehearsal = tacit.rehearse(
        METHOD, HOSPITAL, BUDGET, clip=[3.0, 6.0], simulate=patients, replicates=10, key=jax.random.key(0)
    )
    print(rehearsal)

    data = tacit.PrivateData(hospital(seed=1), HOSPITAL)
    posterior = tacit.fit(METHOD, data, **rehearsal.best, progress=False)
    print(posterior)
    print("truth:", ", ".join(f"{name} {value:g}" for name, value in HOSPITAL_TRUTH.items()))


if __name__ == "__main__":
    main()
