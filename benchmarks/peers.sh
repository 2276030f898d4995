#!/bin/sh
# The peers of benchmarks/peers.py, each in an environment of its own: d3p and Opacus beside their papers, diffprivlib here.
# diffprivlib does not work with newer versions of scikit-learn. jax-privacy, NumPyro and scikit-learn are among tacit's own development tools.
set -e
cd "$(dirname "$0")"
../papers/d3p/peer.sh
../papers/dpbnn/peer.sh
"${PYTHON:-python3}" -m venv .venv
.venv/bin/python -m pip install --quiet diffprivlib==0.6.6 "scikit-learn<1.6"
