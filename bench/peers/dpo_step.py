#!/usr/bin/env python3
"""Compares one step of `rafter train --loss dpo` in bf16 with TRL's DPOTrainer on a real model, in
bf16 and f32: the loss and the gradients of the adapter. A program of its own: not a row of rows.json.

  bench/peers/dpo_step.py MODEL [--steps 3]

rafter trains a few steps, so that policy and reference differ. Both programs then compute the same
step: the same weights (TRL reads `rafter export`), adapter and pairs. rafter's gradients are those
of its first moments. The peers' Python ($RAFTER_PEERS/bin/python3) needs trl and peft.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("model")
p.add_argument("--steps", type=int, default=3)
p.add_argument("--lr", default="1e-4")
p.add_argument("--threads", type=int, default=2)
p.add_argument("--rafter", default="build/rafter")
peers = os.environ.get("RAFTER_PEERS", os.path.expanduser("~/.cache/rafter-peers"))
p.add_argument("--python", default=os.path.join(peers, "bin/python3"))
p.add_argument("--folder", help="keeps the files here")
p.add_argument("--as-peer", nargs="+", help=argparse.SUPPRESS)
a = p.parse_args()
PAIRS, BETA, RANK, ALPHA = 8, 0.1, 16, 32


def pairs():
    """Sentences of different lengths."""
    r = random.Random(7)
    for _ in range(PAIRS):
        x, y = r.sample(range(100, 1000), 2)
        more = " because it is the larger of both" * r.randrange(3)
        yield {
            "prompt": f"Of {x} and {y}, the larger number is",
            "chosen": f" {max(x, y)}{more}.",
            "rejected": f" {min(x, y)}, which is" + " very" * r.randrange(8) + " large.",
        }


def peer_trainer(dtype, folder):
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    torch.set_num_threads(a.threads)
    half = dtype == "bf16"
    tokenizer = AutoTokenizer.from_pretrained(f"{folder}/exported")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    settings = DPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=PAIRS,
        use_cpu=True,
        report_to=[],
        bf16=half,
        beta=BETA,
        max_length=128,
        gradient_checkpointing=False,
        save_strategy="no",
        disable_dropout=True,
    )
    kind = torch.bfloat16 if half else torch.float32
    return DPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(f"{folder}/exported", dtype=kind),
        args=settings,
        train_dataset=Dataset.from_list(list(pairs())),
        processing_class=tokenizer,
        peft_config=LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=ALPHA, target_modules="all-linear"),
    )


def batch_of(trainer):
    return trainer.data_collator([trainer.train_dataset[i] for i in range(PAIRS)])


def write_tokens(folder):
    """The pairs as TRL makes tokens of them."""
    batch = batch_of(peer_trainer("f32", folder))
    ids, mask, answer = (batch[k] for k in ("input_ids", "attention_mask", "completion_mask"))
    with open(f"{folder}/pairs.jsonl", "w", encoding="utf-8") as f:
        for i in range(PAIRS):
            row = {}
            for kind, n in (("chosen", i), ("rejected", i + PAIRS)):
                row["tokens"] = ids[n][(mask[n] == 1) & (answer[n] == 0)].tolist()
                row[kind] = ids[n][(mask[n] == 1) & (answer[n] == 1)].tolist()
            f.write(json.dumps(row) + "\n")


def take_peer_step(dtype, folder):
    """Prints the loss of TRL, and writes its gradients by PEFT's names."""
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file, save_file

    trainer = peer_trainer(dtype, folder)
    adapter = load_file(f"{folder}/run/checkpoint-{a.steps:08}/adapter_model.safetensors")
    found = set_peft_model_state_dict(trainer.model, adapter)
    assert not found.unexpected_keys, found
    trainer.model.train()
    with trainer.compute_loss_context_manager():
        loss = trainer.compute_loss(trainer.model, batch_of(trainer))
    loss.backward()
    trained = ((n, x.grad) for n, x in trainer.model.named_parameters() if x.requires_grad)
    gradients = {n.replace(".default", ""): g.float().contiguous() for n, g in trained}
    save_file(gradients, f"{folder}/trl-{dtype}.safetensors")
    print(json.dumps({"loss": loss.item()}))


def own_gradients(folder):
    """The gradients of rafter by PEFT's names: m = 0.9 m + 0.1 g."""
    from safetensors.torch import load_file

    before, after = (
        load_file(f"{folder}/run/checkpoint-{a.steps + i:08}/optimizer.safetensors") for i in (0, 1)
    )
    modules = {
        "attn/qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attn/out": ("self_attn.o_proj",),
        "mlp/gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp/down": ("mlp.down_proj",),
    }
    adapter = load_file(f"{folder}/run/checkpoint-{a.steps:08}/adapter_model.safetensors")
    found = {}
    for name in (n for n in after if n.startswith("m/")):
        gradient = (after[name] - 0.9 * before[name]) / 0.1
        block, site, kind = name[2:].split("/", 1)[0], *name[2:].split("/", 1)[1].rsplit("/", 1)
        at = 0
        for module in modules[site]:
            peft = f"base_model.model.model.layers.{block.split('.')[1]}.{module}.{{}}.weight"
            peft = peft.format("lora_A" if kind == "lora_a" else "lora_B")
            width = adapter[peft].shape[0]
            found[peft] = gradient[:, at : at + width].T
            at += width
        assert at == gradient.shape[1], name
    return found


def compare(folder):
    """Prints the distances of gradients, relative to the norm of the second."""
    import torch
    from safetensors.torch import load_file

    sets = {"rafter bf16": own_gradients(folder)}
    sets |= {f"TRL {d}": load_file(f"{folder}/trl-{d}.safetensors") for d in ("bf16", "f32")}
    names = sorted(sets["TRL f32"])
    assert all(sorted(s) == names for s in sets.values()), "other names"

    def distance(x, y):
        of_each = [(x[n] - y[n]).norm().item() / y[n].norm().item() for n in names]
        whole = [torch.cat([s[n].flatten() for n in names]) for s in (x, y)]
        return {
            "all": ((whole[0] - whole[1]).norm() / whole[1].norm()).item(),
            "median": statistics.median(of_each),
            "largest": max(of_each),
        }

    order = [("rafter bf16", "TRL bf16"), ("rafter bf16", "TRL f32"), ("TRL bf16", "TRL f32")]
    print(json.dumps({f"{x} - {y}": distance(sets[x], sets[y]) for x, y in order}))


def peer(*words):
    run = [a.python, os.path.abspath(__file__), a.model, "--steps", str(a.steps), "--threads", str(a.threads)]
    done = subprocess.run([*run, "--as-peer", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else None


def own(*words):
    subprocess.run([a.rafter, *words], check=True, stdout=subprocess.DEVNULL)


def main(folder):
    if not os.path.exists(f"{folder}/exported"):
        own("export", a.model, f"{folder}/exported")
    peer("tokens", folder)
    common = ["--loss", "dpo", "--beta", str(BETA), "--data", f"{folder}/pairs.jsonl", "--clip", "0"]
    common += ["--lora", f"rank={RANK},alpha={ALPHA}", "--batch", str(2 * PAIRS), "--seq", "64", "--lr", a.lr]
    common += ["--val-fraction", "0", "--save-every", "1", "--keep", "9", "--threads", str(a.threads)]
    common += ["--dtype", "bf16", "--steps", str(a.steps + 1), "--out", f"{folder}/run"]
    own("train", f"{folder}/exported", *common)
    with open(f"{folder}/run/metrics.jsonl", encoding="utf-8") as f:
        losses = {"rafter bf16": [json.loads(line) for line in f][-1]["loss"]}
    for dtype in ("bf16", "f32"):
        losses[f"TRL {dtype}"] = peer("step", dtype, folder)["loss"]
    print(json.dumps(losses))
    print(json.dumps(peer("compare", folder), indent=1))


if a.as_peer:
    {"tokens": write_tokens, "step": take_peer_step, "compare": compare}[a.as_peer[0]](*a.as_peer[1:])
elif a.folder:
    main(os.path.abspath(a.folder))
else:
    with tempfile.TemporaryDirectory() as scratch:
        main(scratch)
