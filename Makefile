# What make can do here. README.md begins with the two that matter: make demo, make test.
PYTHON ?= python3
TORCH ?= torch==2.13.0
# Tests that run at a time: most wait for processes of their own.
TEST_PROCESSES ?= 3
# Parts of ../shared/contract that must hold (see .ci/run).
CONTRACT_PARTS = sim device cores functions flow

# Of `make check` and `make soak`: where the random examples start.
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
# Of `make soak`: times that the tests of the simulated card are repeated.
ROUNDS ?= 50

# Tests start hundreds of Pythons: without what it compiled before, each begins by compiling.
unexport PYTHONDONTWRITEBYTECODE

BIN = .venv/bin
PYTEST = $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadgroup --max-worker-restart 0
READY = .venv/.ready

.PHONY: setup demo test check soak vendor lint bench docs contract clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON='$(PYTHON)' TORCH='$(TORCH)' sh scripts/setup.sh

demo: $(READY)
	$(BIN)/toprope run --chip 910B3 examples/digits_npu.py

test: $(READY)
	$(PYTEST) -m "not slow and not soak"

# A third of the slow tests, which `make test` leaves out, and the properties of pure code with examples that are new
# each time: the seed chooses.
check: $(READY)
	@echo "check: SEED=$(SEED)"
	$(PYTEST) -m "(slow or pure) and not soak" --hypothesis-seed=$(SEED)

# Hours long: each part runs, whatever the one before it found.
soak: $(READY)
	@echo "soak: SEED=$(SEED)"
	failed=""; \
	TOPROPE_SOAK=1 $(PYTEST) --hypothesis-seed=$(SEED) --timeout 3600 || failed="$$failed pytest"; \
	sh scripts/sanitize.sh || failed="$$failed sanitize"; \
	sh scripts/repeat.sh $(ROUNDS) || failed="$$failed repeat"; \
	test -z "$$failed" || { echo "soak: failed in:$$failed"; exit 1; }

# The vendor's own tests on the simulated card; VENDOR holds fetched copies of the repositories (scripts/vendor_tests).
vendor: $(READY)
	$(BIN)/python scripts/vendor_tests $(VENDOR)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/deptry src
	$(BIN)/python scripts/words.py

bench: $(READY)
	@$(BIN)/python benchmarks/run.py

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

contract: $(READY)
	@sh scripts/contract.sh $(CONTRACT_PARTS)

clean:
	rm -rf .venv build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
