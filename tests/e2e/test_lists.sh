#!/usr/bin/env bash
# `rafter models` and `rafter machines` list every preset and every data sheet, with sources.
. "$(dirname "$0")/lib.sh"
SHEETS=$HERE/../../data/machines.json
export RAFTER

status 0 "$RAFTER" models && {
  cp out models
  awk 'length > 100' models | grep . && fail "models has lines of more than 100 columns"
}
status 0 "$RAFTER" models --json && {
  holds out 'all(m["source"] and m["parameters"] >= m["parameters_active"] > 0 for m in d["models"])' sources
  holds out 'all(m["hub"] or m["name"] in ("uva", "llama3-405b", "palm-540b") for m in d["models"])' names
  # The figures are those of a plan, and the name on the hub leads to the preset.
  cat >models.py <<'PY'
import json, os, subprocess, sys
rafter = os.environ["RAFTER"]
for m in json.load(open("out"))["models"]:
    small = ["--on", "b200", "--job", "score", "--batch", "1", "--seq", "32", "--json"]
    run = subprocess.run([rafter, "plan", m["name"], *small], capture_output=True)
    plan = json.loads(run.stdout)["model"]
    if any(plan[k] != m[k] for k in ("parameters", "parameters_active", "layers", "width", "vocab")):
        sys.exit(f"{m['name']}: {plan} {m}")
    cost = [rafter, "roofline", "cost", "--model", m["name"], "--forward", "--tokens", "1", "--json"]
    flops = json.loads(subprocess.run(cost, capture_output=True).stdout)["flops"]
    if abs(m["flops_per_token"] / flops - 1) > 1e-12:
        sys.exit(f"{m['name']}: {m['flops_per_token']} and {flops}")
    if not m["hub"]: continue
    hint = subprocess.run([rafter, "plan", m["hub"]], capture_output=True, text=True).stderr
    if f"preset {m['name']}?" not in hint: sys.exit(f"{m['hub']}: {hint}")
PY
  python3 models.py || fail "models and plans differ"
}
status 0 "$RAFTER" models meta-llama/Llama-3.1-8B --json &&
  holds out '[m["name"] for m in d["models"]] == ["llama3.1-8b"]'
refuses 2 "no preset has the name 'gemma3'" "$RAFTER" models gemma3

status 0 "$RAFTER" machines && {
  awk 'length > 100' out | grep . && fail "machines has lines of more than 100 columns"
  says '^tpu-v6e .* 918 .*Trillium.* 2.70 list$' out && says '^ +1.61 committed$' out
  says '^local .*detected: ' out
}
# The memory in the table is that of plans. With one machine, the difference is explained.
for on in $(ask "$SHEETS" '" ".join(m["name"] for m in d["machines"])'); do
  status 0 "$RAFTER" plan uva --on "$on" && room=$(grep -oP '^memory .* of \K[0-9.]+ [GM]iB' out)
  status 0 "$RAFTER" machines "$on" && says "^$on +$room " out
  holds "$SHEETS" "[bool(m.get('reserve_bytes')) for m in d['machines'] if m['name'] == '$on'] == [$(
    grep -q "^memory: .* reserves; plans use the other $room$" out && echo True || echo False)]" \
    "the memory of $on"
done
refuses 2 'unknown machine' "$RAFTER" machines v5e &&
  { [ ! -s out ] || fail "a table without machines: $(cat out)"; }
refuses 2 'gemma3-1b' "$RAFTER" models gemma3
# The plan names the dtype of the cache as --kv-dtype does.
status 0 "$RAFTER" plan gpt2 --job generate --kv-dtype int8 --on l4 && says '^cache .*, int8, pages' out
status 0 "$RAFTER" machines --json && {
  holds out 'd["machines"][0]["name"] == "local" and d["machines"][0]["source"] == "detected"' 'this machine'
  [ "$(ask out '" ".join(m["name"] for m in d["machines"][1:])')" = \
    "$(ask "$SHEETS" '" ".join(m["name"] for m in d["machines"])')" ] || fail "machines leaves sheets out"
  holds out 'all(m["sources"] and m["memory_bytes"] > 0 for m in d["machines"][1:])' 'the sources'
}
status 0 "$RAFTER" machines tpu-v5e@sb && says 'memory_bps +Cloud TPU|memory_bps +How to Scale' out
refuses 2 "unknown machine 'h300'" "$RAFTER" machines h300
# Hints name what is near, and end with a whole sentence.
refuses 2 "unknown model 'gemma3-2b'" "$RAFTER" plan gemma3-2b &&
  says 'hint: presets of this name: gemma-2b, .*gemma3-27b; `rafter models` .*width=512,\.\.\.$'
# A name that ends like a file is a file that is not there.
refuses 2 "no model at 'nosuch.gguf' .no such file" "$RAFTER" plan nosuch.gguf && ! grep -q presets err ||
  fail "presets are listed for a file: $(cat err)"
refuses 2 "no model at 'gpt2.gguf' .no such file" "$RAFTER" export gpt2.gguf out
# A preset without weights says so, on stderr. A shape asks for random weights and says nothing.
for job in "generate --tokens 1,2 --max-tokens 1" "score --text abc"; do
  read -r verb rest <<<"$job"
  status 0 "$RAFTER" $verb uva $rest && says 'uva is a preset without weights: random weights$' &&
    ! grep -q preset out || fail "$verb of a preset"
  status 0 "$RAFTER" $verb "$TINY" $rest && ! grep -q preset err || fail "$verb of a shape"
done
status 0 "$RAFTER" generate pythia-70m --tokens 1,2 --max-tokens 1 &&
  says 'random weights; `rafter pull EleutherAI/pythia-70m` fetches some$'
refuses 1 'gpt2 has no chat template' "$RAFTER" chat gpt2 <<<hi
refuses 2 "unknown model 'zzz'" "$RAFTER" plan zzz && says 'hint: `rafter models` lists .*width=512,\.\.\.$'
finish
