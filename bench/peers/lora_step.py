"""A LoRA training step (rank 16 on every matrix of a layer) of the 1.1B Llama in transformers + peft: a frozen bf16 base, adapters in f32."""
import argparse

from common import LLAMA, pin, serve

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("--seq", type=int, default=512)
p.add_argument("--rank", type=int, default=16)
p.add_argument("--threads", type=int, default=2)
a = p.parse_args()
pin(a.threads)
from hf_model import llama
import peft
import torch
import transformers

torch.set_num_threads(a.threads)
torch.set_flush_denormal(True)
targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
model = peft.get_peft_model(llama(torch.bfloat16), peft.LoraConfig(r=a.rank, lora_alpha=2 * a.rank, target_modules=targets, task_type="CAUSAL_LM")).train()
optimizer = torch.optim.AdamW([q for q in model.parameters() if q.requires_grad], lr=2e-4, fused=True)
ids = torch.randint(10, LLAMA["vocab_size"], (1, a.seq))


def step():
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


serve(dict(tool="transformers + peft", version=f"{transformers.__version__} + {peft.__version__}", torch=torch.__version__,
           parameters=sum(q.numel() for q in model.parameters() if q.requires_grad)), step)
