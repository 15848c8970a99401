"""Shapes, threads and messages that the peers' scripts share.

A script makes its model, runs once to warm up, and prints one JSON line about itself. Each line of its input is
a number. The script repeats the work that many times, and prints one JSON line with the seconds of each
repetition. It ends at the end of its input."""
import json
import os
import resource
import sys
import time

# The decoders that are trained; rafter's presets have the same names.
GPT = {
    "gpt2": dict(layers=12, width=768, heads=12, ff=3072, vocab=50257, max_seq=1024, uva=False),
    "uva": dict(layers=12, width=1024, heads=8, ff=4096, vocab=2048, max_seq=512, uva=True),
}
# TinyLlama's shape with a tied head: 1.03 G weights.
LLAMA = dict(hidden_size=2048, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4, head_dim=64, intermediate_size=5632, vocab_size=32000, tie_word_embeddings=True,
             max_position_embeddings=2048, rope_theta=10000.0, rms_norm_eps=1e-5)

# Gemma 3 270M's shape.
GEMMA = dict(hidden_size=640, num_hidden_layers=18, num_attention_heads=4, num_key_value_heads=1, head_dim=256, intermediate_size=2048, vocab_size=262144, sliding_window=512,
             max_position_embeddings=32768, rms_norm_eps=1e-6, query_pre_attn_scalar=256, tie_word_embeddings=True)


def pin(threads):
    """Sets the number of threads, before any thread pool exists."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def serve(about, work):
    def timed():
        start = time.perf_counter()
        measured = work()  # some work measures its own seconds, because it starts with a prompt
        return measured if isinstance(measured, float) else time.perf_counter() - start

    first = timed()
    print(json.dumps({**about, "first_seconds": first}), flush=True)
    for line in sys.stdin:
        seconds = [timed() for _ in range(int(line))]
        print(json.dumps({"seconds": seconds, "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}), flush=True)
