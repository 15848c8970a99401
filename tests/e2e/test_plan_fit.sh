#!/usr/bin/env bash
# The options that --fit prints give the plan that it printed. No setting of a small grid that fits
# is more than 1 % faster.
. "$(dirname "$0")/lib.sh"
cat >grid.py <<'PY'
import json, os, subprocess, sys
def plan(args):
    run = subprocess.run([os.environ["RAFTER"], "plan", *args, "--json"], capture_output=True, text=True)
    return json.loads(run.stdout) if run.returncode in (0, 3) and run.stdout else None
seconds = lambda d: d["rl"]["seconds"] if "rl" in d else d["time"]["seconds"]
args, grid = sys.argv[1].split(), sys.argv[2].split()
best = plan(args + ["--fit", "--margin", "0"]) # plans without --fit have no margin
if not best or not best["memory"]["fits"]: sys.exit("finds nothing that fits")
s = best["settings"]
mesh = ",".join(f"{axis}={n}" for axis, n in s["mesh"].items() if axis != "zero")
chosen = args + (["--dtype", s["dtype"]] if "--dtype" not in args else []) + (["--mesh", mesh] if mesh else [])
again = plan(chosen + ["--remat", s["remat"], "--accumulate", str(s["accumulate"])])
if not again: sys.exit("its answer is no plan")
if abs(seconds(again) - seconds(best)) > 1e-9 or again["memory"]["peak_bytes"] != best["memory"]["peak_bytes"] or again["digest"] != best["digest"]:
    sys.exit(f"its answer is another plan: {seconds(again)} s, {again['memory']['peak_bytes']} bytes, not {seconds(best)}, {best['memory']['peak_bytes']}")
for accumulate in (1, 2, 4):
    rows = plan(chosen + ["--sweep", "remat=" + ",".join(grid), "--accumulate", str(accumulate)])
    if not rows and accumulate > 1: continue # a batch that accumulate does not divide
    if not rows or len(rows["rows"]) != len(grid): sys.exit(f"{grid} x {accumulate} are not planned")
    for remat, d in zip(grid, rows["rows"]):
        if accumulate == 1 and "error" in d: sys.exit(f"{remat} is not planned: {d['error']}")
        if "error" not in d and d["memory"]["fits"] and seconds(d) < 0.99 * seconds(best): sys.exit(f"{remat} x {accumulate} takes {seconds(d)} s, not {seconds(best)}")
PY
export RAFTER
beats() { python3 grid.py "$@" 2>why || fail "plan $1 --fit: $(tail -1 why)"; }

NAMED="none minimal minimal_with_context save_dot_except_mlp save_dot_except_mlpwi mlp attn mlp+attn block"
beats "llama3-8b --on h100-sxm:8 --batch 16 --seq 8192" "$NAMED auto"
beats "gemma2-9b --on tpu-v5p:2x2x2 --batch 32 --seq 4096" "none minimal_with_context"
beats "llama3-70b --on tpu-v5p:8x8x8 --batch 1024 --seq 4096 --dtype bf16" "none mlp"
# All phases of an RL step use the dtype and the mesh of the result, and their total time counts.
# Text and JSON agree.
beats "llama3-8b --on h100-sxm:8 --job rl --batch 64" "none block"
beats "llama3-8b --on h100-sxm:8 --job rl --batch 512" "none"
status 0 "$RAFTER" plan llama3-8b --on h100-sxm:8 --job rl --batch 64 --dtype bf16 --json &&
  peak=$(ask out '"%.1f" % (d["memory"]["peak_bytes"] / 2**30)')
status 0 "$RAFTER" plan llama3-8b --on h100-sxm:8 --job rl --batch 64 --dtype bf16 &&
  says "^memory +$peak GiB of .*: fits" out && says "^  phase .* $peak GiB$" out
beats "gpt2-xl --on h100-sxm --batch 64 --dtype bf16" "none mlp auto"
finish
