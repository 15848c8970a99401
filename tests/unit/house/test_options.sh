#!/usr/bin/env bash
# An option is one row: no table has a name twice, and code reads every name. The planted faults are
# a row that no code reads, and a name with two rows.
set -euo pipefail
cd "$(dirname "$0")/../../.."
python3 - <<'E2'
import glob
import re
import sys

ROW = re.compile(r'RF_(?:FLAG|CHOICE|NUMBER|WORDS)\(\s*"([a-z0-9-]+)"|\{"([a-z0-9-]+)", RF_OPTION_')
COMMON = re.compile(r'\.common =\s*(?:"[^"]*"\s*)+')


def faults_of(files):
    """Faults of the rows in these files: {path under src/: text}."""
    rest = {path: COMMON.sub("", ROW.sub("", text)) for path, text in files.items()}
    for path, text in files.items():
        for table in text.split("\nconst ") if "RF_OPTION" in text or "RF_FLAG" in text else []:
            for part in table.split("\nstatic const rf_option "):
                names = [a or b for a, b in ROW.findall(part)]
                for name in names:
                    if names.count(name) > 1:
                        yield f"src/{path}: --{name} has two rows in one table"
                    if not any(f'"{name}"' in other for other in rest.values()):
                        yield f"src/{path}: nothing reads --{name}"


files = {path[4:]: open(path, encoding="utf-8").read() for path in glob.glob("src/**/*.c", recursive=True)}
good = {"plan/a.c": 'const rf_option A[] = {RF_FLAG("one", "H", "h"), {0}};\nread("one");'}
unread = {"plan/a.c": good["plan/a.c"].replace("read", "//")}
unread["plan/a.c"] = unread["plan/a.c"].replace('//("one")', "")
twice = {"plan/a.c": good["plan/a.c"].replace("{0}", 'RF_FLAG("one", "H", "h")')}
if list(faults_of(good)) or not list(faults_of(unread)) or not list(faults_of(twice)):
    sys.exit("test_options: the planted rows are not distinguished")
faults = sorted(set(faults_of(files)))
rows = sum(len(ROW.findall(text)) for text in files.values())
print("\n".join(faults) if faults else f"{rows} option rows, each in one table and read")
sys.exit(1 if faults or rows < 200 else 0)
E2
