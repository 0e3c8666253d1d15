# Every target does its own set-up: a virtual environment in .venv, with only what the target needs.
#   PROFILE=tiny|h100|paper   which runs a figure or table shows (only tiny trains from a fig-* target)
#   SWEEP=NAME                which file of sweeps/ `make sweep` runs
#   ARGS="..."                passed on to the command behind the target, e.g. ARGS="--dry-run"; of
#                             several commands all get its key=value, and only the sweep its options
#   LOCK=1                    install the versions of requirements.lock, which were tested together
PROFILE ?= tiny
SWEEP   ?= small
ARGS    ?=
PYTHON  ?= python3
VENV    ?= .venv
LOCK    ?=

PY := $(VENV)/bin/python
# One stamp per extra of pyproject.toml, each of which contains those before it.
EXTRAS := figures train data test
READY  := $(VENV)/.ready$(if $(LOCK),-locked)
FIGURES_READY := $(READY)-figures
TRAIN_READY   := $(READY)-train
DATA_READY    := $(READY)-data
TEST_READY    := $(READY)-test

.DEFAULT_GOAL := help
.PHONY: help setup versions test test-all tables report sweep bench data-openwebtext data-c4 clean all

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  fig-NAME           draw a figure: $(FIGURES)"
	@echo "Variables: PROFILE=$(PROFILE) SWEEP=$(SWEEP) ARGS LOCK PYTHON=$(PYTHON) VENV=$(VENV)"

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "error: %s is Python %d.%d; Python 3.10 or newer is needed (set PYTHON=...)" % (sys.executable, *sys.version_info[:2]))'
	$(PYTHON) -m venv $(VENV)

# Of what pyproject.toml names, the versions that are installed.
SHOW_VERSIONS = $(PY) -c 'import platform, re; from importlib.metadata import distributions, requires; \
  have = {d.name.lower(): d.version for d in distributions()}; \
  names = {re.match(r"[\w-]+", r)[0] for r in requires("powerstep-repro")} - {"powerstep-repro"}; \
  print("versions: python", platform.python_version(), *(f"{n} {have[n]}" for n in sorted(names) if n in have))'

# What is installed already is left alone: the environment may be one that others use, too.
$(READY)-%: pyproject.toml $(if $(LOCK),requirements.lock) | $(PY)
	@$(if $(LOCK),false,$(PY) .ci/installed $*) || { set -x; \
	  $(PY) -m pip install --quiet $(if $(LOCK),--constraint requirements.lock) --editable '.[$*]'; }
	@$(SHOW_VERSIONS)
	@for extra in $(EXTRAS); do touch $(READY)-$$extra; if [ $$extra = $* ]; then break; fi; done

setup: $(TEST_READY) ## install everything: training, data, W&B, Slurm, tests

versions: ## list the installed versions of what pyproject.toml names
	@$(SHOW_VERSIONS)

test: $(TEST_READY) ## lint and run the tests on a CPU, but for the slow ones
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PY) -m mypy
	$(PY) -m pytest -n 2 $(ARGS)

test-all: $(TEST_READY) ## run every test, the slow ones too (GPU tests skip themselves)
	$(PY) -m pytest -n 2 -m '' $(ARGS)

# Shell words: leaves the key=value of ARGS, however they are quoted, as "$@".
KEY_VALUES = set -- $(ARGS); for word; do shift; \
	  case "$$word" in -*) ;; *=*) set -- "$$@" "$$word";; esac; done

# $(call figure,NAME,sweeps that fill it,table beside it). Under PROFILE=tiny what is missing is
# trained first; a failed run is reported after the figure of what there is has been drawn. One
# process looks and draws: a second call takes seconds.
define figure
FIGURES += $(1)
.PHONY: fig-$(1)
fig-$(1): $(FIGURES_READY)
	@$$(KEY_VALUES); status=0; \
	draw() { $(PY) -m powerstep_repro.plot $(1) $(3:%=--table %) profile=$(PROFILE) "$$$$@"; }; \
	draw "$$$$@" $(if $(filter tiny,$(PROFILE)),--if-complete) || { \
	  [ $$$$? = 3 ] || exit 1; \
	  $(MAKE) --no-print-directory $(TRAIN_READY) || exit; \
	  for sweep in $(2); do \
	    $(PY) -m powerstep_repro.sweep $$$$sweep profile=$(PROFILE) $(ARGS) || status=$$$$?; \
	  done; \
	  draw "$$$$@" && exit $$$$status; }
endef
$(eval $(call figure,spt,,))
$(eval $(call figure,small,small,valid_small))
$(eval $(call figure,hyper,beta gamma,))
$(eval $(call figure,quant,quant,quant_valid))
$(eval $(call figure,large,large,valid_large))
$(eval $(call figure,lr,lr,))
$(eval $(call figure,stacey,stacey,))
$(eval $(call figure,mechanism,mechanism,))

# One command is told all of ARGS, unless it is one of many.
ITS_ARGS = $(if $(filter all,$(MAKECMDGOALS)),$(KEY_VALUES),set -- $(ARGS))

tables: $(FIGURES_READY) ## write every table of PROFILE from its logs
	@$(ITS_ARGS); set -x; $(PY) -m powerstep_repro.table all profile=$(PROFILE) "$$@"

report: $(FIGURES_READY) ## write results/PROFILE/REPORT.md and report.html from its logs
	@$(ITS_ARGS); set -x; $(PY) -m powerstep_repro.report profile=$(PROFILE) "$$@"

sweep: $(TRAIN_READY) ## train the runs of sweeps/SWEEP.yaml that are not there yet
	$(PY) -m powerstep_repro.sweep '$(SWEEP)' profile=$(PROFILE) $(ARGS)

bench: $(TRAIN_READY) ## step time, memory and tokens/s, side by side
	$(PY) -m powerstep_repro.bench $(ARGS)

data-openwebtext: $(DATA_READY) ## download and tokenize OpenWebText
	$(PY) -m powerstep_repro.prepare openwebtext $(ARGS)

data-c4: $(DATA_READY) ## download and tokenize C4
	$(PY) -m powerstep_repro.prepare c4 model=qwen3_0_6b $(ARGS)

all: $(addprefix fig-,$(FIGURES)) tables report ## every figure, every table, the report

# Of `paper`, whose runs need the paper's hardware, the pages that say so: only while it has no runs.
clean: ## remove environment, caches, results of tiny, of paper if it has no runs; data and evidence stay
	rm -rf $(VENV) .venv-floor .venv-locked results/tiny build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	[ -e results/paper/runs ] || \
	  rm -rf $(addprefix results/paper/,figures tables REPORT*.md report*.html)
	@rmdir results/paper 2>/dev/null || true
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
