# Everything a developer or CI calls; `make help` lists it. Each target sets up what it needs in
# .venv first.

PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
PIP    := $(VENV)/bin/pip install --quiet --disable-pip-version-check
# The demo needs half of what the tests and tools need, so that is installed first.
DEMO   := $(VENV)/.demo
READY  := $(VENV)/.ready
# The tools of the site and of a release have environments of their own: tests and demo do without.
SITE   := .cache/site-tools
# The pages of 0.1.0 and 0.1.1 are of one version, 0.1.
MINOR  := $(shell sed -n 's/^__version__ = "\([0-9]*\.[0-9]*\).*/\1/p' txmq/__init__.py)
RELEASE := .cache/release-tools
# Processes that share the tests. Each may start a PostgreSQL and a Redis of its own.
WORKERS ?= 3

.PHONY: demo help tour test soak check lint needs format bench docs site sitecheck versions wheels release pins clean

demo: $(DEMO)  ## two banks, many transfers, accidents, and not a cent is lost
	JAVA_HOME="$$($(RUN) -m tools.java)" $(RUN) -m examples.bank_transfer

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

tour: $(DEMO)  ## the programs of RocketMQ's tutorial, one after the other
	$(RUN) -m examples.rocketmq_tour

test: needs lint  ## a case of everything, with modest counts, by WORKERS processes
	$(RUN) -m pytest -n $(WORKERS) --no-loadscope-reorder --durations 30 tests

soak: needs  ## all cases with high counts, for hours
	TXMQ_SOAK=1 $(RUN) -m pytest --timeout 7200 tests

check: lint  ## what every commit passes: format, lint, types, import directions, fast tests
	$(RUN) -m pytest -q -n $(WORKERS) --no-loadscope-reorder -m "not slow" tests/unit tests/property tests/tidy

lint: $(READY)  ## format, lint, types (of the pages' programs, too), import directions
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/mypy
	$(RUN) -m tests.docs.type_checks

needs: $(READY)  ## fetch what the tests need, or name all that is missing
	@$(RUN) -m tests.needs

format: $(READY)  ## format every file, and mend what ruff can
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: $(READY)  ## the benchmarks, JSON on stdout; AGAINST=REVISION compares two commits
	@$(RUN) -m benchmarks $(if $(AGAINST),--against $(AGAINST))

docs: $(READY)  ## write the generated reference pages again
	$(RUN) -m txmq config reference > docs/reference/configuration.md
	$(RUN) -m tools.wire_reference > docs/reference/wire.md
	$(RUN) -m tools.metric_reference > docs/reference/metrics.md
	$(RUN) -m tools.dashboard > deploy/grafana/txmq-broker.json
	$(RUN) -m tools.reconcile_rules > docs/reference/reconcile-rules.md
	$(RUN) -m tools.cli_reference > docs/reference/cli.md
	$(RUN) -m tools.mqadmin_page > docs/reference/mqadmin.md
	$(RUN) -m tools.error_reference > docs/reference/errors.md
	$(RUN) -m tools.api_reference docs/reference/api
	$(RUN) -m tools.fault_table > docs/internals/faults.md
	$(RUN) -m tools.state_diagram docs/explanation/half-messages.md
	$(RUN) -m tools.class_table docs/reference/reconcile-classes.md

wheels: $(READY) $(RELEASE)/.ready  ## build dist/, and try the wheel with all extras but Spark
	$(RUN) -m tools.release $(RELEASE) --narrow

release: $(READY) $(RELEASE)/.ready  ## build dist/ of a version: every Python, every extra, bill
	$(RUN) -m tools.release $(RELEASE)

site: $(SITE)/.ready  ## the documentation as a site, in .cache/site; any warning is an error
	@# Not --quiet: it would drop warnings before --strict counts them.
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict
	@echo "the site is in .cache/site: open .cache/site/index.html through a web server, such as:"
	@echo "  $(PYTHON) -m http.server --directory .cache/site --bind 127.0.0.1 8000"

sitecheck: site  ## open the site in Chromium: accessibility, narrow screens, clipped code, searches, diagrams
	$(SITE)/bin/python -m tools.site.check

versions: $(SITE)/.ready  ## commit this version's site to the branch of all versions, gh-pages
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(SITE)/bin:$$PATH" mike deploy --update-aliases $(MINOR) latest
	$(SITE)/bin/mike set-default latest
	@echo "publish them with: git push origin gh-pages"

$(SITE)/.ready: tools/site/constraints.txt
$(RELEASE)/.ready: tools/release/constraints.txt
.cache/%-tools/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	touch $@

$(DEMO): pyproject.toml examples/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "txmq needs Python 3.11 or newer: name one, like make demo PYTHON=python3.11")'
	@echo "setting up $(VENV), which takes a minute or more"
	$(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes -r examples/constraints.txt
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

$(READY): $(DEMO) constraints.txt
	@echo "adding what the tests and tools need, which takes a minute"
	$(PIP) --require-hashes -r constraints.txt
	touch $@

pins:  ## choose the pinned versions again
	$(PYTHON) -m venv .cache/pins
	.cache/pins/bin/pip install --quiet pip-tools
	.cache/pins/bin/pip-compile --quiet --strip-extras --generate-hashes --no-emit-index-url \
	  --no-emit-trusted-host --no-emit-find-links --no-header --allow-unsafe --extra dev \
	  --build-deps-for editable -o constraints.txt pyproject.toml
	.cache/pins/bin/pip-compile --quiet --strip-extras --generate-hashes --no-emit-index-url \
	  --no-emit-trusted-host --no-emit-find-links --no-header --allow-unsafe \
	  -o tools/site/constraints.txt tools/site/requirements.in
	.cache/pins/bin/pip-compile --quiet --strip-extras --generate-hashes --no-emit-index-url \
	  --no-emit-trusted-host --no-emit-find-links --no-header --allow-unsafe \
	  -o tools/release/constraints.txt tools/release/requirements.in
	$(MAKE) $(READY)
	$(RUN) -m tools.release.bill broker > packaging/docker/constraints.txt
	$(RUN) -m tools.release.bill all hatchling editables async-timeout > examples/constraints.txt

clean:  ## remove .venv and all caches
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
