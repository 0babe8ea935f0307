# `make check` is what bin/test does; nothing here needs more than bash and Python.
.PHONY: setup check quick lint format test test-long bench bench-quick run clean

BIN := .venv/bin

setup:
	bin/setup test

check:
	bin/test

quick:
	bin/test --quick

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --python-version 3.10
	$(BIN)/mypy --python-version 3.13
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: setup
	$(BIN)/python -m pytest

# drills, learning and soaks: hours
test-long: setup
	$(BIN)/python -m pytest -m long

bench: setup
	$(BIN)/zmqrl bench all

# appends to ~/.cache/zmqrl/bench.jsonl; BENCH_FILE=PATH names another
bench-quick: setup
	$(BIN)/python -m benchmarks.quick $(if $(BENCH_FILE),--file $(BENCH_FILE))

run:
	bin/run

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
