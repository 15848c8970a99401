#!/usr/bin/env python3
"""Runs the commands in README.md and docs/demo.md, so that they stay correct.

Every line of a ```sh block that starts with `$ ` is a command. Commands of `./dev` are not run here: CI and
`./dev prove bare` run them. With --short, commands that train or measure for long get the options in SHORT.
"""
import os
import re
import shlex
import subprocess
import sys
import tempfile

PAGES = ("README.md", "docs/demo.md")
SKIP = ("./dev ", "git clone", "cd ", "sudo ")
SHORT = {"train": {"--steps": "3"}, "bench": {"--reps": "1"}, "calibrate": {"--quick": None}}
LIMIT_SECONDS = 300


def commands(text):
    for block in re.findall(r"```sh\n(.*?)```", text, re.S):
        joined = block.replace("\\\n", " ")
        for line in joined.splitlines():
            if line.startswith("$ "):
                yield line[2:].strip()


def shortened(command):
    words = shlex.split(command)
    for i, word in enumerate(words[:-1]):
        if not word.endswith("rafter") or words[i + 1] not in SHORT:
            continue
        for option, value in SHORT[words[i + 1]].items():
            if option in words:
                del words[words.index(option):words.index(option) + (1 if value is None else 2)]
            words += [option] if value is None else [option, value]
        return shlex.join(words)
    return command


def main():
    root = os.getcwd()
    short = "--short" in sys.argv
    failed = ran = 0
    listed = []
    for page in PAGES:
        with open(page, encoding="utf-8") as f: listed += [c for c in commands(f.read()) if not c.startswith(SKIP)]
    listed = list(dict.fromkeys(listed))
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, PATH=f"{root}/build:{os.environ['PATH']}", XDG_CACHE_HOME=folder)
        os.symlink(f"{root}/tests", f"{folder}/tests")
        os.symlink(f"{root}/build", f"{folder}/build")
        with open(f"{folder}/text.txt", "w", encoding="utf-8") as f:
            f.write("In the beginning was the word, and the word was counted in bytes.\n" * 2000)
        for command in listed:
            run = shortened(command) if short else command
            ran += 1
            done = subprocess.run(["bash", "-c", run], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  timeout=LIMIT_SECONDS, text=True, errors="replace", check=False)
            print(f"  {'ok  ' if done.returncode == 0 else 'FAIL'}  {command}")
            if done.returncode:
                failed += 1
                print(done.stdout[-3000:])
    if not ran:
        print(f"{' and '.join(PAGES)} have no commands")
    sys.exit(1 if failed or not ran else 0)


if __name__ == "__main__":
    main()
