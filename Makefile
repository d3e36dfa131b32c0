# Two commands set everything up on a machine with Python 3.11+ and make: `make compare` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV_READY := $(VENV)/.ready-dev
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable

.PHONY: setup compare test test-slow test-gpu lint bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	touch $@

$(DEV_READY): $(READY)
	$(INSTALL) '.[dev]'
	touch $@

compare: $(READY)
	$(BIN)/lockstep compare

lint: $(DEV_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest --numprocesses 2

test-slow: $(DEV_READY)
	$(BIN)/pytest --numprocesses 2 -m slow

# One process: tests side by side would share the GPU.
test-gpu: $(DEV_READY)
	LOCKSTEP_TEST_GPU=1 $(BIN)/pytest --numprocesses 0 tests/kernels tests/training/test_replay.py tests/models/test_decoding.py tests/test_benchmarks.py

bench: $(READY)
	$(BIN)/python benchmarks/stream.py
	$(BIN)/python benchmarks/loop.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/rivals.py
	$(BIN)/python benchmarks/streaming.py

clean:
	rm -rf $(VENV) build dist
