# Every target works on a fresh clone with nothing but Python 3.11 and pip.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
PYTEST_ARGS ?=

BIN := .venv/bin
READY := .venv/.ready
PEERS := .venv-peers/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test check docs gate dist bench clean

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

# The theme announces its successor, a choice for 2027, unless told not to. With --quiet nothing would be strict:
# warnings are counted as they are printed.
docs: $(READY)  ## build these pages as a site that needs no network, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

gate: $(READY)  ## make sure that worker processes still pay
	$(BIN)/python -m pytest -m speed tests/speed

dist: $(READY)  ## build sdist and wheel in dist/, and try the wheel in an empty environment
	rm -rf dist
	$(BIN)/python -m build -q
	$(BIN)/python -m pytest -m wheel tests/packaging

bench: $(READY) $(PEERS)  ## measure speed, memory and other simulators; takes half an hour, writes runs/bench
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks runs/bench $(if $(wildcard $(PEERS)),--peers .venv-peers/bin/python)

clean:  ## remove the environment and everything that can be made again; keeps runs/
	rm -rf .venv .venv-peers build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info

$(READY): pyproject.toml constraints.txt
	@echo "Preparing .venv; the first time this takes a few minutes."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	@touch $@

# Other simulators, for comparison only; without them the rest is measured all the same.
$(PEERS): benchmarks/peers/requirements.txt
	@echo "Preparing .venv-peers (1.8 GB)."
	@$(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip install -q --disable-pip-version-check -r $< && touch $@ || echo "no peers"
