"""A training step (forward, backward, optimizer) of a GPT in plain JAX: layers unrolled, the state donated, bf16 activations over f32 weights for bf16."""
import argparse
import os

from common import GPT, pin, serve

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("--model", choices=GPT, required=True)
p.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
p.add_argument("--batch", type=int, required=True)
p.add_argument("--seq", type=int, required=True)
p.add_argument("--accumulate", type=int, default=1)
p.add_argument("--remat", choices=["none", "block"], default="none")
p.add_argument("--threads", type=int, default=2)
p.add_argument("--stablehlo", metavar="FILE", help="write the step's program as text, and stop")
a = p.parse_args()
pin(a.threads)
os.environ["JAX_PLATFORMS"], os.environ["NPROC"] = "cpu", str(a.threads)
import jax
import jax.numpy as jnp
import optax

s = GPT[a.model]
width, heads, vocab, dim = s["width"], s["heads"], s["vocab"], s["width"] // s["heads"]
act = jnp.bfloat16 if a.dtype == "bf16" else jnp.float32


def initial(key):
    keys = iter(jax.random.split(key, 8 * s["layers"] + 8))

    def weight(*shape):
        return 0.02 * jax.random.normal(next(keys), shape)

    def norm():
        return {"gain": jnp.ones(width), "bias": jnp.zeros(width)}

    def block():
        return {"attention": {"norm": norm(), "qkv": weight(width, 3 * width), "qkv_bias": jnp.zeros(3 * width), "out": weight(width, width), "out_bias": jnp.zeros(width)},
                "mlp": {"norm": norm(), "up": weight(width, s["ff"]), "up_bias": jnp.zeros(s["ff"]), "down": weight(s["ff"], width), "down_bias": jnp.zeros(width)}}

    tree = {"tokens": weight(vocab, width), "positions": weight(s["max_seq"], width), "blocks": [block() for _ in range(s["layers"])], "norm": norm()}
    if s["uva"]:
        tree["head"], tree["head_bias"] = weight(width, vocab), jnp.zeros(vocab)
    return tree


def layer_norm(w, x):
    x = x.astype(jnp.float32)
    mean = x.mean(-1, keepdims=True)
    return ((x - mean) * jax.lax.rsqrt(jnp.square(x - mean).mean(-1, keepdims=True) + 1e-5) * w["gain"] + w["bias"]).astype(act)


def dense(x, w, b):
    return x @ w.astype(act) + b.astype(act)


def attention(w, x):
    b, t, _ = x.shape
    q, k, v = jnp.split(dense(layer_norm(w["norm"], x), w["qkv"], w["qkv_bias"]).reshape(b, t, heads, 3 * dim), 3, axis=-1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q * dim**-0.5, k).astype(jnp.float32)
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, jnp.finfo(jnp.float32).min)
    return dense(jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1).astype(act), v).reshape(b, t, width), w["out"], w["out_bias"])


def mlp(w, x):
    return dense(jax.nn.gelu(dense(layer_norm(w["norm"], x), w["up"], w["up_bias"]), approximate=True), w["down"], w["down_bias"])


def block(w, x):
    for name, part in (("mlp", mlp), ("attention", attention)) if s["uva"] else (("attention", attention), ("mlp", mlp)):
        x = x + part(w[name], x)
    return x


if a.remat == "block":
    block = jax.checkpoint(block)


def loss_of(w, inputs, labels):
    x = w["tokens"].astype(act)[inputs] + w["positions"].astype(act)[: inputs.shape[1]]
    for one in w["blocks"]:
        x = block(one, x)
    x = layer_norm(w["norm"], x)
    logits = dense(x, w["head"], w["head_bias"]) if s["uva"] else x @ w["tokens"].astype(act).T
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels).mean()


optimizer = optax.adam(4e-4) if s["uva"] else optax.adamw(3e-4, b1=0.9, b2=0.95, weight_decay=0.1, mask=lambda w: jax.tree.map(lambda x: x.ndim > 1, w))


def train_step(state, inputs, labels):
    w, moments = state
    if a.accumulate == 1:
        loss, g = jax.value_and_grad(loss_of)(w, inputs, labels)
    else:
        def one(sums, batch):
            return jax.tree.map(jnp.add, sums, jax.value_and_grad(loss_of)(w, *batch)), None

        def cut(x):
            return x.reshape(a.accumulate, a.batch // a.accumulate, a.seq)

        sums, _ = jax.lax.scan(one, (jnp.zeros(()), jax.tree.map(jnp.zeros_like, w)), (cut(inputs), cut(labels)))
        loss, g = jax.tree.map(lambda x: x / a.accumulate, sums)
    updates, moments = optimizer.update(g, moments, w)
    return (optax.apply_updates(w, updates), moments), loss


weights = jax.jit(initial)(jax.random.key(0))
parameters = sum(x.size for x in jax.tree.leaves(weights))
state = [(weights, jax.jit(optimizer.init)(weights))]
del weights
labels = jax.random.randint(jax.random.key(1), (a.batch, a.seq), 1, vocab)
inputs = jnp.pad(labels[:, :-1], ((0, 0), (1, 0)))
lowered = jax.jit(train_step, donate_argnums=0).lower(state[0], inputs, labels)
if a.stablehlo:
    with open(a.stablehlo, "w") as f:
        f.write(lowered.as_text())
    raise SystemExit
compiled = lowered.compile()


def step():
    state[0], loss = compiled(state[0], inputs, labels)
    jax.block_until_ready(state[0])
    return float(loss)


serve(dict(tool="JAX", version=jax.__version__, parameters=parameters), step)
