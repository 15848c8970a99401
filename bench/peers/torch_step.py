"""A training step (forward, backward, optimizer) of a GPT in eager PyTorch: fused attention, fused AdamW, autocast for bf16."""
import argparse

from common import GPT, pin, serve

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("--model", choices=GPT, required=True)
p.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
p.add_argument("--batch", type=int, required=True)
p.add_argument("--seq", type=int, required=True)
p.add_argument("--accumulate", type=int, default=1)
p.add_argument("--remat", choices=["none", "block"], default="none")
p.add_argument("--threads", type=int, default=2)
a = p.parse_args()
pin(a.threads)
import torch
import torch.nn.functional as F

from torch_gpt import Model, optimizer_of

torch.set_num_threads(a.threads)
torch.set_flush_denormal(True)
torch.manual_seed(0)
vocab = GPT[a.model]["vocab"]
model = Model(a.model, half=a.dtype == "bf16", remat=a.remat == "block")
optimizer = optimizer_of(a.model, model)
labels = torch.randint(1, vocab, (a.batch, a.seq))
inputs = torch.cat([torch.zeros(a.batch, 1, dtype=torch.long), labels[:, :-1]], 1)
micro = a.batch // a.accumulate


def step():
    for i in range(0, a.batch, micro):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.dtype == "bf16"):
            logits = model(inputs[i:i + micro]).float().view(-1, vocab)
            loss = F.cross_entropy(logits, labels[i:i + micro].view(-1)) / a.accumulate
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


serve(dict(tool="PyTorch", version=torch.__version__, parameters=sum(q.numel() for q in model.parameters()), isa=torch.backends.cpu.get_cpu_capability()), step)
