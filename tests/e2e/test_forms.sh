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

# The options of generate and chat.
case_options() {
  local template=$DATA/templates/chatml.jinja
  local all=(--threads 2 --prompt x --chat --max-tokens 60 --json --template "$template")
  local ask=("$RAFTER" generate $MODEL "${all[@]}")
  echo '{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}' >schema
  status 0 "${ask[@]}" --json-schema schema --ignore-eos &&
    holds out 'd["finish_reason"] == "stop" and json.loads(d["text"])["a"] in (1, 2)'
  status 0 "${ask[@]}" --regex '(ab|c){3}' &&
    holds out '__import__("re").fullmatch("(ab|c){3}", d["text"]) is not None'
  status 0 "${ask[@]}" --choice red --choice green --samples 4 --seed 3 &&
    holds out 'all(r["text"] in ("red", "green") for r in rows)'
  printf '{"prompt": "a"}\n{"messages": [{"role": "user", "content": "b"}], "samples": 2}\n' >prompts
  status 0 "${ask[@]:0:3}" --threads 2 --input prompts --template "$template" --regex 'x{2,3}' --json &&
    holds out 'len(rows) == 3 and all(r["text"] in ("xx", "xxx") for r in rows)'
  status 0 "$RAFTER" chat $MODEL --threads 2 --template "$template" --choice blue --json \
    <<<'Which colour?' && holds out 'd["text"] == "blue"'
  refuses 2 'an answer has one form \(got --json-schema and --choice\)' \
    "${ask[@]}" --choice a --json-schema schema
  refuses 2 'lookahead is not supported .*--regex' "${ask[@]}" --regex '(?=x)'
  refuses 1 'gone' "${ask[@]}" --json-schema gone
  echo '{"not": {}}' >schema
  refuses 2 '"not" is not supported \(at #\) \(--json-schema\)' "${ask[@]}" --json-schema schema
  head -c 300000 /dev/zero | tr '\0' ' ' >schema
  refuses 1 'schema' "${ask[@]}" --json-schema schema
}

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
