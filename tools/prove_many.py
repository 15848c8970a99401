"""prove_many.py - the proof `many`: ranks of MPI that are killed at random moments (see prove.py).

Each trial trains a tiny model on 2 or 4 ranks, with each installed MPI library in turn, and kills one
rank with SIGKILL. The launcher must end by itself. The run then continues on the same mesh, and
must have the bits of a run that was not killed. A copy of it continues on another mesh, or in one
process, and must have its losses within rounding.
"""

import glob
import json
import os
import random
import shutil
import signal
import subprocess
import time

TRIALS, HANG_SECONDS = 20, 90
LOSS, NORM = 1e-5, 1e-4  # rounding on another mesh, in 20 steps
MODEL = "gpt:layers=4,width=192,heads=4,ff=768,vocab=256,seq=64"
STEPS, EVERY = 20, 2
MESHES = {
    2: ["data=2", "fsdp=2", "tensor=2", "context=2"],
    4: ["data=4", "data=2,fsdp=2", "fsdp=2,tensor=2"],
}
OPTIONS = ["--threads", 1, "--batch", 4, "--lr", "1e-3", "--val-every", 0]
OPTIONS += ["--steps", STEPS, "--save-every", EVERY]
RANK_NAMES = (b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")


def launchers(rafter):
    """The launchers whose library was built, by name."""
    names = {"openmpi": "mpirun.openmpi", "mpich": "mpirun.mpich"}
    built = os.path.dirname(rafter)
    return {
        name: shutil.which(command)
        for name, command in names.items()
        if shutil.which(command) and os.path.exists(f"{built}/rafter-mpi-{name}.so")
    }


def environment():
    leave = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    free = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
    return {**os.environ, **leave, **free, "RAFTER_MPI_SECONDS": "30"}


def start(words, folder):
    return subprocess.Popen(
        list(map(str, words)), cwd=folder, env=environment(), stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )


def finish(words, folder):
    run = start(words, folder)
    said = run.communicate(timeout=600)[1]
    if run.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))} exits {run.returncode}: {said[-500:]}")


def process_of(folder, rank):
    """The process of a rank whose working folder is `folder`; None: it has ended."""
    for path in glob.glob("/proc/[0-9]*"):
        try:
            if os.readlink(f"{path}/cwd") != folder:
                continue
            with open(f"{path}/environ", "rb") as f:
                words = f.read().split(b"\0")
        except OSError:
            continue
        if any(name + str(rank).encode() in words for name in RANK_NAMES):
            return int(path.split("/")[2])
    return None


def kill(words, folder, rank, delay):
    """Kills a rank after `delay` seconds. True: it was killed before it had ended."""
    run = start(words, folder)
    time.sleep(delay)
    pid = process_of(folder, rank)
    if pid:
        os.kill(pid, signal.SIGKILL)
    try:
        said = run.communicate(timeout=HANG_SECONDS)[1]
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        raise RuntimeError(f"a hang of {HANG_SECONDS} s after rank {rank} was killed") from None
    if not pid and run.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))} exits {run.returncode}: {said[-500:]}")
    return pid is not None and run.returncode != 0


def steps(run):
    rows = {}
    with open(f"{run}/metrics.jsonl", encoding="utf-8") as f:
        for row in map(json.loads, f):
            if "step" in row:
                rows[row["step"]] = (row["loss"], row["grad_norm"])
    return rows


def last_bytes(run):
    folder = f"{run}/checkpoint-{STEPS:08d}"
    names = sorted(n for n in os.listdir(folder) if n.endswith(".safetensors") or n == "state.json")
    return {name: open(f"{folder}/{name}", "rb").read() for name in names}


def differences(a, b):
    """The largest difference of losses, and of gradient norms."""
    if a.keys() != b.keys():
        raise RuntimeError(f"the runs have other steps: {sorted(a)} and {sorted(b)}")
    return [max(abs(a[s][k] - b[s][k]) for s in a) for k in (0, 1)]


class Runs:
    """Runs that were not killed, one for each mesh and library."""

    def __init__(self, rafter, folder):
        self.rafter, self.folder, self.made, self.seconds = rafter, folder, {}, {}

    def words(self, launcher, ranks, mesh, out):
        train = [self.rafter, "train", MODEL, *OPTIONS, "--data", f"{self.folder}/text.txt", "--out", out]
        return [launcher, "-n", ranks, *train, "--mesh", mesh] if ranks > 1 else train

    def whole(self, name, launcher, ranks, mesh):
        key = f"whole-{name}-{ranks}-{mesh.replace(',', '-').replace('=', '')}"
        if key not in self.made:
            begin = time.monotonic()
            finish(self.words(launcher, ranks, mesh, key), self.folder)
            self.seconds[key] = time.monotonic() - begin
            self.made[key] = f"{self.folder}/{key}"
        return self.made[key], self.seconds[key]


def resumable(run):
    return bool(glob.glob(f"{run}/checkpoint-*/DONE"))


def trial(number, rafter, folder, runs):
    """One killed run. Returns its record."""
    rng = random.Random(number)
    name, launcher = sorted(launchers(rafter).items())[number % len(launchers(rafter))]
    ranks = (2, 4)[number // 2 % 2]
    mesh, rank = rng.choice(MESHES[ranks]), rng.randrange(ranks)
    whole, seconds = runs.whole(name, launcher, ranks, mesh)
    delay = rng.uniform(0.1, 0.95) * seconds
    here = f"{folder}/trial{number}"
    os.makedirs(here)
    killed = kill(runs.words(launcher, ranks, mesh, "run"), here, rank, delay)
    record = {"library": name, "ranks": ranks, "mesh": mesh, "rank": rank}
    record.update(seconds=round(delay, 2), killed=killed)
    if not resumable(f"{here}/run"):  # killed before the first checkpoint: it starts again
        shutil.rmtree(f"{here}/run", ignore_errors=True)
        finish(runs.words(launcher, ranks, mesh, "run"), here)
        record["resumed_at"] = 0
    else:
        newest = sorted(glob.glob(f"{here}/run/checkpoint-*/DONE"))[-1]
        record["resumed_at"] = int(newest.split("checkpoint-")[1].split("/")[0])
        shutil.copytree(f"{here}/run", f"{here}/moved")
        finish([launcher, "-n", ranks, rafter, "train", "--resume", "run"], here)
    if steps(f"{here}/run") != steps(whole) or last_bytes(f"{here}/run") != last_bytes(whole):
        raise RuntimeError(f"trial {number}: the continued run has other bits: {record}")
    if os.path.exists(f"{here}/moved"):
        other = rng.choice(["", *(m for n in MESHES for m in MESHES[n] if m != mesh)])
        count = next((n for n in MESHES if other in MESHES[n]), 1)
        resume = [rafter, "train", "--resume", "moved", "--mesh", other]
        finish([launcher, "-n", count, *resume] if count > 1 else resume, here)
        off = differences(steps(whole), steps(f"{here}/moved"))
        record.update(other_mesh=other or "one process", loss_difference=off[0], norm_difference=off[1])
        if off[0] > LOSS or off[1] > NORM:
            raise RuntimeError(f"trial {number}: the run on another mesh has other losses: {record}")
    shutil.rmtree(here)
    return record


def prove(rafter, folder, write_text, done, trials=TRIALS):
    """Yields the record of each trial that is not done. RuntimeError: a trial failed."""
    if not launchers(rafter):
        raise RuntimeError("no MPI library is there (./dev setup --mpi && ./dev build)")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    write_text(f"{folder}/text.txt")
    runs = Runs(rafter, os.path.realpath(folder))
    for number in range(done, trials):
        record = trial(number, rafter, os.path.realpath(folder), runs)
        print(json.dumps(record), flush=True)
        yield record
