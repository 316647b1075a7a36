# `make` lists what there is. Everything installs itself into .venv on first use.

PYTHON ?= python3
JOBS ?= 2
OMP_NUM_THREADS ?= 1
export OMP_NUM_THREADS

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test slow check bench docs fuzz soak constraints clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.installed ## install, then train a trader and judge it on paths it has never seen; the report lies in runs/demo
	@rm -rf runs/demo
	@$(BIN)/quantail train --preset quick --env.options.paths 256 --run runs/demo
	@$(BIN)/quantail report runs/demo

test: .venv/.installed-dev ## install, then run the fast tests
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile

slow: .venv/.installed-dev ## the slow tests, then deliberate faults that the tests must catch
	@$(BIN)/python -m pytest -q -m slow -n $(JOBS) --dist loadfile || [ $$? -eq 5 ]
	@$(BIN)/python tools/mutate.py

check: .venv/.installed-dev ## format, lint, types, architecture
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/architecture

bench: .venv/.installed ## how long functions, command line and training take; fails where training became slower
	@$(BIN)/python benchmarks/functions.py
	@$(BIN)/python benchmarks/startup.py
	@$(BIN)/python benchmarks/guard.py

docs: .venv/.installed ## rewrite the generated parts of docs/
	@$(BIN)/python tools/docs.py

fuzz: .venv/.installed-dev ## the property tests with many more, random examples
	@HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -q -m property -n $(JOBS) --dist worksteal

soak: fuzz ## fuzz; runs killed and disks filled at any moment; a survey of 200 random faults in the code
	@$(BIN)/python benchmarks/crash.py
	@$(BIN)/python tools/mutate.py --survey 200

constraints: .venv/.installed ## resolve every extra anew and pin what was found
	@$(BIN)/python tools/constraints.py

clean: ## remove .venv, caches and build output; runs/ stays
	rm -rf .venv build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "quantail needs Python 3.11 or newer and '$(PYTHON)' is not; try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "installing quantail into .venv (a minute or two, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) -e .
	@touch $@

.venv/.installed-dev: .venv/.installed
	@echo "installing the development tools into .venv"
	@$(PIP) -e '.[dev]'
	@touch $@
