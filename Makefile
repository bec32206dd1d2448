# make demo | test | test-all | lint: each makes .venv first, installs through constraints.txt, nothing else needed.
# test-all: the long tests, on top of those of make test.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all lint clean

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

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist src/*.egg-info
