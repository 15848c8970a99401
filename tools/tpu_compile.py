#!/usr/bin/env python3
"""Compiles the programs of plans with the TPU compiler, on a machine without a TPU.

  tools/tpu_compile.py LIBTPU OUT.json [--only TEXT] [--again] [--memory] [--table]

LIBTPU is the file libtpu.so of the package libtpu. Each job of JOBS runs `rafter plan ... --compile
LIBTPU --json`. OUT.json gets the compiler's figures next to those of the plan. Jobs with a result in
OUT.json are skipped, so a stopped script continues; --again replaces these results. --only runs the
jobs whose name contains TEXT. --table compiles nothing and prints OUT.json as tables. Compiling all
jobs takes hours on two cores. --memory stops a training or scoring program when the compiler has
placed its buffers, and takes the total from the compiler's own report ("Total bytes"). Then no machine
code is written, and no FLOPs are counted.
"""

import glob
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

RAFTER = os.environ.get("RAFTER", os.path.abspath("build/rafter"))
JAX = ("data/tpu-aot.json", "data/tpu-aot-more.json")
GIB = 1 << 30

UVA = "uva --on tpu-v5e:1 --seq 512 --dropout 0.1 --optimizer adam --clip 0"
SMALL = (
    "uva:seq=128,vocab=2048,layers={},width={},ff={},heads={} "
    "--on tpu-v5e:1 --seq 128 --batch 32 --dtype bf16 --dropout 0 --optimizer adam --clip 0"
)
GEMMA = "gemma3-1b --on tpu-v5e:1 --dtype bf16"
DROPOUT = "b64_T512_drop0.1"

# Name, words of `rafter plan`, the JAX program with the same setting (a row of JAX), and for steps of the UvA
# tutorial the published memory on a GPU in GiB.
JOBS = [
    (
        "uva bf16 remat none, 4 microbatches",
        f"{UVA} --dtype bf16 --batch 64 --accumulate 4",
        f"uva/v5e:1x1/bf16/none/unroll/acc4/{DROPOUT}",
        8.8,
    ),
    (
        "uva bf16 remat mlp+attn, 4 microbatches",
        f"{UVA} --dtype bf16 --batch 64 --accumulate 4 --remat mlp+attn",
        f"uva/v5e:1x1/bf16/mlp+attn/scan/acc4/{DROPOUT}",
        3.9,
    ),
    (
        "uva bf16 remat block, 4 microbatches",
        f"{UVA} --dtype bf16 --batch 64 --accumulate 4 --remat block",
        f"uva/v5e:1x1/bf16/block/scan/acc4/{DROPOUT}",
        3.8,
    ),
    (
        "uva bf16 remat mlp+attn, 1 microbatch",
        f"{UVA} --dtype bf16 --batch 64 --remat mlp+attn",
        f"uva/v5e:1x1/bf16/mlp+attn/scan/acc1/{DROPOUT}",
        6.2,
    ),
    (
        "uva bf16 remat mlp+attn, batch 256",
        f"{UVA} --dtype bf16 --batch 256 --remat mlp+attn",
        "uva/v5e:1x1/bf16/mlp+attn/scan/acc1/b256_T512_drop0.1",
        15,
    ),
    (
        "uva f32 remat none, 4 microbatches",
        f"{UVA} --dtype f32 --batch 64 --accumulate 4",
        f"uva/v5e:1x1/f32/none/scan/acc4/{DROPOUT}",
        20.6,
    ),
    (
        "uva bf16 remat block, 1 microbatch",
        f"{UVA} --dtype bf16 --batch 64 --remat block",
        f"uva/v5e:1x1/bf16/block/scan/acc1/{DROPOUT}",
        None,
    ),
    (
        "uva bf16 remat block, 16 microbatches",
        f"{UVA} --dtype bf16 --batch 64 --accumulate 16 --remat block",
        f"uva/v5e:1x1/bf16/block/scan/acc16/{DROPOUT}",
        None,
    ),
    (
        "uva bf16 remat none, 16 microbatches",
        f"{UVA} --dtype bf16 --batch 64 --accumulate 16",
        f"uva/v5e:1x1/bf16/none/scan/acc16/{DROPOUT}",
        None,
    ),
    (
        "uva bf16 remat block, batch 256, 4 microbatches",
        f"{UVA} --dtype bf16 --batch 256 --accumulate 4 --remat block",
        "uva/v5e:1x1/bf16/block/scan/acc4/b256_T512_drop0.1",
        None,
    ),
    (
        "uva f32 remat block, 1 microbatch",
        f"{UVA} --dtype f32 --batch 64 --remat block",
        f"uva/v5e:1x1/f32/block/scan/acc1/{DROPOUT}",
        None,
    ),
    (
        "uva f32 remat mlp+attn, 16 microbatches",
        f"{UVA} --dtype f32 --batch 64 --accumulate 16 --remat mlp+attn",
        f"uva/v5e:1x1/f32/mlp+attn/scan/acc16/{DROPOUT}",
        None,
    ),
    *(
        (
            f"uva of {layers} layers, {width} wide",
            SMALL.format(layers, width, 4 * width, heads),
            f"uva/v5e:1x1/bf16/none/scan/acc1/b32_T128_drop0.0_L{layers}_D{width}_F{4 * width}_H{heads}",
            None,
        )
        for layers, width, heads in ((2, 256, 2), (6, 512, 4), (12, 768, 6))
    ),
    ("gpt2 bf16", "gpt2 --on tpu-v5e:1 --batch 4 --seq 256 --dtype bf16", None, None),
    ("gpt2 f32", "gpt2 --on tpu-v5e:1 --batch 4 --seq 256 --dtype f32", None, None),
    *(
        (
            f"gemma3-1b score top 128, batch {batch}",
            f"{GEMMA} --job score --top 128 --batch {batch} --seq 1024",
            (
                f"gemma/v5e:1x1/fwd/chunk_topk/B{batch}_T1024"
                if batch in (4, 8, 16, 24, 28, 32, 64)
                else None
            ),
            None,
        )
        for batch in (1, 4, 8, 16, 32, 64)
    ),
    *(
        (
            f"gemma3-1b decode, batch {batch}",
            f"{GEMMA} --job generate --batch {batch} --seq 1024",
            (
                f"gemma/v5e:1x1/decode/greedy/bf16/B{batch}_S1024"
                if batch in (1, 16, 60, 64, 120, 128, 132, 192)
                else None
            ),
            None,
        )
        for batch in (1, 16, 32, 64, 68, 128, 132, 256)
    ),
    ("gemma3-1b LoRA", f"{GEMMA} --lora rank=16 --batch 4 --seq 1024 --remat block", None, None),
    (
        "llama3-8b fsdp=8",
        "llama3-8b --on tpu-v5e:2x4 --mesh fsdp=8 --dtype bf16 --batch 8 --seq 1024 --remat block",
        None,
        None,
    ),
    (
        "llama3-8b LoRA fsdp=8",
        "llama3-8b --on tpu-v5e:2x4 --mesh fsdp=8 --dtype bf16 --batch 8 --seq 1024 --remat block"
        " --lora rank=16",
        None,
        None,
    ),
    (
        "gemma-7b int8 tensor=8",
        "gemma-7b --on tpu-v5e:2x4 --mesh tensor=8 --job generate --weights int8 --dtype bf16"
        " --batch 64 --seq 2048",
        None,
        None,
    ),
    (
        "llama3.2-1b v5p:2x2x1",
        "llama3.2-1b --on tpu-v5p:2x2x1 --mesh fsdp=4 --dtype bf16 --batch 4 --seq 1024 --remat block",
        None,
        None,
    ),
    (
        "llama3.2-1b v6e:2x2",
        "llama3.2-1b --on tpu-v6e:2x2 --mesh fsdp=2,tensor=2 --dtype bf16 --batch 4 --seq 1024 --remat block",
        None,
        None,
    ),
    (
        "llama3.2-1b tpu7x:1x1x1",
        "llama3.2-1b --on tpu-v7x:1 --dtype bf16 --batch 4 --seq 1024 --remat block",
        None,
        None,
    ),
    (
        "gpt2 v5e:4x4",
        "gpt2 --on tpu-v5e:4x4 --mesh data=16 --dtype bf16 --batch 64 --seq 256",
        None,
        None,
    ),
]


def jax_rows():
    rows = {}
    for path in JAX:
        with open(path, encoding="utf-8") as f:
            rows.update((row["id"], row) for row in json.load(f)["rows"])
    return rows


def jax_bytes(row):
    """What must fit, or None if the program did not."""
    return row["arg"] + row["out"] - row["alias"] + row["temp"] if row["fits"] else None


def compile_job(job, plugin):
    name, words, jax, published = job
    start = time.monotonic()
    run = subprocess.run(
        [RAFTER, "plan", *words.split(), "--compile", plugin, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    result = {
        "name": name,
        "command": f"rafter plan {words}",
        "jax": jax,
        "published_gib": published,
        "seconds": round(time.monotonic() - start, 1),
    }
    try:
        plan = json.loads(run.stdout)
        return {**result, **plan["compiled"]}
    except (ValueError, KeyError):
        return {**result, "error": run.stderr.strip().splitlines()[-1:]}


def limit_of(words):
    """Bytes that a program may use on the device of --on, found by bisection with libtpu 0.0.51."""
    limits = {
        "v5e": 16_909_271_040,
        "v5p": 102_786_564_096,
        "v6e": 33_545_977_856,
        "v7x": 101_724_323_840,
    }
    return next(limit for chip, limit in limits.items() if f"tpu-{chip}" in words)


def placed_bytes(folder):
    """The total of the report on placed buffers, or None if the compiler has not written it.

    The program is module 0. Further modules are parts of it that the compiler compiles alone.
    """
    reports = glob.glob(f"{folder}/module_0000.*memory-usage-report.txt")
    if not reports:
        return None
    with open(reports[0], encoding="utf-8") as f:
        found = re.search(r"Total bytes: (\d+)", f.read())
    return int(found.group(1)) if found else None


def place_job(job, plugin):
    """Like compile_job, but ends the compiler when the report is there.

    A program that does not fit has no report.
    """
    name, words, jax, published = job
    plan = [RAFTER, "plan", *words.split()]
    with tempfile.TemporaryDirectory() as folder:
        # as with --compile, this is the plan of the emitted program; exit status 3: it does not fit
        emit = [*plan, "--stablehlo", f"{folder}/programs", "--json"]
        run = subprocess.run(emit, capture_output=True, text=True, check=False)
        planned = json.loads(run.stdout)["memory"]["peak_bytes"]
        start = time.monotonic()
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        with subprocess.Popen(
            [*plan, "--compile", plugin, "--json"],
            env={**os.environ, "XLA_FLAGS": flags},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as run:
            while run.poll() is None and placed_bytes(folder) is None:
                time.sleep(0.5)
            total = placed_bytes(folder)
            if total is not None and run.poll() is None:
                os.killpg(run.pid, signal.SIGTERM)
            out, err = run.communicate()
    result = {
        "name": name,
        "command": f"rafter plan {words}",
        "jax": jax,
        "published_gib": published,
        "seconds": round(time.monotonic() - start, 1),
    }
    if total is not None:
        return {
            **result,
            "programs": [
                {
                    "program": "step",
                    "fits": total <= limit_of(words),
                    "planned_bytes": planned,
                    "total_bytes": total,
                    "stopped": "buffers placed",
                }
            ],
        }
    try:
        return {**result, **json.loads(out)["compiled"]}
    except (ValueError, KeyError):
        return {**result, "error": err.strip().splitlines()[-1:]}


def save(path, results):
    with open(path + ".part", "w", encoding="utf-8") as f:
        json.dump({"jobs": results}, f, indent=1)
        f.write("\n")
    os.replace(path + ".part", path)


def gib(size):
    return f"{size / GIB:.2f}"


def row_of(*cells):
    print("| " + " | ".join(map(str, cells)) + " |")


def print_tables(results):
    """All programs next to their plans, then those with a JAX program or a published figure."""
    jax, errors, ratios = jax_rows(), [], []
    row_of("job", "program", "compiler, GiB", "plan, GiB", "plan - compiler")
    row_of(*["---"] * 5)
    for job in results:
        for program in job.get("programs", []):
            if not program["fits"]:
                needs = program.get("total_bytes")
                size = f"{gib(needs)}, does not fit" if needs else "does not fit"
                row_of(job["name"], program["program"], size, gib(program["planned_bytes"]), "")
                continue
            off = program["planned_bytes"] / program["total_bytes"] - 1
            errors.append(off)
            sizes = gib(program["total_bytes"]), gib(program["planned_bytes"])
            row_of(job["name"], program["program"], *sizes, f"{100 * off:+.1f} %")
        if "error" in job:
            row_of(job["name"], job["error"], "", "", "")
    print()
    row_of("job", "compiler, GiB", "JAX program, GiB", "ratio", "published, GiB")
    row_of(*["---"] * 5)
    for job in results:
        fitting = [p for p in job.get("programs", []) if p["fits"]]
        row = jax.get(job["jax"])
        if not fitting or not (row or job["published_gib"]):
            continue
        ours, theirs = fitting[-1]["total_bytes"], jax_bytes(row) if row else None
        ratios += [ours / theirs] if theirs else []
        ratio = f"{ours / theirs:.3f}" if theirs else ""
        of_jax = gib(theirs) if theirs else "does not fit" if row else ""
        row_of(job["name"], gib(ours), of_jax, ratio, job["published_gib"] or "")
    if errors:
        print(
            f"\nplan within 10 %: {sum(abs(e) <= 0.1 for e in errors)} of {len(errors)}; "
            f"lowest {100 * min(errors):+.1f} %, highest {100 * max(errors):+.1f} %"
        )
    if ratios:
        print(
            f"to JAX: median {statistics.median(ratios):.3f}, highest {max(ratios):.3f}, of {len(ratios)}"
        )


def main():
    words = sys.argv[1:]
    if len([w for w in words if not w.startswith("--")]) < 2 or "--help" in words:
        sys.exit(print(__doc__))
    plugin, path = words[0], words[1]
    only = words[words.index("--only") + 1] if "--only" in words else ""
    results = []
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            results = json.load(f)["jobs"]
    for job in [] if "--table" in words else JOBS:
        found = next((r for r in results if r["name"] == job[0]), None)
        if only not in job[0] or (found and "--again" not in words):
            continue
        alone = "--memory" in words and "--job generate" not in job[1]
        result = place_job(job, plugin) if alone else compile_job(job, plugin)
        print(f"{job[0]}: {result.get('error') or result['programs']}", flush=True)
        results = [r for r in results if r["name"] != job[0]] + [result]
        save(path, results)
    order = {job[0]: i for i, job in enumerate(JOBS)}
    print_tables(sorted(results, key=lambda r: order.get(r["name"], len(order))))


if __name__ == "__main__":
    main()
