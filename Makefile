# SPDX-License-Identifier: Apache-2.0
# Every target works from a fresh clone: it makes .venv and installs what is needed, once.

PYTHON ?= python3
TORCH ?= torch==2.11.0
EXTRAS ?= test,docs,frameworks
# Workers of `make test`: as many as there are cores, but no more than 8.
JOBS ?= logical

# The other torch that the package takes, and the tests that depend most on torch and Thunder:
# imports, the C interface, traces, gradients, private modules of DTensor and of the driver.
COMPAT_TORCH ?= torch==2.14.*
COMPAT_VENV ?= .venv-compat
COMPAT_TESTS := $(addprefix tests/,package/test_imports.py package/test_versions.py \
	definition/test_definition.py definition/test_sources.py definition/test_dtensor.py \
	host/test_native.py thunder/test_fuser.py thunder/test_regions.py thunder/test_blocks.py \
	rematerialization/test_checkpoint.py runtime/test_cuda.py explain/test_explain.py)

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.DEFAULT_GOAL := help
.PHONY: help setup demo bench test thunder-suite compat short lint docs dist gpu clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 15

setup: $(STAMP) ## make .venv and install the package with the tools of its tests and docs

# Depends on pyproject.toml, so a new dependency is installed at the next `make`. A .venv without
# pip is one whose making was interrupted: making it again completes it.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
	sys.exit(0 if (3, 10) <= v <= (3, 13) else f"Python 3.10 to 3.13 is needed, found {v[0]}.{v[1]}: set PYTHON=python3.12")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): the first time takes some minutes"
	@$(BIN)/python -m pip install -qq $(TORCH) -e '.[$(EXTRAS)]'
	@touch $@

demo: $(STAMP) ## two transformer blocks through the fuser, forward and backward
	@$(BIN)/python -m thunder_fuser demo

bench: $(STAMP) ## kernels beside clone, eager torch and torch.compile
	@$(BIN)/python -m benchmarks kernels

lint: $(STAMP) ## ruff, mypy and the import floors
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

test: lint ## lint, then all tests that need no GPU
	@$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal -q tests

thunder-suite: $(STAMP) ## all of Thunder's forward tests, of which `test` runs a fortieth
	@THUNDER_SHARD=0/1 $(BIN)/python -m pytest -q tests/thunder/test_suite.py

docs: $(STAMP) ## the site, in docs/_build; a warning is an error
	@$(BIN)/python -m sphinx -q -W --keep-going docs docs/_build
	@echo "open docs/_build/index.html"

dist: $(STAMP) ## sdist and wheel in dist/, then installed into an empty venv and run
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation -o dist >/dev/null
	@FUSER_DIST=dist $(BIN)/python -m pytest -q tests/package/test_dist.py
	@ls dist

compat: ## a short test on torch 2.14, in a second venv; not part of `test`
	@$(MAKE) --no-print-directory short VENV=$(COMPAT_VENV) TORCH='$(COMPAT_TORCH)' EXTRAS=test

short: $(STAMP)
	@$(BIN)/python -c 'import torch; print("torch", torch.__version__)'
	@$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal -q $(COMPAT_TESTS)

gpu: $(STAMP) ## the checks and timings that need a CUDA device
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash benchmarks/gpu_check.sh

clean: ## remove .venv and what the tools left
	@rm -rf $(VENV) .venv-compat dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache
