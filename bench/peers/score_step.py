"""Log-probabilities of given texts and the likeliest tokens at every position, for Gemma 3 270M with random
weights in transformers + PyTorch: eager mode, fused attention. Logits are computed for some rows at a time, so
that memory never holds all of them."""
import argparse

from common import GEMMA, pin, serve

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("--tokens", type=int, default=8192)
p.add_argument("--text", type=int, default=1024)
p.add_argument("--top", type=int, default=128)
p.add_argument("--rows", type=int, default=256, help="whose logits stand in memory at once")
p.add_argument("--threads", type=int, default=2)
a = p.parse_args()
pin(a.threads)
from hf_model import gemma
import torch
import transformers

torch.set_num_threads(a.threads)
model = gemma(torch.bfloat16)
head = model.get_output_embeddings().weight
texts = torch.randint(10, GEMMA["vocab_size"], (a.tokens // a.text, a.text))


def scored(ids):
    hidden = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
    labels = torch.cat([ids[1:], ids[:1]])
    for at in range(0, len(ids), a.rows):
        logits = (hidden[at:at + a.rows] @ head.T).float()
        lse = logits.logsumexp(-1, keepdim=True)
        best = logits.topk(a.top)
        yield logits.gather(1, labels[at:at + a.rows, None]) - lse, best.values - lse, best.indices


def score():
    with torch.inference_mode():
        return [sum(logprob.sum().item() for logprob, _, _ in scored(ids)) for ids in texts]


serve(dict(tool="PyTorch", version=f"{torch.__version__}, transformers {transformers.__version__}"), score)
