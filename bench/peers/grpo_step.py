#!/usr/bin/env python3
"""Compares steps of `rafter rl` with TRL's GRPOTrainer on the CPU, in turns: seconds of sampling and
of the whole step, and peak memory.

Both have the same weights (TRL reads `rafter export`), adapter, loss, beta, prompts, number and
length of answers, and a reward that costs nothing. An answer never ends before its maximum. A program
of its own: not a row of rows.json.

  bench/peers/grpo_step.py MODEL [--dtype bf16] [--turns 3] [--steps 3]

The peers' Python ($RAFTER_PEERS/bin/python3) needs trl, peft, datasets and accelerate.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("model")
for name, default in (
    ("turns", 3),
    ("steps", 3),
    ("samples", 8),
    ("prompts", 1),
    ("prompt-tokens", 64),
    ("answer-tokens", 128),
    ("rank", 16),
    ("threads", 2),
):
    p.add_argument("--" + name, type=int, default=default)
p.add_argument("--beta", type=float, default=0.04)
p.add_argument("--dtype", choices=("f32", "bf16"), default="bf16", help="of rafter")
p.add_argument(
    "--peer-dtype",
    choices=("f32", "bf16"),
    default="f32",
    help="of TRL; f32 is its faster one on most CPUs",
)
p.add_argument("--exported", action="store_true", help="rafter trains the exported model too")
p.add_argument("--rafter", default="build/rafter")
p.add_argument(
    "--python",
    default=os.path.join(
        os.environ.get("RAFTER_PEERS", os.path.expanduser("~/.cache/rafter-peers")), "bin/python3"
    ),
)
p.add_argument("--as-peer", metavar="FOLDER", help=argparse.SUPPRESS)
a = p.parse_args()
TEXT = "Once upon a time there was a little girl who liked to count. "


def run_peer():
    """In the peer's Python: trains a few steps and prints one JSON line."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(a.threads)
    dtype = torch.bfloat16 if a.peer_dtype == "bf16" else torch.float32
    tokenizer = AutoTokenizer.from_pretrained(a.as_peer)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    prompt = tokenizer.decode((tokenizer(TEXT)["input_ids"] * 64)[: a.prompt_tokens])
    stamps, sampled = [], []

    class Clock(TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            stamps.append(time.time())

    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=a.samples * a.prompts,
        num_generations=a.samples,
        max_completion_length=a.answer_tokens,
        max_steps=a.steps,
        use_cpu=True,
        report_to=[],
        gradient_checkpointing=False,
        bf16=a.peer_dtype == "bf16",
        beta=a.beta,
        loss_type="grpo",
        temperature=1.0,
        save_strategy="no",
        logging_steps=1,
        generation_kwargs={"min_new_tokens": a.answer_tokens},
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(a.as_peer, dtype=dtype),
        args=config,
        processing_class=tokenizer,
        callbacks=[Clock()],
        reward_funcs=lambda completions, **more: [c.count("a") / max(1, len(c)) for c in completions],
        train_dataset=Dataset.from_list([{"prompt": prompt}] * (a.prompts * (a.steps + 1))),
        peft_config=LoraConfig(r=a.rank, target_modules="all-linear"),
    )
    model = trainer.model
    generate = model.generate

    def timed(*words, **more):
        start = time.time()
        result = generate(*words, **more)
        sampled.append(time.time() - start)
        return result

    model.generate = timed
    start = time.time()
    trainer.train()
    steps = [y - x for x, y in zip([start] + stamps, stamps)]
    print(
        json.dumps(
            {
                "steps": steps,
                "sampling": sampled,
                "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )
    )


def peer(folder):
    words = [
        a.python,
        os.path.abspath(__file__),
        a.model,
        "--as-peer",
        folder,
        "--steps",
        str(a.steps),
        "--samples",
        str(a.samples),
        "--prompts",
        str(a.prompts),
        "--prompt-tokens",
        str(a.prompt_tokens),
        "--answer-tokens",
        str(a.answer_tokens),
        "--rank",
        str(a.rank),
        "--threads",
        str(a.threads),
        "--beta",
        str(a.beta),
        "--peer-dtype",
        a.peer_dtype,
    ]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"TRL failed: {done.stderr[-1500:]}")
    return json.loads(done.stdout.strip().split("\n")[-1])


def ours(work, turn):
    tokens = tokens_of(work)
    with open(f"{work}/prompts.jsonl", "w", encoding="utf-8") as f:
        for i in range(a.prompts):
            f.write(json.dumps({"id": f"p{i}", "tokens": tokens}) + "\n")
    out = f"{work}/run{turn}"
    model = f"{work}/model" if a.exported else a.model
    options = {"--lora": f"rank={a.rank},alpha=16", "--data": f"{work}/prompts.jsonl", "--reward": "regex=a"}
    options |= {"--prompts": a.prompts, "--samples": a.samples, "--max-tokens": a.answer_tokens}
    options |= {"--beta": a.beta, "--dtype": a.dtype, "--threads": a.threads, "--steps": a.steps}
    options |= {"--eval-every": 0, "--show-samples": 0, "--seq": a.prompt_tokens + a.answer_tokens}
    options |= {"--out": out}
    words = ["/usr/bin/env", "time", "-v", a.rafter, "rl", model, "--ignore-eos"]
    words += [str(word) for pair in options.items() for word in pair]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"rafter failed: {done.stderr[-1500:]}")
    rows = [
        row for row in map(json.loads, open(out + "/metrics.jsonl", encoding="utf-8")) if row.get("step")
    ]
    peak = int(re.search(r"Maximum resident set size \(kbytes\): (\d+)", done.stderr).group(1)) * 1024
    return {
        "steps": [row["seconds"] for row in rows],
        "sampling": [row["sample_seconds"] for row in rows],
        "predicted": [row["predicted_seconds"] for row in rows],
        "peak_bytes": peak,
    }


def tokens_of(work):
    """The ids of the prompt, from the tokenizer of the exported model."""
    out = subprocess.run(
        [a.rafter, "tokenize", f"{work}/model", "--text", TEXT, "--json", "--no-bos"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    return (json.loads(out)["tokens"] * 64)[: a.prompt_tokens]


def main():
    with tempfile.TemporaryDirectory() as work:
        subprocess.run(
            [a.rafter, "export", a.model, f"{work}/model"],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        runs = {"rafter": [], "trl": []}
        for turn in range(a.turns):
            runs["trl"].append(peer(f"{work}/model"))
            runs["rafter"].append(ours(work, turn))
            print(json.dumps({who: list_[-1] for who, list_ in runs.items()}), flush=True)
        # the first step of a process warms up
        of = {
            who: {
                key: statistics.median(x for run in list_ for x in run[key][1:])
                for key in ("steps", "sampling")
            }
            for who, list_ in runs.items()
        }
        for key in ("steps", "sampling"):
            mine, theirs = of["rafter"][key], of["trl"][key]
            print(f"{key}: rafter {mine:.2f} s, TRL {theirs:.2f} s: {theirs / mine:.2f} x")
        peaks = {who: max(run["peak_bytes"] for run in list_) / 2**30 for who, list_ in runs.items()}
        less = peaks["rafter"] / peaks["trl"]
        print(f"peak memory: rafter {peaks['rafter']:.2f} GiB, TRL {peaks['trl']:.2f} GiB: {less:.2f} x")


if __name__ == "__main__":
    run_peer() if a.as_peer else main()
