#!/usr/bin/env bash
# If a plan does not fit, the hint says what would. Each hint is typed as it is; then the plan fits,
# in the predicted bytes.
. "$(dirname "$0")/lib.sh"
cat >follow.py <<'PY'
import json, os, re, shlex, subprocess, sys
def plan(args): return subprocess.run([os.environ["RAFTER"], "plan", *args, "--json"], capture_output=True, text=True)
def merged(args, more): # options of the hint replace those that were typed
    options, out, i = {}, [], 0
    more = shlex.split(more)
    for k in range(0, len(more), 2): options[more[k]] = more[k + 1]
    while i < len(args):
        if args[i] in options: i += 2
        else: out.append(args[i]); i += 1
    return out + [x for pair in options.items() for x in pair]
wanted, args = sys.argv[1], sys.argv[2:]
first = plan(args)
if first.returncode != 3: sys.exit(f"exits {first.returncode}: {first.stderr[:200]}")
d = json.loads(first.stdout)
if d["fits"] or d["memory"]["fits"]: sys.exit("says that it fits")
hint = re.search(r"hint: this fits(?:, in ([0-9.]+) GiB)?: (.*)", first.stderr)
if not hint: sys.exit(f"names nothing that would fit: {first.stderr[-300:]}")
if wanted not in hint[2]: sys.exit(f"names {hint[2]}, not {wanted}")
present = {"--" + k: str(v) for k, v in d["settings"].items()}
for option, value in re.findall(r"(--[a-z]+) ([^-; ]+)", hint[2]):
    if present.get(option) == value and "--fit" not in args: sys.exit(f"repeats {option} {value}: {hint[2]}")
other = re.search(r"(.*); or, on one chip(?:, in ([0-9.]+) GiB)?: (.*)", hint[2])
for gib, options in ((hint[1], other[1]), (other[2], other[3])) if other else ((hint[1], hint[2]),):
    again = plan(merged(args, options))
    if again.returncode: sys.exit(f"the hint '{options}' does not hold: {again.stderr[:300]}")
    bytes = json.loads(again.stdout)["memory"]["peak_bytes"]
    if gib and bytes > (float(gib) + 0.0051) * 2**30:
        sys.exit(f"'{options}' takes {bytes / 2**30:.2f} GiB, not {gib}")
PY
export RAFTER
follows() { python3 follow.py "$@" 2>why || fail "plan ${*:2}: $(cat why)"; }

# Training: keeping less, smaller microbatches, sharded states, more chips.
follows '--remat' gpt2 --on a5000 --batch 64 --dtype f32
follows '--microbatch' uva --on a5000 --batch 2048 --dtype bf16 --remat block
follows '--zero 1' gemma2-9b --on h100-sxm:8 --mesh data=8 --batch 8 --seq 512 --dtype bf16 --remat block
follows '--zero' llama3-8b --on h100-sxm:4x8 --mesh data=32 --batch 32 --seq 512 --dtype bf16 --remat block
follows '--on tpu-v5e:' gpt2-xl --on tpu-v5e --batch 16 --dtype bf16
follows '--on h100-sxm:' llama3-8b --on h100-sxm --batch 64 --seq 2048 --dtype bf16
follows '--on a5000:2 --remat block --microbatch 2' gemma3-1b --on a5000 --seq 32k --dtype f32
follows '--remat' gpt2 --on a5000 --batch 64 --dtype f32 --microbatch 64
follows '--microbatch' gpt2 --on a5000 --batch 1024 --dtype f32 --remat block --accumulate 1
follows '--on h100-sxm:' llama3-8b --on h100-sxm --batch 8 --microbatch 8 --remat block
follows '--on tpu-v7x:' llama3-70b --on tpu-v7x --batch 64 --seq 2048 --dtype bf16 --remat block
# The search also suggests options that it does not try.
follows '--on' llama3-8b --on h100-sxm --batch 64 --seq 2048 --fit
# On one chip, the moments may be in host memory. If nothing fits, --fit keeps the dtype of a plan.
follows '; or, on one chip, in 9.' gpt2-xl --on a5000
follows '; or, on one chip: --offload optimizer' gpt2-xl --on a5000 --fit
status 3 "$RAFTER" plan gpt2-xl --on a5000 --fit --json && holds out 'd["settings"]["dtype"] == "bf16"'
# Generation: fewer answers at once, more chips, narrower weights.
follows '--batch' llama3-8b --on l4 --job generate --batch 512 --seq 2048 --dtype bf16
follows '--batch' gemma-7b --on tpu-v5e --job serve --batch 256 --dtype bf16 --weights int8 --kv-dtype int8 --requests 4
follows '--batch' gemma3-1b --on tpu-v5e --job rollout --batch 4096 --prompt-tokens 1024 --max-tokens 1024 --dtype bf16
follows '--batch' llama3-8b --on h200 --job prefill --batch 512 --seq 4096 --dtype bf16
follows '--on tpu-v5e:' llama3-70b --on tpu-v5e --job generate --batch 4 --seq 2048 --dtype bf16
follows '--dtype bf16' llama3-8b --on a5000 --job generate --mesh tensor=1 --batch 1 --seq 512 --dtype f32
follows '--weights' gemma-7b --on tpu-v5e --job generate --mesh tensor=1 --batch 1 --seq 512 --dtype bf16
follows '--dtype bf16 --batch' gemma-7b --on a5000 --mesh tensor=1 --job generate --batch 256 --seq 2048 --dtype f32
follows '--dtype bf16 --batch' llama3-8b --on l4 --job score --batch 64 --seq 8192 --dtype f32
# More chips than sequences.
follows '--on h100-sxm:' llama3-70b --on h100-sxm:8 --batch 16 --seq 8192 --dtype bf16
# RL: keeping less for the policy, or more chips.
follows '--remat block' gemma3-1b --on h100-sxm --job rl --batch 64 --samples 8 --prompt-tokens 1024 --max-tokens 1024 --dtype bf16
finish
