#!/usr/bin/env bash
# Makes the best single change that a report names. The changed run takes the predicted memory, to
# the byte, and the plan that was priced is the plan that runs. The test prints predicted and
# measured gain but does not compare times, because other programs use the machine.
. "$(dirname "$0")/lib.sh"
export RAFTER_RUNS=$WORK/runs
TRAIN=("$RAFTER" train gpt:layers=2,width=128,heads=4,ff=512,vocab=512,seq=64 --data random:seed=0 --batch 8 --steps 12 --val-every 0)
status 0 "${TRAIN[@]}" --threads 1 --microbatch 1 --accumulate 8 --remat block --out runs/before
status 0 "$RAFTER" report before --json && cp out before.json
cat >advice.py <<'PY'
import json, statistics, sys
def seconds(run): return statistics.median(row["seconds"] for row in run["metrics"][2:])
before = json.load(open("before.json"))["runs"][0]
rows = [row for row in before["summary"]["advice"] if row["fits"]]
if sys.argv[1:] == ["options"]:
    for change in rows: print(" ".join("--" + part.replace("=", " ") for part in change["change"].split(",")))
    sys.exit()
row, after = rows[int(sys.argv[1])], json.load(open("after.json"))["runs"][0]
took, now = seconds(before), seconds(after)
print(f'{row["change"]}: predicted to gain {100 * row["gain"]:.1f} %, gained {100 * (1 - now / took):.1f} % ({1e3 * took:.3g} ms to {1e3 * now:.3g} ms a step)')
assert after["measured"]["arena_bytes"] == row["peak_bytes"] == after["plan"]["memory"]["peak_bytes"], (after["measured"]["arena_bytes"], row)
assert abs(after["plan"]["time"]["seconds"] - row["predicted_seconds"]) <= 1e-9 * row["predicted_seconds"], (after["plan"]["time"], row)
PY
python3 advice.py options >changes || fail 'the report has no advice'
[ "$(wc -l <changes)" -ge 3 ] || fail "few changes: $(cat changes)"
for n in 0 1 2; do
  read -ra change < <(sed -n "$((n + 1))p" changes)
  rm -rf runs/after
  status 0 "$RAFTER" train --config runs/before/run.json "${change[@]}" --out runs/after || continue
  status 0 "$RAFTER" report after --json && cp out after.json && python3 advice.py "$n" ||
    fail "a change does not take the predicted memory or plan: ${change[*]}"
done
finish
