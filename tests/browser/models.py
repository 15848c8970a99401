"""Report models without a run: real plans of the program with invented traces, as large as a test needs."""
import array
import base64
import gzip
import itertools
import json
import operator
import os
import random
import subprocess
import sys

RAFTER = os.environ.get("RAFTER", "build/rafter")
TINY = "gpt:layers=2,width=32,heads=2,ff=64,vocab=256,seq=32"
KINDS = ["op", "busy", "wait", "phase", "step", "counter", "lost", "gap", "predicted"]
PHASES = ["data", "forward", "recompute", "backward", "accumulate", "optimizer", "sample", "checkpoint"]
GAPS = ["launch", "wait", "serial", "page fault", "allocation", "io", "other threads", "unexplained", "stopped"]
LOST = 0.05  # share of the threads' time that is lost inside the bodies of ops
COLUMNS = [("begin", "i64", "q"), ("end", "i64", "q"), ("value", "f64", "d"), ("id", "i32", "i"), ("lane", "u16", "H"), ("kind", "u8", "B"), ("plan", "u8", "B")]


def plan(model=TINY, *options):
    done = subprocess.run([RAFTER, "plan", model, "--batch", "8", "--microbatch", "4", "--threads", "2", "--json", "--ops", "--tensors", *options], check=True,
                          stdout=subprocess.PIPE, env=dict(os.environ, HOME="/nonexistent"))
    return json.loads(done.stdout)


def step_spans(plan, threads, rng, pace=1):
    """Spans of one step as (lane, begin, end, value, id, kind), in ns from its start, and its length. Ops take `pace` times the predicted time."""
    spans, now = [], 2000
    spans.append((threads + 1, 0, 2000, 0, PHASES.index("data"), "phase"))
    ops = plan["ops"]
    micro = [op for op in ops if "/micro/" in op["name"]]
    end = [op for op in ops if "/micro/" not in op["name"]]
    live = 0
    for walk, part in [(0, micro), (1, micro), (0, end)]:
        phase, since = None, now
        for op in part:
            takes = max(400, int(pace * op["seconds"] * 1e9 * rng.uniform(0.8, 2.2)))
            name = "optimizer" if part is end else "backward" if "/bwd" in op["name"] else "forward"
            if name != phase:
                if phase:
                    spans.append((threads + 1, since, now, walk, PHASES.index(phase), "phase"))
                phase, since = name, now
            spans.append((0, now, now + takes, walk, op["id"], "op"))
            for thread in range(threads):
                begins, works = now + (60 if thread else 10), int(takes * rng.uniform(0.75, 0.97))
                spans.append((thread, begins, now + works, 0, op["id"], "busy"))
                # a barrier inside the op, with a page fault inside the barrier
                if works > 1500 and op["op"].startswith("attention"):
                    spans.append((thread, now + 500, now + 900, 0, op["id"], "wait"))
                    spans.append((thread, now + 500, now + 600, 1, GAPS.index("page fault"), "gap"))
                spans.append((thread, now + works, now + takes, 0, GAPS.index("wait"), "gap"))
            live = max(0, live + rng.randint(-3, 4))
            spans.append((threads + 3, now, now, (1 + live) * 4096, 0, "counter"))
            ns = int(op["seconds"] * 1e9)
            spans.append((threads, now, now + ns, 1e9 * op["limit_seconds"], op["id"], "predicted"))
            now += takes + 150
        spans.append((threads + 1, since, now, walk, PHASES.index(phase), "phase"))
    return spans, now


def by_byte(values):
    raw, size = values.tobytes(), values.itemsize
    return b"".join(raw[byte::size] for byte in range(size))


def trace(plan, steps=3, threads=2, seed=1, pace=1):
    """A trace of whole steps that differ only in their start. Spans are sorted by lane, then by start."""
    spans, took = step_spans(plan, threads, random.Random(seed), pace)
    spans.append((threads + 2, 0, took, 0, 0, "step"))
    spans.sort(key=lambda span: (span[0], span[1], -span[2]))
    columns = {name: array.array(code) for name, _, code in COLUMNS}
    for lane in range(threads + 4):
        own = [span for span in spans if span[0] == lane]
        begin, end = [span[1] for span in own], [span[2] for span in own]
        fixed = {"value": array.array("d", [span[3] for span in own]), "id": array.array("i", [span[4] for span in own]),
                 "lane": array.array("H", [lane] * len(own)), "kind": array.array("B", [KINDS.index(span[5]) for span in own]), "plan": array.array("B", [0] * len(own))}
        if lane == threads + 2:
            fixed["value"] = array.array("d")
        for step in range(steps):
            at = step * (took + 3000)
            columns["begin"].extend([time + at for time in begin])
            columns["end"].extend([time + at for time in end])
            if lane == threads + 2:
                columns["value"].append(step)
            for name, values in fixed.items():
                columns[name].extend(values)
    header = {"kinds": KINDS, "phases": PHASES, "gaps": GAPS, "threads": threads, "dropped": 0,
              "counters": [{"name": "live", "unit": "bytes"}],
              "plans": [plan.get("name", "train")], "digests": [plan["digest"]],
              "steps": [{"step": step, "begin": step * (took + 3000), "end": step * (took + 3000) + took, "tokens": 256, "work": 0.8 * took * threads / 1e9,
                         "gaps": [[took * 1e-11 * (9 - gap) for gap in range(9)], [0] * 6 + [LOST * took * threads / 1e9, 0, 0]]} for step in range(steps)]}
    return pack(columns, header)


def pack(columns, header):
    """Packs columns of spans, sorted by lane and begin, as the program does."""
    count = len(columns["begin"])
    columns["end"] = array.array("q", map(operator.sub, columns["end"], columns["begin"]))
    columns["begin"] = array.array("q", map(operator.sub, columns["begin"], itertools.chain([0], columns["begin"])))
    if sys.byteorder == "big":
        for column in columns.values():
            column.byteswap()
    data = b"".join(by_byte(columns[name]) for name, _, _ in COLUMNS)
    codings = {"begin": "difference", "end": "after begin"}
    coded = [{"name": name, "type": kind, "coding": codings.get(name, "bytes")} for name, kind, _ in COLUMNS]
    header = {"count": count, "columns": coded, **header}
    return {"header": header, "columns": base64.b64encode(gzip.compress(data, 1)).decode()}


def model(runs=1, steps=3, threads=2, options=(), pace=1):
    """A report of traced runs, with the op names and numbers of a plan and invented times."""
    entries = []
    for i in range(runs):
        one = plan(TINY, *options)
        entries.append({"id": f"run-{i}", "name": f"run-{i}", "plan": one, "run": {"command": "train", "options": {"batch": 8}}, "metrics": [], "trace": trace(one, steps, threads, i + 1, pace)})
    return {"rafter": "0.1.0", "runs": entries, "sweeps": []}
