#!/usr/bin/env python3
"""Writes losses.json next to this file: the losses of reinforcement learning and of preferences,
computed by PyTorch in f64 from the formulas of the papers (src/graph/ops/policy.c names them).

"ops" has inputs, loss rows and gradients of the nll for each loss. "steps" has gradients of LoRA
adapters of the tiny model goldens/mistral, through a whole step. Needs torch and numpy."""
import json, math, pathlib, struct
import numpy, torch

HERE = pathlib.Path(__file__).parent
LONGEST = 9  # the constant by which Dr. GRPO divides
DOUBLE = torch.float64


def narrow(values):
    """Numbers of f32, as f64."""
    return torch.tensor(numpy.asarray(values, numpy.float32).astype(numpy.float64))


# ---- rows -----------------------------------------------------------------------------------------

def rows_of(lengths, prompts, pad):
    """Rows of sequences. Row r scores token r + 1, so the last row of a sequence has no label."""
    starts, counted, at = [], [], 0
    for length, prompt in zip(lengths, prompts):
        starts.append(at)
        counted.append(list(range(at + prompt - 1, at + length - 1)))
        at += length
    return starts, counted, at + pad


def draw(name, lengths, prompts, seed):
    generator = numpy.random.default_rng(seed)
    starts, counted, count = rows_of(lengths, prompts, 3)
    if name not in PAIRS: counted[1] = counted[1][1:]  # a token with weight 0 has no loss
    all_rows = [r for rows in counted for r in rows]
    logp = -numpy.abs(generator.normal(1.4, 0.6, count))
    data = {
        "logp": logp, "old": logp + generator.normal(0, 0.25, count),
        "reference": logp + generator.normal(0, 0.5, count),
        "rewards": generator.normal(0, 1, len(lengths)), "token_rewards": generator.normal(0, 1, count),
    }
    data = {key: narrow(values) for key, values in data.items()}
    data["logp"].requires_grad_()
    labels = [-1] * count
    for r in all_rows: labels[r] = int(generator.integers(0, 50))
    if name not in PAIRS: labels[counted[1][0] - 1] = 7
    segments = starts + [sum(lengths)] + [count] * (count - len(starts))
    return data, counted, labels, segments[:count + 1]


# ---- losses of policies, each as its paper writes it ----------------------------------------------

def clipped(ratio, advantage, low, high):
    return torch.minimum(ratio * advantage, torch.clamp(ratio, 1 - low, 1 + high) * advantage)


def policy(name, data, counted):
    """Returns the settings of the op, the advantages and weights of rows, and the loss of rows."""
    logp, old, reference, rewards = (data[k] for k in ("logp", "old", "reference", "rewards"))
    count, group, total = len(logp), len(counted), sum(len(rows) for rows in counted)
    normal = (rewards - rewards.mean()) / (rewards.std(unbiased=True) + 1e-4)
    others = (rewards.sum() - rewards) / (group - 1)
    each = {"grpo": normal, "dr-grpo": rewards - rewards.mean(), "dapo": normal, "rloo": rewards - others,
            "gspo": normal, "cispo": normal}.get(name)
    low, high, beta = {"grpo": (0.2, 0.2, 0.04), "dapo": (0.2, 0.28, 0), "gspo": (0.03, 0.04, 0.01),
                       "cispo": (1, 0.3, 0)}.get(name, (0.2, 0.2, 0))
    low, high, beta = (float(numpy.float32(x)) for x in (low, high, beta))
    level = {"gspo": 1, "rloo": 2}.get(name, 0)
    clip = {"rloo": 0, "cispo": 2}.get(name, 1)
    advantages, weights, losses = narrow(numpy.zeros(count)), narrow(numpy.zeros(count)), {}
    for i, rows in enumerate(counted):
        apart = logp[rows] - old[rows]
        if each is None:  # REINFORCE++: each token has an advantage
            centered = data["token_rewards"] - data["token_rewards"].mean()
            advantages[rows] = narrow((centered / data["token_rewards"].std())[rows].detach())
        else:
            advantages[rows] = narrow(each[i].detach())
        a = advantages[rows]
        share = {"grpo": 1 / group / len(rows), "dr-grpo": 1 / group / LONGEST, "rloo": 1 / group / len(rows),
                 "gspo": 1 / group / len(rows)}.get(name, 1 / total)
        weights[rows] = narrow(share)
        share = weights[rows]
        if level == 1: loss = -clipped(torch.exp(apart.mean()), a, low, high)
        elif level == 2: loss = -torch.exp(apart.sum()) * a
        elif clip == 2: loss = -torch.clamp(torch.exp(apart), max=1 + high).detach() * a * logp[rows]
        else: loss = -clipped(torch.exp(apart), a, low, high)
        if beta:
            k3 = torch.exp(reference[rows] - logp[rows]) - (reference[rows] - logp[rows]) - 1
            loss = loss + beta * k3
        for j, r in enumerate(rows): losses[r] = (share * loss)[j]
    settings = {"level": level, "clip": clip, "clip_low": low, "clip_high": high, "beta": beta}
    return settings, advantages, weights, losses, None


# ---- losses of pairs ------------------------------------------------------------------------------

PAIRS = {"dpo": (0, 0.1, 0, 0), "dpo-smoothed": (0, 0.5, 0, 0.1), "ipo": (1, 0.1, 0, 0),
         "simpo": (2, 2.0, 0.6, 0)}


def pairs(name, data, counted):
    kind, beta, gamma, smoothing = PAIRS[name]
    beta, gamma, smoothing = (float(numpy.float32(x)) for x in (beta, gamma, smoothing))
    logp, reference = data["logp"], data["reference"]
    weights, losses, margins = narrow(numpy.zeros(len(logp))), {}, {}
    share = float(numpy.float32(2 / len(counted)))
    for good, bad in zip(counted[0::2], counted[1::2]):
        weights[good + bad] = share
        policy_good, policy_bad = logp[good].sum(), logp[bad].sum()
        base_good, base_bad = reference[good].sum(), reference[bad].sum()
        sigmoid = torch.nn.functional.logsigmoid
        if kind == 0:
            apart = (policy_good - policy_bad) - (base_good - base_bad)
            loss = -sigmoid(beta * apart) * (1 - smoothing) - sigmoid(-beta * apart) * smoothing
        elif kind == 1:
            apart = (policy_good - base_good) / len(good) - (policy_bad - base_bad) / len(bad)
            loss = (apart - 1 / (2 * beta)) ** 2
        else:
            apart = policy_good / len(good) - policy_bad / len(bad)
            loss = -sigmoid(beta * apart - gamma)
        losses[good[0]] = share * loss
        margins[good[0]] = (beta * apart).item()
    settings = {"kind": kind, "beta": beta, "gamma": gamma, "smoothing": smoothing}
    return settings, None, weights, losses, margins


def numbers(tensor):
    return [float(f"{x:.9g}") for x in tensor.tolist()]


POLICIES = ("grpo", "dr-grpo", "dapo", "rloo", "gspo", "reinforce++", "cispo")


def compute(name, data, counted):
    return (pairs if name in PAIRS else policy)(name, data, counted)


def op_case(name, seed):
    data, counted, labels, segments = draw(name, [7, 9, 5, 12, 8, 10], [3, 4, 2, 4, 1, 6], seed)
    settings, advantages, weights, losses, margins = compute(name, data, counted)
    sum(losses.values()).backward()
    rows = torch.zeros(len(labels), dtype=DOUBLE)
    for r, loss in losses.items(): rows[r] = loss.item()
    case = {"name": name, "settings": settings, "labels": labels, "segments": segments,
            "nll": numbers(-data["logp"]), "old": numbers(data["old"]),
            "reference": numbers(data["reference"]), "weights": numbers(weights), "loss": numbers(rows),
            "dnll": numbers(-data["logp"].grad)}
    if advantages is not None: case["advantages"] = numbers(advantages)
    if margins is not None:  # in the first row of the segment
        ends = sorted(margins)
        starts = [segments[2 * k] for k in range(len(ends))]
        rows = torch.zeros(len(labels), dtype=DOUBLE)
        for start, end in zip(starts, ends): rows[start] = margins[end]
        case["margins"] = numbers(rows)
    return case


# ---- a model --------------------------------------------------------------------------------------

class Model:
    """A model of the Llama family with adapters: y = x W + scale (x A) B."""

    def __init__(self, folder, rank, alpha):
        self.config = json.loads((folder / "config.json").read_text())
        raw = (folder / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        self.weight = {}
        for name, entry in json.loads(raw[8:8 + size]).items():
            if name == "__metadata__": continue
            begin, end = entry["data_offsets"]
            values = numpy.frombuffer(raw[8 + size + begin:8 + size + end], "<f4")
            self.weight[name] = torch.tensor(values.astype(numpy.float64)).reshape(entry["shape"])
        self.scale, self.adapter = alpha / rank, {}
        for layer in range(self.config["num_hidden_layers"]):
            for kind, parts in enumerate(self.parts()):
                inputs = self.linear(layer, parts[0]).shape[1]
                outputs = sum(self.linear(layer, part).shape[0] for part in parts)
                for side, shape in enumerate([(inputs, len(parts) * rank), (rank, outputs)]):
                    i = numpy.arange(shape[0] * shape[1])
                    values = 0.2 * numpy.cos(0.7 * i + layer + 10 * kind + 100 * side)
                    a = narrow(values).reshape(shape).requires_grad_()
                    self.adapter[layer, kind, side] = a
        self.rank = rank

    @staticmethod
    def parts():
        return [["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], ["self_attn.o_proj"],
                ["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"]]

    def linear(self, layer, part):
        return self.weight[f"model.layers.{layer}.{part}.weight"]

    def apply(self, layer, kind, x):
        a, b = self.adapter[layer, kind, 0], self.adapter[layer, kind, 1]
        results, column = [], 0
        for j, part in enumerate(self.parts()[kind]):
            w = self.linear(layer, part)
            h = x @ a[:, j * self.rank:(j + 1) * self.rank]
            results.append(x @ w.T + self.scale * h @ b[:, column:column + w.shape[0]])
            column += w.shape[0]
        return results

    def norm(self, x, name):
        mean = (x * x).mean(-1, keepdim=True)
        return x * torch.rsqrt(mean + self.config["rms_norm_eps"]) * self.weight[name]

    def rotate(self, x):
        """(heads, T, H), positions from 0; the halves of a head form the pairs."""
        half = x.shape[-1] // 2
        theta = self.config["rope_parameters"]["rope_theta"]
        steps = torch.arange(half, dtype=DOUBLE) / half
        angle = torch.arange(x.shape[1], dtype=DOUBLE)[:, None] * theta ** -steps
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def log_probs(self, tokens, temperature):
        """Log-probabilities (T, V) of the token after each token."""
        c, length = self.config, len(tokens)
        heads, shared = c["num_attention_heads"], c["num_key_value_heads"]
        x = self.weight["model.embed_tokens.weight"][tokens]
        at, window = torch.arange(length), c.get("sliding_window") or length
        seen = (at[None] <= at[:, None]) & (at[None] > at[:, None] - window)
        for layer in range(c["num_hidden_layers"]):
            y = self.norm(x, f"model.layers.{layer}.input_layernorm.weight")
            q, k, v = self.apply(layer, 0, y)
            split = lambda t, n: t.reshape(length, n, -1).transpose(0, 1)
            q, k, v = self.rotate(split(q, heads)), self.rotate(split(k, shared)), split(v, shared)
            k, v = (t.repeat_interleave(heads // shared, 0) for t in (k, v))
            score = (q @ k.transpose(1, 2)) / math.sqrt(q.shape[-1])
            mixed = torch.softmax(score.masked_fill(~seen, -math.inf), -1) @ v
            x = x + self.apply(layer, 1, mixed.transpose(0, 1).reshape(length, -1))[0]
            y = self.norm(x, f"model.layers.{layer}.post_attention_layernorm.weight")
            gate, up = self.apply(layer, 2, y)
            x = x + self.apply(layer, 3, torch.nn.functional.silu(gate) * up)[0]
        head = self.weight.get("lm_head.weight", self.weight["model.embed_tokens.weight"])
        return torch.log_softmax(self.norm(x, "model.norm.weight") @ head.T / temperature, -1)


def step_case(name, seed, temperature):
    model = Model(HERE.parent / "goldens" / "mistral", 2, 4)
    lengths, prompts = [9, 7, 11, 8], [3, 2, 4, 3]
    generator = numpy.random.default_rng(seed)
    data, counted, labels, segments = draw(name, lengths, prompts, seed)
    tokens = [int(x) for x in generator.integers(2, model.config["vocab_size"], len(labels))]
    labels = [tokens[r + 1] if labels[r] >= 0 else -1 for r in range(len(labels) - 1)] + [-1]
    logp = []
    for start, length in zip(segments, lengths):
        all_tokens = model.log_probs(torch.tensor(tokens[start:start + length]), temperature)
        for r in range(start, start + length): logp.append(all_tokens[r - start, max(labels[r], 0)])
    logp = torch.stack(logp + [torch.zeros((), dtype=DOUBLE)] * (len(labels) - len(logp)))
    data["old"] = narrow(logp.detach().numpy() + generator.normal(0, 0.25, len(labels)))
    data["reference"] = narrow(logp.detach().numpy() + generator.normal(0, 0.5, len(labels)))
    data["logp"] = logp
    settings, advantages, weights, losses, margins = compute(name, data, counted)
    loss = sum(losses.values())
    loss.backward()
    used = [r for rows in counted for r in rows]
    shown = torch.zeros(len(labels), dtype=DOUBLE)
    shown[used] = -logp[used].detach()
    gradients = {}
    for (layer, kind, side), a in model.adapter.items():
        g, i = a.grad.flatten(), torch.arange(a.numel(), dtype=DOUBLE)
        probes = [g.norm(), (g * torch.cos(0.7 * i + 0.3)).sum(), (g * torch.cos(1.9 * i + 1)).sum()]
        gradients[f"{layer} {kind} {side}"] = [float(f"{x.item():.9g}") for x in probes]
    case = {"name": name, "settings": settings, "temperature": temperature, "tokens": tokens,
            "labels": labels, "segments": segments, "old": numbers(data["old"]),
            "reference": numbers(data["reference"]), "weights": numbers(weights), "nll": numbers(shown),
            "loss": float(f"{loss.item():.9g}"), "gradients": gradients,
            "loss_size": float(f"{sum(abs(x.item()) for x in losses.values()):.9g}")}
    if advantages is not None: case["advantages"] = numbers(advantages)
    return case


def main():
    torch.manual_seed(0)
    ops = [op_case(name, 100 + i) for i, name in enumerate([*POLICIES, *PAIRS])]
    steps = [step_case("grpo", 1, float(numpy.float32(0.7))), step_case("gspo", 2, 1.0),
             step_case("dpo", 3, 1.0), step_case("simpo", 4, 1.0)]
    text = json.dumps({"made_by": f"tests/data/losses/make.py, torch {torch.__version__.split('+')[0]}",
                       "ops": ops, "steps": steps})
    (HERE / "losses.json").write_text(text + "\n")


if __name__ == "__main__": main()
