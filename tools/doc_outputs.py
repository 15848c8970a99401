#!/usr/bin/env python3
"""Runs the commands in documents and compares their output: doc_outputs.py [--write | --shape] FILE.md ...

A block in a document is

    <!-- run: plan uva --on a5000 -->
    (output of the command)
    <!-- /run -->
    <!-- holds: d["memory"]["fits"] -->

`holds` is a Python expression over d, the answer of the same command with --json. It
checks the verdict in the text and must be true. Without an option, outputs must equal those in the documents,
except for the duration of planning. --write renews the outputs. --shape compares them without numbers. After the
command and " ## ", "keep: PATTERN" prints only matching lines, "tail: N" the last N and "head: N" the first N.
"""
import difflib
import json
import os
import re
import subprocess
import sys

RAFTER = os.environ.get("RAFTER", "build/rafter")
BLOCK = re.compile(r"<!-- run: (.*?) -->\n(.*?)<!-- /run -->\n((?:<!-- holds: .*? -->\n)*)", re.S)


def run(command, *more):
    done = subprocess.run([RAFTER, *command, *more], capture_output=True, text=True, timeout=300)
    if done.returncode not in (0, 3):
        sys.exit(f"`rafter {' '.join(command)}` exits {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def words(line):
    import shlex
    return shlex.split(line)


def selected(text, how):
    lines = [re.sub(r", made in .*", "", line.rstrip()) for line in text.strip("\n").split("\n")]
    for rule in filter(None, (r.strip() for r in how.split(";"))):
        name, _, value = rule.partition(": ")
        if name == "keep": lines = [line for line in lines if re.search(value, line)]
        elif name == "tail": lines = lines[-int(value):]
        elif name == "head": lines = lines[:int(value)]
        else: sys.exit(f"unknown rule: {rule}")
    return "\n".join(lines)


def shape(text):
    """The text without numbers, their units and the blanks around them; units change with the numbers."""
    text = re.sub(r"[-+]?[0-9][0-9.e+]*( ?([kMGTB]|[KMGT]i?B|B|n?s|ms|us|µs|min|h|days|%))?(?![A-Za-z])", "#", text)
    return re.sub(r"[ \t]+", " ", text)


def main():
    options = [a for a in sys.argv[1:] if a.startswith("--")]
    files = [a for a in sys.argv[1:] if not a.startswith("--")]
    if not files or set(options) - {"--write", "--shape"}: sys.exit(__doc__)
    faults = blocks = verdicts = 0
    for path in files:
        page = open(path, encoding="utf-8").read()

        def renew(match):
            nonlocal faults, blocks, verdicts
            line, _, how = match.group(1).partition(" ## ")
            output = selected(run(words(line)), how)
            fresh = f"<!-- run: {match.group(1)} -->\n```text\n$ rafter {line}\n{output}\n```\n<!-- /run -->\n{match.group(3)}"
            blocks += 1
            old, new = match.group(0), fresh
            if "--shape" in options: old, new = shape(old), shape(new)
            if "--write" not in options and old != new:
                faults += 1
                print(f"{path}: `rafter {line}` prints something else now")
                print("\n".join(list(difflib.unified_diff(old.split("\n"), new.split("\n"), "document", "now", lineterm="", n=0))[:20]))
            holds = re.findall(r"<!-- holds: (.*?) -->", match.group(3))
            answer = json.loads(run(words(line), "--json")) if holds else None
            for verdict in holds:
                verdicts += 1
                try: true = eval(verdict, {"d": answer})  # the documents are our own
                except Exception as fault: true, verdict = False, f"{verdict} ({fault!r})"
                if not true:
                    faults += 1
                    print(f"{path}: `rafter {line}`: no longer true: {verdict}")
            return fresh

        fresh = BLOCK.sub(renew, page)
        if "--write" in options and fresh != page: open(path, "w", encoding="utf-8").write(fresh)
    print(f"{blocks} commands, {verdicts} verdicts, {faults} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
