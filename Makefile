# Every target works on a fresh clone with nothing but Python 3.11 and pip.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
PYTEST_ARGS ?=

BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test check clean

help:  ## say what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY)  ## forget one client, from training to report, in about a minute
	$(BIN)/fedunlearn demo

test: $(READY)  ## run the tests; PYTEST_ARGS='-k models' narrows them down
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

check: $(READY)  ## look at style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:  ## remove the environment and everything that can be made again; keeps runs/
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info

$(READY): pyproject.toml constraints.txt
	@echo "Preparing .venv; the first time this takes a few minutes."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[report,dev]'
	@touch $@
