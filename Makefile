# Two commands set up everything on a fresh machine: make demo, make test.
VENV   := .venv
BIN    := $(VENV)/bin
PY     := $(BIN)/python
READY  := $(VENV)/.ready
LOCK   ?= requirements.lock
ARGS   ?=
SCALE  ?= laptop
export PATH := $(abspath $(BIN)):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup demo train test test-all lint report reproduce budget docs bench bench-peers audit faults mutants hashes clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): $(LOCK)
	python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r $(LOCK)
	@touch $@

setup: $(READY)  ## build .venv from requirements.lock; LOCK=requirements.hashes takes no file with another checksum

demo: setup  ## the main job on the embedded data set (no network)
	$(PY) src/train.py logger=csv $(ARGS)

train: setup  ## train; options in ARGS, e.g. make train ARGS="experiment=mnist_iid scale=laptop"
	$(PY) src/train.py $(ARGS)

test: setup  ## the tests that need neither network nor patience
	$(PY) -m pytest -n logical $(ARGS)

test-all: setup  ## every test, also slow ones and those that fetch the real data sets
	$(PY) -m pytest -n logical -m "" $(ARGS)

lint: setup  ## every hook of .pre-commit-config.yaml on every file
	pre-commit run --all-files

report: setup  ## the paper's tables and figures from the runs under logs/
	$(PY) src/report.py $(ARGS)

reproduce: setup  ## all that is missing of the paper's items at SCALE=laptop (or paper), then the report; started again, it goes on
	$(PY) src/reproduce.py scale=$(SCALE) $(ARGS) || true
	$(PY) src/report.py

budget: setup  ## jobs and hours of make reproduce at SCALE=laptop (or paper)
	$(PY) src/reproduce.py --plan scale=$(SCALE)

docs: setup  ## the site, in site/; every broken link is an error
	$(PY) -m mkdocs build --strict

bench: setup  ## speed as a ratio to the bare PyTorch loop
	$(PY) benchmarks/bench.py $(ARGS)

bench-peers: setup  ## the same with Flower and pfl-research, each in its own environment
	$(PY) benchmarks/peers.py $(ARGS)

audit: setup  ## our code by bandit, and known vulnerabilities of what is pinned, where they can be looked up
	bandit -q -c pyproject.toml -r src
	@pip-audit --progress-spinner off --disable-pip --no-deps -r requirements.lock > $(VENV)/audit.txt 2>&1; code=$$?; \
	if [ $$code -eq 0 ] || grep -q 'known vulnerabilit' $(VENV)/audit.txt; then cat $(VENV)/audit.txt; exit $$code; fi; \
	echo "known vulnerabilities cannot be looked up from here, the packages were not audited: $$(tail -n 1 $(VENV)/audit.txt)"

faults: setup  ## the tests that make something go wrong, and how it ended: results/faults.csv, docs/reliability.md
	$(PY) -m pytest -n logical -p tests.faults -m fault $(ARGS)

mutants: setup  ## small changes of the mathematics, each of which a test must notice: results/mutants.csv, survivors.csv
	$(BIN)/pip install --quiet --disable-pip-version-check -c requirements.lock mutmut==3.8.1
	OMP_NUM_THREADS=1 $(PY) -m mutmut run $(ARGS)
	$(PY) tests/mutants.py

hashes: setup  ## requirements.hashes from requirements.lock
	$(BIN)/pip install --quiet --dry-run --ignore-installed --report $(VENV)/report.json -r requirements.lock
	$(PY) docs/hashes.py $(VENV)/report.json

clean:  ## remove the environment, caches and logs (not the data cache)
	rm -rf $(VENV) mutants .pytest_cache .mypy_cache .ruff_cache .hypothesis logs reports site
