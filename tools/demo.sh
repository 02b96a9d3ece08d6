#!/bin/sh
# demo.sh - trains configs/tiny.yaml on the text in data/, shows what came out, and generates a sample.
# Called by `make demo` after the build. The run goes to runs/demo; one that is there already is
# kept under another name.
set -e
cd "$(dirname "$0")/.."
couplet=build/release/couplet
run=runs/demo
if [ -e "$run" ]; then
    n=1
    while [ -e "$run-$n" ]; do n=$((n + 1)); done
    run=$run-$n
fi

echo "Training a Mixture-of-Experts model with the coupling loss: configs/tiny.yaml -> $run"
echo
"$couplet" train configs/tiny.yaml --out "$run"
[ -L "$run/last" ] || exit 1

echo
echo "A sample, as far as a model of this size and a few minutes go:"
echo
"$couplet" generate "$run" --prompt "The history of the" --tokens 80 --temperature 0.7 --top-p 0.9 --seed 1
echo
echo
echo "The run is $run. It goes on with:"
echo "    $couplet train --resume $run --set train.steps=2000"
