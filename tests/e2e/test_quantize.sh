#!/usr/bin/env bash
# quantize: folders, GGUF and llama2.c files become GGUF files with the same model; errors; inspect
# on the written files.
. "$(dirname "$0")/lib.sh"
answer() { # answer MODEL: greedy tokens and their log-probabilities after a few ids
  status 0 "$RAFTER" generate "$1" --tokens 1,5,9,3,7,11,2,8 --ignore-eos --max-tokens 16 --temperature 0 --threads 1 --json &&
    ask out '(d["tokens"], d["logprobs"])'
}

# f32 files of every family give exactly the numbers of their source folders: names, transposed
# matrices, moved rows, offsets of norms.
for family in gpt2 llama_biased mistral qwen2 qwen3 gemma gemma2 gemma3_text gemma3_text_scaled gpt_neox mixtral; do
  status 0 "$RAFTER" quantize "$DATA/goldens/$family" $family.gguf --weights f32
  answer "$DATA/goldens/$family" >expected && answer $family.gguf >got && same expected got "$family as GGUF"
done
# Llama 3's scaling of rotary positions is stored as a tensor.
status 0 "$RAFTER" quantize "$DATA/goldens/llama" llama.gguf --weights f32 &&
  status 0 "$RAFTER" inspect llama.gguf && says 'rope_freqs.weight +f32 +\(6\)' out
# The bounds are not the published ones (16 positions), so the table in the file is used: divisors
# rounded to f32. The exported folder uses it too.
# A folder with exactly one .gguf file names that file.
mkdir one && ln llama.gguf one/model.gguf && answer llama.gguf >expected && answer one >got &&
  same expected got 'the answer of a folder with one .gguf file'
status 0 "$RAFTER" plan one --seq 16 && ln llama.gguf one/other.gguf &&
  refuses 2 'exactly one .gguf file' "$RAFTER" plan one --seq 16
status 0 "$RAFTER" export llama.gguf llama_back &&
  status 0 "$RAFTER" quantize llama_back llama_again.gguf --weights f32
for model in llama.gguf llama_back llama_again.gguf; do
  answer "$DATA/goldens/llama" >expected && answer $model >got
  python3 -c 'a, b = (eval(open(f).read()) for f in ("expected", "got")); assert a[0] == b[0] and max(abs(x - y) for x, y in zip(a[1], b[1])) < 1e-4, (a, b)' ||
    fail "$model"
done
# The tokenizer and chat template of a folder are written too, and text gives the same ids.
if TINYSTORIES=$(data_file models/TinyStories-656K); then
  status 0 "$RAFTER" quantize "$TINYSTORIES" tiny.gguf --weights f32
  ! grep -q 'no tokenizer' out || fail "no tokenizer in tiny.gguf: $(grep 'no tokenizer' out)"
  for model in "$TINYSTORIES" tiny.gguf; do
    status 0 "$RAFTER" tokenize "$model" --text 'Once upon a time, there was a "cat" called Tim.' --json &&
      ask out 'd["tokens"]' >ids.$(basename "$model")
  done
  same ids.TinyStories-656K ids.tiny.gguf 'the tokenizer of a GGUF file'
fi

# Every type, on a model whose matrices are whole blocks.
FOLDER=wide
mkdir $FOLDER && python3 - $FOLDER <<'PY'
import array, json, random, struct, sys
r = random.Random(3)
D, F, V, K = 256, 512, 256, 128
shapes = {"model.embed_tokens.weight": [V, D], "lm_head.weight": [V, D], "model.norm.weight": [D]}
for i in range(2):
    for name, shape in {"self_attn.q_proj": [D, D], "self_attn.k_proj": [K, D], "self_attn.v_proj": [K, D], "self_attn.o_proj": [D, D], "mlp.gate_proj": [F, D],
                        "mlp.up_proj": [F, D], "mlp.down_proj": [D, F], "input_layernorm": [D], "post_attention_layernorm": [D]}.items():
        shapes[f"model.layers.{i}.{name}.weight"] = shape
header, data = {}, array.array("f")
for name, shape in shapes.items():
    count, first = shape[0] * (shape + [1])[1], len(data)
    data.extend([1] * count if len(shape) == 1 else (r.gauss(0, 0.05) for _ in range(count)))
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [first * 4, len(data) * 4]}
text = json.dumps(header).encode()
open(sys.argv[1] + "/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data.tobytes())
json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": D, "intermediate_size": F, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "vocab_size": V, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
           "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}, open(sys.argv[1] + "/config.json", "w"))
PY
echo 'no model' >book.txt; mkdir bare
bound() { # bound TYPE ERROR: maximum relative root mean square error of Gaussian weights
  status 0 "$RAFTER" quantize $FOLDER $1.gguf --weights $1 --json && [ "$(wc -l <out)" = 1 ] && holds out "0 < d['error'] < $2" "error of $1"
  holds out "{t['type'] for t in d['tensors'] if 'blk.' in t['name'] and 'norm' not in t['name']} == {'$1'}" "type of $1"
  holds out "{t['type'] for t in d['tensors'] if 'norm' in t['name']} == {'f32'}" "norms of $1"
  status 0 "$RAFTER" inspect $1.gguf && says "blk.0.attn_q.weight +$1 +\(256,256\)" out &&
    says 'general.quantization_version +2' out
  answer $1.gguf >/dev/null
}
bound f16 0.0003; bound bf16 0.002; bound q8_0 0.006; bound q6_k 0.019; bound q5_k 0.037; bound q5_1 0.041; bound q5_0 0.046
bound q4_k 0.074; bound q4_1 0.083; bound q4_0 0.092; bound q3_k 0.155; bound q2_k 0.275
# The head is not stored in less than six bits. The output names the tensors that have to be f32 for
# this.
status 0 "$RAFTER" quantize $FOLDER a.gguf --weights q2_k --json &&
  holds out '[t["type"] for t in d["tensors"] if t["name"] == "output.weight"] == ["q6_k"]'
# The bytes are the same for any number of threads. Blocks of the same type are copied, so
# quantizing again changes nothing.
for threads in 1 3; do status 0 "$RAFTER" quantize $FOLDER t$threads.gguf --weights q4_k --threads $threads; done
same t1.gguf t3.gguf 'threads'
same t1.gguf q4_k.gguf 'the default number of threads'
status 0 "$RAFTER" quantize q4_k.gguf again.gguf --weights q4_k &&
  same q4_k.gguf again.gguf 'quantizing twice'
status 0 "$RAFTER" quantize q8_0.gguf small.gguf && says 'bits per weight' out && says 'no tokenizer' out
# The output is never the input, under no name.
cp q8_0.gguf place.gguf && ln -s place.gguf link.gguf && ln place.gguf hard.gguf
for out in place.gguf ./place.gguf link.gguf hard.gguf; do
  refuses 2 "would replace the input place.gguf" "$RAFTER" quantize place.gguf $out --weights q4_0 &&
    same q8_0.gguf place.gguf "the input of quantize to $out"
done
refuses 2 'would replace the input link.gguf' "$RAFTER" quantize link.gguf place.gguf
cp -r $FOLDER place && ln -s place/model.safetensors weights.gguf &&
  refuses 2 'would replace the input place:' "$RAFTER" quantize place weights.gguf &&
  same $FOLDER/model.safetensors place/model.safetensors 'a folder given to quantize'
for time in first second; do status 0 "$RAFTER" quantize place place/small.gguf; done

# An error leaves no files.
nothing() { [ -z "$(ls | grep -E '^(bad|nothere)')" ] || { fail "left behind: $(ls | grep -E '^(bad|nothere)' | tr '\n' ' ')"; rm -f bad*; }; }
refuses 2 'IN OUT' "$RAFTER" quantize $FOLDER
refuses 2 '\.gguf' "$RAFTER" quantize $FOLDER bad.txt
refuses 2 'q4_0' "$RAFTER" quantize $FOLDER bad.gguf --weights q9
refuses 1 'nothere' "$RAFTER" quantize nothere.gguf bad.gguf
refuses 1 'nothere' "$RAFTER" quantize $FOLDER nothere/bad.gguf
refuses 1 'book.txt' "$RAFTER" quantize book.txt bad.gguf
refuses 1 'config.json' "$RAFTER" quantize bare bad.gguf
head -c 300000 f16.gguf >cut.gguf &&
  refuses 1 'cut.gguf.*outside the file' "$RAFTER" quantize cut.gguf bad.gguf
head -c 100 f16.gguf >cut.gguf && refuses 1 'cut.gguf' "$RAFTER" quantize cut.gguf bad.gguf &&
  refuses 1 'cut.gguf' "$RAFTER" inspect cut.gguf
head -c 5000 /dev/urandom >noise.gguf && refuses 1 'noise.gguf' "$RAFTER" inspect noise.gguf
cp noise.gguf noise.bin && refuses 1 'noise.bin' "$RAFTER" quantize noise.bin bad.gguf
(ulimit -f 100 && refuses 1 'bad.gguf' "$RAFTER" quantize $FOLDER bad.gguf; exit $failures) || failures=$((failures + 1))
nothing
# A weight that is not a number, and one that no f16 scale can represent.
status 0 "$RAFTER" quantize $FOLDER f32.gguf --weights f32
damage() { python3 - "$1" <<'PY'
import struct, sys
b = bytearray(open("f32.gguf", "rb").read())
# inside output.weight, the last tensor
b[-4096 - 100 * 4:-4096 - 99 * 4] = struct.pack("<f", float(sys.argv[1]))
open("damaged.gguf", "wb").write(b)
PY
}
damage nan && refuses 1 'output.weight.*nan.*element' "$RAFTER" quantize damaged.gguf bad.gguf --weights q8_0
damage inf && refuses 1 'output.weight.*inf.*element' "$RAFTER" quantize damaged.gguf bad.gguf --weights q8_0
damage 1e30 &&
  refuses 1 'output.weight.*too large for q8_0' "$RAFTER" quantize damaged.gguf bad.gguf --weights q8_0
nothing

# llama2.c files and the GGUF file of one model.
if STORIES=$(data_file models/stories260K); then
  for file in stories260K.bin stories260K_v1.bin; do
    status 0 "$RAFTER" quantize "$STORIES/$file" s.gguf --weights f32
    answer "$STORIES/$file" >expected && answer s.gguf >got && same expected got "$file as GGUF"
    status 0 "$RAFTER" inspect "$STORIES/$file" && says '47 tensors' out && says '5 layers' out
  done
  status 0 "$RAFTER" quantize "$STORIES/stories260K.gguf" s8.gguf --weights q8_0 &&
    status 0 "$RAFTER" inspect s8.gguf --json &&
    holds out 'd["metadata"]["tokenizer.ggml.tokens"]["count"] == 512'
  answer "$STORIES/stories260K.gguf" >expected && answer s8.gguf >got
  python3 -c 'a, b = (eval(open(f).read()) for f in ("expected", "got")); assert a[0][0] == b[0][0] and abs(a[1][0] - b[1][0]) < 0.05, (a, b)' ||
    fail 'q8_0 changes the first token of stories260K'
fi
finish
