# `make demo` and `make test` need only Python >= 3.10, pip and make: the venv is made on first use.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Tiny models are fastest on one thread; more threads than free cores are ruinous.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help install demo test test-slow lint format policy docs bench clean campaign proof

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(STAMP)  ## make the virtual environment

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## train a small policy by the whole chain and print before and after
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh

test: $(STAMP)  ## the default tests
	@$(BIN)/python -m pytest -n 2

test-slow: $(STAMP)  ## the long checks: other engines, official scorers, peers
	@$(BIN)/python -m pytest -m slow

lint: $(STAMP)  ## style, types and the direction of imports
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports --no-logo

format: $(STAMP)  ## rewrite to the house style
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

policy: $(STAMP)  ## rebuild the two fixture policies (long; see fixtures/README.md)
	@$(BIN)/python fixtures/make_policy.py

docs: $(STAMP)  ## write the reference pages under docs/ from the code
	@$(BIN)/python docs/generate.py

campaign: $(STAMP)  ## kill every stage, flip bits, fill disks, race processes (an hour)
	@$(BIN)/python tests/trust/campaign.py

proof: $(STAMP)  ## digests of all that every stage makes on fixed inputs, into runs/proof (five minutes)
	@$(BIN)/python tests/support/proof.py --out runs/proof --package .

bench: $(STAMP)  ## one JSON line per benchmark
	@for script in benchmarks/[a-z]*.py; do case $$script in *gpu_*) ;; *) $(BIN)/python $$script --json || exit 1;; esac; done

clean:  ## remove what make and the stages made here
	rm -rf $(VENV) runs build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
