#!/usr/bin/env python3
"""bench/peers/load_speed.py [--threads N] [--rounds N] [--dtype NAME] MODEL...

Compares how long programs take from the start to the first token of a model. A MODEL is a .gguf
file, which llama.cpp loads too (mapped, and read into memory), or a folder of safetensors, which
transformers loads too (in bfloat16). Prints a Markdown table: median seconds [minimum..maximum] and
peak resident memory.

The prompt is one token. rafter's time is that of the whole process, `rafter generate --compute
fast`, from its start to its end. Of the others, it is the time from the call that loads the model
to the end of the forward pass; starting Python and importing modules do not count. Every load runs
in a new process, in turns. The files are in the system's page cache: each is read once before."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
RAFTER = os.environ.get("RAFTER", f"{ROOT}/build/rafter")
PLACE = os.environ.get("RAFTER_PEERS", os.path.expanduser("~/.cache/rafter-peers"))
LLAMA = """
import json, resource, sys, time, llama_cpp as ll
path, threads, mapped = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "mapped"
@ll.llama_log_callback
def quiet(level, text, data): pass
ll.llama_log_set(quiet, None)
ll.llama_backend_init()
start = time.perf_counter()
p = ll.llama_model_default_params()
p.load_mode = ll.LLAMA_LOAD_MODE_MMAP if mapped else ll.LLAMA_LOAD_MODE_NONE
model = ll.llama_model_load_from_file(path.encode(), p)
c = ll.llama_context_default_params()
c.n_ctx, c.n_threads, c.n_threads_batch = 64, threads, threads
context = ll.llama_init_from_model(model, c)
tokens = (ll.llama_token * 1)(1)
if ll.llama_decode(context, ll.llama_batch_get_one(tokens, 1)):
    raise SystemExit("llama_decode failed")
ll.llama_synchronize(context)
ll.llama_get_logits_ith(context, -1)[0]
print(json.dumps([time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""
TRANSFORMERS = """
import json, resource, sys, time, torch, transformers
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(int(sys.argv[2]))
start = time.perf_counter()
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
with torch.inference_mode():
    model(torch.tensor([[1]])).logits[0, -1, 0].item()
print(json.dumps([time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""
COPIED = """
import glob, json, resource, sys, time, torch, safetensors.torch
torch.set_num_threads(int(sys.argv[2]))
start = time.perf_counter()
tensors = [x.clone() for f in glob.glob(sys.argv[1] + "/*.safetensors")
           for x in safetensors.torch.load_file(f).values()]
print(json.dumps([time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""


def rafter(path, a):
    words = [RAFTER, "generate", path, "--tokens", "1", "--max-tokens", "1", "--compute", "fast"]
    words += ["--threads", str(a.threads), "--temperature", "0", "--json", "--quiet"]
    start = time.perf_counter()
    child = subprocess.Popen(words + (["--dtype", a.dtype] if a.dtype else []), stdout=-1)
    child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(words)} failed")
    return time.perf_counter() - start, used.ru_maxrss


def python(code, *words):
    def load(path, a):
        command = [f"{PLACE}/bin/python3", "-c", code, path, str(a.threads), *words]
        done = subprocess.run(command, stdout=-1, stderr=-1, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr.strip().splitlines()[-1])
        return json.loads(done.stdout.strip().splitlines()[-1])

    return load


PROGRAMS = {
    ".gguf": {
        "rafter": rafter,
        "llama.cpp, mapped": python(LLAMA, "mapped"),
        "llama.cpp, read": python(LLAMA, "read"),
    },
    "": {
        "rafter": rafter,
        "transformers": python(TRANSFORMERS),
        "safetensors load_file and a copy, no token": python(COPIED),
    },
}


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--dtype", help="rafter's --dtype: bf16 for files in bf16")
    p.add_argument("model", nargs="+")
    a = p.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(a.threads)
    print("| model | program | seconds to the first token | peak memory, GB |")
    print("| --- " * 4 + "|", flush=True)
    for path in a.model:
        programs = PROGRAMS[".gguf" if path.endswith(".gguf") else ""]
        found = {name: [] for name in programs}
        for turn in range(a.rounds + 1):
            for name, load in programs.items():
                measured = load(path, a)
                if turn > 0:  # the first turn fills the page cache
                    found[name].append(measured)
        for name, rows in found.items():
            seconds, peaks = zip(*rows)
            middle = statistics.median(seconds)
            span = f"{middle:.2f} [{min(seconds):.2f}..{max(seconds):.2f}]"
            cells = [os.path.basename(path.rstrip("/")), name, span, f"{max(peaks) * 1.024e-6:.2f}"]
            print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    sys.exit(main())
