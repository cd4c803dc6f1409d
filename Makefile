# Everything sets itself up: `make demo` and `make test` need nothing but Python 3.11+ and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Prefect neither phones home nor asks.
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DO_NOT_TRACK := 1
# The first process that imports a module compiles it for all that follow; some images forbid it,
# and then each of a thousand processes spends half its time on compiling.
unexport PYTHONDONTWRITEBYTECODE

# One more than there are cores: tests wait at times (tests/distribution.py).
TEST_WORKERS ?= $(shell expr $$(nproc) + 1)

.PHONY: venv demo test docs soak interop lint types tests format audit clean

venv: $(READY)

# Python compiles what is imported; to compile all that is installed would take a minute more.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/shardmill demo

# mypy and the site run beside the tests: of these the first ones wait for servers to start.
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

# Real servers share the machine: what failed runs once more, alone. What passes then stands in the
# list of the first run all the same: it is unsteady, and that is a defect.
tests: $(READY)
	$(BIN)/pytest --numprocesses $(TEST_WORKERS) || { test $$? -eq 1 && \
		echo "make: what failed runs once more, alone; what passes now is UNSTEADY" && \
		$(BIN)/pytest --last-failed --last-failed-no-failures none --exitfirst; }

# What takes minutes: endurance, Ansible, PostgreSQL restarted, hosts with a network of their own.
soak: $(READY)
	$(BIN)/pytest -m soak

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
	rm -rf $(VENV) demo-output .demo-output.scratch build *.egg-info
