# Everything runs in .venv, which is made on first use and refreshed when the dependencies change.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.PHONY: demo test lint bench docs notebooks clean

demo: $(READY)  ## the main job at a small size: about two minutes
	$(VENV)/bin/naht demo

test: $(READY)  ## all tests, or those of TESTS="tests/test_ppo.py ..."
	$(VENV)/bin/python -m pytest $(TESTS)

lint: $(READY)  ## style and types
	$(VENV)/bin/ruff check src tests benchmarks examples docs/*.py docs/drawings/*.py docs/notebooks
	$(VENV)/bin/ruff format --check src tests benchmarks examples docs/*.py docs/drawings/*.py docs/notebooks
	$(VENV)/bin/mypy

bench: $(READY)  ## environment steps per second of every part
	$(VENV)/bin/python benchmarks/throughput.py
	$(VENV)/bin/python benchmarks/smac.py

docs: $(READY)  ## the documentation as a site, in build/site
	$(VENV)/bin/python -c 'import mkdocs, material, mkdocstrings, latex2mathml' 2>/dev/null || $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet
	@echo build/site/index.html

notebooks: $(READY)  ## run the notebooks of docs/notebooks and keep what they show
	$(VENV)/bin/python docs/run_notebooks.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("naht needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache docs/notebooks/.ruff_cache .hypothesis
