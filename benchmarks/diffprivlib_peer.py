"""diffprivlib and scikit-learn, timed by the interpreter that has them (benchmarks/.venv, made by ``peers.sh``).

echo '{"way": "diffprivlib", "file": "fit.npz", "epsilon": 1}' | .venv/bin/python diffprivlib_peer.py
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import numpy as np


def main():
    """Answer requests until there are no more: fit, and give seconds and coefficients."""
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        request = json.loads(line)
        file = np.load(request["file"])
        if request["way"] == "diffprivlib":
            from diffprivlib.models import LogisticRegression

            made = LogisticRegression(epsilon=request["epsilon"], data_norm=1.0, fit_intercept=False, C=1e4)
        else:
            from sklearn.linear_model import LogisticRegression

            made = LogisticRegression(fit_intercept=False, C=1e4)
        start = time.perf_counter()
        made.fit(file["x"], file["y"])
        print(json.dumps({"wall": time.perf_counter() - start, "w": made.coef_[0].tolist()}), flush=True)


if __name__ == "__main__":
    main()
