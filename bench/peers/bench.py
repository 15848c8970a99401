#!/usr/bin/env python3
"""./dev bench --peers [--only REGEX] [--without REGEX] [--rounds N] [--limit SECONDS] [--threads N] [--list]
                        [--cpu avx2] [--long]

Compares rafter with other programs in one run. rows.json has the rows: rafter's command, each peer's script,
and the target ("bar"). A row is measured in rounds: rafter, each peer, rafter, each peer, and so on, with
rafter last. Every rafter process first measures this machine's ceilings, so there are ceilings before, between
and after. A peer's process stays open and repeats its work on request. A row ends early after --limit seconds
(240). A missing peer is reported and is not a failure.

--cpu avx2 measures rows_avx2.json: rafter with --cpu avx2, and peers held to AVX2 by a build of
their own (llama.cpp) or by their settings (HELD below). The plan uses the times of
`rafter calibrate --cpu avx2`. ONNX Runtime has no such setting: it runs on a CPU without more.
On such a CPU, all peers run with their own defaults.

--long measures rows_long.json instead: long prompts and long caches. It combines with --cpu.

Writes bench/results/DATE-CPU.json, .md and .svg (gnuplot). Rows that are not measured again stay. The ratio is
rafter's tokens per second divided by the peer's.
"""
import argparse
import datetime
import json
import os
import re
import selectors
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
RAFTER = os.environ.get("RAFTER", os.path.join(ROOT, "build", "rafter"))
PLACE = os.environ.get("RAFTER_PEERS", os.path.expanduser("~/.cache/rafter-peers"))
PYTHON = os.path.join(PLACE, "bin", "python3")
MODELS = os.environ.get("RAFTER_MODELS", os.path.expanduser("~/.cache/rafter-models"))
PACKAGES = {"torch_step.py": "torch", "jax_step.py": "jax", "llama_speed.py": "llama", "hf_speed.py": "hf", "lora_step.py": "hf", "score_step.py": "hf"}
FILES = {"gemma3-270m": f"{MODELS}/gemma3-270m-q4_k_m.gguf", "smollm2-135m": f"{MODELS}/smollm2-135m-instruct-q4_1.gguf"}
# Names of the ceilings that rafter bench measures.
CEILINGS = {"f32": ("f32 FMA", "GFLOP/s"), "bf16_vectors": ("bf16 in vectors", "GFLOP/s"), "bf16_tiles": ("bf16 in tiles", "GFLOP/s"),
            "i8_vectors": ("int8 in vectors", "GOP/s"), "i8_tiles": ("int8 in tiles", "GOP/s"), "read": ("read", "GB/s")}
# Settings that hold the peers to an instruction set, on a CPU that has more.
HELD = {
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "CT2_FORCE_CPU_ISA": "AVX2",
        "LLAMA_CPP_LIB_PATH": f"{PLACE}/llama-avx2",
    }
}
# Module and folders of an engine; engine_models.py makes the folders.
ENGINES = {
    "ov": ("openvino_genai", ["ov-int4", "ov-int8"]),
    "ct2": ("ctranslate2", ["ct2-int8"]),
    "ort": ("onnxruntime_genai", ["ort-int4", "ort-int8"]),
}
# With a C library that returns freed pages, eager PyTorch and XLA spend a third of their time on
# page faults.
KEEP_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=8589934592:glibc.malloc.trim_threshold=17179869184"}


class Missing(Exception):
    """The reason that a row or peer is not measured."""


class NotHeld(Missing):
    """A peer that cannot be held to --cpu. The bar is judged without it."""


def file_of(name):
    """Path of a model's file. The 1.1B files are made at their first use."""
    if name in FILES:
        if not os.path.exists(FILES[name]):
            raise Missing(f"{FILES[name]} is not there (./dev models)")
        return FILES[name]
    path = f"{PLACE}/{name}.gguf"
    if not os.path.exists(path):
        os.makedirs(PLACE, exist_ok=True)
        base, kind = name.rsplit("-", 1)
        command = [sys.executable, f"{HERE}/gguf.py", path + ".part"] if kind == "bf16" else [RAFTER, "quantize", file_of(f"{base}-bf16"), path + ".part.gguf", "--weights", kind]
        made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if made.returncode:
            raise Missing(f"{name} could not be made: {last_line(made.stdout)}")
        os.replace(path + (".part" if kind == "bf16" else ".part.gguf"), path)
    return path


def engine_folder(model, engine):
    """Folder of a model that engine_models.py converts for an engine, at its first use."""
    folder = f"{PLACE}/engines/{model}"
    if not all(os.path.exists(f"{folder}/{name}") for name in ENGINES[engine][1]):
        file = file_of(model if model in FILES else f"{model}-bf16")
        command = [PYTHON, f"{HERE}/engine_models.py", RAFTER, file, folder, engine]
        made = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if made.returncode:
            raise Missing(f"{model} could not be converted: {last_line(made.stdout)}")
    return folder


def words_of(words):
    return [file_of(w[1:-1]) if w.startswith("{") else w for w in words]


def last_line(text):
    return (text.strip().splitlines() or ["no output"])[-1]


class Peer:
    """A peer's script, which waits for the number of repetitions of its work."""

    def __init__(self, words, threads, deadline, cpu=None):
        script, held = words[0], HELD[cpu] if wider_than(cpu) else {}
        engine = words[words.index("--engine") + 1] if script == "engine_speed.py" else None
        package = engine or PACKAGES[script]
        modules = {"torch": "torch", "jax": "jax", "llama": "llama_cpp", "hf": "peft"}
        module = ENGINES[engine][0] if engine else modules[package]
        if not os.path.exists(PYTHON) or subprocess.run([PYTHON, "-c", f"import importlib.util as u, sys; sys.exit(u.find_spec('{module}') is None)"], check=False).returncode:
            raise Missing(f"{module} is not in {PLACE} (bench/peers/environment.sh {package})")
        if package == "llama" and held and not os.path.exists(held["LLAMA_CPP_LIB_PATH"]):
            raise Missing(f"no llama.cpp for {cpu} (bench/peers/environment.sh llama-{cpu})")
        if package == "ort" and held:
            raise NotHeld(f"has no setting that holds it to {cpu}, and this CPU has more")
        if engine:
            at = words.index("--model") + 1
            words = [*words[:at], engine_folder(words[at], engine), *words[at + 1:]]
        self.said = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([PYTHON, f"{HERE}/{script}", *words_of(words[1:]), "--threads", str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, text=True,
                                        env={**os.environ, **KEEP_PAGES, **held})
        self.about = self.answer(deadline)

    def answer(self, deadline):
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while True:
                if not selector.select(max(0, deadline - time.monotonic())):
                    self.end()
                    raise Missing("the row's time was over")
                line = self.process.stdout.readline()
                if not line:
                    self.process.wait()
                    self.said.seek(0)
                    how = f"by signal {-self.process.returncode}" if self.process.returncode < 0 else last_line(self.said.read())
                    raise Missing(f"its script ended: {how}")
                if line.startswith("{"):
                    return json.loads(line)

    def repeat(self, times, deadline):
        try:
            self.process.stdin.write(f"{times}\n")
            self.process.stdin.flush()
        except BrokenPipeError:  # it ended while it waited; answer() reports how
            pass
        return self.answer(deadline)

    def end(self):
        self.process.kill()
        self.process.stdout.close()
        self.process.wait()


def ours_once(words, reps, threads):
    """A rafter process: it measures ceilings, then the row."""
    command = [RAFTER, "bench", *words, "--reps", str(reps), "--threads", str(threads), "--json", "--quiet"]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if run.returncode:
        raise Missing(f"{' '.join(command)}: {last_line(run.stderr)}")
    rows = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return rows[0], rows[-1]


def our_memory(words, threads, tokens):
    """Peak resident bytes of `rafter train`, or of `rafter score` with this number of tokens, because `rafter bench` keeps a large buffer for its ceilings."""
    kept = [w for i, w in enumerate(words) if w != "--test" and words[i - 1] != "--test"]
    score = words[words.index("--test") + 1].startswith("score")
    length, texts = (1024, tokens // 1024) if score else (int(kept[kept.index("--seq") + 1]) + 1, 64)
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/text.jsonl", "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"tokens": [(7 * i + k * k) % 200 for k in range(length)]}) + "\n" for i in range(texts))
        work = ["score", *kept, "--input", "text.jsonl", "--output", "scored.jsonl"] if score else ["train", *kept, "--data", "text.jsonl", "--steps", "2"]
        command = [RAFTER, *work, "--threads", str(threads), "--out", "run", "--quiet"]
        with open(f"{folder}/said", "w+", encoding="utf-8") as said:
            child = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = status
            said.seek(0)
            return (used.ru_maxrss * 1024, None) if status == 0 else (None, last_line(said.read()))


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def about_of(peer):
    """What a result says about a peer: version; for an engine also its setting and KL."""
    return {k: peer.about[k] for k in ("version", "setting", "kl") if k in peer.about}


def measure(row, rounds, threads, limit, without, cpu=None):
    start = time.monotonic()
    deadline, record, peers = start + limit, {"name": row["name"], "work": row["work"], "bar": row["bar"], "missing": {}}, {}
    try:
        words = words_of(row["ours"]) + (["--cpu", cpu] if cpu else [])
        for name, script in row["peers"].items():
            try:
                if without and re.search(without, name):
                    raise Missing("left out")
                peers[name] = Peer(script, threads, deadline, cpu)
            except Missing as reason:
                record["missing"][name] = str(reason)
                if isinstance(reason, NotHeld):
                    record.setdefault("not_held", []).append(name)
        ceilings, mine, last, theirs, memory = [], [], None, {name: [] for name in peers}, {}
        for turn in range(rounds + 1):
            each = row["reps"] if turn < rounds else 1
            first, last = ours_once(words, each, threads)
            # of all bursts, including those between repetitions
            ceilings.append({**first["peaks"], **last["rates"]})
            mine += last["samples"]
            if turn == rounds or time.monotonic() > deadline:
                break
            for name in list(peers):
                try:
                    said = peers[name].repeat(row["reps"], deadline)
                    theirs[name] += said["seconds"]
                    memory[name] = said["peak_rss_bytes"]
                except Missing as reason:
                    record["missing"][name] = str(reason)
                    del peers[name]
        ceiling = {k: spread([c[k] for c in ceilings]) for k in ceilings[0]}
        rates = [row["tokens"] / s for s in mine]
        # Work divided by the ceiling is fraction x rate x seconds of a process, whatever ceiling
        # the process measured.
        fractions = {k: f * last["rates"][k] * last["seconds"]["median"] / statistics.median(mine) / ceiling[k]["median"] for k, f in last["fractions"].items()}
        own = max((k for k in fractions if last["rates"][k] == last["limit_rate"]), default="f32")
        used = row.get("ceiling", own)
        record.update(ours=spread(rates), samples={"rafter": mine, **theirs}, ceilings=ceiling, ceiling=used if used in fractions else own, fractions=fractions,
                      fraction=fractions[used if used in fractions else own], planned=row["tokens"] / last["predicted_seconds"])
        record["fraction_causal"] = record["fraction"] * last["limit_fraction_causal"] / last["limit_fraction"]
        if used not in fractions:
            record["missing"]["ceiling"] = f"{CEILINGS[used][0]}: not of this CPU"
        record["plan_error"] = record["planned"] / record["ours"]["median"] - 1
        record["peers"] = {name: {**spread([row["tokens"] / s for s in seconds]), **(about_of(peers[name]) if name in peers else {"version": ""}), "peak_rss_bytes": memory.get(name),
                                  "ratio": record["ours"]["median"] / statistics.median([row["tokens"] / s for s in seconds])} for name, seconds in theirs.items() if seconds}
        if {"memory", "growth"} & row["bar"].keys():
            for peer in peers.values():
                peer.end()
            record["peak_rss_bytes"], why = our_memory(words, threads, row["tokens"])
            if "growth" in row["bar"] and not why:
                twice, why = our_memory(words, threads, 2 * row["tokens"])
                record["growth"] = None if why else twice / record["peak_rss_bytes"]
            if why:
                record["missing"]["memory"] = why
    except Missing as reason:
        record["missing"]["rafter"] = str(reason)
    finally:
        for peer in peers.values():
            peer.end()
    record["seconds"], record["met"] = round(time.monotonic() - start, 1), met(record)
    return record


def met(record):
    """Whether every condition of the bar holds; None: some could not be measured."""
    peers, answers = record.get("peers", {}), []
    # a peer that did not run could be the best
    not_held = set(record.get("not_held", []))
    gone = set(record.get("missing", {})) - {"memory", "rafter", "ceiling"} - set(peers)
    all_ran = not gone - not_held
    for what, bar in record["bar"].items():
        if what in not_held:
            continue
        if what == "best":
            held = [p["ratio"] >= bar for p in peers.values()]
            answers.append(False if False in held else True if held and all_ran else None)
        elif what == "ceiling":
            answers.append(record["fraction"] >= bar if "fraction" in record and "ceiling" not in record["missing"] else None)
        elif what == "growth":
            answers.append(record["growth"] <= bar if record.get("growth") else None)
        elif what == "memory":
            bytes_of = [p["peak_rss_bytes"] for p in peers.values() if p["peak_rss_bytes"]]
            held = [record["peak_rss_bytes"] <= bar * b for b in bytes_of if record.get("peak_rss_bytes")]
            answers.append(False if False in held else True if held and all_ran else None)
        else:
            answers.append(peers[what]["ratio"] >= bar if what in peers else None)
    return False if False in answers else None if None in answers else True


def bar_text(bar):
    name = {"best": "best peer", "memory": "memory", "growth": "memory with twice the tokens"}
    return ", ".join(f"{'<=' if k in ('memory', 'growth') else '>='} {v:g} x {name.get(k, k)}" if k != "ceiling" else f">= {100 * v:.0f} %" for k, v in bar.items())


def number(x):
    return f"{x:.1f}" if x < 100 else f"{x:.0f}"


def kl_text(peer):
    """The setting of an engine, and the mean KL of its outputs to the exact ones."""
    if "setting" not in peer:
        return ""
    kl = peer["kl"]
    said = f"KL {kl['mean']:.1e}" if "mean" in kl else f"no KL: {kl['missing']}"
    return f" ({peer['setting']}; {said})"


def ceilings_text(r):
    """The row's own ceiling, then other ceilings of the same products (tiles and vectors)."""
    named, causal = r["ceiling"], f" ({100 * r['fraction_causal']:.0f})" if abs(r["fraction_causal"] / r["fraction"] - 1) > 0.005 else ""
    others = [k for k in r.get("fractions", {}) if k != named and k.split("_")[0] == named.split("_")[0]]
    shown = []
    for k in [named, *others]:
        fraction, (name, unit) = r["fraction"] if k == named else r["fractions"][k], CEILINGS.get(k, (k, ""))
        shown.append(f"{100 * fraction:.0f}{causal if k == named else ''} of {name} {1e-9 * r['ceilings'][k]['median']:.0f} {unit}".rstrip())
    return ", ".join(shown)


def table(result):
    lines = [f"# {result['cpu']}, {result['date']}", "",
             f"The runs had {result['threads']} threads and the instruction set {result['isa']}. Every rate is the median",
             "[minimum..maximum] of n repetitions, in tokens per second. The processes took turns. A ceiling is the",
             "highest rate of the machine. It is measured in short bursts in the same run, and each row has the",
             "median of its bursts. The column *planned* has the rate that `rafter plan` predicts from the",
             "calibration of this machine. The number in brackets after *% of ceiling* counts only the attention",
             "scores that the causal mask allows.", "",
             "| work | rafter | % of ceiling (causal) | planned | peers: rate, ratio | bar | met |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for r in result["rows"]:
        if "ours" not in r:
            lines.append(f"| {r['work']} | {'; '.join(r['missing'].values())} | | | | {bar_text(r['bar'])} | |")
            continue
        o = r["ours"]
        peers = "<br>".join([f"{name} {p['version']}: {number(p['median'])} [{number(p['min'])}..{number(p['max'])}] {p['n']}, **{p['ratio']:.2f} x**{kl_text(p)}" for name, p in r["peers"].items()] +
                            [f"{name}: {why}" for name, why in r["missing"].items()])
        memory = f"<br>{r['peak_rss_bytes'] / 1e9:.2f} GB" if r.get("peak_rss_bytes") else ""
        if r.get("growth"):
            memory += f", {r['growth']:.3f} x with twice the tokens"
        if memory:
            peers += "<br>" + ", ".join(f"{name} {p['peak_rss_bytes'] / 1e9:.2f} GB" for name, p in r["peers"].items())
        lines.append(f"| {r['work']} | {number(o['median'])} [{number(o['min'])}..{number(o['max'])}] {o['n']}{memory} | {ceilings_text(r)} | "
                     f"{number(r['planned'])} ({100 * r['plan_error']:+.0f} %) | {peers} | {bar_text(r['bar'])} | {'yes' if r['met'] else '' if r['met'] is None else 'no'} |")
    errors = [abs(r["plan_error"]) for r in result["rows"] if "plan_error" in r]
    if errors:
        lines += ["", f"The planned rates have a median error of {100 * statistics.median(errors):.1f} % and a largest error of {100 * max(errors):.1f} %, over {len(errors)} rows."]
    return "\n".join(lines) + "\n"


def draw(result, path):
    """Draws the ratio to the best peer next to its bar, one pair per row."""
    if not shutil.which("gnuplot"):
        return print("no picture: gnuplot is not there (./dev setup)")
    rows = [(r["name"], min(p["ratio"] for p in r["peers"].values()), max([v for k, v in r["bar"].items() if k not in ("memory", "growth", "ceiling")] or [0])) for r in result["rows"] if r.get("peers")]
    if not rows:
        return None
    script = [f"set terminal svg size 960,{120 + 26 * len(rows)} dynamic font 'sans,11' background '#ffffff'", f"set output '{path}'", "set border 3 lc rgb '#444444'", "set tics nomirror out",
              "set grid x lc rgb '#dddddd'", "set style fill solid 0.9", "set key outside top center horizontal", "set lmargin 34", "set xlabel 'tokens a second over the best peer of the same run'",
              f"set yrange [{len(rows) - 0.4}:-0.6]", "set xrange [0:*]", "set ytics (" + ", ".join(f"'{name}' {i}" for i, (name, _, _) in enumerate(rows)) + ")", "$rows << END"]
    script += [f"{i} {ratio} {bar or 'NaN'}" for i, (_, ratio, bar) in enumerate(rows)]
    script += ["END", "set arrow 1 from 1,graph 0 to 1,graph 1 nohead lc rgb '#444444' dt 2",
               "plot $rows using (0.5*$2):1:(0.5*$2):(0.32) with boxxyerror lc rgb '#4477aa' title 'rafter', $rows using 3:1 with points pt 2 lw 2 lc rgb '#cc3311' title 'bar'"]
    drawn = subprocess.run(["gnuplot"], input="\n".join(script), stderr=subprocess.PIPE, text=True, check=False)
    if drawn.returncode:
        print(f"no picture: {last_line(drawn.stderr)}")
    return None


def cpu_name():
    said = open("/proc/cpuinfo", encoding="utf-8").read()
    name = re.search(r"model name\s*:\s*(.*)", said)
    flags = re.search(r"flags\s*:\s*(.*)", said)
    name = re.sub(r"\((R|TM)\)|CPU|@.*", "", name.group(1) if name else os.uname().machine)
    wide = [w for w in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile") if flags and w in flags.group(1).split()]
    return " ".join(name.split()), wide


def wider_than(cpu):
    """Whether this CPU has instructions for these peers beyond `cpu` (avx2, or None: not held)."""
    if not cpu:
        return False
    flags = re.search(r"flags\s*:\s*(.*)", open("/proc/cpuinfo", encoding="utf-8").read())
    return bool(flags and {"avx2": {"avx512f", "avx_vnni"}}[cpu] & set(flags.group(1).split()))


def isa_of(cpu):
    """The level of rafter's kernels. Says so if the plan has no times of this level."""
    command = [RAFTER, "doctor", "--json"]
    said = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False
    )
    doctor = json.loads(said.stdout)
    file = doctor["calibration"]
    if cpu and doctor["isa"] != cpu:
        file = f"{file.removesuffix('.json')}.{cpu}.json"
    if cpu and not os.path.exists(file):
        print(f"not calibrated at {cpu}: plans use times of another level (`rafter calibrate --cpu {cpu}`)")
    return cpu or doctor.get("isa", "")


def commit_of(root):
    """The measured commit, with "-dirty" if source files have uncommitted changes; results do not count."""
    name = subprocess.run(["git", "-C", root, "describe", "--always", "--exclude=*"], stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
    changed = subprocess.run(["git", "-C", root, "diff", "--quiet", "HEAD", "--", ".", ":(exclude)bench/results"], check=False).returncode
    return name + ("-dirty" if changed else "")


def save(result, base):
    with open(base + ".json.part", "w", encoding="utf-8") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    os.replace(base + ".json.part", base + ".json")
    with open(base + ".md", "w", encoding="utf-8") as f:
        f.write(table(result))
    draw(result, base + ".svg")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", default="", metavar="REGEX", help="rows whose name it finds")
    p.add_argument("--without", default="", metavar="REGEX", help="peers that are left out")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--limit", type=float, default=240, metavar="SECONDS", help="of a row, beyond what making a model file takes")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--out", default=os.path.join(ROOT, "bench", "results"), metavar="FOLDER")
    p.add_argument("--rows", metavar="FILE", help="another table")
    p.add_argument("--cpu", choices=list(HELD), help="hold rafter and its peers to this level")
    p.add_argument("--long", action="store_true", help="long prompts and long caches")
    p.add_argument("--list", action="store_true", help="print the rows and measure nothing")
    a = p.parse_args()
    table_name = "rows_long" if a.long else f"rows_{a.cpu}" if a.cpu else "rows"
    with open(a.rows or f"{HERE}/{table_name}.json", encoding="utf-8") as f:
        everything = json.load(f)
    rows, order = [r for r in everything if re.search(a.only, r["name"])], [r["name"] for r in everything]
    if a.list:
        return print("\n".join(f"{r['name']:36} {bar_text(r['bar'])}" for r in rows))
    cpu, wide = cpu_name()
    date = datetime.date.today().isoformat()
    os.makedirs(a.out, exist_ok=True)
    level = f"held to {a.cpu}" if wider_than(a.cpu) else wide[-1] if wide else ""
    level += " long" if a.long else ""
    base = f"{a.out}/{date}-{re.sub(r'[^a-z0-9]+', '-', (cpu + ' ' + level).lower()).strip('-')}"
    result = {"format": "rafter-peers-1", "date": date, "cpu": cpu, "features": wide, "threads": a.threads, "rows": []}
    if os.path.exists(base + ".json"):
        with open(base + ".json", encoding="utf-8") as f:
            result["rows"] = json.load(f)["rows"]
    result["isa"] = isa_of(a.cpu)
    commit = commit_of(ROOT)
    for row in rows:
        print(f"{row['name']} ...", flush=True)
        record = {**measure(row, a.rounds, a.threads, a.limit, a.without, a.cpu), "commit": commit}
        result["rows"] = sorted([r for r in result["rows"] if r["name"] != row["name"] and r["name"] in order] + [record], key=lambda r: order.index(r["name"]))
        save(result, base)
        if "ours" in record:
            print(f"  rafter {number(record['ours']['median'])} tok/s, {100 * record['fraction']:.1f} % of {CEILINGS[record['ceiling']][0]}, planned {100 * record['plan_error']:+.1f} %")
        for name, peer in record.get("peers", {}).items():
            print(f"  {name} {number(peer['median'])} tok/s, ratio {peer['ratio']:.2f}{kl_text(peer)}")
        for name, why in record["missing"].items():
            print(f"  {name}: {why}")
        print(f"  bar {bar_text(record['bar'])}: {'met' if record['met'] else 'not measured whole' if record['met'] is None else 'not met'}; {record['seconds']} s", flush=True)
    return print(f"written to {os.path.relpath(base)}.json, .md, .svg")


if __name__ == "__main__":
    main()
