"""Golden blocks of GGUF's storage types, computed by the numpy code of the `gguf` package (0.19.0, numpy 2.4.6),
which shares nothing with this program.

    pip install gguf==0.19.0 numpy; python make.py blocks.bin

The file is little-endian. Each record has four u32 (what, type number, values, bytes), `values` f32, and `bytes`
bytes of blocks. what 0: the blocks are random bits, and the values are their dequantization. what 1: the blocks
are the quantization of the values.
"""
import sys

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

# Byte offsets of the f16 fields of a block. Random bits there would be infinity too often.
SCALES = {T.F16: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2],
          T.Q5_K: [0, 2], T.Q6_K: [208]}
EDGES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF]  # zeros, subnormals, the smallest normal, the largest
rng = np.random.default_rng(20240501)


def record(out, what, kind, values, blocks):
    values = np.ascontiguousarray(values, dtype="<f4").reshape(-1)
    out.write(np.array([what, int(kind), values.size, blocks.size], dtype="<u4").tobytes() + values.tobytes() + blocks.tobytes())


with open(sys.argv[1], "wb") as out:
    for kind in [T.F32, T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K]:
        size, width = GGML_QUANT_SIZES[kind]
        count = 4 if size == 256 else 12 if size == 32 else 64
        blocks = rng.integers(0, 256, (count, width), dtype=np.uint8)
        if kind == T.F32 or kind == T.BF16:
            blocks = rng.normal(0, 0.02, count).astype("<f4").view(np.uint8).reshape(count, 4)[:, 4 - width:].copy()
        for place in SCALES.get(kind, []):
            scale = rng.normal(0, 0.02, count).astype("<f2").view("<u2")
            edges = EDGES[: count // 2]
            if size < 256: scale[: len(edges)] = rng.permutation(edges)
            else: scale[0] = EDGES[2]
            blocks[:, place : place + 2] = scale.reshape(-1, 1).view(np.uint8)
        record(out, 0, kind, dequantize(blocks.reshape(1, -1), kind), blocks)
    for kind in [T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1]:
        values = rng.normal(0, 0.02, (1, 12 * 32)).astype("<f4")
        values[0, :32] = 0
        values[0, 32:64] = 0.25  # all values equal
        values[0, 64:96] = np.arange(-16, 16) / 4  # ties
        values[0, 96:128] *= 1e-6  # scales become subnormal
        values[0, 128:160] *= 1e5
        values[0, 160] = 3  # one outlier
        values[0, 192:224] = np.round(values[0, 192:224], 2)
        record(out, 1, kind, values, quantize(values, kind))
