#!/usr/bin/env bash
# Opacus on PyTorch beside tacit, for timing.py.
set -euo pipefail
cd "$(dirname "$0")"
"${PYTHON:-python3}" -m venv .venv
# First, and this very version: an open range pulls gigabytes for graphics cards.
.venv/bin/python -m pip install --quiet "torch==2.13.0"
.venv/bin/python -m pip install --quiet "opacus==1.6.0" "numpy<2.3"
.venv/bin/python -c "import opacus, torch; print('opacus', opacus.__version__, 'torch', torch.__version__)"
