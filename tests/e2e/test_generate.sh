#!/usr/bin/env bash
# `rafter generate` from every kind of folder, compared with greedy tokens of another
# implementation, and its limits.
. "$(dirname "$0")/lib.sh"
GOLD=$DATA/goldens/gpt2
GEN=("$RAFTER" generate run --threads 2)

setup() {
  printf '{"prompt": "a"}\n{"prompt": "b", "samples": 2}\n' >plain.jsonl
  text book.txt 20000
  status 0 "$RAFTER" train "$TINY" "${QUICK[@]}" --data book.txt --steps 60 --lr 1e-2 --val-every 0 --save-every 30 --out run

  status 0 "${GEN[@]}" --prompt "the " --max-tokens 20 --temperature 0 && { [ "$(head -c 4 out)" = "the " ] || fail 'the text does not start with the prompt'; cp out greedy.txt; }
}

case_sampling() {
  status 0 "$RAFTER" generate run/checkpoint-00000060 --threads 2 --prompt "the " --max-tokens 20 --temperature 0 &&
    same greedy.txt out 'a run and its newest checkpoint give the same text'
  mkdir gpt2 && cp run/checkpoint-00000060/* gpt2 # The folder has the name of a preset, and has weights.
  status 0 "$RAFTER" generate gpt2 --threads 2 --prompt "the " --max-tokens 20 --temperature 0 &&
    same greedy.txt out 'a folder takes precedence over a preset of its name'
  status 0 "$RAFTER" generate run --threads 1 --prompt "the " --max-tokens 20 --temperature 0 &&
    same greedy.txt out 'one thread and two give the same text'
  status 0 "${GEN[@]}" --prompt "the " --max-tokens 20 --seed 4 && cp out four.txt
  status 0 "${GEN[@]}" --prompt "the " --max-tokens 20 --seed 4 &&
    same four.txt out 'the same seed gives the same text'
  status 0 "${GEN[@]}" --prompt "the " --max-tokens 20 --seed 5 && { ! cmp -s four.txt out ||
    fail 'another seed gives the same text'; }
  status 0 "${GEN[@]}" --prompt "the " --max-tokens 20 --seed 4 --speculate ngram --draft-tokens 3 &&
    same four.txt out 'drafts do not change drawn text'
  REPEATS=("${GEN[@]}" --prompt "the the the the the " --max-tokens 40 --temperature 0 --json)
  status 0 "${REPEATS[@]}" && cp out plain.json
  status 0 "${REPEATS[@]}" --speculate ngram && {
    holds out 'all(d[k] == json.load(open("plain.json"))[k] for k in ("tokens", "logprobs"))' \
      'drafts change no token and no log-probability'
    holds out '0 <= d["accepted_tokens"] <= d["drafted_tokens"]' 'the JSON has the numbers of drafts'
    says 'drafted tokens were right'
  }
  for option in "--top-k 1" "--top-p 0" "--min-p 1"; do
    # shellcheck disable=SC2086
    status 0 "${GEN[@]}" --prompt "the " --max-tokens 20 $option &&
      same greedy.txt out "$option is the likeliest token"
  done
  status 0 "${GEN[@]}" --prompt "the " --max-tokens 20 --temperature 0 --json && {
    [ "$(wc -l <out)" = 1 ] || fail 'generate --json prints more than one line on stdout'
    holds out '{"text","tokens","logprobs","finish_reason","prompt_tokens","completion_tokens","seconds_to_first_token","tokens_per_second","bandwidth_fraction","arena_bytes"} <= d.keys()' 'generate --json has its keys'
    holds out 'd["finish_reason"] == "length" and d["prompt_tokens"] == 4 and d["completion_tokens"] == 20 == len(d["tokens"]) == len(d["logprobs"]) and all(-20 < p <= 0 for p in d["logprobs"])'
    holds out 'bytes(d["tokens"]).decode() == d["text"] and "the " + d["text"] + "\n" == open("greedy.txt").read()' 'the text decodes from the tokens'
    holds out '0 < d["seconds_to_first_token"] < d["process_seconds_to_first_token"] + 0.02 and d["load_seconds"] > 0 and math.isclose(d["predicted_seconds_to_first_token"], d["predicted_tokenizer_seconds"] + d["predicted_load_seconds"] + d["predicted_prefill_seconds"]) and min(d["predicted_load_seconds"], d["predicted_prefill_seconds"]) > 0' 'the JSON has measured and predicted time to the first token'
    arena=$(ask out 'd["arena_bytes"]')
    status 0 "$RAFTER" plan run/checkpoint-00000060 --job generate --batch 1 --seq 24 --threads 2 --json &&
      holds out "d['memory']['peak_bytes'] == $arena" "generate takes what its plan says ($arena bytes)"
  }
  status 0 "${GEN[@]}" --prompt "the " --max-tokens 3 --weights int8 --json &&
    holds out 'd["predicted_load_seconds"] is None' 'the time of a conversion has no prediction'
  status 0 "${GEN[@]}" --prompt "the " --max-tokens 3 --verbose && says 'first token .* loading .* \(predicted'
  stop=$(python3 -c 'print(open("greedy.txt").read()[10:12], end="")')
  status 0 "${GEN[@]}" --prompt "the " --max-tokens 20 --temperature 0 --stop "$stop" --json &&
    holds out "d['finish_reason'] == 'stop' and '$stop' not in d['text'] and open('greedy.txt').read().startswith('the ' + d['text'] + '$stop')" 'the answer ends before the stop text'
  status 0 "${GEN[@]}" --prompt "the " --max-tokens 20 --temperature 0 --stop "$stop" && { [ "$(cat out)" = "$(python3 -c 'import sys; t = open("greedy.txt").read(); print(t[:t.index(sys.argv[1], 4)])' "$stop")" ] || fail "the streamed text does not end before --stop '$stop'"; }
}

# A model that drafts: the same answers, and as much memory as the plan says.
case_draft_model() {
  local small=gpt:layers=1,width=32,heads=1,vocab=256,seq=64
  local large=gpt:layers=3,width=64,heads=2,vocab=256,seq=64
  local gen=("$RAFTER" generate "$large" --threads 2 --seq 64 --max-tokens 30 --tokens 1,2,3,4,5,6) kv
  local was='json.load(open("drafts.json"))'
  for kv in f32 bf16 int8; do
    status 0 "${gen[@]}" --kv-dtype $kv --json && cp out plain.json
    status 0 "${gen[@]}" --kv-dtype $kv --json --speculate "$small" && {
      holds out 'all(d[k] == json.load(open("plain.json"))[k] for k in ("tokens", "logprobs"))' \
        'a draft model changes no token and no log-probability'
      cp out drafts.json
    }
    status 0 "$RAFTER" plan "$large" --threads 2 --seq 64 --job generate --batch 1 --kv-dtype $kv \
      --speculate "$small" --json &&
      holds out "d['speculation']['draft_model']['total_bytes'] == $was['arena_bytes']" \
        'both models have the planned memory'
  done
  printf '{"tokens": [%s], "samples": 2}\n' 1,2,3 4,5,6,7 9,8,7 >three.jsonl
  gen=("$RAFTER" generate "$large" --seq 64 --max-tokens 20 --input three.jsonl --output rows.jsonl)
  status 0 "${gen[@]}" && cp rows.jsonl plain.jsonl
  status 0 "${gen[@]}" --speculate "$small" && same plain.jsonl rows.jsonl 'batches with a draft model'
  status 2 "${gen[@]}" --speculate gpt:layers=1,width=32,heads=1,vocab=300,seq=64 &&
    says '--speculate: expected the 256 tokens of .*, got the 300'
  status 2 "${gen[@]}" --speculate gpt:layers=1,width=32,heads=1,vocab=256,seq=32 &&
    says 'expected 64 tokens or more, got 32'
  status 2 "${gen[@]}" --speculate ngran && says "speculate: unknown model 'ngran'"
}

# Everyday output: the text and one line. --stats and --verbose add the table of times.
case_stats() {
  asked=(--prompt "the " --max-tokens 5 --temperature 0)
  for option in --stats --verbose; do
    status 0 "${GEN[@]}" "${asked[@]}" "$option" && says '^decode x .* measured +predicted +limit'
  done
  status 0 "${GEN[@]}" "${asked[@]}" --out quiet && ! grep -q measured err ||
    fail "a table without --stats: $(cat err)"
  [ "$(grep -c 'tokens in .*tokens/s$' err)" = 1 ] || fail "not one line of tokens and time: $(cat err)"
  holds quiet/report.json '"sentence" in d["summary"]' 'the run folder has the summary'
  for job in "score run --text abcdef" "eval perplexity run --data book.txt --limit 2"; do
    # shellcheck disable=SC2086
    status 0 "$RAFTER" $job --threads 2 && ! grep -q measured out err &&
      tail -1 out | grep -qE '^[0-9]+ tokens in .* tokens/s$' || fail "$job ends with $(tail -1 out)"
  done
}

# Without --prompt, --input and --tokens, a pipe is the prompt.
case_input() {
  piped() { "${GEN[@]}" --max-tokens 20 --temperature 0 "$@" 2>err; }
  printf 'the ' | piped >out && same greedy.txt out 'a pipe is the prompt'
  printf 'the \n' | piped --prompt - >out &&
    same greedy.txt out '--prompt - reads a pipe and drops one newline'
  printf 'the \n\n' | piped --json >out && holds out 'd["prompt_tokens"] == 5' 'only one newline is dropped'
  echo ignored | piped --prompt 'the ' >out && same greedy.txt out '--prompt takes precedence over a pipe'
  printf 'the ' | piped --out left >out &&
    holds left/run.json 'd["options"]["prompt"] == "the "' 'run.json has the prompt'
  refuses 2 'prompt is empty .*standard input' "${GEN[@]}" </dev/null && says "^hint: .*--prompt ''"
  refuses 2 'prompt is empty' "${GEN[@]}" --prompt - <<<''
  refuses 2 'a zero byte' "${GEN[@]}" < <(printf 'a\0b')
  refuses 2 'at most 16 MiB .*more' "${GEN[@]}" < <(head -c 16777217 /dev/zero | tr '\0' a)
  refuses 2 'both give a prompt' "${GEN[@]}" --prompt - --input plain.jsonl </dev/null
  # no text, at a terminal
  terminals 'a prompt from a terminal' || return 0
  script -qec "${GEN[*]} --max-tokens 3; echo \$? >code" /dev/null >out </dev/null
  [ "$(cat code)" = 2 ] && says 'there is no prompt' out ||
    fail "no prompt at a terminal: $(cat code) $(cat out)"
}

# Limits: 32 positions.
case_limits() {
  status 0 "${GEN[@]}" --prompt "the " --max-tokens 1000 --temperature 0 --json &&
    holds out 'd["completion_tokens"] in (28, 29) and d["finish_reason"] == "length"' 'generation ends at the last position'
  refuses 2 '32' "${GEN[@]}" --prompt "$(head -c 33 book.txt)"
  refuses 2 '32' "${GEN[@]}" --prompt "$(head -c 32 book.txt)"
  status 0 "${GEN[@]}" --prompt "$(head -c 31 book.txt)" --max-tokens 5 --json && holds out 'd["completion_tokens"] >= 1'
  refuses 2 '300' "${GEN[@]}" --tokens 1,2,300
  refuses 2 'tokens' "${GEN[@]}" --tokens 1,-2
  refuses 2 'tokens' "${GEN[@]}" --tokens 1,x
  refuses 2 'empty' "${GEN[@]}" --prompt ""
  refuses 2 'max-tokens' "${GEN[@]}" --prompt a --max-tokens 0
  refuses 2 'temperature' "${GEN[@]}" --prompt a --temperature -1
  refuses 2 'null' "${GEN[@]}" --prompt a --backend null && { [ ! -s out ] ||
    fail 'a generate that cannot answer prints the prompt'; }
  refuses 2 'nothere' "$RAFTER" generate nothere/run --prompt a
  mkdir bare && refuses 2 'bare' "$RAFTER" generate bare --prompt a
  cp -r run/checkpoint-00000060 cut && truncate -s -100 cut/model.safetensors &&
    refuses 1 'model.safetensors' "$RAFTER" generate cut --prompt a
  rm cut/model.safetensors && refuses 1 'model.safetensors' "$RAFTER" generate cut --prompt a
}

# A Hugging Face folder gives the greedy tokens of its own implementation.
case_hugging_face() {
  status 0 "$RAFTER" generate "$GOLD" --threads 2 --tokens 5,6,7 --max-tokens 4 --temperature 0 && { grep -qE '^[0-9]+(,[0-9]+)*$' out || fail "generate --tokens does not print ids: $(cat out)"; }
  python3 - "$GOLD/golden.json" >cases <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))["greedy"]
for g in d if isinstance(d, list) else [d]:
    prompt, tokens = g["prompt"], g["continuation"]
    print(",".join(map(str, prompt)), ",".join(map(str, tokens)))
PY
  [ -s cases ] || fail 'the golden has no greedy tokens'
  while read -r prompt tokens; do
    for backend in cpu reference; do
      status 0 "$RAFTER" generate "$GOLD" --threads 2 --backend $backend --tokens "$prompt" --max-tokens "$(tr ',' '\n' <<<"$tokens" | wc -l)" --temperature 0 --ignore-eos --json &&
        holds out "','.join(map(str, d['tokens'])) == '$tokens'" "greedy tokens of the golden ($backend)"
    done
  done <cases
  refuses 2 'has no tokenizer' "$RAFTER" generate "$GOLD" --prompt a
}

# --json --output prints one object on stdout. Ctrl-C keeps finished rows, in their order.
case_json_output() {
  status 0 "$RAFTER" generate "$TINY" --input plain.jsonl --max-tokens 5 --threads 1 --json --output sum.jsonl &&
    holds out 'd["rows"] == 2 and d["answers"] == 3 and d["output"] == "sum.jsonl" and d["arena_bytes"] > 0 and d["seconds"] > 0' &&
      holds sum.jsonl 'len(rows) == 3 and sum(len(r["tokens"]) for r in rows) <= 15'
  python3 -c 'for i in range(40000): print("{\"prompt\": \"a\", \"id\": %d}" % i)' >many.jsonl
  "$RAFTER" generate "$TINY" --input many.jsonl --max-tokens 28 --ignore-eos --threads 1 --trace steps=1..3 --out kept --output kept.jsonl >out 2>err & pid=$!
  for _ in $(seq 600); do [ -s "$(echo kept.jsonl.part-*)" ] && break; sleep 0.1; done
  kill -INT $pid; wait $pid; got=$?
  [ $got = 130 ] && says 'stopped after [0-9]+ tokens; the answers to [0-9]+ of 40000 prompts were written' || fail "an interrupted generate exits $got: $(cat err)"
  [ -s kept/trace.bin ] &&
    holds kept/report.json 'd["walks"][0]["count"] > 0 and "summary" in d' 'an interrupted generate prints its report'
  holds kept.jsonl '0 < len(rows) < 40000 and [r["id"] for r in rows] == list(range(len(rows)))' 'finished rows of an interrupted generate'
}

# The settings taken from generation_config.json are printed on stderr.
case_generation_config() {
  cp -r "$GOLD" prefers &&
    echo '{"do_sample": true, "temperature": 0.25, "top_k": 3}' >prefers/generation_config.json
  status 0 "$RAFTER" generate prefers --tokens 1,2 --max-tokens 2 &&
    says '^generation_config.json: temperature 0.25, top-k 3$' && ! grep -q generation_config out ||
    fail 'the notice about generation_config.json is on stdout'
  status 0 "$RAFTER" generate prefers --tokens 1,2 --max-tokens 2 --top-k 0 --temperature 1 --json && ! grep -q generation_config err || fail "the notice names a typed option: $(cat err)"
  # Contradicting options or row fields are errors.
  refuses 2 'input and --prompt' "$RAFTER" generate "$TINY" --input plain.jsonl --prompt a
  refuses 2 'prompt and --tokens' "$RAFTER" generate "$TINY" --tokens 1,2 --prompt a
  refuses 2 'chat needs text' "$RAFTER" generate "$TINY" --tokens 1,2 --chat
  refuses 2 'system needs --chat' "$RAFTER" generate "$TINY" --prompt a --system b
  row() { echo "$2" >row.jsonl &&
    refuses 1 "$1" "$RAFTER" generate "$TINY" --input row.jsonl --max-tokens 2 && says 'row.jsonl, line 1'; }
  row 'both prompt and messages' '{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}'
  row 'both messages and tokens' '{"tokens": [1], "messages": [{"role": "user", "content": "b"}]}'
  row "max_token.*did you mean 'max_tokens'" '{"prompt": "a", "max_token": 5}'
  row 'no chat template' '{"messages": [{"role": "user", "content": "b"}]}'
  echo '{"prompt": "a", "answer": 4, "source": "x"}' >row.jsonl
  status 0 "$RAFTER" generate "$TINY" --input row.jsonl --max-tokens 2 --json &&
    says 'ignored keys: "answer", "source"'
  echo '{{ raise_exception("not so") }}' >raises.jinja &&
    echo '{"messages": [{"role": "user", "content": "b"}]}' >row.jsonl
  refuses 1 'not so.*row.jsonl, line 1' "$RAFTER" generate "$TINY" --input row.jsonl --template raises.jinja
  for bias in 4294967301=50 256=1 -1=1 5=x 5=nan 5 =1; do refuses 2 'logit-bias' "$RAFTER" generate "$TINY" --prompt a --logit-bias "$bias"; done
  status 0 "$RAFTER" generate "$TINY" --prompt a --logit-bias 255=1000 --max-tokens 4 --json &&
    holds out 'd["tokens"] == [255] * 4'
}

# --template replaces the model's template, or gives one to a model that has none.
case_template() {
  echo '{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}' >plain.jinja
  status 0 "$RAFTER" generate "$TINY" --prompt hi --chat --template plain.jinja --max-tokens 2 --json &&
    holds out 'd["prompt_tokens"] == len("<user>hi\n") or d["prompt_tokens"] == len("<user>hi")'
}

# An answer that is not UTF-8 still has a text.
case_not_utf8() {
  status 0 "$RAFTER" generate "$TINY" --prompt a --max-tokens 24 --ignore-eos --threads 1 --json &&
    holds out 'd["text"] == bytes(d["tokens"]).decode("utf-8", "replace") and "\ufffd" in d["text"]'
  status 0 "$RAFTER" generate "$TINY" --input plain.jsonl --max-tokens 24 --ignore-eos --threads 1 --json &&
    holds out 'len(rows) == 3 and all(r["text"] == bytes(r["tokens"]).decode("utf-8", "replace") for r in rows)'
}

# --debug poisons released pages without an error, and still finds errors in the weights.
case_debug() {
  printf '{"tokens": [1, 2, 3]}\n{"tokens": [4, 5]}\n{"tokens": [6]}\n' >ids.jsonl
  for dtype in f32 bf16 int8; do
    status 0 "$RAFTER" generate "$GOLD" --input ids.jsonl --batch 1 --max-tokens 3 --threads 1 --ignore-eos --kv-dtype $dtype --json &&
      cp out plain.jsonl
    status 0 "$RAFTER" generate "$GOLD" --input ids.jsonl --batch 1 --max-tokens 3 --threads 1 --ignore-eos --kv-dtype $dtype --debug --json &&
      same plain.jsonl out "--debug with a cache in $dtype"
  done
  cp -r "$GOLD" damaged && python3 - <<'PY'
import json, struct
b = bytearray(open("damaged/model.safetensors", "rb").read()); n = struct.unpack("<Q", b[:8])[0]; h = json.loads(b[8:8 + n])
name = next(k for k in h if "c_attn.bias" in k or "attn.c_attn.weight" in k); at = 8 + n + h[name]["data_offsets"][0]
b[at:at + 4] = struct.pack("<f", float("nan")); open("damaged/model.safetensors", "wb").write(b)
PY
  refuses 1 'first op that produced a number that is not finite' "$RAFTER" generate damaged --tokens 1,2 --max-tokens 3 --debug &&
    says 'weights may be damaged'
}

# A file of prompts: rows are in the order of the file, and each has the answer that it would have
# alone, whatever the number of answers at once.
case_files_of_prompts() {
  stop=$(python3 -c 'print(open("greedy.txt").read()[10:12], end="")')
  cat >prompts.jsonl <<'EOF'
{"id": "one", "prompt": "the ", "samples": 3}
{"id": 2, "tokens": [116, 104, 101, 32], "temperature": 0, "max_tokens": 20}
{"prompt": "and he ", "temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1, "seed": 5}
{"id": "stop", "prompt": "the ", "temperature": 0, "max_tokens": 20, "stop": ["STOP"]}
EOF
  sed -i "s/STOP/$stop/" prompts.jsonl
  for batch in 1 3 8; do
    status 0 "$RAFTER" generate run --threads 2 --input prompts.jsonl --output "out$batch.jsonl" --max-tokens 9 --batch $batch --prefill-chunk $((batch + 1)) && same out1.jsonl "out$batch.jsonl" "answers at --batch $batch"
  done
  holds out1.jsonl '[r["id"] for r in rows] == ["one", "one", "one", 2, 2, "stop"] and [r["sample"] for r in rows] == [0, 1, 2, 0, 0, 0]' 'rows are in the order of the prompts'
  holds out1.jsonl 'all({"id", "prompt", "tokens", "logprobs", "text", "finish_reason", "seed"} <= r.keys() for r in rows) and rows[4]["seed"] == 5 and rows[3]["prompt"] is None and rows[4]["prompt"] == "and he "'
  holds out1.jsonl '"the " + rows[3]["text"] + "\n" == open("greedy.txt").read() and rows[5]["finish_reason"] == "stop" and rows[3]["text"].startswith(rows[5]["text"])'
  holds out1.jsonl 'len(rows[0]["tokens"]) == 9 and rows[0]["tokens"] != rows[1]["tokens"]'
  status 0 "${GEN[@]}" --prompt "the " --max-tokens 9 --seed "$(ask out1.jsonl 'rows[1]["seed"]')" --json && holds out "d['tokens'] == $(ask out1.jsonl 'rows[1]["tokens"]')" 'a seed gives one sample alone'
  echo '{"prompt": "the "}' >one.jsonl
  status 0 "${GEN[@]}" --input one.jsonl --output out.jsonl --max-tokens 1 &&
    says '^1 prompt, 1 answer with 1 token in .* 1 step, ' out
  status 0 "${GEN[@]}" --prompt "the " --max-tokens 9 --samples 2 &&
    says '^--- sample 1 of 2$' out && says '^--- sample 2 of 2$' out
  status 0 "${GEN[@]}" --prompt "the " --max-tokens 9 --samples 3 --json && { [ "$(wc -l <out)" = 3 ] || fail '--samples 3 --json is not three rows'; holds out "[r['tokens'] for r in rows] == $(ask out1.jsonl '[r["tokens"] for r in rows[:3]]')"; }
  for kv in f32 bf16 int8; do
    status 0 "${GEN[@]}" --prompt "the " --max-tokens 9 --temperature 0 --kv-dtype $kv --json &&
      arena=$(ask out 'd["arena_bytes"]') &&
      status 0 "$RAFTER" plan run/checkpoint-00000060 --job generate --batch 1 --seq 13 --threads 2 --kv-dtype $kv --json &&
        holds out "d['memory']['peak_bytes'] == $arena" "the plan has a $kv cache ($arena bytes)"
  done
  bad() { printf '{"prompt": "a"}\n\n%s\n' "$1" >bad.jsonl; refuses 1 "$2" "$RAFTER" generate run --threads 2 --input bad.jsonl --output bad.out &&
    says 'bad.jsonl.*line 3'; [ ! -e bad.out ] || fail "incomplete answer for $1"; }
  bad '{"id": 1}' 'prompt, messages or tokens'
  bad '{"prompt": "a", "temperature": "hot"}' temperature
  bad '{"prompt": "a", "top_p": 2}' top_p
  bad '{"prompt": "a", "samples": 0}' samples
  bad '{"prompt": "a", "max_tokens": -1}' max_tokens
  bad '{"prompt": "a", "seed": 1.5}' seed
  bad '{"prompt": "a", "stop": 3}' stop
  bad '{"prompt": "a", "stop": [""]}' stop
  bad '{"tokens": [1, 300]}' 'token 1'
  bad '{"prompt": ""}' empty
  bad '[1]' object
  bad '{"prompt": "a"' 'JSON Lines'
  bad "{\"prompt\": \"$(head -c 40 book.txt)\"}" room
  printf '\n' >bad.jsonl && refuses 1 'no rows' "$RAFTER" generate run --input bad.jsonl
  refuses 1 'nothere' "$RAFTER" generate run --input nothere.jsonl
  refuses 2 'output' "${GEN[@]}" --prompt a --output x.jsonl
}

# Another reader can read saved weights.
case_saved() {
  python3 - run/checkpoint-00000060 <<'PY' || fail 'another reader cannot read the checkpoint'
import array, json, math, struct, sys
def read(path):
    b = open(path, "rb").read()
    n, = struct.unpack("<Q", b[:8])
    header = json.loads(b[8:8 + n]); data = b[8 + n:]; out = {}
    for name, t in header.items():
        if name == "__metadata__": continue
        first, last = t["data_offsets"]
        assert t["dtype"] == "F32" and last - first == 4 * math.prod(t["shape"]), name
        out[name] = (t["shape"], array.array("f", data[first:last]))
    assert max(t["data_offsets"][1] for k, t in header.items() if k != "__metadata__") == len(data)
    assert n % 8 == 0, "header not aligned"
    return out
folder = sys.argv[1]
config, model, optimizer = json.load(open(folder + "/config.json")), read(folder + "/model.safetensors"), read(folder + "/optimizer.safetensors")
assert config["model_type"] == "gpt2" and (config["n_embd"], config["n_layer"], config["n_head"], config["n_positions"], config["vocab_size"]) == (32, 2, 2, 32, 256), config
D, F, V, T = 32, 64, 256, 32
want = {"wte.weight": [V, D], "wpe.weight": [T, D], "ln_f.weight": [D], "ln_f.bias": [D]}
for i in range(2):
    for name, shape in {"ln_1.weight": [D], "ln_1.bias": [D], "ln_2.weight": [D], "ln_2.bias": [D], "attn.c_attn.weight": [D, 3 * D], "attn.c_attn.bias": [3 * D],
                        "attn.c_proj.weight": [D, D], "attn.c_proj.bias": [D], "mlp.c_fc.weight": [D, F], "mlp.c_fc.bias": [F], "mlp.c_proj.weight": [F, D], "mlp.c_proj.bias": [D]}.items():
        want[f"h.{i}.{name}"] = shape
have = {name.removeprefix("transformer."): t[0] for name, t in model.items()}
assert have == want, (set(want) ^ set(have), [(k, have[k], want[k]) for k in have if k in want and have[k] != want[k]])
assert all(math.isfinite(x) for _, values in model.values() for x in values)
assert len(optimizer) == 2 * len(model) and sum(len(v) for _, v in optimizer.values()) == 2 * sum(len(v) for _, v in model.values())
assert all(x >= 0 for name, (_, values) in optimizer.items() if name.startswith("v/") for x in values)
PY
}

cases "$@"
