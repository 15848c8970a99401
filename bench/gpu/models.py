"""The models of the comparison on a GPU, in the shapes of rafter's presets, and the printed results."""

import argparse
import json
import statistics
import time

MODELS = {
    "gpt2": {
        "llama": False,
        "layers": 12,
        "width": 768,
        "heads": 12,
        "kv": 12,
        "ff": 3072,
        "vocab": 50257,
        "dim": 64,
        "context": 1024,
    },
    "llama3.2-1b": {
        "llama": True,
        "layers": 16,
        "width": 2048,
        "heads": 32,
        "kv": 8,
        "ff": 8192,
        "vocab": 128256,
        "dim": 64,
        "context": 131072,
    },
}


def options(description):
    p = argparse.ArgumentParser(description=description)
    p.add_argument("work", choices=["train", "decode"])
    p.add_argument("--model", choices=MODELS, required=True)
    p.add_argument("--batch", type=int, required=True)
    p.add_argument(
        "--seq", type=int, required=True, help="tokens of a training row, or the length of the cache"
    )
    p.add_argument("--attention", choices=["plain", "fused"], default="fused")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--text", metavar="FILE", help="write JAX's program as StableHLO, and stop")
    return p.parse_args()


TOKENS = 32  # of each answer in a step of decoding: the host waits only after them


def measure(a, step, warm):
    """Seconds of each training step, or of each token, after `warm` steps. `step` waits for its result."""
    for _ in range(warm):
        step()
    seconds = []
    for _ in range(a.steps):
        start = time.perf_counter()
        step()
        seconds.append((time.perf_counter() - start) / (1 if a.work == "train" else TOKENS))
    return seconds


def report(tool, a, seconds, **more):
    median = statistics.median(seconds)
    tokens = a.batch * (a.seq if a.work == "train" else 1)
    row = {
        "tool": tool,
        **vars(a),
        "milliseconds": {
            "median": 1e3 * median,
            "min": 1e3 * min(seconds),
            "max": 1e3 * max(seconds),
            "n": len(seconds),
        },
    }
    print(json.dumps({**row, "tokens_per_second": tokens / median, **more}), flush=True)
