#!/usr/bin/env python3
"""Puts real output into README.md: readme_output.py NAME < TEXT replaces what stands between <!-- NAME --> and <!-- /NAME -->.

    ./dev demo | tee demo.txt && python3 tools/readme_output.py demo < demo.txt

Escape sequences and overwritten progress lines are left out; with --table the text goes in as it is, else as a ```text block.
"""
import re
import sys


def main():
    names = [w for w in sys.argv[1:] if not w.startswith("-")]
    if len(names) != 1:
        sys.exit(__doc__)
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", sys.stdin.read())
    text = "\n".join(line.rsplit("\r", 1)[-1].rstrip() for line in text.splitlines()).strip("\n")
    block = text if "--table" in sys.argv else f"```text\n{text}\n```"
    with open("README.md", encoding="utf-8") as f:
        page = f.read()
    begin, end = f"<!-- {names[0]} -->", f"<!-- /{names[0]} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        sys.exit(f"README.md has no one {begin} ... {end}")
    head, rest = page.split(begin)
    with open("README.md", "w", encoding="utf-8") as f:
        f.write(f"{head}{begin}\n{block}\n{end}{rest.split(end)[1]}")


if __name__ == "__main__":
    main()
