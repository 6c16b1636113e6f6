# Two commands matter: `make demo` and `make test`. Both set up what they need.
# PIP_ARGS is passed to pip, for example to name PyTorch's CPU wheel index (see README.md).

PYTHON ?= python3
VENV ?= .venv
VENV_NUMPY1 ?= .venv-numpy1
PIP_ARGS ?=
TEXT ?= Hello! This is Orpheus, speaking over a web socket. How are you today?
# As it was written: a `$` is no variable of make's here.
override TEXT := $(value TEXT)
export TEXT

BIN := $(VENV)/bin
INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(PIP_ARGS)
# Tests that need torch and the embedded voice; the others also run without either.
VOICE_TESTS := tests/voice
PYTEST := -m pytest
# Tests at a time. Of the slow ones, whole files; those that measure run one by one.
WORKERS ?= 2
SIDE_BY_SIDE := -n $(WORKERS) --dist worksteal
SLOW := --timeout 1200

.PHONY: demo test test-slow test-numpy1 gpu-check lint format docs site clean

demo: $(VENV)/.voice
	@$(BIN)/python -m orpheus_ws say --local --output hello.wav -- "$$TEXT"

test: $(VENV)/.dev
	$(BIN)/python -X dev $(PYTEST) $(SIDE_BY_SIDE) -m "not slow" --ignore tests/slow $(TESTS)

test-slow: $(VENV)/.slow
	$(BIN)/python $(PYTEST) $(SLOW) -n $(WORKERS) --dist loadfile -m "slow and not alone" $(TESTS)
	$(BIN)/python $(PYTEST) $(SLOW) -m "slow and alone" $(TESTS)

# TensorRT-LLM's image has numpy 1 and a torch of its own, so the base must not need either.
test-numpy1: $(VENV_NUMPY1)/.check
	$(VENV_NUMPY1)/bin/python $(PYTEST) $(SIDE_BY_SIDE) -m "not slow" --ignore $(VOICE_TESTS) --ignore tests/slow

# Whether the codec is exact on this machine's GPU, and how fast; docs/codec.md says what is in the file.
# Without a GPU it runs on the CPU and says so.
gpu-check: $(VENV)/.voice
	$(BIN)/python -m orpheus_ws bench gpu-check --out gpu-check.json

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python -m docs.site site
	$(BIN)/hadolint deploy/container/Dockerfile deploy/container/Dockerfile.cpu

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The pages and the dashboard that are made by programs.
docs: $(VENV)/.dev
	$(BIN)/python -m docs.generate
	$(BIN)/python -m deploy.grafana.dashboard

# The documentation as a site, in `site/`; a warning is an error.
site: $(VENV)/.docs
	$(BIN)/python -m docs.site site

clean:
	rm -rf $(VENV) $(VENV_NUMPY1) site hello.wav gpu-check.json .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/.voice: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing the server with the embedded voice into $(VENV) …"
	@$(BIN)/python $(INSTALL) --editable '.[pocket]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing what the tests need into $(VENV) …"
	@$(BIN)/python $(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.voice

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing what builds the pages into $(VENV) …"
	@$(BIN)/python $(INSTALL) --editable '.[docs]'
	@touch $@

$(VENV)/.slow: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing what the slow tests need into $(VENV) …"
	@$(BIN)/python $(INSTALL) --editable '.[slow]'
	@touch $@ $(VENV)/.dev $(VENV)/.voice

$(VENV_NUMPY1)/.check: pyproject.toml constraints.txt | $(VENV_NUMPY1)/bin/python
	@$(VENV_NUMPY1)/bin/python $(INSTALL) --editable '.[check]' 'numpy<2'
	@touch $@

%/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "orpheus-ws needs Python 3.11 or newer; set PYTHON=python3.x"; exit 1; }
	@$(PYTHON) -m venv $* || { rm -rf $*; \
		echo "Python cannot make a virtual environment; on Debian: apt install python3-venv"; exit 1; }
