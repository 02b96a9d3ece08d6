#!/bin/sh
# Installs the missing packages of the named groups (build, test, more, check, python, package, bare) with apt, and with
# sudo if not root, and names them. Without apt it prints the names. It does nothing if no package is missing.
# The compiler is $CC, or else the first of cc, gcc and clang; gcc if all are missing.
set -eu

commands='g++ make cmake pkg-config python3 clang clang-format clang-tidy chromium curl openssl strace zsh shellcheck'
compiler=${CC:-}
for name in cc gcc clang; do
    [ -n "$compiler" ] || ! command -v "$name" > /dev/null || compiler=$name
done
build='libc6-dev make cmake pkg-config libdnnl-dev libyaml-dev libjansson-dev zlib1g-dev
       libpcre2-dev libzstd-dev libutf8proc-dev libxxhash-dev libmd-dev libcurl4-openssl-dev'
clang=clang
if [ -z "$compiler" ]; then
    build="gcc $build"
elif $compiler --version 2> /dev/null | grep -q clang; then
    build="$build libomp-dev" clang=$compiler
fi
test='g++ python3 python3-numpy libcmocka-dev openmpi-bin libopenmpi-dev curl openssl dpkg-dev gzip'
more='chromium mpich libmpich-dev nginx-light strace zsh man-db shellcheck' # without them a few tests are skipped
check='clang clang-format clang-tidy libomp-dev'
python='python3 python3-venv'
package='dpkg-dev gzip libopenmpi-dev libmpich-dev'
bare='debootstrap lintian'

# Commands may be installed by other means. Libraries must be installed as packages, except clang's OpenMP: each
# version of clang has one in a package of its own.
is_there() {
    case " $commands " in
        *" $1 "*) command -v "$1" > /dev/null && return ;;
    esac
    case $1 in
        python3-venv) python3 -c 'import ensurepip' 2> /dev/null && return ;;
        nginx-light) PATH="$PATH:/usr/sbin" command -v nginx > /dev/null && return ;;
        man-db) command -v man > /dev/null && return ;;
        g++) command -v clang++ > /dev/null && return ;;
        libomp-dev) echo '#include <omp.h>' | $clang -fopenmp -fsyntax-only -x c - 2> /dev/null && return ;;
    esac
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2> /dev/null)" = installed ]
}

wanted=
for group in "${@:-build}"; do
    case $group in
        build) wanted="$wanted $build" ;;
        test) wanted="$wanted $test" ;;
        more) wanted="$wanted $more" ;;
        check) wanted="$wanted $check" ;;
        python) wanted="$wanted $python" ;;
        package) wanted="$wanted $package" ;;
        bare) wanted="$wanted $bare" ;;
        *) echo "deps.sh: there is no group $group; there are build, test, more, check, python, package, bare" >&2; exit 2 ;;
    esac
done

if ! command -v apt-get > /dev/null || ! command -v dpkg-query > /dev/null; then
    command -v cmake > /dev/null && command -v pkg-config > /dev/null && exit 0
    echo "This system has no apt. Install what these Debian packages hold:" $wanted >&2
    exit 1
fi

missing=
for package in $wanted; do
    case " $missing " in *" $package "*) continue ;; esac
    is_there "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

sudo=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo > /dev/null || { [ ! -t 0 ] && ! sudo -n true 2> /dev/null; }; then
        echo "Become root and run: apt-get update && apt-get install$missing" >&2
        exit 1
    fi
    sudo=sudo
fi
echo "Installing with apt${sudo:+ and sudo}:$missing"
apt_get="$sudo env DEBIAN_FRONTEND=noninteractive apt-get -q"
if ! $apt_get update < /dev/null ||
   ! $apt_get install -y --no-install-recommends $missing < /dev/null; then
    echo "apt could not install them. Try: apt-get update && apt-get install$missing" >&2
    exit 1
fi
