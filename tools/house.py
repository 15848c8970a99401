#!/usr/bin/env python3
"""Counts violations of the house style and compares them with the committed counts.

    house.py [--list WHAT] [--write] [--lines] [--root DIR]

It counts columns (110 in code, 100 in whole-line comments and documents), functions longer than 75 lines,
functions with more than 8 parameters, statements joined by commas, and phrases that the style avoids (BANNED) in
comments, messages and documents. A count may fall and never rise: tests/unit/house/counts.json has the counts of
the last `--write`. `--list` shows every occurrence of one kind: columns, banned, ... `--lines` prints the lines of
each room of src next to the committed ones.
"""
import json
import os
import re
import subprocess
import sys

COUNTS = "tests/unit/house/counts.json"
CODE_COLUMNS, PROSE_COLUMNS, FUNCTION_LINES, PARAMETERS = 110, 100, 75, 8
SHOWN = 20  # occurrences that a failed check prints

# Phrases that many readers have to read twice. CONTRIBUTING.md and docs/glossary.md have the words
# to use.
BANNED = [re.compile(p, re.I) for p in (
    r"\b(is|are) no\b(?! (longer|more than))", r"\b(stands?|stood)\b", r"\blies\b", r"\bbehind\b", r"\bbeside\b", r"\btold\b",
    r"\btells? of\b", r"\bdealt\b", r"\bmade again\b", r"\bturned\b(?! (on|off|into))", r"\bgoes on\b", r"\bsuch as are\b",
    r"\bone that is not\b", r"\bso many\b", r"\banew\b", r"\bdear\b", r"\b(a|the|each|every|one|per) walk\b", r"\bwhat is left\b")]
BANNED.append(re.compile(r"(?:^|[.:;] )Of (?!course)"))  # "Of X: Y"
BANNED.append(re.compile(r"(?:^|[.:;] )What [^?.]*[.:]"))  # "What ...:" without a question

STRING = r'"(?:\\.|[^"\\\n])*"'
TOKEN = re.compile(r"/\*.*?\*/|//[^\n]*|" + STRING + r"|'(?:\\.|[^'\\\n])*'", re.S)
DOC_OUTPUT = re.compile(r"<!-- run: .*?<!-- /run -->", re.S)


def blank(text):
    """The same lines without their letters."""
    return re.sub(r"[^\n]", " ", text)


def parts(text):
    """C source without comments and strings, and the comments and strings with their offsets."""
    comments, strings = [], []

    def take(match):
        token = match.group()
        (comments if token[0] == "/" else strings).append((match.start(), token))
        return blank(token) if token[0] == "/" else token[0] + blank(token[1:-1]) + token[-1]
    return TOKEN.sub(take, text), comments, strings


def line_of(text, offset): return text.count("\n", 0, offset) + 1


def split_outside(text, mark):
    """Splits text at the marks that are outside brackets."""
    depth, start, out = 0, 0, []
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == mark and depth == 0:
            out.append(text[start:i])
            start = i + 1
    return out + [text[start:]]


MACRO = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.M)
FUNCTION = re.compile(r"(?!typedef\b|[A-Z][A-Z0-9_]+\()[A-Za-z_][^;=]*\(")


def functions(code):
    """Name, first line, number of lines and number of parameters of each function defined in formatted code."""
    code = re.sub(r"__attribute__\(\(.*?\)\)", lambda m: blank(m.group()), MACRO.sub(lambda m: blank(m.group()), code))
    lines = [line.rstrip() for line in code.split("\n")]
    start = None
    for i, line in enumerate(lines):
        if start is None and FUNCTION.match(line): start = i
        if start is None: continue
        if line.startswith("}"):
            head = " ".join(lines[start:i + 1]).split("{")[0]
            found = re.search(r"(\w+) *\((.*)\)[^()]*$", head)
            if found and "=" not in head.split("(")[0]:
                names = split_outside(found.group(2), ",")
                yield found.group(1), start + 1, i - start + 1, 0 if found.group(2).strip() in ("", "void") else len(names)
            start = None
        elif line.endswith(";") and "{" not in "".join(lines[start:i + 1]): start = None


CONTROL = re.compile(r"\s*(?:else\b|do\b|(?:if|while|for|switch|\w*_foreach)\s*(?=\())")
ASSIGNS = re.compile(r"\s*[*(]*\w+(?:\s*(?:\[[^\]]*\]|->\s*\w+|\.\s*\w+|\)))*\s*(?:(?:[-+*/|&^%]|<<|>>)?=(?!=)|\+\+|--|\()")


def closing(text, start):
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0: return i + 1
    return len(text)


def comma_chains(code):
    """Offsets of statements such as `a = 1, b = 2;`."""
    code = MACRO.sub(lambda m: blank(m.group()), code)
    depth, start = 0, 0
    for i, c in enumerate(code):
        depth += (c in "([") - (c in ")]")
        if depth > 0 or c not in ";{}": continue
        statement, at = code[start:i], start
        start = i + 1
        if c != ";": continue
        while True:
            control = CONTROL.match(statement)
            if not control: break
            end = control.end()
            if statement[end:end + 1] == "(": end = closing(statement, end)
            statement, at = statement[end:], at + end
        if ASSIGNS.match(statement) and "," in statement and len(split_outside(statement, ",")) > 1:
            yield at + len(statement) - len(statement.lstrip())


def prose_of_c(comment):
    text = re.sub(r"^/[/*]+|\*+/$", " ", comment)
    return re.sub(r"\n[ \t]*\**[ \t]*", " ", text).strip()


def occurrences(path, text):
    """(kind, line, what) of each violation in a file."""
    lines = text.split("\n")
    ext = os.path.splitext(path)[1]
    prose = []
    if ext in (".c", ".h"):
        code, comments, strings = parts(text)
        whole = set()
        for offset, comment in comments:
            first = line_of(text, offset)
            if not text[text.rfind("\n", 0, offset) + 1:offset].strip():
                whole.update(range(first, first + comment.count("\n") + 1))
            prose.append((first, prose_of_c(comment)))
        for offset, string in strings:
            if " " in string and string[0] == '"': prose.append((line_of(text, offset), string.strip('"')))
        for i, line in enumerate(lines, 1):
            limit = PROSE_COLUMNS if i in whole else CODE_COLUMNS
            if len(line) > limit: yield "columns", i, f"{len(line)} columns"
        if path.startswith("src/"):
            for name, first, count, parameters in functions(code):
                if count > FUNCTION_LINES: yield "long functions", first, f"{name}: {count} lines"
                if parameters > PARAMETERS: yield "many parameters", first, f"{name}: {parameters} parameters"
            for offset in comma_chains(code): yield "comma chains", line_of(text, offset), lines[line_of(text, offset) - 1].strip()
    elif ext == ".md":
        fenced = False
        for i, line in enumerate(DOC_OUTPUT.sub(lambda m: blank(m.group()), text).split("\n"), 1):
            if line.lstrip().startswith("```"): fenced = not fenced
            elif not fenced and not line.startswith("    "):
                prose.append((i, re.sub(r"`[^`]*`", "`", line).lstrip("-*#> |")))
                if len(line) > PROSE_COLUMNS and not line.startswith("|") and "http" not in line and "](" not in line:
                    yield "columns", i, f"{len(line)} columns"
    else:
        for i, line in enumerate(lines, 1):
            if re.match(r"\s*(#|//)", line): prose.append((i, line.strip("# /")))
            if len(line) > CODE_COLUMNS: yield "columns", i, f"{len(line)} columns"
    for first, sentence in prose:
        for pattern in BANNED:
            for found in pattern.finditer(sentence): yield "banned", first, found.group().strip()


def area(path):
    top = path.split("/")[0]
    return top if top in ("src", "include", "tests", "docs", "tools", "bench") else "root"


def room(path):
    return path.split("/")[1] if path.startswith("src/") else None


def scan(root):
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=True).stdout.split("\n")
    names = [n for n in names if os.path.isfile(os.path.join(root, n))]
    found, rooms = [], {}
    for name in names:
        if not re.search(r"\.(c|h|md|py|sh|js|cmake)$|(^|/)(dev|CMakeLists\.txt)$", name) or name.startswith(("docs/proof", "tests/fuzz/seeds", "tests/data")):
            continue
        # these files contain the phrases that they refuse
        if name.endswith("house.py") or "unit/house/test_style" in name: continue
        text = open(os.path.join(root, name), encoding="utf-8", errors="replace").read()
        if room(name) and name.endswith((".c", ".h", ".S", ".js")): rooms[room(name)] = rooms.get(room(name), 0) + text.count("\n")
        found += [(kind, area(name), name, line, what) for kind, line, what in occurrences(name, text)]
    return found, rooms


def tally(found):
    counts = {}
    for kind, where, *_ in found: counts.setdefault(kind, {})[where] = counts.get(kind, {}).get(where, 0) + 1
    return counts


def changed_since(root, path):
    """Lines of each file that are new since `path` was last committed."""
    base = subprocess.run(["git", "log", "-1", "--format=%H", "--", path], cwd=root, capture_output=True, text=True).stdout.strip()
    if not base: return None
    diff = subprocess.run(["git", "diff", "-U0", base], cwd=root, capture_output=True, text=True, errors="replace").stdout
    untracked = subprocess.run(["git", "ls-files", "-o", "--exclude-standard"], cwd=root, capture_output=True, text=True).stdout
    new, name = {(path, 0) for path in untracked.split("\n")}, None
    for line in diff.split("\n"):
        if line.startswith("+++ b/"): name = line[6:]
        hunk = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))?", line)
        if hunk: new.update((name, int(hunk[1]) + i) for i in range(int(hunk[2] or 1)))
    return new


def main():
    arguments = sys.argv[1:]
    root = arguments[arguments.index("--root") + 1] if "--root" in arguments else "."
    found, rooms = scan(root)
    counts = tally(found)
    if "--list" in arguments:
        kind = arguments[arguments.index("--list") + 1]
        for what, _, name, line, text in found:
            if what == kind: print(f"{name}:{line}: {text}")
        return 0
    path = os.path.join(root, COUNTS)
    if "--write" in arguments:
        json.dump({"lines": rooms, **counts}, open(path, "w"), indent=1, sort_keys=True)
        open(path, "a").write("\n")
        return 0
    committed = json.load(open(path))
    before = committed.get("lines", {})
    if "--lines" in arguments:
        print(f"{'room':10} {'lines':>8} {'were':>8}")
        for name in sorted(set(rooms) | set(before)): print(f"{name:10} {rooms.get(name, 0):8} {before.get(name, 0):8}")
        print(f"{'src':10} {sum(rooms.values()):8} {sum(before.values()):8}")
        return 0
    faults, new = 0, None
    for kind, areas in sorted(counts.items()):
        for where, count in sorted(areas.items()):
            allowed = committed.get(kind, {}).get(where, 0)
            if count <= allowed: continue
            faults += 1
            print(f"{kind} in {where}: {count}, at most {allowed} are allowed")
            if new is None: new = changed_since(root, COUNTS)
            lines = [f"  {name}:{line}: {text}" for what, area_of, name, line, text in found
                     if what == kind and area_of == where and (new is None or (name, line) in new or (name, 0) in new)]
            print("\n".join(lines[:SHOWN]))
            if len(lines) > SHOWN: print(f"  and {len(lines) - SHOWN} more lines that changed since the counts were written")
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main())
