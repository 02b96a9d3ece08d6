#!/bin/sh
# demo.sh COUPLET [SETTING...]: trains configs/tiny.yaml on the text in data/ twice, without and with
# the coupling loss, and compares the two models. `make demo` calls it after the build. The runs
# go to runs/demo (RUNS names another folder). If a run exists, the new one gets another number.
set -eu
cd "$(dirname "$0")/.."
couplet=$1
shift
steps="train.steps=350 train.warmup_steps=35 checkpoint.every=350" # a minute or two each
runs=${RUNS:-runs/demo}
if [ -e "$runs" ]; then
    n=2
    while [ -e "$runs-$n" ]; do n=$((n + 1)); done
    runs=$runs-$n
fi

train() { # NAME SETTING...
    name=$1
    shift
    for setting; do set -- "$@" --set "$setting"; shift; done
    "$couplet" train configs/tiny.yaml --out "$runs/$name" "$@"
}

"$couplet" version | sed -n 's/^processor  */Processor: /p'
echo
echo "1 of 2: a Mixture-of-Experts model without the coupling loss (erc.weight=0)"
echo
train vanilla $steps "$@" erc.weight=0
echo
echo "2 of 2: the same model, data and steps, with the coupling loss"
echo
train coupled $steps "$@"
echo
echo "A sample of its text, as far as a model of this size and a minute or two go:"
echo
"$couplet" generate "$runs/coupled" --prompt "The history of the" --tokens 60 --temperature 0.7 \
    --top-p 0.9 --seed 1
echo
echo
"$couplet" inspect "$runs/vanilla" "$runs/coupled" --html "$runs/inspect.html" \
    > "$runs/inspect.txt" 2> "$runs/inspect.log" || { cat "$runs/inspect.log" >&2; exit 1; }
rm -f "$runs/inspect.log"
sed -n '/^Side by side/,$p' "$runs/inspect.txt"
echo
echo "Every layer is in $runs/inspect.txt."
echo "To train the second model longer:"
echo "    $couplet train --resume $runs/coupled --set train.steps=1200"
