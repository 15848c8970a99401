#!/usr/bin/env bash
# forms: answers of `rafter serve` that follow JSON schemas, regular expressions and lists.
# forms_client.py has the requests.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export no_proxy=127.0.0.1,localhost
python3 -c 'import jsonschema' 2>/dev/null || { echo 'skip: needs python3-jsonschema'; exit 77; }
# Random weights and the byte tokenizer.
MODEL=llama:layers=2,width=64,heads=2,ff=128,vocab=300,seq=2048
server=

stop_server() { [ -z "$server" ] || { kill -9 "$server"; wait "$server"; } 2>/dev/null; server=; }
trap 'stop_server; rm -rf "$WORK"' EXIT

# serve [OPTIONS]: starts a server at a free port.
serve() {
  stop_server
  rm -f served served.err # the next server has another port
  "$RAFTER" serve $MODEL --port 0 --threads 2 --served-name tiny --template "$DATA/templates/zephyr.jinja" \
    "$@" >served 2>served.err &
  server=$!
  for _ in $(seq 200); do [ -s served ] && break; kill -0 $server 2>/dev/null || break; sleep 0.05; done
  SERVE_URL=$(grep -ohE -m 1 'http://[0-9.:]+' served) ||
    { echo "the server did not start: $(cat served.err)"; exit 1; }
  export SERVE_URL SERVE_PID=$server
}
client() { python3 "$HERE/forms_client.py" "$@" >said 2>&1 || fail "$1: $(tail -c 1500 said)"; }

case_schemas() { serve --batch 4; client schemas; }
case_other_forms() { serve --batch 4; client other_forms; }
case_refused() { serve --batch 2; client refused; }
case_metrics() { serve --batch 4; client metrics; }

# Equal bits with other batches, and with drafted tokens, which the form may bar.
case_equal_bits() {
  local first=
  for options in '--batch 8' '--batch 3 --no-prefix-cache' '--batch 8 --speculate ngram'; do
    serve $options
    client answers
    [ -n "$first" ] || first=$(cat answers)
    [ "$(cat answers)" = "$first" ] || fail "$options changes answers"
  done
}

cases "$@"
