# The commands of Toolcrib, for people and for CI. They set up what they need in .venv, from files with
# hashes, and do nothing twice. `make` lists them.

PYTHON ?= python3
ARGS ?=

VENV := .venv
# The checkout's path is part of the stamps' path, so a checkout that was moved or copied sets itself up anew.
STAMPS := $(VENV)/stamps$(CURDIR)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
UV := $(BIN)/uv
SPACE := USER_SPACE=$(CURDIR)/build/state/space
RUN := $(BIN)/toolcrib --config examples/toolcrib.toml --state build/state

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help run examples sign-examples test screenshots check surface words fmt bench explore fuzz fuzz-http fuzz-spawner sanitize soak races dist wheels dist-test lock clean
unexport PYTHONHOME PYTHONPATH

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

run: $(STAMPS)/native ## serve the tools in examples/: console, MCP and HTTP on one port (ARGS="--port 0")
	@mkdir -p -m 700 build/state build/state/space
	@$(SPACE) $(BIN)/toolcrib trust examples/keys/*.toml
	@$(SPACE) $(RUN) check || true # what is wrong with one tool is told, and the others are served
	@$(SPACE) $(RUN) verify | awk '{ n[$$1]++ } END { for (one in n) print n[one], "tools are", one }'
	@$(SPACE) exec $(RUN) serve $(ARGS)

examples: $(STAMPS)/native ## check, verify and list the tools in examples/, and call some, without serving
	@mkdir -p -m 700 build/state build/state/space
	$(SPACE) $(BIN)/toolcrib trust examples/keys/*.toml
	$(SPACE) $(RUN) check
	$(SPACE) $(RUN) verify
	$(SPACE) $(RUN) list
	$(SPACE) $(RUN) call get_time '{"timezone": "UTC"}'
	$(SPACE) $(RUN) call text/outline-markdown '{"file_path": "README.md"}'

sign-examples: $(STAMPS)/native ## sign the rye tools of examples/ anew, with a key that is thrown away
	@rm -rf build/signer && mkdir -p -m 755 build/signer
	USER_SPACE=$(CURDIR)/build/signer $(BIN)/toolcrib keys generate --owner examples
	USER_SPACE=$(CURDIR)/build/signer $(BIN)/toolcrib --from examples/rye sign 'tool:*'
	@mkdir -p examples/keys && rm -f examples/keys/*.toml
	@cp build/signer/.ai/config/keys/trusted/*.toml examples/keys/ && rm -rf build/signer

test: $(STAMPS)/dev ## run the tests (ARGS="-k name" goes to pytest); as root, tests that need chromium or musl-tools install them (NO_APT=1: no)
	@$(BIN)/python -m compileall -q src soak tests/sandbox tests/journal
	$(BIN)/python -m pytest $(if $(findstring .py,$(ARGS)),,-n 2) $(ARGS)

screenshots: $(STAMPS)/dev ## take the images of docs/images again, with the browser that the tests use; as root, as for test
	@mkdir -p docs/images
	SCREENSHOTS=docs/images $(BIN)/python -m pytest -q tests/doors/test_browser.py -k from_the_catalog

check: $(STAMPS)/dev ## formatting, lint, types and the order of the rooms
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	@# Programs, not packages: their files import each other by bare names, so each folder is a search path.
	MYPYPATH=benchmarks $(BIN)/mypy benchmarks
	MYPYPATH=soak $(BIN)/mypy soak
	$(BIN)/python -m pytest tests/test_architecture.py

surface: $(STAMPS)/dev ## write what people and programs rely on to tests/surface.toml, which a test compares
	$(BIN)/python -m tests.surface

words: $(STAMPS)/dev ## count private words in docstrings and messages (ARGS="--path FOLDER" counts another)
	$(BIN)/python tests/words.py $(ARGS)

fmt: $(STAMPS)/dev ## format the code and mend what lint can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(STAMPS)/dev ## measure
	$(BIN)/python benchmarks/bench.py $(ARGS)

explore: $(STAMPS)/dev ## run the tests with new generated inputs, many of them (ARGS="-k name")
	$(BIN)/python -m pytest -n 2 --hypothesis-profile=explore $(ARGS)

fuzz: $(STAMPS)/dev ## mutate declarations and look for what breaks
	$(BIN)/python fuzz/fuzz.py $(ARGS)

fuzz-http: $(STAMPS)/dev ## send the HTTP API generated requests, 10,000 of them (ARGS="--examples N --seed N")
	$(BIN)/python -m tests.doors.fuzzing $(ARGS)

fuzz-spawner: ## send the spawner's parser wrong messages, under sanitizers (ARGS="SECONDS SEED")
	@mkdir -p build
	$(CC) -std=gnu17 -O1 -g -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all \
		-o build/fuzz-spawner fuzz/spawner.c
	build/fuzz-spawner $(if $(ARGS),$(ARGS),60)

sanitize: $(STAMPS)/dev ## run tests with a spawner and a forker built under sanitizers (ARGS="tests/sandbox -x")
	$(BIN)/python -m tests.native.sanitized $(ARGS)

soak: $(STAMPS)/dev ## call tools that misbehave, kill hosts, and look for what is lost or left (ARGS=serving: clients of a server)
	$(BIN)/python soak/soak.py $(ARGS)

races: $(STAMPS)/dev ## replace files while they are verified and called, and look for what ran unverified
	$(BIN)/python -m tests.trust.races $(ARGS)

dist: $(STAMPS)/native ## build a source distribution and a wheel for this machine into dist/
	@rm -rf dist
	$(BIN)/python -m hatchling build -d dist

wheels: $(STAMPS)/wheels ## build the wheel for manylinux into dist/, in a container (cibuildwheel; needs Docker)
	$(BIN)/cibuildwheel --platform linux --output-dir dist

dist-test: $(STAMPS)/dev ## build both, install each into an empty environment and use it; check its types
	$(BIN)/python -m pytest tests/dist $(ARGS)

lock: $(STAMPS)/uv ## recompile the requirement files (ARGS=--upgrade takes newer versions)
	@$(pip_settings); \
	$(compile) pyproject.toml requirements/run.in --output-file requirements/run.txt && \
	$(compile) pyproject.toml requirements/dev.in --output-file requirements/dev.txt && \
	$(compile) requirements/bench.in --output-file requirements/bench.txt && \
	$(compile) requirements/wheels.in --output-file requirements/wheels.txt && \
	echo uv | $(compile) --no-annotate - --output-file requirements/uv.txt

clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist .hypothesis src/toolcrib/sandbox/_spawner src/toolcrib/runtimes/_forker.node
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- set-up ---------------------------------------------------------------------------------------------------

compile = UV_CUSTOM_COMPILE_COMMAND='make lock' $(UV) pip compile --quiet --system-certs --universal \
	--python-version 3.11 --generate-hashes --no-emit-index-url $(ARGS)

# uv does not read pip's configuration: hand over the index and the certificates that pip uses on this machine.
define pip_settings
settings=$$($(PIP) config list); \
setting() { printf '%s\n' "$$settings" | sed -n "s/^[^=]*\.$$1='\(.*\)'$$/\1/p" | head -n 1; }; \
index=$$(setting index-url); cert=$$(setting cert); \
if [ -n "$$index" ] && [ -z "$$UV_DEFAULT_INDEX$$UV_INDEX_URL" ]; then export UV_DEFAULT_INDEX="$$index"; fi; \
if [ -n "$$cert" ] && [ -z "$$SSL_CERT_FILE" ]; then export SSL_CERT_FILE="$$cert"; fi
endef

# $(call install,FILE): where uv cannot reach what pip can (a second index, a client certificate, a cache folder
# that cannot be written), pip installs the same files under the same hashes.
define install
@echo "installing $(1)"; $(pip_settings); \
$(UV) pip install --quiet --system-certs --compile-bytecode --python $(BIN)/python \
	--require-hashes --only-binary :all: -r $(1) || { \
echo "uv could not install $(1); trying pip" >&2; \
$(PIP) install --quiet --require-hashes --only-binary :all: -r $(1); }
endef

$(STAMPS)/venv:
	@for python in $(PYTHON) python3.14 python3.13 python3.12 python3.11 ''; do \
		if [ -z "$$python" ]; then \
			echo "Python 3.11 or later was not found. Debian, Ubuntu: apt-get install python3 python3-venv;" \
				"or name one: make PYTHON=/path/to/python3" >&2; exit 1; \
		fi; \
		"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
	done; \
	if ! "$$python" -c 'import venv; from ensurepip import version' 2>/dev/null; then \
		echo "$$python cannot make virtual environments: venv or ensurepip is missing." \
			"Debian, Ubuntu: apt-get install $${python##*/}-venv" >&2; exit 1; \
	fi; \
	echo "making $(VENV) with $$("$$python" -c 'import sys; print(sys.executable, sys.version.split()[0])')"; \
	"$$python" -m venv --clear $(VENV)
	@mkdir -p $(@D) && touch $@

$(STAMPS)/uv: requirements/uv.txt $(STAMPS)/venv
	@echo "installing $<"
	@$(PIP) install --quiet --require-hashes --only-binary :all: -r $<
	@touch $@

$(STAMPS)/run: requirements/run.txt $(STAMPS)/uv
	$(call install,$<)
	@touch $@

# The build backend stands in run.txt: nothing is fetched here.
$(STAMPS)/project: pyproject.toml $(STAMPS)/run
	@echo "installing toolcrib from this checkout"
	@$(UV) pip install --quiet --no-cache --offline --python $(BIN)/python --no-deps --no-build-isolation \
		--reinstall-package toolcrib --editable .
	@touch $@

# Installing builds the native parts; this builds them again when a source is newer, or one of them is gone.
# Which ones there are, hatch_build.py knows and lists in the stamp.
NATIVE := $(shell cat $(STAMPS)/native 2>/dev/null)
$(STAMPS)/native: $(wildcard src/native/*.c src/native/*.h) hatch_build.py \
		$(if $(filter-out $(wildcard $(NATIVE)),$(NATIVE)),rebuild) | $(STAMPS)/project
	@$(BIN)/python hatch_build.py >$@

.PHONY: rebuild
rebuild:

$(STAMPS)/wheels: requirements/wheels.txt $(STAMPS)/dev
	$(call install,$<)
	@touch $@

$(STAMPS)/dev: requirements/dev.txt $(STAMPS)/project | $(STAMPS)/native
	$(call install,$<)
	@touch $@
