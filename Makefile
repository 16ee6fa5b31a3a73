# Everything works in .venv at the project's root, which each target sets up by itself.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

.PHONY: install demo test test-slow survive hostile fuzz check format clean

install: .venv/.installed  ## set up .venv for using natpinn

demo: .venv/.installed  ## solve a five-dimensional PDE in a minute, with nothing tuned
	@rm -rf runs/demo
	$(BIN)/natpinn solve poisson_5d --budget 50 --out runs/demo \
	  --set points.interior=none --set points.boundary=none

test: .venv/.developed  ## run the tests, but for the slow ones
	$(PYTEST) -m "not slow"

test-slow: .venv/.developed  ## run the slow tests: examples, several processes, kills
	$(PYTEST) -m slow

survive: .venv/.developed  ## kill a run 200 times, take its power 200 times, and resume it each time
	NATPINN_KILLS=200 NATPINN_POWER_LOSSES=200 $(BIN)/python -m pytest -s tests/runs/test_survival.py -k "killed or power"

hostile: .venv/.developed  ## 10,000 hostile folders, settings, studies and command lines
	$(BIN)/python tests/hostile.py

fuzz: .venv/.developed  ## a thousand random command lines and config files, and fifty random runs
	NATPINN_FUZZ=1000 NATPINN_FUZZ_RUNS=50 $(BIN)/python -m pytest tests/cli/test_fuzz.py

check: .venv/.developed  ## format, lint and types
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	@found=$$($(BIN)/pyright --warnings) || { echo "$$found"; exit 1; }

format: .venv/.developed
	$(BIN)/ruff format --quiet
	$(BIN)/ruff check --fix --quiet

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("natpinn needs Python 3.11 or newer, this is %d.%d: run make PYTHON=python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) install --constraint constraints.txt --editable ".[tune,report]"
	@touch $@

.venv/.developed: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) install --constraint constraints.txt --editable ".[dev]"
	@touch .venv/.installed $@

SHELL := /bin/bash
