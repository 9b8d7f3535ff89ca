# SPDX-License-Identifier: Apache-2.0
# Every target works from a fresh clone: it makes .venv and installs what is needed, once.

PYTHON ?= python3
TORCH ?= torch==2.11.0
EXTRAS ?= test,docs,frameworks
TESTS ?= tests
# Workers of `make test`: as many as there are cores, but no more than 8.
JOBS ?= logical

# The newest torch that the package takes, in a venv of its own. The short set is what depends most
# on torch and Thunder: imports, the C interface, traces, gradients, doors, private modules of
# DTensor and of the driver. The emulator's kernels run without torch.
COMPAT_TORCH ?= torch>=2.14,<2.16
COMPAT_VENV ?= .venv-compat
COMPAT_TESTS := -k 'not emulator' $(addprefix tests/,package/test_imports.py \
	package/test_versions.py definition/test_definition.py definition/test_sources.py \
	definition/test_dtensor.py host/test_native.py thunder/test_fuser.py thunder/test_regions.py \
	thunder/test_blocks.py thunder/test_torch_names.py thunder/test_which_door.py \
	rematerialization/test_checkpoint.py runtime/test_cuda.py explain/test_explain.py)
NEWEST := --no-print-directory VENV=$(COMPAT_VENV) TORCH='$(COMPAT_TORCH)'

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.DEFAULT_GOAL := help
.PHONY: help setup demo bench test suite thunder-suite compat compat-short lint docs dist gpu clean

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
	@$(BIN)/python -m pip install -qq '$(TORCH)' -e '.[$(EXTRAS)]'
	@touch $@

demo: $(STAMP) ## two transformer blocks through the fuser, forward and backward
	@$(BIN)/python -m thunder_fuser demo

bench: $(STAMP) ## kernels beside clone, eager torch and torch.compile
	@$(BIN)/python -m benchmarks kernels

lint: $(STAMP) ## ruff, mypy and the import floors
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

test: lint suite ## lint, then all tests that need no GPU

suite: $(STAMP)
	@$(BIN)/python -c 'import torch; print("torch", torch.__version__)'
	@$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal -q $(TESTS)

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

compat: ## all tests on the newest torch, in a second venv
	@$(MAKE) $(NEWEST) suite

# Where pip finds no such torch, as without a network, nothing is tested on it; CI goes on.
compat-short: ## those that depend most on torch, likewise, as in CI
	@if timeout 15m $(MAKE) $(NEWEST) setup; \
	then $(MAKE) $(NEWEST) suite TESTS="$(COMPAT_TESTS)"; \
	else echo 'compat-short: $(COMPAT_TORCH) was not installed, and nothing was tested on it' >&2; fi

gpu: $(STAMP) ## the checks and timings that need a CUDA device
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash benchmarks/gpu_check.sh

clean: ## remove .venv and what the tools left
	@rm -rf $(VENV) .venv-compat dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache
