"""products.py - times bf16 matrix products of training steps in rafter and in PyTorch.

  products.py [--only REGEX] [--rounds N] [--threads N] [--rows M,M,...] [--ours-only]

Build product_times first (ninja -C build product_times), and run this script with a Python that
has torch. rafter and torch.matmul (oneDNN) take turns with the same shapes and layouts, on a CPU
with AMX. The program prints a Markdown table: median GFLOP/s [minimum..maximum] over the rounds.

A layer is y (T,N) = x (T,K) w. GPT-2 stores w as (K,N), and the other models as (N,K). fwd is y,
dx is dy w^T, and dw is x^T dy, or its transpose. rafter writes dw in f32, and PyTorch in bf16.
--rows times y of the 1.1B model's layers for these numbers of rows, with packed weights in rafter.
"""
import argparse
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

SECONDS = 0.02  # of one measurement
ROOT = Path(__file__).resolve().parents[2]

# model, tokens, weights stored as (N,K), layers (name, K, N)
GPT2 = [('qkv', 768, 2304), ('attention output', 768, 768), ('up', 768, 3072), ('down', 3072, 768)]
GPT2_HEAD = [('head', 768, 50257)]
UVA = [('qkv', 1024, 3072), ('attention output', 1024, 1024), ('up', 1024, 4096),
       ('down', 4096, 1024), ('head', 1024, 2048)]
LLAMA = [('qkv', 2048, 2560), ('attention output', 2048, 2048), ('gate and up', 2048, 11264),
         ('down', 5632, 2048), ('head', 2048, 32000)]
STEPS = [('GPT-2 124M', 1024, False, GPT2), ('GPT-2 124M', 1024, True, GPT2_HEAD),
         ('uva', 512, False, UVA), ('1.1B', 512, True, LLAMA)]


def products():
    """Yields a name, and (m, n, k, A is transposed, B is transposed, C is f32) for each product."""
    for model, tokens, by_output, layers in STEPS:
        for layer, k, n in layers:
            # The gradient of logits is f32 in rafter, so that its products have no counterpart.
            yield f'{model} {layer} fwd', (tokens, n, k, 0, int(by_output), int(layer == 'head'))
            if layer == 'head':
                continue
            yield f'{model} {layer} dx', (tokens, k, n, 0, int(not by_output), 0)
            m, columns = (n, k) if by_output else (k, n)
            yield f'{model} {layer} dw', (m, columns, tokens, 1, 0, 1)


def few_rows(counts):
    layers = STEPS[-1][3]
    for layer, k, n in layers[:-1]:
        for m in counts:
            yield f'1.1B {layer}, {m} rows', (m, n, k, 0, 1, 0)


class Ours:
    def __init__(self, threads):
        program = ROOT / 'build' / 'product_times'
        if not program.exists():
            sys.exit(f'products.py: {program} is missing; run: ninja -C build product_times')
        pipe = subprocess.PIPE
        self.child = subprocess.Popen([program, str(threads)], stdin=pipe, stdout=pipe, text=True)

    def seconds(self, product, packed):
        m, n, k, a_transposed, b_transposed, c_f32 = product
        layout = f'{a_transposed} {b_transposed} {int(packed)} 0 {c_f32}'
        self.child.stdin.write(f'{m} {n} {k} {layout} {SECONDS}\n')
        self.child.stdin.flush()
        answer = self.child.stdout.readline()
        if not answer:
            sys.exit('products.py: product_times has ended; its message is above')
        return float(answer)


class Peer:
    def __init__(self, threads):
        import torch
        self.torch, self.product = torch, None
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)

    def seconds(self, product):
        if product != self.product:
            self.product = product
            m, n, k, a_transposed, b_transposed, _ = product
            a = self.new(k, m).t() if a_transposed else self.new(m, k)
            b = self.new(n, k).t() if b_transposed else self.new(k, n)
            self.operands = a, b, self.new(m, n)
        a, b, c = self.operands
        took = []
        start = before = time.perf_counter()
        while len(took) < 3 or before - start < SECONDS:
            self.torch.matmul(a, b, out=c)
            after = time.perf_counter()
            took.append(after - before)
            before = after
        return statistics.median(took)

    def new(self, rows, columns):
        return self.torch.rand(rows, columns).sub_(0.5).bfloat16()


def cell(rates):
    return f'{statistics.median(rates):.0f} [{min(rates):.0f}..{max(rates):.0f}]'


def main():
    raw = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    options.add_argument('--only', default='', help='measure products whose name matches')
    options.add_argument('--rounds', type=int, default=15)
    options.add_argument('--threads', type=int, default=2)
    options.add_argument('--rows', help='numbers of rows, separated by commas')
    options.add_argument('--ours-only', action='store_true')
    given = options.parse_args()
    chosen = few_rows([int(m) for m in given.rows.split(',')]) if given.rows else products()
    chosen = [(name, p) for name, p in chosen if re.search(given.only, name)]
    ours = Ours(given.threads)
    peer = None if given.ours_only else Peer(given.threads)
    print(f'median GFLOP/s [minimum..maximum] of {given.rounds} rounds\n')
    title = f' PyTorch {peer.torch.__version__} | ratio |' if peer else ''
    print('| product | M x N x K | rafter |' + title)
    print('| --- | --- | --- |' + (' --- | --- |' if peer else ''))
    for name, product in chosen:
        m, n, k = product[:3]
        flops = 2e-9 * m * n * k
        rates, theirs = [], []
        for _ in range(given.rounds):
            rates.append(flops / ours.seconds(product, bool(given.rows)))
            if peer:
                theirs.append(flops / peer.seconds(product))
        row = f'| {name} | {m} x {n} x {k} | {cell(rates)} |'
        if peer:
            ratios = [mine / other for mine, other in zip(rates, theirs)]
            row += f' {cell(theirs)} | {statistics.median(ratios):.2f} |'
        print(row, flush=True)


main()
