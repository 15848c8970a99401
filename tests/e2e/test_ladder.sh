#!/usr/bin/env bash
# The UvA model in four versions: f32; bf16; bf16 with MLPs recomputed; bf16 with whole blocks
# recomputed. Each report names the largest buffers by layer and shape. The peak of its memory curve
# equals the plan's peak and the mapped arena, to the byte. The comparison gives the savings and
# costs of each version. Width and length are reduced to save time; the 12 layers and everything
# else are those of UvA.
. "$(dirname "$0")/lib.sh"
export RAFTER_RUNS=$WORK/runs
TRAIN=("$RAFTER" train uva:width=64,heads=2,ff=256,seq=128 --data random:seed=0 --batch 4 --steps 2 --threads 2 --val-every 0)
status 0 "${TRAIN[@]}" --out runs/f32
status 0 "${TRAIN[@]}" --dtype bf16 --out runs/bf16
status 0 "${TRAIN[@]}" --dtype bf16 --remat mlp --out runs/mlp
status 0 "${TRAIN[@]}" --dtype bf16 --remat block --out runs/block
status 0 "$RAFTER" report f32 bf16 mlp block --json && cp out model.json
for pair in 'f32 bf16' 'bf16 mlp' 'mlp block'; do
  read -r a b <<<"$pair"
  status 0 "$RAFTER" runs compare "$a" "$b" --json && cp out "$a-$b.json"
done
python3 - <<'PY' || fail 'the ladder'
import json, sys
LAYERS, B, T, F, D = 12, 4, 128, 256, 64
bad = []
def expect(what, true, *more):
    if not true: bad.append((what, *more))
runs = {run["id"]: run for run in json.load(open("model.json"))["runs"]}
size = {"f32": 4, "bf16": 2}
for name, run in runs.items():
    plan, memory = run["plan"], run["plan"]["memory"]
    expect("12 layers of UvA", plan["model"]["layers"] == LAYERS and plan["model"]["name"].startswith("uva"), plan["model"]["name"])
    # The curve, calculated here from lifetimes and addresses alone.
    tops = [0] * len(plan["ops"])
    for tensor in plan["tensors"]:
        for op in range(max(0, tensor["first"]), min(tensor["last"], len(tops) - 1) + 1):
            tops[op] = max(tops[op], tensor["offset"] + tensor["bytes"])
    expect("the curve's peak is the plan's and the arena's", max(tops) == memory["peak_bytes"] == run["measured"]["arena_bytes"] == run["start"]["arena_bytes"], name, max(tops), memory["peak_bytes"])
    expect("so says every op", tops == [op["top_bytes"] for op in plan["ops"]] and max(op["live_bytes"] for op in plan["ops"]) == memory["live_bytes"] <= memory["peak_bytes"], name)
    # The largest buffers by shape, summed over layers. All listed buffers are alive at the peak.
    rows = {row["name"]: row for row in memory["largest"]}
    up = [t for t in plan["tensors"] if t["name"].endswith("/mlp/up/u") and not t["name"].startswith("recompute")]
    if name in ("f32", "bf16"):
        row = rows["block.*/mlp/up/u"]
        expect("the MLP activation of each of 12 layers and their sum", row["count"] == LAYERS and row["shape"] == [B * T, F] and row["each_bytes"] == B * T * F * size[name] and row["bytes"] == LAYERS * row["each_bytes"], row)
        expect("it is one of the largest", [r["name"] for r in memory["largest"]].index("block.*/mlp/up/u") < 3, [r["name"] for r in memory["largest"]][:4])
        expect("and each layer's own", {t["name"] for t in up} == {f"block.{i}/mlp/up/u" for i in range(LAYERS)} and all(t["shape"] == [B * T, F] and t["bytes"] == row["each_bytes"] for t in up), [t["name"] for t in up])
        attention = rows["block.*/attn/qkv/u"]
        expect("and attention's", attention["count"] == LAYERS and attention["shape"] == [B * T, 3 * D], attention)
    else:
        expect("with recomputation at most one of them is kept", rows.get("block.*/mlp/up/u", {"count": 0})["count"] <= 1, name)
    expect("a sentence", " bound by " in run["summary"]["sentence"], name)
# The savings and costs of each version.
peak = {name: run["plan"]["memory"]["peak_bytes"] for name, run in runs.items()}
for a, b in ("f32", "bf16"), ("bf16", "mlp"), ("mlp", "block"):
    one = json.load(open(f"{a}-{b}.json"))
    expect("it saves memory", one["b"]["peak_bytes"] - one["a"]["peak_bytes"] == peak[b] - peak[a] < 0, a, b)
    expect("both as they ran", one["a"]["measured"] and one["b"]["measured"], a, b)
    expect("the option that differs", {"remat" if b != "bf16" else "dtype"} <= {o["name"] for o in one["options"]}, one["options"])
    if b == "bf16": continue
    again = {k["name"]: k for k in one["kinds"] if "recompute" in k["name"]}
    expect("the cost is what is computed again", any(k["b_seconds"] > k.get("a_seconds", 0) for k in again.values()), sorted(again))
    name, width = ("block.*/mlp/up/u", F) if b == "mlp" else ("block.*/attn/qkv/u", 3 * D)
    freed, kept = [t for t in one["tensors"] if t["name"] == name], LAYERS * B * T * width * 2
    expect("the saving is that of the layers", freed and -freed[0]["bytes"] >= kept * (LAYERS - 1) / LAYERS, freed, kept)
print(*bad[:6], sep="\n") if bad else None
sys.exit(bool(bad))
PY
finish
