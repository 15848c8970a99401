#!/usr/bin/env python3
"""Files of an invented run of reinforcement learning: metrics.jsonl and samples.jsonl.

  rl_example.py FOLDER [--steps N]

The same arguments always give the same bytes.
"""

import argparse
import json
import math
import random
import re

GROUPS, SAMPLES, EVERY = 4, 8, 10
WORDS = ("apples", "books", "coins", "pencils", "stamps", "tickets")
NAMES = ("Janet", "Omar", "Mei", "Piotr", "Lucía")


def question(rng):
    a, b, c = rng.randint(2, 40), rng.randint(2, 30), rng.randint(2, 9)
    what, name = rng.choice(WORDS), rng.choice(NAMES)
    text = (
        f"{name} has {a} {what} and buys {b} more. Then {name} gives {c} of them away. "
        f"How many {what} does {name} have now?\nAnswer as <answer>NUMBER</answer>."
    )
    return text, (a, b, c), a + b - c


def answer(rng, skill, numbers, right):
    """A text, its reason to end, and its rewards."""
    a, b, c = numbers
    said = right if rng.random() < 0.1 + 0.8 * skill else right + rng.choice((-10, -1, 1, 2, c))
    text = f"First, {a} + {b} = {a + b}.\n"
    if rng.random() > skill:
        text += (
            "Let me check this again: "
            + " ".join(f"{a} plus {b} makes {a + b}." for _ in range(rng.randint(1, 6)))
            + "\n"
        )
    if rng.random() < 0.12 * (1 - skill):
        return text + "Then we take away", "length", {"gsm8k": 0.0, "format": 0.0}
    text += f"Then {a + b} − {c} = {said}.\n"
    tags = rng.random() < 0.2 + 0.78 * skill
    text += f"<answer>{said}</answer>" if tags else f"The answer is {said}"
    return text, "stop", {"gsm8k": float(said == right and tags), "format": 1.0 if tags else 0.0}


def tokens(rng, text, skill):
    pieces = re.findall(r"\s?[A-Za-zí]+|\s?\d|\n|\s?[^\sA-Za-z\d]", text)
    logprobs = [-rng.expovariate(2 + 6 * skill) * (4 if rng.random() < 0.06 else 1) for _ in pieces]
    kl = [max(0.0, rng.gauss(0, 1)) ** 4 * 0.02 * skill for _ in pieces]
    return {
        "tokens": [sum(ord(c) * 31**i for i, c in enumerate(piece)) % 49152 for piece in pieces],
        "pieces": pieces,
        "logprobs": [round(value, 6) for value in logprobs],
        "kl": [round(value, 7) for value in kl],
    }


def group(rng, step, number, skill, evaluation=False, samples=SAMPLES):
    prompt, numbers, right = question(rng)
    out = []
    for _ in range(samples):
        text, finish, rewards = answer(rng, skill, numbers, right)
        out.append(
            {
                "text": text,
                "finish_reason": finish,
                "reward": rewards["gsm8k"] + 0.2 * rewards["format"],
                "rewards": rewards,
                **tokens(rng, text, skill),
            }
        )
    mean = sum(one["reward"] for one in out) / len(out)
    spread = math.sqrt(sum((one["reward"] - mean) ** 2 for one in out) / len(out))
    row = {
        "step": step,
        "id": f"gsm8k-{number}",
        "prompt": prompt,
        "answer": str(right),
        "samples": out,
    }
    if evaluation:
        return {**row, "eval": True}
    for one in out:
        one["advantage"] = (one["reward"] - mean) / (spread + 1e-4)
    return row


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def deviation(values):
    values = list(values)
    centre = mean(values)
    return math.sqrt(mean((value - centre) ** 2 for value in values))


def metrics_of(rng, step, groups, skill):
    answers = [one for row in groups for one in row["samples"]]
    rewards, lengths = [one["reward"] for one in answers], [len(one["tokens"]) for one in answers]
    parts = {name: [one["rewards"][name] for one in answers] for name in ("gsm8k", "format")}
    sample, score, train = (
        base * (1 + 0.06 * rng.gauss(0, 1)) for base in (0.031 * mean(lengths), 0.42, 1.35)
    )
    reward = 0.05 + 0.02 * rng.random()
    logprobs = [value for one in answers for value in one["logprobs"]]
    row = {
        "step": step,
        "loss": 0.02 * rng.gauss(0, 1) - 0.01,
        "lr": 1e-4 * min(1, step / 5),
        "grad_norm": 0.6 + 0.3 * rng.random(),
        "reward": mean(rewards),
        "reward_std": deviation(rewards),
        "reward_min": min(rewards),
        "reward_max": max(rewards),
        "rewards": {name: mean(values) for name, values in parts.items()},
        "rewards_std": {name: deviation(values) for name, values in parts.items()},
        "kl": mean(value for one in answers for value in one["kl"]),
        "entropy": -mean(logprobs),
        "clip_fraction": 0.01 * skill + 0.004 * rng.random(),
        "ratio_min": 0.86 - 0.05 * rng.random(),
        "ratio_mean": 1 + 0.002 * rng.gauss(0, 1),
        "ratio_max": 1.16 + 0.08 * rng.random(),
        "answer_tokens": mean(lengths),
        "answer_tokens_max": max(lengths),
        "cut_fraction": mean(one["finish_reason"] == "length" for one in answers),
        "flat_groups": sum(
            deviation(one["reward"] for one in row["samples"]) == 0 for row in groups
        ),
        "groups": len(groups),
        "samples": len(answers),
        "tokens": sum(lengths),
        "sample_seconds": sample,
        "reward_seconds": reward,
        "score_seconds": score,
        "train_seconds": train,
        "seconds": sample + reward + score + train,
        "predicted_sample_seconds": 0.029 * mean(lengths),
        "predicted_score_seconds": 0.4,
        "predicted_train_seconds": 1.28,
        "predicted_seconds": 0.029 * mean(lengths) + 0.4 + 1.28,
        "sample_tokens_per_second": sum(lengths) / sample,
        "train_tokens_per_second": sum(lengths) / train,
        "sample_limit_fraction": 0.62 + 0.02 * rng.gauss(0, 1),
        "train_limit_fraction": 0.71 + 0.02 * rng.gauss(0, 1),
    }
    return row


def evaluate(rng, step, skill, row):
    """Adds the figures of an evaluation to a step, and returns two of its groups."""
    held_out = [group(rng, step, 9000 + k, 0.95 * skill, True, 1) for k in range(24)]
    answers = [one["samples"][0] for one in held_out]
    row["eval_reward"], row["eval_rows"] = mean(one["reward"] for one in answers), len(answers)
    row["eval_rewards"] = {
        name: mean(one["rewards"][name] for one in answers) for name in ("gsm8k", "format")
    }
    return held_out[:2]


def run(steps=60, groups=GROUPS, samples=SAMPLES, seed=1, kl=True):
    """(rows of metrics.jsonl, rows of samples.jsonl) of a run that learns."""
    rng, rows, trained = random.Random(seed), [{"step": 0}], 0
    shown = evaluate(rng, 0, 0.01, rows[0])
    for step in range(1, steps + 1):
        skill = 1 / (1 + math.exp(-(step - 0.45 * steps) / (0.13 * steps)))
        own = [group(rng, step, GROUPS * step + k, skill, samples=samples) for k in range(groups)]
        row = metrics_of(rng, step, own, skill)
        shown += own
        if step % EVERY == 0 or step == steps:
            shown += evaluate(rng, step, skill, row)
        trained += row["tokens"]
        row["tokens"] = trained
        rows.append(row)
    if not kl:
        for row in rows[1:]:
            row.pop("kl")
        for one in (one for row in shown for one in row["samples"]):
            one.pop("kl")
    return rows, shown


def write(path, rows):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    rows, shown = run(arguments.steps)
    memory = {"arena_bytes": 1 << 28, "peak_bytes": 1 << 28, "outside_arena_bytes": {}}
    write(f"{arguments.folder}/metrics.jsonl", [memory, *rows])
    write(f"{arguments.folder}/samples.jsonl", shown)


if __name__ == "__main__":
    main()
