# One command each; `make install` is done by all of them when it is due.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Where it is set, every run would compile the package and rewrite the tests anew.
unexport PYTHONDONTWRITEBYTECODE

DOCS_STAMP := $(VENV)/.docs-installed

.PHONY: install demo test quick check bench docs docs-serve clean

install: $(STAMP)

# Programs in .venv name the folder that they were installed in: in one that was moved or copied they are made anew.
# An environment elsewhere, that VENV names by its whole path, is somebody's: it is left as it is.
ifeq ($(filter /%,$(VENV)),)
ifneq ($(shell grep -s '^command = ' $(VENV)/pyvenv.cfg | grep -vF ' $(CURDIR)/$(VENV)'),)
.PHONY: moved
moved:
	@echo "$(VENV) was made in another folder: installing anew"
	$(PYTHON) -m venv --clear $(VENV)
$(STAMP) $(DOCS_STAMP): moved
endif
endif

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	$(BIN)/python -m compileall -q src
	touch $(STAMP)

# A million clicks through Spark, exactly once, while things are killed; `headrace demo` is the short tour.
demo: $(STAMP)
	$(BIN)/headrace demo --spark

# Everything but the longest, under 20 minutes on two cores; ends with the list of what was skipped, and why.
# Spark's tests come after the others, in a run of their own: its sockets are not ours to close, so that a forgotten one
# cannot be told there. Two workers, each with a Spark: one alone leaves a core idle while its Java starts and plans.
# More workers than cores for the others: many tests wait for a time to pass.
test: $(STAMP)
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder --ignore=tests/spark -m "not long"
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder tests/spark -m "not long"

# The fast part, about a minute; of Spark's tests those that need no Java.
quick: $(STAMP)
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder --ignore=tests/spark -m "not slow and not long"
	$(BIN)/python -m pytest -q -n 2 --dist loadfile tests/spark -m "not slow and not long"

# What takes minutes each: Spark drivers and workers killed at every step, on Apache Kafka too.
.PHONY: test-long
test-long: $(STAMP)
	$(BIN)/python -m pytest -q -m long

# The quick tests on every Python of the classifiers that can be had, and the next; PYTHONS="3.14 --debian forky" for
# some, or for that of a release of Debian's (debootstrap, as root). Before a release.
.PHONY: test-pythons
test-pythons: $(STAMP)
	$(BIN)/python -m tests.pythons $(PYTHONS)

# A wheel and a source archive in build/dist, each installed alone and then tested on every Python that can be had.
# The version is in src/headrace/_version.py; the tag is set by hand when this has passed.
.PHONY: release
release: $(STAMP)
	rm -rf build/dist
	$(BIN)/python -m pip install --quiet build
	$(BIN)/python -m build --outdir build/dist .
	$(BIN)/python -m tests.pythons $(PYTHONS) $$(for file in build/dist/*; do echo --archive $$file; done)

# Lint, types, import contracts.
check: $(STAMP)
	$(BIN)/ruff check src tests bench examples
	$(BIN)/ruff format --check src tests bench examples
	$(BIN)/mypy
	$(BIN)/lint-imports

# Figures next to peers in the same run; see bench/README.md.
bench: $(STAMP)
	$(BIN)/python -m bench

# The documentation as a site, in build/site; a link that leads nowhere fails. Its tables are made from the code.
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "the site is in build/site; its search needs a server: make docs-serve"

# The site, with its search, which browsers do not allow on pages that are opened as files.
docs-serve: docs
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site $(or $(PORT),8000)

$(DOCS_STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $(DOCS_STAMP)

clean:
	rm -rf build $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Apache Kafka's jars, for the tests and figures that need a peer (Java and Maven; skipped where they are missing).
.PHONY: peers
peers: $(STAMP)
	$(BIN)/python -m bench.peers || true
