# Two commands: `make book` and `make test`. Both set up .venv from the two locks on first use.
.DEFAULT_GOAL := help
.PHONY: help book lab site test test-all tests tests-all test-gpu lint fuzz lock clean
.DELETE_ON_ERROR:

# Where it is set, each of some hundred processes would compile PyTorch's and MONAI's sources for itself.
unexport PYTHONDONTWRITEBYTECODE

PY := .venv/bin/python
READY := .venv/.ready
# The first Python that is new enough and can make an environment. Set PYTHON=... to choose another.
FITS := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(shell for p in python3.12 python3.11 python3 python3.13; do \
	"$$p" -c '$(FITS)' >/dev/null 2>&1 && { echo "$$p"; break; }; done)

# CPU=1: PyTorch's build for the CPU, from PyTorch's own index. Only when asked for, so that a machine needs no other
# index than its own; what is installed from there, requirements.lock then finds in place.
CPU_INDEX := https://download.pytorch.org/whl/cpu
LARGE := make: PyTorch's index of CPU builds was not reached; installing the build that pip finds (on Linux 3 GB, with CUDA)

help:
	@echo "make book    set up .venv and run the notebooks in order; writes figures/   (ARGS='--only 05' and the like)"
	@echo "make lab     set up .venv and open the book in JupyterLab   (ARGS=--no-browser on a server)"
	@echo "make site    set up .venv and build the book's site into build/site"
	@echo "make test    set up .venv, then lint, types, unit tests and every notebook compared with its stored output"
	@echo "make test-all the same with the tests that are long, and two minutes of make fuzz; before a release"
	@echo "make test-gpu run the tests that need a GPU; writes figures/records/<card>/gpu_tests.csv   (ARGS='-n 8')"
	@echo "make lint    ruff, mypy, import-linter"
	@echo "make fuzz    broken files of every kind against their readers, for two minutes (ARGS='--seconds 3600')"
	@echo "make lock    make requirements.lock anew from pyproject.toml"
	@echo "CPU=1        with any of these, on first use: PyTorch's smaller build, without CUDA"
	@echo "make clean   remove .venv, runs/ and caches"

book: $(READY)
	$(PY) -m study book $(ARGS)

# site/lab/ has the book's defaults for JupyterLab; a reader's own settings stay, and stand above them. Root, as in a
# container, has no other user to run it as.
lab: $(READY)
	.venv/bin/jupyter trust notebooks/*.ipynb
	JUPYTER_PATH="$(CURDIR)/site/lab$${JUPYTER_PATH:+:$$JUPYTER_PATH}" \
	JUPYTER_CONFIG_PATH="$(CURDIR)/site/lab$${JUPYTER_CONFIG_PATH:+:$$JUPYTER_CONFIG_PATH}" \
		.venv/bin/jupyter lab --LabApp.default_url=/lab/tree/README.md $$([ "$$(id -u)" != 0 ] || echo --allow-root) $(ARGS)

# Offline, from what is committed. BOOK_REPOSITORY=https://HOST/OWNER/NAME adds launch buttons.
site: $(READY)
	$(PY) -m sphinx -q -W --keep-going -c site -d build/doctrees -b html . build/site
	@echo "the site is build/site/index.html"

# Two processes, each notebook and each test file in one of them; the longest first (tests/conftest.py).
PYTEST := $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Lint and types beside the tests: they take one core a minute.
test: $(READY)
	@$(MAKE) --no-print-directory -k -j 2 lint tests

test-all: $(READY)
	@$(MAKE) --no-print-directory -k -j 2 lint tests-all
	PYTHONPATH=tests $(PY) -m fuzz

tests: $(READY)
	$(PYTEST) -m 'not long' $(ARGS)

tests-all: $(READY)
	$(PYTEST) $(ARGS)

# Some minutes in one process; ARGS='-n 8' has eight share the tests, and the GPU: most of the time goes into compiling.
# Only files with such a test are imported, and the options for notebooks and pictures are left out, so that pytest is all
# that a machine needs besides what the tests import. A failed test (1) is recorded; a run that is cut short (2) is not.
test-gpu: $(READY)
	$(PY) -m pytest -m gpu -o addopts= --import-mode=importlib --strict-markers --strict-config --confcutdir=tests \
		-o junit_family=xunit1 --junitxml=runs/gpu_tests.xml --continue-on-collection-errors -p no:cacheprovider -ra \
		$$(grep -rl --include='test_*.py' pytest.mark.gpu tests) $(ARGS); \
	code=$$?; [ $$code -le 1 ] && $(PY) -m study.records.gpu_tests runs/gpu_tests.xml && exit $$code

fuzz: $(READY)
	PYTHONPATH=tests $(PY) -m fuzz $(ARGS)

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports --no-logo

$(READY): requirements.lock requirements.nodeps.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 to 3.13 with venv found; install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Setting up .venv from requirements.lock: some minutes, once."
	"$(PYTHON)" -m venv .venv
	@# Compiling all 22,000 files takes two minutes; Python compiles those that it imports.
	$(if $(filter 1,$(CPU)),$(PY) -m pip install -qq --no-compile --no-deps --retries 1 --index-url $(CPU_INDEX) \
		"$$(grep '^torch==' requirements.lock)" || echo "$(LARGE)" >&2)
	$(PY) -m pip install -qq --no-compile -r requirements.lock
	$(PY) -m pip install -qq --no-compile --no-deps -r requirements.nodeps.lock
	$(PY) -m pip install -qq --no-deps --no-build-isolation --editable .
	@touch $@

# torch's own CUDA libraries and the build's local version (+cpu, +cu130) stay out: they differ from machine to machine.
# torch stays where it is: what is measured hangs on it, so it is moved by hand, in the lock; and so is what
# requirements.nodeps.lock pins, which this leaves alone.
lock:
	"$(PYTHON)" -m venv --clear .venv-lock
	.venv-lock/bin/python -m pip install --quiet --editable '.[book,dev]' "$$(grep '^torch==' requirements.lock)"
	grep '^#' requirements.lock > .venv-lock/lock
	.venv-lock/bin/python -m pip freeze --all --exclude-editable --exclude pip --exclude wheel \
		| grep -vE '^(nvidia-|cuda-|triton)' | sed -E 's/\+[a-z0-9.]+$$//' >> .venv-lock/lock
	mv .venv-lock/lock requirements.lock
	rm -rf .venv-lock

clean:
	rm -rf .venv .venv-lock runs build *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
