#!/usr/bin/env bash
# forms: answers of `rafter serve` that follow JSON schemas, regular expressions and lists.
# forms_client.py has the requests.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
python3 -c 'import jsonschema' 2>/dev/null || { echo 'skip: needs python3-jsonschema'; exit 77; }
# Random weights and the byte tokenizer.
MODEL=llama:layers=2,width=64,heads=2,ff=128,vocab=300,seq=2048
. "$(dirname "${BASH_SOURCE[0]}")/lib_serve.sh"

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
