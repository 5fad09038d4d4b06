# Every word sets up what it needs. `make` lists them.
PYTHON := $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test check bench protos page browser clean
PROTOS := src/tensortap/wire/proto

help: ## List the words
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

demo: .venv/torch.done ## Train a small model with a bug in it, and be told which line it is
	$(BIN)/tensortap run examples/sentiment.py

test: check browser ## Check formatting, lint and types, then run all tests
	$(BIN)/python -m pytest -n 2

check: .venv/dev.done ## Formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/torch.done ## Measure what watching costs
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/kernel.py
	$(BIN)/python benchmarks/reader.py

protos: .venv/dev.done ## Describe the messages of src/tensortap/wire/proto anew
	$(BIN)/python -m grpc_tools.protoc -Isrc --include_imports --descriptor_set_out=$(PROTOS)/messages.binpb $(PROTOS)/*.proto

page: ## Build the page of web/ into the package; needs Node
	cd web && npm ci --silent && npm run --silent check && npm run --silent build

browser: .venv/dev.done ## Debian's Chromium, in which the page is tested; where it cannot be had, those tests are skipped and say so
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	{ command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get install -y -qq chromium >/dev/null 2>&1; } || \
	echo "no chromium: the page is not tested in a browser (apt-get install chromium)"

clean: ## Remove the environment and caches
	rm -rf build src/tensortap/*/*.so .venv .mypy_cache .ruff_cache .pytest_cache tensortap-runs

# PyTorch first, by name and version: a CPU build satisfies the extras, and no resolver replaces it.
.venv/torch.done: pyproject.toml setup.py $(wildcard native/*)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable '.[torch]'
	@touch $@

.venv/dev.done: .venv/torch.done
	$(BIN)/pip install --quiet --editable '.[torch,tensorflow,jax,serve,launchers,dev]'
	@touch $@
