#!/bin/sh
# build.sh PRESET [OPTION...]: configures build/PRESET and builds it with `cmake --build` and its
# OPTIONs (--target NAME). Quiet unless V is set: then, and where it fails, all that was printed.
# JOBS: compilers at once. CONFIGURE: options of the configuration.
set -eu
preset=$1
shift
jobs=${JOBS:-$(nproc 2> /dev/null || echo 2)}

build() {
    cmake --preset "$preset" ${CONFIGURE:-} && cmake --build --preset "$preset" --parallel "$jobs" "$@"
}

if [ -n "${V:-}" ]; then
    build "$@" -- VERBOSE=1
    exit
fi
mkdir -p build
log=build/$preset.log
[ -e "build/$preset/CMakeCache.txt" ] || echo "Building build/$preset (some minutes; V=1 prints all)"
if ! build "$@" > "$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
grep -A 5 -E ':[0-9]+: warning:' "$log" >&2 || true
