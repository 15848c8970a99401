#!/usr/bin/env bash
# --fit names the largest batch of every job: it fits, and the next batch does not. Small limits are
# compared with all batches. Each change that is printed gives the batch that is printed with it.
. "$(dirname "$0")/lib.sh"
cat >largest.py <<'PY'
import json, os, shlex, subprocess, sys
def plan(args):
    run = subprocess.run([os.environ["RAFTER"], "plan", *args, "--json"], capture_output=True, text=True)
    if run.returncode in (0, 3) and run.stdout: return json.loads(run.stdout)
    sys.exit(f"plan {' '.join(args)} exits {run.returncode}: {run.stderr[-300:]}")
def without(args, names):
    return [a for i, a in enumerate(args) if a not in names and (i == 0 or args[i - 1] not in names)]
args = shlex.split(sys.argv[1])
found = plan(args + ["--fit"])
largest, memory, settings = found["largest_batch"], found["memory"], found["settings"]
room, batch, step = largest["room_bytes"], largest["batch"], largest["step"]
if room != memory["capacity_bytes"] - memory["reserve_bytes"] - memory["margin_bytes"]:
    sys.exit(f"the room is {room}")
fixed = without(args, ("--margin", "--latency", "--batch"))
mesh = ",".join(f"{axis}={n}" for axis, n in (settings["mesh"] or {}).items() if axis != "zero")
if mesh and "--mesh" not in fixed: fixed += ["--mesh", mesh]
if found["job"] in ("train", "rl"):
    fixed += ["--dtype", settings["dtype"], "--remat", largest["remat"]]
    if found["job"] == "rl": fixed += ["--microbatch", str(settings["microbatch"])]
elif "--batch" not in args and settings["batch"] != (batch or step):
    sys.exit(f"the plan has batch {settings['batch']}, not {batch}")
latency = 1e9
if "--latency" in args: latency = float(args[args.index("--latency") + 1].removesuffix("ms")) / 1e3
def fits(n, more=[]):
    d = plan(without(fixed, more[::2]) + ["--batch", str(n), *more])
    bytes = d["memory"]["peak_bytes"]
    return bytes <= room and d["time"]["seconds"] <= latency, bytes
if fits(batch) != (True, largest["peak_bytes"]): sys.exit(f"batch {batch} takes {fits(batch)}")
if fits(batch + step)[0]: sys.exit(f"batch {batch + step} fits too")
for n in range(step, 2 * batch + 2 * step, step) if batch <= 64 * step else []:
    if fits(n)[0] != (n <= batch): sys.exit(f"of batch {n}, the plan says {fits(n)}; {batch} is the largest")
if len(sys.argv) > 2 and largest["limit"] != sys.argv[2]: sys.exit(f"the limit is {largest['limit']}")
if not largest["raises"]: sys.exit("names no change")
for r in largest["raises"]:
    more = [w for pair in r["change"].replace(",mesh=", " mesh=").split() for w in pair.split("=", 1)]
    more[::2] = ["--" + name for name in more[::2]]
    if r["batch"] <= batch or not fits(r["batch"], more)[0]:
        sys.exit(f"{r['change']} does not give batch {r['batch']}: {fits(r['batch'], more)}")
PY
export RAFTER
largest() { python3 largest.py "$@" 2>why || fail "plan $1 --fit: $(tail -1 why)"; }

LORA="gemma3-1b --on tpu-v5e --job rollout --lora rank=16 --prompt-tokens 512 --max-tokens 512"
case_answers() {
  largest "$LORA --margin 0" cache
  largest "$LORA" cache
  # shellcheck disable=SC2086
  status 0 "$RAFTER" plan $LORA --fit --margin 0 --json &&
    holds out '512 <= d["largest_batch"]["batch"] < 576' 'the limit between 512 and 576'
  # A slower setting may have a larger batch. It is named in the same place.
  status 0 "$RAFTER" plan gpt2 --on a5000 --fit --json &&
    batch=$(ask out '[r["batch"] for r in d["largest_batch"]["raises"] if r["change"] == "remat=block"][0]')
  status 0 "$RAFTER" plan gpt2 --on a5000 --fit &&
    says "^ +a slower setting has a larger batch: $batch at once with remat block, in" out
  # Only the margin is too large: the memory says so.
  refuses 3 'does not fit' "$RAFTER" plan llama3-70b --on h100-sxm:2x8 --fit &&
    says '^memory .*: fits, but not with the margin; --margin 0 leaves none$' out out
  # Over chips, the default batch of a training step changes.
  status 0 "$RAFTER" plan llama3.2-1b --on h100-sxm --sweep chips=4,16 && {
    says '^chips +batch +memory' out
    says '^4 +8 ' out && says '^16 +16 ' out
  }
  largest "gemma3-4b --on tpu-v5e --job rollout --prompt-tokens 512 --max-tokens 512" cache
  largest "llama3-8b --on h100-sxm:2 --job generate --seq 2048" cache
  largest "gemma3-1b --on tpu-v5e:2x2 --mesh data=2,tensor=2 --job generate" cache
  largest "gemma3-1b --on tpu-v5e:2x2 --mesh fsdp=4 --job rollout" cache
  largest "llama3-70b --on tpu-v5e:4x4 --job serve --weights int8 --kv-dtype int8" cache
  largest "llama3-8b --on tpu-v5e --job generate --weights int8 --latency 20ms" latency
  largest "llama3-8b --on tpu-v5e --job prefill --weights int8" cache
  largest "deepseek2-16b --on h100-sxm --job generate --seq 8192" cache
}
# Without --mesh, jobs that are not training take the fastest mesh: no other mesh has a higher rate.
case_meshes() {
  cat >meshes.py <<'PY'
import json, os, shlex, subprocess, sys
def plan(*args):
    run = subprocess.run([os.environ["RAFTER"], "plan", *shlex.split(sys.argv[1]), "--fit", "--json", *args],
                         capture_output=True, text=True)
    return json.loads(run.stdout) if run.stdout else None
def rate(d): return d["settings"]["batch"] / d["time"]["seconds"] if d and d["memory"]["fits"] else 0
best, said = plan(), False
for mesh in ("data=4", "fsdp=4", "data=2,tensor=2", "fsdp=2,tensor=2", "tensor=4"):
    other = plan("--mesh", mesh)
    if rate(other) > rate(best) * 1.000001:
        sys.exit(f"{mesh} has {rate(other)}, and --fit took {best['settings']['mesh']}: {rate(best)}")
line = [a for a in best["assumptions"] if a.startswith("--fit compared 5 meshes")]
mesh = ",".join(f"{axis}={n}" for axis, n in best["settings"]["mesh"].items() if axis != "zero" and n > 1)
if len(line) != 1 or f"took {mesh}" not in line[0]: sys.exit(f"the assumptions do not name {mesh}: {line}")
PY
  for job in "generate" "score --seq 512" "rollout --prompt-tokens 64 --max-tokens 64" \
    "generate --batch 64"; do
    python3 meshes.py "llama3.2-1b --on tpu-v5e:2x2 --job $job" 2>why || fail "--job $job: $(tail -1 why)"
  done
  status 0 "$RAFTER" plan llama3.2-1b --on tpu-v5e:2x2 --job generate --fit &&
    says '^mesh +--fit compared 5 meshes' out
  status 0 "$RAFTER" plan llama3.2-1b --on tpu-v5e:2x2 --mesh tensor=4 --job generate --fit --json &&
    holds out 'not any("compared" in a for a in d["assumptions"])' 'the mesh of --mesh is kept'
}
case_steps() {
  largest "gemma3-4b --on tpu-v5e --job score" memory
  largest "gpt2 --on a5000 --job score --dtype f32 --program jax-scan --returns logits" memory
  largest "uva --on a5000 --batch 64 --seq 512" memory
  largest "uva --on a5000 --batch 64 --seq 512 --accumulate 4" memory
  largest "llama3.2-1b --on tpu-v5e:4x4 --batch 64 --seq 2048" memory
  largest "gemma3-1b --on tpu-v5e --job rl --lora rank=16 --max-tokens 128 --prompt-tokens 128"
  # Another mesh may have a larger batch than the fastest one, on the same chips.
  largest "gemma3-12b --on tpu-v5e:8 --lora rank=16 --seq 2048" memory
  status 0 "$RAFTER" plan gemma3-12b --on tpu-v5e:8 --lora rank=16 --seq 2048 --fit && {
    says '^largest +batch 16 at once with this mesh and remat block: ' out
    says '^  mesh=fsdp=8 +batch 72 ' out
    says '^frontier .none of the [0-9]+ settings tried beats these in both memory and time.$' out
  }
}
# If no batch fits, the smallest one is planned. A latency below that of one sequence is an error.
case_nothing() {
  status 3 "$RAFTER" plan llama3-8b --on tpu-v5e --job generate --fit --json && {
    holds out 'd["largest_batch"]["batch"] == 0 and not d["search"]["fits"]' 'no batch'
    holds out 'd["settings"]["batch"] == 1 and d["largest_batch"]["limit"] == "memory"' 'the smallest plan'
    holds out 'len(d["largest_batch"]["raises"]) > 1' 'changes that fit'
  }
  refuses 3 'too slow .--latency: expected at most 1.00 ms' \
    "$RAFTER" plan llama3-8b --on h100-sxm --job generate --fit --latency 1ms
  refuses 2 'latency has no effect with --job train' "$RAFTER" plan gpt2 --on a5000 --fit --latency 1ms
  refuses 2 'latency needs --fit' "$RAFTER" plan gpt2 --on a5000 --job generate --latency 1ms
}
# A change that raises the batch has a time only if the time of the whole job is known.
case_rows() {
  local row='^  kv-dtype=int8 +batch [0-9]+ +[0-9.]+ [KMG]iB'
  status 0 "$RAFTER" plan gemma3-1b --on tpu-v5e --job rl --lora rank=16 --fit &&
    says "$row, approximate\$" out
  status 0 "$RAFTER" plan gemma3-1b --on tpu-v5e --job generate --fit &&
    says "$row  .* a step, approximate\$" out
  ! grep -qE ' ,| $' out || fail 'a row has an empty column'
}
# The table of a sweep shows what --fit found: the setting of a training step, or the largest batch.
case_sweeps() {
  status 0 "$RAFTER" plan gpt2 --on a5000 --fit --sweep batch=8,256 && {
    says '^batch .* bound +chosen by --fit$' out
    says '^8 .* compute +bf16, remat none, 1 x 8$' out
  }
  status 0 "$RAFTER" plan gpt2 --on a5000 --job generate --sweep fit=8GiB,16GiB && {
    says '^fit +batch +largest +memory' out
    says '^8GiB +219 +219 ' out
  }
  # Memory and speed are those of --batch.
  status 0 "$RAFTER" plan gpt2 --on a5000 --job generate --batch 2 --sweep fit=8GiB,16GiB &&
    says '^8GiB +2 +219 ' out
}
# Machines that are only planned keep a margin. This machine, and a limit in bytes, have none.
case_margin() {
  status 0 "$RAFTER" plan gpt2 --on a5000 --job generate --fit --json && {
    holds out 'abs(d["memory"]["margin_bytes"] / d["search"]["room_bytes"] - 1 / 9) < 1e-6' 'a tenth'
    holds out 'any("leaves 10 %" in a for a in d["assumptions"])' 'the margin among the assumptions'
  }
  status 0 "$RAFTER" plan gpt2 --on a5000 --fit --margin 0.25 --json &&
    holds out 'abs(d["memory"]["margin_bytes"] / d["search"]["room_bytes"] - 1 / 3) < 1e-6' 'a margin'
  status 0 "$RAFTER" plan gpt2 --on a5000 --fit && says '^margin +2.35 GiB of 23.5 GiB' out
  status 0 "$RAFTER" plan gpt2 --on a5000 --fit 8GiB --json &&
    holds out 'd["memory"]["margin_bytes"] == 0 and d["search"]["room_bytes"] == 8 << 30' 'a limit in bytes'
  status 0 "$RAFTER" plan "$TINY" --job generate --fit --json &&
    holds out 'd["memory"]["margin_bytes"] == 0 and d["memory"]["fits"]' 'this machine'
  refuses 2 'margin needs --fit' "$RAFTER" plan gpt2 --on a5000 --margin 0.1
}
cases "$@"
