# make demo | test | test-all | lint: each makes .venv first, installs through constraints.txt, nothing else needed.
# test-all: the long tests, on top of those of make test; TISS_STRESS=20 makes those of tests/stress twenty times longer.
# test-lowest: the tests of make test with the lowest versions that pyproject.toml allows. mutants: how many small
# changes of the source the tests notice, in hours. audit: known weaknesses of what is installed; needs the network.
# build: sdist and wheel.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

LOWEST = $(VENV)-lowest

.PHONY: demo test test-all test-lowest mutants lint audit build clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) torch==2.13.0
	$(INSTALL) -e .
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(INSTALL) -e '.[test]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/tiss demo

test: $(VENV)/.tested
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not slow and not gpu"

test-all: $(VENV)/.tested
	$(BIN)/python -m pytest -n auto --dist loadfile -m "slow and not gpu"

test-lowest:
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) -m tools.lowest > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet -c $(LOWEST)/constraints.txt torch==2.13.0
	$(LOWEST)/bin/python -m pip install --quiet -c $(LOWEST)/constraints.txt -e '.[test]'
	$(LOWEST)/bin/python -m pytest -n auto --dist loadfile -m "not slow and not gpu"

mutants: $(VENV)/.tested
	$(BIN)/python -m tools.mutants

audit: $(VENV)/.installed
	$(INSTALL) pip-audit
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//' > $(VENV)/pins.txt
	$(BIN)/pip-audit --strict --no-deps --disable-pip -r $(VENV)/pins.txt

build: $(BIN)/python
	$(INSTALL) build
	rm -rf dist
	$(BIN)/python -m build

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) $(LOWEST) build dist src/*.egg-info
