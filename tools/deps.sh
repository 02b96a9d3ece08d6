#!/bin/sh
# Installs what is missing of the named groups (build, test, check): with apt where there is one,
# with sudo when not root, saying what; elsewhere it prints the names. Does nothing if all is there.
set -eu

commands='gcc g++ make cmake pkg-config python3 clang clang-format'
build='gcc libc6-dev make cmake pkg-config libdnnl-dev libyaml-dev libjansson-dev zlib1g-dev
       libexpat1-dev libzstd-dev libutf8proc-dev libxxhash-dev libmd-dev'
test='g++ python3 libcmocka-dev'
check='clang clang-format libomp-dev'

# A command may have come from elsewhere; a library must be the package.
is_there() {
    case " $commands " in
        *" $1 "*) command -v "$1" > /dev/null ;;
        *) [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2> /dev/null)" = installed ] ;;
    esac
}

wanted=
for group in "${@:-build}"; do
    case $group in
        build) wanted="$wanted $build" ;;
        test) wanted="$wanted $test" ;;
        check) wanted="$wanted $check" ;;
        *) echo "deps.sh: there is no group $group; there are build, test and check" >&2; exit 2 ;;
    esac
done

if ! command -v apt-get > /dev/null || ! command -v dpkg-query > /dev/null; then
    echo "This system has no apt. Install what these Debian packages hold:"
    echo $wanted
    exit 0
fi

missing=
for package in $wanted; do
    is_there "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

sudo=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo > /dev/null; then
        echo "deps.sh: become root and run: apt-get install$missing" >&2
        exit 1
    fi
    sudo=sudo
fi
echo "Installing with apt${sudo:+ and sudo}:$missing"
$sudo env DEBIAN_FRONTEND=noninteractive apt-get update -q < /dev/null
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing \
    < /dev/null
