#!/usr/bin/env python3
"""Adapters written by PEFT, with the log-probabilities of transformers: make.py (transformers 5.23.0, torch 2.15.0,
peft 0.21.2).

Each adapter has a folder with adapter_config.json, adapter_model.safetensors and expected.json (base, ids,
logprobs[t] = log p(ids[t+1] | ids[..t])). The base models are in ../goldens.
"""
import json
import math
import os

import peft
import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
ADAPTERS = {
    # Conv1D, one fused c_attn, ranks and alphas by layer, scales by the square root of the rank
    "gpt2-patterns": ("gpt2", dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True, use_rslora=True,
                                   rank_pattern={"attn.c_proj": 2, "h.1.attn.c_attn": 6}, alpha_pattern={"c_fc": 3, "transformer.h.0.mlp.c_proj": 20})),
    # q, k and v of each head side by side in one layer; adapters on some layers only
    "gpt_neox-layers": ("gpt_neox", dict(r=3, lora_alpha=5, target_modules=["query_key_value", "dense"], layers_to_transform=[0, 2])),
    # a regular expression as target_modules; an initialisation that does not change the base
    "llama-regex": ("llama", dict(r=2, lora_alpha=6, target_modules=r".*layers\.[02]\.(self_attn\.(q|v)|mlp\.up)_proj", init_lora_weights="gaussian", rank_pattern={r"layers\.2\..*v_proj": 5})),
}


def base_of(name):
    return transformers.AutoModelForCausalLM.from_pretrained(os.path.join(HERE, "..", "goldens", name), attn_implementation="eager", dtype=torch.float32).eval()


def main():
    torch.set_num_threads(1)
    for seed, (folder, (base, options)) in enumerate(ADAPTERS.items()):
        path = os.path.join(HERE, folder)
        tuned = peft.get_peft_model(base_of(base), peft.LoraConfig(task_type="CAUSAL_LM", **options))
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _, p in sorted(tuned.named_parameters()):
                if p.requires_grad:
                    p.copy_(torch.randn(p.shape, generator=g) / math.sqrt(p.shape[-1]))
        tuned.save_pretrained(path)
        os.remove(os.path.join(path, "README.md"))
        config = json.load(open(os.path.join(path, "adapter_config.json")))
        config["base_model_name_or_path"] = "../../goldens/" + base
        if isinstance(config["target_modules"], list):
            config["target_modules"].sort()
        with open(os.path.join(path, "adapter_config.json"), "w") as f:
            json.dump(config, f, indent=1, sort_keys=True)
            f.write("\n")
        ids = json.load(open(os.path.join(HERE, "..", "goldens", base, "golden.json")))["sequences"][1]["ids"]
        both = peft.PeftModel.from_pretrained(base_of(base), path).eval()
        with torch.no_grad():
            logprobs = torch.log_softmax(both(torch.tensor([ids])).logits[0].double(), -1)
            plain = torch.log_softmax(base_of(base)(torch.tensor([ids])).logits[0].double(), -1)
        rows = [logprobs[t, i].item() for t, i in enumerate(ids[1:])]
        assert max(abs(plain[t, i].item() - rows[t]) for t, i in enumerate(ids[1:])) > 0.5, folder
        with open(os.path.join(path, "expected.json"), "w") as f:
            json.dump({"base": base, "ids": ids, "logprobs": [round(x, 7) for x in rows]}, f)
            f.write("\n")
        for name in os.listdir(path):
            os.chmod(os.path.join(path, name), 0o644)


if __name__ == "__main__":
    main()
