"""Golden rows of int8 with one scale per row, computed by numpy (2.x) from the definition: d = max|x| / 127 in f32,
rounded to sixteen bits of significand (halves to even), q = x / d rounded (halves to even).

    pip install numpy; python make_int8.py int8.bin

The file has the format of blocks.bin (make.py), with type number 200 (src/formats/quant.h). The bytes of a row
are d and then q. For each quantized row (what 1) there is also its dequantization (what 0), unless the row is
zeros.
"""
import sys

import numpy as np

rng = np.random.default_rng(20261122)
f32 = np.float32


def sixteen_bits(x):
    mantissa, exponent = np.frexp(np.float64(x))
    return f32(np.ldexp(np.rint(mantissa * 2.0**16), int(exponent) - 16))


def record(out, what, values, row):
    values = np.ascontiguousarray(values, dtype="<f4")
    out.write(np.array([what, 200, values.size, len(row)], dtype="<u4").tobytes() + values.tobytes() + row)


rows = [rng.normal(0, 0.02, 32), rng.normal(0, 0.02, 96), rng.normal(0, 3, 576), rng.normal(0, 1e-30, 64), rng.normal(0, 1e36, 64), np.zeros(64),
        np.full(32, -0.25), np.arange(-127, 129).clip(-127, 127) / 2.0 + 0.25, np.append(rng.normal(0, 0.02, 63), 3.0)]
with open(sys.argv[1], "wb") as out:
    for x in rows:
        x = x.astype("<f4")
        d = sixteen_bits(np.abs(x).max() / f32(127))
        q = np.rint(x / d).astype(np.int8) if d > 0 else np.zeros(x.size, np.int8)
        row = d.astype("<f4").tobytes() + q.tobytes()
        record(out, 1, x, row)
        if d > 0: record(out, 0, q.astype(np.float64) * np.float64(d), row)
