#!/usr/bin/env python3
"""Puts the output of a command into a document: readme_output.py NAME < TEXT replaces the lines between <!-- NAME -->
and <!-- /NAME -->.

    ./dev demo | tee demo.txt && python3 tools/readme_output.py demo < demo.txt

The document is the one in PAGES that has the marks. Escape sequences and overwritten progress lines are left out.
With --table the text is inserted unchanged, otherwise as a ```text block.
"""
import re
import sys

PAGES = ("README.md", "docs/demo.md", "docs/measurements.md")


def main():
    names = [w for w in sys.argv[1:] if not w.startswith("-")]
    if len(names) != 1:
        sys.exit(__doc__)
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", sys.stdin.read())
    text = "\n".join(line.rsplit("\r", 1)[-1].rstrip() for line in text.splitlines()).strip("\n")
    block = text if "--table" in sys.argv else f"```text\n{text}\n```"
    begin, end = f"<!-- {names[0]} -->", f"<!-- /{names[0]} -->"
    pages = [(path, open(path, encoding="utf-8").read()) for path in PAGES]
    found = [(path, page) for path, page in pages if page.count(begin) == 1 and page.count(end) == 1]
    if len(found) != 1: sys.exit(f"{begin} ... {end} is in {len(found)} of {', '.join(PAGES)}, not in one")
    path, page = found[0]
    head, rest = page.split(begin)
    with open(path, "w", encoding="utf-8") as f: f.write(f"{head}{begin}\n{block}\n{end}{rest.split(end)[1]}")


if __name__ == "__main__":
    main()
