#!/usr/bin/env bash
# `rafter report`: the report model that the page and scripts share has the values of the run's
# files and of the plan. Every file is checked.
. "$(dirname "$0")/lib.sh"
export RAFTER_RUNS=$WORK/runs
TRAIN=("$RAFTER" train "$TINY" "${QUICK[@]}" --data book.txt)
REPORT=("$RAFTER" report)

# Runs and the history hold absolute paths, so every case makes its own runs.
first() {
  rm -rf runs bad
  text book.txt 20000
  status 0 "${TRAIN[@]}" --steps 6 --val-every 3 --out runs/first
}

second() { status 0 "${TRAIN[@]}" --steps 6 --val-every 3 --remat block --out runs/second; }
traced() { status 0 "${TRAIN[@]}" --steps 6 --trace steps=3..5 --out runs/traced; }

case_model() {
  first
  second
  status 0 "${REPORT[@]}" runs/first second --json && cp out model.json && {
    python3 - model.json runs/first runs/second <<'PY' || fail 'the report model differs from the files of the runs'
import json, sys
model, bad = json.load(open(sys.argv[1])), []
for run, folder in zip(model["runs"], sys.argv[2:]):
    for key, name in ("run", "run.json"), ("plan", "plan.json"), ("measured", "report.json"):
        if run[key] != json.load(open(f"{folder}/{name}")): bad.append(f"{folder}: {key} is not {name}")
    rows = [json.loads(line) for line in open(folder + "/metrics.jsonl")]
    if run["metrics"] != [r for r in rows if "step" in r] or run["start"] != rows[0]: bad.append(f"{folder}: metrics")
    plan, measured = run["plan"], run["measured"]
    if [w["walk"] for w in measured["walks"]] != ["train", "validation"] or plan["name"] != "train" or plan["plans"][0]["name"] != "validation": bad.append("walks")
    walk = measured["walks"][0]
    if walk["count"] != 6 or [o["id"] for o in walk["ops"]] != [o["id"] for o in plan["ops"]]: bad.append(f"{folder}: ops")
    for op, planned in zip(walk["ops"], plan["ops"]):
        if op["calls"] != 6 * planned["calls"] or op["predicted_seconds"] != planned["seconds"] or op["limit_seconds"] != planned["limit_seconds"]: bad.append(op)
    inside = sum(o["seconds"] * o["calls"] for o in walk["ops"])
    if not 0 < inside <= walk["seconds"]: bad.append(f"ops take {inside} s of {walk['seconds']} s")
    if any(o["seconds"] <= 0 or o["limit_seconds"] > 1.01 * o["seconds"] for o in plan["ops"] if o["bytes"]): bad.append("an op without a predicted time, or above its limit")
    if {o["phase"] for o in plan["ops"]} - {"forward", "recompute", "backward", "optimizer"}: bad.append("phases")
print(*bad[:5], sep="\n") if bad else None
sys.exit(bool(bad))
PY
  }
  holds model.json 'd["compare"][0]["options"][0]["name"] == "remat" and len(d["compare"][0]["ops"]) > 9'
  # Two measured runs with two kinds of pass each: compared as measured and as planned, and each with
  # its plan.
  holds model.json '[(c["a"]["id"], c["b"]["id"], c["a"]["walk"], c["a"]["measured"], c["b"]["measured"]) for c in d["compare"]] == [("first", "second", w, r, r) for w in ("train", "validation") for r in (True, False)] + [(i, i, w, False, True) for i in ("first", "second") for w in ("train", "validation")]'
  python3 - model.json <<'PY' || fail 'a comparison of a run with its plan differs from their ops'
import json, math, sys
model = json.load(open(sys.argv[1]))
one = next(c for c in model["compare"] if c["a"]["id"] == c["b"]["id"] == "second")
run = model["runs"][1]
planned, walk = {o["name"]: o["seconds"] * o["calls"] for o in run["plan"]["ops"]}, run["measured"]["walks"][0]
ran = {o["name"]: o["seconds"] * o["calls"] / walk["count"] for o in walk["ops"]}
assert {row["name"] for row in one["ops"]} == {n for n in planned if planned[n] != ran[n]}
for row in one["ops"]: assert math.isclose(row["seconds"], ran[row["name"]] - planned[row["name"]], rel_tol=1e-9, abs_tol=1e-15) and row["bytes"] == 0, row
assert math.isclose(one["b"]["seconds"], walk["seconds"] / walk["count"]) and one["a"]["seconds"] == run["plan"]["time"]["seconds"] and one["options"] == [] == one["tensors"]
PY
  holds model.json '{o["phase"] for o in d["runs"][1]["plan"]["ops"]} == {"forward", "recompute", "backward", "optimizer"}' 'remat=block recomputes'
}

# Reinforcement learning: the model and the page have the samples, and wrong parts of the files are
# counted.
case_samples() {
  first
  python3 "$HERE/../browser/rl_example.py" runs/first --steps 12
  status 0 "${REPORT[@]}" runs/first --json --out page.html && cp out model.json &&
    holds model.json 'd["runs"][0]["samples"]["all_steps"] == 12'
  python3 - <<'PY' || fail 'samples of the model or page differ from the file'
import json, re
rows = [json.loads(line) for line in open("runs/first/samples.jsonl")]
text = open("page.html").read()
page = re.search(r'<script type="application/json" id="model">(.*?)</script>', text, re.S)
for model in json.load(open("model.json")), json.loads(page.group(1)):
    samples = model["runs"][0]["samples"]
    for key, evaluation in ("steps", None), ("evaluations", True):
        wanted = [row for row in rows if row.get("eval") == evaluation]
        groups = [(one["step"], group) for one in samples[key] for group in one["groups"]]
        assert [(step, g["id"]) for step, g in groups] == [(r["step"], r["id"]) for r in wanted]
        for (_, group), row in zip(groups, wanted):
            assert len(group["samples"]) == len(row["samples"])
            for a, b in zip(group["samples"], row["samples"]):
                assert all(a[k] == b[k] for k in ("text", "reward", "rewards", "pieces", "tokens"))
                assert len(a["logprobs"]) == len(b["logprobs"])
                assert all(abs(x - y) <= 1e-3 * abs(y) for x, y in zip(a["logprobs"], b["logprobs"]))
PY
  {
    echo '{"step": 3, "samples": [{"text": NaN}]}'
    echo '[]'
    echo '{"step": 3, "samples": [4, {"text": "a", "reward": []}]}'
    printf '{"step": 3, "sam'
  } >>runs/first/samples.jsonl
  {
    echo '{"step": 13, "reward": NaN}'
    echo '{"step": 14, "reward": 1, "rewards": {"a": "b"}, "kl": []}'
  } >>runs/first/metrics.jsonl
  status 0 "${REPORT[@]}" runs/first --json --out page.html && cp out model.json &&
    holds model.json '{v for k, v in d["runs"][0]["samples"].items() if k.startswith("skipped")} == {3, 1}' &&
    holds model.json 'd["runs"][0]["metrics_skipped"] == 3 and len(d["runs"][0]["metrics"]) == 14'
  refuses 1 'belongs to the run' "${REPORT[@]}" runs/first/samples.jsonl --json
}

# --against plans the run again with a change, which gives the same plan as `plan`. Without a
# change, the plan equals the run's.
case_against() {
  first
  second
  status 0 "${REPORT[@]}" runs/first --against remat=block --json && cp out against.json &&
    status 0 "$RAFTER" plan --config runs/first/run.json --remat block --tensors --ops --json && {
    python3 - against.json out runs/second/plan.json <<'PY' || fail '--against makes another plan than `plan --json --tensors --ops`'
import json, sys
model, plan, other = (json.load(open(n)) for n in sys.argv[1:])
made = model["runs"][1]["plan"]
# keys that `plan` prints in addition
for p in made, plan, other: p.pop("plan_seconds"), p.pop("name", 0), p.pop("plans", 0), p.pop("advice"), p.pop("fits", 0)
assert model["runs"][1]["of"] == "first" and model["runs"][1]["name"] == "remat=block"
for p in plan, other:
    # The free memory of this machine is read again.
    for key in "capacity_bytes", "reserve_bytes", "headroom_bytes": made["memory"].pop(key, 0), p["memory"].pop(key, 0)
    wrong = [k for k in made if made[k] != p.get(k)]
    assert not wrong, [(k, made[k], p.get(k)) for k in wrong]
PY
  }
  refuses 2 'unknown|does not know|no option' "${REPORT[@]}" runs/first --against rematt=block --json
  refuses 2 'unknown option --foo' "${REPORT[@]}" runs/first --against foo=1 --json
  refuses 2 'planned again|plan alone' "${REPORT[@]}" runs/first/plan.json --against remat=block --json
}

# A run of a hundred thousand steps: `--json` has all of them, the page a thousand rows with means
# and extremes.
case_long_run() {
  first
  second
  cp -r runs/second long && python3 - <<'PY'
import json, random
rng, first = random.Random(1), open("long/metrics.jsonl").readline()
rows = [json.loads(line) for line in open("long/metrics.jsonl")][1:]
with open("long/metrics.jsonl", "w") as out:
    out.write(first)
    for step in range(1, 100001):
        row = {**rows[0], "step": step, "tokens": 128 * step, "loss": 9 - step * 5e-5 + rng.random(), "seconds": 0.01 + rng.expovariate(1000)}
        if step % 1000 == 0: row["val_loss"] = row["loss"] + 1
        else: row.pop("val_loss", 0)
        out.write(json.dumps(row) + "\n")
PY
  status 0 "${REPORT[@]}" long --json --out long.html && cp out long.json && python3 - <<'PY' || fail 'the rows of a long run are averaged wrongly'
import json, os, re, statistics
rows = json.load(open("long.json"))["runs"][0]["metrics"]
page = open("long.html").read()
run = json.loads(re.search(r'<script type="application/json" id="model">(.*?)</script>', page, re.S).group(1))["runs"][0]
thin = run["metrics"]
assert len(rows) == 100000 and len(thin) == 1000 and os.path.getsize("long.html") < 5e6, (len(rows), len(thin), os.path.getsize("long.html"))
for i in (0, 499, 999):
    part = rows[100 * i:100 * i + 100]
    assert thin[i]["steps"] == 100 and thin[i]["step"] == part[-1]["step"] and thin[i]["tokens"] == part[-1]["tokens"]
    for key in "loss", "seconds":
        values = [row[key] for row in part]
        assert abs(thin[i][key] - statistics.fmean(values)) < 1e-9 and thin[i]["least"][key] == min(values) and thin[i]["most"][key] == max(values)
assert [row["step"] for row in thin if "val_loss" in row] == list(range(1000, 100001, 1000))
times = sorted(row["seconds"] for row in rows[1:])
assert run["step_seconds"]["least"] == times[0] and run["step_seconds"]["most"] == times[-1] and run["step_seconds"]["median"] in (times[49999], times[49998])
PY
}

# Plans and sweeps alone. The page is written next to the run unless --out names another place.
case_plans_and_pages() {
  first
  second
  "$RAFTER" plan "$TINY" --batch 4 --json --tensors --ops >plan.json
  "$RAFTER" plan "$TINY" --sweep batch=1,2,4 --json >sweep.json
  status 0 "${REPORT[@]}" plan.json sweep.json --json &&
    holds out 'd["runs"][0]["name"] == "plan.json" and len(d["sweeps"][0]["rows"]) == 3 and len(d["runs"]) == 1'
  status 0 "${REPORT[@]}" runs/first && says '^runs/first/report.html' out &&
    cp runs/first/report.html alone.html
  status 0 "${REPORT[@]}" runs/first runs/second/ sweep.json &&
    says '^runs/first/report-second-sweep.html' out &&
    grep -q '</html>' runs/first/report-second-sweep.html || fail 'there is no page next to the run'
  same runs/first/report.html alone.html 'a page of several runs replaces the page of the first'
  status 0 "${REPORT[@]}" plan.json --out page.html && [ -s page.html ] || fail '--out writes no page'
}

# Runs of generate and score: one sentence names the limit of each, and sums are those of the ops.
case_summaries() {
  first
  status 0 "$RAFTER" generate runs/first --prompt 'and the king ' --max-tokens 12 --temperature 0 --stats --out runs/said &&
    tr -s '\n ' ' ' <err >unfolded &&
    says 'best single change|No single change|run it again|would take alone' unfolded
  status 0 "$RAFTER" score runs/first --input book.txt --seq 32 --stride 16 --out runs/scored
  status 0 "$RAFTER" train runs/first "${QUICK[@]}" --data book.txt --lora rank=4,targets=qkv,down --steps 3 --out runs/lora
  [ "$(sed -n '/^train x/,$p' out | wc -l)" -le 30 ] || fail 'the summary has more than 30 lines'
  status 0 "${REPORT[@]}" runs/first runs/said runs/scored runs/lora --json && cp out model.json && {
    python3 - model.json <<'PY' || fail 'the summary differs from the sums of the ops'
import json, math, sys
bad = []
for run, names in zip(json.load(open(sys.argv[1]))["runs"], (["train", "validation"], ["decode", "prefill"], ["score"], ["train", "validation"])):
    summary = run["summary"]
    if [w["walk"] for w in summary["walks"]] != names: bad.append(f"{run['name']}: {[w['walk'] for w in summary['walks']]}")
    if " bound by " not in summary["sentence"] or not summary["advice"]: bad.append(f"{run['name']}: {summary['sentence']}")
    if summary["memory"]["predicted_bytes"] != summary["memory"]["measured_bytes"]: bad.append("memory")
    for walk, measured in zip(summary["walks"], run["measured"]["walks"]):
        count = measured["count"]
        for key in "seconds", "predicted_seconds", "limit_seconds":
            ops = sum(o[key] * o["calls"] for o in measured["ops"]) / count
            for group in "kinds", "phases":
                if not math.isclose(sum(g[key] for g in walk[group]), ops, rel_tol=1e-9): bad.append(f"{run['name']} {walk['walk']} {group} {key}")
        if not math.isclose(sum(g["seconds"] for g in walk["bounds"]), walk["seconds"], rel_tol=1e-9): bad.append(f"{run['name']} {walk['walk']} bounds")
        if not math.isclose(walk["inside_seconds"] + walk["gap_seconds"], walk["seconds"], rel_tol=1e-9): bad.append(f"{run['name']} {walk['walk']} gaps")
    for row in summary["advice"]:
        if not math.isclose(row["gain"], 1 - row["seconds"] / row["now_seconds"], rel_tol=1e-9, abs_tol=1e-12): bad.append(row)
    rate, rows = summary["walks"][0].get("rate", {}), run["metrics"] if "metrics" in run else []
    if rows and "mfu" in rate:
        mean = sum(r["mfu"] * r["seconds"] for r in rows) / sum(r["seconds"] for r in rows)
        if not math.isclose(rate["mfu"], mean, rel_tol=1e-3): bad.append(f"MFU {rate['mfu']} is not the steps' {mean}")
    gains = [row["gain"] for row in summary["advice"]]
    if gains != sorted(gains, reverse=True): bad.append("advice is not in order")
print(*bad[:5], sep="\n") if bad else None
sys.exit(bool(bad))
PY
  }
  # run.json alone repeats an answer and a score.
  "$RAFTER" generate --config runs/said/run.json >said.txt 2>/dev/null &&
    "$RAFTER" generate --config runs/said/run.json --out runs/said2 >said2.txt 2>/dev/null &&
    same said.txt said2.txt 'run.json repeats an answer'
  "$RAFTER" score --config runs/scored/run.json 2>/dev/null >scored.txt ||
    fail 'run.json does not repeat a scoring'
}

# An answer that waits for a slot: planning again gives the same plan, and an empty change changes
# nothing.
case_waiting_answer() {
  first
  status 0 "$RAFTER" generate runs/first --prompt 'and ' --max-tokens 8 --samples 3 --batch 1 --out runs/waits
  status 0 "${REPORT[@]}" runs/waits --against dtype=f32 --json &&
    holds out 'd["runs"][0]["plan"]["memory"]["peak_bytes"] == d["runs"][1]["plan"]["memory"]["peak_bytes"] and d["runs"][0]["plan"]["digest"] == d["runs"][1]["plan"]["digest"]' 'the plan of the generation differs'
  holds out 'len(d["runs"][0]["summary"]["advice"]) > 0' 'a generation with more answers than slots has no advice'
  python3 -c 'import json; p = "runs/waits/plan.json"; d = json.load(open(p)); d["settings"]["sequences"] = 7; json.dump(d, open(p, "w"))'
  status 0 "${REPORT[@]}" runs/waits --json &&
    holds out 'any("change has a predicted gain: this version of the program, or this machine, gives the run another plan" in note for note in d["runs"][0]["summary"]["notes"])' 'no note says why there is no advice'
  refuses 1 'holds a run already' "$RAFTER" generate runs/first --prompt a --max-tokens 2 --out runs/first
}

# A traced run: its trace is in the model and the page, with the values that other readers get.
case_trace() {
  first
  traced
  # The summary at the end of the run follows the trace and names its causes, as the report does.
  [ "$(grep -nE '^trace .*3 steps' out | cut -d: -f1)" -lt "$(grep -n '^train x' out | cut -d: -f1)" ] || fail 'the summary is printed before the trace'
  holds runs/traced/report.json 'd["summary"]["threads"]["steps"] == 3 and abs((lambda t: t["work"] + t["phases"] + sum(t["gaps"].values()))(d["summary"]["threads"]) - 1) < 1e-9' 'the summary at the end lacks the trace'
  status 0 "${REPORT[@]}" traced --json &&
    holds out 'len(d["runs"][0]["trace"]["header"]["steps"]) == 3 and abs((lambda t: t["work"] + t["phases"] + sum(t["gaps"].values()))(d["runs"][0]["summary"]["threads"]) - 1) < 1e-9' 'the parts of threads do not sum to 1'
  status 0 "${REPORT[@]}" traced --perfetto trace.json --csv trace.csv && python3 -c 'import json; assert len(json.load(open("trace.json"))["traceEvents"]) > 100' && [ "$(head -1 trace.csv | tr ',' '\n' | wc -l)" -ge 5 ] || fail '--perfetto, --csv'
  refuses 1 'no RUN has a trace' "${REPORT[@]}" first --perfetto trace.json
  rm -rf bad && cp -r runs/traced bad && head -c 5000 runs/traced/trace.bin >bad/trace.bin &&
    refuses 1 'trace.bin' "${REPORT[@]}" bad --json
}

# Every file is checked: one error that names the file and the field.
case_bad_arguments() {
  text book.txt 20000
  refuses 1 'nowhere is neither a run nor a file' "${REPORT[@]}" nowhere --json
  printf '{"sweep":"batch","rows":[7],"cliffs":[]}' >sweep-bad.json &&
    refuses 1 'rows 0 is not an object' "${REPORT[@]}" sweep-bad.json --json
  printf '{"sweep":"batch","rows":[{"job":"train"}],"cliffs":[]}' >sweep-bad.json &&
    refuses 1 'row 0' "${REPORT[@]}" sweep-bad.json --json
  mkdir empty && refuses 1 'empty is not a run' "${REPORT[@]}" empty --json
}

# damage FILE PYTHON PATTERN: changes FILE in a copy of the run and expects the report to be refused
damage() {
  rm -rf bad && cp -r runs/first bad
  python3 -c "import json, sys; p = sys.argv[1]; d = json.load(open(p)); exec(sys.argv[2]); json.dump(d, open(p, 'w'))" "bad/$1" "$2"
  refuses 1 "$3" "${REPORT[@]}" bad --json
}

case_damaged_fields() {
  first
  damage run.json 'd.pop("options")' 'run.json.*options'
  damage run.json 'd["command"] = 5' 'run.json.*command'
  damage plan.json 'd["memory"]["peak_bytes"] = -1' 'plan.json.*peak_bytes'
  damage plan.json 'd["memory"] = []' 'plan.json.*memory'
  damage plan.json 'd["tensors"][3]["offset"] = 1 << 60' 'tensor 3.*offset'
  damage plan.json 'd["tensors"][0]["bytes"] = "many"' 'tensor 0.*bytes'
  damage plan.json 'd["ops"][2]["inputs"] = [99999]' 'op 2.*a tensor that the plan lacks'
  damage plan.json 'd["ops"][1]["id"] = 7' 'op 1.*id'
  damage plan.json 'd["ops"][1]["seconds"] = None' 'op 1.*seconds'
  damage plan.json 'd["ops"][1]["live_bytes"] = "all"' 'op 1.*live_bytes'
  damage plan.json 'd["memory"]["largest"][2] = 5' 'largest 2 is not an object'
  damage plan.json 'd["memory"]["largest"][0]["bytes"] = {}' 'largest 0.*bytes'
  damage plan.json 'd["serving"] = {"rates": [{"ttft_seconds": 1}]}' 'ttft_seconds'
  damage report.json 'd["walks"][0]["ops"][0]["id"] = 99999' 'walk train, op 0.*id'
  damage report.json 'd["walks"] = 3' 'walks'
}

# Files of different runs in one folder.
case_mixed_files() {
  first
  traced
  damage report.json 'd["digest"] = "0123"' 'report.json belongs to plan 0123, not to'
  rm -rf bad && cp -r runs/traced bad && python3 - bad/trace.bin <<'PY' && refuses 1 'trace.bin belongs to plan 0123' "${REPORT[@]}" bad --json
import json, sys
header, columns = open(sys.argv[1], "rb").read().split(b"\n", 1)
digest = json.loads(header)["digests"][0].encode()
open(sys.argv[1], "wb").write(header.replace(digest, b"0123" + digest[4:][::-1]) + b"\n" + columns)
PY
  rm -rf bad && cp -r runs/traced bad && status 0 "$RAFTER" train --resume bad --steps 7 && status 0 "${REPORT[@]}" bad --json && holds out '"trace" in d["runs"][0]' 'a resumed run loses its trace'
  status 0 "$RAFTER" train --resume bad --steps 8 --remat block && cmp -s bad/before-trace.bin runs/traced/trace.bin && status 0 "${REPORT[@]}" bad --json && holds out '"trace" not in d["runs"][0]' 'a trace of another plan'
}

case_truncated_files() {
  first
  for name in run.json plan.json report.json; do
    rm -rf bad && cp -r runs/first bad && head -c 300 "runs/first/$name" >"bad/$name" && refuses 1 "$name" "${REPORT[@]}" bad --json
  done
  rm -rf bad && cp -r runs/first bad && rm bad/plan.json && refuses 1 'plan.json' "${REPORT[@]}" bad --json
  rm -rf bad && cp -r runs/first bad && echo '{"step": "one"}' >>bad/metrics.jsonl && refuses 1 'metrics.jsonl, line' "${REPORT[@]}" bad --json
  # A killed run may leave half of its last line.
  rm -rf bad && cp -r runs/first bad && printf '{"step": 7, "lo' >>bad/metrics.jsonl && status 0 "${REPORT[@]}" bad --json && holds out 'len(d["runs"][0]["metrics"]) == 6'
}

cases "$@"
