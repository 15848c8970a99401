#!/usr/bin/env bash
# serve with several LoRA adapters: equal bits in any mix, loading and unloading while answers run,
# and bad adapters. adapters_client.py has the requests.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
MODEL=base
. "$(dirname "${BASH_SOURCE[0]}")/lib_serve.sh"

TUNE=(--threads 2 --batch 4 --seq 32 --data book.txt --val-every 0 --lr 3e-2 --steps 6)
setup() {
  text book.txt 20000
  status 0 "$RAFTER" train llama:layers=2,width=32,heads=4,kv_heads=2,ff=48,vocab=300,seq=256 \
    "${QUICK[@]}" --seq 32 --data book.txt --steps 2 --val-every 0 --out run
  cp -r run/checkpoint-*2 base
  mkdir tuned
  status 0 "$RAFTER" train base "${TUNE[@]}" --lora rank=4,alpha=64,targets=q,v,down --out tuned/some
  status 0 "$RAFTER" train base "${TUNE[@]}" --lora rank=8,alpha=64 --out tuned/all
}

client() { python3 "$HERE/adapters_client.py" "$@" >said 2>&1 || fail "$1: $(head -c 1500 said)"; }
both=(--adapters some=tuned/some --adapters all=tuned/all)

# The tokens and log-probabilities are those of `generate --adapter`.
case_generate() {
  local asked=(--tokens 5,9,3 --max-tokens 12 --seq 256 --temperature 0 --ignore-eos --json)
  status 0 "$RAFTER" generate base "${asked[@]}" && cp out none.json
  for name in some all; do
    status 0 "$RAFTER" generate base --adapter tuned/$name "${asked[@]}" && cp out $name.json
  done
  serve --batch 4 --seq 256 "${both[@]}"
  client as_generated
}

# Equal bytes at 1, 7 and 28 requests at once, for base and adapters, whatever else is in the batch.
case_determinism() {
  serve --batch 8 --seq 256
  client alone
  mv answers.json base.json
  local first=
  for options in '--batch 8' '--batch 3 --no-prefix-cache' '--batch 8 --prefill-chunk 16 --speculate ngram' \
    '--batch 7 --adapter-slots 9 --adapter-rank 20'; do
    serve --seq 256 $options "${both[@]}"
    client mixed
    [ -n "$first" ] || first=$(md5sum <answers.json)
    [ "$(md5sum <answers.json)" = "$first" ] || fail "$options changes answers"
  done
}

# An adapter that `train --lora` writes is served without a restart, by the script of docs/serve.md.
case_new() {
  mkdir models bin
  ln -s ../base models/base
  ln -s "$RAFTER" bin/rafter
  ln -s tuned adapters
  cp book.txt texts.txt
  serve --batch 2 --seq 256 --adapter-folder adapters
  client before_training
  sed -n '/^set -e$/,/^```$/p' "$HERE/../../docs/serve.md" | grep -v '^```' |
    sed "s#http://127.0.0.1:8000#$SERVE_URL#; s/rank=16/rank=16,alpha=640/" |
    sed 's/--steps 200/--steps 6 --lr 3e-2 --seq 32 --threads 2/' >script.sh
  says '/v1/load_lora_adapter' script.sh
  status 0 env PATH="$PWD/bin:$PATH" bash script.sh && says "LoRA adapter 'mine' added successfully" out
  client fresh
}

case_unload() {
  serve --batch 2 --seq 256 --adapter-folder tuned --adapter-slots 1 --adapter-rank 8
  client unload
}

case_errors() {
  cp -r tuned/all/checkpoint-*6 tuned/cut
  truncate -s 5000 tuned/cut/adapter_model.safetensors
  mkdir tuned/empty outside
  cp -r tuned/some/checkpoint-*6 outside/some
  ln -s ../outside/some tuned/link
  status 0 "$RAFTER" train llama:layers=2,width=48,heads=4,ff=48,vocab=300,seq=64 "${QUICK[@]}" --seq 32 \
    --data book.txt --steps 1 --val-every 0 --lora rank=2 --out tuned/foreign
  serve --batch 2 --seq 256 --adapter-folder tuned --adapter-rank 6 --adapters some=tuned/some
  client errors "$WORK"
  serve --batch 2 --seq 256 --adapters some=tuned/some
  client off
}

# The memory is that of the plan, to the byte. Options that do not fit are refused before loading.
case_start() {
  serve --batch 2 --seq 256 --json "${both[@]}" --adapter-slots 5
  holds served 'd["adapters"] == 2 and d["adapter_slots"] == 5'
  "$RAFTER" plan base --job generate --batch 2 --seq 256 --adapter-slots 5 --adapter-rank 8 --json >plan.json
  holds plan.json 'd["memory"]["by_class"]["adapter"] > 0'
  local arena planned
  arena=$(ask served 'd["arena_bytes"]')
  planned=$(ask plan.json 'd["memory"]["peak_bytes"]')
  [ "$arena" = "$planned" ] || fail "the arena has $arena bytes, the plan $planned"
  stop_server
  local start=("$RAFTER" serve base --port 0 --seq 64)
  refuses 2 '--adapters is not NAME=DIR' "${start[@]}" --adapters tuned/some
  refuses 2 'more adapters than slots' "${start[@]}" "${both[@]}" --adapter-slots 1
  refuses 2 'a larger rank.*expected 8 or more, got 4' "${start[@]}" "${both[@]}" --adapter-rank 4
  refuses 2 'two adapters have one name' "${start[@]}" --adapters x=tuned/some --adapters x=tuned/all
  refuses 2 'an adapter has the name of the model' "${start[@]}" --adapters base=tuned/some
  refuses 2 'without an adapter of its own' "${start[@]}" --adapter tuned/some --adapters x=tuned/all
  refuses 1 'adapter_config.json' "${start[@]}" --adapters x=run
  refuses 2 'slots for adapters need one chip' "$RAFTER" plan base --job generate --adapter-slots 2 \
    --mesh tensor=2 --on a100-80g:2
  refuses 2 'adapter-slots has no effect with --job train' "$RAFTER" plan base --adapter-slots 2
}

cases "$@"
