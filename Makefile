# Two commands do everything on a fresh machine with Python 3.11+: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help install dev demo test test-all test-slow test-bench test-compiled test-lowest test-engines check check-core-coverage format bench bench-peers scenarios-rewrite clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 22

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "tidegate needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "Python's venv module is missing. On Debian or Ubuntu: sudo apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(BIN)/python pyproject.toml requirements/run.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/run.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(DEV_STAMP): $(STAMP) requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	@touch $@

install: $(STAMP) ## Install tidegate into .venv
dev: $(DEV_STAMP) ## Install what development needs into .venv

demo: $(STAMP) ## Run the main job: overload through FIFO, then through tidegate, and the verdict
	$(BIN)/tidegate demo

test: $(DEV_STAMP) ## Quick tests: no services, about a minute on two cores
	$(BIN)/python -m pytest -n 2 -m "not slow and not bench and not services and not engines"

test-all: check-core-coverage test-slow test-bench ## Everything beyond the quick tests: end-to-end, services, benches

test-slow: $(DEV_STAMP)
	$(BIN)/python -m pytest -n 3 -m "(slow or services) and not bench"

test-bench: $(DEV_STAMP)
	$(BIN)/python -m pytest -m "bench"

COMPILED := build/compiled
SOURCES := $(wildcard src/tidegate/*.py src/tidegate/*/*.py src/tidegate/*/*/*.py)

$(COMPILED)/.built: $(DEV_STAMP) setup.py $(SOURCES)
	rm -rf build
	TIDEGATE_COMPILE=1 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w build/wheel .
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(COMPILED) build/wheel/*.whl
	@touch $@

test-compiled: $(COMPILED)/.built ## The quick tests on the compiled build (needs a C compiler; some minutes)
	PYTHONPATH=$(COMPILED) $(BIN)/python -m pytest -q -n 2 \
	  -m "not interpreted and not slow and not bench and not services and not engines"

test-engines: $(DEV_STAMP) ## The gateway in front of real engines: installs llama.cpp and vLLM (2.2 GB), a few minutes
	$(BIN)/python scripts/engines/set_up.py
	$(BIN)/python -m pytest -m engines -rfEs tests/engines
	@$(BIN)/python scripts/engines/set_up.py report

test-lowest: ## What uses libraries, with the oldest versions that pyproject.toml allows, in .venv-lowest
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/lowest.txt \
	  $$(grep -hoE '^(pytest|pytest-timeout|pytest-randomly|pytest-xdist|hypothesis|jsonschema|numpy|scipy|psutil|openai)==.*' requirements/dev.txt)
	PYTHONPATH=src .venv-lowest/bin/python -m pytest -n 2 -m "not slow and not bench and not services and not engines" \
	  tests/unit tests/conformance tests/runtime
	PYTHONPATH=src .venv-lowest/bin/python -m pytest -q tests/e2e/test_gateway_serve.py  # the gateway as a whole

check: $(DEV_STAMP) ## Format, lint, types, import contracts, docs freshness
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

check-core-coverage: $(DEV_STAMP) ## Every branch of the scheduler is reached by its own tests
	$(BIN)/python -m pytest -q tests/core --cov=tidegate.core --cov-branch --cov-report=term-missing:skip-covered \
	  --cov-fail-under=100

format: $(DEV_STAMP) ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(COMPILED)/.built ## Print the figures of docs/performance.md
	$(BIN)/python -m benchmarks

bench-peers: $(COMPILED)/.built ## Tidegate beside nginx, haproxy, envoy, vllm-router, sglang-router, SMG and LiteLLM, in one run
	PYTHONPATH=$(COMPILED) $(BIN)/python -m benchmarks.peers

scenarios-rewrite: $(DEV_STAMP) ## Refresh the expected lines of tests/scenarios
	$(BIN)/python -m pytest tests/core/test_scenarios.py --rewrite-scenarios

clean: ## Remove what the other targets made
	rm -rf $(VENV) .venv-peers .venv-llama .venv-vllm build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
