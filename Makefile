# The front door. Everything is built by CMake; `make help` lists what stands here.
JOBS    ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX  ?= /usr/local
DESTDIR ?=
SECONDS ?= 60
SOURCES  = $(shell git ls-files '*.c' '*.h' 2>/dev/null || find src include tests bench -name '*.[ch]')

.PHONY: release deps demo test python fuzz bench experiments check install clean help

release: ## builds the program, build/release/couplet
	@cmake --preset release -DCMAKE_INSTALL_PREFIX=$(PREFIX) > /dev/null
	@cmake --build --preset release --parallel $(JOBS)

deps: ## installs what is missing (apt), or says what to install
	@tools/deps.sh build test

demo: ## installs what is missing, builds, trains on the corpus in data/, shows what came out
	@tools/deps.sh build
	@$(MAKE) --no-print-directory release
	@tools/demo.sh

test: ## installs what is missing, builds with sanitizers, runs every test
	@tools/deps.sh build test
	@cmake --preset dev > /dev/null
	@cmake --build --preset dev --parallel $(JOBS)
	@python3 tools/run_tests.py build/dev $(JOBS)

python: ## makes build/venv with PyTorch (some gigabytes) and runs the tests of the Python package in it
	@python3 tools/run_python_tests.py prepare build/venv
	@python3 tools/run_python_tests.py run build/venv

fuzz: ## damages files for SECONDS (60) in each of the fuzzing tests, with sanitizers
	@tools/deps.sh build test
	@cmake --preset dev > /dev/null
	@cmake --build --preset dev --parallel $(JOBS)
	@for program in build/dev/tests/*_fuzz; do \
	    COUPLET_FUZZ_SECONDS=$(SECONDS) $$program || exit 1; done

bench: release ## prints what is measured beside the plain product, in the same run
	@for program in build/release/bench/*; do [ ! -x $$program ] || $$program || exit 1; done

experiments: release ## makes the runs of experiments/ that are missing; ONLY=alpha, JOBS=1, MEASURE=1
	@python3 tools/experiments.py build/release/couplet --jobs $(JOBS) \
	    $(if $(ONLY),--only $(ONLY)) $(if $(MEASURE),--measure)

check: ## format, clang without warnings, floors, headers, map, formats
	@tools/deps.sh build test check
	@clang-format --dry-run -Werror $(SOURCES)
	@cmake --preset clang > /dev/null
	@cmake --build --preset clang --parallel $(JOBS)
	@python3 tools/check_layers.py
	@python3 tools/check_headers.py
	@python3 tools/check_map.py
	@python3 tools/check_formats.py

install: release ## puts program, libraries, header, manual and completion under PREFIX (DESTDIR)
	@DESTDIR=$(DESTDIR) cmake --install build/release

clean: ## removes build/
	@rm -rf build

help: ## prints this
	@sed -n 's/^\([a-z]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name what; do \
	    printf '  make %-11s %s\n' "$$name" "$$what"; done
