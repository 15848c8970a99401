"""prove_meshes.py - random models on random meshes of MPI ranks train as one process does.

python3 tools/prove_meshes.py RAFTER [--minutes M] [--first SEED]: prints each trial that is refused or
fails, and the counts.

A trial trains a small model for 20 steps, on 2, 4 or 8 ranks and in one process. In f32, losses agree
within 1e-5 of their value, gradient norms within 1e-4, and the gradients of the first step within 1e-5 of the
tensor's largest one; or the program refuses the mesh with status 2. With --dtype bf16, sums over chips round
differently: losses agree within 2e-2, norms within 5e-2.
"""

import array

import glob
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time

import prove_many  # tools/prove_many.py

AXES = ("data", "fsdp", "tensor", "sequence", "context", "pipeline", "expert")
BOUNDS = {"f32": (1e-5, 1e-4, 1e-5), "bf16": (2e-2, 5e-2, float("inf"))}
# A gradient that is mathematically zero is rounding errors of larger numbers.
SMALL = 1e-3  # of the largest gradient of all: differences of smaller tensors count relative to this
STEPS = 20
PATIENCE = 240  # seconds of a run: more ranks than cores


def random_model(rng):
    family = rng.choice(["gpt", "gpt", "llama", "llama", "gemma3", "mixtral"])
    heads, head_dim, seq = rng.choice([2, 4, 8]), rng.choice([8, 16]), rng.choice([16, 32, 64])
    words = {
        "layers": rng.randint(1, 6),
        "width": heads * head_dim,
        "heads": heads,
        "ff": rng.choice([32, 64, 96, 120]),
        "vocab": rng.choice([256, 257, 304]),
        "seq": seq,
        "tied": rng.choice(["true", "false"]),
    }
    if family != "gpt":
        words["kv_heads"] = rng.choice([k for k in (1, 2, 4, 8) if heads % k == 0])
    if family == "mixtral":
        words |= {"experts": rng.choice([2, 4]), "experts_used": 2}
    return family + ":" + ",".join(f"{k}={v}" for k, v in words.items()), family, words["layers"]


def random_mesh(rng, ranks, family, layers):
    """Factors of `ranks` on random axes."""
    mesh = {}
    while ranks > 1:
        factor = rng.choice([f for f in (2, 4, 8) if ranks % f == 0])
        axis = rng.choice([a for a in AXES if family == "mixtral" or a != "expert"])
        if axis == "pipeline" and mesh.get(axis, 1) * factor > layers:
            continue
        mesh[axis] = mesh.get(axis, 1) * factor
        ranks //= factor
    return mesh


def random_settings(rng, mesh, layers):
    """Options of both runs, and options of the mesh only."""
    stages = mesh.get("pipeline", 1)
    accumulate = stages * rng.choice([1, 2]) if stages > 1 else rng.choice([1, 1, 2])
    copies = mesh.get("data", 1) * mesh.get("fsdp", 1) * mesh.get("expert", 1)
    words = ["--batch", accumulate * copies * rng.choice([1, 2]), "--accumulate", accumulate]
    words += ["--clip", rng.choice([0, 1]), "--dropout", rng.choice([0, 0, 0.1])]
    words += ["--dtype", rng.choice(["f32"] * 4 + ["bf16"]), "--seed", rng.randint(0, 1000)]
    words += ["--remat", rng.choice(["none", "none", "block", "mlp", "attn"])]
    more = []
    if rng.random() < 0.2:
        words += ["--lora", "rank=4"]
    if mesh.get("data", 1) > 1 and mesh.get("fsdp", 1) == 1 and rng.random() < 0.4:
        more += ["--zero", rng.choice([1, 2])]
    if mesh.get("expert", 1) > 1:
        more += ["--capacity", 8]  # no expert drops rows
    if stages > 1:
        more += ["--pipeline", rng.choice(["1f1b", "gpipe"] + ["interleaved:2"] * (2 * stages <= layers))]
    return words, more


def trial(seed):
    """Model, ranks, mesh and options of a trial."""
    rng = random.Random(seed)
    model, family, layers = random_model(rng)
    ranks = rng.choice([2, 2, 4, 4, 8])
    mesh = random_mesh(rng, ranks, family, layers)
    words, more = random_settings(rng, mesh, layers)
    return model, ranks, ",".join(f"{a}={n}" for a, n in mesh.items()), words, more


def run(words, folder):
    return subprocess.run(
        [str(w) for w in words],
        cwd=folder,
        env=prove_many.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def steps(folder):
    with open(f"{folder}/metrics.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [(row["loss"], row["grad_norm"]) for row in rows if "step" in row and "loss" in row]


def first_gradients(folder):
    """The first moments after one step, which are the clipped gradients times 1 - beta1, by name."""
    folder, found = f"{folder}/checkpoint-00000001", {}
    for path in sorted(glob.glob(f"{folder}/optimizer*.safetensors")):
        with open(path, "rb") as file:
            data = file.read()
        (size,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name.startswith("m/"):
                begin, end = (8 + size + at for at in entry["data_offsets"])
                found[name] = array.array("f", data[begin:end])
    return found


def gradient_difference(one, many):
    a, b = first_gradients(one), first_gradients(many)
    if a.keys() != b.keys() or not a:
        return float("inf")
    largest = {name: max(map(abs, values)) for name, values in a.items()}
    small = SMALL * max(largest.values())
    off = {name: max(abs(x - y) for x, y in zip(a[name], b[name])) for name in a}
    return max(off[name] / max(largest[name], small, 1e-30) for name in a)


def compare(one, many, dtype):
    """The largest relative differences of losses, norms and gradients; whether they are in bounds."""
    a, b = steps(one), steps(many)
    if len(a) != len(b) or not a:
        return [0, 0, 0], False
    off = [max(abs(x[i] - y[i]) / max(abs(x[i]), 1e-6) for x, y in zip(a, b)) for i in (0, 1)]
    off.append(gradient_difference(one + "-first", many + "-first") if dtype == "f32" else 0)
    return off, all(o <= bound for o, bound in zip(off, BOUNDS[dtype]))


def attempt(rafter, launcher, seed, folder):
    """Runs a trial. Returns its result ("equal", "refused" or "failed"), a text that repeats it, and the
    differences."""
    model, ranks, mesh, words, more = trial(seed)
    data = ["--data", "random:seed=1", "--lr", "1e-3", "--val-every", 0, "--threads", 1]
    alone = [rafter, "train", model, *words, *data]
    meshed = [launcher, "-n", ranks, *alone, *more, "--mesh", mesh]
    said = f"seed {seed}: {' '.join(map(str, meshed))} --steps {STEPS}"
    try:
        for steps_of, name in ((1, "-first"), (STEPS, "")):
            for words_of, run_name in ((meshed, "many"), (alone, "one")):
                done = run([*words_of, "--steps", steps_of, "--out", run_name + name], folder)
                if done.returncode == 2 and words_of is meshed and "rafter: " in done.stderr:
                    return "refused", said + "\n" + done.stderr.strip()[:300], None
                if done.returncode:
                    text = done.stderr.strip()[-600:]
                    return "failed", f"{said}\n{run_name}: status {done.returncode}: {text}", None
    except subprocess.TimeoutExpired:
        return "failed", said + f"\nno end within {PATIENCE} s", None
    off, fine = compare(f"{folder}/one", f"{folder}/many", words[words.index("--dtype") + 1])
    more = f"{said}\nloss differs by {off[0]:.1e}, gradient norm by {off[1]:.1e}, gradients by {off[2]:.1e}"
    return ("equal" if fine else "failed"), more, off


def meshes(rafter, seconds, first=0, say=print):
    """Trials until the time is over. Returns the counts. Raises RuntimeError if a trial failed."""
    launchers = sorted(prove_many.launchers(rafter).values())
    if not launchers:
        raise RuntimeError("no launcher of MPI with its library: ./dev setup --mpi && ./dev build")
    counts, failures, axes, most = {"equal": 0, "refused": 0, "failed": 0}, [], {}, [0, 0, 0]
    until, seed = time.monotonic() + seconds, first
    while time.monotonic() < until:
        with tempfile.TemporaryDirectory() as folder:
            result, said, off = attempt(rafter, launchers[seed % len(launchers)], seed, folder)
        counts[result] += 1
        if result == "equal":
            if "bf16" not in trial(seed)[3]:
                most = list(map(max, most, off))
            for part in trial(seed)[2].split(","):
                axes[part] = axes.get(part, 0) + 1
        else:
            say(f"{result}: {said}", flush=True)
        if result == "failed":
            failures.append(seed)
        seed += 1
    if failures:
        raise RuntimeError(f"{len(failures)} trials failed: seeds {failures}")
    counts["largest_differences"] = dict(zip(("loss", "grad_norm", "gradients"), most))
    return counts | {"equal_by_axis": dict(sorted(axes.items())), "first_seed": first, "trials": seed - first}


def value(words, name, default):
    return float(words[words.index(name) + 1]) if name in words else default


def main():
    words = sys.argv[1:]
    minutes, first = value(words, "--minutes", 5), int(value(words, "--first", 0))
    print(json.dumps(meshes(os.path.abspath(words[0]), 60 * minutes, first)), flush=True)


if __name__ == "__main__":
    main()
