#!/bin/sh
# package.sh OUT: makes the Debian packages couplet, libcouplet0 and libcouplet-dev, and the tarball, in OUT. With nvcc it
# also makes couplet-cuda, whose module is then in the tarball too. The tarball brings its libraries and is linked for
# them. Everything else is compiled once. Dates are the date of the last commit.
set -eu
out=$PWD/$1
if [ -z "${SOURCE_DATE_EPOCH:-}" ] && date=$(git log -1 --format=%ct 2> /dev/null); then
    export SOURCE_DATE_EPOCH="$date"
fi

pack() { # KIND LIBRARIES BUNDLE
    CONFIGURE="-DCMAKE_INSTALL_LIBDIR=$2 -DCOUPLET_BUNDLE=$3" tools/build.sh package
    ! grep -q '^COUPLET_NVCC:.*=/' build/package/CMakeCache.txt || tools/build.sh package --target cuda
    if ! said=$(cpack --config build/package/CPackConfig.cmake -G "$1" -B "$out" 2>&1); then
        echo "$said" >&2
        exit 1
    fi
}

rm -rf "$out"
pack DEB "lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)" OFF
pack TGZ lib ON
rm -rf "$out/_CPack_Packages"
ls "$out"/couplet-cuda_*.deb > /dev/null 2>&1 || echo "couplet-cuda is left out: there is no nvcc, of CUDA 13, in PATH"
(cd "$out" && wc -c -- *.deb *.tar.gz | sed '$d')
