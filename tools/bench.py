#!/usr/bin/env python3
"""./dev bench [kernels|train|decode|predict|predictions|rl|xla|plan|many ...]

Options: [--save] [--on FILE] [--only REGEX] [--turns N]

Measures this machine's speed and prints each figure next to the ceiling of the same run.

  kernels      matrix products, attention, AdamW and the other kernels (bench/*.c)
  train        whole training steps: GPT-2 124M (4 x 256 tokens) and uva (1 x 512), f32 and bf16
  decode       prefill and decode of GPT-2 124M
  predict      predicted against measured step time over 24 shapes of training
  predictions  predicted against measured seconds of the work that bench --peers compares: prompts, answers, many
               answers at once, training, LoRA (runs only if it is named)
  rl           predicted against measured seconds of reinforcement learning (runs only if it is named;
               needs ./dev models)
  xla          steps through a PJRT plugin: rafter's programs and JAX's, in turns (runs only if it is named;
               needs ./dev setup --xla; JAX's programs need bench/peers/environment.sh jax)
  many         ranks of MPI: GPT-2 124M next to one process and PyTorch, and links of limited rates
               (runs only if it is named; needs ./dev setup --mpi; tools/bench_many.py describes its rows)
  plan         seconds of planning: every preset on one chip, --fit on one chip, 405B on thousands of chips (whole
               processes; nothing is calibrated)

The machine is calibrated first. --on FILE takes the calibration in FILE instead (`rafter calibrate --out FILE`).
--only selects rows of predictions and many. --save writes docs/proof/bench-DATE.json.
"""
import datetime
import glob
import importlib.util
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import bench_many
import bench_rl

RAFTER = os.environ.get("RAFTER", "build/rafter")

TRAIN = [("gpt2", 4, 256), ("uva", 1, 512)]

# Shapes of `predict`: layers, width, heads, ff, vocab, seq, batch, accumulate, dtype, remat.
PREDICT = [
    (2, 128, 4, 512, 256, 64, 8, 1, "f32", "none"), (4, 256, 4, 1024, 256, 128, 16, 1, "f32", "none"), (4, 256, 8, 1024, 1000, 256, 4, 1, "bf16", "none"),
    (3, 320, 5, 1280, 4096, 128, 8, 2, "f32", "none"), (2, 384, 6, 1536, 8192, 256, 4, 1, "f32", "mlp"), (2, 384, 6, 1536, 8192, 256, 4, 1, "bf16", "none"),
    (6, 192, 6, 768, 512, 64, 16, 1, "f32", "block"), (2, 512, 8, 2048, 8192, 256, 2, 1, "f32", "none"), (2, 512, 8, 2048, 8192, 256, 2, 2, "bf16", "attn"),
    (2, 512, 4, 2048, 2048, 512, 2, 1, "f32", "none"), (2, 512, 8, 1024, 2048, 1024, 1, 1, "f32", "none"), (1, 768, 12, 3072, 16384, 128, 4, 1, "f32", "none"),
    (2, 768, 12, 3072, 8192, 256, 2, 1, "bf16", "none"), (2, 640, 10, 2560, 1024, 384, 2, 1, "f32", "mlp+attn"), (1, 1024, 16, 4096, 4096, 256, 2, 1, "f32", "none"),
    (2, 1024, 8, 4096, 2048, 512, 1, 1, "f32", "none"), (2, 1024, 8, 4096, 2048, 512, 1, 1, "bf16", "mlp+attn"), (1, 1280, 10, 5120, 2048, 256, 1, 1, "f32", "none"),
    (8, 128, 2, 512, 256, 128, 8, 1, "f32", "none"), (3, 448, 7, 1792, 3000, 192, 3, 1, "f32", "none"), (2, 576, 9, 2304, 5000, 160, 4, 1, "bf16", "mlp"),
    (1, 896, 14, 3584, 12000, 224, 2, 2, "f32", "none"), (12, 128, 4, 512, 512, 96, 4, 1, "bf16", "none"), (2, 256, 2, 768, 32000, 128, 4, 1, "f32", "none"),
]


# Work of `predictions`, whose predicted and measured times are compared: name, model and options,
# tests. A model in braces is one of bench/peers.
PREDICTIONS = [
    ("1.1B bf16", ["{1.1b-bf16}", "--dtype", "bf16"], "pp512,tg16,batch4,batch16"),
    ("1.1B Q8_0 fast", ["{1.1b-q8_0}", "--compute", "fast"], "pp512,tg16,batch16"),
    ("1.1B Q8_0", ["{1.1b-q8_0}"], "pp512,tg16,batch16"),
    ("1.1B Q4_0 fast", ["{1.1b-q4_0}", "--compute", "fast"], "pp512,tg16,batch16"),
    ("Gemma 3 270M Q4_K_M fast", ["{gemma3-270m}", "--compute", "fast"], "pp512,pp64,tg16,batch4,batch16"),
    ("Gemma 3 270M Q4_K_M", ["{gemma3-270m}"], "pp512,tg16,batch16"),
    ("SmolLM2 135M Q4_1 fast", ["{smollm2-135m}", "--compute", "fast"], "pp512,tg16,batch16"),
    ("SmolLM2 135M Q4_1", ["{smollm2-135m}"], "pp512,tg16,batch16"),
    ("GPT-2 4 x 256 f32", ["gpt2", "--batch", "4", "--seq", "256", "--clip", "0"], "train"),
    ("GPT-2 4 x 256 bf16", ["gpt2", "--batch", "4", "--seq", "256", "--clip", "0", "--dtype", "bf16"], "train"),
    ("GPT-2 4 x 256 f32, remat=block", ["gpt2", "--batch", "4", "--seq", "256", "--clip", "0", "--remat", "block"], "train"),
    ("GPT-2 4 of 1 x 256 f32", ["gpt2", "--batch", "4", "--seq", "256", "--clip", "0", "--accumulate", "4"], "train"),
    ("uva 1 x 512 f32", ["uva", "--batch", "1", "--seq", "512", "--clip", "0"], "train"),
    ("uva 1 x 512 bf16", ["uva", "--batch", "1", "--seq", "512", "--clip", "0", "--dtype", "bf16"], "train"),
    ("LoRA 1.1B bf16 1 x 512", ["{1.1b-bf16}", "--batch", "1", "--seq", "512", "--clip", "0", "--dtype", "bf16", "--lora", "rank=16,targets=all"], "train"),
]


def run(*words, env=None):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, check=False)
    if done.returncode:
        sys.exit(f"bench: {' '.join(words)} failed\n{done.stdout}{done.stderr}")
    return done.stdout


def rows_of(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def kernels(_):
    out = {}
    for name in ("gemm_bench", "attention_bench", "elementwise_bench"):
        print(f"\n-- {name}")
        text = run(f"build/{name}")
        print(text)
        out[name] = text.splitlines()
    return out


def steps(env):
    out = []
    for model, batch, seq in TRAIN:
        for dtype in ("f32", "bf16"):
            rows = rows_of(run(RAFTER, "bench", model, "--test", "train", "--batch", str(batch), "--seq", str(seq), "--dtype", dtype, "--clip", "0", "--reps", "7", "--json", env=env))
            row = rows[-1]
            row["ceiling"] = rows[0]
            out.append(row)
            print(f"{model} {batch} x {seq} {dtype:5} {row['tokens_per_second']:8.1f} tok/s  {100 * row['limit_fraction']:5.1f} % of f32 FMA "
                  f"(median of {row['n']}; {rows[0]['flops']['median'] / 1e9:.0f} GFLOP/s)  planned {row['predicted_seconds']:.2f} s, measured {row['seconds']['median']:.2f} s "
                  f"[{row['seconds']['min']:.2f}..{row['seconds']['max']:.2f}]", flush=True)
    return out


def decode(env):
    out = []
    for dtype in ("f32", "bf16"):
        rows = rows_of(run(RAFTER, "bench", "gpt2", "--test", "pp512,tg64,tg64@d512", "--dtype", dtype, "--reps", "5", "--json", env=env))
        for row in rows[1:]:
            out.append(row)
            print(f"gpt2 {row['test']:10} {dtype:5} {row['tokens_per_second']:8.1f} tok/s  {100 * row['limit_fraction']:5.1f} % of {row['limit']}", flush=True)
    return out


def predict(env):
    out, errors = [], []
    for layers, width, heads, ff, vocab, seq, batch, accumulate, dtype, remat in PREDICT:
        model = f"gpt:layers={layers},width={width},heads={heads},ff={ff},vocab={vocab},seq={seq}"
        row = rows_of(run(RAFTER, "bench", model, "--test", "train", "--batch", str(batch * accumulate), "--accumulate", str(accumulate), "--dtype", dtype, "--remat", remat, "--reps", "9",
                          "--json", env=env))[-1]
        error = row["predicted_seconds"] / row["seconds"]["median"] - 1
        errors.append(abs(error))
        out.append({"model": model, "batch": batch * accumulate, "accumulate": accumulate, "dtype": dtype, "remat": remat, "predicted_seconds": row["predicted_seconds"],
                    "seconds": row["seconds"], "error": error})
        print(f"{model:66} {accumulate}x{batch} {dtype:4} {remat:9} planned {row['predicted_seconds'] * 1e3:8.2f} ms  measured {row['seconds']['median'] * 1e3:8.2f} ms  {100 * error:+6.1f} %", flush=True)
    print(f"median error {100 * statistics.median(errors):.1f} %, largest {100 * max(errors):.1f} %, {len(errors)} shapes")
    return {"median_error": statistics.median(errors), "largest_error": max(errors), "shapes": out}


def peers():
    spec = importlib.util.spec_from_file_location("peers", "bench/peers/bench.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def option(name):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None


def predictions(env):
    models, out, only = peers(), [], option("--only") or ""
    for name, words, tests in PREDICTIONS:
        asked = [t for t in tests.split(",") if re.search(only, f"{name} {t}")]
        try:
            words = models.words_of(words)
        except models.Missing as reason:
            print(f"{name:32} left out: {reason}", flush=True)
            continue
        if not asked:
            continue
        for row in rows_of(run(RAFTER, "bench", *words, "--test", ",".join(asked), "--reps", "3", "--json", env=env))[1:]:
            measured = row["seconds"]["median"]
            out.append({"work": name, "test": row["test"], "predicted_seconds": row["predicted_seconds"], "seconds": row["seconds"], "error": row["predicted_seconds"] / measured - 1})
            print(f"| {name:30} | {row['test']:8} | {1e3 * row['predicted_seconds']:8.1f} ms | {1e3 * measured:8.1f} ms [{1e3 * row['seconds']['min']:.1f}..{1e3 * row['seconds']['max']:.1f}] "
                  f"| {100 * out[-1]['error']:+6.1f} % |", flush=True)
    errors = [abs(row["error"]) for row in out] or [0]
    print(f"median error {100 * statistics.median(errors):.1f} %, largest {100 * max(errors):.1f} %, {len(out)} rows")
    return {"median_error": statistics.median(errors), "largest_error": max(errors), "rows": out}


def learn(env):
    with tempfile.TemporaryDirectory() as folder:
        return bench_rl.measure(RAFTER, env, folder, option("--only") or "")


# Questions to the planner: a name, the command, and the maximum seconds for the answer.
ONE_CHIP = ("a5000", "h100-sxm", "tpu-v5e")
FITS = [("gpt2-xl", "h100-sxm", "64", "1024"), ("gpt2", "a5000", "32", "1024"), ("gemma3-1b", "tpu-v5e", "8", "1024"), ("llama3-8b", "h200", "8", "4096")]
CLUSTERS = [("tpu-v5p:16x20x28", "17920", "fsdp=8960"), ("tpu-v5p:16x20x28", "17920", "fsdp=1120,tensor=8"), ("h100-sxm:2048x8", "16384", "fsdp=2048,tensor=8"),
            ("h100-sxm:2048x8", "16384", "pipeline=16,fsdp=128,tensor=8")]


def presets():
    return [model["name"] for model in json.loads(run(RAFTER, "models", "--json"))["models"]]


def plan(_):
    asked = [("one chip", 0.05, [name, "--on", chip]) for name in presets() for chip in ONE_CHIP]
    asked += [("--fit on one chip", 1.0, [name, "--on", chip, "--batch", batch, "--seq", seq, "--fit"]) for name, chip, batch, seq in FITS]
    asked += [("405B on a cluster", 2.0, ["llama3-405b", "--on", chips, "--batch", batch, "--seq", "8192", "--dtype", "bf16", "--remat", remat, "--accumulate", "16" if "pipeline" in mesh else "1", "--mesh", mesh])
              for chips, batch, mesh in CLUSTERS for remat in ("none", "block")]
    out = {}
    for kind, limit, words in asked:
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            code = subprocess.run([RAFTER, "plan", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False).returncode
            seconds.append(time.perf_counter() - start)
        if code not in (0, 3):
            sys.exit(f"bench: rafter plan {' '.join(words)} ended with {code}")
        out.setdefault(kind, {"should_stay_under": limit, "rows": []})["rows"].append({"command": " ".join(words), "seconds": statistics.median(seconds), "fits": code == 0})
    for kind, part in out.items():
        rows = sorted(part["rows"], key=lambda row: row["seconds"])
        over = [row for row in rows if row["seconds"] > part["should_stay_under"]]
        print(f"{kind:20} {len(rows):3} plans  median {1e3 * statistics.median(r['seconds'] for r in rows):7.1f} ms  longest {1e3 * rows[-1]['seconds']:7.1f} ms "
              f"({rows[-1]['command']}), {len(over)} above {1e3 * part['should_stay_under']:.0f} ms")
        for row in over:
            print(f"  {1e3 * row['seconds']:7.1f} ms  {row['command']}", flush=True)
    return out


def xla_plugin():
    places = (
        os.environ.get("RAFTER_PLUGINS") or os.path.expanduser("~/.cache/rafter-plugins"),
        "**/xla_cpu_pjrt.so",
    )
    installed = sorted(glob.glob(os.path.join(*places), recursive=True))
    found = os.environ.get("RAFTER_PJRT_PLUGIN") or (installed[0] if installed else None)
    return found or sys.exit(
        "bench: no PJRT plugin for CPUs was found (./dev setup --xla, or RAFTER_PJRT_PLUGIN)"
    )


def xla(env):
    """Compiles both programs of each setting, then times them in turns."""
    plugin, out = xla_plugin(), []
    python = os.path.join(
        os.environ.get("RAFTER_PEERS") or os.path.expanduser("~/.cache/rafter-peers"), "bin/python3"
    )
    has_jax = os.path.exists(python) and not subprocess.call(
        [python, "-c", "import jax, optax"], stderr=subprocess.DEVNULL
    )
    if not has_jax:
        print("JAX's programs are left out: bench/peers/environment.sh jax installs it")
    with tempfile.TemporaryDirectory() as folder:
        for model, batch, seq in TRAIN:
            for dtype in ("f32", "bf16"):
                setting = ["--batch", str(batch), "--seq", str(seq), "--dtype", dtype]
                texts = {"rafter": f"{folder}/rafter.mlir", "JAX": f"{folder}/jax.mlir"}
                run(
                    RAFTER,
                    "plan",
                    model,
                    *setting,
                    "--dropout",
                    "0",
                    "--clip",
                    "0",
                    "--stablehlo",
                    f"{folder}/programs",
                    env=env,
                )
                os.replace(f"{folder}/programs/step.mlir", texts["rafter"])
                if has_jax:
                    run(
                        python,
                        "bench/peers/jax_step.py",
                        "--model",
                        model,
                        *setting,
                        "--stablehlo",
                        texts["JAX"],
                        env=env,
                    )
                else:
                    del texts["JAX"]
                for line in run(
                    "build/xla_bench", plugin, "7", "1", str(seq), *texts.values(), env=env
                ).splitlines():
                    row = re.match(
                        r"(\S+) +([\d.]+) s +\S+ MiB +([\d.]+) MiB +([\d.]+) MiB +"
                        r"([\d.]+) \[([\d.]+)\.\.([\d.]+)\]",
                        line,
                    )
                    if not row:
                        continue
                    name = next(n for n, path in texts.items() if path == row[1])
                    compiled, temporary, total, median, low, high = map(float, row.groups()[1:])
                    out.append(
                        {
                            "model": model,
                            "batch": batch,
                            "seq": seq,
                            "dtype": dtype,
                            "program": name,
                            "compile_seconds": compiled,
                            "temporary_mib": temporary,
                            "total_mib": total,
                            "milliseconds": {"median": median, "min": low, "max": high, "n": 7},
                        }
                    )
                    print(
                        f"{model:5} {batch} x {seq} {dtype:5} {name:7} {median:9.1f} ms a step [{low:.1f}..{high:.1f}]"
                        f"  compiled in {compiled:5.1f} s  {total:8.1f} MiB",
                        flush=True,
                    )
    return out


def many(env):
    return bench_many.many(env, option("--only") or "", int(option("--turns") or 3))


PARTS = {
    "kernels": kernels,
    "train": steps,
    "decode": decode,
    "predict": predict,
    "predictions": predictions,
    "rl": learn,
    "xla": xla,
    "plan": plan,
    "many": many,
}
NAMED_ONLY = ("predictions", "rl", "xla", "many")
UNCALIBRATED = {"plan", "xla", "many"}


def main():
    valued = ("--on", "--only", "--turns")
    words = [w for i, w in enumerate(sys.argv[1:]) if not w.startswith("--") and sys.argv[i] not in valued]
    for word in words:
        if word not in PARTS:
            sys.exit(f"bench: unknown part {word} (expected {', '.join(PARTS)})")
    calibrates = not words or not set(words) <= UNCALIBRATED
    record = {"date": datetime.date.today().isoformat(), "machine": platform.processor() or platform.machine(), "version": run(RAFTER, "--version").strip()}
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, XDG_CACHE_HOME=folder)
        if option("--on"):
            os.makedirs(f"{folder}/rafter")
            shutil.copy(option("--on"), f"{folder}/rafter/{platform.node()}.json")
        elif calibrates:
            print(run(RAFTER, "calibrate", env=env))
        if calibrates:
            record["calibration"] = json.loads(run(RAFTER, "doctor", "--json", env=env))["isa"]
        for part in words or [p for p in PARTS if p not in NAMED_ONLY]:
            print(f"\n== {part}", flush=True)
            record[part] = PARTS[part](env)
    if "--save" in sys.argv:
        os.makedirs("docs/proof", exist_ok=True)
        path = f"docs/proof/bench-{record['date']}.json"
        with open(path, "w", encoding="utf-8") as f:
            json.dump(record, f, indent=1)
            f.write("\n")
        print(f"written to {path}")


if __name__ == "__main__":
    main()
