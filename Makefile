# Two commands do everything on a fresh machine: `make demo` and `make test`. Each creates what it needs.

VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready

.PHONY: demo test lint versions clean

demo: $(STAMP)
	$(BIN)/python examples/quickstart.py

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadscope -m "not gpu" -q tests

lint: $(STAMP) versions
	$(BIN)/ruff check gnnc runtime tests examples benchmarks
	$(BIN)/ruff format --check gnnc runtime tests examples benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

versions: $(STAMP)
	@$(BIN)/python -c "import sys, torch, llvmlite, numpy; print('python', sys.version.split()[0], 'torch', torch.__version__, 'llvmlite', llvmlite.__version__, 'numpy', numpy.__version__)"

# torch is named with its version: plain `torch` may resolve to a build of several gigabytes.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt "$$(grep '^torch==' constraints.txt)" -e ".[compiler,examples,dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
