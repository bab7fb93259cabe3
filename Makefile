# Everything runs in .venv, made with PYTHON on first use and brought up to date when the build's files change.
PYTHON ?= python3
VENV   ?= .venv
JOBS   ?= 2
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

# A file of tests stays on one worker, so that what it loads and compiles is loaded and compiled once.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

.PHONY: help demo test test-models sanitize lint notebooks clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo         score and generate with a small real model (fetched once, 98 MB)'
	@echo 'make test         the test suite, with the small real model'
	@echo 'make test-models  tests on the larger real models (fetched once, 745 MB)'
	@echo 'make sanitize     tests of the native kernels, built with AddressSanitizer and UBSan (g++)'
	@echo 'make lint         ruff and pyright'
	@echo 'make notebooks    execute notebooks/*.ipynb'
	@echo 'make clean        remove .venv and everything built'

# The native library is built on the headers of the jaxlib that is installed, so that the build brings no second one.
INSTALL = $(PIP) install --quiet 'setuptools>=77' jaxlib && $(PIP) install --quiet --no-build-isolation --editable
BUILT_FROM := pyproject.toml setup.py $(wildcard minfer_jax/native/*.cc minfer_jax/native/*.h)

# One stamp for each set of extras, so that the demo does not wait for test tools.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'minfer-jax needs Python 3.11 or newer; `$(PYTHON)` is older: make PYTHON=/path/to/python3.12'; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BUILT_FROM) | $(BIN)/python
	$(INSTALL) .
	@touch $@

$(VENV)/.installed-%: $(BUILT_FROM) | $(BIN)/python
	$(INSTALL) '.[$*]'
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	@$(BIN)/minfer-jax demo

test: $(VENV)/.installed-test $(VENV)/.installed-eval
	$(PYTEST) -m 'not models and not gpu'

test-models: $(VENV)/.installed-test
	$(PYTEST) -m models

# A copy of packages and tests, with a library of its own. What sanitizers need at run time is loaded before anything
# else; a report ends the process and goes to the terminal (-s). Leaks are not looked for: JAX keeps much until the end.
SANITIZED := build/sanitized/copy
SANITIZED_PYTHON = cd $(SANITIZED) && ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
  LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" $(abspath $(BIN))/python

sanitize: $(VENV)/.installed-test
	CXX=g++ CXXFLAGS='-fsanitize=address,undefined -fno-sanitize-recover=all -O1 -g1' \
	  $(BIN)/python setup.py -q build --build-base build/sanitized --build-lib $(SANITIZED)
	rm -rf $(SANITIZED)/tests && cp -r pyproject.toml tests $(SANITIZED)
	grep -q __asan_report $(SANITIZED)/minfer_jax/native/*.so
	$(SANITIZED_PYTHON) -c 'from minfer_jax.native import library; assert library()'
	$(SANITIZED_PYTHON) -m pytest -n $(JOBS) --dist loadfile -s -k 'not bits' tests/native

lint: $(VENV)/.installed-lint $(VENV)/.installed-eval
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

notebooks: $(VENV)/.installed-notebook
	@for notebook in notebooks/*.ipynb; do \
	  [ -e "$$notebook" ] || continue; \
	  $(BIN)/jupyter nbconvert --to notebook --execute --ExecutePreprocessor.timeout=600 \
	    --output-dir build/notebooks "$$notebook" || exit 1; \
	done

clean:
	rm -rf $(VENV) .venv-newest build dist *.egg-info minfer_jax/native/*.so .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
