#!/usr/bin/env bash
# --trace with --backend xla: times of single ops from the plugin's profiler, with the plugin of
# tests/support/plugin, whose profiler gives planted answers. RAFTER_FAKE_PLUGIN names it.
. "$(dirname "$0")/lib.sh"

PLUGIN=${RAFTER_FAKE_PLUGIN:-$(dirname "$RAFTER")/fake_plugin.so}
if [ ! -f "$PLUGIN" ]; then
  echo "skip: times of ops need the plugin of the tests ($PLUGIN)" >&3
  finish
  exit
fi
TRAIN=("$RAFTER" train "$TINY" "${QUICK[@]}" --data book.txt --lr 1e-3 --accumulate 2
  --backend xla --plugin "$PLUGIN")
CHECK=(python3 "$HERE/trace_events.py")
export FAKE_PLUGIN='devices=1 rounds=2'

setup() { text book.txt 20000; }

# Each op of the traced steps has one span for each microbatch, in the execution of its step. The
# losses are those of a run without a trace.
case_ops() {
  status 0 "${TRAIN[@]}" --steps 5 --out plain
  status 0 "${TRAIN[@]}" --steps 5 --out traced --trace steps=2..4:2 || return
  same <(losses plain) <(losses traced) 'tracing changes losses'
  "${CHECK[@]}" traced >checked 2>&1 || fail "$(cat checked)"
  says 'device .* of its time in ops' out
  ! grep -q 'no times of ops' err || fail 'a notice of a profile that works'
  python3 - "$HERE" <<'PY' || fail 'the times of ops are not those of the profile'
import json, sys
sys.path.insert(0, sys.argv[1])
import trace_events
header, columns = trace_events.columns_of("traced/trace.bin")
kinds, plan = header["kinds"], json.load(open("traced/plan.json"))
report = json.load(open("traced/report.json"))
assert [step["step"] for step in header["steps"]] == [2, 4] and header["threads"] == 1
assert header["lanes"][0] == {"name": "device", "kind": "thread"}, header["lanes"][0]
ops = [i for i in range(header["count"]) if kinds[columns["kind"][i]] == "op"]
for step in header["steps"]:
    seen = {}
    for i in ops:
        if not step["begin"] <= columns["begin"][i] < step["end"]: continue
        assert columns["end"][i] <= step["end"] and columns["end"][i] > columns["begin"][i]
        seen.setdefault(columns["id"][i], []).append(columns["value"][i])
    for op in plan["ops"]:
        assert seen[op["id"]] == ([0, 1] if op["calls"] == 2 else [0]), (op["name"], seen[op["id"]])
is_phase = [kinds[kind] == "phase" for kind in columns["kind"]]
phases = {header["phases"][columns["id"][i]] for i in range(header["count"]) if is_phase[i]}
assert {"forward", "backward", "optimizer", "record", "other"} <= phases, phases
train = report["walks"][0]
# the first step copies the weights to the device
assert train["count"] == 4 and train["timed"] == 2 and len(train["ops"]) == len(plan["ops"])
for row, op in zip(train["ops"], plan["ops"]):
    assert row["calls"] == 2 * op["calls"] and 0 < row["least_seconds"] <= row["seconds"] * 1.001, row
whole = sum(row["calls"] * row["seconds"] for row in train["ops"]) / 2
assert 0.003 < whole < 0.0041, whole # the plugin's execution takes 4 ms
planned = sum(op["seconds"] * op["calls"] for op in plan["ops"])
assert report["outside_arena_bytes"]["total"] > 0, report["outside_arena_bytes"]
assert abs(train["predicted_seconds"] / 4 - planned) < 1e-9 + 1e-6 * planned
PY
  status 0 "$RAFTER" report traced --json &&
    python3 - <<'PY' || fail 'the summary has no kinds of ops'
import json
run = json.load(open("out"))["runs"][0]["summary"]["walks"][0]
kinds = {kind["name"]: kind for kind in run["kinds"]}
assert "matmul" in kinds and kinds["matmul"]["seconds"] > 0 and "compiled program" not in kinds, list(kinds)
assert abs(sum(kind["seconds"] for kind in run["kinds"]) - run["inside_seconds"]) < 1e-9
assert 0.003 < run["inside_seconds"] < 0.0041, run["inside_seconds"]
PY
}

# A clock of the profiler that is an hour late, bytes at the second call, and a zero byte at the end
# change nothing.
case_forms() {
  local word
  for word in profile_late profile_twice profile_zero; do
    FAKE_PLUGIN="devices=1 rounds=2 $word" \
      status 0 "${TRAIN[@]}" --steps 2 --out "$word" --trace steps=2 || continue
    "${CHECK[@]}" "$word" >checked 2>&1 || fail "$word: $(cat checked)"
    [ "$(ask "$word/report.json" 'd["walks"][0]["timed"]')" = 1 ] || fail "$word: no times of ops"
  done
}

# Without a profile, the run continues and says so once. Its trace has the steps.
case_faults() {
  local word busy='Another profile session' notice='notice: the trace has steps and no times of ops: '
  status 0 "${TRAIN[@]}" --steps 3 --out plain
  for word in no_profiler:'no profiler' profile_create:"$busy" profile_start:"$busy" profile_stop:"$busy" \
    profile_collect:"$busy" profile_none:'no kernels' profile_half:damaged profile_huge:damaged \
    profile_strange:'no kernel of the profile belongs'; do
    FAKE_PLUGIN="devices=1 rounds=2 ${word%%:*}" \
      status 0 "${TRAIN[@]}" --steps 3 --out "${word%%:*}" --trace steps=1..2 || continue
    [ "$(grep -c "$notice" err)" = 1 ] && says "${word#*:}" err ||
      fail "$word: $(cat err)"
    same <(losses plain) <(losses "${word%%:*}") "${word%%:*}: other losses"
    "${CHECK[@]}" "${word%%:*}" >checked 2>&1 || fail "$word: $(cat checked)"
    says 'steps \[1, 2\]' checked
  done
  FAKE_PLUGIN='devices=1 profile_die' status 1 "${TRAIN[@]}" --steps 3 --out died --trace steps=2
  says 'Check failed: a profile' err
}

# Two chips: the times are those of the first one.
case_mesh() {
  FAKE_PLUGIN='devices=2 rounds=2' \
    status 0 "${TRAIN[@]}" --steps 2 --mesh data=2 --out mesh --trace steps=2 || return
  "${CHECK[@]}" mesh >checked 2>&1 || fail "$(cat checked)"
  [ "$(ask mesh/report.json 'd["walks"][0]["timed"]')" = 1 ] || fail 'no times of ops on a mesh'
}

# With --trace, no pass runs ahead, so a single selected step contains its own pass.
case_generate() {
  status 0 "$RAFTER" generate "$TINY" --backend xla --plugin "$PLUGIN" --prompt abc --max-tokens 12 \
    --temperature 0 --ignore-eos --trace steps=7 --out answers || return
  "${CHECK[@]}" answers >checked 2>&1 || fail "$(cat checked)"
  says 'steps \[7\]' checked
  python3 - "$HERE" <<'PY' || fail 'the selected step is empty'
import sys
sys.path.insert(0, sys.argv[1])
import trace_events
header, columns = trace_events.columns_of("answers/trace.bin")
kinds = header["kinds"]
assert any(kinds[kind] == "op" for kind in columns["kind"])
PY
}

cases "$@"
