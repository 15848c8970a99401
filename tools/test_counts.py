#!/usr/bin/env python3
"""Counts test cases in ctest's log: test_counts.py LastTest.log prints "PASSED FAILED SKIPPED" and a line for each
skipped case.

A program of unit tests counts as its cases (cmocka's lines). Any other test is one case. A test that leaves out a
part prints a line "skip: REASON". In a unit test the line belongs to the skipped case; in a script it counts as
one more skipped case.
"""
import re
import sys

ENTRY = re.compile(r"^\d+/\d+ Testing: (\S+)\n(.*?)^<end of output>\nTest time[^\n]*\n-+\n([^\n]*)", re.S | re.M)
RUN = re.compile(r"^\[ RUN      \] (\S+)\n(.*?)^\[ +(OK|FAILED|SKIPPED) +\] \1$", re.S | re.M)
SKIP = re.compile(r"^skip: (.*)$", re.M)


def count(text):
    """Passed, failed, and the skipped cases as (name, reason)."""
    passed = failed = 0
    skipped = []
    for entry in ENTRY.finditer(text):
        name, output, verdict = entry.groups()
        good, left_out = verdict.startswith("Test Pass"), verdict.startswith("Test Skip")
        cases = RUN.findall(output)
        if cases:
            passed += sum(how == "OK" for _, _, how in cases)
            bad = sum(how == "FAILED" for _, _, how in cases)
            failed += max(bad, not good and not left_out)  # a crash has no line of its own
            skipped += [(f"{name}: {case}", " ".join(SKIP.findall(said)) or "no reason given")
                        for case, said, how in cases if how == "SKIPPED"]
            continue
        reasons = SKIP.findall(output)
        if left_out:
            skipped.append((name, " ".join(reasons) or "no reason given"))
            continue
        passed += good
        failed += not good
        skipped += [(f"{name} (a part)", reason) for reason in reasons]
    return passed, failed, skipped


def main():
    text = open(sys.argv[1], encoding="utf-8", errors="replace").read()
    passed, failed, skipped = count(text)
    print(passed, failed, len(skipped))
    for name, reason in skipped: print(f"{name}: {reason}")


if __name__ == "__main__":
    main()
