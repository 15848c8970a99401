#!/usr/bin/env python3
"""Losses of preferences computed by TRL: make.py (trl 1.16.0, transformers 5.24.0, torch 2.15.0,
peft 0.21.2).

The policy is ../goldens/llama with the adapter of ../peft/llama-regex, and the reference is the
base without the adapter. DPOTrainer computes DPO and IPO, CPOTrainer computes SimPO (with and
without label smoothing). golden.json has for each loss: the settings, the loss, the metrics of TRL,
and for each trained tensor of the adapter [l2 norm, probe] of its gradient, with the probe of
../hf_oracle.py. Everything is computed in f32 with eager attention, one thread and no dropout.
"""
import json
import math
import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, set_peft_model_state_dict
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
BASE, ADAPTER = os.path.join(HERE, "..", "goldens", "llama"), os.path.join(HERE, "..", "peft", "llama-regex")
VOCAB, EOS = 176, 1
LOSSES = [
    dict(name="dpo", loss="dpo", beta=0.1),
    dict(name="dpo-steep", loss="dpo", beta=0.5),
    dict(name="ipo", loss="ipo", beta=0.2),
    dict(name="simpo", loss="simpo", beta=2.0, gamma=1.0),
    dict(name="simpo-smoothed", loss="simpo", beta=1.5, gamma=0.3, smoothing=0.1),
]


def rows():
    """Prompts and answers of different lengths. TRL adds the end token to each answer."""
    g = torch.Generator().manual_seed(21)
    draw = lambda n: torch.randint(2, VOCAB, (n,), generator=g).tolist()
    return [{"prompt": draw(p), "chosen": draw(c), "rejected": draw(r)}
            for p, c, r in ((5, 7, 4), (1, 3, 9), (9, 1, 1), (4, 12, 6))]


def tokenizer():
    """Token 7 is the word <7>, so that texts become the ids above."""
    words = Tokenizer(models.WordLevel({f"<{i}>": i for i in range(VOCAB)}, unk_token="<0>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token=f"<{EOS}>", pad_token="<0>")


def words(ids):
    return "".join(f" <{i}>" for i in ids)


def trainer_of(setting, data, folder):
    model = AutoModelForCausalLM.from_pretrained(BASE, attn_implementation="eager", dtype=torch.float32)
    config = json.load(open(os.path.join(ADAPTER, "adapter_config.json")))
    keys = ("r", "lora_alpha", "target_modules", "rank_pattern", "alpha_pattern", "use_rslora")
    lora = LoraConfig(task_type="CAUSAL_LM", **{k: config[k] for k in keys})
    common = dict(output_dir=folder, per_device_train_batch_size=len(data), use_cpu=True, report_to=[],
                  bf16=False, beta=setting["beta"], max_length=64, gradient_checkpointing=False,
                  save_strategy="no", disable_dropout=True)
    if setting["loss"] == "simpo":
        args = CPOConfig(loss_type="simpo", cpo_alpha=0.0, simpo_gamma=setting["gamma"],
                         label_smoothing=setting.get("smoothing", 0.0), **common)
        kind = CPOTrainer
    else:
        args = DPOConfig(loss_type=["sigmoid" if setting["loss"] == "dpo" else "ipo"], **common)
        kind = DPOTrainer
    texts = [{k: words(v).strip() if k == "prompt" else words(v) for k, v in row.items()} for row in data]
    trainer = kind(model=model, args=args, train_dataset=Dataset.from_list(texts),
                   processing_class=tokenizer(), peft_config=lora)
    weights = load_file(os.path.join(ADAPTER, "adapter_model.safetensors"))
    found = set_peft_model_state_dict(trainer.model, weights)
    assert not found.unexpected_keys, found
    return trainer


def ids_of(batch, setting):
    """The sequences that the trainer computes, without padding."""
    if setting["loss"] == "simpo":
        return [batch[f"{kind}_input_ids"][i][batch[f"{kind}_attention_mask"][i] == 1].tolist()
                for kind in ("chosen", "rejected") for i in range(len(batch["chosen_input_ids"]))]
    return [row[mask == 1].tolist() for row, mask in zip(batch["input_ids"], batch["attention_mask"])]


def probe(x):
    i = torch.arange(x.numel(), dtype=torch.float64)
    x = x.double().flatten()
    return [round(x.norm().item(), 10), round((x * torch.cos(0.7 * i + 0.3)).sum().item(), 10)]


def golden_of(setting, data):
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(setting, data, folder)
        trainer.model.train()
        batch = trainer.data_collator([trainer.train_dataset[i] for i in range(len(data))])
        expected = [row["prompt"] + row[kind] + [EOS] for kind in ("chosen", "rejected") for row in data]
        assert ids_of(batch, setting) == expected, (ids_of(batch, setting), expected)
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        stored = trainer._metrics if hasattr(trainer, "_metrics") else trainer._stored_metrics
        gradients = {name.replace(".default", ""): probe(p.grad)
                     for name, p in trainer.model.named_parameters() if p.requires_grad}
        means = {k: sum(v) / len(v) for k, v in stored["train"].items()
                 if k.startswith(("rewards/", "logps/"))}
        return dict(setting, loss_value=loss.item(), gradients=gradients, metrics=means)


def main():
    torch.set_num_threads(1)
    data = rows()
    ended = [dict(row, chosen=row["chosen"] + [EOS], rejected=row["rejected"] + [EOS]) for row in data]
    golden = {"rows": ended,
              "losses": [golden_of(setting, data) for setting in LOSSES]}
    with open(os.path.join(HERE, "golden.json"), "w") as f:
        json.dump(golden, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
