# Everything that one does with this project on one machine; `make help` lists it.
# Needs Python 3.11 (or 3.12, 3.13), make and a C compiler. No Docker, no root.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# What a user types after `make` is text: make would expand a `$$` in it as it puts it into the environment. So each is replaced by
# its literal value, and recipes take it from there ($$CORPUS, quoted): neither make nor the shell reads it.
$(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(eval override export $(name) := $$(value $(name)))))

export PYTHON ?= python3.11
# The state folder: databases, objects, models, logs, passwords.
export TOOLFORMER_STATE_DIR ?= $(CURDIR)/.toolformer
# One thread a process: stages run side by side.
export OMP_NUM_THREADS ?= 1
# Bytecode is kept, also where a shell says otherwise: uv leaves it to the first import, and each process would compile all anew.
export override PYTHONDONTWRITEBYTECODE :=

VENV := .venv
BIN := $(VENV)/bin
OPS := $(BIN)/toolformer-ops
STAMP := $(VENV)/.installed
# With what tests and lint need, too.
WORKSHOP := $(VENV)/.installed-for-work
LOCK_TOOLS := .venv-tools

.PHONY: help demo run test test-quick coverage test-slow test-compose faults mutants lint study study-gpu evidence bench bench-gpu bench-database lock sbom site audit-dependencies install up down status logs sql clean

help: ## Show this list.
	@printf 'Toolformer as a system, on one machine:\n\n'
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | \
	  while IFS=$$'\t' read -r name text; do printf '  make %-14s %s\n' "$$name" "$$text"; done
	@printf '\nState folder: %s (TOOLFORMER_STATE_DIR). Ports: TOOLFORMER_POSTGRES_PORT, TOOLFORMER_S3_PORT, TOOLFORMER_AIRFLOW_PORT.\n' "$$TOOLFORMER_STATE_DIR"
	@printf 'More: docs/operations.md, and %s --help.\n' '$(OPS)'

demo: $(STAMP) ## Annotate the demo corpus with all five tools, release, finetune, and show the result.
	@$(OPS) demo

run: $(STAMP) ## Annotate your own text: make run CORPUS=docs.jsonl TOOLS="Calculator Calendar" LIMIT=100 THRESHOLDS="Calculator=0.7" PARAMETERS='{"seed": 1}'
	@test -n "$${CORPUS:-}" || { echo 'make run: CORPUS is missing, a path or s3:// address of JSON Lines with a field `text`'; exit 2; }
	@$(OPS) run $${TOOLS:+--tools="$$TOOLS"} $${LIMIT:+--limit="$$LIMIT"} \
	  $${THRESHOLDS:+--thresholds="$$THRESHOLDS"} $${PARAMETERS:+--parameters="$$PARAMETERS"} -- "$$CORPUS"

# Each worker takes one group of tests after the other, the slowest group first (tests/conftest.py makes the groups). Three workers
# keep two cores busy: the one with the system tests waits most of the time, and each of them imports what all tests import.
PYTEST = pytest -n "$${WORKERS:-3}" --dist loadscope --no-loadscope-reorder
test: $(WORKSHOP) ## Run all tests but the slow ones. TESTS=tests/unit runs a part, ORDER=7 the files in the seventh other order.
	@$(BIN)/python -m $(PYTEST) -m 'not slow' $${TESTS:-tests}

test-quick: $(WORKSHOP) ## Run the tests that find most mistakes a second, after each save: the quickest of most modules of the core, in about 90 seconds.
	@$(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder -m 'not slow' $$($(BIN)/python -m tests.mutants --quick)

coverage: export COVERAGE_FILE = $(CURDIR)/.coverage/data
coverage: $(WORKSHOP) ## Run them and count the lines that they reach, in stages and services, too; prints the files that miss most.
	@$(BIN)/python -m coverage erase
	@$(BIN)/python -m coverage run -m $(PYTEST) -m 'not slow' $${TESTS:-tests}
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python -m coverage report

test-slow: $(WORKSHOP) ## Run the slow tests: what repeats, waits or disturbs for long; docker compose; Python 3.12 or 3.13.
	@$(BIN)/python -m $(PYTEST) -m slow $${TESTS:-tests}

test-compose: $(STAMP) ## Build the image and take the demo through docker-compose.yml; skipped where dockerd does not answer.
	@tests/docker/compose-run

faults: $(WORKSHOP) ## Disturb whole runs: make faults TIMES=50 FAULTS="sigkill s3-409" SEED=1
	@FAULTS="$${FAULTS:-}" PROPOSERS="$${PROPOSERS:-}" SEED="$${SEED:-short}" TIMES="$${TIMES:-1}" $(BIN)/python -m pytest -m slow tests/faults

mutants: $(WORKSHOP) $(LOCK_TOOLS) ## Change the core one place at a time, and print what its tests do not find: make mutants MODULES="language_model/losses.py"
	@$(BIN)/python -m tests.mutants -- $(LOCK_TOOLS)/bin $${MODULES:-}

lint: $(WORKSHOP) ## Check style, types, who imports whom, and that lines get no denser.
	@$(BIN)/ruff check .
	@$(BIN)/python -m benchmarks.structure --lint
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

study: $(WORKSHOP) ## What calls chosen by the loss are worth, by training: make study NAME=calculator SEEDS=10 ARMS=paper,any_call MODEL=folder OUT=folder
	@$(BIN)/python -m studies run --out="$${OUT:-$$TOOLFORMER_STATE_DIR/models/studies}" --model="$${MODEL:-}" --texts="$${TEXTS:-0}" \
	  --steps="$${STEPS:-64}" --seeds="$${SEEDS:-10}" --batch="$${BATCH:-16}" --learning-rate="$${LEARNING_RATE:-2e-5}" \
	  --test="$${TEST:-100}" --processes="$${PROCESSES:-1}" $${ARMS:+--arms="$$ARMS"} \
	  $${GSM8K:+--gsm8k="$$GSM8K"} $${POSTS:+--posts="$$POSTS"} $${PASSAGES:+--passages="$$PASSAGES"} -- "$${NAME:-calculator}"

study-gpu: $(WORKSHOP) ## The same on the first GPU, seeds side by side, or a larger model: make study-gpu NAME=calculator PROCESSES=12 MODEL=id@revision
	@TOOLFORMER_DEVICE=cuda $(MAKE) --no-print-directory study

evidence: $(WORKSHOP) ## Write docs/evidence.md anew from the raw answers in studies/answers.
	@$(BIN)/python -m studies evidence

bench: $(WORKSHOP) ## Measure the engine: make bench WORK=A TEXTS=2 RUNS=3 DTYPE=float32 OUT=folder; WORK=roofline reckons for GPUs
	@$(BIN)/python -m benchmarks --work="$${WORK:-all}" --texts="$${TEXTS:-1}" --runs="$${RUNS:-2}" \
	  --dtype="$${DTYPE:-float32,bfloat16}" --model="$${MODEL:-}" \
	  --out="$${OUT:-$$TOOLFORMER_STATE_DIR/bench}"

bench-gpu: $(WORKSHOP) ## Measure the GPU of this machine in five minutes: make bench-gpu SHAPES=1.5B,8B OUT=folder; needs no database and no Airflow
	@$(BIN)/python -m benchmarks.gpu --device="$${DEVICE:-cuda}" --shapes="$${SHAPES:-}" --out="$${OUT:-$$TOOLFORMER_STATE_DIR/bench}"

bench-database: $(WORKSHOP) ## Measure the database, and continue if it was killed: make bench-database SIZE=5000 OUT=folder (default: 5000,100000,1000000)
	@$(BIN)/python -m benchmarks.database --size="$${SIZE:-5000,100000,1000000}" -- "$${OUT:-$$TOOLFORMER_STATE_DIR/bench-database}"

lock: $(LOCK_TOOLS) ## Write the hashes of the lock files anew, after a version was changed in one.
	@requirements/lock $(LOCK_TOOLS)/bin/uv

sbom: $(WORKSHOP) $(LOCK_TOOLS) ## List every part that is installed, or those of an image, as CycloneDX: make sbom OUT=sbom.json IMAGE=name
	@if [ -n "$${IMAGE:-}" ]; then docker run --rm --network none --entrypoint sh "$$IMAGE" -c "$$($(BIN)/python requirements/image_sbom.py)" | \
	    $(BIN)/python requirements/image_sbom.py "$$IMAGE" > "$${OUT:-sbom.json}" && echo "wrote $${OUT:-sbom.json}"; exit; fi; \
	  $(LOCK_TOOLS)/bin/cyclonedx-py environment --output-reproducible --of JSON -o "$${OUT:-sbom.json}" $(BIN)/python && echo "wrote $${OUT:-sbom.json}"

site: $(WORKSHOP) $(LOCK_TOOLS) ## Write the documentation as a site into site/, with the pages that are made from the code; fails if a link leads to nothing.
	@$(BIN)/python -m docs.reference_pages
	@NO_MKDOCS_2_WARNING=1 $(LOCK_TOOLS)/bin/mkdocs build --clean

audit-dependencies: $(LOCK_TOOLS) ## Look for known weaknesses of what the lock files name; says loudly where no advisory database answers.
	@$(LOCK_TOOLS)/bin/python requirements/advisories.py $(LOCK_TOOLS)/bin/pip-audit $(LOCKS) requirements/torch.lock

install: $(STAMP) ## Make .venv and install what the lock files name; done by the other targets where needed.

up: $(STAMP) ## Start Postgres, S3 and Airflow, and repair what a crash left.
	@$(OPS) up

down: $(STAMP) ## Stop them; nothing is lost.
	@$(OPS) down

status: $(STAMP) ## Show what runs, where, since when, and how much memory it takes.
	@$(OPS) status

logs: $(STAMP) ## Show what the services printed: make logs SERVICE=postgres
	@$(OPS) logs $${SERVICE:-}

sql: $(STAMP) ## Ask the database, read-only: make sql Q="select * from threshold_counts"; without Q, psql. RUN=night-1 for questions that name no run, HISTORY=1 for the history on S3.
	@set -- $${RUN:+"--run=$$RUN"} $${HISTORY:+--history}; if [ -n "$${Q:-}" ]; then $(OPS) sql "$$@" -- "$$Q"; else $(OPS) sql "$$@"; fi

clean: ## Stop everything and delete the state folder, after a question (YES=1: without).
	@if [ -x $(OPS) ]; then $(OPS) clean $${YES:+--yes}; \
	  else printf 'nothing is installed; to delete the state folder: rm -r %s\n' "$$TOOLFORMER_STATE_DIR"; fi

# Every package comes by its hash, and without what it would like to bring along, which the lock files name as well. torch comes last:
# its builds differ by index. A lock file that changed is installed again; uv leaves alone what is there already.
LOCKS := requirements/run.lock requirements/tests.lock requirements/local.lock
PIP := python -m pip install --quiet --disable-pip-version-check
$(STAMP): requirements/uv.lock requirements/run.lock requirements/local.lock requirements/torch.lock requirements/install.py pyproject.toml
	@command -v "$$PYTHON" >/dev/null || { echo "make: $$PYTHON is missing; install Python 3.11, or name it: make PYTHON=/path/to/python3.11"; exit 2; }
	@"$$PYTHON" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12), (3, 13)))' || { echo "make: $$PYTHON is not Python 3.11, 3.12 or 3.13"; exit 2; }
	@test -x $(BIN)/python || "$$PYTHON" -m venv $(VENV) || { echo 'make: no virtual environment; on Debian: apt-get install python3.11-venv'; exit 2; }
	@echo 'Installing into $(VENV): about 250 packages, 2.5 GB, about a minute'
	@$(BIN)/$(PIP) --no-deps --require-hashes -r requirements/uv.lock
	@$(BIN)/python requirements/install.py requirements/run.lock requirements/local.lock
	@$(BIN)/python requirements/install.py --without-hashes requirements/torch.lock
	@$(BIN)/$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(WORKSHOP): $(STAMP) requirements/tests.lock
	@echo 'Installing what tests and lint need: about 50 packages, 0.7 GB'
	@$(BIN)/python requirements/install.py requirements/tests.lock
	@touch $@

$(LOCK_TOOLS): requirements/uv.lock requirements/tools.lock requirements/install.py
	@"$$PYTHON" -m venv $@
	@$@/bin/$(PIP) --no-deps --require-hashes -r requirements/uv.lock
	@$@/bin/python requirements/install.py requirements/tools.lock
	@touch $@
