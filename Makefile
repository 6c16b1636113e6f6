# Two commands matter: `make demo` and `make test`. Both set up what they need.
# PIP_ARGS is passed to pip, for example to name PyTorch's CPU wheel index (see README.md).

PYTHON ?= python3
VENV ?= .venv
VENV_NUMPY1 ?= .venv-numpy1
VENV_SUPPLY ?= .venv-supply
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
# Tests at a time: they wait more than they compute. Of the slow ones, whole files; those that measure run one by
# one.
WORKERS ?= 4
SLOW_WORKERS ?= 4
SIDE_BY_SIDE := -n $(WORKERS) --dist worksteal
SLOW := --timeout 1200

# Seconds for each target of `make fuzz`, and which; all when none is named.
SECONDS ?= 600
TARGETS ?=
# How long a soak takes; docs/reliability.md says what it is.
MINUTES ?= 30

.PHONY: demo test test-slow test-numpy1 soak gpu-check fuzz lock licences audit lint format docs site clean

demo: $(VENV)/.voice
	@$(BIN)/python -m orpheus_ws say --local --output hello.wav -- "$$TEXT"

test: $(VENV)/.dev
	$(BIN)/python -X dev $(PYTEST) $(SIDE_BY_SIDE) -m "not slow" --ignore tests/slow $(TESTS)

test-slow: $(VENV)/.slow
	$(BIN)/python $(PYTEST) $(SLOW) -n $(SLOW_WORKERS) --dist loadfile -m "slow and not alone" $(TESTS)
	$(BIN)/python $(PYTEST) $(SLOW) -m "slow and alone" $(TESTS)

# A server for a long time under clients that misbehave: nothing lost, nothing left, no growth.
soak: $(VENV)/.dev
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --out soak

# TensorRT-LLM's image has numpy 1 and a torch of its own, so the base must not need either. Neither cares which
# event loop turns: one is enough here.
test-numpy1: $(VENV_NUMPY1)/.check
	$(VENV_NUMPY1)/bin/python $(PYTEST) $(SIDE_BY_SIDE) -m "not slow" -k "not uvloop" \
		--ignore $(VOICE_TESTS) --ignore tests/slow

# Whether the codec is exact on this machine's GPU, and how fast; docs/codec.md says what is in the file.
# Without a GPU it runs on the CPU and says so.
gpu-check: $(VENV)/.voice
	$(BIN)/python -m orpheus_ws bench gpu-check --out gpu-check.json

# Looks for inputs that are faults, with atheris; CONTRIBUTING.md says what to do with one.
fuzz: $(VENV)/.slow
	$(BIN)/python -m tests.fuzz $(TARGETS) --seconds $(SECONDS) --report .fuzz/report.json

# What is installed to serve, to the byte: `pip install --require-hashes -r requirements/base.lock`.
LOCK := pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	--upgrade --custom-compile-command "make lock"
lock: $(VENV_SUPPLY)/.supply
	$(VENV_SUPPLY)/bin/uv $(LOCK) pyproject.toml --extra http --output-file requirements/http.lock
	sed 's/ *--hash.*//; s/ *\\$$//; /^$$/d' requirements/http.lock > $(VENV_SUPPLY)/pins.txt
	$(VENV_SUPPLY)/bin/uv $(LOCK) pyproject.toml --constraint $(VENV_SUPPLY)/pins.txt \
		--output-file requirements/base.lock

licences: $(VENV)/.slow
	$(BIN)/python -m tests.licences

# Needs a database of advisories, on the network. What it could not ask about is a failure, too.
audit: $(VENV_SUPPLY)/.supply
	$(VENV_SUPPLY)/bin/pip-audit --strict --disable-pip --require-hashes -r requirements/http.lock

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
	rm -rf $(VENV) $(VENV_NUMPY1) $(VENV_SUPPLY) .fuzz site hello.wav gpu-check.json soak .mypy_cache .ruff_cache .hypothesis .import_linter_cache

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

$(VENV_SUPPLY)/.supply: pyproject.toml constraints.txt | $(VENV_SUPPLY)/bin/python
	@$(VENV_SUPPLY)/bin/python $(INSTALL) 'uv>=0.9,<1' 'pip-audit>=2.9,<3'
	@touch $@

%/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "orpheus-ws needs Python 3.11 or newer; set PYTHON=python3.x"; exit 1; }
	@$(PYTHON) -m venv $* || { rm -rf $*; \
		echo "Python cannot make a virtual environment; on Debian: apt install python3-venv"; exit 1; }
