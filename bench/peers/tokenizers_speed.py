#!/usr/bin/env python3
"""bench/peers/tokenize.py --text PATH... [--megabytes N] [--threads N] [--rounds N] TOKENIZER...

Compares rafter's tokenizer with those of Hugging Face (tokenizers, in Rust) and llama.cpp. A
TOKENIZER is a tokenizer.json (also .json.xz), which Hugging Face reads too, or a .gguf file, which
llama.cpp reads too. Prints a Markdown table: seconds per 100 MB of text with one thread and with
--threads threads (2), and whether all ids are equal.

The text is made of the files of --text (folders are read whole, .gz files unpacked), in an order
that a fixed seed shuffles, up to --megabytes (100). If the files are too small, they repeat, and a
note says how often. The text is cut at line ends into documents of 64 KiB. Each program encodes all
documents in one process, with special tokens. The programs take turns; a figure is the fastest
round. Hugging Face runs encode_batch_fast (without offsets) and its own threads. rafter (through
rafter.h) and llama.cpp run once per document, in as many threads of Python as the row says."""

import argparse
import concurrent.futures
import ctypes
import gzip
import json
import lzma
import os
import random
import shutil
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIBRARY = os.environ.get("RAFTER_LIBRARY", f"{ROOT}/build/librafter.so")
DOCUMENT = 1 << 16
# rafter.h opens the tokenizer of a model. Only the size of the vocabulary matters here.
SHAPE = {"model_type": "gpt2", "n_layer": 1, "n_embd": 64, "n_head": 1, "n_positions": 64}
SHAPE["vocab_size"] = 1 << 20


def files_of(paths):
    for path in paths:
        if not os.path.isdir(path):
            yield path
        for folder, _, names in sorted(os.walk(path)):
            yield from (f"{folder}/{name}" for name in sorted(names))


def text_of(path):
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as f:
        try:
            return f.read().decode()
        except (UnicodeDecodeError, gzip.BadGzipFile):
            return ""  # not a text


def documents(paths, limit):
    """Documents of about DOCUMENT bytes, `limit` bytes together."""
    texts = [text_of(path) for path in files_of(paths)]
    random.Random(1).shuffle(texts)
    once = "".join(texts).encode()
    if not once:
        raise SystemExit("--text has no UTF-8 text")
    if len(once) < limit:
        print(f"The {len(once)} bytes of text repeat {limit / len(once):.1f} times.\n")
    everything = (once * -(-limit // len(once)))[:limit]
    found, at = [], 0
    while at < len(everything):
        end = everything.find(b"\n", at + DOCUMENT) + 1 or len(everything)
        found.append(everything[at:end].decode(errors="ignore"))
        at = end
    return found


def in_threads(threads, encode, texts):
    if threads == 1:
        return [encode(text) for text in texts]
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return list(pool.map(encode, texts))


class Rafter:
    name = "rafter"

    def __init__(self, path):
        class Error(ctypes.Structure):
            _fields_ = [
                ("status", ctypes.c_int),
                ("message", ctypes.c_char * 768),
                ("hint", ctypes.c_char * 512),
                ("source", ctypes.c_char * 96),
            ]

        self.c, self.error = ctypes.CDLL(LIBRARY), Error
        job, self.tokenizer = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("rafter_job_new", b"tokenize", ctypes.byref(job))
        if not path.endswith(".gguf"):
            path = os.path.dirname(path)
            with open(f"{path}/config.json", "w", encoding="utf-8") as f:
                json.dump(SHAPE, f)
        self.call("rafter_job_set", job, b"model", path.encode())
        self.call("rafter_tokenizer_open", job, ctypes.byref(self.tokenizer))

    def call(self, name, *words):
        error = self.error()
        if getattr(self.c, name)(*words, ctypes.byref(error)):
            raise SystemExit(f"{name}: {error.message.decode()}")

    def one(self, text):
        ids, count = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_int64()
        wanted = [ctypes.c_size_t(len(text)), ctypes.c_bool(True)]
        out = [ctypes.byref(ids), ctypes.byref(count)]
        self.call("rafter_tokenizer_encode", self.tokenizer, text, *wanted, *out)
        found = ctypes.string_at(ids, 4 * count.value)
        self.c.rafter_ids_free(ids)
        return found

    def encode(self, texts, threads):
        texts = [text.encode() for text in texts]
        start = time.perf_counter()
        found = in_threads(threads, self.one, texts)
        return time.perf_counter() - start, b"".join(found)


class HuggingFace:
    def __init__(self, path):
        import tokenizers

        self.name = f"tokenizers {tokenizers.__version__}"
        self.tokenizer = tokenizers.Tokenizer.from_file(path)

    def encode(self, texts, threads):
        import numpy

        os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
        seconds, parts = 0.0, []
        for at in range(0, len(texts), 256):  # an encoding needs much memory
            start = time.perf_counter()
            found = self.tokenizer.encode_batch_fast(texts[at : at + 256])
            seconds += time.perf_counter() - start
            parts += [numpy.array(x.ids, "<i4").tobytes() for x in found]
        return seconds, b"".join(parts)


class LlamaCpp:
    def __init__(self, path):
        import llama_cpp as ll

        @ll.llama_log_callback
        def quiet(level, text, data):
            pass

        ll.llama_log_set(quiet, None)
        self.ll, self.name = ll, f"llama.cpp {ll.__version__}"
        wanted = ll.llama_model_default_params()
        wanted.vocab_only = True
        self.vocab = ll.llama_model_get_vocab(ll.llama_load_model_from_file(path.encode(), wanted))

    def one(self, text):
        ids = (ctypes.c_int32 * (len(text) + 16))()
        count = self.ll.llama_tokenize(self.vocab, text, len(text), ids, len(ids), True, True)
        return bytes(memoryview(ids).cast("B")[: 4 * count])

    def encode(self, texts, threads):
        texts = [text.encode() for text in texts]
        start = time.perf_counter()
        found = in_threads(threads, self.one, texts)
        return time.perf_counter() - start, b"".join(found)


def measure(name, path, texts, a):
    """One row per program."""
    programs = [Rafter(path), (LlamaCpp if path.endswith(".gguf") else HuggingFace)(path)]
    scale = 1e8 / sum(len(text.encode()) for text in texts)
    seconds, ids = {}, {}
    for _ in range(a.rounds):
        for program in programs:
            for threads in sorted({1, a.threads}):
                took, found = program.encode(texts, threads)
                row = seconds.setdefault((program.name, threads), [])
                row.append(took * scale)
                ids.setdefault(program.name, found)
                if ids[program.name] != found:
                    raise SystemExit(f"{program.name}: ids differ between rounds")
    ours, theirs = ids.values()
    for program in programs:
        best = [f"{min(seconds[program.name, t]):.2f}" for t in sorted({1, a.threads})]
        tokens = len(ids[program.name]) // 4
        equal = "equal" if ours == theirs else "different"
        print("|", " | ".join([name, program.name, *best, str(tokens), equal]), "|", flush=True)


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--text", nargs="+", required=True)
    p.add_argument("--megabytes", type=float, default=100)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("tokenizer", nargs="+")
    a = p.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(a.threads)
    texts = documents(a.text, int(a.megabytes * 1e6))
    heads = [f"{t} thread{'s' * (t > 1)}" for t in sorted({1, a.threads})]
    print("|", " | ".join(["tokenizer", "program", *heads, "tokens", "ids"]), "|")
    print("| --- " * (4 + len(heads)) + "|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for path in a.tokenizer:
            # the name of the file, or of its folder for a tokenizer.json
            name = os.path.basename(path)
            if name.startswith("tokenizer."):
                name = os.path.basename(os.path.dirname(os.path.abspath(path)))
            if not path.endswith(".gguf"):
                with (lzma.open if path.endswith(".xz") else open)(path, "rb") as packed:
                    with open(f"{folder}/tokenizer.json", "wb") as f:
                        shutil.copyfileobj(packed, f)
                path = f"{folder}/tokenizer.json"
            measure(name, path, texts, a)


if __name__ == "__main__":
    sys.exit(main())
