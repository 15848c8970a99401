#!/usr/bin/env python3
"""bench/peers/quantize.py [--types LIST] [--layers N] [--threads N] [--rounds N] [--model FILE]

Compares `rafter quantize` with llama.cpp's llama_model_quantize. Both read the same bf16 file and
write files of the same types, in turns. Prints a Markdown table: seconds per billion weights
(fastest round), processor seconds of all threads, and the root mean square error of the weights
relative to their root mean square. The file has the layers of the 1.1B model and a vocabulary of
256, so that nearly all weights have the type of the row.

Both programs read, quantize and write. rafter also computes the error of every tensor. llama.cpp
runs with `pure`, so that all matrices have one type. The errors of the table are computed here,
from both files as f32. Needs numpy (the Python of environment.sh has it)."""

import argparse
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
RAFTER = os.environ.get(
    "RAFTER", os.path.join(os.path.dirname(os.path.dirname(HERE)), "build", "rafter")
)
PLACE = os.environ.get("RAFTER_PEERS", os.path.expanduser("~/.cache/rafter-peers"))
# llama.cpp's numbers of files whose matrices have one type (enum llama_ftype)
FILE_TYPES = {"q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9}
FILE_TYPES |= {"q2_k": 10, "q3_k": 11, "q4_k": 14, "q5_k": 16, "q6_k": 18}
HEADS = ["rafter: s per 1e9 weights", "of all threads", "error"]
PEER = """
import ctypes, sys, time, llama_cpp as ll
@ll.llama_log_callback
def quiet(level, text, data): pass
ll.llama_log_set(quiet, None)
ll.llama_backend_init()
p = ll.llama_model_quantize_default_params()
p.nthread, p.ftype, p.pure = int(sys.argv[4]), int(sys.argv[3]), True
start = time.perf_counter()
if ll.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(p)):
    raise SystemExit("llama_model_quantize failed")
print(time.perf_counter() - start)
"""


def run(command):
    """The last line that the command prints, and its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:3])}: {done.stderr.strip().splitlines()[-1:]}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (done.stdout.strip().splitlines() or [""])[-1], used


def text(f):
    return f.read(struct.unpack("<Q", f.read(8))[0]).decode()


def skip_value(f, kind):
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    if kind == 8:
        text(f)
    elif kind == 9:
        item, count = struct.unpack("<IQ", f.read(12))
        for _ in range(count):
            skip_value(f, item)
    else:
        f.read(sizes[kind])


def matrices(path):
    """Name -> f32 array of the layers' matrices of an f32 file. The alignment is 32 bytes."""
    import numpy

    with open(path, "rb") as f:
        _, _, tensors, facts = struct.unpack("<4sIQQ", f.read(24))
        for _ in range(facts):
            text(f)
            skip_value(f, struct.unpack("<I", f.read(4))[0])
        found = {}
        for _ in range(tensors):
            name, rank = text(f), struct.unpack("<I", f.read(4))[0]
            shape = struct.unpack(f"<{rank}Q", f.read(8 * rank))
            found[name] = shape, *struct.unpack("<IQ", f.read(12))
        start = -(-f.tell() // 32) * 32
    return {
        name: numpy.memmap(path, "<f4", "r", start + offset, shape[::-1])
        for name, (shape, kind, offset) in found.items()
        if len(shape) == 2 and kind == 0 and name.startswith("blk.")
    }


def error_of(exact, path, folder):
    """RMS error of the file's matrices relative to the RMS of the exact values."""
    import numpy

    wide = f"{folder}/wide.gguf"
    run([RAFTER, "quantize", path, wide, "--weights", "f32", "--quiet"])
    wrong = everything = 0.0
    got = matrices(wide)
    for name, x in exact.items():
        wrong += float(numpy.square(x.astype("f8") - got[name]).sum())
        everything += float(numpy.square(x.astype("f8")).sum())
    os.remove(wide)
    return (wrong / everything) ** 0.5


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--types", default="q4_0,q8_0,q4_k,q5_k,q6_k")
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--model", help="a bf16 GGUF file in place of the random one")
    a = p.parse_args()
    with tempfile.TemporaryDirectory(dir=PLACE) as folder:
        source, exact = a.model or f"{folder}/source.gguf", f"{folder}/exact.gguf"
        if not a.model:
            run([sys.executable, f"{HERE}/gguf.py", source, str(a.layers), "256"])
        run([RAFTER, "quantize", source, exact, "--weights", "f32", "--quiet"])
        exact = matrices(exact)
        weights = sum(x.size for x in exact.values()) * 1e-9
        print(
            "| type |",
            " | ".join([*HEADS, HEADS[0].replace("rafter", "llama.cpp"), *HEADS[1:]]),
            "|",
        )
        print("| --- " * 7 + "|", flush=True)
        for kind in a.types.split(","):
            ours, theirs = [], []
            for _ in range(a.rounds):
                words = [RAFTER, "quantize", source, f"{folder}/ours.gguf", "--weights", kind]
                said, used = run([*words, "--threads", str(a.threads), "--json", "--quiet"])
                ours.append((json.loads(said)["seconds"], used))
                words = [f"{PLACE}/bin/python3", "-c", PEER, source, f"{folder}/theirs.gguf"]
                said, used = run([*words, str(FILE_TYPES[kind]), str(a.threads)])
                theirs.append((float(said), used))
            cells = [
                f"{min(column) / weights:.2f}" for both in (ours, theirs) for column in zip(*both)
            ]
            errors = []
            for name in ("ours", "theirs"):
                errors.append(f"{100 * error_of(exact, f'{folder}/{name}.gguf', folder):.3f} %")
            print(
                "|",
                " | ".join([kind, *cells[:2], errors[0], *cells[2:], errors[1]]),
                "|",
                flush=True,
            )


main()
