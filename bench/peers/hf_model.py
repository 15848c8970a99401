"""Models of common.py in transformers, with random weights."""
from common import GEMMA, LLAMA
import torch
import transformers

try:
    from transformers.initialization import no_init_weights
except ImportError:
    from transformers.modeling_utils import no_init_weights

transformers.logging.set_verbosity_error()


def build(kind, shape, dtype):
    # drawing 10^9 numbers would take minutes, so weights are copied from a short table
    with no_init_weights():
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **shape), dtype=dtype).eval()
    model.tie_weights()
    table = (0.02 * torch.randn(1 << 20)).to(dtype)
    with torch.no_grad():
        for q in model.parameters():
            flat = q.view(-1)
            for i in range(0, flat.numel(), table.numel()):
                part = flat[i:i + table.numel()]
                part.copy_(table[: part.numel()] if q.dim() > 1 else torch.ones_like(part))
    return model


def llama(dtype):
    return build("llama", LLAMA, dtype)


def gemma(dtype):
    return build("gemma3_text", GEMMA, dtype)
