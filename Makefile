# The main commands. CMake builds everything; `make help` lists the targets.
JOBS    ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX  ?= /usr/local
DESTDIR ?=
SECONDS ?= 60
KILLS   ?= $(if $(filter faults-ranks,$(MAKECMDGOALS)),100,1000)
FILES   ?= 10000
PAIRS   ?= 5
SHARE   ?= $(if $(filter faults-ranks,$(MAKECMDGOALS)),20,1)
MEMORY  ?= 0
SOURCES  = $(shell git ls-files '*.c' '*.h' 2>/dev/null || find src include tests bench -name '*.[ch]')

.PHONY: release cuda device-bundle device-bare deps deps-all demo test further far python python-matrix python-recipes wheels wheels-bare package package-bare bare-readme fuzz races coverage faults faults-ranks net-ranks bench experiments finding scale check install clean help
export JOBS V DESTDIR

release: ## builds the program, build/release/couplet (V=1 prints every command)
	@tools/deps.sh build
	@tools/build.sh release
release: export INSTALL_PREFIX = $(PREFIX)

deps: ## installs missing packages (apt), or lists what to install
	@tools/deps.sh build test

deps-all: ## also what few tests and targets need: browser, second MPI, nginx, clang, Python, debootstrap
	@tools/deps.sh build test more check python package bare

demo: ## installs missing packages, builds, trains with and without the coupling loss, compares; SETTINGS="train.steps=20"
	@tools/deps.sh build
	@tools/build.sh release --target couplet
	@tools/demo.sh build/release/couplet $(SETTINGS)

test: ## installs missing packages, builds with sanitizers, runs every test that can run here
	@tools/deps.sh build test
	@tools/build.sh dev --target all bench
	@python3 tools/run_tests.py build/dev $(JOBS)

further: ## runs the tests on the larger reference data (folder COUPLET_SHARED, default ../shared)
	@tools/deps.sh build test
	@tools/build.sh dev
	@python3 tools/run_tests.py build/dev $(JOBS) further

far: ## runs the tests on memory that the host cannot reach, with work that is done late (about ten minutes)
	@tools/deps.sh build test
	@tools/build.sh dev
	@python3 tools/run_tests.py build/dev $(JOBS) far

python: ## makes build/venv with PyTorch (some gigabytes) and runs the tests of the Python package in it
	@tools/deps.sh build python
	@python3 tools/run_python_tests.py prepare build/venv
	@python3 tools/run_python_tests.py run build/venv

python-matrix: ## runs the Python tests with PyTorch 2.4, 2.6 and the newest, Transformers 4.5x and 5; ROWS=oldest
	@tools/deps.sh build python
	@python3 tools/python_matrix.py build/matrix $(ROWS)

wheels: ## makes the packages for pip, build/wheels: couplet, and couplet_native with every library in it
	@tools/deps.sh build python
	@python3 tools/make_wheels.py build/wheels

wheels-bare: wheels ## installs them into a root that has nothing but Python, and runs program and operator there
	@tools/deps.sh python
	@python3 tests/bare/check_bare_wheels.py build/wheels build/bare

package: ## makes Debian packages and a tarball that brings its libraries, build/packages
	@tools/deps.sh build package
	@tools/package.sh build/packages

package-bare: package ## installs them into a bare Debian 12 (debootstrap; needs root) and runs them there; lintian
	@tools/deps.sh python bare
	@python3 tests/bare/check_bare_packages.py build/packages build/bare-debian

bare-readme: ## types every line of README.md in a bare Debian 12 (debootstrap; needs root), as root and as a user
	@tools/deps.sh python bare
	@python3 tests/bare/readme.py build/bare-readme

python-recipes: ## runs examples/recipes with each trainer's package (downloads some gigabytes); ONLY="trl lightning"
	@tools/deps.sh python
	@python3 tools/run_python_tests.py prepare build/venv
	@python3 tools/run_recipes.py build/venv build/recipes $(ONLY)

fuzz: ## runs each fuzzing test and each target of libFuzzer for SECONDS (60) on damaged files, with sanitizers
	@tools/deps.sh build test check
	@tools/build.sh fuzz --target fuzz_targets
	@python3 tests/fuzz/run.py fuzz build/fuzz/tests/fuzz_targets --seconds $(SECONDS) --jobs $(JOBS)
	@tools/build.sh dev
	@for program in build/dev/tests/*_fuzz; do \
	    COUPLET_FUZZ_SECONDS=$(SECONDS) $$program || exit 1; done

races: ## runs tests of threads under clang's ThreadSanitizer, with LLVM's OpenMP; ALL=1: the slow ones too
	@tools/deps.sh build test check
	@tools/build.sh races --target RACES$(if $(ALL),_ALL)
	@TSAN_OPTIONS="ignore_noninstrumented_modules=1 die_after_fork=0" \
	    python3 tools/run_tests.py build/races $(JOBS) RACES$(if $(ALL),_ALL)

coverage: ## prints which share of the lines of src the tests run, by gcov, and functions that none calls; ONLY=REGEX of tests
	@tools/deps.sh build test
	@tools/build.sh coverage
	@find build/coverage -name '*.gcda' -delete
	@ctest --test-dir build/coverage -j $(JOBS) -LE '^(further|far)$$' -E '^(faults|install)' $(if $(ONLY),-R '$(ONLY)') || \
	    echo "Tests failed. Those that limit the size of files fail here: gcov writes files too."
	@python3 tools/coverage.py build/coverage

faults: ## tests every failing call (SHARE=K: each K-th), KILLS kills (1000), FILES damaged files (10000)
	@tools/deps.sh build test
	@tools/build.sh dev --target couplet faults faults_damage faults_program
	@python3 tests/faults/check_faults.py build/dev/faults/couplet build/dev/tests/faults.so --all \
	    --share $(SHARE) --memory-share $(MEMORY) --jobs $(JOBS)
	@python3 tests/faults/check_kills.py build/dev/faults/couplet build/dev/tests/faults.so \
	    --kills $(KILLS) --jobs $(JOBS)
	@python3 tests/faults/check_damage.py build/dev/couplet build/dev/tests/faults_damage \
	    --files $(FILES) --jobs $(JOBS)

faults-ranks: ## kills a rank of 2 or 4 at random moments, KILLS times (100); fails each SHARE-th (20) of its calls
	@tools/deps.sh build test
	@tools/build.sh dev --target couplet faults faults_program
	@python3 tests/cli/ranks/kill_ranks.py build/dev/faults/couplet --kills $(KILLS)
	@python3 tests/faults/check_ranks.py build/dev/faults/couplet build/dev/tests/faults.so --all \
	    --share $(SHARE) --jobs $(JOBS)

net-ranks: ## two ranks on two hosts (network namespaces, needs root) that a slow link joins; PAIRS (5) of runs measured
	@tools/deps.sh build test
	@tools/build.sh release --target couplet
	@python3 tests/cli/ranks/net_ranks.py build/release/couplet --pairs $(PAIRS)

cuda: ## builds couplet-cuda.so beside the program, by nvcc, for training on a GPU
	@tools/deps.sh build
	@tools/build.sh release --target couplet cuda
	@ls -l build/release/couplet-cuda.so

device-bundle: ## packs what tools/device.sh runs on a machine with a GPU, build/couplet-device.tar.xz (needs nvcc)
	@tools/deps.sh build test
	@CONFIGURE="-DCOUPLET_DEVICE=$(or $(MODULE),gpu)" tools/build.sh device --target device_programs
	@rm -rf build/couplet-device build/couplet-device.tar.xz
	@cmake --install build/device --component device --strip --prefix build/couplet-device > build/device-bundle.log
	@{ git rev-parse HEAD 2> /dev/null || echo unknown; } > build/couplet-device/commit
	@$(if $(filter host,$(MODULE)),echo emulation,python3 tools/device.py --code) > build/couplet-device/code
	@tar -C build -cJf build/couplet-device.tar.xz couplet-device
	@touch build/couplet-device/code
	@wc -c build/couplet-device.tar.xz
	@test $$(wc -c < build/couplet-device.tar.xz) -le 12582912 || { rm build/couplet-device.tar.xz; \
	    echo "build/couplet-device.tar.xz would be larger than 12 MiB, the limit of an archive that travels" \
	        "with a checkout: it is removed." >&2; exit 1; }

device-bare: ## runs that archive, with the emulation in it, in a root that has glibc alone (needs root)
	@tools/deps.sh build test bare
	@$(MAKE) device-bundle MODULE=host
	@python3 tests/bare/check_bare_device.py build/couplet-device.tar.xz build/bare-device
	@rm build/couplet-device.tar.xz

bench: ## measures speed against the plain matrix product, in the same run
	@tools/deps.sh build
	@tools/build.sh release --target bench couplet
	@for program in $$(find build/release/bench -maxdepth 1 -type f -perm -u+x | sort); do $$program || exit 1; done
	@python3 bench/remote.py build/release/couplet

build/plot/bin/python:
	@tools/deps.sh python
	@python3 -m venv build/plot && build/plot/bin/pip install -q 'matplotlib>=3.7'

finding: release build/plot/bin/python ## trains two models, without and with the loss, and prints the figures of docs/findings.md beside the recorded ones
	@build/plot/bin/python experiments/tools/finding.py build/release/couplet

experiments: release build/plot/bin/python ## makes the missing runs of experiments/; ONLY=alpha, RUNS=a-, JOBS=1, MEASURE=1, AGAIN=1, WEIGHTS=1
	@build/plot/bin/python experiments/tools/make.py build/release/couplet --jobs $(JOBS) \
	    $(if $(ONLY),--only $(ONLY)) $(if $(RUNS),--runs $(RUNS)) $(if $(AGAIN),--again) $(if $(WEIGHTS),--weights) $(if $(MEASURE),--measure)

scale: release build/plot/bin/python ## makes the tables and charts of docs/scale.md from `couplet plan`
	@build/plot/bin/python tools/scale.py build/release/couplet

check: races ## checks format, clang warnings, clang-tidy, races of threads, order of rooms, headers, map of the source, documented formats, Python's table, sizes, subjects of commits
	@tools/deps.sh build test check
	@clang-format --dry-run -Werror $(SOURCES)
	@[ -x build/ruff/bin/ruff ] || { python3 -m venv build/ruff && \
	    build/ruff/bin/pip install -q "ruff$$(sed -n 's/^required-version = "\(.*\)"/\1/p' ruff.toml)"; }
	@build/ruff/bin/ruff format --check -q && build/ruff/bin/ruff check -q
	@tools/build.sh clang --target all bench
	@git ls-files 'src/*.c' | xargs -P $(JOBS) -n 8 clang-tidy -p build/clang --quiet > build/clang-tidy.log 2>&1 || \
	    { cat build/clang-tidy.log; exit 1; }
	@python3 tools/check_layers.py build/clang
	@python3 tools/check_headers.py
	@python3 tools/check_map.py
	@python3 tools/check_prose.py
	@python3 tools/check_formats.py
	@python3 tools/make_families_json.py --check
	@python3 tools/make_defaults_json.py --check
	@python3 tools/check_size.py
	@python3 tools/check_commits.py

install: release ## installs program, libraries, header, manual and completion under PREFIX (DESTDIR)
	@cmake --install build/release
	@[ -n "$$DESTDIR" ] || tools/after_install.sh build/release/install_manifest.txt

clean: ## removes build/
	@rm -rf build

help: ## prints this
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name what; do \
	    printf '  make %-14s %s\n' "$$name" "$$what"; done
