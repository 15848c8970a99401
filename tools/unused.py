#!/usr/bin/env python3
"""Finds names that rooms of src export without a user: unused.py BUILD.

A global symbol of one object file has to be used by another object file, or by its own file and a test. A
declaration in a header has to have a definition. KEPT lists the exceptions with their reasons.
"""
import os
import re
import subprocess
import sys

READS_BYTES = "fuzzing gives it bytes in memory"
KEPT = {
    "rf_model_config_parse": READS_BYTES,
    "rf_safetensors_check": READS_BYTES,
    "rf_model_preset": "tests read every preset",
    "rf_generator_logprob": "tests compare a sampled id with all of its step's probabilities",
    "rf_peak_copy_bps": "bench/elementwise_bench.c sets kernels against it",
    "RF_FIELDS_HEADS": "made with the tables of all families; ops read it as the start of longer ones",
    "rf_simd_map": "tests hold the functions of simd.h at one ISA against those at another",
    "rf_xla_lost": "tests end the plugin's process",
    "rf_xla_program_save": "tests look for the names of ops in the compiler's program",
    "rf_xla_times_of": "bench/xla_bench.c prints the cost of the plugin's process",
    "rf_emit_ops": "tests compile the emitter of each op alone",
    "rf_place_indices": "tests compare each element of a chip's part with the whole tensor",
    "rf_run_high_water": "the test of predicted = allocated asks which bytes were touched",
}
PUBLIC = re.compile(r"main$|rafter_|\.|__")  # the program, the C API, symbols made by the compiler
DECLARED = re.compile(r"^(?!static|typedef|extern)\w[\w *]*?\b(rf_\w+)\([^;{}]*\);", re.M)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)


def symbols(build):
    """For the objects of src: symbol -> source that defines it, and symbol -> sources that use it."""
    sources = {}  # object file -> its source
    for folder, _, names in os.walk(os.path.join(build, "CMakeFiles")):
        room = re.search(r"/(?:rafter_(\w+)|rafter)\.dir(/|$)", folder)
        if not room or "/src/" not in folder + "/" or room.group(1) in ("static", "shared", "guarded"):
            continue
        for name in names:
            source = "src/" + os.path.join(folder, name[:-2]).rsplit("/src/", 1)[1]
            if name.endswith(".o") and os.path.exists(source):  # otherwise an object of a deleted file
                sources[os.path.join(folder, name)] = source
    defined, used = {}, {}
    # One call for all files, because nm may load a large plugin when it starts.
    for line in subprocess.check_output(["nm", "-g", "-A", *sources], text=True).splitlines():
        path, entry = line.split(":", 1)
        *_, kind, symbol = entry.split()
        if kind == "U":
            used.setdefault(symbol, set()).add(sources[path])
        else:
            defined[symbol] = sources[path]
    return defined, used


def faults_of(defined, used, sources, tests):
    """Symbols without a user, and declarations without a definition. `sources`, `tests`: path -> text."""
    tested = set(re.findall(r"\b\w+\b", "\n".join(tests.values())))
    for symbol, source in sorted(defined.items()):
        if PUBLIC.match(symbol) or symbol in KEPT or used.get(symbol, set()) - {source}:
            continue
        own = len(re.findall(rf"\b{symbol}\b", COMMENT.sub("", sources[source])))
        if f".globl {symbol}" in sources[source]:
            continue  # data that the assembler includes; the file hides the symbol
        if own > 1 and symbol in tested:
            continue
        user = "its own file only: make it static" if own > 1 else "no file of src"
        yield f"{source}: {symbol} is used by {user}"
    macros = set(re.findall(r"#\s*define\s+(\w+)", "\n".join(sources.values())))
    for path, text in sorted(sources.items()):
        if path.endswith(".h"):
            for symbol in DECLARED.findall(COMMENT.sub("", text)):
                if symbol not in defined and symbol not in macros:
                    yield f"{path}: {symbol} is declared and never defined"
    for symbol in sorted(KEPT.keys() - defined.keys()):
        yield f"tools/unused.py: KEPT has {symbol}, which does not exist"


def planted():
    """Checks that a fault of each kind is found, and nothing else."""
    defined = {s: "src/a/a.c" for s in ("rf_used", "rf_dead", "rf_own", "rf_tested", *KEPT)}
    text = "void rf_used(); void rf_dead(); void rf_own(); rf_own(); void rf_tested(); rf_tested();"
    sources = {"src/a/a.c": text, "src/a/a.h": "void rf_gone(int a);\nvoid rf_used(void);\n"}
    found = list(faults_of(defined, {"rf_used": {"src/b/b.c"}}, sources, {"tests/t.c": "rf_tested(rf_dead)"}))
    return [re.search(r"rf_\w+", fault).group() for fault in found] == ["rf_dead", "rf_own", "rf_gone"]


def main():
    if not planted():
        sys.exit("unused.py does not see its planted faults")
    paths = subprocess.check_output(["git", "ls-files", "src", "tests", "bench"], text=True).split()
    texts = {}
    for path in paths:
        if path.endswith((".c", ".h")) and os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                texts[path] = f.read()
    sources = {p: t for p, t in texts.items() if p.startswith("src/")}
    tests = {p: t for p, t in texts.items() if not p.startswith("src/")}
    defined, used = symbols(sys.argv[1])
    if len(defined) < 500:
        sys.exit(f"{sys.argv[1]}: only {len(defined)} symbols: is the tree built there?")
    faults = list(faults_of(defined, used, sources, tests))
    print("\n".join(faults) if faults else f"{len(defined)} symbols, each with a user")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
