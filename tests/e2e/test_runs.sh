#!/usr/bin/env bash
# `rafter runs`: every run has a row, also if it failed, was stopped or was killed. A history that
# cannot be written stops no run.
. "$(dirname "$0")/lib.sh"
export RAFTER_RUNS=$WORK/runs
TRAIN=("$RAFTER" train "$TINY" "${QUICK[@]}" --data book.txt)
RUNS=("$RAFTER" runs)

# The history holds absolute paths, so every case makes its own runs.
two_runs() {
  rm -rf runs none
  text book.txt 20000
  status 0 "${TRAIN[@]}" --steps 4 --out runs/a
  status 0 "${TRAIN[@]}" --steps 8 --remat block --out runs/b
}

# Only folders of runs are removed, and of them only what belongs to the run.
case_rm() {
  two_runs
  mkdir -p outside project/src && echo kept >outside/file && cp runs/a/run.json project
  ln -s "$WORK/outside" runs/a/link && ln -s "$WORK/outside" runs/a/checkpoint-99
  refuses 2 'without --yes' "${RUNS[@]}" rm a
  [ -d runs/a ] || fail 'runs rm without --yes removes a run'
  refuses 2 'needs a run.*got none' "${RUNS[@]}" rm
  refuses 1 'no run nosuch' "${RUNS[@]}" rm a nosuch --yes
  [ -d runs/a ] || fail 'runs rm removes a run next to a wrong one'
  refuses 1 'no run.json' "${RUNS[@]}" rm outside --yes
  refuses 1 'not a checkpoint: src' "${RUNS[@]}" rm project --yes
  [ -s outside/file ] && [ -d project/src ] || fail 'runs rm removes a folder that is no run'
  "${TRAIN[@]}" --steps 100000000 --out runs/busy >/dev/null 2>&1 &
  pid=$!
  for _ in $(seq 600); do [ -s runs/busy/metrics.jsonl ] && break; sleep 0.1; done
  refuses 1 'busy is running' "${RUNS[@]}" rm runs/busy --yes
  [ -s runs/busy/run.json ] || fail 'runs rm removes a running run'
  cp -r runs/busy moved
  kill -INT $pid && wait $pid
  status 0 "${RUNS[@]}" rm a 2 --yes && says 'removed .*/runs/a' out && says 'removed .*/runs/b' out
  [ ! -e runs/a ] && [ ! -e runs/b ] || fail 'runs rm leaves a folder'
  [ -s outside/file ] || fail 'runs rm follows a link'
  status 0 "${RUNS[@]}" list --json && holds out '[r["name"] for r in d["runs"]] == ["busy"]'
  status 0 "${RUNS[@]}" rm moved --yes && [ ! -e moved ] || fail 'a run outside the history is not removed'
}

case_list_show_best() {
  status 0 "${RUNS[@]}" list && says 'no runs in' out
  two_runs
  status 0 "$RAFTER" generate runs/a --prompt 'and ' --max-tokens 4 --temperature 0
  status 0 "$RAFTER" score runs/a --text 'and he shall'
  status 0 "$RAFTER" eval perplexity runs/a --data book.txt --limit 2 --trace all --out runs/eval
  "${TRAIN[@]}" --steps 100000000 --out runs/stopped >/dev/null 2>&1 &
  stopped=$!
  "${TRAIN[@]}" --steps 100000000 --out runs/killed >/dev/null 2>&1 &
  killed=$!
  for _ in $(seq 600); do [ -s runs/stopped/metrics.jsonl ] && [ -s runs/killed/metrics.jsonl ] &&
    break; sleep 0.1; done
  status 0 "${RUNS[@]}" list --json &&
    holds out '[r["status"] for r in d["runs"]] == ["running", "running", "done", "done", "done", "done", "done"]' 'running runs have the status running'
  kill -INT $stopped && wait $stopped
  kill -9 $killed && wait $killed 2>/dev/null
  status 0 "${RUNS[@]}" list --json && cp out list.json && {
    holds list.json '{r["name"]: r["status"] for r in d["runs"] if r["name"]} == {"a": "done", "b": "done", "eval": "done", "stopped": "interrupted", "killed": "ended without a word"}' 'the status of ended runs'
    holds list.json 'sorted(r["command"] for r in d["runs"]) == ["eval", "generate", "score"] + 4 * ["train"]'
    a=$(ask list.json '[r for r in d["runs"] if r["name"] == "a"][0]["results"]["loss"]') last=$(tail -1 runs/a/metrics.jsonl)
    [ "$(printf '%.7f' "$a")" = "$(printf '%.7f' "$(echo "$last" | python3 -c 'import json, sys; print(json.load(sys.stdin)["loss"])')")" ] || fail "the loss in the history is $a, not that of $last"
    holds list.json 'all(r["results"]["peak_bytes"] > 0 and r["results"]["predicted_tokens_per_second"] > 0 for r in d["runs"])'
  }
  status 0 "${RUNS[@]}" && says 'killed' out && says 'interrupted' out
  status 0 "${RUNS[@]}" list --model nosuch --json && holds out 'd["runs"] == []'
  status 0 "${RUNS[@]}" list --model nosuch && says 'no runs of --model nosuch in' out
  status 0 "${RUNS[@]}" list --limit 2 --json && holds out 'len(d["runs"]) == 2'

  status 0 "${RUNS[@]}" show b && says '^run 2: train' out && says 'remat +"block"' out && says 'runs/b' out
  status 0 "${RUNS[@]}" show runs/b --json &&
    holds out 'd["id"] == 2 and d["options"]["remat"] == "block" and d["folder_is_there"]'
  status 0 "${RUNS[@]}" best --metric loss --model gpt --json &&
    holds out 'd["runs"][0]["name"] == "b" and d["runs"][0]["results"]["loss"] < d["runs"][1]["results"]["loss"]'
  status 0 "${RUNS[@]}" best --of train --json &&
    holds out '{r["command"] for r in d["runs"]} == {"train"} and len(d["runs"]) == 2'
  status 0 "$RAFTER" report runs/killed --json --out killed.json &&
    holds out 'd["runs"][0]["summary"]["steps"]["last"] > 0 and "has no report" in d["runs"][0]["summary"]["sentence"]' 'a killed run has no steps'
  # Rates of different commands are not compared.
  status 0 "${RUNS[@]}" best --metric perplexity --of score --json &&
    holds out '[r["command"] for r in d["runs"]] == ["score"] and d["others"] == {}'
  status 0 "${RUNS[@]}" best --json &&
    holds out 'all(x["results"]["tokens_per_second"] >= y["results"]["tokens_per_second"] for x, y in zip(d["runs"], d["runs"][1:])) and len(d["runs"]) == 2'
  holds out 'd["of"] == "train" and {r["command"] for r in d["runs"]} == {"train"} and d["others"] == {"generate": 1, "score": 1, "eval": 1}' 'the best of several commands'
  status 0 "${RUNS[@]}" best &&
    { ! head -3 out | grep -q tokens_per_second || fail 'best prints the rate twice'; }
  status 0 "${RUNS[@]}" list && says ' gpt:layers=' out
  status 0 "${RUNS[@]}" best && says 'only train runs are compared; .*1 of generate.* also have tokens_per_second' out
  refuses 2 "no run has the result 'nosuch'" "${RUNS[@]}" best --metric nosuch &&
    says '^hint: the runs have .*loss'
  # A killed run is shown with its last row of metrics.
  status 0 "${RUNS[@]}" show killed && says 'results .from metrics.jsonl.' out && says '^  loss +[0-9.]+' out
  status 0 "${RUNS[@]}" show killed --json && cp out killed-row.json && {
    python3 - killed-row.json runs/killed/metrics.jsonl <<'PY' || fail 'a killed run is not shown with its last step'
import json, sys
row = json.load(open(sys.argv[1]))["results"]
last = [json.loads(line) for line in open(sys.argv[2]) if line.endswith("\n")][-1]
assert row["steps"] == last["step"] and row["loss"] == last["loss"] and row["tokens"] == last["tokens"] and row["tokens_per_second"] > 0, (row, last)
PY
  }
  status 0 "${RUNS[@]}" list --json &&
    holds out 'all(r["results"]["steps"] > 0 and r["results"]["loss"] > 0 for r in d["runs"] if r["command"] == "train")' 'the list of runs lacks steps'
  cp -r runs/killed runs/kept && printf '{"step": "x"}\nno json\n{"step":9' >runs/killed/metrics.jsonl
  status 0 "${RUNS[@]}" show killed --json &&
    holds out '"steps" not in d["results"]' 'a damaged metrics.jsonl is used'
  rm -r runs/killed && mv runs/kept runs/killed
  status 0 "$RAFTER" report killed --json &&
    holds out 'd["runs"][0]["summary"]["measured"] is False and len(d["runs"][0]["metrics"]) > 0' 'a killed run is reported'
  python3 -c 'import sqlite3; db = sqlite3.connect("runs/history.db"); db.execute("UPDATE runs SET results = ? WHERE name = ?", ("{half", "stopped")); db.execute("UPDATE runs SET status = ? WHERE name = ?", ("done", "stopped")); db.commit()'
  status 0 "${RUNS[@]}" best --json &&
    holds out '"stopped" not in [r["name"] for r in d["runs"]] and len(d["runs"]) == 2' 'a bad row stops the command'
  # A resumed run without a step left has no rate in the history.
  status 0 "$RAFTER" train --resume runs/b && says 'already at step' out &&
    status 0 "${RUNS[@]}" list --json &&
    holds out 'd["runs"][0]["name"] == "b" and d["runs"][0]["results"]["steps"] == 8' 'no row of b' &&
    holds out 'not [k for k in d["runs"][0]["results"] if "per_second" in k]' 'a run without steps has a rate'
}

# Two runs: options that differ, then time and bytes op by op, largest difference first, with the
# sums of the plans.
case_compare() {
  two_runs
  status 0 "${RUNS[@]}" compare 1 2 && says 'remat +"none" +"block"' out &&
    says 'B (takes .* time|is .* x (faster|slower)) and .* less memory' out && says 'bytes moved' out &&
    says '^loss +[0-9.]+ +[0-9.]+$' out && says '^peak_bytes +[0-9.]+ .iB' out &&
    { ! grep -E '[0-9]e[+]|0000000' out || fail 'a result is written with an exponent'; }
  status 0 "${RUNS[@]}" compare a b --json && cp out both.json && {
    python3 - both.json runs/a runs/b <<'PY' || fail 'the comparison differs from its runs'
import json, math, sys
c, bad = json.load(open(sys.argv[1])), []
if {o["name"]: (o["a"], o["b"]) for o in c["options"]} != {"remat": ("none", "block"), "steps": (4, 8)}: bad.append(c["options"])
for list_ in "ops", "kinds":
    sizes = [abs(r["seconds"]) for r in c[list_]]
    if sizes != sorted(sizes, reverse=True) or not sizes: bad.append(f"{list_} are not in order")
sizes = [abs(r["bytes"]) for r in c["tensors"]]
if sizes != sorted(sizes, reverse=True) or not sizes: bad.append("tensors are not in order")
for side, folder in ("a", sys.argv[2]), ("b", sys.argv[3]):
    plan, report = (json.load(open(f"{folder}/{n}.json")) for n in ("plan", "report"))
    if c[side]["peak_bytes"] != plan["memory"]["peak_bytes"]: bad.append("peak")
    walk = report["walks"][0]
    for op in walk["ops"]:
        row = [r for r in c["ops"] if r["name"] == op["name"]]
        if row and not math.isclose(row[0][side + "_seconds"], op["seconds"] * op["calls"] / walk["count"], rel_tol=1e-9): bad.append(op)
        if row and row[0][side + "_bytes"] != plan["ops"][op["id"]]["bytes"] * op["calls"] / walk["count"]: bad.append(op)
print(*bad[:5], sep="\n") if bad else None
sys.exit(bool(bad))
PY
  }
  rm -r runs/b
  status 0 "${RUNS[@]}" list && says 'its folder is gone' out
  status 0 "${RUNS[@]}" compare a b && says 'one of the runs no longer exists' out && says 'remat' out
  refuses 1 'run 2 has no folder any more' "$RAFTER" report 2 --json
  status 0 "$RAFTER" generate runs/a --prompt 'and ' --max-tokens 2
  status 0 "${RUNS[@]}" compare 1 3 && says 'one of the runs has no folder .--out., so ops' out
  refuses 1 'no run 99' "${RUNS[@]}" compare 1 99
  refuses 2 'takes 2 runs' "${RUNS[@]}" compare 1
}

# A slash after the name of a folder, and folders whose name is a number. A number of the history
# can be a run of a report.
case_names() {
  two_runs
  status 0 "$RAFTER" eval perplexity runs/a --data book.txt --limit 2 --out runs/eval
  status 0 "${TRAIN[@]}" --steps 1 --out runs/ring/ && status 0 "${RUNS[@]}" show ring &&
    says 'runs/ring$' out
  status 0 "${TRAIN[@]}" --steps 1 --out runs/4711 && status 0 "${RUNS[@]}" show 4711 && says 'runs/4711' out
  status 0 "$RAFTER" report 1 --json &&
    holds out 'd["runs"][0]["folder"].endswith("runs/a")' 'a report by number'
  refuses 1 'no run 99' "$RAFTER" report 99 --json
  # A folder that was removed and used again belongs to the later run. A training and a scoring are
  # not compared op by op. A file of a run names its folder.
  rm -r runs/ring && status 0 "${TRAIN[@]}" --steps 2 --remat block --out runs/ring &&
    status 0 "${RUNS[@]}" list --json &&
    holds out '[r["folder_is_there"] for r in d["runs"] if r["name"] == "ring"] == [True, False] and sum("folder_taken_by" in r for r in d["runs"]) == 1'
  status 0 "${RUNS[@]}" list && says 'uses that folder now' out
  status 0 "${RUNS[@]}" compare a eval && says 'ops are not compared' out && says 'tokens_per_second' out &&
    ! grep -q '100.0 % less' out || fail 'a training is compared with an evaluation op by op'
  status 0 "$RAFTER" report ring/ --json && holds out 'd["runs"][0]["name"] == "ring"'
  for file in run.json report.json metrics.jsonl; do refuses 1 'belongs to the run in runs/ring' "$RAFTER" report runs/ring/$file; done
  # Control characters that another program wrote into the history have no effect on the terminal.
  cp runs/history.db sound.db &&
    python3 -c 'import sqlite3; db = sqlite3.connect("runs/history.db"); db.execute("UPDATE runs SET model = ?, machine = ?, started = ?, name = ?, folder = ? WHERE name = ?", ("m\n\nFAKE ROW\x1b[2J\u009b", "\x07", 9e18, "moved", "f\n\x1b[1mx", "4711")); db.commit()'
  for verb in 'list' 'show moved' 'best --metric loss'; do status 0 "${RUNS[@]}" $verb &&
    ! LC_ALL=C grep -qP '\x1b|\x07|\xc2\x9b|^FAKE' out || fail "runs $verb prints control characters"; done
}

# Runs without --out that begin in the same second get different folders.
case_same_second() {
  text book.txt 20000
  pids=()
  for _ in 1 2 3; do (RAFTER_RUNS=$WORK/together "${TRAIN[@]}" --steps 1 >/dev/null 2>>together.err ||
    echo failed >>together.err) & pids+=($!); done
  wait "${pids[@]}"
  [ "$(find together -mindepth 2 -name metrics.jsonl | wc -l)" = 3 ] && ! grep -q failed together.err || fail "runs that begin together: $(cat together.err)"
}

# A reader that closes the pipe is not an error; a full disk is one.
case_output() {
  two_runs
  (sleep 0.2; "${RUNS[@]}" list --limit 0 2>late.err; echo $? >late.status) | exec 0<&-
  [ "$(cat late.status)" = 0 ] && [ ! -s late.err ] || fail "a reader that closed the pipe: $(cat late.err)"
  "${RUNS[@]}" list >/dev/full 2>full.err && fail 'a full disk gives exit status 0'
  says 'cannot write the output' full.err
  refuses 1 'no run nosuch' "${RUNS[@]}" show nosuch
  refuses 2 'runs has no subcommand' "${RUNS[@]}" lst
  refuses 2 'is not the name of a result' "${RUNS[@]}" best --metric 'a"b'
}

# Runs with rewards have columns of their own, from the history or from metrics.jsonl. Damaged lines
# of metrics.jsonl are skipped.
case_rewards() {
  two_runs
  status 0 "${RUNS[@]}" list &&
    { ! grep -q reward out || fail 'runs without rewards have a column of rewards'; }
  for run in a b; do
    python3 "$HERE/../browser/rl_example.py" runs/$run --steps 30
  done
  python3 - <<'PY'
import json, sqlite3
rows = [json.loads(line) for line in open("runs/b/metrics.jsonl")]
for row in rows:
    if "eval_reward" in row: row["eval_reward"] = 2 if row["step"] == 10 else 0.5
with open("runs/b/metrics.jsonl", "w") as out:
    for row in rows: out.write(json.dumps(row) + "\n")
    out.write('no json "eval_reward"\n{"step": 31, "reward": "x", "eval_reward": "y"}\n')
    out.write('{"step": 32, "eval_reward": 7')
db = sqlite3.connect("runs/history.db")
db.execute("UPDATE runs SET command = 'rl', results = ?", ('{"peak_bytes": 4096}',))
db.execute("UPDATE runs SET results = ? WHERE name = 'a'", ('{"steps": 30, "reward": 0.25}',))
db.commit()
PY
  status 0 "${RUNS[@]}" list && says 'loss +reward +best eval +memory' out && says ' 0\.25 ' out
  status 0 "${RUNS[@]}" list --json && cp out list.json && {
    python3 - list.json <<'PY' || fail 'the rewards of runs are not those of their steps'
import json, sys
runs = {row["name"]: row for row in json.load(open(sys.argv[1]))["runs"]}
rows = [json.loads(line) for line in open("runs/a/metrics.jsonl")]
a, b = runs["a"]["results"], runs["b"]["results"]
best = max(row["eval_reward"] for row in rows if "eval_reward" in row)
assert a["reward"] == 0.25 and a["best_eval_reward"] == best, a
assert b["steps"] == 31 and b["best_eval_reward"] == 2 and b["eval_reward"] == 0.5, b
assert b["reward"] > 0 and b["peak_bytes"] == 4096 and b["tokens"] > 0, b
assert runs["b"]["results_from"] == "metrics.jsonl" and "results_from" not in runs["a"]
PY
  }
  status 0 "${RUNS[@]}" show b && says '^  reward +[0-9.]+$' out && says '^  best_eval_reward +2$' out
  status 0 "${RUNS[@]}" compare a b && says '^reward +0\.25 +[0-9.]+$' out &&
    says '^best_eval_reward +[0-9.]+ +2$' out
  status 0 "$RAFTER" inspect runs/b && says ', reward [0-9.]+, best evaluation 2, [0-9,]+ tokens; ' out
}

# The memory of a run is that of its arena, which the larger pass of a generation determines. A
# command that computes nothing is not a run.
case_memory() {
  two_runs
  status 0 "$RAFTER" generate runs/a --prompt 'and he ' --max-tokens 40 --prefill-chunk 64 --temperature 0 --trace all --out runs/told
  [ "$(ask runs/told/report.json 'd["arena_bytes"]')" -gt "$(ask runs/told/plan.json 'd["memory"]["persistent_bytes"]')" ] || fail 'the arena is not larger than the persistent tensors'
  status 0 "${RUNS[@]}" show told --json && holds out "d[\"results\"][\"peak_bytes\"] == $(ask runs/told/report.json 'd["arena_bytes"]')" 'the memory of a generation is not its arena'
  status 0 "${TRAIN[@]}" --steps 2 --backend null --out none && says 'nothing was computed' out
  status 0 "${RUNS[@]}" list --json --limit 0 &&
    holds out 'not any(r["name"] == "none" for r in d["runs"])' 'a run without computation is in the history'
}

# A row that cannot be written gives a warning. With an empty RAFTER_RUNS there is no history.
case_no_history() {
  two_runs
  cp runs/history.db good.db && head -c 5000 book.txt >runs/history.db
  status 0 "${TRAIN[@]}" --steps 1 --out more && says 'warning: cannot .* history' &&
    status 0 "${TRAIN[@]}" --steps 1 --quiet --out still
  refuses 1 'history.db' "${RUNS[@]}" list
  cp good.db runs/history.db
  RAFTER_RUNS='' status 0 "${TRAIN[@]}" --steps 1 --out none && status 0 "${RUNS[@]}" list --limit 0 --json &&
    holds out 'len(d["runs"]) == 2'
}

cases "$@"
