"""Times and profiles compiled StableHLO programs on JAX's first device, and lists their slowest ops.

  python3 hlo_times.py [--runs 40] [--top 30] NAME=FILE.mlir ...

`rafter plan ... --stablehlo DIR` writes such programs. Arguments are random small numbers, and the
results that reuse an argument's memory are the next run's arguments. Prints one JSON object for
each program, and a table of ops by device time.
"""

import argparse
import collections
import functools
import glob
import json
import os
import re
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
from jax._src.lib import xla_client as xc

TYPES = {
    "f32": jnp.float32,
    "bf16": jnp.bfloat16,
    "f16": jnp.float16,
    "i32": jnp.int32,
    "ui32": jnp.uint32,
    "ui16": jnp.uint16,
    "i8": jnp.int8,
    "ui8": jnp.uint8,
    "i64": jnp.int64,
    "ui64": jnp.uint64,
    "i1": jnp.bool_,
}


def signature(text):
    """[(shape, dtype, the result that takes its memory, or None)] of the arguments of @main."""
    head = text[text.index("@main") :]
    head = head[: head.index(") -> ")]
    found = []
    for part in re.split(r"%\w+: ", head)[1:]:
        *shape, dtype = re.search(r"tensor<([^>]*)>", part).group(1).split("x")
        alias = re.search(r"tf.aliasing_output = (\d+)", part)
        found.append((tuple(map(int, shape)), TYPES[dtype], int(alias.group(1)) if alias else None))
    return found


@functools.partial(jax.jit, static_argnums=(0, 1))
def argument(shape, dtype):
    if not jnp.issubdtype(dtype, jnp.floating):
        return jnp.zeros(shape, dtype)
    return (0.02 * jax.random.normal(jax.random.key(0), shape)).astype(dtype)


def compiled(text):
    options = xc.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    client = jax.devices()[0].client
    devices = xc.DeviceList((jax.devices()[0],))
    for flag in (os.environ.get("OVERRIDES") or "").split():
        name, value = flag.lstrip("-").split("=", 1)
        value = {"true": True, "false": False}.get(value, value)
        options.env_option_overrides = list(options.env_option_overrides) + [(name, value)]
    return client.compile_and_load(text.encode(), devices, options)


def run(program, arguments, kinds):
    out = program.execute_sharded(arguments).disassemble_into_single_device_arrays()
    out = [o[0] for o in out]
    return [out[alias] if alias is not None else a for a, (_, _, alias) in zip(arguments, kinds)], out


def profile(program, arguments, kinds, runs):
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(runs):
                arguments, out = run(program, arguments, kinds)
            jax.block_until_ready(out)
        path = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)[0]
        keep = os.environ.get("KEEP_XPLANE")
        if keep:
            os.system(f"cp {path} {keep}")
        data = jax.profiler.ProfileData.from_file(path)
        ops, kernels = collections.Counter(), collections.Counter()
        for plane in data.planes:
            if not plane.name.startswith("/device:GPU"):
                continue
            for line in plane.lines:
                if not line.name.startswith("Stream"):
                    continue
                for event in line.events:
                    stats = {k: v for k, v in event.stats if k}
                    name = str(stats.get("hlo_op", "")) or event.name
                    ops[name, event.name] += event.duration_ns
                    kernels[name, event.name] += 1
    return arguments, ops, kernels


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("program", nargs="+")
    p.add_argument("--runs", type=int, default=40)
    p.add_argument("--top", type=int, default=30)
    p.add_argument("--profile", type=int, default=5, help="runs that are profiled; 0: none")
    p.add_argument("--dump", help="folder for the optimised programs")
    a = p.parse_args()
    for item in a.program:
        name, path = item.split("=", 1)
        text = open(path).read()
        kinds = signature(text)
        start = time.perf_counter()
        program = compiled(text)
        compile_seconds = time.perf_counter() - start
        if a.dump:
            with open(f"{a.dump}/{name}.hlo", "w") as f:
                f.write(program.hlo_modules()[0].to_string())
        arguments = [argument(shape, dtype) for shape, dtype, _ in kinds]
        for _ in range(3):
            arguments, out = run(program, arguments, kinds)
        jax.block_until_ready(out)
        waits = []
        for _ in range(a.runs):
            start = time.perf_counter()
            arguments, out = run(program, arguments, kinds)
            jax.block_until_ready(out)
            waits.append(time.perf_counter() - start)
        start = time.perf_counter()
        for _ in range(a.runs):
            arguments, out = run(program, arguments, kinds)
        jax.block_until_ready(out)
        queued = (time.perf_counter() - start) / a.runs
        row = {"program": name, "ms_each": 1e3 * statistics.median(waits), "ms_queued": 1e3 * queued}
        row["compile_s"] = compile_seconds
        if a.profile:
            arguments, ops, kernels = profile(program, arguments, kinds, a.profile)
            row["kernels"] = sum(kernels.values()) / a.profile
            row["ms_kernels"] = sum(ops.values()) / a.profile / 1e6
        print(json.dumps(row), flush=True)
        if a.profile:
            for (op, kernel), ns in ops.most_common(a.top):
                print(f"  {ns / a.profile / 1e3:9.1f} us {kernels[op, kernel] / a.profile:6.1f} x  {op[:48]:48} {kernel[:70]}")
        del arguments, out, program


main()
