#!/bin/sh
# device.sh [--short | --part 1|2 | --only STAGE,.. | --from STAGE | --next | --list]: runs the CUDA backend on a
# machine with an NVIDIA GPU and writes a report to OUT (bench/device) as it goes; bench/device/README.md describes it.
# PYTHON names the Python to run with, which needs torch for the pieces of the Python package. The programs come from
# `make device-bundle`, build/couplet-device.tar.xz.
set -eu
exec "${PYTHON:-python3}" "$(dirname "$0")/device.py" "$@"
