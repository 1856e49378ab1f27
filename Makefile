PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# One thread per process: with more, a busy neighbour slows small networks by up to 600 times.
TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup
# Libraries that tests compare with; without their dependencies, which would pull torchvision. Absent, the tests skip.
PEERS := curvlinops-for-pytorch backpack-for-pytorch einconv einops jaxtyping linear_operator opt_einsum unfoldNd \
	hessian-eigenthings

.PHONY: demo docs test test-all lint clean

demo: $(VENV)/.run
	$(BIN)/normscope demo

docs: $(VENV)/.test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test: lint
	$(TEST) -m "not slow and not gpu and not network"

test-all: $(VENV)/.test
	$(TEST) -m "not gpu and not network"

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) normscope-demo site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.run: pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (once; a few minutes)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.test: $(VENV)/.run
	$(PIP) -e ".[test]"
	-$(PIP) --no-deps $(PEERS)
	touch $@
