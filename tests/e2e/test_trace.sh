#!/usr/bin/env bash
# `--trace` for every kind of run: an independent parser reads the same record in both files.
# Recording changes no bit and no plan. `report` converts a trace to other forms.
. "$(dirname "$0")/lib.sh"
export RAFTER_RUNS=$WORK/runs
CHECK=(python3 "$HERE/trace_events.py")
text book.txt 20000
python3 -c 'import json; [print(json.dumps({"text": line})) for line in open("book.txt").read().split(". ")[:60] if line]' >book.jsonl

# Training with and without a trace: the same losses, weights and digest.
TRAIN=("$RAFTER" train "$TINY" "${QUICK[@]}" --data book.txt --steps 5 --val-every 4 --accumulate 2 --remat mlp)
status 0 "${TRAIN[@]}" --out plain
status 0 "${TRAIN[@]}" --out traced --trace steps=2..4:2
same <(losses plain) <(losses traced) 'tracing changes losses'
same plain/checkpoint-00000005/model.safetensors traced/checkpoint-00000005/model.safetensors 'tracing changes weights'
[ "$(ask plain/run.json 'd["digest"]')" = "$(ask traced/run.json 'd["digest"]')" ] || fail 'tracing changes the plan'
[ ! -e plain/trace.bin ] || fail 'a trace was written without --trace'
says 'steps \[2, 4\], plans \[.train., .validation.\]' <("${CHECK[@]}" traced 2>&1)

# LoRA, generation of several answers at once, scores, an evaluation and a bench: a step is a
# forward pass.
status 0 "$RAFTER" train "$TINY" "${QUICK[@]}" --data book.txt --steps 2 --lora rank=2 --out lora --trace all
printf '{"tokens":[1,2,3]}\n{"tokens":[4,5,6,7]}\n{"tokens":[9]}\n' >prompts.jsonl
status 0 "$RAFTER" generate "$TINY" --threads 2 --input prompts.jsonl --output answers.jsonl --max-tokens 5 --batch 2 --trace all --out answers
status 0 "$RAFTER" generate "$TINY" --threads 2 --input prompts.jsonl --output plain.jsonl --max-tokens 5 --batch 2
same answers.jsonl plain.jsonl 'tracing changes answers'
status 0 "$RAFTER" score "$TINY" --threads 2 --input prompts.jsonl --trace steps=1 --out scored
status 0 "$RAFTER" bench "$TINY" --threads 2 --test tg4,pp8,train --reps 1 --seq 16 --trace steps=1..2 --out benched
for run in lora answers scored benched/tg4 benched/pp8 benched/train; do "${CHECK[@]}" "$run" >out 2>&1 || fail "$(cat out)"; done

# The whole time from one step to the next is explained, including the time between their passes.
status 0 "$RAFTER" train "$TINY" "${QUICK[@]}" --data book.txt --steps 6 --val-every 2 --save-every 3 --accumulate 2 --out whole --trace all
status 0 "$RAFTER" score "$TINY" --threads 2 --input book.jsonl --stride 16 --output scores.jsonl --trace all --out scores
status 0 "$RAFTER" eval perplexity "$TINY" --threads 2 --data book.txt --seq 32 --stride 32 --batch 4 --limit 40 --trace all --out evaluated
for run in whole lora answers scores evaluated; do
  "${CHECK[@]}" "$run" >out 2>&1 || fail "$(cat out)"
  python3 - "$HERE" "$run" <<'PY' || fail "$run: more than 2 % of its time is unexplained, or a phase is missing"
import sys
sys.path.insert(0, sys.argv[1])
import trace_events
header, columns = trace_events.columns_of(f"{sys.argv[2]}/trace.bin")
part, found = trace_events.unexplained(header), {phase for step in header["steps"] for phase in step["after"]["by_phase"]}
print(f"{sys.argv[2]}: unexplained {100 * part:.3f} % of {len(header['steps'])} steps with the time between them; there: {sorted(found)}", file=sys.stderr)
phases = {header["phases"][columns["id"][i]] for i in range(header["count"]) if header["kinds"][columns["kind"][i]] == "phase"}
expected = {"whole": {"validation", "checkpoint", "write", "data"}, "answers": {"write"}, "scores": {"sample"}, "evaluated": {"write"}}.get(sys.argv[2], set())
sys.exit(not (part <= 0.02 and expected <= found and ("accumulate" in phases) == (sys.argv[2] == "whole")))
PY
done
python3 - "$HERE" <<'PY' || fail 'a generation does not count its queue, answers and pages'
import sys
sys.path.insert(0, sys.argv[1])
import trace_events
header, columns = trace_events.columns_of("answers/trace.bin")
names, kind = [one["name"] for one in header["counters"]], header["kinds"].index("counter")
of = {name: [columns["value"][i] for i in range(header["count"]) if columns["kind"][i] == kind and names[columns["id"][i]] == name] for name in names}
phases = {header["phases"][columns["id"][i]] for i in range(header["count"]) if header["kinds"][columns["kind"][i]] == "phase"}
good = max(of["queue"]) == 1 and of["queue"][-1] == 0 and max(of["answers running"]) == 2 and max(of["kv pages in use"]) >= 2 and max(of["arena live bytes"]) > 0
sys.exit(not (good and {"sample", "data", "load", "forward"} <= phases))
PY

# The other forms of a trace, from its file alone.
status 0 "$RAFTER" report traced --perfetto again.json --csv rows.csv
same again.json traced/trace.json '--perfetto is not what the run wrote'
python3 - <<'PY' || fail 'the CSV differs from the trace'
import csv, json
rows, events = list(csv.DictReader(open("rows.csv"))), json.load(open("again.json"))["traceEvents"]
ops, complete = [r for r in rows if r["kind"] == "op"], [e for e in events if e.get("cat") == "op"]
assert len(ops) == len(complete) > 100
for row, event in zip(ops, complete):
    assert row["name"] == event["name"] and abs(float(row["duration_us"]) - event["dur"]) < 1e-3 and float(row["flops"]) == event["args"]["flops"]
PY
refuses 1 'no RUN has a trace' "$RAFTER" report plain --perfetto no.json
cp -r traced named && python3 - <<'PY'
import json
header, rest = open("traced/trace.bin", "rb").read().split(b"\n", 1)
said = json.loads(header)
said["lanes"][0]["name"] = 500 * 'L"'
text = json.dumps(said, separators=(",", ":")).encode()
open("named/trace.bin", "wb").write(text.ljust(len(text) + -(len(text) + 1) % 8) + b"\n" + rest)
PY
status 0 "$RAFTER" report named --perfetto named.json &&
  python3 -c 'import json; assert 500 * "L\"" in [e["args"]["name"] for e in json.load(open("named.json"))["traceEvents"] if e["name"] == "thread_name"]' ||
  fail 'a long name is shortened'
[ ! -e no.json ] || fail 'an incomplete file'
head -c 3000 traced/trace.bin >cut.bin && cp -r traced damaged && cp cut.bin damaged/trace.bin
refuses 1 'trace.bin' "$RAFTER" report damaged --perfetto no.json

# A trace from before the gaps "stopped" and of ranks, the last two phases and the time between steps
# can be read.
# There, a later phase is part of another phase: here, write.
cp -r traced older && python3 - "$HERE" <<'PY'
import json, sys
sys.path.insert(0, sys.argv[1])
import trace_events
said, columns = trace_events.columns_of("traced/trace.bin")
size = len(open("traced/trace.bin", "rb").read().split(b"\n", 1)[0])
assert [said["gaps"].pop() for _ in range(3)] == ["network", "slow rank", "stopped"]
assert [said["phases"].pop() for _ in range(2)] == ["other", "record"]
for i in range(said["count"]):
    if said["kinds"][columns["kind"][i]] == "phase" and columns["id"][i] == len(said["phases"]): columns["id"][i] -= 1
for step in said["steps"]:
    step.pop("after")
    for side in step.get("gaps", []): del side[-3:]
with open("older/trace.bin", "wb") as file:
    file.write(json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode().ljust(size) + b"\n")
    for column in said["columns"]: columns[column["name"]].tofile(file)
record, write = len(said["phases"]), len(said["phases"]) - 1
open("older-rows.csv", "w", newline="").write(open("rows.csv", newline="").read().replace(f'phase,"record",0,{record},', f'phase,"write",0,{write},'))
PY
status 0 "$RAFTER" report older --csv older.csv &&
  same older.csv older-rows.csv 'an older trace is read differently'

for bad in steps=5..4 steps=1..2:0 steps=0..3 steps=0 everything; do refuses 2 '--trace' "${TRAIN[@]}" --out refused --trace "$bad"; done
[ ! -e refused ] || fail 'a refused trace leaves a folder'

# Resuming records nothing unless asked to, and an empty trace never replaces a trace.
cp traced/trace.bin before.bin && cp traced/trace.json before.json
status 0 "$RAFTER" train --resume traced --steps 6 &&
  same before.bin traced/trace.bin 'resuming changes a trace'
status 0 "$RAFTER" train --resume traced --steps 7
for never in steps=2..3 steps=8..9 steps=1..9:8; do refuses 2 "names none of the run's steps" "$RAFTER" train --resume traced --steps 7 --trace $never; done
refuses 2 "names none of the run's steps .expected some of 1 to 5" "${TRAIN[@]}" --out never --trace steps=100..200 &&
  [ ! -e never ] || fail 'a run whose trace is never reached leaves a folder'
same before.bin traced/trace.bin 'a trace of no step takes the place of one' &&
  same before.json traced/trace.json 'a trace.json of no step'
status 0 "$RAFTER" train --resume traced --steps 8 --trace steps=8 && says '1 steps' out &&
  ! cmp -s before.bin traced/trace.bin || fail 'a resumed run with --trace does not record'
finish
