#!/usr/bin/env bash
# The demo: real English text, this machine measured, a small GPT planned, trained for two minutes, and heard.
set -euo pipefail
cd "$(dirname "$0")/.."
rafter=$PWD/build/rafter
work=build/demo
seconds=${DEMO_TRAIN_SECONDS:-120}
mkdir -p "$work"
export XDG_CACHE_HOME=$PWD/build/demo/cache

step() { printf '\n\033[1m%s\033[0m\n' "$*"; }

step '1. A real English text: the King James Bible of the Debian package bible-kjv-text'
bible -f gen1:1-rev22:21 2>/dev/null | sed -E 's/^[0-9A-Za-z]+[0-9]+:[0-9]+ //' >"$work/bible.txt"
printf '%s bytes; it begins: %s\n' "$(stat -c %s "$work/bible.txt")" "$(head -c 70 "$work/bible.txt")"

step '2. What this machine can do (rafter calibrate)'
"$rafter" calibrate

model='gpt:layers=4,width=256,heads=4,ff=1024,vocab=256,seq=128'
settings=(--batch 16 --seq 128 --dtype f32)
step "3. The plan, before anything runs (rafter plan $model --job train ${settings[*]})"
"$rafter" plan "$model" --job train "${settings[@]}"

step "4. Training for $seconds seconds (rafter train)"
rm -rf "$work/run"
"$rafter" train "$model" "${settings[@]}" --data "$work/bible.txt" --val-fraction 0.02 --val-every 200 --steps 100000 --lr 2e-3 --schedule warmup-cosine --warmup 50 \
  --max-seconds "$seconds" --out "$work/run"

step '5. What it writes now (rafter generate)'
"$rafter" generate "$work/run" --prompt 'And the LORD said unto ' --max-tokens 400 --temperature 0.7 --top-k 40 --seed 1
printf '\n'
