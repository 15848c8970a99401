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
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(a.threads)
torch.set_flush_denormal(True)
torch.manual_seed(0)
s = GPT[a.model]
width, heads, vocab = s["width"], s["heads"], s["vocab"]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, width))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, s["ff"]), nn.Linear(s["ff"], width)

    def forward(self, x):
        return self.down(F.gelu(self.up(self.norm(x)), approximate="tanh"))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.mlp = Attention(), MLP()

    def forward(self, x):
        for part in (self.mlp, self.attention) if s["uva"] else (self.attention, self.mlp):
            x = x + part(x)
        return x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Parameter(torch.empty(s["max_seq"], width))
        self.blocks = nn.ModuleList(Block() for _ in range(s["layers"]))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=s["uva"])
        for q in self.parameters():
            if q.dim() > 1:
                nn.init.normal_(q, std=0.02)
        if not s["uva"]:
            self.head.weight = self.tokens.weight

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.positions[: ids.shape[1]]
        if a.dtype == "bf16":
            x = x.to(torch.bfloat16)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if a.remat == "block" else block(x)
        return F.cross_entropy(self.head(self.norm(x)).float().view(-1, vocab), labels.view(-1))


model = Model()
if s["uva"]:
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-4, fused=True)
else:
    groups = [dict(params=[q for q in model.parameters() if q.dim() > 1], weight_decay=0.1), dict(params=[q for q in model.parameters() if q.dim() < 2], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
labels = torch.randint(1, vocab, (a.batch, a.seq))
inputs = torch.cat([torch.zeros(a.batch, 1, dtype=torch.long), labels[:, :-1]], 1)
micro = a.batch // a.accumulate


def step():
    for i in range(0, a.batch, micro):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.dtype == "bf16"):
            loss = model(inputs[i:i + micro], labels[i:i + micro]) / a.accumulate
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


serve(dict(tool="PyTorch", version=torch.__version__, parameters=sum(q.numel() for q in model.parameters()), isa=torch.backends.cpu.get_cpu_capability()), step)
