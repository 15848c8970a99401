"""prove_rl.py - the proof `rl`: a small model learns to add by GRPO (see prove.py).

The task: "Question: 85 + 52 = ?\\nAnswer: ", with numbers from 1 to 99. The reward is 1 if the last
number of the answer (at most 12 tokens) is the sum. Held-out questions are answered greedily.
"""

import json
import os
import random
import shutil
import subprocess

SEEDS, STEPS, EVERY, HELD_OUT = 3, 20, 5, 100
RISE, SECONDS = 0.30, 1800.0  # of the held-out success rate, and the longest time of a run
OPTIONS = ["--lora", "rank=16", "--reward", "number", "--max-tokens", 12, "--prompts", 16, "--samples", 8]
OPTIONS += ["--lr", "3e-4", "--beta", 0, "--dtype", "bf16", "--weights", "bf16", "--steps", STEPS]


def write_questions(path, count, rng, mark):
    with open(path, "w", encoding="utf-8") as f:
        for i in range(count):
            a, b = rng.randint(1, 99), rng.randint(1, 99)
            row = {"id": f"{mark}{i}", "prompt": f"Question: {a} + {b} = ?\nAnswer: ", "answer": str(a + b)}
            f.write(json.dumps(row) + "\n")


def learn(rafter, model, folder, seed):
    """One run: the held-out success rate by step, and the seconds of the run with its evaluations."""
    rng = random.Random(1)  # the same questions for each seed
    write_questions(f"{folder}/train.jsonl", 2000, rng, "p")
    write_questions(f"{folder}/held-out.jsonl", HELD_OUT, rng, "h")
    run = f"{folder}/seed{seed}"
    data = ["--data", f"{folder}/train.jsonl", "--eval-data", f"{folder}/held-out.jsonl"]
    words = [rafter, "rl", model, *data, *OPTIONS, "--eval-every", EVERY, "--seed", seed, "--out", run]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"rafter rl exits {done.returncode}: {done.stderr[-500:]}")
    with open(f"{run}/metrics.jsonl", encoding="utf-8") as f:
        rows = [row for row in map(json.loads, f) if "step" in row]
    curve = {row["step"]: row["eval_reward"] for row in rows if "eval_reward" in row}
    seconds = sum(row.get("seconds", 0) + row.get("eval_seconds", 0) for row in rows)
    # a step trains nothing and has no ratios if all answers of each group have the same reward
    steps = [row for row in rows if "ratio_min" in row]
    if len(steps) < STEPS / 2:
        raise RuntimeError(f"seed {seed}: only {len(steps)} of {STEPS} steps trained")
    ratios = (min(row["ratio_min"] for row in steps), max(row["ratio_max"] for row in steps))
    return {"seed": seed, "held_out": curve, "seconds": round(seconds, 1), "ratios": ratios}


def prove(rafter, model, folder, seeds=SEEDS):
    """Runs all seeds. RuntimeError: a run learns too little, or takes too long."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    results = []
    for seed in range(1, seeds + 1):
        result = learn(rafter, model, folder, seed)
        results.append(result)
        print(json.dumps(result), flush=True)
        rise, seconds = result["held_out"][STEPS] - result["held_out"][0], result["seconds"]
        if rise < RISE:
            raise RuntimeError(f"seed {seed}: held-out success rises by {rise:.2f} only (expected {RISE})")
        if seconds > SECONDS:
            raise RuntimeError(f"seed {seed}: the run takes {seconds:.0f} s (expected {SECONDS:.0f})")
        if result["ratios"] != (1, 1):
            raise RuntimeError(f"seed {seed}: the ratios of the first optimizer step are {result['ratios']}")
    return results
