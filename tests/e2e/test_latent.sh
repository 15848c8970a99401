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
done

# Log-probabilities of generation equal those of score, to the bit: for several answers at once, for
# prompts of several passes, and for each dtype of activations and weights.
python3 - <<'PY' >prompts.jsonl
import json
for k in range(5):
    print(json.dumps({"id": str(k), "tokens": [(20 + 7 * i * k) % 40 for i in range(1 + 4 * k)]}))
PY
forms=(f32 bf16 'f32 --weights int8' 'bf16 --weights int8' 'bf16 --weights q4'
  'f32 --weights int8 --compute fast')
for name in deepseek_v2 deepseek_v3; do
  for form in "${forms[@]}"; do
    read -ra dtypes <<<"--dtype $form"
    status 0 "$RAFTER" generate "$DATA/latent/$name" --input prompts.jsonl --max-tokens 40 --ignore-eos \
      --batch 3 --prefill-chunk 3 --seed 3 --json --threads 2 "${dtypes[@]}" || continue
    cp out generated
    python3 - generated <<'PY' >again.jsonl
import json, sys
prompt = {(d := json.loads(line))["id"]: d["tokens"] for line in open("prompts.jsonl")}
for d in map(json.loads, open(sys.argv[1])):
    print(json.dumps({"id": d["id"], "tokens": prompt[d["id"]] + d["tokens"]}))
PY
    status 0 "$RAFTER" score "$DATA/latent/$name" --input again.jsonl --json --threads 1 "${dtypes[@]}" &&
      python3 - generated out <<'PY' || fail "$name $form: generated against scored log-probabilities"
import json, sys
rows = [[json.loads(line) for line in open(name)] for name in sys.argv[1:]]
told, scored = ({d["id"]: d["logprobs"] for d in some} for some in rows)
sys.exit(len(told) != 5 or any(len(told[k]) != 40 or told[k] != scored[k][-40:] for k in told))
PY
  done
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
