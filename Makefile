# `make check` is what bin/test does; nothing here needs more than bash and Python.
.PHONY: setup check lint format test bench run clean

BIN := .venv/bin

setup:
	bin/setup test

check:
	bin/test

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: setup
	$(BIN)/python -m pytest

bench: setup
	$(BIN)/zmqrl bench bus
	$(BIN)/zmqrl bench sync
	$(BIN)/zmqrl bench e2e

run:
	bin/run

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
