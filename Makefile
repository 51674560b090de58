# The commands of this project. Each makes the virtual environment first, if need be.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Processes that run tests side by side; each keeps its libraries to one thread.
TEST_PROCESSES ?= auto

.PHONY: install native train test check bench pictures screenshots clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch==$$(sed -n 's/^torch==//p' constraints.txt)
	$(PIP) -e '.[torch,search,dev]'
	touch $@

native: install  ## Build the optional C++ part of the split backward; needs a compiler
	$(BIN)/python -c "from zerobubble.autograd import build_native; print(build_native())"

train: install  ## Train the reference transformer on two ranks; flags through ARGS="--steps 50"
	$(BIN)/zerobubble train $(ARGS)

test: install  ## Run all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile $(ARGS)

check: install  ## Look for lint, formatting and type errors
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install  ## Print the benchmark ratios
	$(BIN)/python -m benchmarks

pictures: install  ## Draw the pictures of the README anew
	$(BIN)/python -m docs.pictures

screenshots: install  ## Take the pictures of docs/view.md again; needs chromium
	$(BIN)/python -m benchmarks screenshots

clean:  ## Remove the virtual environment and all caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
