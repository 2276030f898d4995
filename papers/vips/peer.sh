#!/usr/bin/env bash
# diffprivlib beside tacit, with the scikit-learn that it was written for.
set -euo pipefail
cd "$(dirname "$0")"
"${PYTHON:-python3}" -m venv .venv
.venv/bin/python -m pip install --quiet "diffprivlib==0.6.6" "scikit-learn<1.6" "numpy<2.3"
.venv/bin/python -c "import diffprivlib; print('diffprivlib', diffprivlib.__version__)"
