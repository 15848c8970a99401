"""Prefill and decode of a GGUF file by llama.cpp, through llama-cpp-python's bindings of its C interface, without a
sampler, like llama-bench."""
import argparse

from common import pin, serve

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("--model", required=True)
p.add_argument("--test", choices=["prefill", "decode"], required=True)
p.add_argument("--tokens", type=int, required=True, help="of the prompt, or steps of decoding")
p.add_argument("--batch", type=int, default=1, help="answers decoded at once")
p.add_argument("--depth", type=int, default=32, help="tokens in the cache of each answer before decoding")
p.add_argument("--threads", type=int, default=2)
a = p.parse_args()
pin(a.threads)
import llama_cpp as ll

PROMPT, AT_ONCE = a.depth, 2048


@ll.llama_log_callback
def quiet(level, text, data):
    pass


ll.llama_log_set(quiet, None)
ll.llama_backend_init()
model = ll.llama_model_load_from_file(a.model.encode(), ll.llama_model_default_params())
if not model:
    raise SystemExit(f"llama.cpp does not load {a.model}")
vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))
c = ll.llama_context_default_params()
c.n_seq_max = a.batch
c.n_ctx = a.batch * ((a.tokens if a.test == "prefill" else PROMPT + a.tokens) + 64)
c.n_batch, c.n_ubatch, c.n_threads, c.n_threads_batch, c.no_perf = AT_ONCE, 512, a.threads, a.threads, True
context = ll.llama_init_from_model(model, c)
batch = ll.llama_batch_init(AT_ONCE, 0, 1)


def decode(rows):
    """Rows of (token, position, sequence, whether logits are wanted). A batch has at most AT_ONCE rows."""
    for at in range(0, len(rows), AT_ONCE):
        decode_batch(rows[at : at + AT_ONCE])


def decode_batch(rows):
    batch.n_tokens = len(rows)
    for i, (token, position, sequence, wanted) in enumerate(rows):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token % vocab, position, 1, wanted
        batch.seq_id[i][0] = sequence
    if ll.llama_decode(context, batch):
        raise SystemExit("llama_decode failed")
    ll.llama_synchronize(context)


def forget():
    ll.llama_memory_clear(ll.llama_get_memory(context), True)


def prefill():
    forget()
    decode([(i * 7919 + 13, i, 0, i == a.tokens - 1) for i in range(a.tokens)])


def decoding():
    """The prompts are computed once. For every repetition, the cache is shortened to the prompts."""
    for k in range(a.batch):
        ll.llama_memory_seq_rm(ll.llama_get_memory(context), k, PROMPT, -1)
    for i in range(a.tokens):
        decode([(i * 31 + k * 97 + 7, PROMPT + i, k, True) for k in range(a.batch)])


if a.test == "decode":
    decode([(i * 7919 + k * 131 + 13, i, k, i == PROMPT - 1) for k in range(a.batch) for i in range(PROMPT)])
info = ll.llama_print_system_info().decode()
serve(dict(tool="llama.cpp", version=ll.__version__, system=info, file_bytes=ll.llama_model_size(model)), prefill if a.test == "prefill" else decoding)
