# Everything runs in .venv, made with PYTHON on first use and brought up to date when the build's files change.
PYTHON ?= python3
VENV   ?= .venv
JOBS   ?= 2
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

# A file of tests stays on one worker, so that what it loads and compiles is loaded and compiled once.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

.PHONY: help demo test test-models sanitize lint docs notebooks clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo         score and generate with a small real model (fetched once, 98 MB)'
	@echo 'make test         the test suite, with the small real model'
	@echo 'make test-models  tests on the larger real models (fetched once, 745 MB)'
	@echo 'make sanitize     tests of the native kernels, built with AddressSanitizer and UBSan (g++)'
	@echo 'make lint         ruff and pyright'
	@echo 'make docs         the pages of docs/ as a site, in build/docs'
	@echo 'make notebooks    execute notebooks/*.ipynb (with INTO=notebooks, keep their outputs)'
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

# The site is made from sources alone: its tools without the package, which takes long to build.
DOCS_EXTRA = import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(PIP) install --quiet $$($(BIN)/python -c '$(DOCS_EXTRA)')
	@touch $@

demo: $(VENV)/.installed
	@$(BIN)/minfer-jax demo

test: $(VENV)/.installed-dev
	$(PYTEST) -m 'not models and not gpu'

test-models: $(VENV)/.installed-dev
	$(PYTEST) -m models

# A copy of packages and tests, with a library of its own. What sanitizers need at run time is loaded before anything
# else; a report ends the process and goes to the terminal (-s). Leaks are not looked for: JAX keeps much until the end.
SANITIZED := build/sanitized/copy
SANITIZED_PYTHON = cd $(SANITIZED) && ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
  LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" $(abspath $(BIN))/python

sanitize: $(VENV)/.installed-dev
	CXX=g++ CXXFLAGS='-fsanitize=address,undefined -fno-sanitize-recover=all -O1 -g1' \
	  $(BIN)/python setup.py -q build --build-base build/sanitized --build-lib $(SANITIZED)
	rm -rf $(SANITIZED)/tests && cp -r pyproject.toml tests $(SANITIZED)
	grep -q __asan_report $(SANITIZED)/minfer_jax/native/*.so
	$(SANITIZED_PYTHON) -c 'from minfer_jax.native import library; assert library()'
	$(SANITIZED_PYTHON) -m pytest -n $(JOBS) --dist loadfile -s -k 'not bits' tests/native

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python .ci/public_types.py

# Strict: links that lead nowhere and names that are not there are errors. A page that would load something is one, too.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	! grep -rlE '<(script|img|iframe)[^>]* src="?https?:|<link[^>]* href="?https?:' build/docs --include='*.html'
	@$(BIN)/python -m tests.documents

# Their committed outputs come from here, too: make notebooks INTO=notebooks
INTO ?= build/notebooks

notebooks: $(VENV)/.installed-dev
	@for notebook in notebooks/*.ipynb; do \
	  [ -e "$$notebook" ] || { echo 'no notebooks here'; exit 1; }; \
	  PYDEVD_DISABLE_FILE_VALIDATION=1 $(BIN)/jupyter nbconvert --to notebook --execute \
	    --ExecutePreprocessor.timeout=600 --ExecutePreprocessor.record_timing=False \
	    --output-dir '$(INTO)' "$$notebook" || exit 1; \
	  $(BIN)/jupyter nbconvert --to notebook --inplace --CoalesceStreamsPreprocessor.enabled=True \
	    "$(INTO)/$${notebook##*/}" || exit 1; \
	done

clean:
	rm -rf $(VENV) .venv-newest build dist *.egg-info minfer_jax/native/*.so .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
