#!/usr/bin/env bash
# The report's page calculates no bytes and no FLOPs: its scripts never multiply a shape, have no
# sizes of element types, and write to no field of a plan. tests/browser/test_runs.py checks that
# they show the values of the plan.
set -euo pipefail
python3 - src/report/page/*.js <<'PY'
import re, sys
FIELDS = r"(?:flops|hardware_flops|bytes|seconds|limit_seconds|live_bytes|peak_bytes)"
FAULTS = [
    ("multiplies up a shape", re.compile(r"shape\b[^;\n]*\.reduce\(|\*\s*[\w.]*shape\[|shape\[[^\]]*\]\s*\*")),
    ("knows the size of an element type", re.compile(r"\b(?:f32|bf16|f16|i8)['\"]?\s*:\s*[0-9]|dtype\s*===?\s*['\"](?:f32|bf16|f16)['\"]\s*\?\s*[0-9]")),
    ("writes to a field of a plan", re.compile(r"\b(?:op|tensor|plan|planned|memory|work|time)\." + FIELDS + r"\s*(?:[-+*/]?=(?!=)|\+\+)")),
]
PLANTED = ["const bytes = tensor.shape.reduce((a, b) => a * b, 4);", "n = 2 * op.shape[0] * op.shape[1];", "const SIZE = {f32: 4, bf16: 2};", "op.flops = 3;", "tensor.bytes *= 2;",
           "const size = dtype === 'f32' ? 4 : 2;", "x = shape[0] * shape[1];"]
FINE = ["row.bytes += op.bytes;", "if (op.bytes === 0) return;", "const all = rows.reduce((sum, op) => sum + op.seconds, 0);", "(tensor.shape || []).join(', ')", "types = {f32: Float32Array}"]

def faults_of(line):
    return [what for what, pattern in FAULTS if pattern.search(line)]

for line in PLANTED:
    if not faults_of(line): sys.exit(f"the planted fault is not noticed: {line}")
for line in FINE:
    if faults_of(line): sys.exit(f"taken for a fault: {line}")
found = 0
for path in sys.argv[1:]:
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        for what in faults_of(line):
            print(f"{path}:{number}: {what}: {line.strip()[:120]}")
            found += 1
sys.exit(1 if found or len(sys.argv) < 5 else 0)
PY
