#!/usr/bin/env bash
# serve: requests and answers in OpenAI's shape, errors, clients that leave or do not read, limits,
# keys, signals, and equal bits under load. serve_client.py has the requests.
INSTALLED=${RAFTER_PLUGINS:-$HOME/.cache/rafter-plugins} # lib.sh sets another HOME
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# Random weights and the byte tokenizer. Its long answers take seconds.
MODEL=llama:layers=4,width=128,heads=4,ff=256,vocab=300,seq=4096
. "$(dirname "${BASH_SOURCE[0]}")/lib_serve.sh"

client() { python3 "$HERE/serve_client.py" "$@" >said 2>&1 || fail "$1: $(head -c 1500 said)"; }
# ends STATUS: expects the server to end with this status.
ends() {
  local got=0
  for _ in $(seq 400); do kill -0 $server 2>/dev/null || break; sleep 0.05; done
  ! kill -0 $server 2>/dev/null || fail 'the server still runs'
  wait $server || got=$?
  [ $got = "$1" ] || fail "the server ends with $got, not $1: $(cat served.err)"
  server=
}

case_completions() { serve --batch 4; client completions; }
case_chats() { serve --batch 4; client chats; }
case_logprobs() { serve --batch 2; client logprobs; }
case_forms() {
  NAME=$(printf 'n%.0s' {1..200}) TEMPLATE=qwen2_5 serve --batch 2 --cors '*'
  client forms
}
case_errors() { serve --batch 2 --max-body 512KiB; client errors; }
case_facts() { serve --batch 2; client facts; }
case_disconnects() { serve --batch 2; client disconnects; }
case_slow_readers() { serve --batch 2; client slow_readers; }
case_idle() { serve --batch 1 --idle-timeout 1s; client idle; }
case_queue() { serve --batch 2 --max-queue 1; client queue; }
case_deadline() {
  serve --batch 2 --request-timeout 0.3s --access-log log
  client deadline
  grep -q '"status":504' log || fail "the access log has no 504: $(cat log)"
  ! grep -q '"status":499' log || fail 'the access log says that a client left'
}

# The seed of the command line is that of requests without a seed.
case_seed() {
  local typed
  serve --batch 2 --seed 11
  client seeded
  typed=$(cat said)
  client seeded '{"seed": 11}'
  [ "$(cat said)" = "$typed" ] || fail '--seed 11 and "seed": 11 differ'
}

case_keys() {
  printf '# keys\nfirst\nsecond key\n\n# %0300d\n' 7 >keys # a long comment gives no key
  serve --batch 2 --api-key-file keys --cors https://page.example --strict --access-log log
  client keys
  python3 -c '
import json
rows = [json.loads(line) for line in open("log")]
assert any(r["status"] == 401 and r["path"] == "/v1/models" for r in rows), rows
assert not any("second key" in json.dumps(r) for r in rows), rows
assert any(r["status"] == 200 and r.get("completion_tokens") == 24 for r in rows), rows' ||
    fail 'the access log'
}

case_page() {
  echo first >keys
  serve --batch 1 --api-key-file keys
  client page
}

# Equal bits at 1, 7 and 28 requests at once, with and without cached prefixes.
case_determinism() {
  local first=
  for options in '--batch 8' '--batch 3 --no-prefix-cache' \
    '--batch 8 --prefill-chunk 64 --speculate ngram'; do
    serve $options
    client determinism
    [ -n "$first" ] || first=$(md5sum <answers.json)
    [ "$(md5sum <answers.json)" = "$first" ] || fail "$options changes answers"
  done
}

case_drain() {
  for signal in 15 2; do
    serve --batch 2
    SIGNAL=$signal client drain
    ends 0
    says 'stopping: [0-9]+ requests are open' served.err
  done
}

case_cut() {
  serve --batch 2 --drain-seconds 0.2s
  client cut
  ends 0
}

# The first line has the memory of the plan, to the byte.
case_start() {
  serve --batch 2 --json
  holds served 'd["slots"] == 2 and d["context"] == 4096 and d["model"] == "tiny" and d["kv_bytes"] > 0'
  "$RAFTER" plan $MODEL --job generate --batch 2 --seq 4096 --json >plan.json 2>/dev/null
  local arena planned
  arena=$(ask served 'd["arena_bytes"]')
  planned=$(ask plan.json 'd["memory"]["peak_bytes"]')
  [ "$arena" = "$planned" ] || fail "the arena has $arena bytes, the plan $planned"
  stop_server
  refuses 2 'unknown address \(--host nowhere' "$RAFTER" serve $MODEL --host nowhere.invalid
  refuses 2 'serve runs on the backends cpu and xla, not on reference' \
    "$RAFTER" serve $MODEL --backend reference
  refuses 2 'cannot read the keys in gone' "$RAFTER" serve $MODEL --port 0 --api-key-file gone
  : >empty
  refuses 2 'empty has no key' "$RAFTER" serve $MODEL --port 0 --api-key-file empty
  serve --host 0.0.0.0
  says 'warning: other machines can use this server without a key' served.err
  refuses 1 'cannot serve at 127.0.0.1, port' "$RAFTER" serve $MODEL --port "${SERVE_URL##*:}"
}

# The same server, if a plugin for CPUs is here.
case_xla() {
  local plugin=${RAFTER_PJRT_PLUGIN:-$(find "$INSTALLED" -name xla_cpu_pjrt.so 2>/dev/null | head -1)}
  [ -n "$plugin" ] || {
    echo 'skip: serving with --backend xla needs a PJRT plugin (./dev setup --xla)' >&3
    return 0
  }
  MODEL=llama:layers=2,width=32,heads=2,ff=64,vocab=300,seq=256
  serve --batch 2 --backend xla --plugin "$plugin"
  says 'on the backend xla, the bits of an answer may depend on other requests' served.err
  client xla
  kill -TERM $server
  ends 0
}

cases "$@"
