#!/usr/bin/env python3
"""Checks that includes run one way between the rooms of src/, and that this check would notice if they did not."""
import os
import re
import sys

ROOMS = ["base", "hub", "formats", "text", "model", "graph", "machine", "backend", "plan", "run", "train", "generate", "report", "api", "cli"]
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def faults_of(path, text):
    """Lines of one source file, named by its path under src/, that include what their room must not know."""
    room = path.split("/")[0]
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match.group(1)
        other = target.split("/")[0]
        if room == "cli":
            if target != "rafter.h":
                yield f'src/{path}:{number}: cli includes "{target}" (expected rafter.h only)'
        elif target == "rafter.h":
            continue
        elif other not in ROOMS:
            yield f'src/{path}:{number}: "{target}" does not name its room'
        elif ROOMS.index(other) > ROOMS.index(room):
            yield f'src/{path}:{number}: {room} includes {other}, which comes after it'
        elif {room, other} == {"train", "generate"}:
            yield f'src/{path}:{number}: {room} and {other} stand side by side'


PLANTED = [("base/a.c", '#include "model/model.h"'), ("plan/a.c", '#include "run/run.h"'), ("generate/a.c", '#include "train/train.h"'),
           ("cli/main.c", '#include "base/base.h"'), ("graph/a.c", '  #  include "plan/plan.h"'), ("model/a.c", '#include "tokenizer.h"')]


def main():
    for path, line in PLANTED:
        if not list(faults_of(path, line)):
            sys.exit(f"include_direction: the planted fault {line} in {path} was not noticed")
    faults, files = [], 0
    for folder, _, names in os.walk("src"):
        for name in names:
            if name.endswith((".c", ".h", ".S")):
                path = os.path.join(folder, name)
                files += 1
                with open(path, encoding="utf-8") as f:
                    faults += faults_of(os.path.relpath(path, "src"), f.read())
    for room in sorted(os.listdir("src")):
        if room not in ROOMS:
            faults.append(f"src/{room}: not a room (expected one of {' '.join(ROOMS)})")
        elif not os.path.exists(f"src/{room}/README.md"):
            faults.append(f"src/{room}/README.md is missing")
    print("\n".join(faults) if faults else f"{files} files, every include runs one way")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
