"""Objective perturbation by diffprivlib, in an environment of its own (peer.sh): ``peer.py INPUT.npz OUTPUT.npy``.

The input holds x, y, epsilon and seed; the output is a line of weights for each penalty.
"""

import sys

import numpy as np
from diffprivlib.models import LogisticRegression

PENALTIES = (0.001, 0.01, 0.1, 1.0)

with np.load(sys.argv[1]) as given:
    x, y = given["x"].astype(float), given["y"]
    options = {"epsilon": float(given["epsilon"]), "random_state": int(given["seed"])}
weights = [
    LogisticRegression(C=penalty, data_norm=1.0, fit_intercept=False, max_iter=200, **options).fit(x, y).coef_[0]
    for penalty in PENALTIES
]
np.save(sys.argv[2], np.asarray(weights))
