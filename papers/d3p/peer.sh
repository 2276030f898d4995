#!/bin/sh
# d3p 0.2.0 in a virtual environment of its own, papers/d3p/.venv (ignored by git). It needs Python 3.11 and these very
# versions: a plain "pip install d3p" gives a set that cannot be imported.
set -e
cd "$(dirname "$0")"
"${PYTHON:-python3.11}" -m venv .venv
.venv/bin/python -m pip install --quiet \
    d3p==0.2.0 jax==0.4.13 jaxlib==0.4.13 numpyro==0.11.0 jax-chacha-prng==1.4.3 "numpy<1.25" "scipy<1.12"
.venv/bin/python peer.py <<'REQUEST'
{"what": "versions"}
REQUEST
