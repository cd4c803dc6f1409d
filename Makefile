# Everything sets itself up: `make demo` and `make test` need nothing but Python 3.11+ and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Prefect sends no analytics.
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DO_NOT_TRACK := 1
# Some images set this. Then no bytecode is kept, and each of a thousand processes compiles again.
unexport PYTHONDONTWRITEBYTECODE

# Two more than there are cores, because tests often wait (tests/distribution.py).
TEST_WORKERS ?= $(shell expr $$(nproc) + 2)

.PHONY: venv demo wheel test test-newest docs soak interop lint types tests format audit clean

venv: $(READY)

# Python compiles modules when they are imported; compiling all of them here takes a minute more.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/shardmill demo

# The wheel and the source archive, in dist/. What an earlier build left would be packed too.
wheel: $(READY)
	rm -rf dist build/lib build/bdist.*
	$(BIN)/python -c "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"

# mypy and the site run beside the tests, whose first ones wait for servers to start.
test: lint
	$(MAKE) --jobs 3 types docs tests

# The site, in build/site; a warning or a dead link is an error.
docs: $(READY)
	$(BIN)/zensical build --clean --strict

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pip check --quiet

types: $(READY)
	$(BIN)/mypy

# Real servers share the machine, so failed tests run once more, alone. A test that passes then is
# unsteady, which is a defect.
tests: $(READY)
	$(BIN)/pytest --numprocesses $(TEST_WORKERS) || { test $$? -eq 1 && \
		echo "make: failed tests run once more, alone; those that pass now are UNSTEADY" && \
		$(BIN)/pytest --last-failed --last-failed-no-failures none --exitfirst; }

# Tests that take minutes: endurance, Ansible, PostgreSQL restarted.
soak: $(READY)
	$(BIN)/pytest -m soak

# The suite with the newest versions of everything, also where mosaicml-streaming asks for older ones,
# in an environment of its own for each Python:
# make test-newest PYTHON=python3.14
NEWEST := $(VENV)/newest-$(notdir $(PYTHON))
test-newest:
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/pip install --quiet --disable-pip-version-check --upgrade \
		--upgrade-strategy eager -e '.[dev]'
	$(NEWEST)/bin/pip install --quiet --disable-pip-version-check --upgrade numpy transformers
	touch $(NEWEST)/.ready
	$(MAKE) tests BIN=$(NEWEST)/bin READY=$(NEWEST)/.ready

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Exports, read by the trainers' own libraries: gigabytes of them, in an environment of their own.
interop:
	$(PYTHON) -m venv $(VENV)/interop
	$(VENV)/interop/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(VENV)/interop/bin/pip install --quiet --disable-pip-version-check --no-deps -r tests/interop.txt
	$(VENV)/interop/bin/pip install --quiet --disable-pip-version-check --no-deps \
		--target $(VENV)/interop/wids --upgrade webdataset==0.2.111  # the last one with wids
	$(VENV)/interop/bin/pytest -m interop

# Known vulnerabilities of the pinned versions; asks a database on the network.
audit: $(READY)
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)/audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip

clean:
	rm -rf $(VENV) demo-output .demo-output.scratch build dist *.egg-info
