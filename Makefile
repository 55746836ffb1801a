# ARGS="..." is handed on to the command, e.g. make serve ARGS="--replicas 4 --port 9000".
BIN := .venv/bin
STAMP := .venv/.installed
LOG := .venv/install.log
ARGS ?=
# The first of the two that is a Python 3.11 that runs (a pyenv shim may exist and not run).
PYTHON = $(shell for p in python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo $$p && break; done)

.DEFAULT_GOAL := help
.PHONY: bench-cache bench-engine bench-http bench-isolation bench-router bench-tokenization help setup serve demo test test-long lint

help:
	@echo "make serve   set up what is missing and start a cluster on this machine (Ctrl-C stops it)"
	@echo "make demo    run one multi-turn workload with two routing policies and compare them"
	@echo "make test    run all tests"
	@echo "make test-long  tests with clusters of their own: updated under load, an ingress killed; 100,000 random operations"
	@echo "make lint    ruff and mypy"
	@echo "make bench-engine  the engine against other engines and its own bounds; sets up the others the first time"
	@echo "make bench-cache   what pages from memory, disk and other replicas are worth, and what deciding on them costs"
	@echo "make bench-router  what routing costs, all policies in simulation, other routers on the same replicas"
	@echo "make bench-tokenization  what the next turn of a long chat costs to tokenise"
	@echo "make bench-http    what it costs to bring an answer to a client, by every transport"
	@echo "make bench-isolation     whether a tenant can tell by time what another one has cached"
	@echo "make setup   only create .venv and install"

setup: $(STAMP)
	@echo "Ready: .venv/bin/warmlane"

# Installs again only when pyproject.toml changed. The stamp is written last: an interrupted set-up starts over.
# A background command of sh ignores Ctrl-C, hence the trap.
$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Warmlane needs Python 3.11; neither python3.11 nor python3 is one." >&2; exit 1; }
	@test -x $(BIN)/pip || { echo "Creating .venv with $(PYTHON)"; $(PYTHON) -m venv .venv; } \
		|| { echo "python -m venv failed; on Debian and Ubuntu install python3.11-venv." >&2; exit 1; }
	@echo "Installing torch, Ray, transformers and the rest into .venv: some minutes the first time (log: $(LOG))"
	@$(BIN)/pip install --editable ".[dev]" > $(LOG) 2>&1 & pid=$$!; \
	trap 'kill $$pid 2>/dev/null; echo; echo "Set-up interrupted; run it again to go on." >&2; exit 130' INT TERM; \
	while kill -0 $$pid 2>/dev/null; do \
		test -t 1 && printf '\r\033[K  %.76s' "$$(tail -n 1 $(LOG) | tr -d '\r')"; sleep 1; done; \
	test -t 1 && printf '\r\033[K'; \
	wait $$pid || { tail -n 15 $(LOG) >&2; echo "Installing failed; the whole log is $(LOG)." >&2; exit 1; }
	@touch $@

serve: $(STAMP)
	@exec $(BIN)/warmlane serve $(ARGS)

demo: $(STAMP)
	@exec $(BIN)/warmlane demo $(ARGS)

# Two processes of one thread each for what needs no cluster, then the whole clusters. With ARGS one plain pytest.
test: $(STAMP)
	@$(BIN)/python -m tests.fetch_models
ifeq ($(ARGS),)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not e2e and not long" -n 2 --dist loadfile
	@exec $(BIN)/python -m pytest -m "e2e and not long"
else
	@exec $(BIN)/python -m pytest $(ARGS)
endif

test-long: $(STAMP)
	@$(BIN)/python -m tests.fetch_models
	@exec $(BIN)/python -m pytest -m long $(ARGS)

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench-router: $(STAMP)
	@exec $(BIN)/python -m tests.benchmarks.bench_router $(ARGS)

bench-engine: $(STAMP)
	@exec $(BIN)/python -m tests.benchmarks.bench_engine $(ARGS)

bench-cache: $(STAMP)
	@exec $(BIN)/python -m tests.benchmarks.bench_cache $(ARGS)

bench-tokenization: $(STAMP)
	@exec $(BIN)/python -m tests.benchmarks.bench_tokenization $(ARGS)

bench-http: $(STAMP)
	@exec $(BIN)/python -m tests.benchmarks.bench_http $(ARGS)

bench-isolation: $(STAMP)
	@exec $(BIN)/python -m tests.benchmarks.bench_isolation $(ARGS)
