#!/bin/sh
# build.sh PRESET [OPTION...]: configures build/PRESET and builds it with `cmake --build` and its
# OPTIONs (--target NAME). The output is printed if V is set or the build fails. A terminal shows the finished share.
# JOBS: compilers at once. CONFIGURE: options of the configuration. INSTALL_PREFIX: the folder of a later installation.
set -eu
preset=$1
shift
jobs=${JOBS:-$(nproc 2> /dev/null || echo 2)}

case $PWD in # CMake cannot name such a file in what it writes
    *[\"\;\#\*\?\[\]\:\<\>\|\\,]* | *'$('* | *'${'*)
        printf '%s\n' "The path of this folder, $PWD, has a character that CMake cannot build with\
 (\" ; # * ? [ ] : < > | \\ , \$( \${): rename or move the folder." >&2
        exit 1 ;;
esac

build() {
    cmake --preset "$preset" ${INSTALL_PREFIX:+"-DCMAKE_INSTALL_PREFIX=$INSTALL_PREFIX"} ${CONFIGURE:-} &&
        cmake --build --preset "$preset" --parallel "$jobs" "$@"
}

# Passes on the output of CMake, and draws its percentage ("[ 42%] Building ...") on one line of the terminal.
show_share() {
    while IFS= read -r line; do
        printf '%s\n' "$line"
        case $line in
            \[*%\]*) printf '\r\033[K%s build/%s' "${line%%]*}]" "$preset" >&4 ;;
        esac
    done
    printf '\r\033[K' >&4
}

if [ -n "${V:-}" ]; then
    build "$@" -- VERBOSE=1
    exit
fi
mkdir -p build
log=build/$preset.log
[ -e "build/$preset/CMakeCache.txt" ] || echo "Building build/$preset (some minutes; V=1 prints all)"
if [ -t 1 ]; then
    { failed=$({ { build "$@" 2>&1 || echo failed >&3; } | show_share > "$log"; } 3>&1); } 4>&1
else
    failed=
    build "$@" > "$log" 2>&1 || failed=failed
fi
if [ -n "$failed" ]; then
    cat "$log" >&2
    exit 1
fi
grep -A 5 -E ':[0-9]+: warning:' "$log" >&2 || true
