#!/usr/bin/env bash
# SIGINT, SIGTERM and SIGHUP end every command soon, also within a long forward pass. What a command
# saves is saved.
. "$(dirname "$0")/lib.sh"
# One pass of this model takes much longer than a test waits, and each of its ops takes little time.
SLOW=gpt:layers=400,width=64,heads=2,ff=256,vocab=256,seq=512
REFERENCE=(--backend reference --threads 2)
JSON_CHAT=(--json --template chat.jinja)
WAIT=10 # seconds; the promise is 2 s on a machine that does nothing else

setup() {
  text book.txt 20000
  echo '{% for m in messages %}{{ m.content }}{% endfor %}' >chat.jinja
}

# ends SIGNAL STATUS WHAT: sends the signal to pid, and expects this exit status within $WAIT seconds.
ends() {
  local got=0
  kill "-$1" $pid
  for _ in $(seq $((WAIT * 20))); do kill -0 $pid 2>/dev/null || break; sleep 0.05; done
  if kill -0 $pid 2>/dev/null; then
    fail "$3: the command still runs $WAIT s after SIG$1"
    kill -9 $pid
  fi
  wait $pid || got=$?
  [ $got = "$2" ] || fail "$3: SIG$1 ends the command with $got, not $2"
}
# in_pass: waits until the command pid computes: its threads have used 2.5 s of CPU time, and loading takes
# less.
in_pass() {
  for _ in $(seq 400); do
    [ "$(awk '{ print $14 + $15 }' /proc/$pid/stat 2>/dev/null || echo 0)" -ge 250 ] && return
    sleep 0.05
  done
}

case_calibrate() {
  for signal in INT TERM HUP; do
    "$RAFTER" calibrate --threads 2 --out machine.json >log 2>&1 &
  pid=$!
    in_pass
    ends $signal 130 calibrate
    says 'stopped by a signal' log
    [ ! -e machine.json ] || fail 'a stopped calibration leaves a machine file'
  done
}

# A pass that is stopped has no results. The rows of earlier passes are in the file.
case_score() {
  python3 -c '
import json
rows = [{"tokens": [1, 2, 3]}] + [{"tokens": list(range(256)) * 2}] * 2
open("rows.jsonl", "w").write("".join(json.dumps(r) + "\n" for r in rows))'
  "$RAFTER" score $SLOW "${REFERENCE[@]}" --input rows.jsonl --output out.jsonl --batch 1 >log 2>&1 &
  pid=$!
  in_pass
  ends INT 130 score
  says 'stopped after [01] of 3 windows; [01] of 3 rows were written' log
  "$RAFTER" eval perplexity $SLOW "${REFERENCE[@]}" --data book.txt --seq 512 >log 2>&1 &
  pid=$!
  in_pass
  ends HUP 130 eval
}

case_generate() {
  "$RAFTER" generate $SLOW "${REFERENCE[@]}" --prompt "$(head -c 400 book.txt)" --max-tokens 4 >log 2>&1 &
  pid=$!
  in_pass
  ends TERM 130 generate
}

# A chat that waits for a line ends. A signal within an answer ends the answer, and SIGTERM the chat.
case_chat() {
  for signal in TERM HUP; do
    rm -f log # the chat before has written a turn
    "$RAFTER" chat "$TINY" "${JSON_CHAT[@]}" --max-tokens 4 < <(exec 2>/dev/null; echo the; sleep 30) >log 2>&1 &
  pid=$!
    for _ in $(seq 200); do grep -q '"turn"' log && break; sleep 0.05; done
    ends $signal 130 'an idle chat'
  done
  "$RAFTER" chat $SLOW "${REFERENCE[@]}" "${JSON_CHAT[@]}" \
    < <(exec 2>/dev/null; head -c 300 book.txt; echo; sleep 30) >log 2>&1 &
  pid=$!
  in_pass
  ends TERM 130 'an answering chat'
  # SIGINT ends the first answer only; the chat continues with the second line.
  "$RAFTER" chat ${SLOW/layers=400/layers=10} "${REFERENCE[@]}" "${JSON_CHAT[@]}" --debug --max-tokens 2 \
    < <(head -c 400 book.txt; echo; echo a) >log 2>&1 &
  pid=$!
  in_pass
  kill -INT $pid
  wait $pid || fail "SIGINT in an answer ends the chat: $(cat log)"
  [ "$(grep -c '"turn"' log)" = 2 ] || fail "a chat does not continue after SIGINT: $(cat log)"
  says '"finish_reason":"interrupted"' log
}

# The interrupted step has no effect, also not on the rows that were drawn. test_resume.sh compares the
# bits of resumed runs.
case_train() {
  local shape=${SLOW/layers=400/layers=60} train
  train=("$RAFTER" train "${shape/seq=512/seq=128}" "${REFERENCE[@]}" --batch 2 --accumulate 2
    --data book.txt --val-every 1 --val-rows 1 --dropout 0.1)
  "${train[@]}" --steps 2 --out cut >log 2>&1 &
  pid=$!
  in_pass
  ends HUP 130 train
  says 'stopped at step [01]; continue with --resume' log
  [ -n "$(find cut -name DONE)" ] || fail 'SIGHUP leaves no checkpoint'
  cat cut/checkpoint-*/state.json >state.json
  holds state.json 'd["rows"] == 2 * d["step"] == d["data"][0]["drawn"]'
}

# The table of a stopped run has the times of whole steps. A signal comes within a step, because a step
# takes much longer than the rest.
case_train_times() {
  local shape=${SLOW/layers=400/layers=8}
  "$RAFTER" train "${shape/seq=512/seq=128}" "${REFERENCE[@]}" --batch 2 --accumulate 2 --data book.txt \
    --val-every 0 --steps 1000 --out cut >log 2>&1 &
  pid=$!
  for _ in $(seq 800); do grep -q '"step":2' cut/metrics.jsonl 2>/dev/null && break; sleep 0.05; done
  ends TERM 130 train
  python3 - <<'PY' || fail 'the report counts ops of the interrupted step'
import json
plan, report = (json.load(open(f"cut/{name}.json")) for name in ("plan", "report"))
walk, = report["walks"]
wrong = [op for op in walk["ops"] if op["calls"] != walk["count"] * plan["ops"][op["id"]]["calls"]]
assert walk["ops"] and not wrong, (walk["count"], wrong[:3])
inside = sum(op["calls"] * op["seconds"] for op in walk["ops"])
assert inside <= walk["seconds"], (inside, walk["seconds"])
PY
}
cases "$@"
