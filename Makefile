# Every target does its own set-up: a virtual environment in .venv, with only what the target needs.
#   PROFILE=tiny|h100|paper   which runs a figure or table shows (only tiny trains from a fig-* target)
#   SWEEP=NAME                which file of sweeps/ `make sweep` runs
#   ARGS="..."                passed on to the command behind the target, e.g. ARGS="--dry-run"; of
#                             several commands all get its key=value, and only the sweep its options
PROFILE ?= tiny
SWEEP   ?= small
ARGS    ?=
PYTHON  ?= python3
VENV    ?= .venv

PY := $(VENV)/bin/python
# One stamp per extra of pyproject.toml; a larger extra contains the smaller ones.
FIGURES_READY := $(VENV)/.ready-figures
TRAIN_READY   := $(VENV)/.ready-train
DATA_READY    := $(VENV)/.ready-data
TEST_READY    := $(VENV)/.ready-test

.DEFAULT_GOAL := help
.PHONY: help setup test lint tables report sweep bench data-openwebtext data-c4 clean all

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  fig-NAME           draw a figure: $(FIGURES)"
	@echo "Variables: PROFILE=$(PROFILE) SWEEP=$(SWEEP) ARGS PYTHON=$(PYTHON) VENV=$(VENV)"

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "error: %s is Python %d.%d; Python 3.10 or newer is needed (set PYTHON=...)" % (sys.executable, *sys.version_info[:2]))'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-%: pyproject.toml | $(PY)
	$(PY) -m pip install --quiet --editable '.[$*]'
	@touch $@

setup: $(TEST_READY) ## install everything: training, data, W&B, Slurm, tests
	@$(PY) -c 'import torch; print("ready: torch", torch.__version__, "in $(VENV)")'

test: $(TEST_READY) ## lint and run the tests (CPU; GPU tests skip themselves)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PY) -m pytest -n 2 $(ARGS)

# Shell words: leaves the key=value of ARGS, however they are quoted, as "$@".
KEY_VALUES = set -- $(ARGS); for word; do shift; \
	  case "$$word" in -*) ;; *=*) set -- "$$@" "$$word";; esac; done

# $(call figure,NAME,sweeps that fill it,table beside it). Under PROFILE=tiny what is missing is
# trained first; a failed run is reported after the figure of what there is has been drawn.
define figure
FIGURES += $(1)
.PHONY: fig-$(1)
fig-$(1): $(FIGURES_READY)
	@$$(KEY_VALUES); status=0; \
	if [ "$(PROFILE)" = tiny ]; then for sweep in $(2); do \
	  $(PY) -m powerstep_repro.sweep $$$$sweep profile=$(PROFILE) "$$$$@" --missing || \
	    { $(MAKE) --no-print-directory $(TRAIN_READY) && \
	      $(PY) -m powerstep_repro.sweep $$$$sweep profile=$(PROFILE) $(ARGS); } || status=$$$$?; \
	done; fi; \
	$(PY) -m powerstep_repro.plot $(1) profile=$(PROFILE) "$$$$@" && \
	$(if $(3),$(PY) -m powerstep_repro.table $(3) profile=$(PROFILE) "$$$$@" &&) exit $$$$status
endef
$(eval $(call figure,spt,,))
$(eval $(call figure,small,small,valid_small))
$(eval $(call figure,hyper,beta gamma,))
$(eval $(call figure,quant,quant,quant_valid))
$(eval $(call figure,large,large,valid_large))
$(eval $(call figure,lr,lr,))
$(eval $(call figure,stacey,stacey,))

tables: $(FIGURES_READY) ## write every table of PROFILE from its logs
	@$(KEY_VALUES); set -x; $(PY) -m powerstep_repro.table all profile=$(PROFILE) "$$@"

report: $(FIGURES_READY) ## write results/PROFILE/REPORT.md and report.html from its logs
	@$(KEY_VALUES); set -x; $(PY) -m powerstep_repro.report profile=$(PROFILE) "$$@"

sweep: $(TRAIN_READY) ## train the runs of sweeps/SWEEP.yaml that are not there yet
	$(PY) -m powerstep_repro.sweep $(SWEEP) profile=$(PROFILE) $(ARGS)

bench: $(TRAIN_READY) ## step time, memory and tokens/s, side by side
	$(PY) -m powerstep_repro.bench $(ARGS)

data-openwebtext: $(DATA_READY) ## download and tokenize OpenWebText
	$(PY) -m powerstep_repro.prepare openwebtext $(ARGS)

data-c4: $(DATA_READY) ## download and tokenize C4
	$(PY) -m powerstep_repro.prepare c4 model=qwen3_0_6b $(ARGS)

all: $(addprefix fig-,$(FIGURES)) tables report ## every figure, every table, the report

# Of `paper`, whose runs need the paper's hardware, the pages that say so: only while it has no runs.
clean: ## remove environment, caches, results of tiny, of paper if it has no runs; data and evidence stay
	rm -rf $(VENV) results/tiny build dist .pytest_cache .ruff_cache .hypothesis
	[ -e results/paper/runs ] || \
	  rm -rf $(addprefix results/paper/,figures tables REPORT*.md report*.html)
	@rmdir results/paper 2>/dev/null || true
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
