#!/usr/bin/env bash
# bench/peers/bench.py: a row beside a stand-in for a peer's package, one whose package is missing, and one of ours that is refused. No time is compared.
. "$(dirname "$0")/lib.sh"
PEERS=$(realpath "$HERE/../../bench/peers")
status 0 python3 "$PEERS/bench.py" --list && [ "$(wc -l <out)" -ge 25 ] || fail 'rows.json has fewer rows than it had'
# The environment's Python has modules called torch and peft that do nothing; jax is missing. A script beside them stands in for the peer's work.
mkdir -p env/bin && printf '#!/bin/sh\nPYTHONPATH=%q exec %q "$@"\n' "$WORK/env" "$(command -v python3)" >env/bin/python3 && chmod +x env/bin/python3
cat >env/torch.py <<'PY'
import json, sys
if "torch_step" in sys.argv[0]:
    print(json.dumps({"tool": "stand-in", "version": "1"}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": [0.5] * int(line), "peak_rss_bytes": 1 << 40}), flush=True)
    sys.exit(0)
PY
cat >rows.json <<JSON
[{"name": "tiny", "work": "train a tiny model", "tokens": 128, "reps": 2, "ours": ["$TINY", "--test", "train", "--batch", "4", "--seq", "32"],
  "peers": {"PyTorch": ["torch_step.py", "--model", "gpt2", "--batch", "4", "--seq", "32"], "JAX": ["jax_step.py"]}, "bar": {"best": 1e-9, "memory": 0.9}},
 {"name": "refused", "work": "nothing", "tokens": 1, "reps": 1, "ours": ["$TINY", "--test", "pq7"], "peers": {}, "bar": {"ceiling": 0.5}}]
JSON
RAFTER_PEERS=$WORK/env status 0 python3 "$PEERS/bench.py" --rows rows.json --out results --rounds 1 --threads 2 && {
  json=$(echo results/*.json) table=$(echo results/*.md)
  holds "$json" '[r["name"] for r in d["rows"]] == ["tiny", "refused"] and [r["met"] for r in d["rows"]] == [True, None]' 'the bars are judged'
  holds "$json" 'd["rows"][0]["peers"]["PyTorch"]["median"] == 256 and d["rows"][0]["peers"]["PyTorch"]["n"] == 2 and d["rows"][0]["ours"]["n"] == 3' 'ours ran before and after the peer'
  holds "$json" '0 < d["rows"][0]["fraction_causal"] < d["rows"][0]["fraction"] and len(d["rows"][0]["samples"]["rafter"]) == 3 and d["rows"][0]["ceilings"]["f32"]["n"] == 2'
  holds "$json" '"jax" in d["rows"][0]["missing"]["JAX"] and "pq7" in d["rows"][1]["missing"]["rafter"]' 'what is missing has a reason'
  says 'train a tiny model .* yes' "$table"
  says 'jax is not in' out
}
finish
