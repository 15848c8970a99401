"""Training steps of a GPT in PyTorch on several processes over gloo: DDP or FSDP2.

The script starts the processes itself. The first one is timed."""

import argparse
import json
import os
import subprocess
import sys
import tempfile

from common import GPT, serve

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("--model", choices=GPT, required=True)
p.add_argument(
    "--how",
    choices=["ddp", "fsdp2", "one"],
    required=True,
    help="one: a single process with all sequences, for the losses",
)
p.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
p.add_argument("--batch", type=int, required=True, help="sequences of all processes together")
p.add_argument("--seq", type=int, required=True)
p.add_argument("--ranks", type=int, default=2)
p.add_argument("--losses", type=int, default=0, help="print the losses of this many steps, and end")
p.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
p.add_argument("--meet", default="", help=argparse.SUPPRESS)
a = p.parse_args()
ranks = 1 if a.how == "one" else a.ranks
others = []
if ranks > 1 and not a.meet:
    a.meet = tempfile.mktemp(prefix="rafter-gloo-")
    others = [
        subprocess.Popen(
            [sys.executable, *sys.argv, "--meet", a.meet, "--rank", str(r)], stdin=subprocess.DEVNULL
        )
        for r in range(1, ranks)
    ]
os.environ["OMP_NUM_THREADS"] = "1"
os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[a.rank % len(os.sched_getaffinity(0))]])
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from torch_gpt import Model, optimizer_of

torch.set_num_threads(1)
torch.set_flush_denormal(True)
torch.manual_seed(0)
if ranks > 1:
    dist.init_process_group("gloo", init_method=f"file://{a.meet}", rank=a.rank, world_size=ranks)
half = a.dtype == "bf16"
plain = model = Model(a.model, half=half and a.how != "fsdp2")

if a.how == "fsdp2":
    policy = (
        dict(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
        if half
        else {}
    )
    for block in model.blocks:
        fully_shard(block, **policy)
    fully_shard(model, **policy)
elif ranks > 1:
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
optimizer = optimizer_of(a.model, plain)
vocab, each = GPT[a.model]["vocab"], a.batch // ranks
labels = torch.randint(1, vocab, (a.batch, a.seq), generator=torch.Generator().manual_seed(1))
inputs = torch.cat([torch.zeros(a.batch, 1, dtype=torch.long), labels[:, :-1]], 1)
labels, inputs = labels[a.rank * each : (a.rank + 1) * each], inputs[a.rank * each : (a.rank + 1) * each]
asked = torch.ones(1)


def step():
    """All processes make a step if the first one asks for it."""
    if ranks > 1:
        dist.broadcast(asked, 0)
    if asked.item() == 0:
        return None
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half and a.how != "fsdp2"):
        logits = model(inputs)
    loss = F.cross_entropy(logits.float().view(-1, vocab), labels.view(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def timed():
    step()  # the value is not the time


if a.losses:
    out = []
    for _ in range(a.losses):
        loss = step()
        if ranks > 1:
            dist.all_reduce(loss)
        out.append(loss.item() / ranks)
    if a.rank == 0:
        print(json.dumps({"losses": out}))
elif a.rank == 0:
    serve(
        dict(
            tool={"ddp": "PyTorch DDP", "fsdp2": "PyTorch FSDP2"}.get(a.how, "PyTorch"),
            version=torch.__version__,
            ranks=ranks,
        ),
        timed,
    )
    asked.zero_()
    step()
else:
    while step() is not None:
        pass
if ranks > 1:
    dist.barrier()
    dist.destroy_process_group()
for other in others:
    other.wait()
if others and os.path.exists(a.meet):
    os.unlink(a.meet)
