"""Training steps and decoding of rafter's shapes in plain JAX on a GPU: unrolled, with donated state."""

import time

from models import MODELS, TOKENS, measure, options, report

a = options(__doc__)
import jax
import jax.numpy as jnp
import optax

s = MODELS[a.model]
width, heads, kv, dim, vocab = s["width"], s["heads"], s["kv"], s["dim"], s["vocab"]
store = jnp.float32 if a.work == "train" else jnp.bfloat16
act = jnp.bfloat16


def initial(key):
    keys = iter(jax.random.split(key, 16 * s["layers"] + 16))

    def weight(*shape):
        return (0.02 * jax.random.normal(next(keys), shape)).astype(store)

    def norm():
        return {"gain": jnp.ones(width, store), "bias": None if s["llama"] else jnp.zeros(width, store)}

    def linear(n, m):
        return {"w": weight(n, m), "b": None if s["llama"] else jnp.zeros(m, store)}

    def block():
        w = {
            "norm1": norm(),
            "qkv": linear(width, (heads + 2 * kv) * dim),
            "out": linear(heads * dim, width),
            "norm2": norm(),
        }
        w["up"], w["down"] = linear(width, s["ff"] * (2 if s["llama"] else 1)), linear(s["ff"], width)
        return w

    tree = {"tokens": weight(vocab, width), "blocks": [block() for _ in range(s["layers"])], "norm": norm()}
    if not s["llama"]:
        tree["positions"] = weight(s["context"], width)
    return tree


def normed(w, x):
    x = x.astype(jnp.float32)
    if s["llama"]:
        return (x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * w["gain"]).astype(act)
    mean = x.mean(-1, keepdims=True)
    return (
        (x - mean) * jax.lax.rsqrt(jnp.square(x - mean).mean(-1, keepdims=True) + 1e-5) * w["gain"]
        + w["bias"]
    ).astype(act)


def linear(w, x):
    y = x @ w["w"].astype(act)
    return y if w["b"] is None else y + w["b"].astype(act)


def rope(x, positions):
    angle = positions[..., None, None] * 5e5 ** (-jnp.arange(0, dim, 2) / dim)
    sin, cos, (u, v) = jnp.sin(angle), jnp.cos(angle), jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([u * cos - v * sin, v * cos + u * sin], -1).astype(act)


def mlp(w, x):
    y = linear(w["up"], normed(w["norm2"], x))
    if not s["llama"]:
        return linear(w["down"], jax.nn.gelu(y, approximate=True))
    gate, up = jnp.split(y, 2, -1)
    return linear(w["down"], jax.nn.silu(gate) * up)


def heads_of(w, x, positions):
    b, t, _ = x.shape
    q, k, v = jnp.split(
        linear(w["qkv"], normed(w["norm1"], x)).reshape(b, t, heads + 2 * kv, dim),
        [heads, heads + kv],
        axis=2,
    )
    return (rope(q, positions), rope(k, positions), v) if s["llama"] else (q, k, v)


def attend(q, k, v, mask=None):
    """q (b,t,heads,dim), k and v (b,T,kv,dim); without a mask: causal."""
    if a.attention == "fused":
        return jax.nn.dot_product_attention(
            q, k, v, mask=mask, is_causal=mask is None, implementation="cudnn"
        )
    q = q.reshape(*q.shape[:2], kv, heads // kv, dim)
    scores = jnp.einsum("bqkgd,bskd->bkgqs", q, k, preferred_element_type=jnp.float32) * dim**-0.5
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool)) if mask is None else mask[:, :, None]
    scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    return jnp.einsum("bkgqs,bskd->bqkgd", jax.nn.softmax(scores, axis=-1).astype(act), v).reshape(
        *q.shape[:2], heads, dim
    )


def embed(w, ids, positions):
    x = w["tokens"][ids].astype(act)
    return x if s["llama"] else x + w["positions"][positions].astype(act)


def loss_of(w, ids, labels):
    positions = jnp.arange(ids.shape[1])[None]
    x = embed(w, ids, positions)
    for block in w["blocks"]:
        x = x + linear(
            block["out"], attend(*heads_of(block, x, positions)).reshape(*x.shape[:2], heads * dim)
        )
        x = x + mlp(block, x)
    logits = normed(w["norm"], x) @ w["tokens"].astype(act).T
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels).mean()


adam = optax.adamw(3e-4, b1=0.9, b2=0.95, weight_decay=0.1)


def train_step(state, ids, labels):
    w, moments = state
    loss, grad = jax.value_and_grad(loss_of)(w, ids, labels)
    updates, moments = adam.update(grad, moments, w)
    return (optax.apply_updates(w, updates), moments), loss


def decode_step(w, state):
    """One token for each answer: state is (caches of keys and values, ids (b,1), position)."""
    cache, ids, at = state
    x = embed(w, ids, jnp.full((1, 1), at))
    mask = (jnp.arange(a.seq) <= at)[None, None, None]
    after = []
    for block, (keys, values) in zip(w["blocks"], cache):
        q, k, v = heads_of(block, x, jnp.full((1, 1), at))
        keys, values = jax.lax.dynamic_update_slice(keys, k, (0, at, 0, 0)), jax.lax.dynamic_update_slice(
            values, v, (0, at, 0, 0)
        )
        after.append((keys, values))
        x = x + linear(block["out"], attend(q, keys, values, mask).reshape(*x.shape[:2], heads * dim))
        x = x + mlp(block, x)
    logits = (normed(w["norm"], x) @ w["tokens"].T).astype(jnp.float32)
    return after, jnp.argmax(logits, -1).astype(jnp.int32), at + 1


key = jax.random.key(0)
weights = jax.jit(initial)(key)
ids = jax.random.randint(key, (a.batch, a.seq), 1, vocab)
start = time.perf_counter()
if a.work == "train":
    state = (weights, jax.jit(adam.init)(weights))
    del weights
    lowered = jax.jit(train_step, donate_argnums=0).lower(state, ids, ids)
else:
    a.attention = "plain"  # cuDNN's attention has no use for one query
    cache = [tuple(jnp.zeros((a.batch, a.seq, kv, dim), act) for _ in range(2)) for _ in range(s["layers"])]
    state = (cache, ids[:, :1], jnp.int32(0))
    lowered = jax.jit(decode_step, donate_argnums=1).lower(weights, state)
if a.text:  # for hlo_times.py
    with open(a.text, "w") as file:
        file.write(lowered.as_text())
    raise SystemExit
program = lowered.compile()
compiled = time.perf_counter() - start


def step():
    global state
    if a.work == "train":
        state, loss = program(state, ids, ids)
        loss.block_until_ready()
    else:  # the next step does not wait for the host
        for _ in range(TOKENS):
            state = program(weights, state)
        state[1].block_until_ready()


m = program.memory_analysis()
total = m.argument_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes + m.temp_size_in_bytes
seconds = measure(a, step, 3)
report(
    f"JAX {jax.__version__}",
    a,
    seconds,
    compile_seconds=compiled,
    program_bytes=total,
    peak_bytes=(jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use"),
)
