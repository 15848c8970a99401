"""Prefill and decode of the 1.1B Llama with random weights in transformers: eager, PyTorch's fused attention, its own cache."""
import argparse

from common import LLAMA, pin, serve

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("--test", choices=["prefill", "decode"], required=True)
p.add_argument("--tokens", type=int, required=True)
p.add_argument("--batch", type=int, default=1)
p.add_argument("--threads", type=int, default=2)
a = p.parse_args()
pin(a.threads)
from hf_model import llama
import torch
import transformers

torch.set_num_threads(a.threads)
model = llama(torch.bfloat16)
PROMPT = a.tokens if a.test == "prefill" else 32
ids = torch.randint(10, LLAMA["vocab_size"], (a.batch, PROMPT))


def prefill():
    with torch.inference_mode():
        return model(ids, use_cache=True, logits_to_keep=1)


def decoding():
    """The prompt is computed once. After every repetition, the cache is shortened to the prompt."""
    with torch.inference_mode():
        token = ids[:, :1]
        for _ in range(a.tokens):
            token = model(token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
        cache.crop(-a.tokens)  # removes the tokens of the last repetition


if a.test == "decode":
    cache = prefill().past_key_values
serve(dict(tool="transformers", version=transformers.__version__, torch=torch.__version__), prefill if a.test == "prefill" else decoding)
