"""gguf.py OUT [LAYERS TOKENS]: writes the 1.1B Llama of common.py as a GGUF file in bf16, with random
weights and no vocabulary. LAYERS and TOKENS make a smaller one.
`rafter quantize` makes the other types from it. Uses only the standard library."""
import array
import random
import struct
import sys

from common import LLAMA

BF16, F32, U32, STRING, FLOAT = 30, 0, 4, 8, 6
L = LLAMA
if len(sys.argv) > 2:
    L = {**L, "num_hidden_layers": int(sys.argv[2]), "vocab_size": int(sys.argv[3])}
width, ff, kv = L["hidden_size"], L["intermediate_size"], L["num_key_value_heads"] * L["head_dim"]
facts = [("general.architecture", "llama"), ("general.file_type", 32), ("llama.context_length", L["max_position_embeddings"]), ("llama.embedding_length", width),
         ("llama.block_count", L["num_hidden_layers"]), ("llama.feed_forward_length", ff), ("llama.attention.head_count", L["num_attention_heads"]),
         ("llama.attention.head_count_kv", L["num_key_value_heads"]), ("llama.attention.layer_norm_rms_epsilon", L["rms_norm_eps"]), ("llama.rope.dimension_count", L["head_dim"]),
         ("llama.rope.freq_base", L["rope_theta"]), ("llama.vocab_size", L["vocab_size"]), ("tokenizer.ggml.model", "no_vocab")]
tensors = [("token_embd.weight", (width, L["vocab_size"]))]
for i in range(L["num_hidden_layers"]):
    tensors += [(f"blk.{i}.{name}.weight", shape) for name, shape in (("attn_norm", (width,)), ("attn_q", (width, width)), ("attn_k", (width, kv)), ("attn_v", (width, kv)),
                ("attn_output", (width, width)), ("ffn_norm", (width,)), ("ffn_gate", (width, ff)), ("ffn_up", (width, ff)), ("ffn_down", (ff, width)))]
tensors.append(("output_norm.weight", (width,)))


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def size(shape):
    return 4 * shape[0] if len(shape) == 1 else 2 * shape[0] * shape[1]


rng = random.Random(5)
pool = array.array("H", (struct.unpack("<I", struct.pack("<f", rng.gauss(0, 0.02)))[0] >> 16 for _ in range(1 << 20))).tobytes()
with open(sys.argv[1], "wb") as f:
    f.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts)))
    for key, value in facts:
        kind = STRING if isinstance(value, str) else FLOAT if isinstance(value, float) else U32
        f.write(text(key) + struct.pack("<I", kind) + (text(value) if kind == STRING else struct.pack("<f" if kind == FLOAT else "<I", value)))
    offset = 0
    for name, shape in tensors:
        f.write(text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape) + struct.pack("<IQ", F32 if len(shape) == 1 else BF16, offset))
        offset += -(-size(shape) // 32) * 32
    f.write(b"\0" * (-f.tell() % 32))
    for number, (name, shape) in enumerate(tensors):
        if len(shape) == 1:
            f.write(struct.pack("<f", 1.0) * shape[0])
        else:
            # Each matrix starts elsewhere in the pool: converters store equal matrices only once.
            start = 2 * 4093 * number
            shifted = pool[start:] + pool[:start]
            for left in range(size(shape), 0, -len(pool)):
                f.write(shifted[:left])
        f.write(b"\0" * (-f.tell() % 32))
