#!/usr/bin/env bash
# LoRA from the command line: adapters are trained next to a model, resumed, used, and refused for
# models that they do not fit.
. "$(dirname "$0")/lib.sh"
text book.txt 20000
SHAPE=llama:layers=2,width=32,heads=4,kv_heads=2,ff=48,vocab=256,seq=32
status 0 "$RAFTER" train "$SHAPE" "${QUICK[@]}" --data book.txt --steps 4 --val-every 0 --out base
BASE=$(echo base/checkpoint-*4)
cp -r "$BASE" before
TUNE=("$RAFTER" train "$BASE" "${QUICK[@]}" --data book.txt --val-every 0 --lr 1e-2)

# An adapter keeps its base, also if the run of the base continues.
status 0 "$RAFTER" train "$SHAPE" "${QUICK[@]}" --data book.txt --steps 4 --val-every 0 --out moves
ON=("$RAFTER" train moves "${QUICK[@]}" --data book.txt --val-every 0 --lr 1e-2 --lora rank=2)
for run in still later; do status 0 "${ON[@]}" --steps 6 --save-every 3 --keep 9 --out $run; done
rm -r later/checkpoint-00000006 # as if the run had ended after step 3
status 0 "$RAFTER" train --resume moves --steps 8 --keep 9
status 0 "$RAFTER" train --resume later --steps 6
same still/checkpoint-00000006/adapter_model.safetensors later/checkpoint-00000006/adapter_model.safetensors \
  'an adapter whose base moved on'
holds later/run.json 'd["options"]["model"] == "moves/checkpoint-00000004"' 'the recorded base'

status 0 "${TUNE[@]}" --lora rank=4,targets=q,v,down --steps 6 --out tuned && {
  says 'adapters' out
  says 'predicted [0-9]+ bytes, allocated [0-9]+ bytes' out
  python3 - tuned/plan.json <<'PY' || fail 'the plan does not hold one frozen copy of the weights'
import json, sys
p = json.load(open(sys.argv[1]))
base = p["model"]["parameters"]
c = p["memory"]["by_class"]
# A and B of every site: q (32+32), v (32+16), down (48+32), twice, rank 4, f32
adapters = 2 * 4 * (64 + 48 + 80) * 4
sys.exit(not (c["weight"] >= base * 4 and c["weight"] < base * 4 + 64 * 64 and c["master"] == 0 and adapters <= c["adapter"] < adapters + 64 * 64 and c["moment"] < 2 * adapters + 64 * 64))
PY
  ls tuned/checkpoint-*6/adapter_config.json tuned/checkpoint-*6/adapter_model.safetensors tuned/checkpoint-*6/DONE >/dev/null ||
    fail 'the checkpoint is not an adapter'
  [ ! -e tuned/checkpoint-*6/model.safetensors ] || fail 'the checkpoint holds the whole model'
}
TUNED=$(echo tuned/checkpoint-*6)
diff -r before "$BASE" || fail 'the base model was changed'

# The run can be used as an adapter and as MODEL everywhere. The adapter's own tensors are f32.
ASKED=(--tokens 5,9,3 --max-tokens 4 --temperature 0 --json)
status 0 "$RAFTER" generate "$BASE" --adapter tuned "${ASKED[@]}" &&
  ask out 'd["tokens"], d["logprobs"]' >by_adapter
status 0 "$RAFTER" generate tuned "${ASKED[@]}" && ask out 'd["tokens"], d["logprobs"]' >by_model &&
  same by_adapter by_model 'a run as an adapter and as MODEL'
status 0 "$RAFTER" plan tuned --job generate --json &&
  refuses 2 'adapters alone are written in f32' "$RAFTER" export tuned alone --dtype bf16

# A resumed run gives the same bits.
status 0 "${TUNE[@]}" --lora rank=4,targets=q,v,down --steps 6 --out cut --save-every 2 --keep 9
status 0 "${TUNE[@]}" --lora rank=4,targets=q,v,down --steps 6 --out cut2 --resume cut/checkpoint-00000002
for file in adapter_model optimizer; do
  same "$TUNED/$file.safetensors" "$(echo cut2/checkpoint-*6)/$file.safetensors" "a resumed run writes the same $file.safetensors"
done
refuses 1 'adapters are not those.*rank=4,alpha=8.*alpha=64' "${TUNE[@]}" --lora rank=4,alpha=64,targets=q,v,down --steps 6 --out cut3 --resume cut/checkpoint-00000002
refuses 1 'adapters are not those.*rslora' "${TUNE[@]}" --lora rank=4,rslora,targets=q,v,down --steps 6 --out cut3 --resume cut/checkpoint-00000002
refuses 1 'adapters are not those.*dropout=0.5' "${TUNE[@]}" --lora rank=4,dropout=0.5,targets=q,v,down --steps 6 --out cut3 --resume cut/checkpoint-00000002
[ ! -e cut3 ] || fail 'a refused run leaves its folder'
refuses 1 'adapters are not those' "${TUNE[@]}" --lora rank=8,targets=q,v,down --steps 6 --out cut3 --resume cut/checkpoint-00000002

# The adapter's folder, its run, and --adapter give the same numbers, which differ from the base's.
ASK=(--tokens 5,9,3 --max-tokens 8 --temperature 0 --json)
status 0 "$RAFTER" generate "$BASE" "${ASK[@]}" && cp out plain
status 0 "$RAFTER" generate "$BASE" --adapter "$TUNED" "${ASK[@]}" && cp out one
for model in "$TUNED" tuned; do
  status 0 "$RAFTER" generate "$model" "${ASK[@]}" &&
    python3 -c 'import json,sys; a,b=(json.load(open(f)) for f in ("one","out")); sys.exit(a["tokens"]!=b["tokens"] or a["logprobs"]!=b["logprobs"])' ||
    fail "generate $model differs from --adapter"
done
python3 -c 'import json,sys; a,b=(json.load(open(f)) for f in ("one","plain")); sys.exit(a["logprobs"]==b["logprobs"])' ||
  fail 'the adapter changes nothing'
status 0 "$RAFTER" score tuned --input book.txt --seq 32 --stride 16 --json

status 0 "$RAFTER" inspect "$TUNED" --json &&
  holds out 'd["kind"] == "adapter" and d["rank"] == 4 and d["complete"]' 'inspect names an adapter'

# Exported alone, the adapter is the same. Merged, it is a model that answers as base and adapter
# do, up to rounding.
status 0 "$RAFTER" export tuned peft --json && holds out 'd["format"] == "adapter" and d["rank"] == 4'
same "$TUNED/adapter_model.safetensors" peft/adapter_model.safetensors 'an exported adapter'
status 0 "$RAFTER" export tuned whole --merge &&
  status 0 "$RAFTER" export "$BASE" whole2 --adapter peft --merge
same whole/model.safetensors whole2/model.safetensors 'a merged model'
rm whole2/model.safetensors && status 0 "$RAFTER" generate whole "${ASK[@]}" &&
  python3 -c 'import json,sys; a,b=(json.load(open(f)) for f in ("one","out")); sys.exit(a["tokens"]!=b["tokens"] or max(abs(x-y) for x,y in zip(a["logprobs"],b["logprobs"]))>1e-4)' ||
  fail 'a merged model and base with adapter give different answers'
refuses 2 'nothing to merge' "$RAFTER" export "$BASE" x --merge
refuses 2 'alone are written as safetensors only' "$RAFTER" export tuned x.gguf --format gguf
# Merged as GGUF in one step: the tensors of the merged folder as GGUF, rounded once.
for type in f32 bf16; do
  status 0 "$RAFTER" quantize whole two-$type.gguf --weights $type &&
    status 0 "$RAFTER" export tuned one-$type.gguf --merge --dtype $type --json &&
    holds out 'd["out"].startswith("one") and ".part" not in str(d)' 'names of a merged GGUF file' &&
    ! grep -aq '[.]part' one-$type.gguf || fail "one-$type.gguf has the name of a temporary folder"
  for file in one two; do
    status 0 "$RAFTER" generate $file-$type.gguf "${ASK[@]}" &&
      ask out 'd["tokens"], d["logprobs"]' >$file.said
  done
  same two.said one.said "a model merged as $type GGUF"
done
status 0 "$RAFTER" quantize "$BASE" base.gguf --weights f32 &&
  status 0 "$RAFTER" export base.gguf again.gguf --adapter peft --merge --format gguf &&
  status 0 "$RAFTER" generate again.gguf "${ASK[@]}" && ask out 'd["tokens"]' >got &&
  ask one 'd["tokens"]' >expected &&
  same expected got 'a GGUF base merged'
status 0 "$RAFTER" export base.gguf third.gguf --adapter peft --merge &&
  same again.gguf third.gguf 'the same export, a second time'
grep -q 'quantize' err && fail 'a base that is not quantized gets a notice about its size'
# A quantized base is merged in f32. A notice says how to make the file smaller.
status 0 "$RAFTER" quantize "$BASE" small.gguf --weights q4_1 &&
  for out in grown.gguf grown; do
    status 0 "$RAFTER" export small.gguf $out --adapter peft --merge &&
      says "notice: .*f32, so OUT has [0-9.]+ x the bytes.*rafter quantize $out small.gguf" err &&
      says '[-][-]weights q4_1. makes it smaller' err &&
      status 0 "$RAFTER" quantize $out again-$out.gguf --weights q4_1
  done
[ -z "$(ls -d *.part* 2>/dev/null)" ] || fail "left: $(ls -d *.part*)"

# On a disk without space for the copy in f32, nothing is written. Without the copy, the model fits.
"$RAFTER" export --help >help
says 'copy in f32' help
mkdir disk
if mount -t tmpfs -o size=128k none disk 2>/dev/null; then
  trap 'umount "$WORK/disk"; rm -rf "$WORK"' EXIT
  refuses 1 'disk space for disk/m.gguf .expected [0-9.]+ KiB or more, got 128 KiB' \
    "$RAFTER" export tuned disk/m.gguf --merge --dtype bf16 && says '^hint: .*another disk.*in f32'
  refuses 1 'disk space for disk/m .expected' sh -c 'head -c 60000 /dev/zero >disk/full; exec "$@"' - \
    "$RAFTER" export tuned disk/m --merge
  [ "$(ls disk)" = full ] || fail "a refused export leaves $(ls disk)"
  rm disk/full && status 0 "$RAFTER" export whole disk/m.gguf --dtype bf16
  umount disk && trap 'rm -rf "$WORK"' EXIT
else
  echo 'skip: a small file system needs the right to mount one' >&3
fi

# Adapters that PEFT wrote, with their own ranks, alphas and layers, on fused weights: the
# log-probabilities are those of transformers (2e-4 on logits of these models).
for adapter in "$DATA"/peft/*/; do
  ask "$adapter/expected.json" 'json.dumps({"tokens": d["ids"]})' >ids.jsonl
  status 0 "$RAFTER" score "$DATA/goldens/$(ask "$adapter/expected.json" 'd["base"]')" --adapter "$adapter" --input ids.jsonl --threads 1 --json && cp out scored.json
  holds "$adapter/expected.json" 'max(abs(a - b) for a, b in zip(d["logprobs"], json.load(open("scored.json"))["logprobs"][1:])) < 2e-4' "$adapter"
  status 0 "$RAFTER" score "$adapter" --input ids.jsonl --threads 1 --json &&
    same scored.json out 'the adapter finds its base'
done
# An adapter can be trained further. --lora and --adapter exclude each other.
status 0 "${TUNE[@]}" --adapter "$TUNED" --steps 2 --out further
refuses 2 'cannot be combined' "${TUNE[@]}" --adapter "$TUNED" --lora rank=2 --steps 2 --out x
refuses 2 "no such linear layer" "${TUNE[@]}" --lora targets=gates --steps 2 --out x
refuses 1 'shape|place' "$RAFTER" generate llama:layers=2,width=48,heads=4,kv_heads=2,ff=48,vocab=256,seq=32 --adapter "$TUNED" "${ASK[@]}"
refuses 1 'cannot open|adapter_config' "$RAFTER" generate "$BASE" --adapter nowhere "${ASK[@]}"

# An inline shape has no weights for a later adapter. A path that JSON cannot express is refused
# before the first step.
status 0 "$RAFTER" train "$SHAPE" "${QUICK[@]}" --data book.txt --val-every 0 --lora rank=2 --steps 1 --out drawn
refuses 2 'has no weights' "$RAFTER" generate drawn "${ASK[@]}"
mkdir $'caf\xe9' && cp -r "$BASE" $'caf\xe9/base' && cd $'caf\xe9' || exit 1
refuses 1 'UTF-8' "$RAFTER" train base "${QUICK[@]}" --data ../book.txt --val-every 0 --lora rank=2 --steps 1 --out never
[ ! -d never/checkpoint-00000001 ] || fail 'the error comes only after training'
cd ..

# If the base exists but is invalid, the error is about the base.
sed -i 's/"hidden_size": 32/"hidden_size": -1/' "$BASE/config.json"
refuses 1 'hidden_size' "$RAFTER" generate "$TUNED" "${ASK[@]}"
mv "$BASE" gone
refuses 2 'base of the adapter' "$RAFTER" generate "$TUNED" "${ASK[@]}"
finish
