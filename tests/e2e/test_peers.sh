#!/usr/bin/env bash
# bench/peers/bench.py: a row with a stand-in for a peer's package, a row whose package is missing,
# and a refused row of ours. No time is compared.
. "$(dirname "$0")/lib.sh"
PEERS=$(realpath "$HERE/../../bench/peers")
status 0 python3 "$PEERS/bench.py" --list && [ "$(wc -l <out)" -ge 25 ] || fail 'rows.json has fewer rows than it had'
# The environment's Python has modules called torch and peft that do nothing; jax is missing. A
# script next to them replaces the peer's work.
mkdir -p env/bin && printf '#!/bin/sh\nPYTHONPATH=%q exec %q "$@"\n' "$WORK/env" "$(command -v python3)" >env/bin/python3 && chmod +x env/bin/python3
cat >env/torch.py <<'PY'
import json, os, sys
if "torch_step" in sys.argv[0]:
    print(json.dumps({"tool": "stand-in", "version": os.environ.get("ATEN_CPU_CAPABILITY", "1")}), flush=True)
    if "DIES" in os.environ:
        sys.exit("killed while it waited")
    for line in sys.stdin:
        print(json.dumps({"seconds": [0.5] * int(line), "peak_rss_bytes": 1 << 40}), flush=True)
    sys.exit(0)
PY
cat >rows.json <<JSON
[{"name": "tiny", "work": "train a tiny model", "tokens": 128, "reps": 2, "ours": ["$TINY", "--test", "train", "--batch", "4", "--seq", "32"],
  "peers": {"PyTorch": ["torch_step.py", "--model", "gpt2", "--batch", "4", "--seq", "32"], "JAX": ["jax_step.py"]}, "bar": {"best": 1e-9, "memory": 0.9}},
 {"name": "refused", "work": "nothing", "tokens": 1, "reps": 1, "ours": ["$TINY", "--test", "pq7"], "peers": {}, "bar": {"ceiling": 0.5}}]
JSON
RAFTER_PEERS=$WORK/env status 0 python3 "$PEERS/bench.py" --rows rows.json --out results --rounds 1 --threads 2 &&
  {
  json=$(echo results/*.json) table=$(echo results/*.md)
  holds "$json" '[r["name"] for r in d["rows"]] == ["tiny", "refused"] and [r["met"] for r in d["rows"]] == [None, None]' 'no peer is the best while another did not run'
  holds "$json" 'd["rows"][0]["peers"]["PyTorch"]["median"] == 256 and d["rows"][0]["peers"]["PyTorch"]["n"] == 2 and d["rows"][0]["ours"]["n"] == 3' 'rafter ran before and after the peer'
  holds "$json" '0 < d["rows"][0]["fraction_causal"] < d["rows"][0]["fraction"] and len(d["rows"][0]["samples"]["rafter"]) == 3 and d["rows"][0]["ceilings"]["f32"]["n"] == 2'
  holds "$json" '"jax" in d["rows"][0]["missing"]["JAX"] and "pq7" in d["rows"][1]["missing"]["rafter"]' 'a missing peer has a reason'
  says 'train a tiny model' "$table"
  says 'not measured whole' out
  says 'jax is not in' out
}
# --cpu avx2 holds both sides. A peer that cannot be held does not keep the bar from being judged.
# On a CPU without more, nothing holds the peers, and all of them run.
if grep -qw avx2 /proc/cpuinfo; then
  touch env/onnxruntime_genai.py
  cat >held.json <<JSON
[{"name": "tiny", "work": "train a tiny model", "tokens": 128, "reps": 1,
  "ours": ["$TINY", "--test", "train", "--batch", "4", "--seq", "32"],
  "peers": {"PyTorch": ["torch_step.py", "--model", "gpt2", "--batch", "4", "--seq", "32"],
            "ONNX Runtime": ["engine_speed.py", "--engine", "ort", "--model", "1.1b"]},
  "bar": {"best": 1e-9, "ONNX Runtime": 1e-9}}]
JSON
  held=(--rows held.json --out held --rounds 1 --cpu avx2)
  RAFTER_PEERS=$WORK/env status 0 python3 "$PEERS/bench.py" "${held[@]}" && {
    json=$(echo held/*avx2.json)
    holds "$json" 'd["isa"] == "avx2"'
    says 'calibrate --cpu avx2' out
    if grep -qw 'avx512f\|avx_vnni' /proc/cpuinfo; then
      holds "$json" 'd["rows"][0]["peers"]["PyTorch"]["version"] == "avx2"' 'the peer is held'
      holds "$json" '"no setting" in d["rows"][0]["missing"]["ONNX Runtime"] and d["rows"][0]["met"]' 'judged'
    else
      holds "$json" 'd["rows"][0]["peers"]["PyTorch"]["version"] == "1"' 'the peer has its defaults'
      holds "$json" '"no setting" not in d["rows"][0]["missing"]["ONNX Runtime"]' 'the peer was started'
    fi
  }
  status 0 python3 "$PEERS/bench.py" --cpu avx2 --list
  [ "$(wc -l <out)" -ge 19 ] || fail 'rows_avx2.json has fewer rows than it had'
fi
cat >judge.py <<'PY'
import sys, time
sys.path.insert(0, sys.argv[1])
import bench
row = lambda missing, *ratios: bench.met({"bar": {"best": 1.1}, "missing": missing, "peers": {str(i): {"ratio": r, "peak_rss_bytes": 0} for i, r in enumerate(ratios)}})
assert (row({}, 1.2, 1.3), row({}, 1.2, 1.0), row({"JAX": "not there"}, 1.2), row({"JAX": "not there"}, 1.0), row({}), row({"0": "cut behind its second turn"}, 1.2)) == (True, False, None, False, None, True)
peer = bench.Peer(["torch_step.py", "--model", "gpt2", "--batch", "4", "--seq", "32"], 1, time.monotonic() + 60)
peer.process.wait()
try:
    peer.repeat(2, time.monotonic() + 60)
    sys.exit("a peer that ended gave an answer")
except bench.Missing as why:
    assert "killed while it waited" in str(why), why
peer.end()
PY
DIES=1 RAFTER_PEERS=$WORK/env status 0 python3 judge.py "$PEERS"
finish
