#!/usr/bin/env bash
# `rafter train --loss dpo`, ipo and simpo: the accuracy of held-out pairs rises, stopped runs
# continue to the bit, the plan is what runs, and bad rows and options are refused.
. "$(dirname "$0")/lib.sh"
SHAPE=llama:layers=2,width=32,heads=4,kv_heads=2,ff=64,vocab=257,seq=48
PREFER=("$RAFTER" train "$SHAPE" --threads 2 --batch 8 --data pairs.jsonl --lr 1e-2 --val-fraction 0.2)
LORA=(--lora rank=4,alpha=8)

# pairs FILE ROWS: the chosen answer says the first word of the prompt, the rejected one another.
pairs() { python3 -c '
import json, random, sys
r = random.Random(3); words = "red blue green cold warm tall".split()
with open(sys.argv[1], "w") as f:
    for _ in range(int(sys.argv[2])):
        first, second = r.sample(words, 2)
        row = {"prompt": f"{first} {second} =", "chosen": " yes " + first, "rejected": " no " + second}
        f.write(json.dumps(row) + "\n")
' "$1" "$2"; }

# preferences RUN: the numbers of each step that do not depend on the clock.
preferences() {
  python3 - "$1/metrics.jsonl" <<'PY'
import json, sys
timed = "seconds tokens_per_second mfu predicted_seconds reference_seconds".split()
for line in open(sys.argv[1]):
    d = json.loads(line)
    if "step" in d: print({k: v for k, v in d.items() if k not in timed})
PY
}
newest() { find "$1" -name DONE | sort | tail -1 | xargs -r dirname; }

setup() { pairs pairs.jsonl 60; }

# Each loss, for adapters and for all weights: the accuracy of held-out pairs rises.
case_learns() {
  for loss in dpo ipo simpo; do
    status 0 "${PREFER[@]}" "${LORA[@]}" --loss $loss --steps 20 --val-every 10 --out $loss && {
      says "^loss $loss: 4 pairs in a step" out
      says 'step +20/20 .* val [0-9.]+ \(100.0 %\) .*acc 100.0 %  margin [0-9.]+' out
      says 'predicted [0-9]+ bytes, allocated [0-9]+ bytes' out
      python3 - $loss <<'PY' || fail "metrics.jsonl of $loss is not what docs/formats.md says"
import json, math, sys
lines = [json.loads(l) for l in open(sys.argv[1] + "/metrics.jsonl")]
first, steps, bad = lines[0], lines[1:], []
want = set("step loss accuracy margin chosen_reward rejected_reward chosen_logprob rejected_logprob".split())
want |= {"pairs", "reference_seconds"}
bad += [f"step {s['step']} lacks {want - s.keys()}" for s in steps if not want <= s.keys()]
if len(steps) != 20 or any(s["pairs"] != 4 for s in steps): bad.append("steps or pairs")
for s in steps:
    off = s["margin"] - (s["chosen_reward"] - s["rejected_reward"])
    if abs(off) > 1e-4 * (1 + abs(s["margin"])): bad.append(f"margin {s}")
last = steps[-1]
if last["val_accuracy"] != 1 or not last["val_margin"] > 0 or "val_loss" not in steps[9]:
    bad.append("validation")
# before the first step, the policy is the reference
start = {"dpo": math.log(2), "ipo": 25}.get(sys.argv[1])
if start and (abs(steps[0]["loss"] - start) > 1e-4 or steps[0]["margin"] or steps[0]["accuracy"]):
    bad.append(f"first step {steps[0]}")
if not steps[-1]["loss"] < steps[0]["loss"]: bad.append("loss")
plan = json.load(open(sys.argv[1] + "/plan.json"))
if plan["memory"]["peak_bytes"] != first["arena_bytes"]: bad.append("plan.json's peak is not the arena")
print(*bad, sep="\n") if bad else None
sys.exit(bool(bad))
PY
    }
  done
  status 0 "${PREFER[@]}" --loss dpo --steps 20 --out full &&
    says 'reference is the model before step 1' out
  holds full/metrics.jsonl 'rows[1]["margin"] == 0 and rows[-1]["val_accuracy"] == 1'
  status 0 "$RAFTER" report dpo full simpo
  # Scores of rafter agree: the adapter prefers the chosen answers.
  python3 - <<'PY'
import json
with open("sides.jsonl", "w") as f:
    for line in list(open("pairs.jsonl"))[-12:]:
        d = json.loads(line)
        for side in ("chosen", "rejected"):
            text = (d["prompt"] + d[side]).encode()
            f.write(json.dumps({"tokens": [*text, 256], "answer": 1 + len(d[side])}) + "\n")
PY
  answers='[sum(r["logprobs"][-json.loads(l)["answer"]:]) for r, l in zip(rows, open("sides.jsonl"))]'
  status 0 "$RAFTER" score "$SHAPE" --adapter dpo --input sides.jsonl --json && ask out "$answers" >tuned
  status 0 "$RAFTER" score "$SHAPE" --input sides.jsonl --json && ask out "$answers" >base
  python3 -c '
t, b = (eval(open(f).read()) for f in ("tuned", "base"))
raise SystemExit(not all((t[i] - b[i]) > (t[i + 1] - b[i + 1]) for i in range(0, len(t), 2)))' ||
    fail 'scores with the adapter do not prefer the chosen answers'
}

# run.json repeats a run to the bit, with another number of threads and other microbatches.
case_repeats() {
  status 0 "${PREFER[@]}" "${LORA[@]}" --loss dpo --steps 8 --val-every 4 --out first
  preferences first >first.txt
  status 0 "$RAFTER" train --config first/run.json --threads 1 --out again && preferences again >again.txt
  same first.txt again.txt '--config run.json repeats the run'
  status 0 "$RAFTER" train --config first/run.json --remat block --out remat && preferences remat >again.txt
  same first.txt again.txt '--remat block gives the numbers of none'
  local last=checkpoint-00000008/adapter_model.safetensors
  same first/$last again/$last 'a repeated run'
}

# A killed run continues to the bit, for adapters and for all weights.
case_killed() {
  local kind
  for kind in lora full; do
    local -a more=(--loss dpo --val-every 7)
    [ $kind = full ] || more+=("${LORA[@]}")
    status 0 "${PREFER[@]}" "${more[@]}" --steps 30 --out whole-$kind
    "${PREFER[@]}" "${more[@]}" --steps 30 --save-every 1 --keep 1 --out $kind >out 2>err & pid=$!
    for try in $(seq 40); do
      sleep "0.$((RANDOM % 25 + 5))"
      kill -9 $pid 2>/dev/null
      wait $pid 2>/dev/null
      [ "$(newest $kind)" = $kind/checkpoint-00000030 ] && break
      if [ -z "$(newest $kind)" ]; then
        rm -rf $kind
        "${PREFER[@]}" "${more[@]}" --steps 30 --save-every 1 --keep 1 --out $kind >out 2>err & pid=$!
      else
        "$RAFTER" train --resume $kind >out 2>err & pid=$!
      fi
    done
    wait $pid 2>/dev/null
    status 0 "$RAFTER" train --resume $kind
    preferences whole-$kind >whole.txt
    preferences $kind >again.txt
    same whole.txt again.txt "$kind: after $try times kill -9 the metrics are those of a whole run"
    for file in optimizer references $([ $kind = lora ] && echo adapter_model || echo model); do
      cmp whole-$kind/checkpoint-00000030/$file.safetensors $kind/checkpoint-00000030/$file.safetensors ||
        fail "$kind: after kill -9 another $file.safetensors"
    done
  done
  # More steps need references of other pairs, which the first weights give.
  status 0 "${PREFER[@]}" --loss dpo --val-every 7 --steps 6 --out short
  status 0 "$RAFTER" train --resume short --steps 30 --out longer &&
    holds longer/metrics.jsonl 'rows[-1]["step"] == 30 and rows[-1]["val_accuracy"] == 1' 'a longer run'
}

# Signals and --max-seconds save and end in time.
case_ends() {
  "${PREFER[@]}" --loss dpo --steps 100000 --out stopped >out 2>err & pid=$!
  for _ in $(seq 400); do
    [ "$(grep -c '"step"' stopped/metrics.jsonl 2>/dev/null)" -ge 3 ] 2>/dev/null && break
    sleep 0.05
  done
  kill -INT $pid
  wait $pid
  [ $? = 130 ] || fail 'SIGINT does not end the run with 130'
  [ -n "$(newest stopped)" ] || fail 'SIGINT leaves no checkpoint'
  status 0 "${PREFER[@]}" "${LORA[@]}" --loss dpo --steps 100000 --max-seconds 2 --out timed &&
    says '^stopped after .* s at step [0-9]+ of 100000 .--max-seconds.' out
  # no time for the references of all pairs: they are saved
  pairs many.jsonl 3000
  status 0 "$RAFTER" train "$SHAPE" --threads 1 --batch 8 --data many.jsonl --loss dpo --steps 100000 \
    --max-seconds 0.05 --out early && says 'at step 0 of 100000' out
  [ -e early/checkpoint-00000000/references.safetensors ] ||
    fail 'a run that ends before its first step saves no references'
  status 0 "$RAFTER" train --resume early --steps 2 --max-seconds 60 && says 'step +2/2' out
}

# `plan` plans the run: the same arena, and the price of the reference.
case_plan() {
  local more
  for more in "" "--lora rank=4" "--dtype bf16" "--lora rank=4 --dtype bf16 --accumulate 2 --remat block"; do
    # shellcheck disable=SC2086
    status 0 "$RAFTER" plan "$SHAPE" --loss dpo --batch 8 --threads 2 --backend cpu $more --json
    cp out plan.json
    # shellcheck disable=SC2086
    status 0 "${PREFER[@]}" --loss dpo --steps 1 $more --out "planned$more" --backend cpu
    holds "planned$more/metrics.jsonl" \
      'rows[0]["arena_bytes"] == json.load(open("plan.json"))["memory"]["peak_bytes"]' "arena of $more"
    holds plan.json 'd["reference"]["seconds"] > 0 and d["reference"]["pairs"] == 4'
  done
  status 0 "$RAFTER" plan "$SHAPE" --loss simpo --batch 8 --json && holds out '"reference" not in d'
  status 0 "$RAFTER" plan "$SHAPE" --loss dpo --batch 8 && says '^reference .* for the 4 pairs of a step' out
  status 0 "$RAFTER" plan "$SHAPE" --loss dpo --batch 8 --fit && says 'reference' out
}

case_refuses() {
  no() {
    refuses "$1" "$2" "${PREFER[@]}" --steps 1 --out no "${@:3}"
    [ ! -e no ] || fail "a refused run leaves its folder: $*"
  }
  no 2 'no effect with --loss nll' --beta 0.2
  says '^hint: add --loss dpo'
  no 2 'gamma has no effect with --loss dpo' --loss dpo --gamma 1
  no 2 'label-smoothing has no effect with --loss ipo' --loss ipo --label-smoothing 0.1
  no 2 'beta.*out of range|--beta' --loss dpo --beta 0
  refuses 2 "expected a multiple of 2, got 3" "$RAFTER" plan "$SHAPE" --loss dpo --batch 3
  no 2 'microbatch' --loss dpo --microbatch 1
  no 2 'multiple of 2 sequences, got 1' --loss dpo --accumulate 8
  no 2 'counts the tokens of the answers' --loss dpo --loss-on all
  refuses 2 'hinge' "${PREFER[@]}" --loss hinge --out no
  refuses 2 'loss has no effect with --job generate' "$RAFTER" plan "$SHAPE" --job generate --loss dpo
  refuses 2 'loss grpo is one of reinforcement learning' "$RAFTER" plan "$SHAPE" --loss grpo
  refuses 2 'loss dpo|unknown loss' "$RAFTER" plan "$SHAPE" --job rl --loss dpo
  echo '{"prompt": "a", "completion": "b"}' >texts.jsonl
  no 1 'no pair of answers .texts.jsonl, line 1' --loss dpo --data texts.jsonl
  no 1 'field "completion"' --data pairs.jsonl
  text book.txt 2000
  no 2 'rows of .jsonl files' --loss dpo --data book.txt
  no 2 'rows of .jsonl files' --loss dpo --data random:seed=0
  no 1 'cannot open nowhere.jsonl' --loss dpo --data nowhere.jsonl
  { head -2 pairs.jsonl; echo '{"prompt": "a", "chosen": "b"}'; } >bad.jsonl
  no 1 'bad.jsonl, line 3.*no "rejected"' --loss dpo --data bad.jsonl
  {
    head -4 pairs.jsonl
    echo '{"prompt": "a", "chosen": "b", "rejected": "b"}'
    echo '{"prompt": "a", "chosen": "", "rejected": "b"}'
    printf '{"prompt": "%060d", "chosen": "x", "rejected": "b"}\n' 1
    printf '{"prompt": "a", "chosen": "%060d", "rejected": "b"}\n' 1
  } >odd.jsonl
  status 0 "${PREFER[@]}" --loss dpo --steps 1 --data odd.jsonl --out odd && {
    says 'left out 1 pair whose answers are equal' out
    says 'left out 1 pair with an empty answer' out
    says 'left out 1 pair whose prompt fills --seq 48' out
    says 'truncated the answers of 1 pair' out
  }
  status 0 "${PREFER[@]}" --loss dpo --steps 2 --out base
  pairs pairs.jsonl 50
  refuses 1 'other pairs|data is not what' "$RAFTER" train --resume base --steps 4
}
cases "$@"
