"""The GPT of the PyTorch scripts, and its optimizer: fused attention, fused AdamW."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from common import GPT


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )

    def forward(self, x):
        b, t, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, width)
        )


class MLP(nn.Module):
    def __init__(self, width, ff):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, ff), nn.Linear(ff, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(self.norm(x)), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.uva = s["uva"]
        self.attention, self.mlp = Attention(s["width"], s["heads"]), MLP(s["width"], s["ff"])

    def forward(self, x):
        for part in (self.mlp, self.attention) if self.uva else (self.attention, self.mlp):
            x = x + part(x)
        return x


class Model(nn.Module):
    """forward(ids) gives the logits. With half, the residual stream is bf16."""

    def __init__(self, name, half=False, remat=False):
        super().__init__()
        s = GPT[name]
        self.half_stream, self.remat = half, remat
        self.tokens, self.positions = nn.Embedding(s["vocab"], s["width"]), nn.Parameter(
            torch.empty(s["max_seq"], s["width"])
        )
        self.blocks = nn.ModuleList(Block(s) for _ in range(s["layers"]))
        self.norm, self.head = nn.LayerNorm(s["width"]), nn.Linear(s["width"], s["vocab"], bias=s["uva"])
        for q in self.parameters():
            if q.dim() > 1:
                nn.init.normal_(q, std=0.02)
        if not s["uva"]:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.positions[: ids.shape[1]]
        if self.half_stream:
            x = x.to(torch.bfloat16)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.remat else block(x)
        return self.head(self.norm(x))


def optimizer_of(name, model):
    if GPT[name]["uva"]:
        return torch.optim.Adam(model.parameters(), lr=4e-4, fused=True)
    groups = [
        dict(params=[q for q in model.parameters() if q.dim() > 1], weight_decay=0.1),
        dict(params=[q for q in model.parameters() if q.dim() < 2], weight_decay=0.0),
    ]
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
