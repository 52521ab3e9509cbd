# What make can do here. README.md begins with the two that matter: make demo, make test.
PYTHON ?= python3
TORCH ?= torch==2.13.0
# Tests that run at a time: most wait for processes of their own.
TEST_PROCESSES ?= 2
# Parts of ../shared/contract that must hold (see .ci/run).
CONTRACT_PARTS = sim device cores functions flow

BIN = .venv/bin
READY = .venv/.ready

.PHONY: setup demo test soak lint bench docs contract clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON='$(PYTHON)' TORCH='$(TORCH)' sh scripts/setup.sh

demo: $(READY)
	$(BIN)/toprope run --chip 910B3 examples/digits_npu.py

test: $(READY)
	$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadgroup --max-worker-restart 0

soak: $(READY)
	TOPROPE_SOAK=1 $(BIN)/python -m pytest --timeout 3600
	sh scripts/sanitize.sh
	sh scripts/repeat.sh 50

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(READY)
	@sh scripts/bench.sh

docs: $(READY)
	$(BIN)/mkdocs build --strict

contract: $(READY)
	@sh scripts/contract.sh $(CONTRACT_PARTS)

clean:
	rm -rf .venv build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
