#!/usr/bin/env bash
# export: folders, GGUF files and runs become folders that other programs read, with the source's
# own names and values, shards with an index, dtypes, and errors.
. "$(dirname "$0")/lib.sh"
answer() { # answer MODEL: greedy tokens and their log-probabilities after a few ids
  status 0 "$RAFTER" generate "$1" --tokens 1,5,9,3,7,11,2,8 --ignore-eos --max-tokens 16 --temperature 0 --threads 1 --json &&
    ask out '(d["tokens"], d["logprobs"])'
}
setup() {
  cat >tensors.py <<'PY'
# tensors(FOLDER): name -> (dtype, shape, bytes) of a folder, read by the format's definition,
# through the index if there is one.
import glob, json, os, struct, sys
def one(path):
    b = open(path, "rb").read(); n = struct.unpack("<Q", b[:8])[0]; h = json.loads(b[8:8 + n]); h.pop("__metadata__", None)
    return {k: (v["dtype"], tuple(v["shape"]), b[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in h.items()}
def tensors(folder):
    index = folder + "/model.safetensors.index.json"
    if not os.path.exists(index): return one(folder + "/model.safetensors")
    d = json.load(open(index)); files = {f: one(folder + "/" + f) for f in sorted(set(d["weight_map"].values()))}
    assert sorted(files) == sorted(os.path.basename(f) for f in glob.glob(folder + "/*.safetensors")), "files and index differ"
    assert {k for f in files.values() for k in f} == set(d["weight_map"]), "names and index differ"
    out = {k: files[f][k] for k, f in d["weight_map"].items()}
    assert d["metadata"]["total_size"] == sum(len(t[2]) for t in out.values())
    return out
PY
  text words.txt 3000
  status 0 "$RAFTER" export "$DATA/goldens/llama" half --dtype bf16
}

equal() { python3 -c 'import sys; from tensors import tensors; a, b = tensors(sys.argv[1]), tensors(sys.argv[2]); assert a == b, (set(a) ^ set(b) or [k for k in a if a[k] != b[k]])' "$1" "$2" ||
  fail "$2 is not $1"; }
ONCE='Once upon a time, there was a little girl'
score() { status 0 "$RAFTER" score "$1" --text "$ONCE" --threads 1 --json &&
  ask out '(d["tokens"], [x and round(x, 4) for x in d["logprobs"]])'; }

# Every family is exported unchanged: names, shapes and bytes, which are copied. The config has the
# same meaning as the source's.
case_families() {
  for family in gpt2 llama mistral qwen2 qwen3 gemma gemma2 gemma3_text gpt_neox mixtral; do
    status 0 "$RAFTER" export "$DATA/goldens/$family" $family --json &&
      holds out 'd["parameters"] * 4 == d["bytes"] and d["files"] == 1 and d["dtype"] == "f32"'
    equal "$DATA/goldens/$family" $family
    python3 -c 'import json, sys; a, b = (json.load(open(f + "/config.json")) for f in sys.argv[1:]); [d.pop(k, 0) for d in (a, b) for k in ("dtype", "torch_dtype")]; assert a == b' \
      "$DATA/goldens/$family" $family || fail "config of $family"
  done
}

# Shards: every file is valid, the index names every tensor, and the folder loads as before.
case_shards() {
  status 0 "$RAFTER" export "$DATA/goldens/mixtral" shards --shard-size 50kB --json &&
    holds out 'd["files"] > 3'
  equal "$DATA/goldens/mixtral" shards
  answer "$DATA/goldens/mixtral" >expected && answer shards >got && same expected got 'a model in shards'
}

# bf16: rounded to nearest, ties to even, in every family: values are read, split and transposed.
# The config has the new dtype.
case_bf16() {
  for family in gpt2 llama mistral qwen2 qwen3 gemma gemma2 gemma3_text gpt_neox mixtral; do
    status 0 "$RAFTER" export "$DATA/goldens/$family" half-$family --dtype bf16
    rounded "$DATA/goldens/$family" half-$family
  done
  status 0 "$RAFTER" export half again --json && holds out 'd["dtype"] == "bf16"' # in the stored dtype
  equal half again
}
rounded() { # rounded FROM TO
  python3 - "$1" "$2" <<'PY' || fail "$2 is not $1 in bf16"
import array, json, sys
from tensors import tensors
a, b = tensors(sys.argv[1]), tensors(sys.argv[2])
for k, (dtype, shape, data) in a.items():
    assert b[k][0] == "BF16" and b[k][1] == shape
    for x, y in zip(array.array("I", data), array.array("H", b[k][2])): assert (x + 0x7fff + (x >> 16 & 1)) >> 16 == y
c = json.load(open(sys.argv[2] + "/config.json")); assert c.get("dtype", c.get("torch_dtype")) == "bfloat16"
PY
}

# From GGUF: the names and the config were not in the file. f32 is exact for every storage type.
case_from_gguf() {
  for family in mistral gemma3_text mixtral gpt2; do
    status 0 "$RAFTER" quantize "$DATA/goldens/$family" $family.gguf --weights q8_0 &&
      status 0 "$RAFTER" export $family.gguf from_$family && says 'no tokenizer to copy' out
    answer $family.gguf >expected && answer from_$family >got && same expected got "$family.gguf as a folder"
  done
  status 0 "$RAFTER" export "$DATA/goldens/qwen3" qwen3.gguf --format gguf &&
    answer "$DATA/goldens/qwen3" >expected && answer qwen3.gguf >got &&
    same expected got 'export --format gguf'
}

# A Gemma 3 that reads images contains the text model, under names from before and since
# transformers 4.52. The text model is run, exported and quantized.
case_text_model_inside() {
  status 0 "$RAFTER" export "$DATA/goldens/gemma3_text" text_model
  cat >inside.py <<'PY'
import json, os, struct, sys
source, out, prefix = sys.argv[1:]
b = open(source + "/model.safetensors", "rb").read(); n = struct.unpack("<Q", b[:8])[0]; h = json.loads(b[8:8 + n]); h.pop("__metadata__", None); data = b[8 + n:]
h = {prefix + k.removeprefix("model."): v for k, v in h.items()}
h[("" if prefix.startswith("language") else "model.") + "vision_tower.vision_model.post_layernorm.weight"] = {"dtype": "F32", "shape": [4], "data_offsets": [len(data), len(data) + 16]}
text = json.dumps(h).encode(); text += b" " * (-len(text) % 8)
os.mkdir(out); open(out + "/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data + bytes(16))
json.dump({"model_type": "gemma3", "text_config": json.load(open(source + "/config.json")), "vision_config": {"hidden_size": 4}}, open(out + "/config.json", "w"))
PY
  answer text_model >expected
  for prefix in language_model.model. model.language_model.; do
    rm -rf pictures text_alone pictures.gguf
    python3 inside.py text_model pictures $prefix
    answer pictures >got && same expected got "a text model under $prefix"
    status 0 "$RAFTER" export pictures text_alone && equal text_model text_alone && answer text_alone >got &&
      same expected got "the text model of $prefix alone"
    status 0 "$RAFTER" quantize pictures pictures.gguf --weights f32 && answer pictures.gguf >got &&
      same expected got "the text model of $prefix as GGUF"
  done
}

# Settings that a GGUF file cannot express are refused.
case_not_in_gguf() {
  status 0 "$RAFTER" export "$DATA/goldens/gpt_neox" tanh &&
    sed -i 's/"hidden_act": *"gelu"/"hidden_act": "gelu_new"/' tanh/config.json &&
    status 0 "$RAFTER" generate tanh --tokens 1,2 --max-tokens 1 &&
    refuses 1 'tanh form' "$RAFTER" quantize tanh tanh.gguf --weights f32
}

# The tokenizer is exported too.
case_tokenizer() {
  if TINYSTORIES=$(data_file models/TinyStories-656K); then
    status 0 "$RAFTER" export "$TINYSTORIES" stories &&
      same "$TINYSTORIES/tokenizer.json" stories/tokenizer.json tokenizer
    same "$TINYSTORIES/generation_config.json" stories/generation_config.json 'sampling defaults'
    equal "$TINYSTORIES" stories
  fi
}

# The vocabulary and template inside a GGUF file are exported too, and written back into one.
case_vocabulary_in_gguf() {
  if STORIES=$(data_file models/stories260K); then
    text more.txt 3000
    score "$STORIES/stories260K.gguf" >expected && grep -q '(\[1, ' expected || fail "no tokens: $(cat expected)"
    status 0 "$RAFTER" export "$STORIES/stories260K.gguf" unpacked --json &&
      holds out 'd["tokenizer_files"] == 1'
    score unpacked >got && same expected got 'the tokenizer of a GGUF file'
    status 0 "$RAFTER" quantize unpacked packed.gguf --weights f32 && score packed.gguf >got &&
      same expected got 'the tokenizer back in a GGUF file'
    mkdir bin && cp "$STORIES/stories260K.bin" bin &&
      refuses 2 'has no tokenizer' "$RAFTER" score bin/stories260K.bin --text "$ONCE"
    cp "$STORIES/tok512.bin" bin/tokenizer.bin
    for base in "$STORIES/stories260K.gguf" bin/stories260K.bin unpacked; do
      score "$base" >expected
      rm -rf tuned &&
        status 0 "$RAFTER" train "$base" --steps 1 --lr 1e-9 --warmup 0 "${QUICK[@]}" --seq 32 --data more.txt --out tuned &&
        score tuned >got
      same expected got "a checkpoint of $base"
      status 0 "$RAFTER" export tuned tuned.model && score tuned.model >got &&
        same expected got "an exported checkpoint of $base"
      rm -rf tuned.model
    done
  fi
}

case_template_in_gguf() {
  if TINYSTORIES=$(data_file models/TinyStories-656K); then
    cp -r "$TINYSTORIES" talks
    echo '{% for m in messages %}{{ bos_token }}{{ m.role }}: {{ m.content }}{{ "\n" }}{% endfor %}' >talks/chat_template.jinja
    status 0 "$RAFTER" quantize talks talks.gguf --weights f32 &&
      status 0 "$RAFTER" export talks.gguf talks.again
    for model in talks talks.gguf talks.again; do
      status 0 "$RAFTER" generate "$model" --chat --prompt "$ONCE" --max-tokens 8 --temperature 0 --threads 1 --json &&
        ask out 'd["prompt_tokens"], d["tokens"]' >"$model.said"
    done
    same talks.gguf.said talks.again.said 'a template out of a GGUF file'
    # the second template, for conversations with tools
    mkdir talks/additional_chat_templates && echo 'tools' >talks/additional_chat_templates/tool_use.jinja
    status 0 "$RAFTER" quantize talks tools.gguf --weights f32 &&
      status 0 "$RAFTER" export tools.gguf tools.again && status 0 "$RAFTER" export talks tools.copy &&
      for model in tools.again tools.copy; do
        holds $model/tokenizer_config.json \
          '[t["template"].strip() for t in d["chat_template"] if t["name"] == "tool_use"] == ["tools"]' \
          "the template for tools in $model"
        status 0 "$RAFTER" generate $model --chat --prompt "$ONCE" --max-tokens 8 --temperature 0 \
          --threads 1 --json &&
          ask out 'd["prompt_tokens"], d["tokens"]' >$model.said
      done
    same talks.gguf.said tools.again.said 'the template without tools' &&
      same talks.said tools.copy.said 'its copy'
    rm -r talks/additional_chat_templates
    # a template for training, with the special tokens of the vocabulary
    echo '{% for m in messages %}{{ eos_token }}{{ m.content }}{% endfor %}' >talks.again/chat_template.jinja
    status 0 "$RAFTER" quantize talks.again talks.new.gguf --weights f32
    for model in talks.again talks.new.gguf; do
      status 0 "$RAFTER" generate "$model" --chat --prompt "$ONCE" --max-tokens 8 --temperature 0 --threads 1 --json &&
        ask out 'd["prompt_tokens"], d["tokens"]' >"$model.said"
    done
    same talks.again.said talks.new.gguf.said 'a newer template into a GGUF file' &&
      ! cmp -s talks.again.said talks.gguf.said || fail 'a newer template is not used'
  fi
}

# A model trained on bytes says so in its folder. A folder without a tokenizer is not read as bytes.
case_bytes() {
  status 0 "$RAFTER" train "$TINY" "${QUICK[@]}" --data words.txt --steps 1 --out bytes &&
    status 0 "$RAFTER" export bytes bytes.model
  status 0 "$RAFTER" score bytes.model --text 'the law' --json && holds out 'd["tokens"] == list(b"the law")'
  rm bytes.model/tokenizer_config.json &&
    refuses 2 'has no tokenizer' "$RAFTER" score bytes.model --text 'the law'
  status 0 "$RAFTER" generate bytes.model --tokens 1,2 --max-tokens 2
}

# A run: its newest checkpoint is exported. The folder of a run can be used wherever a model can.
case_run() {
  status 0 "$RAFTER" train "$TINY" "${QUICK[@]}" --data words.txt --steps 4 --save-every 2 --out run &&
    status 0 "$RAFTER" export run model
  newest=$(ls -d run/checkpoint-* | sort | tail -1)
  equal "$newest" model
  answer "$newest" >expected && answer model >got && same expected got 'an exported run'
  for command in plan "tokenize --text abc" "score --text abc" "generate --prompt a --max-tokens 2"; do
    read -r verb rest <<<"$command"
    status 0 "$RAFTER" "$verb" run ${rest:+$rest} --json
  done
  status 0 "$RAFTER" quantize run run.gguf --weights q8_0 &&
    status 0 "$RAFTER" train run "${QUICK[@]}" --data words.txt --steps 1 --out onward
  mkdir bare && touch bare/file &&
    for verb in plan generate score; do refuses 2 'bare has no model' "$RAFTER" $verb bare <<<text; done
  mkdir dead && cp run/run.json dead && refuses 1 'dead has no complete checkpoint' "$RAFTER" plan dead &&
    says 'save-every'
  refuses 2 'MODEL and OUT|MODEL OUT' "$RAFTER" export run
  refuses 1 'model exists already' "$RAFTER" export run model
  refuses 1 'words.txt exists already' "$RAFTER" export run words.txt
}

# The name of OUT decides if --format is not given. A name that contradicts --format is refused.
case_named_gguf() {
  status 0 "$RAFTER" export half named.gguf && [ -f named.gguf ] &&
    status 0 "$RAFTER" export half asked.gguf --format gguf &&
    same asked.gguf named.gguf 'export to a .gguf name'
  refuses 2 'writes a folder, but OUT is named like a file' \
    "$RAFTER" export half folder.gguf --format safetensors
  [ ! -e folder.gguf ] || fail 'a refused export left folder.gguf'
}

# A mistyped parent folder is not made.
case_parent() {
  refuses 1 'the folder nodir/x does not exist' "$RAFTER" export half nodir/x/y
  refuses 1 'the folder nodir does not exist' "$RAFTER" export half nodir/y.gguf
  [ ! -e nodir ] || fail 'a refused export made its parents'
}

# A folder next to OUT may belong to the user and is not touched.
case_existing_files() {
  mkdir mine.part && touch mine.part/precious && status 0 "$RAFTER" export half mine &&
    [ -e mine.part/precious ] || fail 'export removes OUT.part'
  rm -r mine.part
  # The stored dtype is kept in a GGUF file too, and an existing file is not replaced.
  status 0 "$RAFTER" export half half.gguf --format gguf --json &&
    holds out 'set(t["type"] for t in d["tensors"]) == {"bf16", "f32"}'
  cp half.gguf before.gguf &&
    refuses 1 'half.gguf exists already' "$RAFTER" export half half.gguf --format gguf --dtype f32 &&
    same before.gguf half.gguf 'a refused export'
}

# Without generation_config.json, all end tokens of config.json end an answer, and none is lost.
case_ends() {
  local run=("$RAFTER" generate ends --tokens 1,2,3 --temperature 0 --max-tokens 8 --json)
  cp -r half ends && rm -f ends/generation_config.json
  status 0 "${run[@]}" || return
  python3 - "$(ask out 'd["tokens"][2]')" <<'PY'
import json, sys
d = json.load(open("ends/config.json"))
d["eos_token_id"] = [d["vocab_size"] - 1, int(sys.argv[1])]
json.dump(d, open("ends/config.json", "w"))
PY
  status 0 "${run[@]}" && holds out 'd["finish_reason"] == "stop" and len(d["tokens"]) <= 3' \
    'the second end token'
  status 0 "$RAFTER" export ends ended && holds ended/generation_config.json \
    'd["eos_token_id"] == json.load(open("ends/config.json"))["eos_token_id"]' 'export keeps end tokens'
}

# Values that readers of GGUF would replace by their defaults are refused or written.
case_gemma() {
  cp -r "$DATA/goldens/gemma2" caps 2>/dev/null || { echo 'skip: no golden of gemma2' >&3; return; }
  python3 - <<'PY'
import json
d = json.load(open("caps/config.json"))
d["attn_logit_softcapping"] = d["final_logit_softcapping"] = None
json.dump(d, open("caps/config.json", "w"))
PY
  refuses 1 'Gemma 2 without softcaps' "$RAFTER" export caps caps.gguf --format gguf
}

# An error leaves no files.
case_errors() {
  refuses 2 'without weights' "$RAFTER" export gpt2:layers=1 bad
  refuses 2 'nothere' "$RAFTER" export nothere/model bad
  mkdir hollow && cp half/config.json hollow && refuses 1 'hollow' "$RAFTER" export hollow bad
  cp -r half cut && head -c 5000 half/model.safetensors >cut/model.safetensors &&
    refuses 1 'cut/model.safetensors' "$RAFTER" export cut bad
  (ulimit -f 20 && refuses 1 'bad' "$RAFTER" export half bad; exit $failures) || failures=$((failures + 1))
  refuses 1 'words.txt' "$RAFTER" export half words.txt/nothere
  [ -z "$(ls -d bad* *.part* 2>/dev/null)" ] || fail "left behind: $(ls -d bad* *.part*)"
  mkdir empty && status 0 "$RAFTER" export half empty/ && equal half empty
}

cases "$@"
