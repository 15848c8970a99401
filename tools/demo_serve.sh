#!/usr/bin/env bash
# demo_serve.sh RAFTER MODEL MACHINE - the end of the demo: starts a server, asks it with curl and
# stops it. A model with a chat template gets a question, another model a text to continue.
set -euo pipefail
rafter=$1 model=$2 machine=$3
folder=$(mktemp -d)
serve=("$rafter" serve "$model" --on "$machine")
path=/v1/completions
body='{"prompt": "And the LORD said unto ", "max_tokens": 60, "temperature": 0.5, "seed": 1}'
case $model in
*smollm2*)
  serve+=(--batch 4 --seq 2k)
  path=/v1/chat/completions
  body='{"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}' ;;
esac
"${serve[@]}" --port 0 --served-name demo >"$folder/out" 2>"$folder/err" &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
for _ in $(seq 1200); do
  [ ! -s "$folder/out" ] && kill -0 $server 2>/dev/null || break
  sleep 0.1
done
url=$(grep -om 1 'http://[0-9.:]*' "$folder/out") || { cat "$folder/err" >&2; exit 1; }
printf '$ %s &\n' "${serve[*]} --port ${url##*:} --served-name demo"
head -1 "$folder/out"
printf "$ curl -s %s -d '%s'\n" "$url$path" "$body"
curl -sS --fail-with-body --noproxy '*' "$url$path" -d "$body"
kill "$server"
wait "$server" || true
printf '\nThe server has stopped. To chat with it on its page, start it again, and open the address\n'
printf 'that it prints in a browser:\n  %s\n' "${serve[*]}"
