#!/usr/bin/env bash
# eval: perplexity and choices from the numbers of score, gsm8k from answers that a small model has
# learned, and refused input.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
MODEL=gpt:layers=1,width=32,heads=2,ff=64,vocab=256,seq=128
eval_() { "$RAFTER" eval "$@" --seed 5 --threads 2; }

setup() { text long.txt 300; }

# Perplexity: windows without overlap are separate texts. A smaller stride lets each token see more.
case_perplexity() {
  status 0 eval_ perplexity "$MODEL" --data long.txt --seq 64 --json && cp out apart &&
    status 0 eval_ perplexity "$MODEL" --data long.txt --seq 64 --stride 16 --json && cp out near
  python3 -c 'import json; t = open("long.txt").read(); open("rows.jsonl", "w").writelines(json.dumps({"id": i, "text": t[64 * i:64 * i + 64]}) + "\n" for i in range(5))'
  "$RAFTER" score "$MODEL" --seed 5 --threads 2 --input rows.jsonl --output scored.jsonl >/dev/null 2>&1 ||
    fail 'score fails'
  "$RAFTER" score "$MODEL" --seed 5 --threads 2 --input long.txt --seq 64 --stride 16 --json >strided 2>/dev/null ||
    fail 'score fails'
  status 0 eval_ perplexity "$MODEL" --data rows.jsonl --output texts.jsonl --json && cp out texts
  python3 - <<'PY' || fail 'perplexity differs from that of score'
import json, math
apart, near, texts = (json.load(open(n)) for n in ("apart", "near", "texts"))
rows, strided = [json.loads(l) for l in open("scored.jsonl")], json.load(open("strided"))
nll = sum(r["nll"] for r in rows)
assert apart["n"] == 295 and apart["windows"] == 5 and apart["seq"] == apart["stride"] == 64 and not apart["bos"]
assert abs(apart["nll"] - nll / 295) < 1e-9 and abs(apart["perplexity"] - math.exp(nll / 295)) < 1e-6
# a token of the byte tokenizer is one byte
assert abs(apart["bits_per_byte"] - nll / 295 / math.log(2)) < 1e-9
assert near["n"] == 299 and near["windows"] == 16 and abs(near["nll"] - strided["nll"] / 299) < 1e-9
assert texts["texts"] == 5 and abs(texts["nll"] - apart["nll"]) < 1e-9 and texts["perplexity_stderr"] > 0
assert [abs(json.loads(l)["nll"] - r["nll"]) < 1e-9 for l, r in zip(open("texts.jsonl"), rows)] == [True] * 5
PY
}

# An evaluation is a run: it prints a summary after the results, and with --out writes a folder that
# `report` shows.
case_run() {
  status 0 eval_ perplexity "$MODEL" --data long.txt --seq 64 --stats --out evaluated && says '^score' err &&
    tr -s '\n ' ' ' <err >unfolded &&
    says 'best single change|No single change|run it again|would take alone' unfolded &&
    ! grep -q '^score x' out || fail 'the evaluation prints no summary'
  status 0 "$RAFTER" report evaluated --json &&
    holds out 'd["runs"][0]["run"]["command"] == "eval" and d["runs"][0]["summary"]["walks"][0]["rate"]["tokens_per_second"] > 0 and d["runs"][0]["summary"]["memory"]["measured_bytes"] == d["runs"][0]["summary"]["memory"]["predicted_bytes"]'
  refuses 1 'holds a run already' eval_ perplexity "$MODEL" --data long.txt --out evaluated
  refuses 1 'nowhere.txt' eval_ perplexity "$MODEL" --data nowhere.txt --out nothing && [ ! -e nothing ] ||
    fail 'an evaluation that never began leaves a folder'
  status 0 eval_ perplexity "$MODEL" --data long.txt --seq 64 --limit 2 --json && holds out 'd["n"] == 126'
  refuses 2 'stride.*1 to 64' eval_ perplexity "$MODEL" --data long.txt --seq 64 --stride 65
  for i in 1 2 3; do echo "{\"text\": \"row $i of the texts\", \"id\": $i}"; done >three.jsonl
  status 0 eval_ perplexity "$MODEL" --data three.jsonl --limit 2 --output two.jsonl --json &&
    holds out 'd["texts"] == 2' && holds two.jsonl '[r["id"] for r in rows] == [1, 2]'
  : >empty.txt; refuses 1 'nothing to score.*empty.txt' eval_ perplexity "$MODEL" --data empty.txt
}

# Choices: field names of several public datasets. Log-probabilities are sums of those of score.
case_choices() {
  cat >choices.jsonl <<'J'
{"id": "a", "context": "the lord is", "choices": ["my shepherd", "a very long choice of words", "x"], "answer": 1}
{"question": "who", "choices": {"text": ["he", "she"], "label": ["A", "B"]}, "answerKey": "B"}
{"ctx": "and so it ", "endings": ["was", "is not"], "label": "0"}
{"query": "in the", "options": ["beginning", "end"], "gold": "B"}
J
  status 0 eval_ choices "$MODEL" --data choices.jsonl --output rows.jsonl --json && cp out result
  printf '%s\n' '{"text": "the lord is my shepherd"}' '{"text": "the lord is a very long choice of words"}' '{"text": "the lord is x"}' '{"text": "Question: who\nAnswer: he"}' \
    '{"text": "Question: who\nAnswer: she"}' '{"text": "and so it was"}' '{"text": "and so it is not"}' '{"text": "in the beginning"}' '{"text": "in the end"}' >whole.jsonl
  "$RAFTER" score "$MODEL" --seed 5 --threads 2 --input whole.jsonl --output scored.jsonl >/dev/null 2>&1 ||
    fail 'score fails'
  python3 - <<'PY' || fail 'choices differ from the log-probabilities of score'
import json
rows, scored, result = [json.loads(l) for l in open("rows.jsonl")], iter([json.loads(l) for l in open("scored.jsonl")]), json.load(open("result"))
choices = [["my shepherd", "a very long choice of words", "x"], ["he", "she"], ["was", "is not"], ["beginning", "end"]]
contexts = ["the lord is", "Question: who\nAnswer:", "and so it", "in the"]
plain = normal = 0
for row, texts, context in zip(rows, choices, contexts):
    want = [sum(next(scored)["logprobs"][len(context):]) for _ in texts]
    assert all(abs(a - b) < 1e-6 for a, b in zip(row["logprobs"], want)), (row, want)
    assert row["likeliest"] == want.index(max(want))
    each = [w / len(t) for w, t in zip(want, texts)]
    assert row["likeliest_by_character"] == each.index(max(each))
    plain += row["likeliest"] == row["answer"]; normal += row["likeliest_by_character"] == row["answer"]
assert [r["answer"] for r in rows] == [1, 1, 0, 1] and rows[0]["id"] == "a" and "id" not in rows[1]
assert result["n"] == 4 and result["accuracy"] == plain / 4 and result["accuracy_normalised"] == normal / 4
PY
  for batch in 1 7; do
    cp rows.jsonl before &&
      status 0 eval_ choices "$MODEL" --data choices.jsonl --output rows.jsonl --batch $batch &&
      same before rows.jsonl "batch $batch changes choices"
  done
  status 0 eval_ choices "$MODEL" --data choices.jsonl --seq 32 --json &&
    holds out 'd["contexts_cut"] == 1' && says 'truncated at the beginning' err
  for row in '{"context": "a", "choices": ["b"], "answer": 0}' '{"context": "a", "choices": ["b", ""], "answer": 0}' '{"context": "a", "choices": ["b", "c"], "answer": 2}' \
    '{"context": "a", "choices": ["b", "c"]}' '{"choices": ["b", "c"], "answer": 0}' '{"context": "a", "choices": "bc", "answer": 0}' '[1]' 'x'; do
    echo "$row" >bad.jsonl && refuses 1 'bad.jsonl' eval_ choices "$MODEL" --data bad.jsonl
  done
  refuses 2 'nearest: choices' eval_ choice "$MODEL" --data choices.jsonl
  refuses 2 'data' eval_ choices "$MODEL"
  refuses 1 'nothere' eval_ choices "$MODEL" --data choices.jsonl --output nothere/x.jsonl
}

# gsm8k: a model that has memorised an answer.
case_gsm8k() {
  python3 - <<'PY'
import json
known = [("Add 1 and 1?", "It is two.\n#### 2"), ("Add 2 and 2?", "#### 1,004")]
open("learn.txt", "w").write("".join(f"Question: {q}\nAnswer: {a}\n\n" for q, a in known) * 200)
open("train.jsonl", "w").writelines(json.dumps({"question": q, "answer": a}) + "\n" for q, a in known)
open("test.jsonl", "w").writelines(json.dumps({"id": q, "question": q, "answer": a}) + "\n" for q, a in known + [("Add 1 and 1?", "No.\n#### 7")])
PY
  status 0 "$RAFTER" train "$MODEL" --threads 2 --batch 4 --data learn.txt --steps 250 --lr 1e-2 --val-every 0 --out run
  status 0 eval_ gsm8k run --data test.jsonl --shots 1 --max-tokens 40 --output rows.jsonl --json && cp out result && python3 - <<'PY' || fail "the counts of gsm8k are wrong: $(cat rows.jsonl)"
import json, math, re
rows, result = [json.loads(l) for l in open("rows.jsonl")], json.load(open("result"))
def number(text):
    marked = "####" in text and re.search(result["number"], text[text.index("####") + 4:])
    found = marked or (re.findall(result["number"], text) or [None])[-1]
    return (marked.group() if marked else found), bool(marked)
assert [r["id"] for r in rows] == ["Add 1 and 1?", "Add 2 and 2?", "Add 1 and 1?"] and [r["expected"] for r in rows] == ["2", "1004", "7"]
right = 0
for r in rows:
    found, marked = number(r["text"])
    assert (found or "").replace(",", "") == r.get("number", "") and "Question:" not in r["text"], r
    assert r["right"] == (bool(found) and float(found.replace(",", "")) == float(r["expected"]))
    right += r["right"]
n, z, p = 3, 1.959963984540054, right / 3
middle, half = (p + z * z / 2 / n) / (1 + z * z / n), z * math.sqrt(p * (1 - p) / n + z * z / 4 / n / n) / (1 + z * z / n)
assert result["n"] == 3 and result["shots"] == 1 and not result["chat"] and result["accuracy"] == p
assert right >= 1 and abs(result["accuracy_low"] - (middle - half)) < 1e-12 and abs(result["accuracy_high"] - (middle + half)) < 1e-12, right
PY
  holds result 'd["sampling"] == {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "seed": 5} and d["max_tokens"] == 40'
  cp rows.jsonl before
  # for answers, not for measurements
  for folder in run/checkpoint-*; do echo '{"repetition_penalty": 5, "temperature": 2}' >"$folder/generation_config.json"; done
  for batch in 1 2; do status 0 eval_ gsm8k run --data test.jsonl --shots 1 --max-tokens 40 --output rows.jsonl --batch $batch &&
    same before rows.jsonl "batch $batch changes answers"; done
  echo '{"question": "How many?", "answer": "Nobody knows.\n#### none"}' >none.jsonl &&
    refuses 1 'none.jsonl, row 1' eval_ gsm8k run --data none.jsonl --shots 0
  refuses 1 'nothere' eval_ gsm8k run --data test.jsonl --shots-from nothere.jsonl && says 'hint: .*--shots 0'
  refuses 1 'template' eval_ gsm8k run --data test.jsonl --chat
  refuses 2 'leave no room' eval_ gsm8k run --data test.jsonl --shots 2 --seq 20
}

# stopped TASK ARGUMENTS...: stops when `part` has some rows but not all. A machine may load the
# weights slowly or finish the task quickly, so the signal comes after different times.
stopped() {
  local wait
  for wait in 0.2 0.05 0.1 0.02 0.4 0.8 0; do
    rm -f part
    "$RAFTER" eval "$@" --seed 5 --threads 1 --output part --json >out 2>err & pid=$!
    # it handles the signal now
    for _ in $(seq 300); do ((0x$(sed -n 's/^SigCgt:\s*//p' /proc/$pid/status) & 2)) && break; sleep 0.01; done
    sleep $wait
    kill -INT $pid; wait $pid; got=$?
    [ $got = 130 ] && grep -q '"stopped"' out && break
  done
  [ $got = 130 ] && says 'hint: .*--continue' || fail "an interrupted evaluation of $1 exits $got: $(cat err)"
  holds out 'd["stopped"] is True'
}
SLOW=gpt:layers=2,width=128,heads=2,ff=512,vocab=256,seq=128

# A signal ends an evaluation after the current pass. Finished rows are counted and written.
# --continue resumes and gives the same rows and figures.
case_continue() {
  python3 -c 'import json; open("many.jsonl", "w").writelines(json.dumps({"id": i, "context": "in the beginning %d" % i, "choices": ["was", "of it all", "x"][:2 + i % 2], "answer": 0}) + "\n" for i in range(300))'
  text book.txt 12000
  python3 -c 'import json; open("asked.jsonl", "w").writelines(json.dumps({"id": i, "question": "Add %d?" % i, "answer": "#### 2"}) + "\n" for i in range(400))'
  for task in "choices $SLOW --data many.jsonl --batch 1" "perplexity $SLOW --data book.txt --seq 64 --stride 16 --batch 1" "gsm8k $SLOW --data asked.jsonl --shots 0 --max-tokens 16 --batch 2"; do
    # shellcheck disable=SC2086
    { rm -f part; stopped $task
      status 0 eval_ $task --output whole --json && cp out figures
      [ ! -e part ] ||
        holds part 'rows == [r for r in map(json.loads, open("whole")) if r["row"] in {p["row"] for p in rows}] or rows[0]["windows"] < json.loads(open("whole").read())["windows"]'
      status 0 eval_ $task --output part --continue --json &&
        same whole part "a continued evaluation of $task"
      python3 - <<'PY' || fail "a continued evaluation has different figures: $task"
import json
clock = ("seconds", "predicted_seconds", "tokens_per_second", "arena_bytes", "completion_tokens", "prompt_tokens", "batch")
assert len({json.dumps({k: v for k, v in json.load(open(n)).items() if k not in clock}, sort_keys=True) for n in ("out", "figures")}) == 1, (open("out").read(), open("figures").read())
PY
      status 0 eval_ $task --output part --continue --json &&
        same whole part "$task has no unfinished rows"; }
  done
  refuses 1 'part, line 1' eval_ gsm8k "$SLOW" --data asked.jsonl --shots 0 --max-tokens 15 --output part --continue
  refuses 2 '--output' eval_ gsm8k "$SLOW" --data asked.jsonl --continue
  sed -i '1s/"answer": "#### 2"/"answer": "#### 3"/' asked.jsonl # other rows
  refuses 1 'part, line 1' \
    eval_ gsm8k "$SLOW" --data asked.jsonl --shots 0 --max-tokens 16 --output part --continue
}

case_refusals() {
  refuses 1 'nothere' eval_ perplexity "$MODEL" --data nothere.txt
  refuses 2 'null' eval_ perplexity "$MODEL" --data long.txt --backend null
}

cases "$@"
