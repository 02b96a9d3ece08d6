#!/bin/sh
# after_install.sh MANIFEST: makes the files of the list, written by `cmake --install`, usable. As root it runs the loader's
# ldconfig. If that is not enough, or if PATH lacks the program, it prints the line to type.
set -eu
programs=$(sed -n 's|/couplet$||p' "$1" | grep '/bin$')
libraries=$(sed -n 's|/libcouplet\.so$||p' "$1")

case ":$PATH:" in
    *":$programs:"*) ;;
    *) echo "The shell finds couplet with: export PATH=\"$programs:\$PATH\"" ;;
esac
PATH=$PATH:/usr/sbin:/sbin
command -v ldconfig > /dev/null || exit 0
if [ "$(id -u)" -eq 0 ]; then
    ldconfig
fi
if ldconfig -p | grep -qF "=> $libraries/libcouplet.so"; then
    exit
fi
# ldconfig -v lists each folder as "FOLDER: (from FILE)". sed keeps the folder.
if ldconfig -NXv 2> /dev/null | sed -n 's/:.*//p' | grep -qxF "$libraries"; then
    echo "Programs find the library once root has run: ldconfig"
else
    echo "Programs find the library with: export LD_LIBRARY_PATH=\"$libraries\""
fi
