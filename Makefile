# Everything a developer or a newcomer runs. Each target sets up what it needs; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
# A set-up is redone only when what it installs has changed.
KEY := $(shell cat constraints/constraints.txt pyproject.toml | sha256sum 2>/dev/null | cut -c1-16 || true)
ifeq ($(KEY),)
KEY := $(shell cat constraints/constraints.txt pyproject.toml | shasum -a 256 | cut -c1-16)
endif
RUN_READY := $(VENV)/.ready-run-$(KEY)
PAGE := src/tunefleet/api/ui/index.html
EXAMPLE_READY := $(VENV)/.ready-example-$(KEY)
DEV_READY := $(VENV)/.ready-dev-$(KEY)
BENCH_READY := $(VENV)/.ready-bench-$(KEY)

# Most tests wait for processes: three at a time keep two processors busy. WORKERS=0 runs them in one process.
WORKERS ?= 3
# By file, in the order of the folders: the long files come first, and many short ones fill up the end.
SPREAD := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# What each layer may cost, in CPU seconds; above it the run ends with a warning.
COSTED = $(BIN)/python -m scripts.run_tests $(if $(1),--budget $(1)) -- $(BIN)/python -m pytest $(SPREAD)
# An area of tests/areas.py, such as federation; all of them by default.
AREA ?=
ARGS ?=
DIST ?= dist
SITE ?= site

chaos kill-matrix: ROUNDS ?= 20
chaos: SEED ?= 1
chaos: FIRST ?= 0
chaos: KINDS ?= all
campaign-chaos: ROUNDS ?= 50

# Tests run several processes at once.
TESTING := test coverage test-heavy proofs unit chaos kill-matrix campaign-chaos
$(TESTING) campaign-demo: export OMP_NUM_THREADS ?= 1
# They start many processes, each of which would compile the package where Python is told to write no bytecode.
$(TESTING) check: export PYTHONDONTWRITEBYTECODE =

# bash has a variable SECONDS of its own, which make would take for one that was given.
SECONDS_OF_FUZZ := $(if $(filter command line,$(origin SECONDS)),$(SECONDS),60)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

.PHONY: demo
demo: $(RUN_READY) page ## install everything, then fine-tune a model with LoRA on this machine and show it live
	@$(BIN)/tunefleet demo $(ARGS)

.PHONY: up
up: $(RUN_READY) page ## install everything, then run a server, a worker and the web page until Ctrl-C
	@$(BIN)/tunefleet up $(ARGS)

# Built again only when a file of it is newer; where no npm registry answers, all but the page works.
.PHONY: page
page: $(RUN_READY)
	@[ -z "$$(find web hatch_build.py -path web/node_modules -prune -o -type f -newer $(PAGE) -print -quit 2>&1)" ] || { \
		echo "-> building the web page"; \
		$(BIN)/python -m scripts.web build || echo "-> the web page could not be built; retry with: make ui"; }

.PHONY: federated-demo
federated-demo: $(EXAMPLE_READY) ## compare a federation of four workers with each of them alone, also under faults
	@$(BIN)/python examples/federated/prove.py $(ARGS)

.PHONY: environment
environment: $(DEV_READY) ## set up .venv for tests and checks

# Programs come from the system's packages and environments from a package index: neither waits for the other.
.PHONY: test-services
test-services: $(DEV_READY) ## set up the services of `make test`: third-party environments, a browser, databases, stores
	@$(MAKE) test-environments & $(MAKE) test-programs; wait

.PHONY: test-environments
test-environments: $(DEV_READY) ## only the third-party environments
	@scripts/environments.sh || echo "-> no third-party environments: tests that need them are skipped"

.PHONY: test-programs
test-programs: ## only the programs, which need no .venv
	@scripts/browser.sh || echo "-> no browser: tests that need it are skipped"; \
	scripts/gateway.sh || echo "-> no S3 server: tests that need it are skipped"; \
	scripts/redis.sh || echo "-> no Redis with TLS: tests that need it are skipped"; \
	scripts/slurm.sh || echo "-> no Slurm: tests that need it are skipped"; \
	scripts/postgres.sh || echo "-> no PostgreSQL: tests that need it are skipped"; \
	scripts/azurite.sh || echo "-> no Azurite: tests that need it are skipped"; \
	scripts/promtool.sh || echo "-> no promtool: the test that needs it is skipped"; \
	scripts/nginx.sh || echo "-> no nginx: tests that need it are skipped"

.PHONY: unit
unit: $(DEV_READY) ## run the unit tests: no sockets, no processes, three minutes
	@$(call COSTED,300) tests/unit $(ARGS)

.PHONY: test
test: test-services ## set up test services, then run unit, contract and integration tests and one story per promise
	@$(BIN)/python -m scripts.web build || echo "-> no web page: tests that need it are skipped"
	@$(call COSTED,1050) --layer default $(ARGS)

.PHONY: proofs
proofs: test-services ## run the long tests of all areas or of one: make proofs AREA=federation
	@scripts/environments.sh proofs || echo "-> third-party environments are missing: tests that need them are skipped"
	@$(BIN)/python -m scripts.web build || echo "-> no web page: tests that need it are skipped"
	@status=0; \
	$(call COSTED,) tests --layer proofs $(if $(AREA),--area $(AREA)) $(ARGS) || status=1; \
	$(if $(filter db,$(or $(AREA),db)),$(call COSTED,) tests/unit/orchestrator tests/integration/notify tests/contract/transport --store postgres $(ARGS) || status=1;) \
	exit $$status

# Apart from `make test`: to count lines in every server, worker and job takes a third to three quarters longer.
.PHONY: coverage
coverage: test-services ## measure branch coverage of `make test`, then of `make test` and `make proofs`; at least 85%
	@rm -f .coverage .coverage.*
	@scripts/environments.sh proofs || echo "-> third-party environments are missing: tests that need them are skipped"
	@$(BIN)/python -m scripts.web build || echo "-> no web page: tests that need it are skipped"
	@$(BIN)/coverage run -m pytest $(SPREAD) --layer default $(ARGS)
	@$(BIN)/coverage combine --quiet
	@echo "make test alone: $$($(BIN)/coverage report --format=total)% of branches"
	@$(BIN)/coverage run -m pytest $(SPREAD) --layer proofs $(ARGS)
	@$(BIN)/coverage combine --quiet --append
	@$(BIN)/coverage report

.PHONY: test-heavy
test-heavy: $(DEV_READY) ## set up the large environments (vLLM: 4 GB), then run the tests that need them
	@scripts/environments.sh heavy
	@$(BIN)/python -m pytest tests -m heavy $(ARGS)

# Types are looked at meanwhile, on a processor of their own, and told last.
.PHONY: check
check: $(DEV_READY) ## run all static checks
	@failed=; output=$$(mktemp); trap 'rm -f "$$output"' EXIT; \
	$(BIN)/mypy --no-error-summary >"$$output" 2>&1 & types=$$!; \
	run() { local name=$$1; echo "$$name"; shift; "$$@" || failed="$${failed:+$$failed, }$$name"; }; \
	imports() { out=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$out"; return 1; }; }; \
	run "ruff check" $(BIN)/ruff check --quiet .; \
	run "ruff format" $(BIN)/ruff format --quiet --check .; \
	run "import-linter" imports; \
	run "layout" $(BIN)/python -m scripts.check_layout; \
	run "words" $(BIN)/python -m scripts.check_words; \
	run "documents" $(BIN)/python -m scripts.check_docs; \
	run "web page" $(BIN)/python -m scripts.web check; \
	typed() { local found=0; wait $$types || found=1; cat "$$output"; return $$found; }; \
	run "mypy --strict" typed; \
	[ -z "$$failed" ] && echo "All checks passed." || { echo "Failed: $$failed."; exit 1; }

.PHONY: format
format: $(DEV_READY) ## fix what ruff can fix
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format --quiet .

.PHONY: ui
ui: $(DEV_READY) ## build the web page, so that the server of this source tree serves it
	@$(BIN)/python -m scripts.web build

.PHONY: ui-dev
ui-dev: $(DEV_READY) ## serve the web page with hot reload, for a running server (TUNEFLEET_URL, default 127.0.0.1:8000)
	@$(BIN)/python -m scripts.web dev

.PHONY: ui-pictures
ui-pictures: ui ## take screenshots of every page, light and dark, on a desktop and a phone, into docs/img
	@scripts/browser.sh
	@OMP_NUM_THREADS=1 $(BIN)/python -m scripts.web_pictures

.PHONY: ui-gif
ui-gif: ui ## record docs/img/run.gif from the page: a run whose trainer is killed
	@scripts/browser.sh
	@OMP_NUM_THREADS=1 $(BIN)/python -m scripts.run_gif

.PHONY: docs
docs: $(DEV_READY) ## regenerate the reference pages and .env.example
	@$(BIN)/python -m scripts.write_reference

.PHONY: man
man: docs ## regenerate the manual page and show it; a wheel installs it into share/man
	@man -l src/man/tunefleet.1

.PHONY: site
site: $(DEV_READY) ## build the documentation into site/; fails on broken links
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --clean -d $(SITE)

# Two builds of one commit are equal, byte for byte: no file is newer than the commit.
.PHONY: dist
dist: $(DEV_READY) ## build wheel and source distribution into dist/, reproducibly
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(BIN)/python -m hatchling build -t sdist -t wheel -d $(DIST)

TAG ?=
# The release workflow runs this; without TAG it publishes nothing, so anyone may.
.PHONY: release-check
release-check: ## build and check all release files: make release-check TAG=v0.1.0
	@rm -rf $(DIST) $(SITE)
	@$(MAKE) dist site
	@$(BIN)/python -m scripts.release $(DIST) --site $(SITE) --notes $(DIST)/NOTES.md $(if $(TAG),--tag $(TAG))

.PHONY: sbom
sbom: $(DEV_READY) ## write dist/sbom.cdx.json: the packages of tunefleet[all], as CycloneDX
	@mkdir -p $(DIST) && $(BIN)/python -m scripts.dependencies sbom $(DIST)/sbom.cdx.json

# Its word changes with the advisories and not with the tree, so it is no part of `make check`.
.PHONY: audit
audit: $(DEV_READY) ## check these packages for advisories (PyPI or OSV); exit code 3 if no source responds
	@$(BIN)/python -m scripts.dependencies audit

.PHONY: extras
extras: dist ## install the wheel with each extra into an empty environment and test it (long; ARGS="s3 --latest")
	@$(BIN)/python -m scripts.extras "$$(ls -t $(DIST)/*.whl | head -1)" $(ARGS)

.PHONY: scale
scale: $(BENCH_READY) ## load a server with up to 5,000 simulated workers and 100,000 queued tasks, and print the scaling (long)
	@$(BIN)/python bench/scale.py $(ARGS)

.PHONY: scale-gate
scale-gate: $(BENCH_READY) ## check 1,000 simulated workers: every task placed once, within the memory limit
	@$(BIN)/python bench/scale.py --gate

ONLY ?=
# Each is run beside its peers, one after the other on an otherwise idle machine, and docs/benchmarks.md is written.
.PHONY: bench
bench: $(BENCH_READY) ## benchmark against the peers and write docs/benchmarks.md: make bench ONLY="dispatch rounds" QUICK=1 FORCE=1
	@scripts/postgres.sh || echo "-> no PostgreSQL: benchmarks that need it fail"
	@scripts/nginx.sh || echo "-> no nginx: the transfer benchmark fails"
	@scripts/gateway.sh || echo "-> no S3 server: the transfer benchmark fails"
	@scripts/browser.sh || echo "-> no browser: the page benchmark fails"
	@$(BIN)/python -m scripts.web build || echo "-> no web page: its benchmark fails"
	@$(BIN)/python -m scripts.benchmarks --only "$(ONLY)" $(if $(QUICK),--quick) $(if $(FORCE),--force) $(ARGS)

.PHONY: chaos
chaos: $(DEV_READY) ## inject every kind of fault into a fleet, and check its data: make chaos ROUNDS=100 SEED=7
	@scripts/postgres.sh
	@CHAOS_ROUNDS=$(ROUNDS) CHAOS_SEED=$(SEED) CHAOS_FIRST=$(FIRST) CHAOS_KINDS=$(KINDS) $(BIN)/python -m pytest tests/chaos -s --timeout 0 $(ARGS)

.PHONY: kill-matrix
kill-matrix: $(DEV_READY) ## kill server, worker and trainer at random times, also in preference tasks: make kill-matrix ROUNDS=20
	@TUNEFLEET_CHAOS_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest tests/acceptance/test_kill_matrix.py tests/acceptance/test_alignment_kills.py --timeout 0 $(ARGS)

.PHONY: campaign-chaos
campaign-chaos: $(DEV_READY) ## kill campaign engine and server between and during steps: make campaign-chaos ROUNDS=50
	@TUNEFLEET_CHAOS_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest tests/integration/campaign/test_quick_kills.py tests/integration/campaign/test_kills.py --timeout 0 $(ARGS)

.PHONY: campaign-demo
campaign-demo: $(BENCH_READY) ## run three cycles of examples/campaign, and plot the eval loss
	@$(BIN)/python -m scripts.campaign_demo $(ARGS)

.PHONY: fuzz
fuzz: $(DEV_READY) ## fuzz the parsers of untrusted input: make fuzz SECONDS=600 ARGS='--target archive'
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS_OF_FUZZ) $(ARGS)

.PHONY: clean
clean: ## remove caches and build output; keeps .venv and results
	@rm -rf build dist site .coverage .coverage.* htmlcov .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests scripts bench -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## remove .venv and everything that the tests installed
	@rm -rf $(VENV) $(VENV)-* .azurite .nginx .promtool

# A larger set-up contains the smaller one, so `make demo` after `make test` has nothing to do.
$(RUN_READY):
	@[ -e $(DEV_READY) ] || [ -e $(BENCH_READY) ] || scripts/setup.sh run
	@touch $@

$(EXAMPLE_READY):
	@[ -e $(DEV_READY) ] || [ -e $(BENCH_READY) ] || scripts/setup.sh example
	@touch $@

$(DEV_READY):
	@[ -e $(BENCH_READY) ] || scripts/setup.sh dev
	@touch $@

$(BENCH_READY):
	@scripts/setup.sh bench
	@touch $@
