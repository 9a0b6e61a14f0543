# wal-sink: `make demo` and `make test` set up all they need in .venv of this checkout.
# Needs: make, Python 3.11 or newer, a Java 17 or newer. Another Python: make PYTHON=/path/to/python3.12 test

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.wal-sink-installed
BENCH_STAMP := .venv/.wal-sink-bench-installed
DOCS_STAMP := .venv/.wal-sink-docs-installed
OURS := wal_sink backends tests specs docs_site
CHECKED := $(OURS) examples/demo benchmarks
RUFFED := $(OURS) $(wildcard examples benchmarks)
INSTALL := $(BIN)/python -m pip install --no-input --disable-pip-version-check --quiet -c constraints.txt

# A checkout that was copied brings a .venv whose scripts name the old place: the stamp holds the place it is good for.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

.DEFAULT_GOAL := help
.PHONY: help demo demo-s3 test test-all mutation spec bench check format clean setup package need-java

help: ## show this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

demo: need-java $(STAMP) ## kill a driver in the middle of a stream, see that nothing is lost or doubled; ARGS="--seed 7"
	$(BIN)/python -m examples.demo $(ARGS)

demo-s3: need-java $(STAMP) ## the same with the log on a local S3 server
	$(BIN)/python -m examples.demo --s3 $(ARGS)

test: need-java $(DOCS_STAMP) ## the proof, in ten minutes: a real Spark, and all that is quick; ARGS="-k name" chooses among all tests
	@$(BIN)/python -m tests.support.programs.quick_java
	$(BIN)/python -m $(if $(ARGS),pytest $(ARGS),tests.run quick)

test-all: need-java $(DOCS_STAMP) ## every promise, with every real server, and every branch of the core
	@$(BIN)/python -m tests.support.programs.quick_java
	$(BIN)/python -m tests.run all

mutation: $(STAMP) ## test the tests of the core on mutants, for hours; ARGS=wal_sink/log/terms.py chooses; resumable
	$(INSTALL) --group mutation
	$(BIN)/python benchmarks/mutation/run.py $(ARGS)

.PHONY: chaos
chaos: need-java servers ## crash, race and corrupt it, for hours; the report: benchmarks/CHAOS.md; ARGS="--share 0.05", ARGS=--resume
	@$(BIN)/python -m tests.support.programs.quick_java
	$(BIN)/python -m tests.chaos $(ARGS)

# MinIO and an emulator of Google's store: some ten minutes, once.
.PHONY: servers
servers: $(STAMP) ## build the servers that `make test-all` uses only where they are built
	@$(BIN)/python -m tests.support.go_programs

.PHONY: matrix
matrix: need-java servers ## the same tests on every Spark and Python, oldest and newest packages; ARGS=spark-4.0.5 chooses; resumable
	$(BIN)/python -m tests.matrix $(ARGS)

# As many at once as there are processors. A history is decided by its seed alone; a new first seed is printed.
.PHONY: simulation
simulation: $(STAMP) ## play a million new histories of the core, from printed seeds; ARGS="--seed 7" replays one, ARGS=--losses
	$(BIN)/python -m tests.simulation.histories --first new --count 1000000 --cores "$$(getconf _NPROCESSORS_ONLN)" $(ARGS)

spec: need-java $(STAMP) ## check the TLA+ specification: every model, every planted bug; ARGS="--deep" for more
	$(BIN)/python specs/check.py $(ARGS)

bench: need-java $(BENCH_STAMP) ## measure against every rival, up to 30 minutes; ARGS=--quick for 5; see benchmarks/README.md
	$(BIN)/python -m benchmarks $(ARGS)

# The theme tells on stderr that it reaches the end of its life; nothing else may be written there.
.PHONY: docs docs-check
docs: $(DOCS_STAMP) ## build the documentation site into site/; any warning fails it
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -W error -m mkdocs build --strict --quiet

docs-check: docs ## open every page of it in Chromium; ARGS="--screenshots FOLDER" takes pictures
	$(BIN)/python -m docs_site.check site $(ARGS)

check: need-java $(DOCS_STAMP) ## formatting, lint, types, the budgets of docs/budgets.toml; all of them, even if one fails
	@failed=0; \
	for step in "ruff format --check $(RUFFED)" "ruff check $(RUFFED)" "mypy $(CHECKED)" "pyright" "python -m tests.support.budgets"; do \
	  echo "$$step"; $(BIN)/$$step || failed=1; \
	done; exit $$failed

.PHONY: weigh
weigh: need-java $(DOCS_STAMP) ## count lines, ids, options, objects, and the files that a batch enters; ARGS=--json
	@$(BIN)/python -m tests.support.weigh $(ARGS)

.PHONY: test-times
test-times: need-java $(DOCS_STAMP) ## measure the quick tests, and write tests/slow.txt: those above a second, which `make test` leaves out
	$(BIN)/python -m tests.times

.PHONY: workflows
workflows: $(STAMP) ## check .github/workflows: schemas, actionlint (built once, by Go), and what each step runs
	$(BIN)/python -m tests.support.workflows

format: $(STAMP) ## rewrite the sources as `make check` wants them
	$(BIN)/ruff format $(RUFFED)
	$(BIN)/ruff check --fix $(RUFFED)

package: need-java $(STAMP) ## build wheel and sdist into dist/, try them in empty environments; ARGS="-k kafka" chooses
	$(BIN)/python -m tests.support.go_programs fake-gcs-server
	$(BIN)/python -m tests.packaging
	$(BIN)/python -m twine check --strict dist/*
	WAL_SINK_TEST_ALL=1 $(BIN)/python -m pytest tests/packaging/installs.py -n 2 --dist worksteal --durations=0 $(ARGS)

clean: ## remove what running and building left here, .venv excepted
	rm -rf .cache dist demo-out site .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache metastore_db spark-warehouse derby.log
	find $(RUFFED) -name __pycache__ -type d -prune -exec rm -rf {} +

setup: $(STAMP) ## only install, into .venv

# Usable: .venv holds a Python that is new enough and has pip. Whatever else lies in it stays. Its pip may be as old as the
# Python (Debian 12: 23.0); dependency groups need 25.1, and build constraints 25.3.
$(STAMP): pyproject.toml constraints.txt
	@$(call usable,$(BIN)/python) || $(MAKE) --no-print-directory .make-venv
	$(INSTALL) --upgrade pip
	$(INSTALL) --build-constraint constraints.txt -e . --group dev
	@printf '%s\n' '$(CURDIR)' > $(STAMP)

# Flink's jars, 240 MB of them, which only `make bench` needs.
$(BENCH_STAMP): $(STAMP)
	$(INSTALL) --group bench
	@touch $(BENCH_STAMP)

$(DOCS_STAMP): $(STAMP)
	$(INSTALL) --group docs
	@touch $(DOCS_STAMP)

usable = $(call new_enough,$(1)) && $(1) -m pip --version > /dev/null 2>&1
new_enough = $(1) -c 'import sys; sys.exit(sys.version_info < (3, 11))' > /dev/null 2>&1

.PHONY: .make-venv
.make-venv:
	@if [ -x $(BIN)/python ] && $(BIN)/python -c '' 2> /dev/null && ! $(call new_enough,$(BIN)/python); then \
	  echo "wal-sink needs Python 3.11 or newer; .venv holds $$($(BIN)/python --version 2>&1). Rename .venv, then run make again." >&2; exit 1; fi
	@command -v $(PYTHON) > /dev/null || { \
	  echo "wal-sink needs Python 3.11 or newer; no '$(PYTHON)' was found. Install one, or name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(call new_enough,$(PYTHON)) || { \
	  echo "wal-sink needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Name a newer one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "$(PYTHON) -m venv .venv"; $(PYTHON) -m venv .venv || { \
	  echo "'$(PYTHON) -m venv .venv' failed. On Debian and Ubuntu it needs: apt-get install python3-venv" >&2; exit 1; }

need-java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	text="$$("$$java" -version 2>&1)"; \
	version="$$(printf '%s\n' "$$text" | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1)"; \
	[ "$${version:-0}" -ge 17 ] || { \
	  echo "wal-sink needs a Java 17 or newer, for Spark; '$$java' is $${version:+Java }$${version:-not there}." >&2; \
	  echo "Install one (Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17), or set JAVA_HOME." >&2; exit 1; }
