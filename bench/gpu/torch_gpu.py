"""Training steps and decoding of rafter's shapes in PyTorch on a GPU: torch.compile, fused AdamW."""

import time

from models import MODELS, TOKENS, measure, options, report

a = options(__doc__)
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
s = MODELS[a.model]
width, heads, kv, dim, vocab = s["width"], s["heads"], s["kv"], s["dim"], s["vocab"]
bias = not s["llama"]


def norm():
    return nn.RMSNorm(width, eps=1e-5) if s["llama"] else nn.LayerNorm(width)


def rope(x, positions):
    """x (b,heads,t,dim), positions (t)."""
    angle = positions[:, None] * 5e5 ** (-torch.arange(0, dim, 2, device=x.device) / dim)
    sin, cos, (u, v) = angle.sin(), angle.cos(), x.float().chunk(2, -1)
    return torch.cat([u * cos - v * sin, v * cos + u * sin], -1).to(x.dtype)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = norm(), norm()
        self.qkv, self.out = nn.Linear(width, (heads + 2 * kv) * dim, bias=bias), nn.Linear(
            heads * dim, width, bias=bias
        )
        self.up, self.down = nn.Linear(width, s["ff"] * (2 if s["llama"] else 1), bias=bias), nn.Linear(
            s["ff"], width, bias=bias
        )

    def forward(self, x, positions, cache=None, mask=None):
        b, t, _ = x.shape
        q, k, v = (
            y.view(b, t, -1, dim).transpose(1, 2)
            for y in self.qkv(self.norm1(x)).split([heads * dim, kv * dim, kv * dim], -1)
        )
        if s["llama"]:
            q, k = rope(q, positions), rope(k, positions)
        if cache is not None:
            cache[0].index_copy_(2, positions, k)
            cache[1].index_copy_(2, positions, v)
            k, v = cache
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=heads != kv
        )
        x = x + self.out(y.transpose(1, 2).reshape(b, t, heads * dim))
        y = self.up(self.norm2(x))
        if s["llama"]:
            gate, up = y.chunk(2, -1)
            return x + self.down(F.silu(gate) * up)
        return x + self.down(F.gelu(y, approximate="tanh"))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.blocks, self.norm = (
            nn.Embedding(vocab, width),
            nn.ModuleList(Block() for _ in range(s["layers"])),
            norm(),
        )
        self.positions = None if s["llama"] else nn.Embedding(s["context"], width)

    def forward(self, ids, positions, cache=None, mask=None):
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions(positions)
        for i, block in enumerate(self.blocks):
            x = block(x, positions, cache[i] if cache else None, mask)
        return F.linear(self.norm(x), self.tokens.weight)


with torch.device("cuda"):
    model = Model()
    ids = torch.randint(1, vocab, (a.batch, a.seq))
start = time.perf_counter()
if a.work == "train":
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    positions = torch.arange(a.seq, device="cuda")

    @torch.compile
    def loss_of(ids):
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids, positions)
        return F.cross_entropy(logits.view(-1, vocab).float(), ids.view(-1))

    def step():
        loss = loss_of(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()

else:
    model = model.bfloat16().requires_grad_(False)
    cache = [
        [torch.zeros(a.batch, kv, a.seq, dim, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
        for _ in range(s["layers"])
    ]
    at, token, every = (
        torch.zeros(1, dtype=torch.long, device="cuda"),
        ids[:, :1].clone(),
        torch.arange(a.seq, device="cuda"),
    )

    @torch.compile(mode="reduce-overhead")
    def next_of(token, at):
        return model(token, at, cache, (every <= at)[None, None, None]).argmax(-1)

    def step():
        for _ in range(TOKENS):
            token.copy_(next_of(token, at))
            at.add_(1)
        torch.cuda.synchronize()


step()
compiled = time.perf_counter() - start
seconds = measure(a, step, 2)
report(
    f"PyTorch {torch.__version__}, torch.compile",
    a,
    seconds,
    compile_seconds=compiled,
    peak_bytes=torch.cuda.max_memory_allocated(),
)
