#!/usr/bin/env bash
# Models with latent attention, shared experts and DeepSeek's routers: their numbers against an
# independent oracle (tests/data/latent/make.py), training, adapters, checkpoints, and fields of
# config.json that are not supported.
. "$(dirname "$0")/lib.sh"

for name in deepseek_v2 deepseek_v3; do
  golden=$DATA/latent/$name
  python3 - "$golden/golden.json" <<'PY' >rows.jsonl
import json, sys
print(json.dumps({"id": "a", "tokens": json.load(open(sys.argv[1]))["ids"]}))
PY
  # f32 against an oracle in f64: three layers, logits of a few units. A wrong factor anywhere
  # changes a log-probability by 1e-2 or more.
  status 0 "$RAFTER" score "$golden" --input rows.jsonl --json --threads 2 && python3 - "$golden/golden.json" out <<'PY' || fail "$name: scored log-probabilities"
import json, sys
said, told = json.load(open(sys.argv[1]))["logprobs"], json.loads(open(sys.argv[2]).readline())["logprobs"][1:]
worst = max(abs(a - b) for a, b in zip(said, told))
print("largest difference", worst)
sys.exit(len(said) != len(told) or worst > 5e-5)
PY
  prompt=$(python3 -c 'import json,sys; print(*json.load(open(sys.argv[1]))["ids"][:5], sep=",")' "$golden/golden.json")
  status 0 "$RAFTER" generate "$golden" --tokens "$prompt" --max-tokens 12 --temperature 0 --ignore-eos --json --threads 2 &&
    python3 - "$golden/golden.json" out <<'PY' || fail "$name: greedy continuation over the latent cache"
import json, sys
sys.exit(json.load(open(sys.argv[1]))["greedy"] != json.load(open(sys.argv[2]))["tokens"])
PY
  # Log-probabilities of generation equal those of score. The products over the cache are different,
  # so the numbers agree only to rounding.
  python3 - rows.jsonl out <<'PY' >again.jsonl
import json, sys
print(json.dumps({"id": "b", "tokens": json.loads(open(sys.argv[1]).readline())["tokens"][:5] + json.load(open(sys.argv[2]))["tokens"]}))
PY
  cp out generated
  status 0 "$RAFTER" score "$golden" --input again.jsonl --json --threads 1 && python3 - generated out <<'PY' || fail "$name: generated against scored log-probabilities"
import json, sys
told, scored = json.load(open(sys.argv[1]))["logprobs"], json.loads(open(sys.argv[2]).readline())["logprobs"][5:]
sys.exit(len(told) != len(scored) or max(abs(a - b) for a, b in zip(told, scored)) > 5e-5)
PY
done

run=(--data random:seed=0 --batch 2 --seq 16 --lr 1e-2 --schedule constant --threads 1 --quiet)
status 0 "$RAFTER" train "$DATA/latent/deepseek_v2" "${run[@]}" --steps 30 --out trained && {
  python3 - trained/metrics.jsonl <<'PY' || fail "training does not lower the loss"
import json, sys
loss = [d["loss"] for d in map(json.loads, open(sys.argv[1])) if "loss" in d]
sys.exit(not loss or loss[-1] > loss[0] - 0.5)
PY
  status 0 "$RAFTER" score trained/checkpoint-00000030 --input rows.jsonl --json --threads 1
}
refuses 2 'expert bias' "$RAFTER" train "$DATA/latent/deepseek_v3" "${run[@]}" --steps 2 --out no
status 0 "$RAFTER" train "$DATA/latent/deepseek_v3" --lora rank=2 "${run[@]}" --steps 2 --out adapted
refuses 2 'no kernel' "$RAFTER" generate "$DATA/latent/deepseek_v3" --tokens 1,2 --max-tokens 2 --kv-dtype int4

# FIELD VALUE: writes config.json with this field. The error must name the field.
config() {
  rm -rf odd && cp -r "$DATA/latent/deepseek_v3" odd
  python3 - "$1" "$2" <<'PY'
import json, sys
c = json.load(open("odd/config.json"))
c[sys.argv[1]] = json.loads(sys.argv[2])
json.dump(c, open("odd/config.json", "w"))
PY
}
for field in 'topk_method "random"' 'scoring_func "softmax"' 'moe_layer_freq 2' 'rope_interleave false' 'attention_bias true' 'kv_lora_rank 0' 'n_group 3'; do
  read -r name value <<<"$field"
  config "$name" "$value"
  status 1 "$RAFTER" plan odd --job generate --seq 32 --batch 1 && says "${name#n_}" err
done
config routed_scaling_factor 2.4 # a planted fault that the check above must notice
status 0 "$RAFTER" score odd --input rows.jsonl --json --threads 1 && python3 - "$DATA/latent/deepseek_v3/golden.json" out <<'PY' || fail "another scale of the experts is not noticed"
import json, sys
said, told = json.load(open(sys.argv[1]))["logprobs"], json.loads(open(sys.argv[2]).readline())["logprobs"][1:]
sys.exit(max(abs(a - b) for a, b in zip(said, told)) < 1e-3)
PY
config quantization_config '{"quant_method":"fp8"}'
status 0 "$RAFTER" plan odd --job generate --seq 32 --batch 1
"$RAFTER" generate odd --tokens 1,2 --max-tokens 2 >out 2>err &&
  fail "weights in an unsupported form are accepted"
says 'quantization_config' err
finish
