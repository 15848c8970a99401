#!/usr/bin/env bash
# Loading more than a GiB shows its progress, but only on a terminal.
. "$(dirname "$0")/lib.sh"
if [ "$(awk '/MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)" -lt 3 ]; then
  echo 'skip: less than 3 GiB of memory are free'
  finish
  exit 0
fi

# Zeros take no space on the disk: the file has a hole.
mkdir large small
python3 - <<'PY'
import json, struct
for folder, width, ff in (("large", 4096, 20480), ("small", 64, 128)):
    vocab = 256
    shapes = {"model.embed_tokens.weight": [vocab, width], "lm_head.weight": [vocab, width], "model.norm.weight": [width],
              "model.layers.0.input_layernorm.weight": [width], "model.layers.0.post_attention_layernorm.weight": [width]}
    shapes.update({f"model.layers.0.self_attn.{n}_proj.weight": [width, width] for n in "qkvo"})
    shapes.update({f"model.layers.0.mlp.{n}_proj.weight": [ff, width] for n in ("gate", "up")} | {"model.layers.0.mlp.down_proj.weight": [width, ff]})
    header, at = {}, 0
    for name, shape in shapes.items():
        bytes_ = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + bytes_]}
        at += bytes_
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)
    json.dump({"model_type": "llama", "hidden_size": width, "intermediate_size": ff, "num_attention_heads": width // 32, "num_hidden_layers": 1, "vocab_size": vocab,
               "max_position_embeddings": 64, "tie_word_embeddings": False}, open(folder + "/config.json", "w"))
PY

# at_terminal FILE COMMAND...: runs the command with a terminal as stderr, and copies its output to
# FILE.
at_terminal() {
  python3 - "$@" <<'PY'
import os, pty, subprocess, sys
ours, theirs = pty.openpty()
run = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs)
os.close(theirs)
seen = b""
try:
    while chunk := os.read(ours, 65536):
        seen += chunk
except OSError:  # the other side has closed
    pass
open(sys.argv[1], "wb").write(seen)
sys.exit(run.wait())
PY
}
ASK=(--tokens 1,2,3 --max-tokens 1 --weights f32 --threads 2)
if terminals 'the progress bar'; then
  at_terminal bar "$RAFTER" generate large "${ASK[@]}" ||
    fail "generate at a terminal fails: $(tail -c 300 bar)"
  says 'loading +[0-9]+ %' bar
  python3 - <<'PY' || fail "the progress bar is wrong: $(tr '\r\033' '..' <bar | tail -c 300)"
import re
text = open("bar", "rb").read().decode()
parts = [int(x) for x in re.findall(r"loading +(\d+) %", text)]
assert len(parts) >= 4 and parts == sorted(set(parts)) and parts[-1] < 100, parts
assert re.search(r"loading +%d %%\r\x1b\[K(?!loading)" % parts[-1], text), "the bar stays behind"
PY
  at_terminal bar "$RAFTER" generate large "${ASK[@]}" --quiet ||
    fail "generate --quiet at a terminal fails: $(tail -c 300 bar)"
  ! grep -q loading bar || fail '--quiet shows a bar'
  at_terminal bar "$RAFTER" generate small "${ASK[@]}" ||
    fail "generate of a small model at a terminal fails: $(tail -c 300 bar)"
  ! grep -q loading bar || fail 'a small model shows a bar'
fi
status 0 "$RAFTER" generate large "${ASK[@]}"
! grep -q $'\r' err || fail 'a bar is shown without a terminal'
finish
