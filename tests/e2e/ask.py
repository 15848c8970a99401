"""Evaluates the expressions of `ask` (lib.sh) until the shell of the test has ended. One process answers
all questions of a test, because to start Python takes longer than most answers."""

import json
import math
import os
import select
import shutil
import sys

FOLDER, SHELL = os.environ["ASK_FOLDER"], int(os.environ["ASK_SHELL"])


def value_of(place, file, expression):
    os.chdir(place)
    with open(file) as f:
        text = f.read()
    try:
        d = json.loads(text)
    except ValueError:
        d = None
    several = d is None or "\n{" in text
    rows = [json.loads(line) for line in text.split("\n") if line.strip()] if several else [d]
    names = {"json": json, "math": math, "os": os, "sys": sys, "text": text, "d": d, "rows": rows}
    return str(eval(expression, names))


def answer(question, answers):
    try:
        kind, text = "value", value_of(*question)
    except Exception as error:
        kind, text = "error", f"{type(error).__name__}: {error}"
    left = f"{kind}\0{text}\0".encode()
    while left:
        left = left[os.write(answers, left) :]


def main():
    # Both are open for reading and writing, so that no pipe ends between two questions.
    questions, answers = (os.open(f"{FOLDER}/{name}", os.O_RDWR) for name in ("questions", "answers"))
    shell = os.pidfd_open(SHELL)
    pending = b""
    while True:
        ready = select.select([questions, shell], [], [])[0]
        if shell in ready:
            break
        pending += os.read(questions, 65536)
        while pending.count(b"\0") >= 3:
            *question, pending = pending.split(b"\0", 3)
            answer([field.decode() for field in question], answers)


try:
    main()
finally:
    shutil.rmtree(FOLDER, ignore_errors=True)
