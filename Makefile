# What contributors run (see CONTRIBUTING.md). This is a Makefile and no justfile because make comes with the
# developer tools of every system, and just must be installed first.

PYTHON ?= python3
BIN := .venv/bin
FAST := not slow and not network

.PHONY: check format test test-fast bench

# Linter, formatting, types: all checks that are not tests.
check: $(BIN)/ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@test $(notdir $(CURDIR)) = kukri || { echo "mypy needs the checkout's folder to be called kukri"; exit 1; }
	$(BIN)/mypy
	cd scripts && MYPYPATH=$(abspath ..) ../$(BIN)/mypy --config-file ../pyproject.toml \
		--explicit-package-bases ./*.py cuda_bench/*.py

format: $(BIN)/ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# All tests; real models are fetched (840 MB) unless they are on this machine.
test: $(BIN)/ruff
	$(BIN)/pytest -n auto

# What takes long, starts processes or needs a network is left out.
test-fast: $(BIN)/ruff
	$(BIN)/pytest -n auto -m "$(FAST)"

# Tokens a second of the default model, and what limits them.
bench: $(BIN)/ruff
	$(BIN)/llm bench

# ruff is what the extra `dev` has and `test` has not. An environment that has it is left alone.
$(BIN)/ruff:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -e '.[dev]'
