# Everything from a bare checkout: each target first makes .venv if it is missing or out of date.
# Needs Python 3.11 or newer with pip; Java and Postgres come along as packages.

.DEFAULT_GOAL := help
.PHONY: help setup demo test unit soak bench mutants lint fmt lock clean

# What is compiled is kept, whatever the caller's habit: tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Looked up only when .venv must be made; PYTHON=... on the command line overrides it.
PYTHON = $(shell for python in python3.13 python3.12 python3.11 python3 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& echo $$python && break; done)

help: ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(INSTALLED) ## Install everything into .venv

demo: setup ## Postgres, capture, Spark and Delta on this machine, proven equal at the end
	@$(BIN)/tailrace demo

test: setup ## Run every test
	@$(BIN)/python -m tests.archive
	@$(BIN)/python -m pytest --numprocesses 4 --dist worksteal
	@$(BIN)/python -m pytest -m spark --numprocesses 3 --dist worksteal

unit: setup ## Run the quick tests that need no server
	@$(BIN)/python -m pytest --numprocesses 2 -m "not server and not slow" --hypothesis-profile quick

soak: setup ## Writers against everything, with kills, cuts, replays and bad sinks: make soak SECONDS=3600
	@HUGE_ROWS=5000000 PATIENCE_S=900 $(BIN)/python -m pytest -q -o timeout=1800 \
		tests/capture/test_flow.py -k f045
	@$(BIN)/python -m tests.oracle.handover 1 50
	@$(BIN)/python -m tests.oracle.soak $(or $(SECONDS),600)
	@$(BIN)/python -m tests.oracle.streams $(or $(SECONDS),1800)

bench: setup ## Measure one thing: make bench BENCH=name
	@$(BIN)/python -m bench $(BENCH)

mutants: setup ## Break the code on purpose and see that the tests notice
	@$(BIN)/python -m tests.mutants

lint: setup ## Check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy src tests $(wildcard bench)

fmt: setup ## Format the code
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

lock: ## Choose new versions of the dependencies (needs uv)
	uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
		--no-annotate --no-header --group dev --group build pyproject.toml -o requirements.lock

clean: ## Remove what was installed or built here
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests -name __pycache__ -type d -exec rm -rf {} +

# Debian's Python comes without ensurepip, but its pip can install into an environment without one.
$(INSTALLED): pyproject.toml requirements.lock
	@set -e; python="$(PYTHON)"; \
	test -n "$$python" || { echo "Python 3.11 or newer was not found; name it with PYTHON=..." >&2; exit 1; }; \
	echo "installing into $(VENV) with $$python; the first time takes some minutes"; \
	if $$python -c 'import ensurepip' 2>/dev/null; then \
		$(BIN)/python -m pip --version >/dev/null 2>&1 || $$python -m venv --clear $(VENV); \
		pip="$(BIN)/python -m pip"; \
	elif $$python -m pip --version >/dev/null 2>&1; then \
		$(BIN)/python -c '' 2>/dev/null || $$python -m venv --clear --without-pip $(VENV); \
		pip="$$python -m pip --python $(BIN)/python"; \
	else \
		echo "$$python has neither pip nor ensurepip; on Debian: apt install python3-venv" >&2; exit 1; \
	fi; \
	export PIP_DISABLE_PIP_VERSION_CHECK=1; \
	$$pip install --quiet --require-hashes --requirement requirements.lock; \
	$$pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
