#!/usr/bin/env bash
# For tests of `rafter serve`: starts and stops a server of $MODEL. A test sets MODEL and sources this
# file after lib.sh. TEMPLATE is the chat template, NAME the name of the model.
export no_proxy=127.0.0.1,localhost
server=

stop_server() { [ -z "$server" ] || { kill -9 "$server"; wait "$server"; } 2>/dev/null; server=; }
trap 'stop_server; rm -rf "$WORK"' EXIT

# serve [OPTIONS]: starts a server at a free port.
serve() {
  stop_server
  rm -f served served.err # the next server has another port
  "$RAFTER" serve $MODEL --port 0 --threads 2 --served-name "${NAME:-tiny}" \
    --template "$DATA/templates/${TEMPLATE:-zephyr}.jinja" "$@" >served 2>served.err &
  server=$!
  for _ in $(seq 1200); do [ -s served ] && break; kill -0 $server 2>/dev/null || break; sleep 0.05; done
  SERVE_URL=$(grep -ohE -m 1 'http://[0-9.:]+' served) ||
    { echo "the server did not start: $(cat served.err)"; exit 1; }
  export SERVE_URL SERVE_PID=$server
}
