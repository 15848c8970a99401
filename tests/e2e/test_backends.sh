#!/usr/bin/env bash
# The null backend runs a plan of any size without memory. The reference backend and every
# instruction set agree. Memory outside the arena does not grow.
. "$(dirname "$0")/lib.sh"
text book.txt 20000

status 0 "$RAFTER" train gpt2 --backend null --batch 64 --on h100-sxm --data random:seed=0 --steps 3 --out null &&
  {
  holds null/metrics.jsonl 'len(rows) == 4 and rows[-1]["step"] == 3 and rows[0]["peak_bytes"] > 8 << 30' 'the null backend takes three steps of a plan larger than 8 GiB'
  [ "$(find null -name '*.safetensors' | wc -l)" = 0 ] || fail 'the null backend saves weights that it does not have'
}

TRAIN=("$RAFTER" train "$TINY" "${QUICK[@]}" --data book.txt --steps 5 --lr 1e-3 --dropout 0.1 --val-every 5)
status 0 "${TRAIN[@]}" --out cpu
status 0 "${TRAIN[@]}" --backend reference --out reference
close() { python3 - "$1/metrics.jsonl" "$2/metrics.jsonl" "$3" <<'PY' || fail "losses of $1 and $2 differ by more than $3"
import json, sys
a, b = ([json.loads(l) for l in open(f)][1:] for f in sys.argv[1:3])
worst = max(abs(x[k] - y[k]) / max(1e-3, abs(x[k])) for x, y in zip(a, b) for k in ("loss", "grad_norm"))
sys.exit(not (len(a) == len(b) == 5 and worst < float(sys.argv[3])))
PY
}
close cpu reference 1e-4
losses cpu >cpu.txt
for cpu in base avx2 avx512; do
  "${TRAIN[@]}" --cpu $cpu --out $cpu >out 2>err; got=$?
  if [ $got = 2 ] && grep -q 'lacks the requested instructions' err; then continue; fi
  [ $got = 0 ] || fail "--cpu $cpu exits $got: $(head -1 err)"
  losses $cpu >again.txt; same cpu.txt again.txt "--cpu $cpu gives the bits of every other"
done
status 0 "${TRAIN[@]}" --dtype bf16 --out bf16 && close cpu bf16 0.03

# Accumulating 4 x 1 equals 1 x 4 up to rounding, with the same dropout masks.
status 0 "${TRAIN[@]}" --accumulate 4 --out parts && close cpu parts 1e-4

# Resident memory minus the arena stays under 64 MiB and does not grow over the steps.
"$RAFTER" train "$TINY" "${QUICK[@]}" --data book.txt --steps 100000 --max-seconds 60 --val-every 50 --save-every 0 --out grows >out 2>err & pid=$!
resident() { awk '/VmRSS/ {print $2 * 1024}' /proc/$pid/status; }
step() { for _ in $(seq 3000); do [ "$(cat grows/metrics.jsonl 2>/dev/null | wc -l)" -gt "$1" ] && return; sleep 0.01; done; }
step 60; early=$(resident)
step 300; late=$(resident)
arena=$(head -1 grows/metrics.jsonl | python3 -c 'import json,sys; print(json.load(sys.stdin)["arena_bytes"])')
kill $pid; wait $pid
[ "$((late - arena))" -lt $((64 << 20)) ] || fail "resident memory is $((late - arena)) bytes above the arena"
[ "$late" -le "$((early + 65536))" ] || fail "resident memory grows from $early to $late bytes over 240 steps"
finish
