# Every target works on a fresh clone; it needs only Python 3.11 and pip.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
PYTEST_ARGS ?=

BIN := .venv/bin
READY := .venv/.ready
PEERS := .venv-peers/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test check docs gate dist flower submissions faults chaos bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY)  ## forget one client, from training to report, in about a minute
	$(BIN)/fedunlearn demo

test: $(READY)  ## run the tests; PYTEST_ARGS='-k models' selects some
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

check: $(READY)  ## check style, types and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The variable silences the theme's announcement of its successor. Do not use --quiet: --strict counts only warnings
# that are printed.
docs: $(READY)  ## build the documentation in site/, readable offline, and run the commands that it shows
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m pages tests/test_docs.py
	@echo "open site/index.html"

gate: $(READY)  ## check that worker processes are still faster
	$(BIN)/python -m pytest -m speed tests/speed

dist: $(READY)  ## build sdist and wheel in dist/, and test the wheel in an empty environment
	rm -rf dist
	$(BIN)/python -m build -q
	$(BIN)/python -m pytest -m wheel tests/packaging

flower: $(READY)  ## run every method on Ray and FedOSD on a Flower deployment with TLS; takes two minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'processes and not deployment' tests/flower_federation

submissions: $(READY)  ## check the methods that others submitted to the benchmark: one cell of each is run again
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m submissions -rs tests/test_submissions.py

faults: $(READY)  ## kill the processes of a Flower deployment, one after the other; takes three quarters of an hour
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m deployment -rP tests/flower_federation

chaos: $(READY)  ## damaged files, disk errors, kills, bad updates and attacks, in their long forms; takes an hour
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m chaos -rP

bench: $(READY) $(PEERS)  ## measure speed, memory and other simulators; takes half an hour, writes runs/bench
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks runs/bench $(if $(wildcard $(PEERS)),--peers .venv-peers/bin/python)

clean:  ## remove the environment and all generated files; keeps runs/
	rm -rf .venv .venv-peers build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info

$(READY): pyproject.toml constraints.txt
	@echo "Preparing .venv; the first time this takes a few minutes."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	@touch $@

# Other simulators, for comparison only; if they cannot be installed, the rest is still measured.
$(PEERS): benchmarks/peers/requirements.txt
	@echo "Preparing .venv-peers (1.8 GB)."
	@$(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip install -q --disable-pip-version-check -r $< && touch $@ || echo "no peers"
	@.venv-peers/bin/python -m pip install -q --disable-pip-version-check --no-deps -r benchmarks/peers/fluke.txt || echo "no fluke"
