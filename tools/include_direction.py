#!/usr/bin/env python3
"""Checks that includes run in one direction between the rooms of src/, and that READMEs of rooms have five lines.

First it checks that it finds a planted fault of each kind.
"""
import glob
import os
import re
import sys

ROOMS = ("base hub formats text constrain model graph machine study backend plan run train generate reward rl "
         "report advise traffic journal serve api cli").split()
# Programs and libraries of their own, which share messages or a table with the room backend.
APART = {"pjrt_host": ("pjrt_host/", "backend/xla/wire.h"), "mpi_shim": ("backend/mpi/abi.h",)}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def faults_of(path, text):
    """Lines of a source file (its path under src/) that include headers of rooms after its own."""
    room = path.split("/")[0]
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match.group(1)
        other = target.split("/")[0]
        if room == "cli":
            if target != "rafter.h" and not os.path.exists(os.path.join("src/cli", target)):
                yield f'src/{path}:{number}: cli includes "{target}" (expected rafter.h or its own headers)'
        elif room in APART:
            if not target.startswith(APART[room]):
                yield f'src/{path}:{number}: {room} includes "{target}" (expected one of {APART[room]})'
        elif target == "rafter.h":
            continue
        elif room == "serve" and other not in ("base", "serve"):
            yield f'src/{path}:{number}: serve includes "{target}" (expected rafter.h or headers of base and serve)'
        elif other not in ROOMS:
            yield f'src/{path}:{number}: "{target}" does not name its room'
        elif ROOMS.index(other) > ROOMS.index(room):
            yield f'src/{path}:{number}: {room} includes {other}, which comes after it'
        elif target.startswith("backend/cpu/") and not path.startswith("backend/cpu/"):
            yield f'src/{path}:{number}: "{target}" is private to backend/cpu'
        elif {room, other} == {"train", "generate"}:
            yield f'src/{path}:{number}: {room} and {other} stand side by side'


LABELS = ["# {room}: ", "- Entry: ", "- ", "- May include: ", "- Must not know: "]
COLUMNS = 100


def readme_faults(room, text, exists):
    """Faults of a room's README, which needs five labelled lines that name existing files of the room."""
    lines = text.splitlines()
    if len(lines) != len(LABELS):
        yield f"src/{room}/README.md: expected {len(LABELS)} lines, got {len(lines)}"
        return
    for number, (line, label) in enumerate(zip(lines, LABELS), 1):
        label = label.format(room=room)
        if not line.startswith(label) or len(line) == len(label):
            yield f'src/{room}/README.md:{number}: expected a line that starts with "{label}"'
        if len(line) > COLUMNS:
            yield f"src/{room}/README.md:{number}: {len(line)} columns (expected at most {COLUMNS})"
    for name in re.findall(r"`([\w./*]+)`", "\n".join(lines[1:3])):
        if not exists(name):
            yield f"src/{room}/README.md: src/{room}/{name} does not exist"


README = """# plan: a job
- Entry: `plan.h`.
- Files: `a.c`.
- May include: base.
- Must not know: devices.
"""
BAD_READMES = [README + "More.\n", README.replace("- Entry", "Entry"), README.replace("a.c", "b.c"),
               README.replace("a job", "x" * COLUMNS)]
PLANTED = [("base/a.c", '#include "model/model.h"'), ("plan/a.c", '#include "run/run.h"'),
           ("generate/a.c", '#include "train/train.h"'), ("cli/main.c", '#include "base/base.h"'),
           ("graph/a.c", '  #  include "plan/plan.h"'), ("model/a.c", '#include "tokenizer.h"'),
           ("run/a.c", '#include "backend/cpu/peaks.h"'),
           ("backend/null/a.c", '#include "backend/cpu/cpu.h"'), ("backend/a.c", '#include "pjrt_host/host.h"'),
           ("pjrt_host/a.c", '#include "base/base.h"'), ("mpi_shim/a.c", '#include "backend/backend.h"'),
           ("serve/a.c", '#include "generate/generate.h"')]


def main():
    for path, line in PLANTED:
        if not list(faults_of(path, line)):
            sys.exit(f"include_direction: the planted fault {line} in {path} was not noticed")
    for text in BAD_READMES:
        if not list(readme_faults("plan", text, lambda name: name in ("plan.h", "a.c"))):
            sys.exit(f"include_direction: this planted README was not refused\n{text}")
    if list(readme_faults("plan", README, lambda name: True)):
        sys.exit("include_direction: a good README was refused")
    faults, files = [], 0
    for folder, _, names in os.walk("src"):
        for name in names:
            if name.endswith((".c", ".h", ".S")):
                path = os.path.join(folder, name)
                files += 1
                with open(path, encoding="utf-8") as f:
                    faults += faults_of(os.path.relpath(path, "src"), f.read())
    for room in sorted(os.listdir("src")):
        if room not in ROOMS and room not in APART:
            faults.append(f"src/{room}: not a room (expected one of {' '.join(ROOMS)})")
        elif not os.path.exists(f"src/{room}/README.md"):
            faults.append(f"src/{room}/README.md is missing")
        else:
            with open(f"src/{room}/README.md", encoding="utf-8") as f:
                exists = lambda name: glob.glob(f"src/{room}/{name}")
                faults += readme_faults(room, f.read(), exists)
    print("\n".join(faults) if faults else f"{files} files, every include runs one way")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
