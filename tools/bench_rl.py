"""bench_rl.py - the part `rl` of ./dev bench: predicted against measured seconds of each phase of a
step of reinforcement learning, at the lengths that the answers have. The predicted seconds of
sampling are those of the answers, their batches and their contexts; nothing is fitted to a run.
"""

import json
import os
import re
import statistics
import subprocess
import sys

# Real models of `./dev models`. "+" marks the model's export, in f32.
SMALL, GEMMA = "smollm2-135m-instruct-q4_1.gguf", "gemma3-270m-q4_k_m.gguf"
SUM = "Question: {a} + {b} = ?\nAnswer: "
TALE = "Once upon a time there was a little girl who liked to count to {a} and then to {b}. "
LORA = "--lora rank=16 --dtype bf16 "
FAST = "--lora rank=8 --compute fast "
BF16 = LORA + "--weights bf16 "

# Name, model, prompt, how often it is repeated, options.
SETTINGS = [
    ("sums, 128 x 12", SMALL, SUM, 1, BF16 + "--beta 0 --prompts 16 --max-tokens 12"),
    ("8 x 128, beta", SMALL, TALE, 3, BF16 + "--prompts 1 --max-tokens 128 --ignore-eos"),
    ("8 x 48, f32, beta", SMALL + "+", TALE, 3, "--lora rank=16 --prompts 1 --max-tokens 48"),
    ("16 x 64, Q4_1 fast", SMALL, TALE, 1, FAST + "--beta 0 --prompts 2 --max-tokens 64"),
    ("all weights, twice", SMALL + "+", TALE, 1, "--dtype bf16 --prompts 1 --max-tokens 48 --iterations 2"),
    ("Gemma, 16 x 32", GEMMA, TALE, 2, BF16 + "--beta 0 --prompts 2 --max-tokens 32"),
    ("Gemma, Q4_K fast, beta", GEMMA, TALE, 1, LORA + "--compute fast --prompts 1 --max-tokens 48"),
    ("long, 8 of 16 at once", SMALL, TALE, 12, BF16 + "--beta 0 --prompts 2 --max-tokens 160 --batch 8"),
]
PHASES = ("sample", "score", "train")
STEPS = 4  # the first one warms up


def write_prompts(path, text, times):
    with open(path, "w", encoding="utf-8") as f:
        for i in range(64):
            parts = (text.format(a=13 * i % 97 + 1, b=29 * k % 89 + i % 10) for k in range(times))
            f.write(json.dumps({"prompt": "".join(parts), "answer": str(i)}) + "\n")


def model_of(name, folder, rafter):
    models = os.environ.get("RAFTER_MODELS") or os.path.expanduser("~/.cache/rafter-models")
    path, out = os.path.join(models, name.rstrip("+")), os.path.join(folder, "exported")
    if not name.endswith("+"):
        return path
    if not os.path.exists(out):
        subprocess.run([rafter, "export", path, out], check=True, capture_output=True)
    return out


def steps_of(words, env, run):
    """The lines of the steps after the first one."""
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"bench: {' '.join(words)} failed\n{done.stderr}")
    with open(f"{run}/metrics.jsonl", encoding="utf-8") as f:
        return [row for row in map(json.loads, f) if row.get("step", 0) > 1]


def measure(rafter, env, folder, only=""):
    """One row for each setting; prints them as a table."""
    rows, prompts = [], f"{folder}/prompts.jsonl"
    for name, model, text, times, options in SETTINGS:
        if not re.search(only, name):
            continue
        run = os.path.join(folder, f"rl{len(rows)}")
        write_prompts(prompts, text, times)
        words = [rafter, "rl", model_of(model, folder, rafter), "--data", prompts, *options.split()]
        words += ["--reward", "regex=[0-4]", "--lr", "1e-5", "--steps", str(STEPS), "--out", run]
        steps = steps_of(words + ["--eval-every", "0", "--show-samples", "0", "--save-every", "0"], env, run)
        row = {"work": name, "answer_tokens": statistics.mean(s["answer_tokens"] for s in steps)}
        keys = [f"{phase}_seconds" for phase in PHASES] + ["seconds"]
        for key in [k for own in keys for k in (own, "predicted_" + own)]:
            row[key] = statistics.median(s[key] for s in steps)
        row["range"] = [min(s["seconds"] for s in steps), max(s["seconds"] for s in steps)]
        row["error"] = row["predicted_seconds"] / row["seconds"] - 1
        rows.append(row)
        cells = " | ".join(f"{row['predicted_' + key]:5.2f} / {row[key]:5.2f}" for key in keys)
        error, length = 100 * row["error"], row["answer_tokens"]
        print(f"| {name:22} | {length:5.1f} | {cells} | {error:+5.1f} % |", flush=True)
    errors = [abs(row["error"]) for row in rows] or [0]
    median, largest = statistics.median(errors), max(errors)
    print(f"median error {100 * median:.1f} %, largest {100 * largest:.1f} %, {len(rows)} settings")
    return {"median_error": median, "largest_error": largest, "rows": rows}
