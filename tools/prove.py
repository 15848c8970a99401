#!/usr/bin/env python3
"""./dev prove [PIECE ...] [--hours H | --minutes M] [--runs] [--again]: runs proofs that take hours.
Without a piece, all of them run.

  resume  runs killed at random moments end with the bits of uninterrupted runs
  soak    random models: the arena is the planned one, threads and recomputation change no bit, and memory does not
          grow; then one long run
  fuzz    every fuzz target, with a corpus that grows from run to run; with --runs, the targets for downloaded files,
          for a fixed number of inputs each, however long that takes
  bench   ./dev bench, with its figures kept
  xla     compiled programs through a PJRT plugin for CPUs (./dev setup --xla, or RAFTER_PJRT_PLUGIN):
          every op in all sizes, steps and goldens of the model families, devices in meshes, collectives
          left out, real models
  serve   the client of OpenAI's API passes tools/serve_clients.py with a real model (./dev models smollm2).
          guidellm and inference-perf load the server without an error (about 7 GB of packages from PyPI;
          if one cannot be installed, it is skipped by name).
          A soak of 20 minutes at a full KV cache, with clients that leave and send nonsense, loses no answer.
          For 20 minutes, tokens of the Azure trace's running answers fill 68 % of the cache or more
  rl      SmolLM2 135M learns to add by GRPO: its held-out success rate rises by 30 points in 30 minutes,
          for three seeds (./dev models smollm2)
  many    ranks of MPI (./dev setup --mpi) that are killed at 20 random moments: no hang, and the continued
          run has the bits of one that was not killed; on another mesh, its losses within rounding.
          For 10 minutes, random models on random meshes of 2, 4 and 8 ranks train as in one process
  bare    a new Debian made by debootstrap, with only git and ca-certificates, runs ./dev demo and
          ./dev check (needs root). It has terminals and a name for localhost

--hours or --minutes limits resume, soak, fuzz and serve, each (default 1 hour). A stopped piece continues
if the commit is the same (fuzz --runs: if a target and its reader are the same). --again starts from the
beginning. Each piece writes docs/proof/DATE-PIECE.json with the commit, the machine, its work, and
its result.
"""
import datetime
import glob
import hashlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import bench as benches  # tools/bench.py
import prove_load  # tools/prove_load.py
import prove_many  # tools/prove_many.py
import prove_meshes  # tools/prove_meshes.py
import prove_rl  # tools/prove_rl.py
import prove_serve  # tools/prove_serve.py

RAFTER = os.path.abspath("build/rafter")
STATE = "build/prove"
OUTSIDE_LIMIT_BYTES = 64 << 20
MESH_SECONDS = 600  # of random models on random meshes


class Failure(Exception):
    """A proof failed; the text says how to repeat the failure."""


def output(*words, **more):
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, **more).stdout.strip()


def commit():
    return output("git", "describe", "--always", "--dirty", "--exclude=*")


def machine():
    cpu = re.search(r"model name\s*:\s*(.*)", open("/proc/cpuinfo", encoding="utf-8").read())
    memory = int(re.search(r"MemTotal:\s*(\d+)", open("/proc/meminfo", encoding="utf-8").read()).group(1)) * 1024
    return {"cpu": cpu.group(1) if cpu else os.uname().machine, "cores": os.cpu_count(), "memory_bytes": memory, "kernel": os.uname().release}


def digest_of(paths):
    """A hash of these files in git, with a mark if they have uncommitted changes."""
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", *paths], check=False).returncode
    return hashlib.sha256(output("git", "ls-files", "-s", "--", *paths).encode()).hexdigest()[:16] + (" and changes" if changed else "")


class Piece:
    """The trials of a piece so far at this commit, saved after every trial (`by_target`: at any commit; each target knows its sources)."""

    def __init__(self, name, again, by_target=False):
        self.name, self.path = name, f"{STATE}/{name}.json"
        self.data = {"commit": commit(), "seconds": 0.0, "trials": 0}
        if not again and os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as f:
                kept = json.load(f)
            if by_target or (kept.get("commit") == self.data["commit"] and not kept.get("done")):
                self.data = {**kept, "commit": self.data["commit"]}
                self.data.pop("done", None), self.data.pop("failure", None)
                print(f"{name}: going on after {kept['trials']} trials and {kept['seconds']:.0f} s")

    def save(self):
        os.makedirs(STATE, exist_ok=True)
        with open(self.path + ".part", "w", encoding="utf-8") as f:
            json.dump(self.data, f)
        os.replace(self.path + ".part", self.path)

    def trials(self, hours):
        """Numbers of the remaining trials within the hours; each is counted and timed when the loop asks for the next one."""
        while self.data["seconds"] < hours * 3600:
            start = time.monotonic()
            yield self.data["trials"]
            self.data["seconds"] += time.monotonic() - start
            self.data["trials"] += 1
            self.save()

    def finish(self, passed):
        record = {"piece": self.name, "date": datetime.date.today().isoformat(), "passed": passed, "machine": machine()}
        record.update(self.data)
        os.makedirs("docs/proof", exist_ok=True)
        path = f"docs/proof/{record['date']}-{self.name}.json"
        with open(path, "w", encoding="utf-8") as f:
            json.dump(record, f, indent=1)
            f.write("\n")
        self.data["done"] = True
        self.save()
        print(f"{self.name}: {'held' if passed else 'DID NOT HOLD'}; {path}", flush=True)


def rafter(*words, **more):
    done = subprocess.run([RAFTER, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, **more)
    if done.returncode:
        raise Failure(f"rafter {' '.join(map(str, words))} exits {done.returncode}: {done.stderr}")
    return done.stdout


def write_text(path):
    """Repeatable text that looks like English."""
    words, rng = "the of and to in that he shall unto for I his a they be is with not all thou them".split(), random.Random(1)
    with open(path, "w", encoding="utf-8") as f:
        for _ in range(20000):
            f.write(rng.choice(words) + rng.choice(" . ,  \n  "))


def random_job(rng):
    """A random model and settings of a training job, from all options that change the program."""
    heads, head_dim = rng.choice([1, 2, 3, 4]), rng.choice([8, 16, 24, 32, 64])
    seq, accumulate = rng.choice([16, 33, 64, 96, 128]), rng.choice([1, 1, 2, 3])
    width = heads * head_dim
    model = (f"gpt:layers={rng.randint(1, 4)},width={width},heads={heads},ff={rng.choice([width, 2 * width, 4 * width])},vocab={rng.choice([256, 257, 300, 1000])},"
             f"seq={seq},tied={rng.choice(['true', 'false'])},mlp_first={rng.choice(['true', 'false'])}")
    settings = ["--batch", accumulate * rng.randint(1, 5), "--accumulate", accumulate, "--seq", seq, "--dtype", rng.choice(["f32", "bf16"]), "--dropout", rng.choice([0, 0.1]),
                "--clip", rng.choice([0, 1]), "--optimizer", rng.choice(["adamw", "adam"]), "--seed", rng.randint(0, 1 << 30)]
    return model, settings


def losses(folder):
    """Step lines of a run without values that depend on the clock, and its first line."""
    with open(f"{folder}/metrics.jsonl", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    keep = ("step", "loss", "grad_norm", "lr", "accuracy", "tokens", "val_loss")
    return [tuple(row.get(k) for k in keep) for row in rows if "step" in row], rows[0]


def resident_bytes(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return int(re.search(r"VmRSS:\s*(\d+)", f.read()).group(1)) * 1024


# ---- pieces --------------------------------------------------------------------------------------------------------


def resume(piece, hours):
    kills = piece.data.setdefault("signals", {"SIGKILL": 0, "SIGTERM": 0, "SIGINT": 0})
    for trial in piece.trials(hours):
        rng = random.Random(trial)
        model, settings = random_job(rng)
        steps = rng.randint(20, 80)
        with tempfile.TemporaryDirectory() as folder:
            write_text(f"{folder}/text.txt")
            words = [model, *settings, "--data", "text.txt", "--steps", steps, "--save-every", rng.randint(1, 6), "--val-every", 7]
            start = time.monotonic()
            rafter("train", *words, "--out", "whole", cwd=folder)
            took = time.monotonic() - start
            last = f"checkpoint-{steps:08d}"
            for _ in range(200):
                resumable = any(os.path.exists(f"{folder}/cut/{d}/DONE") for d in (os.listdir(f"{folder}/cut") if os.path.isdir(f"{folder}/cut") else ()))
                command = ["train", "--resume", "cut", "--threads", str(rng.randint(1, 3))] if resumable else ["train", *map(str, words), "--out", "cut"]
                if not resumable:
                    shutil.rmtree(f"{folder}/cut", ignore_errors=True)
                run = subprocess.Popen([RAFTER, *command], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                kind = rng.choice(list(kills))
                try:
                    error = run.communicate(timeout=rng.uniform(0.05, 0.6) * took)[1]
                    if run.returncode:
                        raise Failure(f"trial {trial}: rafter {' '.join(command)} exits {run.returncode}: {error}")
                    break
                except subprocess.TimeoutExpired:
                    run.send_signal(getattr(signal, kind))
                    run.communicate()
                    kills[kind] += 1
                    if run.returncode not in (-signal.SIGKILL, 130, 0):
                        raise Failure(f"trial {trial}: {kind} ended a run with {run.returncode}") from None
            for name in ("model.safetensors", "optimizer.safetensors"):
                paths = [f"{folder}/{run_name}/{last}/{name}" for run_name in ("whole", "cut")]
                if open(paths[0], "rb").read() != open(paths[1], "rb").read():
                    raise Failure(f"trial {trial}: {name} of the interrupted run differs: train {' '.join(map(str, words))}")
            if losses(f"{folder}/whole")[0] != losses(f"{folder}/cut")[0]:
                raise Failure(f"trial {trial}: metrics of the interrupted run differ: train {' '.join(map(str, words))}")


def soak_trial(trial):
    rng = random.Random(10_000_000 + trial)
    model, settings = random_job(rng)
    with tempfile.TemporaryDirectory() as folder:
        write_text(f"{folder}/text.txt")
        words = [model, *settings, "--data", "text.txt", "--steps", 4]
        seen = None
        for n, remat in enumerate(["none", rng.choice(["mlp", "attn", "mlp+attn", "block"])]):
            threads = rng.randint(1, 3)
            choice = [*words, "--remat", remat, "--threads", threads]
            planned = json.loads(rafter("plan", model, *[w for w in settings if w != "--seed"][:-1], "--remat", remat, "--threads", threads, "--json"))["memory"]["peak_bytes"]
            rafter("train", *choice, "--out", f"run{n}", cwd=folder)
            rows, first = losses(f"{folder}/run{n}")
            if first["arena_bytes"] != planned:
                raise Failure(f"trial {trial}: planned {planned} bytes, allocated {first['arena_bytes']}: train {' '.join(map(str, choice))}")
            outside = first["outside_arena_bytes"]["total"]
            if outside > OUTSIDE_LIMIT_BYTES:
                raise Failure(f"trial {trial}: {outside} bytes outside the arena: train {' '.join(map(str, choice))}")
            if seen and seen != rows:
                raise Failure(f"trial {trial}: other threads or recomputation change the bits: train {' '.join(map(str, choice))}")
            seen = rows


def soak_long(seconds):
    """One run of many steps, during which resident memory must not grow."""
    with tempfile.TemporaryDirectory() as folder:
        write_text(f"{folder}/text.txt")
        run = subprocess.Popen([RAFTER, "train", "gpt:layers=2,width=64,heads=2,ff=256,vocab=256,seq=64", "--data", "text.txt", "--steps", "100000000", "--batch", "4", "--save-every",
                                "5000", "--max-seconds", f"{seconds}", "--out", "long"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        samples = []
        while run.poll() is None:
            time.sleep(min(5, seconds / 20))
            try:
                samples.append(resident_bytes(run.pid))
            except (AttributeError, FileNotFoundError, ProcessLookupError):
                break
        error = run.communicate()[1]
        if run.returncode:
            raise Failure(f"the long run exits {run.returncode}: {error}")
        settled = samples[len(samples) // 10 + 1:-1]
        growth = max(settled) - min(settled)
        if growth > 1 << 20:
            raise Failure(f"the long run's memory moved by {growth} bytes between its first and its last steps")
        rows, _ = losses(f"{folder}/long")
        return {"steps": len(rows), "seconds": seconds, "resident_growth_bytes": growth, "resident_bytes": settled[-1], "first_loss": rows[0][1], "last_loss": rows[-1][1]}


def soak(piece, hours):
    for trial in piece.trials(hours / 2):
        soak_trial(trial)
    piece.data["long_run"] = soak_long(max(20, hours * 1800))
    piece.data["seconds"] += piece.data["long_run"]["seconds"]


MILLION = 1_000_000
# Number of inputs of `--runs` for each reader of downloaded files, and the files of src/ (or single
# functions of a file) whose branches the seeds should cover. Targets with few inputs run first. A
# result stays valid as long as the reader's own sources do not change.
FUZZ_RUNS = {
    "fuzz_tokenizer_json": (MILLION, ["text/tokenizer_json.c", "text/tokenizer_json_steps.c"]),
    "fuzz_tokenizer_model": (MILLION, ["text/tokenizer_sentencepiece.c", "text/tokenizer_llama2c.c"]),
    "fuzz_template": (MILLION, ["text/template_lex.c", "text/template_expression.c", "text/template_parse.c", "text/template_render.c", "text/template_eval.c",
                                "text/template_filters.c", "text/template_methods.c"]),
    "fuzz_serve": (MILLION, ["serve/ask.c", "serve/ask_fields.c", "serve/ask_prompt.c"]),
    "fuzz_gguf": (10 * MILLION, ["formats/gguf.c", "formats/gguf_values.c", "formats/gguf_facts.c", "formats/gguf_vocab.c"]),
    "fuzz_safetensors": (10 * MILLION, ["formats/safetensors.c:read_header", "formats/safetensors.c:read_entry", "formats/safetensors.c:check_places", "formats/safetensors.c:by_place"]),
}
FUZZ_INPUT_BYTES = 4096
FUZZ_ROOMS = {  # prefixes of the source paths that a target executes
    "fuzz_tokenizer_json": ["text/tokenizer"],
    "fuzz_tokenizer_model": ["text/tokenizer"],
    "fuzz_template": ["text/template", "text/chat"],
    "fuzz_serve": ["serve/ask", "serve/body", "serve/wrong"],
    "fuzz_gguf": ["formats/gguf", "formats/llama2c", "formats/quant"],
    "fuzz_safetensors": ["formats/safetensors", "formats/quant"],
}


def fuzz_sources(name):
    return ["src/base/json.c", "src/base/text.c", "src/base/error.c", "src/base/memory.c", "tests/fuzz/fuzz_file.h", f"tests/fuzz/{name}.c", *seeds_of(name),
            *(f"src/{room}*" for room in FUZZ_ROOMS[name])]


def seeds_of(name):
    return [s for s in [f"tests/fuzz/seeds/{name}"] if os.path.isdir(s)]


FUZZ_SECONDS = 20


def was_paused(name, said):
    """Whether a timeout was caused by a busy machine: libFuzzer uses the wall clock. Alone, the input needs less CPU time."""
    kept = re.search(r"Test unit written to (\S*-timeout-\S+)", said)
    if not kept:
        return False
    bound = ["prlimit", f"--cpu={FUZZ_SECONDS}", f"build/asan/{name}", kept.group(1), "-timeout=0"]
    if subprocess.run(bound, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode:
        return False
    print(f"  {name}: an input ran out of time by the clock alone, as when the machine sleeps; going on", flush=True)
    os.remove(kept.group(1))
    return True


def fuzz_once(name, *bounds):
    """Runs a target up to one of the bounds and returns its counts. The corpus grows next to the build."""
    corpus = f"build/asan/corpus/{name}"
    os.makedirs(corpus, exist_ok=True)
    start = time.monotonic()
    run = subprocess.run([f"build/asan/{name}", *bounds, f"-timeout={FUZZ_SECONDS}", "-rss_limit_mb=3000", f"-artifact_prefix=build/asan/{name}-", corpus, *seeds_of(name)],
                         env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    if run.returncode and was_paused(name, run.stdout):
        return max(map(int, re.findall(r"^#(\d+)\t", run.stdout, re.M)), default=0), round(time.monotonic() - start), max([0, *map(int, re.findall(r"cov: (\d+)", run.stdout))])
    if run.returncode:
        raise Failure(f"{name} found an input that fails; it is kept as build/asan/{name}-*\n{run.stdout[-3000:]}")
    runs, seconds = re.search(r"Done (\d+) runs in (\d+) second", run.stdout).groups()
    return int(runs), int(seconds), max([0, *map(int, re.findall(r"cov: (\d+)", run.stdout))])


def add_fuzzed(so_far, runs, seconds, coverage, name):
    so_far["runs"] += runs
    so_far["seconds"] += seconds
    so_far["coverage"] = max(so_far.get("coverage", 0), coverage)
    so_far["corpus"] = len(os.listdir(f"build/asan/corpus/{name}"))


def fuzz_by_hours(piece, hours):
    subprocess.run(["./dev", "build", "--asan", "fuzzers"], check=True)
    targets = sorted(n for n in os.listdir("build/asan") if n.startswith("fuzz_") and os.access(f"build/asan/{n}", os.X_OK) and os.path.isfile(f"build/asan/{n}"))
    done = piece.data.setdefault("targets", {})
    slice_seconds = max(10, min(300, int(hours * 3600 / len(targets))))
    for trial in piece.trials(hours):
        name = targets[trial % len(targets)]
        so_far = done.setdefault(name, {"runs": 0, "seconds": 0})
        add_fuzzed(so_far, *fuzz_once(name, f"-max_total_time={slice_seconds}"), name)
        print(f"  {name}: {so_far}", flush=True)


def is_one_of(function, files):
    place = function["filenames"][0].split("/src/")[-1]
    return place in files or f"{place}:{function['name'].split(':')[-1]}" in files


def seed_coverage(piece):
    """Branches of the readers that the committed seeds reach."""
    if not shutil.which("llvm-cov-19"):
        print("  llvm-cov-19 is not here: the seeds' coverage is not measured")
        return
    subprocess.run(["./dev", "build", "--coverage", *FUZZ_RUNS], check=True)
    for name, (_, files) in FUZZ_RUNS.items():
        raw, merged = f"{STATE}/{name}.profraw", f"{STATE}/{name}.profdata"
        subprocess.run([f"build/coverage/{name}", "-runs=0", *seeds_of(name)], env={**os.environ, "LLVM_PROFILE_FILE": raw}, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        subprocess.run(["llvm-profdata-19", "merge", "-o", merged, raw], check=True)
        told = json.loads(output("llvm-cov-19", "export", f"-instr-profile={merged}", f"build/coverage/{name}"))
        # A branch is [line, column, line, column, times taken, times not taken, ...]. Each of the
        # two ways counts once for all copies of a function.
        ways = {}
        for function in filter(lambda f: is_one_of(f, files), told["data"][0]["functions"]):
            for branch in function["branches"]:
                for way in (4, 5):
                    place = (function["filenames"][0], *branch[:2], way)
                    ways[place] = ways.get(place, 0) + branch[way]
        covered, count = sum(times > 0 for times in ways.values()), len(ways)
        piece.data["targets"][name]["seed_branches"] = {"files": files, "covered": covered, "of": count, "percent": round(100 * covered / count, 1)}
        print(f"  {name}: its seeds reach {covered} of {count} branches ({100 * covered / count:.1f} %)", flush=True)


def fuzz_by_runs(piece):
    subprocess.run(["./dev", "build", "--asan", *FUZZ_RUNS], check=True)
    done = piece.data.setdefault("targets", {})
    piece.data["input_bytes_at_most"] = FUZZ_INPUT_BYTES
    for name, (goal, _) in FUZZ_RUNS.items():
        sources = digest_of(fuzz_sources(name))
        if done.get(name, {}).get("sources") != sources:
            done[name] = {"goal": goal, "runs": 0, "seconds": 0, "sources": sources}
        so_far = done[name]
        while so_far["runs"] < goal:
            runs, seconds, coverage = fuzz_once(name, f"-runs={goal - so_far['runs']}", "-max_total_time=300", f"-max_len={FUZZ_INPUT_BYTES}")
            add_fuzzed(so_far, runs, seconds, coverage, name)
            piece.data["trials"] += 1
            piece.data["seconds"] = sum(of["seconds"] for of in done.values())
            piece.save()
            print(f"  {name}: {so_far}", flush=True)
    seed_coverage(piece)


def fuzz(piece, hours):
    if hours is None:
        fuzz_by_runs(piece)
    else:
        fuzz_by_hours(piece, hours)


def bench(piece, _):
    if subprocess.run(["./dev", "bench", "--save"], check=False).returncode:
        raise Failure("./dev bench failed")
    piece.data["trials"] += 1


XLA_TESTS = (
    ("every op, all sizes", "backend_xla_ops"),
    ("steps of the families", "backend_xla_step"),
    ("meshes, and collectives left out", "backend_xla_mesh"),
    ("goldens of training", "train_golden"),
    ("goldens of generation", "generate_golden"),
    ("faults of plugins", "backend_xla_client"),
    ("the cache of programs", "backend_xla_cache"),
    ("steps that run ahead", "backend_xla_flights"),
)


def xla_scores(plugin, file):
    """The largest difference of log-probabilities between both backends, over a text of 6,000 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        text = f"{folder}/text.txt"
        write_text(text)
        os.truncate(text, 6000)
        words = ["score", file, "--input", text, "--seq", 256, "--stride", 128, "--dtype", "f32", "--json"]
        a, b = (
            json.loads(rafter(*words, *more))["logprobs"]
            for more in ([], ["--backend", "xla", "--plugin", plugin])
        )
    if len(a) != len(b) or len(a) < 200:
        raise Failure(f"{file}: {len(a)} and {len(b)} log-probabilities")
    return len(a), max(abs(x - y) for x, y in zip(a, b) if x is not None and y is not None)


def keep_figures(piece, name, start, **more):
    """Saves the figures of a finished part, so that a stopped piece continues with the next part."""
    seconds = round(time.monotonic() - start)
    piece.data["figures"][name] = {"seconds": seconds, **more}
    piece.data["seconds"] += seconds
    piece.data["trials"] += 1
    piece.save()


def xla(piece, _):
    plugin = benches.xla_plugin()
    env = {**os.environ, "RAFTER_PJRT_PLUGIN": plugin, "RAFTER_XLA_ALL": "1"}
    digest = hashlib.sha256(open(plugin, "rb").read()).hexdigest()
    if piece.data.get("plugin") != digest:
        piece.data.update(plugin=digest, figures={}, trials=0, seconds=0)
    figures = piece.data["figures"]  # of this run and of the stopped run that it continues
    with open("tests/e2e/test_xla.sh", encoding="utf-8") as f:
        cases = re.findall(r"^case_(\w+)\(\)", f.read(), re.M)
    runs = [(name, [f"build/test_{test}"]) for name, test in XLA_TESTS] + [
        (f"commands: {case}", ["bash", "tests/e2e/test_xla.sh", case]) for case in cases
    ]
    for name, words in runs:
        if name in figures:
            continue
        start = time.monotonic()
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, check=False
        )
        if done.returncode or re.search(r"^skip:|SKIPPED . (test_|xla_agrees)", done.stdout, re.M):
            raise Failure(f"{name} ({' '.join(words)}): status {done.returncode}\n{done.stdout[-3000:]}")
        said = [
            line.strip() for line in done.stdout.splitlines() if re.search(r"differ|largest|noticed", line)
        ]
        keep_figures(piece, name, start, said=said)
        print(f"{name}: {figures[name]['seconds']} s; {'; '.join(said)[:200]}", flush=True)
    models = os.environ.get("RAFTER_MODELS") or os.path.expanduser("~/.cache/rafter-models")
    files = sorted(glob.glob(f"{models}/*.gguf"))
    if not files:
        raise Failure("no *.gguf in the folder of models: run ./dev models")
    for file in files:
        name = os.path.basename(file)
        if name in figures:
            continue
        start = time.monotonic()
        count, worst = xla_scores(plugin, file)
        print(f"{name}: {count} log-probabilities, largest difference {worst:.1e}", flush=True)
        if worst > 1e-3:
            raise Failure(f"{file}: a log-probability differs by {worst}")
        keep_figures(piece, name, start, positions=count, largest_difference=worst)


def mirror():
    """The mirror from which this machine's apt gets bookworm."""
    for line in output("apt-get", "indextargets", "--format", "$(CODENAME) $(LABEL) $(REPO_URI)", "Created-By: Packages").splitlines():
        name, label, address = line.split(" ", 2)
        if name == "bookworm" and label == "Debian":
            return address
    return "http://deb.debian.org/debian/"


# Mounts that belong to one command in the tree {there} and disappear when the command ends. Tests
# need terminals (devpts), shared memory, and a root that is a mount (for mounts of their own).
MOUNTS = """set -e
mount --bind {there} {there}
mount -t proc proc {there}/proc
mount -t sysfs -o ro sysfs {there}/sys
mount -t devpts -o newinstance,ptmxmode=0666 devpts {there}/dev/pts
ln -sf pts/ptmx {there}/dev/ptmx
mount -t tmpfs -o mode=1777 tmpfs {there}/dev/shm
"""
INSIDE = "HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8"


def bare_tree(there, root):
    """Makes a new Debian in the folder `there`, with this commit in /root/rafter and names of hosts."""
    def do(*words, **more):
        subprocess.run([*root, *words], check=True, **more)

    do("debootstrap", "--variant=minbase", "--include=git,ca-certificates", "bookworm", there, mirror(),
       stdout=subprocess.DEVNULL)
    do("git", "clone", "--quiet", "--no-hardlinks", os.getcwd(), f"{there}/root/rafter")
    if os.path.exists("/etc/resolv.conf"):
        do("cp", "/etc/resolv.conf", f"{there}/etc/resolv.conf")
    # An installed Debian has this file. Browser tests connect to localhost.
    do("tee", f"{there}/etc/hosts", input="127.0.0.1 localhost\n::1 localhost\n", text=True,
       stdout=subprocess.DEVNULL)


def in_bare_tree(there, root, command):
    """Runs the command in /root/rafter of the tree, and returns the process with its output."""
    inside = shlex.quote(f"cd /root/rafter && {command}")
    script = MOUNTS.format(there=there) + f"exec chroot {there} /usr/bin/env -i {INSIDE} bash -c {inside}"
    return subprocess.run([*root, "unshare", "--mount", "bash", "-c", script], check=False, text=True, errors="replace",
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def skipped_tests(lines):
    """The skipped tests that ./dev check names, each with its reason."""
    start = next((i for i, line in enumerate(lines) if line.startswith("Skipped tests")), len(lines))
    return [" ".join(line.split()[1:]) for line in lines[start + 1:-1]]


def bare(piece, _):
    root = [] if os.getuid() == 0 else ["sudo"]
    there = tempfile.mkdtemp(prefix="rafter-bare-")
    steps = piece.data["commands"] = {}
    try:
        start = time.monotonic()
        bare_tree(there, root)
        print(f"  debootstrap took {time.monotonic() - start:.0f} s", flush=True)
        for command in ("./dev demo", "./dev check"):
            start = time.monotonic()
            run = in_bare_tree(there, root, command)
            lines = run.stdout.splitlines()
            skipped = skipped_tests(lines)
            steps[command] = {"seconds": round(time.monotonic() - start), "status": run.returncode, "skipped": skipped,
                              "tail": lines[-60:]}
            with open(f"{STATE}/bare-{command.split()[-1]}.txt", "w", encoding="utf-8") as f:
                f.write(run.stdout)
            print("\n".join(f"  | {line}" for line in lines[-12:]), flush=True)
            print(f"  {command} in a bare Debian: exit status {run.returncode} after {steps[command]['seconds']} s", flush=True)
            piece.data["trials"] += 1
            if run.returncode:
                raise Failure(f"{command} failed in a bare Debian; all it said is in {STATE}")
            lacking = [line for line in skipped if re.search("pseudo-terminal|localhost|chromium|selenium", line)]
            if lacking:
                raise Failure(f"{command} in a bare Debian skipped tests: {'; '.join(lacking)}")
    finally:
        subprocess.run([*root, "rm", "-rf", "--one-file-system", there], check=False)


def small_model():
    """The file of SmolLM2 that ./dev models fetches."""
    models = os.environ.get("RAFTER_MODELS") or os.path.expanduser("~/.cache/rafter-models")
    found = sorted(glob.glob(f"{models}/smollm2*.gguf"))
    if not found:
        raise Failure("no smollm2*.gguf in the folder of models: run ./dev models smollm2")
    return found[0]


def serve(piece, hours):
    model = small_model()
    try:
        piece.data["clients"] = prove_serve.clients(RAFTER, model, f"{STATE}/clients")
        piece.save()
        piece.data["loads"] = prove_load.prove(RAFTER, model, STATE)
        piece.save()
        seconds = max(60, min(1200, hours * 3600))
        piece.data["soak"] = prove_serve.soak(RAFTER, seconds)
        piece.save()
        piece.data["trace"] = prove_serve.replay(RAFTER, seconds)
    except (RuntimeError, subprocess.SubprocessError) as error:
        raise Failure(str(error)) from error
    piece.data["trials"] += 4
    print(json.dumps({k: piece.data[k] for k in ("clients", "loads", "soak", "trace")}))


def rl(piece, hours):
    del hours  # the seeds and steps are fixed
    model = small_model()
    try:
        piece.data["runs"] = prove_rl.prove(RAFTER, model, f"{STATE}/rl")
    except RuntimeError as error:
        raise Failure(str(error)) from error
    piece.data["trials"] += len(piece.data["runs"])


def many(piece, hours):
    del hours  # the number of killed runs is fixed
    kept = piece.data.setdefault("killed", [])
    piece.data["mpi"] = sorted(prove_many.launchers(RAFTER))
    try:
        for record in prove_many.prove(RAFTER, f"{STATE}/many", write_text, len(kept)):
            kept.append(record)
            piece.data["trials"] = len(kept)
            piece.save()
        piece.data["meshes"] = prove_meshes.meshes(RAFTER, MESH_SECONDS, say=lambda *_, **__: None)
    except (RuntimeError, subprocess.SubprocessError) as error:
        raise Failure(str(error)) from error


PIECES = {
    "resume": resume,
    "soak": soak,
    "fuzz": fuzz,
    "bench": bench,
    "xla": xla,
    "serve": serve,
    "rl": rl,
    "many": many,
    "bare": bare,
}


def main():
    words = sys.argv[1:]
    if "--help" in words or "-h" in words:
        sys.exit(print(__doc__))
    hours, again = 1.0, "--again" in words
    for unit, each in (("--hours", 1), ("--minutes", 60)):
        if unit in words:
            at = words.index(unit)
            hours = float(words[at + 1]) / each
            del words[at:at + 2]
    by_runs = "--runs" in words
    names = [w for w in words if not w.startswith("-")] or list(PIECES)
    if by_runs and names != ["fuzz"]:
        sys.exit("prove: --runs goes with fuzz alone")
    for name in names:
        if name not in PIECES:
            sys.exit(f"prove: unknown piece {name} (expected {', '.join(PIECES)})")
    if names != ["fuzz"]:
        subprocess.run(["./dev", "build"], check=True)
    os.makedirs(STATE, exist_ok=True)
    failed = 0
    for name in names:
        print(f"\n== {name}", flush=True)
        piece = Piece("fuzz-runs", again, by_target=True) if by_runs else Piece(name, again)
        start = time.monotonic()
        try:
            PIECES[name](piece, None if by_runs else hours)
            piece.data["seconds"] = piece.data["seconds"] or round(time.monotonic() - start)
            piece.finish(True)
        except Failure as failure:
            failed += 1
            piece.data["failure"] = str(failure)
            print(f"{name}: {failure}", file=sys.stderr)
            piece.finish(False)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
