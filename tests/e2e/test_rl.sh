#!/usr/bin/env bash
# `rafter rl`: a run and its files, plans of it, resuming to the bit, reward programs, bad input.
. "$(dirname "$0")/lib.sh"
LORA=(--lora rank=4,alpha=32)
RL=("$RAFTER" rl "$TINY" --max-tokens 6 --prompts 3 --samples 4 --lr 1e-2 --ignore-eos)
RULE=(--reward 'regex=[a-p]')
RUN=("${RL[@]}" "${LORA[@]}" --data prompts.jsonl "${RULE[@]}" --seed 3)

setup() {
  python3 - <<'PY'
import json
with open("prompts.jsonl", "w") as f:
    for i in range(10):
        row = {"id": f"p{i}", "prompt": "count " + "a" * (i % 4), "answer": str(i), "hard": i % 2}
        print(json.dumps(row), file=f)
with open("held.jsonl", "w") as f:
    for i in range(3): print(json.dumps({"prompt": f"held {i}", "answer": str(i)}), file=f)
PY
  cat >reward.py <<'PY'
import json, sys
mode = sys.argv[1] if len(sys.argv) > 1 else "good"
for n, line in enumerate(sys.stdin):
    row = json.loads(line)
    value = sum(c in "aeiou" for c in row["answer"]) + row["row"]["hard"] * 0.5
    if n == 20 and mode == "dies": sys.exit(7)
    if n == 20 and mode == "nan": print('{"id": %d, "reward": NaN}' % row["id"], flush=True); continue
    if n == 20 and mode == "words": print("I think it is good", flush=True); continue
    print(json.dumps({"id": row["id"], "reward": value, "rewards": {"vowels": value}}), flush=True)
PY
  status 0 "${RUN[@]}" --steps 6 --out whole
}

# steps RUN: the lines of metrics.jsonl without values that depend on the clock.
steps() {
  python3 - "$1/metrics.jsonl" <<'PY'
import json, sys
for line in open(sys.argv[1]):
    row = json.loads(line)
    if "step" in row: print({k: v for k, v in row.items() if "second" not in k and "limit" not in k})
PY
}
same_run() { # same_run A B WHAT
  steps "$1" >a.txt && steps "$2" >b.txt && same a.txt b.txt "$3: metrics"
  local file last=checkpoint-00000006
  for file in adapter_model optimizer; do
    same "$1/$last/$file.safetensors" "$2/$last/$file.safetensors" "$3: $file"
  done
}

case_files() {
  status 0 "${RUN[@]}" --steps 4 --eval-data held.jsonl --eval-every 2 --out run --json && {
    python3 - run <<'PY' || fail "the run's folder is not what docs/rl.md says"
import json, math, os, sys
run, bad = sys.argv[1], []
lines = [json.loads(l) for l in open(run + "/metrics.jsonl")]
first, steps = lines[0], [l for l in lines[1:] if l.get("step")]
if first["arena_bytes"] != first["peak_bytes"] or first["arena_bytes"] < 1e5: bad.append(f"memory {first}")
want = set("step loss lr grad_norm reward reward_std rewards kl entropy clip_fraction ratio_min ratio_max "
           "answer_tokens cut_fraction flat_groups groups samples tokens sample_seconds reward_seconds "
           "score_seconds train_seconds predicted_sample_seconds predicted_score_seconds "
           "predicted_train_seconds sample_tokens_per_second".split())
bad += [f"step {s['step']} lacks {want - s.keys()}" for s in steps if not want <= s.keys()]
bad += [f"ratio of step {s['step']}" for s in steps if s["ratio_min"] != 1 or s["ratio_max"] != 1]
if [("eval_reward" in s) for s in steps] != [False, True, False, True]: bad.append("evaluations")
if lines[1]["step"] != 0: bad.append("no evaluation before the first step")
if steps[0]["kl"] != 0 or not steps[-1]["kl"] > 0: bad.append("kl")
if [s["samples"] for s in steps] != [12] * 4: bad.append("samples")
groups = [json.loads(l) for l in open(run + "/samples.jsonl")]
if sum(not g.get("eval") for g in groups) != 8 or len(groups) != 14: bad.append(f"{len(groups)} groups")
for g in groups:
    for s in g["samples"]:
        n, learns = len(s["tokens"]), not g.get("eval")
        if n != len(s["logprobs"]) or n != len(s["pieces"]): bad.append("lengths")
        if learns and n != len(s["kl"]): bad.append("kl of tokens")
        if learns and abs(sum(x["advantage"] for x in g["samples"])) > 1e-4: bad.append("advantages")
for name in "adapter_config.json adapter_model.safetensors optimizer.safetensors state.json DONE".split():
    if not os.path.exists(f"{run}/checkpoint-00000004/{name}"): bad.append(name)
print(*bad, sep="\n") if bad else None
sys.exit(bool(bad))
PY
    holds out 'len(rows) == 6 and rows[-1]["step"] == 4' 'one object for each line of metrics.jsonl'
  }
  status 0 "$RAFTER" inspect run/checkpoint-00000004 && says 'adapter' out
}

# Where the trainer has the bits of the sampler, one op computes the head. DeepSeek's cache has latent
# vectors, so the bits differ there.
case_head() {
  local run=(--max-tokens 3 --prompts 2 --samples 2 "${LORA[@]}" --data prompts.jsonl "${RULE[@]}" --steps 1)
  local latent="deepseek:layers=1,width=32,heads=2,ff=64,vocab=257,seq=64" how
  local heads='[o["op"] for o in d["ops"] if o["op"].startswith(("policy_", "head_loss"))]'
  for how in "" "--kv-dtype f32" "--top-k 4 --temperature 0.5" "--compute fast --weights q4"; do
    # shellcheck disable=SC2086
    status 0 "$RAFTER" rl "$TINY" "${run[@]}" $how --out one &&
      holds one/plan.json "$heads == ['policy_loss', 'head_loss_grad']" "one head with $how" &&
      holds one/metrics.jsonl 'rows[1]["ratio_min"] == rows[1]["ratio_max"] == 1' "the ratio with $how"
    rm -rf one
  done
  for how in "$TINY --iterations 2" "$TINY --kv-dtype bf16" "$latent"; do
    # shellcheck disable=SC2086
    status 0 "$RAFTER" rl $how "${run[@]}" --out two &&
      holds two/plan.json "$heads == ['head_loss', 'policy_loss', 'head_loss_bwd']" "two heads with $how"
    rm -rf two
  done
}

arena() { ask "$1/metrics.jsonl" 'rows[0]["arena_bytes"]'; }

# The plan is the program: the same options give the same bytes.
case_plan() {
  local how seq
  for how in "--beta 0.04" "--beta 0" "--loss rloo --batch 5 --microbatch 1" "--batch 7 --microbatch 3" \
    "--dtype bf16 --remat block"; do
    # shellcheck disable=SC2086
    status 0 "${RUN[@]}" --steps 1 --out "plan" $how && bytes=$(arena plan)
    status 0 "$RAFTER" plan --job rl --config plan/run.json --json &&
      holds out "d['memory']['peak_bytes'] == $bytes and d['rl']['seconds'] > 0" "bytes of the plan of $how"
    rm -rf plan
  done
  # without --batch, the plan chooses the sizes that the run chooses
  seq=$(ask whole/run.json 'd["options"]["seq"]') bytes=$(arena whole)
  status 0 "$RAFTER" plan "$TINY" --job rl "${LORA[@]}" --requests 3 --samples 4 --max-tokens 6 \
    --prompt-tokens 6 --seq "$seq" --dtype f32 --json &&
    holds out "d['memory']['peak_bytes'] == $bytes" 'bytes of the plan with default sizes'
  # all weights are trained: the reference has a copy of its own
  status 0 "${RL[@]}" --data prompts.jsonl "${RULE[@]}" --steps 2 --out full && says 'its own copy' out &&
    bytes=$(arena full)
  status 0 "$RAFTER" plan --job rl --config full/run.json --json &&
    holds out "d['memory']['peak_bytes'] == $bytes" 'the plan with two copies has the bytes of the run'
}

case_resume() {
  local at
  for at in 0.1 0.3 0.6 1; do
    rm -rf killed
    "${RUN[@]}" --steps 6 --save-every 1 --out killed >out 2>err & pid=$!
    sleep $at
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    ls -d killed/checkpoint-????????/DONE >found 2>/dev/null || { rm -rf killed; continue; }
    status 0 "$RAFTER" rl --resume killed && same_run whole killed "killed after $at s"
  done
  # a run that is killed before its first checkpoint begins again
  "${RUN[@]}" --steps 1000 --save-every 0 --out begun >out 2>err & pid=$!
  for _ in $(seq 400); do
    ! grep -qs '"step":2' begun/metrics.jsonl || break
    sleep 0.05
  done
  kill -9 $pid
  wait $pid 2>/dev/null
  status 0 "$RAFTER" rl --resume begun --steps 6 &&
    same_run whole begun 'killed before the first checkpoint' &&
    says 'the run has no checkpoint yet, so it begins again' out
  status 0 "${RUN[@]}" --steps 6 --out once --max-seconds 0.001s && says 'step 0 of 6 .--max-seconds' out &&
    status 0 "$RAFTER" rl --resume once --max-seconds 10m && same_run whole once 'stopped by time'
  # the first evaluation ends in time too
  status 0 "${RUN[@]}" --steps 6 --eval-data held.jsonl --out early --max-seconds 0.001s &&
    says 'step 0 of 6 .--max-seconds' out && [ -e early/checkpoint-00000000/DONE ] &&
    status 0 "$RAFTER" rl --resume early --max-seconds 10m &&
    [ "$(ask early/metrics.jsonl 'sum("eval_reward" in row for row in rows)')" = 2 ] ||
    fail 'an evaluation that was stopped by time is not repeated'
  status 0 "${RUN[@]}" --steps 6 --threads 1 --batch 2 --out other &&
    same_run whole other 'other threads and batch'
  status 0 "${RUN[@]}" --steps 6 --batch 12 --microbatch 5 --out packed &&
    same_run whole packed 'a microbatch that does not divide the batch'
}

case_signals() {
  "${RUN[@]}" --steps 1000 --out stopped >out 2>err & pid=$!
  for _ in $(seq 200); do grep -q '"step":3' stopped/metrics.jsonl 2>/dev/null && break; sleep 0.05; done
  kill -INT $pid
  wait $pid
  [ $? = 130 ] || fail "a run that is stopped exits $?"
  says 'continue with --resume' err
  status 0 "$RAFTER" rl --resume stopped --steps 6 && { ls -d stopped/checkpoint-* >list; says . list; }
}

case_reward_command() {
  local how message
  local run=("${RL[@]}" "${LORA[@]}" --data prompts.jsonl)
  status 0 "${run[@]}" --reward-command "python3 reward.py" --steps 3 --out good &&
    holds good/metrics.jsonl 'all("command.vowels" in r["rewards"] for r in rows[1:])' 'parts of the command'
  for how in dies nan words; do
    refuses 1 'reward' "${run[@]}" --reward-command "python3 reward.py $how" --steps 5 --out "bad-$how" &&
      says 'p[0-9]' # the row is named
    [ -e "bad-$how/checkpoint-00000001/DONE" ] || fail "a reward that $how loses the steps before"
    status 0 "$RAFTER" rl --resume "bad-$how" --reward-command 'python3 reward.py' --steps 2
  done
  refuses 1 'reward' "${run[@]}" --reward-command 'exit 3' --steps 5 --out none
  [ ! -e none/checkpoint-00000000 ] || fail 'a program that ends at once leaves a checkpoint'
}

# A run whose numbers are no longer finite keeps its last checkpoint.
case_diverged() {
  local full=("${RL[@]}" --data prompts.jsonl "${RULE[@]}" --seed 3)
  status 0 "${full[@]}" --steps 2 --keep 1 --out broken &&
    refuses 1 'not finite' "$RAFTER" rl --resume broken --steps 30 --lr 100 &&
    says '^hint: the last checkpoint is untouched; if numbers are not finite, lower --lr'
  [ -e broken/checkpoint-00000002/DONE ] || fail 'the good checkpoint is gone'
  status 0 "$RAFTER" generate broken --prompt ab --max-tokens 2
  refuses 2 'no effect with --schedule constant' "${RUN[@]}" --steps 2 --warmup 10 --out x
}

# --max-seconds also ends the wait for rewards.
case_late_rewards() {
  local began=$SECONDS
  printf '%s\n' 'import json, sys, time' 'for line in sys.stdin:' '    time.sleep(9)' \
    '    print(json.dumps({"id": json.loads(line)["id"], "reward": 1}), flush=True)' >slow.py
  status 0 "${RL[@]}" "${LORA[@]}" --data prompts.jsonl --reward-command 'python3 slow.py' --steps 5 \
    --max-seconds 2 --out late && says 'at step 0 of 5' out
  [ $((SECONDS - began)) -lt 20 ] || fail "the run waits for rewards: $((SECONDS - began)) s"
}

# A conversation may be the value of "prompt", as in data sets of TRL.
case_conversations() {
  echo '{% for m in messages %}{{ m.content }}{% endfor %}' >chat.jinja
  printf '{"prompt": [{"role": "user", "content": "a%d"}], "idx": %d}\n' 1 1 2 2 3 3 >talks.jsonl
  status 0 "${RL[@]}" "${LORA[@]}" --data talks.jsonl --template chat.jinja "${RULE[@]}" --steps 1 \
    --out talks
  status 0 "$RAFTER" generate "$TINY" --input talks.jsonl --template chat.jinja --max-tokens 2 \
    --output o.jsonl
}

case_losses() {
  local loss
  for loss in grpo dr-grpo dapo gspo rloo reinforce++ cispo; do
    status 0 "${RUN[@]}" --loss $loss --steps 2 --iterations 2 --mask-cut --out "loss-$loss" --overlong 2 ||
      continue
    holds "loss-$loss/metrics.jsonl" 'all(math.isfinite(r["loss"]) for r in rows[1:])' "$loss" &&
      holds "loss-$loss/metrics.jsonl" 'all("overlong" in r["rewards"] for r in rows[1:])' "$loss"
  done
}

case_bad_input() {
  local base=("$RAFTER" rl "$TINY" "${LORA[@]}" --max-tokens 6) wide=${TINY/32,heads/48,heads}
  refuses 2 'data is missing' "${base[@]}" "${RULE[@]}"
  refuses 2 'reward' "${base[@]}" --data prompts.jsonl
  refuses 2 'expected 2 or more' "${base[@]}" --data prompts.jsonl "${RULE[@]}" --samples 1 --out x
  refuses 2 'unknown|what' "${base[@]}" --data prompts.jsonl --reward nonsense
  echo '{"prompt": "no answer"}' >bare.jsonl
  refuses 1 'bare.jsonl, line 1' "${base[@]}" --data bare.jsonl --reward gsm8k --out x
  refuses 2 'no room' "${base[@]}" --data prompts.jsonl "${RULE[@]}" --seq 6
  refuses 1 'prompt' "${base[@]}" --data prompts.jsonl "${RULE[@]}" --seq 8
  refuses 1 'nothing.jsonl' "${base[@]}" --data nothing.jsonl "${RULE[@]}"
  refuses 2 'eval-data' "${base[@]}" --data prompts.jsonl "${RULE[@]}" --eval-every 5
  refuses 1 'holds a run already' "${RUN[@]}" --steps 1 --out whole
  refuses 1 'adapter' "$RAFTER" rl "$wide" --adapter whole/checkpoint-00000006 --data prompts.jsonl \
    "${RULE[@]}" --out y
  [ ! -e x ] && [ ! -e y ] || fail 'a run that did not begin leaves a folder'
}

cases "$@"
