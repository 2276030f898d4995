# Every target creates .venv on its own. PYTHON chooses the interpreter it is made from.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test quick coverage matrix lint docs bench peer slow attack clean

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

demo: .venv/ready      ## fit simulated hospital records at epsilon 1; writes demo/
	$(BIN)/tacit demo --out demo

test: .venv/ready      ## the tests that every commit must pass
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations=30

quick: .venv/ready     ## the part of them that finds most faults in little time
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not long"

coverage: .venv/ready  ## the same tests, with the lines and branches that none of them reaches
	$(BIN)/python -m pytest -n 2 --dist loadfile --cov --cov-report=term

matrix: .venv/ready    ## the smoke tier on the wheel, for each Python found, with newest and lowest versions
	$(BIN)/python -m tests.matrix $(MATRIX)

slow: .venv/ready      ## the long statistical studies
	$(BIN)/python -m pytest -m slow

lint: .venv/ready      ## style, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/ready      ## the documentation, into site/
	$(BIN)/mkdocs build --strict

bench: .venv/ready     ## the private step against the same step without privacy
	$(BIN)/python benchmarks/step.py

attack: .venv/ready    ## audits, mutants, faults, soak: writes tests/results/, which docs/attacked.md shows
	rm -f tests/results/*.md
	$(BIN)/python -m tests.audits
	$(BIN)/python -m tests.mutants
	$(BIN)/python -m tests.test_faults
	$(BIN)/python -m tests.soak
	TACIT_CASES=100000 $(BIN)/python -m pytest -s tests/test_properties.py

peer:                  ## d3p 0.2.0 beside tacit, for papers/d3p; needs Python 3.11
	papers/d3p/peer.sh

clean:
	rm -rf .venv site demo .coverage .coverage.* htmlcov
