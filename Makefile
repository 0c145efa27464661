# `make demo` and `make test` do all their own set-up, once: a virtual environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Tests start hundreds of processes; without bytecode files each compiles PyTorch, Ray and raynas anew (17 CPU seconds).
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-slow test-kills test-gpu test-all lint format docs clean

help:
	@echo "make demo    train, search and retrain a tiny vision transformer on the digits, and write a report"
	@echo "make test    lint, check types and run the tests"
	@echo "make test-slow  the tests that start clusters, kill processes and train for minutes"
	@echo "make test-kills  one of these with 60 kills in place of 8, which takes the better part of an hour"
	@echo "make test-gpu   the tests that need a GPU, with a table of figures at the end"
	@echo "make test-all   all tests in one go"
	@echo "make lint    ruff and mypy alone"
	@echo "make format  let ruff rewrite what it can"
	@echo "make docs    the documentation as a site, in build/site"
	@echo "make clean   remove the virtual environment and caches"

demo: $(VENV)/installed
	$(BIN)/raynas demo

# Three processes keep two CPUs busy: much of a test's time is the start of another process that it waits for.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --durations=10

test: lint
	$(PYTEST)

test-slow: $(VENV)/installed-dev
	$(PYTEST) -m slow

# The better part of an hour: sixty processes and nodes are killed, in all phases of six commands; test-slow kills eight.
test-kills: $(VENV)/installed-dev
	RAYNAS_TEST_KILLS=60 $(BIN)/python -m pytest -s -m slow tests/cluster/test_kills.py

test-gpu: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m gpu tests/gpu

test-all: $(VENV)/installed-dev
	$(PYTEST) -m "slow or not slow"

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Strict: a broken link or an undocumented parameter fails it. Nothing is fetched while it builds.
docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site begins at build/site/index.html; with its search: $(BIN)/python -m http.server --bind 127.0.0.1 -d build/site"

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "raynas needs Python 3.10 or newer, and '$(PYTHON)' is not on the PATH; name another: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "raynas needs Python 3.10 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1); name another: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }

# The stamps: a second run installs nothing, a changed pyproject.toml installs again.
$(VENV)/installed: pyproject.toml | $(BIN)/python
	@echo "Installing raynas and what it needs into $(VENV) (once; PyTorch and Ray are several GB)"
	$(BIN)/pip install --disable-pip-version-check --progress-bar off -e .
	@touch $@

$(VENV)/installed-docs: pyproject.toml | $(BIN)/python
	@echo "Installing raynas and what makes its site into $(VENV) (once)"
	$(BIN)/pip install --disable-pip-version-check --progress-bar off -e '.[docs]'
	@touch $(VENV)/installed $@

$(VENV)/installed-dev: pyproject.toml | $(BIN)/python
	@echo "Installing raynas, its extras and the developers' tools into $(VENV) (once)"
	$(BIN)/pip install --disable-pip-version-check --progress-bar off -e '.[dev]'
	@touch $(VENV)/installed $@
