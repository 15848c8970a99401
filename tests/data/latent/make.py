#!/usr/bin/env python3
"""Tiny DeepSeek models with golden answers. The arithmetic is plain Python floats, written from the published
modeling code (DeepSeek-V2 and V3, modeling_deepseek.py; YaRN: arXiv 2309.00071). It shares nothing with the
program under test.

    make.py DIR      writes DIR/deepseek_v2 and DIR/deepseek_v3: config.json, model.safetensors (f32), golden.json

golden.json: ids; logprobs[t] = log p(ids[t+1] | ids[..t]); greedy = the ids after the prompt (ids[:5]) by argmax;
min_margin = the smallest gap between the two largest logits of these steps.
The V2 model has no q-LoRA, softmax scores, and groups by their best expert. The V3 model has q-LoRA, sigmoids, a
bias that affects only the choice, groups by the sum of their best two experts, and YaRN.
"""
import json, math, os, random, struct, sys

BASE = dict(hidden_size=20, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=4,
            v_head_dim=5, intermediate_size=24, moe_intermediate_size=10, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2,
            first_k_dense_replace=1, moe_layer_freq=1, n_group=4, topk_group=2, vocab_size=40, max_position_embeddings=64, rms_norm_eps=1e-6,
            rope_theta=10000.0, hidden_act="silu", tie_word_embeddings=False, attention_bias=False, bos_token_id=0, eos_token_id=1)
MODELS = {
    "deepseek_v2": dict(BASE, model_type="deepseek_v2", architectures=["DeepseekV2ForCausalLM"], q_lora_rank=None, scoring_func="softmax",
                        topk_method="group_limited_greedy", norm_topk_prob=False, routed_scaling_factor=1.5, rope_scaling=None),
    "deepseek_v3": dict(BASE, model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"], q_lora_rank=7, scoring_func="sigmoid",
                        topk_method="noaux_tc", norm_topk_prob=True, routed_scaling_factor=2.5,
                        rope_scaling=dict(type="yarn", factor=4, original_max_position_embeddings=16, beta_fast=32, beta_slow=1, mscale=0.8,
                                          mscale_all_dim=0.8)),
}


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def weights_of(c, rng):
    d, n, h = c["hidden_size"], c["num_attention_heads"], c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    w = {}

    def matrix(name, rows, columns, scale=1.0):
        w[name] = [[f32(rng.gauss(0, scale / math.sqrt(columns))) for _ in range(columns)] for _ in range(rows)]

    def gain(name, size):
        w[name] = [f32(1 + rng.gauss(0, 0.2)) for _ in range(size)]

    def mlp(name, width):
        matrix(name + ".gate_proj.weight", width, d, 1.5), matrix(name + ".up_proj.weight", width, d, 1.5), matrix(name + ".down_proj.weight", d, width)

    matrix("model.embed_tokens.weight", c["vocab_size"], d, 4)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        gain(p + "input_layernorm.weight", d), gain(p + "post_attention_layernorm.weight", d)
        if c["q_lora_rank"]:
            matrix(p + "self_attn.q_a_proj.weight", c["q_lora_rank"], d), gain(p + "self_attn.q_a_layernorm.weight", c["q_lora_rank"])
            matrix(p + "self_attn.q_b_proj.weight", n * h, c["q_lora_rank"], 2)
        else:
            matrix(p + "self_attn.q_proj.weight", n * h, d, 2)
        matrix(p + "self_attn.kv_a_proj_with_mqa.weight", c["kv_lora_rank"] + c["qk_rope_head_dim"], d, 1.5)
        gain(p + "self_attn.kv_a_layernorm.weight", c["kv_lora_rank"])
        matrix(p + "self_attn.kv_b_proj.weight", n * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"], 1.5)
        matrix(p + "self_attn.o_proj.weight", d, n * c["v_head_dim"])
        if i < c["first_k_dense_replace"]:
            mlp(p + "mlp", c["intermediate_size"])
            continue
        matrix(p + "mlp.gate.weight", c["n_routed_experts"], d, 2)
        if c["topk_method"] == "noaux_tc":
            w[p + "mlp.gate.e_score_correction_bias"] = [f32(rng.uniform(0, 0.5)) for _ in range(c["n_routed_experts"])]
        mlp(p + "mlp.shared_experts", c["n_shared_experts"] * c["moe_intermediate_size"])
        for e in range(c["n_routed_experts"]):
            mlp(p + f"mlp.experts.{e}", c["moe_intermediate_size"])
    gain("model.norm.weight", d), matrix("lm_head.weight", c["vocab_size"], d, 2)
    return w


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b))


def times(m, x):
    return [dot(row, x) for row in m]


def norm(x, g, eps):
    r = 1 / math.sqrt(dot(x, x) / len(x) + eps)
    return [v * r * k for v, k in zip(x, g)]


def silu_mlp(w, name, x):
    gate, up = times(w[name + ".gate_proj.weight"], x), times(w[name + ".up_proj.weight"], x)
    return times(w[name + ".down_proj.weight"], [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)])


def frequencies(c):
    dim, base, s = c["qk_rope_head_dim"], c["rope_theta"], c["rope_scaling"]
    plain = [base ** (-2 * i / dim) for i in range(dim // 2)]
    if not s:
        return plain
    at = lambda turns: dim * math.log(s["original_max_position_embeddings"] / (turns * 2 * math.pi)) / (2 * math.log(base))
    low, high = max(math.floor(at(s["beta_fast"])), 0), min(math.ceil(at(s["beta_slow"])), dim - 1)
    ramp = [min(max((i - low) / ((high - low) or 0.001), 0), 1) for i in range(dim // 2)]
    return [f / s["factor"] * r + f * (1 - r) for f, r in zip(plain, ramp)]


def turned(x, position, freq):
    """Rotates as published: even elements, then odd ones, then (a, b) -> (a cos - b sin, b cos + a sin) of the halves."""
    x = x[0::2] + x[1::2]
    half, out = len(x) // 2, [0.0] * len(x)
    for i in range(half):
        cosine, sine = math.cos(position * freq[i]), math.sin(position * freq[i])
        out[i], out[i + half] = x[i] * cosine - x[i + half] * sine, x[i + half] * cosine + x[i] * sine
    return out


def best(values, count):
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]


def mixture(c, w, p, x):
    logits, used = times(w[p + "gate.weight"], x), c["num_experts_per_tok"]
    size = c["n_routed_experts"] // c["n_group"]
    groups = lambda v: [v[g * size:(g + 1) * size] for g in range(c["n_group"])]
    if c["scoring_func"] == "softmax":
        top = max(logits)
        scores = [math.exp(v - top) for v in logits]
        scores = [v / math.fsum(scores) for v in scores]
        compared, rank = scores, [max(g) for g in groups(scores)]
    else:
        scores = [1 / (1 + math.exp(-v)) for v in logits]
        compared = [s + b for s, b in zip(scores, w[p + "gate.e_score_correction_bias"])]
        rank = [sum(sorted(g)[-2:]) for g in groups(compared)]
    open_groups = best(rank, c["topk_group"])
    chosen = best([v if e // size in open_groups else 0.0 for e, v in enumerate(compared)], used)
    weight = [scores[e] for e in chosen]
    if c["norm_topk_prob"]:
        weight = [v / math.fsum(weight) for v in weight]
    out = silu_mlp(w, p + "shared_experts", x)
    for e, v in zip(chosen, weight):
        out = [o + v * c["routed_scaling_factor"] * y for o, y in zip(out, silu_mlp(w, p + f"experts.{e}", x))]
    return out


def logits_of(c, w, ids):
    n, plain, turn, value, eps = (c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "rms_norm_eps"))
    freq, scale, s = frequencies(c), 1 / math.sqrt(plain + turn), c["rope_scaling"]
    if s:
        scale *= (0.1 * s["mscale_all_dim"] * math.log(s["factor"]) + 1) ** 2
    rows = [list(w["model.embed_tokens.weight"][t]) for t in ids]
    for i in range(c["num_hidden_layers"]):
        p, queries, keys, values = f"model.layers.{i}.", [], [], []
        a = p + "self_attn."
        for t, x in enumerate(rows):
            y = norm(x, w[p + "input_layernorm.weight"], eps)
            q = times(w[a + "q_b_proj.weight"], norm(times(w[a + "q_a_proj.weight"], y), w[a + "q_a_layernorm.weight"], eps)) if c["q_lora_rank"] else times(
                w[a + "q_proj.weight"], y)
            row = times(w[a + "kv_a_proj_with_mqa.weight"], y)
            kv = times(w[a + "kv_b_proj.weight"], norm(row[:c["kv_lora_rank"]], w[a + "kv_a_layernorm.weight"], eps))
            shared, h, k = turned(row[c["kv_lora_rank"]:], t, freq), plain + turn, plain + value
            queries.append([q[j * h:j * h + plain] + turned(q[j * h + plain:(j + 1) * h], t, freq) for j in range(n)])
            keys.append([kv[j * k:j * k + plain] + shared for j in range(n)])
            values.append([kv[j * k + plain:(j + 1) * k] for j in range(n)])
        for t in range(len(rows)):
            said = []
            for j in range(n):
                score = [dot(queries[t][j], keys[u][j]) * scale for u in range(t + 1)]
                top = max(score)
                e = [math.exp(v - top) for v in score]
                all_ = math.fsum(e)
                said += [math.fsum(e[u] / all_ * values[u][j][d] for u in range(t + 1)) for d in range(value)]
            rows[t] = [x + y for x, y in zip(rows[t], times(w[a + "o_proj.weight"], said))]
        for t, x in enumerate(rows):
            y = norm(x, w[p + "post_attention_layernorm.weight"], eps)
            out = silu_mlp(w, p + "mlp", y) if i < c["first_k_dense_replace"] else mixture(c, w, p + "mlp.", y)
            rows[t] = [v + o for v, o in zip(x, out)]
    return [times(w["lm_head.weight"], norm(x, w["model.norm.weight"], eps)) for x in rows]


def save(path, w):
    header, body = {}, b""
    for name, value in w.items():
        flat = [v for row in value for v in row] if isinstance(value[0], list) else value
        data = struct.pack(f"<{len(flat)}f", *flat)
        header[name] = dict(dtype="F32", shape=[len(value), len(value[0])] if isinstance(value[0], list) else [len(value)],
                            data_offsets=[len(body), len(body) + len(data)])
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)


for name, c in MODELS.items():
    folder, rng = os.path.join(sys.argv[1], name), random.Random(7)
    os.makedirs(folder, exist_ok=True)
    w = weights_of(c, rng)
    ids = [rng.randrange(c["vocab_size"]) for _ in range(24)]
    logits, greedy, margin, said = logits_of(c, w, ids), ids[:5], math.inf, []
    for t in range(len(ids) - 1):
        top = max(logits[t])
        said.append(logits[t][ids[t + 1]] - top - math.log(math.fsum(math.exp(v - top) for v in logits[t])))
    for _ in range(12):
        last = logits_of(c, w, greedy)[-1]
        first, second = best(last, 2)
        margin = min(margin, last[first] - last[second])
        greedy.append(first)
    save(os.path.join(folder, "model.safetensors"), w)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(c, f, indent=1)
    with open(os.path.join(folder, "golden.json"), "w") as f:
        json.dump(dict(ids=ids, logprobs=[round(v, 9) for v in said], greedy=greedy[5:], min_margin=margin), f)
    print(name, "margin", margin, "mean logprob", sum(said) / len(said))
