#!/usr/bin/env bash
# tools: calls of tools through `rafter serve`, in the formats of several chat templates.
# tools_client.py has the requests.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# Random weights and the byte tokenizer: calls come from forms.
MODEL=llama:layers=2,width=64,heads=2,ff=128,vocab=300,seq=8192
. "$(dirname "${BASH_SOURCE[0]}")/lib_serve.sh"

client() { python3 "$HERE/tools_client.py" "$@" >said 2>&1 || fail "$1, $TEMPLATE: $(tail -c 1500 said)"; }

case_formats() {
  for TEMPLATE in qwen2_5 qwen3 llama3_1 mistral_tools; do
    serve --batch 4 --seq 8192
    client formats $TEMPLATE
  done
}

case_strict() {
  TEMPLATE=llama3_1
  serve --batch 4 --seq 8192
  client strict
}

# Prompts equal those of Jinja2 (tests/data/templates/golden.json).
case_prompts() {
  for TEMPLATE in qwen2_5 qwen3; do
    serve --batch 1 --seq 8192
    client prompts "$DATA/templates/golden.json" $TEMPLATE
  done
}

case_refused() {
  TEMPLATE=qwen2_5
  serve --batch 2 --seq 8192
  client refused
  TEMPLATE=chatml
  serve --batch 2
  client no_tools
}

cases "$@"
