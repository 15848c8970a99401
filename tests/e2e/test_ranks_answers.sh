#!/usr/bin/env bash
# rafter generate, rollout, score, eval and rl with mpirun: copies of the model (--mesh data=N) share
# the prompts, and the answers have the bits of one process. The cases run with every MPI library.
. "$(dirname "$0")/lib.sh"
. "$HERE/lib_ranks.sh"
ONE=(--threads 1)
ANSWERS=("$RAFTER" generate "$TINY" "${ONE[@]}" --max-tokens 12 --input prompts.jsonl)
SMALL=gpt:layers=6,width=192,heads=4,ff=768,vocab=256,seq=64
ROLL=("$RAFTER" rollout "$SMALL" "${ONE[@]}" --max-tokens 40 --samples 3 --input many.jsonl --ignore-eos)
RL=("$RAFTER" rl "$TINY" "${ONE[@]}" --max-tokens 6 --prompts 4 --samples 4 --lr 1e-2 --ignore-eos
  --lora rank=4,alpha=32 --data rl.jsonl --reward 'regex=[a-p]' --seed 3)

setup() {
  text book.txt 3000
  python3 - <<'PY'
import json
def lines(name, rows):
    with open(name, "w") as f:
        for row in rows: print(json.dumps(row), file=f)
prompts = []
for i in range(11):
    row = {"id": f"p{i}", "prompt": "word " * (1 + i % 5)}
    if i % 4 == 1: row["samples"] = 3
    if i % 3 == 2: row["temperature"] = 0
    if i % 5 == 4: row["max_tokens"] = 2
    if i % 5 == 3: row["stop"] = ["a", "e"]
    prompts.append(row)
lines("prompts.jsonl", prompts)
lines("many.jsonl", [
    {"id": i, "prompt": "of the " * (1 + i % 4), "max_tokens": 40 - 9 * (7 * i % 4)} for i in range(20)])
def ids(i): return [(7 * i + 3 * t) % 256 for t in range(2 + 5 * i % 29)]
lines("texts.jsonl", [{"id": i, "tokens": ids(i)} for i in range(23)])
lines("rl.jsonl", [{"prompt": "count " + "a" * (i % 4), "answer": str(i)} for i in range(10)])
lines("held.jsonl", [{"prompt": f"held {i}", "answer": str(i)} for i in range(5)])
choices = ["his", "unto them", "of"]
lines("choices.jsonl", [{"context": "the man " * (i % 3 + 1), "choices": choices, "answer": i % 3}
                        for i in range(9)])
lines("gsm.jsonl", [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(7)])
PY
}

# each N MESH COMMAND...: runs the command on the ranks of each library. The files that it writes
# have the name of the library in place of NAME.
each() {
  local count=$1 mesh=$2
  shift 2
  for LIBRARY in "${LIBRARIES[@]}"; do
    status 0 ranks "$count" "${@//NAME/$LIBRARY}" --mesh "$mesh" || return
    [ ! -s out ] || [ "$(grep -c . out)" -gt 0 ] || fail 'no output'
  done
  LIBRARY=${LIBRARIES[0]}
}
text_of() { grep -v ' in ' "$1"; }
all_same() { for LIBRARY in "${LIBRARIES[@]}"; do same "$1" "${2//NAME/$LIBRARY}" "$3 with $LIBRARY"; done; }

case_generate() {
  local options mesh count
  for options in "--batch 3" "--top-logprobs 2 --samples 2"; do
    # shellcheck disable=SC2206
    options=($options)
    status 0 "${ANSWERS[@]}" "${options[@]}" --output one.jsonl || return
    for mesh in data=2 data=4; do
      each "${mesh#data=}" $mesh "${ANSWERS[@]}" "${options[@]}" --output NAME.jsonl || return
      all_same one.jsonl NAME.jsonl "answers of $mesh ${options[*]}"
    done
  done
  # the rows of the program's output, too
  status 0 "${ANSWERS[@]}" --json && cp out one.out
  each 2 data=2 "${ANSWERS[@]}" --json && same one.out out 'rows on standard output'
  # inside a copy, several ranks share the work of each answer
  for mesh in tensor=2 context=2; do
    each 2 $mesh "${ANSWERS[@]}" --batch 4 --output NAME.jsonl || return
    cp "$LIBRARY.jsonl" inside.jsonl
    all_same inside.jsonl NAME.jsonl "answers of $mesh"
    each 4 data=2,$mesh "${ANSWERS[@]}" --batch 4 --output NAME.jsonl || return
    all_same inside.jsonl NAME.jsonl "answers of data=2,$mesh"
  done
  # copies along fsdp run in step
  each 4 data=2,fsdp=2 "${ANSWERS[@]}" --output NAME.jsonl && status 0 "${ANSWERS[@]}" --output one.jsonl &&
    all_same one.jsonl NAME.jsonl 'answers of data=2,fsdp=2'
}

# --debug poisons memory that nothing uses, and checks the numbers that ops write. Along the axis
# context, a chip has no keys for the first positions.
case_debug() {
  local mesh more=(--batch 4 --top-logprobs 1)
  for mesh in context=2 tensor=2 data=2; do
    status 0 ranks 2 "${ANSWERS[@]}" "${more[@]}" --mesh $mesh --output plain.jsonl || return
    each 2 $mesh "${ANSWERS[@]}" "${more[@]}" --debug --output NAME.jsonl &&
      all_same plain.jsonl NAME.jsonl "answers of $mesh with --debug"
  done
}

# Chips that share the rows of a pass compute all rows of the plan, also with kernels for few rows.
case_latent() {
  local mesh latent=deepseek2-16b:layers=2,first_dense=1,width=32,heads=4,head_dim=10,rope_dim=4,value_dim=6
  latent+=,kv_rank=12,q_rank=8,ff=24,expert_ff=8,experts=4,experts_used=2,vocab=256,seq=64,bos=-1,eos=-1
  local answers=("${ANSWERS[@]/$TINY/$latent}")
  for batch in 4 8 24; do
    status 0 "${answers[@]}" --batch $batch --output one.jsonl || return
    for mesh in context=2 sequence=2; do
      each 2 $mesh "${answers[@]}" --batch $batch --output NAME.jsonl || return
      for LIBRARY in "${LIBRARIES[@]}"; do
        close_to one.jsonl "$LIBRARY.jsonl" || fail "answers of $mesh with --batch $batch ($LIBRARY)"
      done
    done
  done
}
# close_to A B: the answers have the same tokens, and log-probabilities that differ by rounding.
close_to() {
  python3 - "$1" "$2" <<'PY'
import json, sys
a, b = ([json.loads(line) for line in open(f)] for f in sys.argv[1:])
assert len(a) == len(b) > 0
for x, y in zip(a, b):
    assert x["tokens"] == y["tokens"], (x, y)
    assert max(abs(p - q) for p, q in zip(x["logprobs"], y["logprobs"])) < 1e-4, (x, y)
PY
}

# With fewer prompts than copies, the samples of a prompt are shared.
# Only rank 0 has a run folder and a trace.
case_traced() {
  each 2 data=2 "${ANSWERS[@]}" --trace steps=1..2 --out traced-NAME || return
  for LIBRARY in "${LIBRARIES[@]}"; do
    [ -s "traced-$LIBRARY/trace.bin" ] || fail "$LIBRARY: rank 0 has no trace"
  done
  [ "$(find . -name run.json | wc -l)" = ${#LIBRARIES[@]} ] || fail "run folders: $(find . -name run.json)"
  [ ! -e /trace.bin ] || fail 'a rank wrote its trace into /'
}

# Chips compute with plain matrices. A short run ends with a search for better settings, which must
# not try packed matrices.
case_weights() {
  local weights
  for weights in int8 q4; do
    refuses 2 "several chips compute with plain matrices \\(--weights: got $weights\\)" \
      ranks 2 "${ANSWERS[@]}" --mesh data=2 --weights $weights
    refuses 2 'several chips compute with plain matrices' \
      "$RAFTER" plan "$TINY" --job generate --mesh data=2 --weights $weights
  done
  status 0 ranks 2 "${ANSWERS[@]}" --mesh tensor=2 --out advised || return
  holds advised/report.json 'len(d["ops"]) > 0' 'the report of a run'
}

case_samples() {
  local one=("$RAFTER" generate "$TINY" "${ONE[@]}" --max-tokens 9 --prompt 'the man ')
  status 0 "${one[@]}" --samples 7 --output one.jsonl || return
  for count in 2 4; do
    each $count data=$count "${one[@]}" --samples 7 --output NAME.jsonl
    all_same one.jsonl NAME.jsonl "7 samples of $count copies"
  done
  status 0 "${one[@]}" && cp out one.out || return
  each 4 data=4 "${one[@]}" && same <(text_of one.out) <(text_of out) 'one answer on four ranks'
}

# differ WHAT COMMAND... FILE: the last rank has another file of the same size.
differ() {
  local what=$1 file=${*: -1} command=("${@:2:$#-2}")
  sed '0,/[a-z] [a-z]/s//x y/; 0,/\[0, 3/s//[1, 3/' "$file" >"other-$file"
  local more=("${ONE[@]}" --mesh data=2)
  refuses 1 "it has other $what" \
    ranks 2 "${command[@]}" "$file" "${more[@]}" last: "${command[@]}" "other-$file" "${more[@]}"
}

# All ranks answer the same prompts with the same weights.
case_differences() {
  local seed other="^rafter: rank 1 \\($(hostname)\\): it has other"
  for seed in 1 2; do
    status 0 "$RAFTER" train "$TINY" "${ONE[@]}" --data book.txt --steps 1 --batch 2 --seed $seed --val-every 0 \
      --out "run-$seed" && mkdir $seed && status 0 "$RAFTER" export "run-$seed" $seed/model || return
  done
  sed 's/word/ward/' prompts.jsonl >other.jsonl
  local same=("$RAFTER" generate model "${ONE[@]}" --max-tokens 3 --mesh data=2 --input "$PWD/prompts.jsonl")
  local formed=("$RAFTER" generate llama:layers=2,width=32,heads=2,ff=64,vocab=300,seq=64 "${ONE[@]}"
    --max-tokens 3 --mesh data=2 --prompt a --samples 2)
  for LIBRARY in "${LIBRARIES[@]}"; do
    refuses 1 "$other weights" \
      ranks 2 env -C 1 "${same[@]}" last: env -C 2 "${same[@]}"
    refuses 1 "$other prompts or settings of the sampler" \
      ranks 2 env -C 1 "${same[@]}" last: env -C 1 "${same[@]/prompts.jsonl/other.jsonl}"
    refuses 1 "$other prompts or settings of the sampler" \
      ranks 2 env -C 1 "${same[@]}" last: env -C 1 "${same[@]}" --temperature 0.5
    refuses 1 "$other prompts or settings of the sampler" \
      ranks 2 "${formed[@]}" --choice one last: "${formed[@]}" --choice two
  done
  differ texts "$RAFTER" score "$TINY" --input texts.jsonl
  differ texts "$RAFTER" eval perplexity "$TINY" --seq 16 --data book.txt
  differ texts "$RAFTER" eval choices "$TINY" --data choices.jsonl
  differ prompts "$RAFTER" eval gsm8k "${TINY/seq=32/seq=64}" --shots 0 --max-tokens 9 --data gsm.jsonl
}

# The plan has the bytes of a rank, and each copy computes its share of the passes.
case_plan() {
  local bytes own all
  status 0 "${ANSWERS[@]}" --batch 8 --seq 32 --samples 4 --output one.jsonl --out alone || return
  each 2 data=2 "${ANSWERS[@]}" --batch 8 --seq 32 --samples 4 --output NAME.jsonl --out shared-NAME \
    --json || return
  bytes=$(ask out 'd["arena_bytes"]')
  status 0 "$RAFTER" plan "$TINY" "${ONE[@]}" --job generate --batch 8 --seq 32 --mesh data=2 --json &&
    holds out "d['memory']['peak_bytes'] == $bytes" 'bytes of the plan'
  for folder in alone shared-$LIBRARY; do
    ask "$folder/report.json" 'sum(w["tokens"] for w in d["walks"])' >"rows-$folder"
  done
  all=$(cat rows-alone) own=$(cat rows-shared-$LIBRARY)
  python3 -c "import sys; sys.exit(not 0.3 * $all < $own < 0.75 * $all)" ||
    fail "rank 0 of two copies computed $own of $all rows"
}

case_score() {
  local options
  for options in '' '--top 3 --batch 5' '--seq 9 --stride 4 --batch 3'; do
    # shellcheck disable=SC2206
    options=($options)
    local score=("$RAFTER" score "$TINY" "${ONE[@]}" --input texts.jsonl "${options[@]}" --output)
    status 0 "${score[@]}" one.jsonl || return
    each 2 data=2 "${score[@]}" NAME.jsonl && all_same one.jsonl NAME.jsonl "scores ${options[*]}"
    each 4 data=4 "${score[@]}" NAME.jsonl && all_same one.jsonl NAME.jsonl "four ranks ${options[*]}"
  done
}

# The figures and the rows of an evaluation are those of one process.
case_eval() {
  local task file eval
  for task in perplexity:book.txt choices:choices.jsonl gsm8k:gsm.jsonl; do
    file=${task#*:} task=${task%:*}
    eval=("$RAFTER" eval "$task" "$TINY" "${ONE[@]}" --data "$file" --json)
    [ "$task" != gsm8k ] || eval=("${eval[@]/seq=32/seq=64}" --shots 0 --max-tokens 9)
    [ "$task" != perplexity ] || eval+=(--seq 16)
    status 0 "${eval[@]}" --output one.rows && ask out "$(figures)" >one.figures || return
    for count in 2 4; do
      each $count data=$count "${eval[@]}" --output NAME.rows || return
      ask out "$(figures)" >ranks.figures
      same one.figures ranks.figures "figures of $task on $count ranks"
      for LIBRARY in "${LIBRARIES[@]}"; do same one.rows "$LIBRARY.rows" "rows of $task"; done
    done
    head -2 "$LIBRARY.rows" >part.rows
    [ "$task" = perplexity ] || {
      # other copies of the model may continue
      status 0 ranks 2 "${eval[@]}" --mesh data=2 --output part.rows --continue &&
        same one.rows part.rows "rows of $task, continued"
    }
  done
}
figures() {
  local apart='k not in ("arena_bytes", "batch")'
  echo "{k: v for k, v in d.items() if 'second' not in k and $apart}"
}

# A killed rank ends a rollout. The same command continues it, also with other numbers of ranks.
case_rollout() {
  local count pid rows
  status 0 "${ROLL[@]}" --output whole.jsonl || return
  for LIBRARY in "${LIBRARIES[@]}"; do
    rm -f out.jsonl*
    for count in 2 4 2; do
      setsid timeout -k 10 120 "$(launcher "$LIBRARY")" -n $count "${ROLL[@]}" --mesh data=$count \
        --output "$PWD/out.jsonl" >out 2>err &
      rows=$(($(wc -l 2>/dev/null <out.jsonl) + 3))
      for _ in $(seq 600); do
        [ ! -e out.jsonl ] || [ "$(wc -l <out.jsonl)" -lt $rows ] || break
        kill -0 $! 2>/dev/null || break
        sleep 0.02
      done
      pid=$(process_of "$PWD/out.jsonl" $((count - 1)))
      [ -z "$pid" ] || kill -9 "$pid"
      wait $!
      [ $? != 124 ] || fail "a rollout hangs after a rank was killed ($LIBRARY)"
    done
    [ "$(wc -l <out.jsonl)" -ge 3 ] || fail 'the killed runs left no rows'
    [ "$LIBRARY" = openmpi ] && status 0 ranks 2 "${ROLL[@]}" --mesh data=2 --output out.jsonl --json &&
      holds out 'd["complete"] and d["all_answers"] == 60 and d["rows"] == 20'
    status 0 "${ROLL[@]}" --output out.jsonl
    same whole.jsonl out.jsonl "a rollout of killed ranks ($LIBRARY)"
  done
  each 4 data=4 "${ROLL[@]}" --output NAME.jsonl && all_same whole.jsonl NAME.jsonl 'a rollout on four ranks'
}

# A signal stops all copies. Complete rows stay, and the same command continues.
case_signal() {
  export OMPI_MCA_odls_base_sigkill_timeout=5
  status 0 "${ROLL[@]}" --output whole.jsonl || return
  for LIBRARY in "${LIBRARIES[@]}"; do
    rm -f out.jsonl*
    setsid env --default-signal=INT timeout -k 10 120 "$(launcher "$LIBRARY")" -n 2 "${ROLL[@]}" \
      --mesh data=2 --output out.jsonl >out 2>err &
    for _ in $(seq 600); do
      [ ! -e out.jsonl ] || [ "$(wc -l <out.jsonl)" -lt 4 ] || break
      sleep 0.02
    done
    kill -TERM "$(pgrep -P $! | head -1)"
    wait $!
    [ $? != 124 ] || fail "$LIBRARY does not end after SIGTERM"
    [ "$(grep -c 'prompts were written' err)" -le 1 ] || fail "two ranks speak: $(head -c 300 err)"
    status 0 ranks 2 "${ROLL[@]}" --mesh data=2 --output out.jsonl &&
      same whole.jsonl out.jsonl 'after a signal'
  done
  LIBRARY=${LIBRARIES[0]}
  status 0 ranks 2 "${ROLL[@]}" --mesh data=2 --output time.jsonl --max-seconds 0.01 --json &&
    holds out 'not d["complete"]'
  status 0 ranks 2 "${ROLL[@]}" --mesh data=2 --output time.jsonl &&
    same whole.jsonl time.jsonl 'after --max-seconds'
}

# A rank that was stopped ends the run with its name.
case_stopped_rank() {
  local rank pid
  export RAFTER_MPI_SECONDS=3
  for LIBRARY in "${LIBRARIES[@]}"; do
    for rank in 0 1; do
      rm -f out.jsonl*
      setsid timeout -k 10 120 "$(launcher "$LIBRARY")" -n 2 "${ROLL[@]/#3/400}" --batch 4 --mesh data=2 \
        --output "$PWD/out.jsonl" >out 2>err &
      for _ in $(seq 600); do [ ! -s out.jsonl ] || break; sleep 0.02; done
      pid=$(process_of "$PWD/out.jsonl" $rank)
      kill -STOP "$pid"
      wait $! && fail 'a run with a stopped rank ends with status 0'
      says "rank $rank \\($(hostname).*did not (send|take) a message within 3 s"
      kill -KILL "$pid" 2>/dev/null
      gone "$PWD/out.jsonl"
    done
  done
}

# The sampled answers and their rewards are those of one process.
case_rl() {
  local last=checkpoint-00000002
  status 0 "${RL[@]}" --steps 2 --eval-data held.jsonl --eval-every 1 --out one || return
  for mesh in data=2 data=4; do
    each ${mesh#data=} $mesh "${RL[@]}" --batch 16 --steps 2 --eval-data held.jsonl --eval-every 1 \
      --out NAME-$mesh || return
    for LIBRARY in "${LIBRARIES[@]}"; do
      same <(answers one) <(answers "$LIBRARY-$mesh") "answers of $mesh with $LIBRARY"
      [ -s "$LIBRARY-$mesh/$last/DONE" ] || fail 'no checkpoint'
    done
    [ ${#LIBRARIES[@]} = 1 ] ||
      same <(numbers "${LIBRARIES[0]}-$mesh") <(numbers "${LIBRARIES[1]}-$mesh") "figures of $mesh"
  done
  # the rows of a sequence are on two chips, and its gradient is that of one chip
  local even=("${RL[@]/#6/7}" --batch 16 --steps 1)
  status 0 "${even[@]}" --out even && each 2 context=2 "${even[@]}" --out NAME-context || return
  for LIBRARY in "${LIBRARIES[@]}"; do
    python3 - even "$LIBRARY-context" <<'PY' || fail "the gradient of context=2 ($LIBRARY)"
import json, sys
def norm(run):
    return next(r["grad_norm"] for r in map(json.loads, open(f"{run}/metrics.jsonl")) if r.get("step") == 1)
one, two = map(norm, sys.argv[1:])
assert one > 0 and abs(one - two) < 1e-4 * one, (one, two)
PY
  done
}
# the answers before the first optimizer step, which rounds differently on each mesh
answers() {
  python3 - "$1/samples.jsonl" <<'PY'
import json, sys
rows = [json.loads(l) for l in open(sys.argv[1])]
first = [r for r in rows if r["step"] == 0 or (r["step"] == 1 and not r.get("eval"))]
assert len(first) >= 4, len(first)
for r in first:
    for s in r["samples"]: print(r["step"], s["tokens"], s["logprobs"], s.get("reward"))
PY
}
numbers() {
  python3 - "$1/metrics.jsonl" <<'PY'
import json, sys
for line in open(sys.argv[1]):
    row = json.loads(line)
    if "step" in row: print({k: v for k, v in row.items() if "second" not in k and "limit" not in k})
PY
}

# Rank 0 runs the reward program, and the other ranks wait for the rewards as long as it takes.
case_rl_rewards() {
  local pid code mesh=data=2
  export RAFTER_MPI_SECONDS=5
  cat >rewards.py <<'PY'
import json, os, sys, time
open("started", "a").write(" ".join(os.environ) + "\n")
for line in sys.stdin:
    time.sleep(0.9)
    print(json.dumps({"id": json.loads(line)["id"], "reward": len(line) % 3}), flush=True)
PY
  local slow=("$RAFTER" rl "$TINY" "${ONE[@]}" --max-tokens 6 --ignore-eos --lora rank=4
    --data rl.jsonl --prompts 2 --steps 1 --reward-command 'python3 rewards.py')
  for LIBRARY in "${LIBRARIES[@]}"; do
    rm -f started
    status 0 ranks 2 "${slow[@]}" --samples 4 --mesh $mesh --out "slow-$LIBRARY" || return
    [ "$(wc -l <started)" = 1 ] || fail "$(wc -l <started) reward programs run ($LIBRARY)"
    ! grep -qE '\b(OMPI_COMM|PMIX?_|MPI_LOCAL|HYDI_)' started ||
      fail "the reward program has variables of the launcher: $(grep -oE '\b(OMPI|PMI|HYDI)\w+' started)"
    mesh=fsdp=2
    status 0 ranks 2 "${slow[@]}" --samples 40 --mesh data=2 --max-seconds 6 \
      --out "late-$LIBRARY" &&
      says 'the time is up at step 0 of 1' out
    # a signal during this wait ends all ranks
    rm -f started
    ranks 2 "${slow[@]}" --samples 40 --mesh data=2 --out "$PWD/signal-$LIBRARY" >out 2>err &
    for _ in $(seq 600); do [ ! -s started ] || break; sleep 0.05; done
    sleep 2
    for pid in 1 0; do kill -TERM "$(process_of "$PWD/signal-$LIBRARY" $pid)"; done
    code=0
    wait $! || code=$?
    [ $code = 130 ] || fail "$LIBRARY exits with $code after a signal: $(head -c 300 err)"
    gone "$PWD/signal-$LIBRARY"
  done
}

# Launchers pass standard input to rank 0 only.
case_input() {
  local one=("$RAFTER" generate "$TINY" "${ONE[@]}" --max-tokens 9)
  printf 'of the man \n' >prompt
  status 0 "${one[@]}" <prompt && cp out one.out || return
  for LIBRARY in "${LIBRARIES[@]}"; do
    status 0 ranks 2 "${one[@]}" --mesh data=2 <prompt &&
      same <(text_of one.out) <(text_of out) 'a prompt'
    status 0 ranks 2 "${one[@]}" --mesh tensor=2 --prompt - <prompt
    refuses 2 'there is no prompt|the prompt is empty' ranks 2 "${one[@]}" --mesh data=2 </dev/null
    status 0 "${ANSWERS[@]}" --output one.jsonl
    status 0 ranks 2 "${ANSWERS[@]/prompts.jsonl//dev/stdin}" --mesh data=2 --output piped.jsonl \
      <prompts.jsonl &&
      same one.jsonl piped.jsonl 'prompts of a pipe'
  done
}

cases "$@"
