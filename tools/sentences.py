#!/usr/bin/env python3
"""Draws sentences at random: sentences.py SEED [COUNT] [--context] [--count].

They come from the comments and messages of src and include, and from the documents. A reader who
knows C and machine learning, but not this project, reads each sentence once and counts those that
need a second reading. docs/proof/plain-english.md has the results. The same seed draws the same
list from the same tree. --context also prints the lines around each sentence: the paragraph of a
document, otherwise the comment and the next three lines. --count prints how many sentences each
kind of text has.
"""
import collections
import glob
import random
import re
import subprocess
import sys

TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"(?:\s*"(?:\\.|[^"\\\n])*")*|\'(?:\\.|[^\'\\\n])*\'', re.S)
RUN = re.compile(r"<!-- run: .*?<!-- /run -->|```.*?```|<!--.*?-->", re.S)
END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"(\[])")
# Messages that are text for other programs: gnuplot, SQLite, Jansson's formats.
CODE = re.compile(r"^(set|plot|SELECT|INSERT|UPDATE|DELETE|CREATE|PRAGMA|ALTER) |\{s[:?]|\bs:[a-zA-Z{\[]")
WORDS = 5  # shorter texts are labels


def tidy(text):
    return re.sub(r"\s+", " ", text).strip()


def of_comment(token):
    body = token[2:-2] if token.startswith("/*") else token[2:]
    text = tidy(re.sub(r"^\s*(\*|//)(?!\*)", "", body, flags=re.M))
    return re.sub(r"^[-=]{2,}(?=\s)|(?<=\s)[-=]{2,}$", "", text).strip()


def joined_lines(tokens):
    """Comments of // on successive lines are one comment."""
    out = []
    for line, kind, text, own in tokens:
        if out and kind == "comment" and out[-1][1] == "comment" and own and out[-1][3] and out[-1][4] == line - 1:
            out[-1][2] += " " + text
            out[-1][4] = line
        else:
            out.append([line, kind, text, own, line])
    return out


def of_source(path):
    source = open(path, encoding="utf8").read()
    tokens = []
    for match in TOKEN.finditer(source):
        token, line = match.group(), source.count("\n", 0, match.start()) + 1
        own = not source[source.rfind("\n", 0, match.start()) + 1:match.start()].strip()
        if token[0] == "/":
            tokens.append((line, "comment", of_comment(token), own and token[1] == "/"))
        elif token[0] == '"':
            text = "".join(re.findall(r'"((?:\\.|[^"\\\n])*)"', token))
            tokens.append((line, "message", tidy(re.sub(r"\\[nt]", " ", text).replace('\\"', '"')), False))
    for line, kind, text, _, _ in joined_lines(tokens):
        for sentence in END.split(text):
            yield kind, path, line, sentence


def of_document(path):
    text = RUN.sub(lambda m: "\n" * m.group().count("\n"), open(path, encoding="utf8").read())
    for match in re.finditer(r"(?:^(?!\s*$|#|\s*\||    ).+\n?)+", text, re.M):
        for block in re.split(r"\n(?=\s*(?:[-*]|\d+\.) )", match.group()):
            line = text.count("\n", 0, match.start()) + 1
            for sentence in END.split(tidy(re.sub(r"^\s*(?:[-*]|\d+\.) ", "", block))):
                yield "document", path, line, sentence


def all_sentences():
    files = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split()
    for path in files:
        if path.endswith((".c", ".h", ".S")) and path.startswith(("src/", "include/")):
            yield from of_source(path)
        elif path.endswith(".md") and not path.startswith(("docs/proof/", "CHANGELOG")):
            yield from of_document(path)


def readable(kind, sentence):
    if kind == "message" and CODE.search(sentence):
        return False
    words = [w for w in sentence.split() if re.fullmatch(r"[\"'(`]*[A-Za-z][A-Za-z'-]+[\"')`.,:;?!]*", w)]
    return len(words) >= WORDS and len(words) * 2 >= len(sentence.split()) and not sentence.startswith("<")


def context(kind, path, line, sentence):
    """The lines around a sentence that begins in or after `line`."""
    lines = open(path, encoding="utf8").read().split("\n")
    first = last = line - 1
    if kind == "document":
        while first > 0 and lines[first - 1].strip():
            first -= 1
        while last < len(lines) and lines[last].strip():
            last += 1
        return lines[first:last]
    end = re.sub(r"\W", "", sentence)[-12:]
    bound = min(len(lines), first + 25)
    while last + 1 < bound and end not in re.sub(r"\W", "", "".join(lines[first:last + 1])):
        last += 1
    return lines[max(0, first - 1):last + 4]


def main():
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    pool = [s for s in all_sentences() if readable(s[0], s[3])]
    if "--count" in sys.argv:
        print(collections.Counter(s[0] for s in pool))
        return
    seed, count = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 60
    for i, (kind, path, line, sentence) in enumerate(random.Random(seed).sample(pool, count), 1):
        print(f"{i}. [{kind}] {path}:{line}: {sentence}")
        if "--context" in sys.argv:
            print("".join(f"    {text}\n" for text in context(kind, path, line, sentence)))


if __name__ == "__main__":
    main()
