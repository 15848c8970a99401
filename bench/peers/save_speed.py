#!/usr/bin/env python3
"""bench/peers/save_speed.py [--rounds N] [--folder MODEL]

Compares how long rafter and safetensors take to write weights. Prints a Markdown table: median
seconds [minimum..maximum].

- A checkpoint of GPT-2 124M in f32 (weights and moments): rafter_trainer_save of rafter.h, next to
  safetensors.torch.save_file with the same tensors.
- A folder in bf16 (--folder, or the 1.1B model that rafter export writes): rafter export to another
  folder, next to load_file and save_file.

rafter writes a temporary file, calls fsync and renames the file. save_file does none of this, so it
is measured with and without an fsync. All take turns, and each writes new files."""

import argparse
import ctypes
import glob
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
RAFTER = os.environ.get("RAFTER", f"{ROOT}/build/rafter")
LIBRARY = os.environ.get("RAFTER_LIBRARY", f"{ROOT}/build/librafter.so")
PLACE = os.environ.get("RAFTER_PEERS", os.path.expanduser("~/.cache/rafter-peers"))


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def sync(path):
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


class Trainer:
    """A trainer of GPT-2, through rafter.h."""

    def __init__(self, text):
        with open(text, "w", encoding="utf-8") as f:
            f.write("All happy families are alike. " * 1000)
        self.c, self.error = ctypes.CDLL(LIBRARY), ctypes.create_string_buffer(4096)
        job, self.trainer = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("rafter_job_new", b"train", ctypes.byref(job))
        rows = {"model": "gpt2", "batch": "1", "seq": "64", "steps": "1", "data": "random"}
        for name, value in rows.items():
            self.call("rafter_job_set", job, name.encode(), value.encode())
        self.call("rafter_trainer_open", job, ctypes.byref(self.trainer))

    def call(self, name, *words):
        if getattr(self.c, name)(*words, self.error):
            raise SystemExit(f"{name}: {self.error.raw[4:772].split(bytes(1))[0].decode()}")

    def save(self, folder):
        self.call("rafter_trainer_save", self.trainer, folder.encode())


def size_of(folder):
    return sum(os.path.getsize(path) for path in glob.glob(f"{folder}/*"))


def print_row(work, bytes_, seconds):
    for name, found in seconds.items():
        span = f"{statistics.median(found):.2f} [{min(found):.2f}..{max(found):.2f}]"
        print("|", " | ".join([work, f"{bytes_ * 1e-9:.2f}", name, span]), "|", flush=True)


def checkpoints(folder, rounds):
    import torch
    from safetensors.torch import load_file, save_file

    trainer = Trainer(f"{folder}/text.txt")
    trainer.save(f"{folder}/first")
    files = {os.path.basename(p): load_file(p) for p in glob.glob(f"{folder}/first/*.safetensors")}
    files = {name: {k: x.clone() for k, x in tensors.items()} for name, tensors in files.items()}
    bytes_ = size_of(f"{folder}/first")

    def peer(to, synced):
        os.mkdir(to)
        for name, tensors in files.items():
            save_file(tensors, f"{to}/{name}")
            if synced:
                sync(f"{to}/{name}")

    return bytes_, {
        "rafter": trainer.save,
        "save_file and fsync": lambda to: peer(to, True),
        "save_file": lambda to: peer(to, False),
    }


def exports(folder, model):
    from safetensors.torch import load_file, save_file

    def ours(to):
        words = [RAFTER, "export", model, to, "--dtype", "bf16", "--quiet"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def peer(to, synced):
        os.mkdir(to)
        for path in glob.glob(f"{model}/*.safetensors"):
            save_file(load_file(path), f"{to}/{os.path.basename(path)}", metadata={"format": "pt"})
            if synced:
                sync(f"{to}/{os.path.basename(path)}")

    return size_of(model), {
        "rafter": ours,
        "load_file, save_file and fsync": lambda to: peer(to, True),
        "load_file and save_file": lambda to: peer(to, False),
    }


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--folder", default=f"{PLACE}/1.1b-bf16")
    a = p.parse_args()
    if not os.path.isdir(a.folder):
        words = [RAFTER, "export", f"{PLACE}/1.1b-bf16.gguf", a.folder, "--dtype", "bf16"]
        subprocess.run(words, check=True)
    print("| work | GB | program | seconds |\n| --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory(dir=PLACE) as folder:
        rows = {"checkpoint of GPT-2, f32": checkpoints(folder, a.rounds)}
        rows["folder of the 1.1B model, bf16"] = exports(folder, a.folder)
        for work, (bytes_, programs) in rows.items():
            seconds = {name: [] for name in programs}
            for _ in range(a.rounds):
                for name, save in programs.items():
                    os.sync()
                    seconds[name].append(timed(lambda: save(f"{folder}/new")))
                    shutil.rmtree(f"{folder}/new")
            print_row(work, bytes_, seconds)


if __name__ == "__main__":
    sys.exit(main())
