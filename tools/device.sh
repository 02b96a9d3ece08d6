#!/bin/sh
# device.sh [--short | --part 1|2 | --only STAGE,.. | --from STAGE | --next | --list]: runs the CUDA backend on a
# machine with an NVIDIA GPU and writes a report to OUT (bench/device) as it goes; bench/device/README.md says how.
# PYTHON names the Python to run with, which for the pieces of the Python package has torch. The programs are
# those of `make device-bundle`, build/couplet-device.tar.xz; without it they are built here.
set -eu
cd "$(dirname "$0")/.."
case " $* " in *" --on-host "* | *" --list "*) exec "${PYTHON:-python3}" tools/device.py "$@" ;; esac
if ! nvidia-smi -L 2> /dev/null | grep -q '^GPU '; then
    echo "There is no NVIDIA GPU here: nvidia-smi is missing or lists none. tools/device.sh tests the CUDA backend" \
        "on a machine with one." >&2
    exit 2
fi
archive=build/couplet-device.tar.xz
[ -e "$archive" ] || make device-bundle
[ build/couplet-device/code -nt "$archive" ] || python3 - "$archive" << 'END'
import pathlib, shutil, sys, tarfile
shutil.rmtree("build/couplet-device", ignore_errors=True)
tarfile.open(sys.argv[1]).extractall("build")
pathlib.Path("build/couplet-device/code").touch()
END
exec "${PYTHON:-python3}" tools/device.py "$@"
