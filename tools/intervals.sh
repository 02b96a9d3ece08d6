#!/bin/sh
# intervals.sh BUILD [LAYERS]: how often the intervals of `inspect --sample` hold, on LAYERS (1000) random
# layers of each kind and on as many samples of layers that are trained here, once, into
# BUILD/intervals. Prints the tables of docs/sampling.md.
set -eu
build=$1
layers=${2:-1000}
runs=$build/intervals

# NAME SETTING...: four layers of 16 experts of 1,024 rows; minutes each.
train() {
    name=$1
    shift
    [ -e "$runs/$name/last/model.safetensors" ] && return
    echo "Training $runs/$name" >&2
    rm -rf "$runs/$name"
    "$build/couplet" train configs/tiny.yaml --out "$runs/$name" --set model.hidden_size=64 \
        --set model.intermediate_size=1024 --set train.steps=250 --set train.warmup_steps=25 \
        --set checkpoint.every=250 --set eval.every=250 "$@" > "$runs/$name.log" 2>&1
}

train without --set erc.weight=0 --set train.seed=1
train alpha-0.5 --set erc.alpha=0.5 --set train.seed=2
train alpha-1 --set erc.alpha=1 --set train.seed=1
train alpha-2 --set erc.alpha=2 --set train.seed=3
"$runs/row_coverage" "$layers"
"$runs/row_coverage" "$layers" "$runs/without" "$runs/alpha-0.5" "$runs/alpha-1" "$runs/alpha-2"
