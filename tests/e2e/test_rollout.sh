#!/usr/bin/env bash
# `rafter rollout`: a killed run is finished by the same command, to the bit, and its rows are those
# of `generate`.
. "$(dirname "$0")/lib.sh"
SMALL=gpt:layers=8,width=256,heads=4,ff=1024,vocab=256,seq=64
MANY=("$RAFTER" rollout "$SMALL" --input many.jsonl --max-tokens 30)
PLAIN=("${MANY[@]}" --samples 3 --threads 1 --batch 4)
# The same rows of a model that takes little time.
BRIEF=("$RAFTER" rollout "${TINY/seq=32/seq=64}" "${PLAIN[@]:3}")
TINY_ROWS=("$RAFTER" rollout "$TINY" --threads 1 --max-tokens 9)
FEW=("${TINY_ROWS[@]}" --input few.jsonl)

setup() {
  python3 - <<'PY'
import json
with open("many.jsonl", "w") as f:
    for i in range(60):
        row = {"id": f"p{i}", "prompt": "word " * (1 + i % 5)}
        if i % 7 == 3: row["samples"] = 1 + i % 4
        if i % 9 == 5: row["temperature"] = 0.7
        if i % 5 == 2: row["max_tokens"] = 9
        print(json.dumps(row), file=f)
PY
  printf '%s\n' '{"id": "one", "prompt": "the ", "samples": 3}' '{"tokens": [1, 2, 3], "temperature": 0}' \
    '{"id": {"a": [1]}, "prompt": "and ", "seed": 5}' >few.jsonl
  status 0 "${PLAIN[@]}" --output whole.jsonl
  status 0 "${BRIEF[@]}" --output brief.jsonl
}

# grows FILE LINES: waits until the file has as many lines, or the command pid has ended.
grows() {
  for _ in $(seq 3000); do
    [ -e "$1" ] && [ "$(wc -l <"$1")" -ge "$2" ] && return
    kill -0 $pid 2>/dev/null || return
    sleep 0.01
  done
}

# kill -9 at several points. Each run continues where the last one was killed, also with another
# number of threads or of answers at once.
case_killed() {
  local lines
  for lines in 0 1 20 21 90 150; do
    "${MANY[@]}" --samples 3 --threads 1 --output out.jsonl --batch $((1 + lines % 5)) >out 2>err & pid=$!
    [ $lines = 0 ] || grows out.jsonl $lines
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
  done
  [ "$(wc -l <out.jsonl)" -ge 90 ] || fail "the killed runs left $(wc -l <out.jsonl) rows"
  status 0 "${MANY[@]}" --samples 3 --output out.jsonl --threads 2 --json &&
    holds out 'd["complete"] and d["rows"] == 60 and d["all_answers"] == 177 and d["limit_fraction"] > 0'
  same whole.jsonl out.jsonl 'killed runs give the rows of a whole run'
  status 0 "${PLAIN[@]}" --output out.jsonl --json && says 'has all 177 answers' err &&
    holds out 'd["complete"] and d["answers"] == 0'
  same whole.jsonl out.jsonl 'a complete file does not change'
}

# Sampled answers have the same bits with the vectors of every instruction set and with any number
# of threads.
case_levels() {
  local cpu threads filters
  for filters in '--top-p 0.9' '--temperature 0.7 --min-p 0.05' '--top-k 200 --top-p 0.8'; do
    for cpu in base avx2 avx512; do
      "$RAFTER" plan "$TINY" --cpu $cpu >/dev/null 2>&1 || continue # this CPU lacks it
      for threads in 1 3; do
        status 0 "$RAFTER" rollout "$TINY" --input few.jsonl --samples 20 --max-tokens 9 $filters --cpu $cpu \
          --threads $threads --batch 11 --output $cpu.jsonl --overwrite
        [ -e first.jsonl ] || cp $cpu.jsonl first.jsonl
        same first.jsonl $cpu.jsonl "$filters at $cpu with $threads threads"
      done
    done
    rm first.jsonl
  done
}

# A half-written last line is removed, at each kind of place where it may end.
case_half_lines() {
  local bytes
  for bytes in 1 2 50 700 5000 $(($(stat -c %s brief.jsonl) - 1)); do
    cp brief.jsonl.settings.json out.jsonl.settings.json
    head -c "$bytes" brief.jsonl >out.jsonl
    status 0 "${BRIEF[@]}" --output out.jsonl && says 'out.jsonl: removed an incomplete last line'
    same brief.jsonl out.jsonl "a file of $bytes bytes is finished"
  done
  printf '{"id": "p0", "tok\n' >>out.jsonl
  status 0 "${BRIEF[@]}" --output out.jsonl && same brief.jsonl out.jsonl 'half a line after all rows'
  head -c 100 /dev/zero >>out.jsonl
  status 0 "${BRIEF[@]}" --output out.jsonl && same brief.jsonl out.jsonl 'zeros after all rows'
  head -20 brief.jsonl >out.jsonl
  status 0 "${BRIEF[@]}" --output out.jsonl && says 'has 20 of 177 answers; continuing' &&
    same brief.jsonl out.jsonl 'a file of 20 rows'
}

# A run of a continued rollout has a record of its own. A first run does not write into a record.
case_records() {
  status 0 "${FEW[@]}" --output out.jsonl --out run && cp out.jsonl kept
  head -2 kept >out.jsonl
  status 0 "${FEW[@]}" --output out.jsonl --out run && same kept out.jsonl 'a rollout with a record'
  : >out.jsonl
  status 0 "${FEW[@]}" --output out.jsonl --out run && same kept out.jsonl 'an empty file'
  for folder in run run-2 run-3; do holds $folder/run.json 'd["options"]["output"] == "out.jsonl"'; done
  refuses 1 'run holds a run already' "${FEW[@]}" --output other.jsonl --out run
  head -2 kept >out.jsonl
  sed -i 's/"rafter": "[^"]*"/"rafter": "0.1"/' out.jsonl.settings.json
  status 0 "${FEW[@]}" --output out.jsonl --out run && same kept out.jsonl 'rows of another version'
}

# Other settings than those of the first run are refused, and the file does not change.
case_refused() {
  cp whole.jsonl few.out
  refuses 1 'few.out has a content that no rollout can finish' "${FEW[@]}" --output few.out
  same whole.jsonl few.out 'a file of another program does not change'
  status 0 "${FEW[@]}" --output few.out --overwrite && cp few.out kept
  refuses 1 '--temperature: expected 1.0, got 0.5' "${FEW[@]}" --output few.out --temperature 0.5 &&
    says '^hint: .*--overwrite'
  refuses 1 '--seed: expected 0, got 7' "${FEW[@]}" --output few.out --seed 7
  refuses 1 '--seq: expected unset, got 20' "${FEW[@]}" --output few.out --seq 20
  refuses 1 '--stop: expected unset' "${FEW[@]}" --output few.out --stop x
  sed 's/the /of /' few.jsonl >other.jsonl
  refuses 1 'other prompts or settings of rows than other.jsonl has' \
    "${TINY_ROWS[@]}" --input other.jsonl --output few.out
  refuses 1 'another model' "${FEW[@]/$TINY/${TINY/width=32/width=64}}" --output few.out
  same kept few.out 'a refused run changes no byte'
  sed -i '2s/"seed":[0-9]*/"seed":1/' few.out
  refuses 1 'few.out, line 2: expected sample 1 of line 1 of few.jsonl' "${FEW[@]}" --output few.out
  sed '2s/.*/x/' kept >few.out
  refuses 1 'few.out, line 2' "${FEW[@]}" --output few.out
  cat kept kept >few.out
  refuses 1 'line 6: expected the end' "${FEW[@]}" --output few.out
  cp kept few.out
  for options in '' '"options": [], ' '"options": {}, '; do
    sed -zEi "s/\"options\": *(\{[^}]*\}|\[\]), *//; s/\{/{$options/" few.out.settings.json
    refuses 1 'of other options' "${FEW[@]}" --output few.out
  done
  echo '[' >few.out.settings.json
  refuses 1 'few.out.settings.json' "${FEW[@]}" --output few.out
  status 0 "${FEW[@]}" --output few.out --overwrite && same kept few.out '--overwrite starts again'
  cp few.jsonl copy.jsonl
  status 0 "${TINY_ROWS[@]}" --input copy.jsonl --output few.out && same kept few.out 'a copy of the prompts'
}

# New weights in the same folder are another model.
case_new_weights() {
  text book.txt 5000
  status 0 "$RAFTER" train "$TINY" "${QUICK[@]}" --data book.txt --steps 2 --out a --val-every 0
  status 0 "$RAFTER" train "$TINY" "${QUICK[@]}" --data book.txt --steps 3 --out b --val-every 0
  mkdir m && cp a/checkpoint-*/* m
  run=("$RAFTER" rollout m --threads 1 --input few.jsonl --max-tokens 5 --output out.jsonl)
  status 0 "${run[@]}" && head -2 out.jsonl >cut && mv cut out.jsonl
  touch m/model.safetensors && status 0 "${run[@]}" && [ "$(wc -l <out.jsonl)" = 5 ] ||
    fail 'the time of a file counts as its content'
  head -2 out.jsonl >cut && mv cut out.jsonl
  cp b/checkpoint-*/model.safetensors m
  refuses 1 'another model, or the model.s files have changed' "${run[@]}"
}

# SIGINT keeps the rows. A second run in the same file waits for the lock of nobody.
case_signals() {
  "${PLAIN[@]}" --output out.jsonl >out 2>err & pid=$!
  grows out.jsonl 5
  cp err first
  refuses 1 'out.jsonl is in use' "${PLAIN[@]}" --output out.jsonl
  kill -INT $pid
  wait $pid
  got=$?
  [ $got = 130 ] || [ "$(wc -l <out.jsonl)" = 177 ] || fail "SIGINT ends a rollout with $got"
  status 0 "${PLAIN[@]}" --output out.jsonl && same whole.jsonl out.jsonl 'a rollout after SIGINT'
}

# --max-seconds ends with status 0 and keeps what it has.
case_max_seconds() {
  local runs=0
  slow=("${MANY[@]}" --samples 3 --threads 1 --batch 7 --output out.jsonl --max-seconds 1 --json)
  while [ $runs -lt 200 ]; do
    status 0 "${slow[@]}" || return
    runs=$((runs + 1))
    [ "$(ask out 'd["complete"]')" = False ] || break
    says "stopped with $(wc -l <out.jsonl) of 177 answers in out.jsonl .--max-seconds.; the same command"
  done
  same whole.jsonl out.jsonl "$runs runs of a second"
  status 0 "${FEW[@]}" --output none.jsonl --max-seconds 0.001 --json && holds out 'not d["complete"]'
  status 0 "${FEW[@]}" --output none.jsonl && [ "$(wc -l <none.jsonl)" = 5 ]
}

# The last answers begin longest first, after as many as run at once: so the long answer at the end
# of this file begins after 4 steps. The rows do not change.
case_order() {
  local row="$SMALL --threads 1 --batch 4 --ignore-eos --input order.jsonl"
  python3 - <<'PY'
import json
with open("order.jsonl", "w") as f:
    for i in range(24):
        row = {"prompt": "the ", "max_tokens": 56 if i == 23 else 4, "temperature": i % 2}
        print(json.dumps(row), file=f)
PY
  status 0 "$RAFTER" rollout $row --output order.out && cp out said
  says '24 answers with 148 tokens' said
  [ "$(sed -n 's/.* \([0-9]*\) steps.*/\1/p' said)" -le 66 ] || fail "the long answer began last: $(cat said)"
  status 0 "$RAFTER" generate $row --output order.generate
  same order.generate order.out 'the rows have the order of the prompts'
  "$RAFTER" rollout $row --output /dev/stdout --quiet --json 2>err | grep '"sample"' >order.pipe
  same order.generate order.pipe 'rows of a pipe'
}

# The rows are those of `generate`; --echo, --eos-ids, --template and --system.
case_rows() {
  status 0 "${FEW[@]}" --output rows.jsonl
  status 0 "$RAFTER" generate "${FEW[@]:2}" --output generate.jsonl &&
    same rows.jsonl generate.jsonl 'generate and rollout'
  holds rows.jsonl '[r["id"] for r in rows] == ["one", "one", "one", 1, {"a": [1]}]'
  status 0 "${FEW[@]}" --output echo.jsonl --echo --top-logprobs 2
  python3 - <<'PY' || fail '--echo'
import json
rows, echo = [[json.loads(l) for l in open(f)] for f in ("rows.jsonl", "echo.jsonl")]
prompt = [list(b"the ")] * 3 + [[1, 2, 3], list(b"and ")]
for r, e, p in zip(rows, echo, prompt):
    assert e["tokens"] == p + r["tokens"] and e["prompt_tokens"] == len(p), e
    assert e["logprobs"] == [None] * len(p) + r["logprobs"] and len(e["top"]) == len(e["tokens"])
    assert e["text"] == bytes(p).decode() + r["text"]
PY
  # The log-probabilities are those of `score`, bit by bit.
  python3 -c 'import json
for l in open("echo.jsonl"): print(json.dumps({"tokens": json.loads(l)["tokens"]}))' >sequences.jsonl
  status 0 "$RAFTER" score "$TINY" --threads 1 --input sequences.jsonl --output scores.jsonl
  python3 - <<'PY' || fail 'log-probabilities differ from those of score'
import json
for e, s in zip(*[[json.loads(l) for l in open(f)] for f in ("echo.jsonl", "scores.jsonl")]):
    n = e["prompt_tokens"]
    assert e["tokens"] == s["tokens"] and e["logprobs"][n:] == s["logprobs"][n:]
PY
  ends=$(ask rows.jsonl 'rows[3]["tokens"][4]')
  status 0 "${FEW[@]}" --output ends.jsonl --eos-ids "$ends,7" &&
    holds ends.jsonl "rows[3]['tokens'][-1] == $ends and rows[3]['finish_reason'] == 'stop'" &&
    holds ends.jsonl "len(rows[3]['tokens']) <= 5"
  refuses 2 'eos-ids' "${FEW[@]}" --output x.jsonl --eos-ids 1,300
  refuses 2 'contradict' "${FEW[@]}" --output x.jsonl --eos-ids 1 --ignore-eos
  echo '{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}' >plain.jinja
  printf '%s\n' '{"prompt": "a"}' '{"messages": [{"role": "user", "content": "b"}]}' \
    '{"messages": [{"role": "system", "content": "own"}, {"role": "user", "content": "c"}]}' >chats.jsonl
  status 0 "${TINY_ROWS[@]}" --input chats.jsonl --template plain.jinja --system be --output chats.out &&
    holds chats.out \
      '[r["prompt"].strip()[8:] for r in rows] == ["be<user>a", "be<user>b", "own<user>c"]'
  status 0 "${TINY_ROWS[@]}" --input chats.jsonl --template plain.jinja --output plain.out &&
    holds plain.out '[r["prompt"].strip() for r in rows] == ["<user>a", "<user>b", "<system>own<user>c"]'
  status 0 "${FEW[@]}" --output /dev/stdout --quiet --json && [ "$(grep -c '"sample"' out)" = 5 ]
}

# A pipe has each row when it is complete, also if a signal or the time ends the run.
case_pipe() {
  local reader run=("${MANY[@]}" --threads 1 --batch 1)
  mkfifo pipe
  cat pipe >read & reader=$!
  "${run[@]}" --output pipe >out 2>err & pid=$!
  grows read 5
  kill -INT $pid 2>/dev/null || fail 'the first rows came after the run'
  wait $pid
  wait $reader
  status 0 "${run[@]}" --output all.jsonl && head -"$(wc -l <read)" all.jsonl >first &&
    same first read 'the rows of a pipe'
  cat pipe >read & reader=$!
  status 0 "${run[@]}" --samples 9 --output pipe --max-seconds 1
  wait $reader
  ! grep -q 'same command continues' err || fail 'a pipe cannot be continued'
}

# A file that cannot be written. Rows that were written stay.
case_full_disk() {
  refuses 1 'nothere' "${FEW[@]}" --output nothere/out.jsonl
  refuses 1 'No space' "${FEW[@]}" --output /dev/full
  mkdir folder && refuses 1 'directory|folder' "${FEW[@]}" --output folder
  if [ "$(id -u)" != 0 ]; then
    mkdir locked && chmod 555 locked && refuses 1 'Permission' "${FEW[@]}" --output locked/out.jsonl
  fi
  refuses 1 'large' bash -c 'ulimit -f 8; trap "" XFSZ; exec "$@"' - "${BRIEF[@]}" --output out.jsonl &&
    says '^hint: the same command continues'
  [ "$(tail -c 1 out.jsonl)" = '' ] && holds out.jsonl '0 < len(rows) < 177' 'whole rows at a full disk'
  status 0 "${BRIEF[@]}" --output out.jsonl && same brief.jsonl out.jsonl 'after a full disk'
  mkdir disk
  if mount -t tmpfs -o size=16k none disk 2>/dev/null; then
    trap 'umount "$WORK/disk"; rm -rf "$WORK"' EXIT
    refuses 1 'No space' "${BRIEF[@]}" --output disk/out.jsonl
    [ "$(tail -c 1 disk/out.jsonl)" = '' ] || fail 'a full disk leaves half a row'
    mount -o remount,size=4m disk && status 0 "${BRIEF[@]}" --output disk/out.jsonl &&
      same brief.jsonl disk/out.jsonl 'after a full file system'
    umount disk && trap 'rm -rf "$WORK"' EXIT
  fi
}

# Hostile rows end the run before the first answer, and leave no file.
case_hostile() {
  bad() {
    printf '{"prompt": "a"}\n\n%s\n' "$1" >bad.jsonl
    refuses 1 "$2" "${TINY_ROWS[@]}" --input bad.jsonl --output bad.out && says 'bad.jsonl.*line 3'
    [ ! -e bad.out ] && [ ! -e bad.out.settings.json ] || fail "a file remains after $1"
    rm -f bad.out*
  }
  bad '{"id": 1}' 'prompt, messages or tokens'
  bad '{"prompt": "a", "samples": 70000}' samples
  bad '{"prompt": "a", "samples": 1e9}' samples
  bad '{"prompt": "a", "seed": -1}' seed
  bad '{"prompt": "a", "temperature": -1}' temperature
  bad '{"tokens": [1, 99999999999999]}' 'token 1'
  bad '{"tokens": []}' empty
  bad '{"tokens": "abc"}' 'prompt, messages or tokens'
  bad '{"prompt": {"a": 1}}' 'prompt, messages or tokens'
  bad '{"prompt": "a", "tokens": [1]}' 'both prompt and tokens'
  bad '{"messages": [{"role": "robot", "content": "a"}], "prompt": "b"}' 'both'
  bad '{"prompt": "a", "prompt": "b"}' 'JSON Lines'
  bad '{"prompt": "a\u0000b"}' 'JSON Lines'
  bad "$(printf '{"prompt": "\\xff"}')" 'JSON Lines|UTF'
  bad 'null' object
  bad "$(printf '%0.s[' {1..5000})" 'JSON Lines'
  bad "{\"prompt\": \"$(printf 'a%.0s' {1..100})\"}" room
  refuses 2 'input is missing' "$RAFTER" rollout "$TINY" --output x.jsonl
  refuses 2 'output is missing' "$RAFTER" rollout "$TINY" --input few.jsonl
  refuses 2 'same file' "${FEW[@]}" --output few.jsonl
  status 0 "$RAFTER" train "$TINY" "${QUICK[@]}" --data "random:seed=0" --steps 1 --out a --val-every 0
  mkdir m && cp a/checkpoint-*/* m && cp m/model.safetensors kept
  refuses 2 'same file' "$RAFTER" rollout m --input few.jsonl --output m/model.safetensors --overwrite
  refuses 2 'same file' "$RAFTER" generate m --input few.jsonl --output m/model.safetensors
  same kept m/model.safetensors 'a model as the output'
}

# The progress line has the rate, the fraction of the machine's limit and the time left.
case_progress() {
  terminals 'a progress line' || return 0
  slow="${MANY[*]} --output p.jsonl --samples 30 --threads 1 --batch 1 --max-seconds 6"
  script -qec "$slow" /dev/null >out </dev/null
  says '[0-9]+ of 60 prompts, [0-9]+ of [0-9]+ answers, [0-9.]+ tokens/s' out
  says 'of the limit' out
  says '[0-9]+ s left' out
}
cases "$@"
