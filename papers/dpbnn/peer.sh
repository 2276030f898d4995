#!/usr/bin/env bash
# Opacus on PyTorch beside tacit, for time.py.
set -euo pipefail
cd "$(dirname "$0")"
"${PYTHON:-python3}" -m venv .venv
.venv/bin/python -m pip install --quiet "opacus==1.6.0" "torch" "numpy<2.3"
.venv/bin/python -c "import opacus, torch; print('opacus', opacus.__version__, 'torch', torch.__version__)"
