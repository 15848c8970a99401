"""prove_meshes.py - random models on random meshes of MPI ranks train as one process does.

python3 tools/prove_meshes.py RAFTER [--minutes M] [--first SEED]: prints each trial that is refused or
fails, and the counts.

A trial trains a small model for three steps, on 2, 4 or 8 ranks and in one process. Losses agree within 1e-5
of their value and gradient norms within 1e-4 (f32), or the program refuses the mesh with status 2. With
--dtype bf16, sums over chips round differently, so the bounds are 2e-2 and 5e-2.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

AXES = ("data", "fsdp", "tensor", "sequence", "context", "pipeline", "expert")
BOUNDS = {"f32": (1e-5, 1e-4), "bf16": (2e-2, 5e-2)}
PATIENCE = 240  # seconds of a run: more ranks than cores
LAUNCHERS = {"openmpi": ("mpirun.openmpi", "mpirun"), "mpich": ("mpirun.mpich",)}


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


def environment():
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI", "SLURM_"))}
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return env | {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}


def run(words, folder):
    return subprocess.run(
        [str(w) for w in words],
        cwd=folder,
        env=environment(),
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


def compare(one, many, dtype):
    """The largest relative differences of losses and gradient norms, and whether they are in bounds."""
    a, b = steps(one), steps(many)
    if len(a) != len(b) or not a:
        return [0, 0], False
    off = [max(abs(x[i] - y[i]) / max(abs(x[i]), 1e-6) for x, y in zip(a, b)) for i in (0, 1)]
    return off, all(o <= bound for o, bound in zip(off, BOUNDS[dtype]))


def attempt(rafter, launcher, seed, folder):
    """Runs a trial. Returns its result ("equal", "refused" or "failed") and a text that repeats it."""
    model, ranks, mesh, words, more = trial(seed)
    data = ["--data", "random:seed=1", "--steps", 3, "--lr", "1e-3", "--val-every", 0, "--threads", 1]
    base = [rafter, "train", model, *words, *data]
    meshed = [launcher, "-n", ranks, *base, *more, "--mesh", mesh]
    said = f"seed {seed}: {' '.join(map(str, meshed))}"
    try:
        many = run([*meshed, "--out", "many"], folder)
        if many.returncode == 2 and "rafter: " in many.stderr:
            return "refused", said + "\n" + many.stderr.strip()[:300]
        if many.returncode:
            return "failed", f"{said}\nstatus {many.returncode}: {many.stderr.strip()[-600:]}"
        one = run([*base, "--out", "one"], folder)
        if one.returncode:
            return "failed", f"{said}\none process: status {one.returncode}: {one.stderr.strip()[-600:]}"
    except subprocess.TimeoutExpired:
        return "failed", said + f"\nno end within {PATIENCE} s"
    off, fine = compare(f"{folder}/one", f"{folder}/many", words[words.index("--dtype") + 1])
    more = f"{said}\nloss differs by {off[0]:.1e}, gradient norm by {off[1]:.1e}"
    return ("equal" if fine else "failed"), more


def find(library, rafter):
    """The launcher of a library for which the program has a file, or None."""
    shim = f"{os.path.dirname(rafter)}/rafter-mpi-{library}.so"
    found = [shutil.which(name) for name in LAUNCHERS[library]]
    return next((path for path in found if path and os.path.exists(shim)), None)


def meshes(rafter, seconds, first=0, say=print):
    """Trials until the time is over. Returns the counts. Raises RuntimeError if a trial failed."""
    launchers = [path for path in (find(library, rafter) for library in LAUNCHERS) if path]
    if not launchers:
        raise RuntimeError("no launcher of MPI with its library: ./dev setup --mpi && ./dev build")
    counts, failures, axes = {"equal": 0, "refused": 0, "failed": 0}, [], {}
    until, seed = time.monotonic() + seconds, first
    while time.monotonic() < until:
        with tempfile.TemporaryDirectory() as folder:
            result, said = attempt(rafter, launchers[seed % len(launchers)], seed, folder)
        counts[result] += 1
        if result == "equal":
            for part in trial(seed)[2].split(","):
                axes[part] = axes.get(part, 0) + 1
        else:
            say(f"{result}: {said}", flush=True)
        if result == "failed":
            failures.append(seed)
        seed += 1
    if failures:
        raise RuntimeError(f"{len(failures)} trials failed: seeds {failures}")
    return counts | {"equal_by_axis": dict(sorted(axes.items())), "first_seed": first, "trials": seed - first}


def value(words, name, default):
    return float(words[words.index(name) + 1]) if name in words else default


def main():
    words = sys.argv[1:]
    minutes, first = value(words, "--minutes", 5), int(value(words, "--first", 0))
    print(json.dumps(meshes(os.path.abspath(words[0]), 60 * minutes, first)), flush=True)


if __name__ == "__main__":
    main()
