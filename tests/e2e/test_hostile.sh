#!/usr/bin/env bash
# Invalid weight files of every kind: truncated, overlapping, of the wrong dtype or shape, or
# without a tensor. Each gives one error that names the file and, if there is one, the tensor.
. "$(dirname "$0")/lib.sh"
TENSOR=model.layers.1.mlp.down_proj.weight
FAMILY=mistral
cat >damage.py <<'PY'
# damage.py FAULT FILE: rewrites a safetensors or GGUF file with one fault in one tensor, and prints
# the tensor's name.
import json, struct, sys
fault, path = sys.argv[1:3]
b = bytearray(open(path, "rb").read())
def safetensors():
    n = struct.unpack("<Q", b[:8])[0]
    h, data = json.loads(b[8:8 + n]), b[8 + n:]
    names = sorted((k for k in h if k != "__metadata__"), key=lambda k: h[k]["data_offsets"])
    name = next((k for k in names if k == sys.argv[3]), names[-1])
    t = h[name]
    before = names[names.index(name) - 1]
    if fault == "overlapping": t["data_offsets"] = [x - 4 for x in t["data_offsets"]]
    if fault == "dtype": t["dtype"] = "I32"
    if fault == "small-dtype": t["dtype"] = "F16"
    if fault == "shape": t["shape"] = t["shape"][::-1]
    if fault == "huge": t["shape"] = [1 << 40, 1 << 40]
    if fault == "missing": h[name + ".other"] = h.pop(name)
    if fault == "extra": h["model.layers.7.mlp.up_proj.weight"] = {"dtype": "F32", "shape": [0, 4], "data_offsets": [0, 0]}
    text = json.dumps(h).encode()
    out = struct.pack("<Q", len(text)) + text + data
    if fault == "truncated": out, name = out[:-100], names[-1]
    return out, name if fault != "extra" else "model.layers.7.mlp.up_proj.weight"
def gguf():
    at = 8
    def u32():
        nonlocal at; at += 4; return struct.unpack("<I", b[at - 4:at])[0]
    def u64():
        nonlocal at; at += 8; return struct.unpack("<Q", b[at - 8:at])[0]
    def text():
        nonlocal at; n = u64(); at += n; return b[at - n:at].decode()
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    def skip(kind):
        nonlocal at
        if kind == 8: text()
        elif kind == 9:
            item, n = u32(), u64()
            for _ in range(n): skip(item)
        else: at += sizes[kind]
    tensors, values = u64(), u64()
    for _ in range(values): text(); skip(u32())
    rows = []
    for _ in range(tensors):
        first = at; name = text(); after = at; rank = u32(); dims = at; at += 8 * rank; kind = at; u32(); place = at; u64()
        rows.append((name, after, rank, dims, kind, place))
    name, after, rank, dims, kind, place = next(r for r in rows if r[0] == "blk.1.ffn_down.weight")
    if fault == "overlapping": b[place:place + 8] = rows[[r[0] for r in rows].index(name) - 1][0] and b[rows[[r[0] for r in rows].index(name) - 1][5]:][:8]
    if fault == "dtype": b[kind:kind + 4] = struct.pack("<I", 26) # i32
    if fault == "small-dtype": b[kind:kind + 4] = struct.pack("<I", 99)
    if fault == "shape": b[dims:dims + 16] = b[dims + 8:dims + 16] + b[dims:dims + 8]
    if fault == "huge": b[dims:dims + 16] = struct.pack("<QQ", 1 << 40, 1 << 40)
    if fault == "missing": b[after - 1:after] = b"x"
    if fault == "extra": name = "x" + name[1:]; raise SystemExit("no room for another tensor")
    if fault == "truncated": del b[-100:]; name = rows[-1][0]
    return bytes(b), name
out, name = gguf() if bytes(b[:4]) == b"GGUF" else safetensors()
open(path, "wb").write(out)
print(name)
PY
run() { # run MODEL: a command that reads every tensor
  "$RAFTER" generate "$1" --tokens 1,2,3 --max-tokens 1 --ignore-eos --threads 1 --json
}
# expect FAULT FILE MODEL: plants the fault in FILE, a part of MODEL, and expects an error that
# names the file and the tensor.
expect() {
  local fault=$1 file=$2 model=$3 name
  name=$(python3 damage.py "$fault" "$file" "$TENSOR") || { fail "$fault of $file cannot be made"; return; }
  refuses 1 "$(basename "$file")" run "$model" || { fail "($fault of $file)"; return; }
  grep -qF "$name" err || fail "$fault of $file: the error does not name $name: $(head -c 300 err | tr '\n' '|')"
  [ "$(wc -l <err)" -le 3 ] || fail "$fault of $file: more than one error: $(head -c 600 err)"
}

status 0 "$RAFTER" export "$DATA/goldens/$FAMILY" shards --shard-size 40kB
status 0 "$RAFTER" quantize "$DATA/goldens/$FAMILY" good.gguf --weights f32
shard=$(basename "$(grep -l "$TENSOR" shards/*.safetensors | head -1)")
for fault in truncated overlapping dtype small-dtype shape huge missing extra; do
  cp -r "$DATA/goldens/$FAMILY" one && chmod -R u+w one && expect $fault one/model.safetensors one; rm -r one
  if [ $fault != extra ]; then # an index names all tensors, so an extra tensor gives another error (below)
    cp -r shards some && expect $fault "some/$shard" some; rm -r some
    cp good.gguf bad.gguf && expect $fault bad.gguf bad.gguf
  fi
done
# Faults that only an index can have.
index() { python3 - "$1" <<PY
import json; p = "some/model.safetensors.index.json"; d = json.load(open(p)); w = d["weight_map"]; $2
json.dump(d, open(p, "w"))
PY
}
cp -r shards some && rm "some/$shard" && refuses 1 "$shard" run some; rm -r some
cp -r shards some && index some 'w["model.nothere.weight"] = w["model.norm.weight"]' &&
  refuses 1 'model.nothere.weight' run some; rm -r some
cp -r shards some && index some 'w["model.norm.weight"] = "../one.safetensors"' &&
  refuses 1 'model.norm.weight' run some; rm -r some

# llama2.c files contain only sizes. Files that are too short, too long or of another shape are
# refused by name.
python3 - <<'PY'
import array, random, struct
r = random.Random(1); D, F, L, N, K, V, T = 16, 24, 2, 2, 2, 300, 32
count = V * D + L * (2 * D + 4 * D * D + 3 * D * F) + D + T * (D // N)
a = array.array("f", [r.gauss(0, 0.1) for _ in range(count)])
head = struct.pack("<7i", D, F, L, N, K, V, T)
open("good.bin", "wb").write(head + a.tobytes())
open("short.bin", "wb").write((head + a.tobytes())[:-100])
open("long.bin", "wb").write(head + a.tobytes() + b"1234")
open("shape.bin", "wb").write(struct.pack("<7i", D, F, L + 1, N, K, V, T) + a.tobytes())
open("negative.bin", "wb").write(struct.pack("<7i", D, F, -L, N, K, V, T) + a.tobytes())
open("huge.bin", "wb").write(struct.pack("<7i", D, 1 << 30, L, N, K, V, T) + a.tobytes())
PY
status 0 run good.bin
for name in short long shape negative huge; do refuses 1 "$name.bin" run $name.bin; done
# A terminal obeys escape sequences. In errors and in `inspect`, each control character is a "?".
mkdir -p escapes && printf '{"model_type": "x\\u001b[2Jy\\u009bz\\u202e"}' >escapes/config.json
refuses 1 '"x[?]\[2Jy[?]z[?]"' "$RAFTER" plan escapes
python3 - <<'PY'
import json, struct
head = json.dumps({"a\x1b]0;t\x07\u202eb": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, ensure_ascii=False).encode()
open("escapes/model.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + bytes(4))
PY
status 0 "$RAFTER" inspect escapes/model.safetensors && says 'a[?]\]0;t[?][?]b' out

# The error names the range that holds, and what a row has in the place of an id.
for layers in 0 4097; do
  printf '{"model_type": "llama", "num_hidden_layers": %d}' $layers >escapes/config.json
  refuses 1 "num_hidden_layers.*expected 1 to 4096, got $layers" "$RAFTER" plan escapes
done
sed -i 's/: 4097/: 2, "hidden_size": 0/' escapes/config.json
refuses 1 'hidden_size.*expected at least 1, got 0' "$RAFTER" plan escapes
echo '{"tokens": [[1]]}' >rows.jsonl
for command in score generate 'tokenize --output rows.shard'; do
  read -ra words <<<"$command"
  refuses 1 'token 0: expected an id below 256, got a list' \
    "$RAFTER" "${words[0]}" "$TINY" --input rows.jsonl "${words[@]:1}"
done

# A FIFO, or a device, in the place of a file. To open the FIFO would wait for ever.
no_file() { refuses 1 "$1 is not a regular file" timeout 20 "${@:2}"; }
cp -r "$DATA/goldens/$FAMILY" pipes && chmod -R u+w pipes && mkfifo pipe
for part in config.json model.safetensors; do
  mv "pipes/$part" kept && mkfifo "pipes/$part" && no_file "$part" "$RAFTER" inspect "pipes/$part"
  no_file "$part" "$RAFTER" generate pipes --tokens 1
  rm "pipes/$part" && ln -s /dev/zero "pipes/$part"
  no_file "$part" "$RAFTER" generate pipes --tokens 1
  rm "pipes/$part" && mv kept "pipes/$part"
done
for name in pipe.gguf pipe.bin; do ln -s pipe $name && no_file $name "$RAFTER" generate $name --tokens 1; done
for name in pipe.txt pipe.jsonl pipe.shard; do
  ln -s pipe $name && no_file $name "$RAFTER" train "$TINY" "${QUICK[@]}" --steps 1 --data $name --out piped
done
no_file pipe.jsonl "$RAFTER" score good.bin --input pipe.jsonl
no_file pipe "$RAFTER" plan "$TINY" --config pipe
no_file pipe "$RAFTER" report pipe
# Pipes of the shell are read.
echo 'abc' | status 0 "$RAFTER" tokenize "$TINY" --input /dev/stdin && says '^97,98,99' out
status 0 "$RAFTER" score "$TINY" --input <(echo '{"tokens":[1,2,3]}') --json
finish
