#!/usr/bin/env bash
# --backend xla: faults of plugins, and training, resuming, generating and scoring next to the CPU's
# kernels. RAFTER_PJRT_PLUGIN names a plugin that runs here; cases that need it are skipped without it.
INSTALLED=${RAFTER_PLUGINS:-$HOME/.cache/rafter-plugins} # lib.sh sets another HOME
. "$(dirname "$0")/lib.sh"

PLUGIN=${RAFTER_PJRT_PLUGIN:-$(find "$INSTALLED" -name xla_cpu_pjrt.so 2>/dev/null | head -1)}
unset RAFTER_PJRT_PLUGIN
plugin() {
  [ -n "$PLUGIN" ] && return
  echo "skip: $1 needs a PJRT plugin (./dev setup --xla, or RAFTER_PJRT_PLUGIN)" >&3
  return 1
}
XLA=(--backend xla --plugin "$PLUGIN")
MOE=mixtral:layers=2,width=32,heads=4,kv_heads=4,head_dim=8,ff=24,vocab=256,seq=32,experts=4,experts_used=2
TRAIN=("$RAFTER" train "$TINY" "${QUICK[@]}" --data book.txt --lr 1e-3 --val-every 5)

setup() { text book.txt 20000; }

# near A B KEYS BOUND: the numbers of two runs' steps agree.
near() {
  python3 - "$1/metrics.jsonl" "$2/metrics.jsonl" "$3" "$4" <<'PY' || fail "$3 of $1 and $2: more than $4"
import json, sys
a, b = ({r["step"]: r for r in map(json.loads, open(f)) if "loss" in r} for f in sys.argv[1:3])
steps = sorted(set(a) & set(b))
keys = sys.argv[3].split(",")
worst = max((abs(a[s][k] - b[s][k]) / max(1e-3, abs(a[s][k])) for s in steps for k in keys), default=9)
print(f"{len(steps)} steps, largest relative difference {worst:.2e}")
sys.exit(not (steps and worst <= float(sys.argv[4])))
PY
}

case_faults() {
  refuses 2 'needs a PJRT plugin' "${TRAIN[@]}" --steps 1 --backend xla
  refuses 2 'none.so' "${TRAIN[@]}" --steps 1 --backend xla --plugin none.so
  refuses 2 'book.txt' "${TRAIN[@]}" --steps 1 --backend xla --plugin book.txt
  refuses 2 'knows no topology' "$RAFTER" plan gpt2 --on local --compile none.so
  refuses 2 'none.so' "$RAFTER" plan gpt2 --on h100-sxm:2x8 --mesh data=16 --batch 16 --compile none.so
  refuses 2 'none.so' "$RAFTER" plan gpt2 --on tpu-v5e --compile none.so
  refuses 2 'plain matrices' \
    "$RAFTER" generate "$TINY" --prompt a --weights int8 --backend xla --plugin none.so
}

case_stablehlo() {
  status 0 "$RAFTER" plan "$TINY" --batch 4 --stablehlo programs || return
  [ -s programs/step.mlir ] && [ -s programs/README.md ] || fail 'the folder holds the program and its README'
  grep -q 'tf.aliasing_output' programs/step.mlir || fail 'weights are donated'
  grep -q 'loc("step/micro/block.0/mlp/up' programs/step.mlir || fail 'operations have the names of ops'
}

case_train() {
  plugin 'training with XLA' || return
  status 0 "${TRAIN[@]}" --steps 50 --out cpu
  status 0 "${TRAIN[@]}" --steps 50 "${XLA[@]}" --out xla && near cpu xla loss 1e-4 &&
    near cpu xla grad_norm 1e-3
  status 0 "${TRAIN[@]}" --steps 20 --dropout 0.1 --clip 1 --accumulate 2 --out cpu2
  status 0 "${TRAIN[@]}" --steps 20 --dropout 0.1 --clip 1 --accumulate 2 "${XLA[@]}" --out xla2 &&
    near cpu2 xla2 loss 1e-4
}

case_resume() {
  plugin 'resuming with XLA' || return
  status 0 "${TRAIN[@]}" --steps 10 --save-every 5 --keep 9 "${XLA[@]}" --out whole
  cp -r whole part && rm -r part/checkpoint-00000010
  status 0 "$RAFTER" train --resume part && near whole part loss 0
}

# moments A B BOUND: after one step, the first moments (a tenth of the gradients) of two checkpoints agree.
moments() {
  python3 - "$1" "$2" "$3" <<'PY' || fail "the gradients of $1 and $2 differ by more than $3"
import array, glob, json, math, struct, sys
def read(run):
    f = open(glob.glob(run + "/checkpoint-*/optimizer.safetensors")[0], "rb")
    head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    base, out = f.tell(), {}
    for name, t in head.items():
        if not name.startswith("m/"): continue
        f.seek(base + t["data_offsets"][0])
        out[name] = array.array("f", f.read(t["data_offsets"][1] - t["data_offsets"][0]))
    return out
a, b = read(sys.argv[1]), read(sys.argv[2])
def error(x, y): return math.sqrt(sum((p - q) ** 2 for p, q in zip(x, y)) / max(1e-30, sum(p * p for p in x)))
worst = max((error(a[n], b[n]), n) for n in a)
print(f"{len(a)} tensors, largest relative difference {worst[0]:.2e} ({worst[1]})")
sys.exit(not (a.keys() == b.keys() and worst[0] <= float(sys.argv[3])))
PY
}

# on_meshes NAME MESH... -- COMMAND...: 20 steps on each mesh have the losses of one device, and the
# first step has its gradients. ON_MESH: options for the meshes alone.
ON_MESH=()
on_meshes() {
  local name=$1 meshes=() mesh
  shift
  while [ "$1" != -- ]; do meshes+=("$1"); shift; done
  shift
  status 0 "$@" --steps 20 "${XLA[@]}" --out "$name" &&
    status 0 "$@" --steps 1 "${XLA[@]}" --out "$name-first" || return
  for mesh in "${meshes[@]}"; do
    status 0 "$@" --steps 20 "${XLA[@]}" --mesh "$mesh" "${ON_MESH[@]}" --out "$name-$mesh" &&
      near "$name" "$name-$mesh" loss 1e-4
    status 0 "$@" --steps 1 "${XLA[@]}" --mesh "$mesh" "${ON_MESH[@]}" --out "$name-$mesh-first" &&
      moments "$name-first" "$name-$mesh-first" 1e-5 && near "$name-first" "$name-$mesh-first" grad_norm 1e-5
  done
}

case_meshes() {
  plugin 'training on several devices' || return
  on_meshes plain data=4 fsdp=4 fsdp=2,tensor=2 context=2,tensor=2 sequence=2 -- "${TRAIN[@]}" --clip 1
}

case_meshes_dropout() {
  plugin 'dropout on several devices' || return
  on_meshes dropped data=4 fsdp=2,tensor=2 context=2,tensor=2 -- \
    "$RAFTER" train "$TINY" --threads 2 --batch 8 --data book.txt --lr 1e-3 \
    --dropout 0.1 --clip 1 --accumulate 2
}

case_mesh_experts() {
  plugin 'experts on several devices' || return
  local ON_MESH=(--capacity 4) # room for every row
  on_meshes experts expert=4 -- "$RAFTER" train "$MOE" "${QUICK[@]}" --data book.txt --lr 1e-3
}

case_mesh_resume() {
  plugin 'resuming on another mesh' || return
  status 0 "${TRAIN[@]}" --steps 10 --save-every 5 --keep 9 "${XLA[@]}" --mesh data=4 --out whole
  cp -r whole part && rm -r part/checkpoint-00000010
  status 0 "$RAFTER" train --resume part --mesh fsdp=2,tensor=2 && near whole part loss 1e-4
}

case_mesh_score() {
  plugin 'scoring on several devices' || return
  local mesh
  status 0 "${TRAIN[@]}" --steps 30 --out run
  head -c 1000 book.txt >text.txt
  local score=("$RAFTER" score run --input text.txt --seq 32 --stride 16 --json)
  status 0 "${score[@]}" && cp out cpu.json
  for mesh in data=4 fsdp=4 fsdp=2,tensor=2 context=2,tensor=2 sequence=2; do
    status 0 "${score[@]}" "${XLA[@]}" --mesh "$mesh" &&
      python3 - cpu.json out <<'PY' || fail "$mesh: other log-probabilities"
import json, sys
a, b = (json.load(open(f))["logprobs"] for f in sys.argv[1:])
worst = max(abs(x - y) for x, y in zip(a[1:], b[1:]))
print(f"{len(a)} tokens, largest difference {worst:.2e}")
sys.exit(not (len(a) == len(b) == 1000 and worst < 1e-4))
PY
  done
}

case_mesh_generate() {
  plugin 'generating on several devices' || return
  local mesh
  status 0 "${TRAIN[@]}" --steps 30 --out run
  printf '%s\n' '{"prompt": "In the beginning "}' \
    '{"prompt": "And he said unto "}' '{"prompt": "of the"}' >ask.jsonl
  local answer=("$RAFTER" generate run --input ask.jsonl --max-tokens 12 --temperature 0)
  status 0 "${answer[@]}" --output cpu.jsonl
  for mesh in data=4 fsdp=4 fsdp=2,tensor=2 context=2,tensor=2 sequence=2; do
    status 0 "${answer[@]}" "${XLA[@]}" --mesh "$mesh" --output mesh.jsonl &&
      same <(ask cpu.jsonl '[r["text"] for r in rows]') \
        <(ask mesh.jsonl '[r["text"] for r in rows]') "$mesh: greedy answers"
  done
}

case_mesh_faults() {
  refuses 2 'needs one process for each chip' "${TRAIN[@]}" --steps 1 --mesh data=4
  refuses 2 'this backend does not run pipeline stages' \
    "${TRAIN[@]}" --steps 1 --accumulate 2 --mesh pipeline=2 --backend xla --plugin none.so
  refuses 2 'microbatch cannot be sharded' \
    "${TRAIN[@]}" --steps 1 --mesh data=8 --backend xla --plugin none.so
  plugin 'a mesh of many devices' || return
  status 0 "$RAFTER" train "$TINY" --threads 2 --batch 8 --data book.txt --steps 1 --mesh data=8 "${XLA[@]}"
}

case_generate() {
  plugin 'generating with XLA' || return
  local dtype answer=("$RAFTER" generate run --prompt 'In the beginning ' --max-tokens 20 --temperature 0)
  status 0 "${TRAIN[@]}" --steps 30 --out run
  for dtype in '--dtype f32' '--dtype bf16' '--kv-dtype int8'; do
    # shellcheck disable=SC2086 # two words
    status 0 "${answer[@]}" $dtype && cp out cpu.txt
    # shellcheck disable=SC2086
    status 0 "${answer[@]}" $dtype "${XLA[@]}" && same cpu.txt out "$dtype: greedy tokens differ"
  done
}

# The program chooses tokens, except with penalties and alternatives: then the host does.
case_sampling() {
  plugin 'sampling with XLA' || return
  local rule answer
  answer=("$RAFTER" generate run --prompt 'In the beginning ' --max-tokens 12 --samples 3 --seed 4)
  status 0 "${TRAIN[@]}" --steps 30 --out run
  for rule in '--top-k 5' '--top-p 0.7 --temperature 1.2' '--min-p 0.1 --ignore-eos' \
    '--repetition-penalty 1.3 --top-k 20' '--speculate ngram --top-k 5'; do
    # shellcheck disable=SC2086 # two words
    status 0 "${answer[@]}" $rule && grep -v tokens/s out >cpu.txt
    # shellcheck disable=SC2086
    status 0 "${answer[@]}" $rule "${XLA[@]}" && grep -v tokens/s out >xla.txt &&
      same cpu.txt xla.txt "$rule: sampled tokens differ"
  done
}

# Sampler and trainer are programs with other bits, so the ratio is measured. Two prompts of unequal
# length and dropped groups leave microbatches that are packed across rows, and empty ones.
case_rl() {
  plugin 'reinforcement learning with XLA' || return
  local i run
  for i in 0 1 2 3 4 5 6 7; do
    printf '{"id": "p%d", "prompt": "count %s"}\n' "$i" "$(head -c $((i % 4 * 3)) /dev/zero | tr '\0' a)"
  done >few.jsonl
  run=("$RAFTER" rl "$TINY" --threads 2 --max-tokens 6 --prompts 3 --samples 4 --lr 1e-2 --ignore-eos
    --lora 'rank=4' --data few.jsonl --reward 'regex=[a-p]' --seed 3 --steps 2 --eval-every 0)
  status 0 "${run[@]}" --out cpu
  status 0 "${run[@]}" "${XLA[@]}" --ratio-cap 2 --out xla &&
    near cpu xla grad_norm,entropy,answer_tokens 1e-3 &&
    python3 - xla/metrics.jsonl <<'PY' || fail 'the ratio of the first optimizer step is not near 1'
import json, sys
steps = [r for r in map(json.loads, open(sys.argv[1])) if "loss" in r]
worst = max(abs(r[k] - 1) for r in steps for k in ("ratio_min", "ratio_mean", "ratio_max"))
print(f"{len(steps)} steps, largest distance of a ratio from 1: {worst:.2e}; KL {steps[0]['kl']:.2e}")
sys.exit(not (len(steps) == 2 and worst < 1e-3 and steps[0]["kl"] < 1e-6 and 0 < steps[1]["kl"] < 1))
PY
  status 0 "${run[@]}" --loss gspo --beta 0 --iterations 2 --out cpu2
  status 0 "${run[@]}" --loss gspo --beta 0 --iterations 2 "${XLA[@]}" --out xla2 &&
    near cpu2 xla2 grad_norm,ratio_mean,ratio_max,clip_fraction 2e-3
}

case_preferences() {
  plugin 'preferences with XLA' || return
  local i loss train mesh
  for i in 1 2 3 4 5 6 7 8 9 10; do
    printf '{"prompt": "say %d", "chosen": " yes%s", "rejected": " no, %d"}\n' "$i" "${i//1/ please}" "$i"
  done >pairs.jsonl
  for loss in dpo ipo simpo; do
    train=("$RAFTER" train "$TINY" --threads 2 --loss "$loss" --lora 'rank=4' --data pairs.jsonl
      --lr 1e-2 --batch 8 --accumulate 2 --steps 3)
    status 0 "${train[@]}" --out "cpu-$loss"
    status 0 "${train[@]}" "${XLA[@]}" --out "xla-$loss" && near "cpu-$loss" "xla-$loss" loss,grad_norm 2e-3
  done
  # the chips of the axis context have every other row, and each chip of the axis data has whole pairs
  train=("$RAFTER" train "$TINY" --threads 2 --loss dpo --data pairs.jsonl --lr 1e-2 --batch 16
    --accumulate 2 --steps 2)
  status 0 "${train[@]}" "${XLA[@]}" --out one
  for mesh in context=2,tensor=2 data=4; do
    status 0 "${train[@]}" "${XLA[@]}" --mesh $mesh --out "$mesh" && near one "$mesh" loss,grad_norm 2e-3
  done
}

cases "$@"
