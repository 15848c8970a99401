"""forms_client.py CASE: requests whose answers have a form, for test_forms.sh. SERVE_URL names the server.

Answers are read with Python's json and checked with python3-jsonschema.
"""

import concurrent.futures
import hashlib
import json
import os
import re
import sys
import time

import jsonschema
from lib_client import request

PERSON = {
    "type": "object",
    "title": "A person",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}]},
        "born": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", 3]}, "maxItems": 3},
    },
    "required": ["name", "age", "born"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "number", "minimum": -5, "exclusiveMaximum": 12.5},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "next"],
        }
    },
}
SHAPE = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}},
            "required": ["kind", "r"],
        },
        {"type": "object", "properties": {"kind": {"const": "dot"}}, "required": ["kind"]},
    ]
}
ROW = {
    "type": "array",
    "prefixItems": [{"type": "boolean"}, {"type": "string", "pattern": "^[a-f0-9]{4}$"}],
    "minItems": 2,
}
MAP = {
    "type": "object",
    "properties": {"id": {"type": "integer"}},
    "additionalProperties": {"type": "boolean"},
}
SCHEMAS = {"person": PERSON, "tree": TREE, "shape": SHAPE, "row": ROW, "map": MAP}
ASK = {"prompt": "Answer:", "max_tokens": 1200, "temperature": 1.5, "n": 4}


def check(holds, what):
    if not holds:
        sys.exit(f"FAIL: {what}")


def post(body, path="/v1/completions"):
    status, _, text = request("POST", path, body, timeout=120)
    return status, text


def texts(body):
    """The finished answers of a request, whole or as a stream."""
    status, text = post(body)
    check(status == 200, f"{body}: {status} {text[:300]}")
    if not body.get("stream"):
        choices = json.loads(text)["choices"]
        return [(c["text"], c["finish_reason"]) for c in sorted(choices, key=lambda c: c["index"])]
    parts = {}
    for row in text.decode().split("\n\n"):
        if not row or row == "data: [DONE]":
            continue
        for choice in json.loads(row[6:])["choices"]:
            of = parts.setdefault(choice["index"], ["", None])
            of[0] += choice["text"]
            of[1] = choice["finish_reason"] or of[1]
    return [tuple(parts[i]) for i in sorted(parts)]


def form(schema, spelled):
    named = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema, "strict": True}}
    return {
        "openai": {"response_format": named},
        "vllm": {"structured_outputs": {"json": schema}},
        "text": {"structured_outputs": {"json": json.dumps(schema)}},
        "former": {"guided_json": schema},
        "llama-server": {"json_schema": schema},
    }[spelled]


def case_schemas():
    ended = 0
    for seed, (name, schema) in enumerate(SCHEMAS.items()):
        validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
        ours = 0
        for spelled in ("openai", "vllm", "text"):
            whole = texts({**ASK, **form(schema, spelled), "seed": seed})
            streamed = texts({**ASK, **form(schema, spelled), "seed": seed, "stream": True})
            check(whole == streamed, f"{name}: a stream has another answer")
            for text, finish in whole:
                if finish == "stop":
                    validator.validate(json.loads(text))
                    ours += 1
        check(ours >= 3, f"{name}: {ours} answers of 12 ended")
        for spelled in ("former", "llama-server"):
            other = texts({**ASK, **form(schema, spelled), "seed": seed})
            check(other == whole, f"{name}: the spelling of {spelled} has another answer")
        ended += ours
    print(f"{ended} answers are valid")


def case_other_forms():
    ended = 0
    for text, finish in texts({**ASK, "response_format": {"type": "json_object"}, "seed": 1}):
        if finish == "stop":
            check(isinstance(json.loads(text), dict), f"{text} is no object")
            ended += 1
    check(ended > 0, "no object has ended")
    regex = r"(yes|no), \d{2,4}\.?"
    for text, finish in texts({**ASK, "structured_outputs": {"regex": regex}, "seed": 2}):
        check(finish == "stop" and re.fullmatch(regex, text), f"{text} does not match")
    choices = ["red", "green", "gr\u00e9en", "blue \"sky\""]
    found = set()
    for seed in range(4):
        for text, finish in texts({**ASK, "structured_outputs": {"choice": choices}, "seed": seed}):
            check(finish == "stop" and text in choices, f"{text} is no choice")
            found.add(text)
    check(len(found) > 1, f"always the same choice: {found}")
    # A form that is complete ends, even with ignore_eos and min_tokens.
    body = {**ASK, "structured_outputs": {"choice": ["one"]}, "ignore_eos": True, "min_tokens": 50, "seed": 3}
    check(texts(body) == [("one", "stop")] * 4, "ignore_eos: the answer does not end")
    body = {**ASK, "structured_outputs": {"regex": "a{1,30}"}, "min_tokens": 20, "seed": 3}
    check(all(20 <= len(text) <= 30 for text, _ in texts(body)), "min_tokens is ignored")
    status, text = post({**ASK, "response_format": {"type": "text"}, "max_tokens": 4})
    check(status == 200, "text is no form")
    chat = {"messages": [{"role": "user", "content": "Hi"}], "structured_outputs": {"choice": ["yes"]}}
    status, text = post(chat, "/v1/chat/completions")
    check(json.loads(text)["choices"][0]["message"]["content"] == "yes", f"a chat: {text}")


def refused(fields, param, words, limit=20):
    start = time.monotonic()
    status, text = post({**ASK, "max_tokens": 8, **fields})
    seconds = time.monotonic() - start
    error = json.loads(text).get("error", {})
    check(status == 400 and error.get("param") == param, f"{str(fields)[:200]}: {status} {text[:300]}")
    check(re.search(words, error["message"]), f"{error['message']} does not say {words}")
    check(seconds < limit, f"{str(fields)[:200]} took {seconds} s")


def resident_bytes():
    with open(f"/proc/{os.environ['SERVE_PID']}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def case_refused():
    deep = {"type": "null"}
    for _ in range(500):
        deep = {"type": "array", "items": deep}
    schemas = [
        (
            {"type": "object", "properties": {"a": {"not": {}}}},
            r'"not" is not supported \(at #/properties/a\)',
        ),
        ({"type": "integer", "multipleOf": 2}, "multipleOf"),
        ({"type": "string", "pattern": "(?=x)"}, "pattern.*lookahead"),
        ({"$ref": "other.json"}, r"\$ref"),
        ({"type": "array", "minItems": 10**9}, "too large"),
        ({"type": "string", "maxLength": 10**12}, "too large"),
        ({"type": "string", "pattern": "((a{0,999}){0,999}){0,999}"}, "too large"),
        ({"type": "string", "pattern": "(.*a.*b.*){500}x(.{1,400}){1,9}"}, "too|ambiguous"),
        ({"anyOf": [{"type": "array", "items": {"$ref": "#"}, "minItems": 1}]}, "no text"),
        (deep, "nested too deeply"),
        ({"enum": ["x" * 300000]}, "too long"),
    ]
    for schema, words in schemas:
        refused(form(schema, "openai"), "response_format", words)
        refused(form(schema, "vllm"), "structured_outputs", words)
    refused({"structured_outputs": {"regex": "(a)\\1"}}, "structured_outputs", "backreferences")
    refused({"structured_outputs": {"regex": "(x+x+)+y" * 9000}}, "structured_outputs", "too")
    refused({"structured_outputs": {"regex": 3}}, "structured_outputs", "expected a text")
    refused({"structured_outputs": {"choice": []}}, "structured_outputs", "1 to 4096")
    refused({"structured_outputs": {"choice": ["a", 3]}}, "structured_outputs", "choice 1")
    refused({"structured_outputs": {"grammar": "a"}}, "structured_outputs", "grammar is not supported")
    refused({"structured_outputs": {"json": "{"}}, "structured_outputs", "JSON|schema")
    refused({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "two forms")
    refused({"response_format": {"type": "xml"}}, "response_format", "xml")
    refused({"response_format": {"type": "json_schema"}}, "response_format", "json_schema")
    no_schema = {"type": "json_schema", "json_schema": {"name": "x"}}
    refused({"response_format": no_schema}, "response_format", "schema")
    refused({"guided_grammar": "a"}, "guided_grammar", "not supported")
    refused({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "two forms")
    before = resident_bytes()
    for i in range(150):
        regex = f"[ab]{{{i + 1}}}.*(x|y){{{i}}}"
        status, _ = post({**ASK, "max_tokens": 4, "n": 1, "structured_outputs": {"regex": regex}})
        check(status == 200, f"form {i}: {status}")
    grown = resident_bytes() - before
    check(grown < 400 << 20, f"150 forms need {grown} bytes")


def case_metrics():
    ask = {**ASK, **form(PERSON, "openai"), "seed": 5}
    for _ in range(3):
        texts(ask)
    for _ in range(100):
        page = request("GET", "/metrics")[2].decode()
        rows = dict(re.findall(r"^rafter:(\w+)\{[^}]*\} (\S+)$", page, re.M))
        if float(rows["constraint_cache_hits_total"]) == 2:
            break
        time.sleep(0.1)
    values = {name: float(value) for name, value in rows.items()}
    check(values["constraints_compiled_total"] == 1, f"{values}")
    check(values["constraint_cache_hits_total"] == 2, f"{values}")
    check(values["constraint_compile_seconds_total"] > 0, f"{values}")
    check(values["constraint_mask_seconds_total"] > 0, f"{values}")
    check(values["constraint_mask_hits_total"] > values["constraint_masks_total"] / 2 > 0, f"{values}")


def case_answers():
    """Prints a hash of the answers to many forms, asked one by one and all at once."""
    bodies = [
        {**ASK, "n": 2, "max_tokens": 300, **form(schema, "openai"), "seed": seed}
        for schema in SCHEMAS.values()
        for seed in range(3)
    ]
    bodies.append({**ASK, "max_tokens": 40, "seed": 1, "ignore_eos": True})
    alone = [texts(body) for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(texts, bodies))
    check(alone == together, "answers depend on other requests")
    with open("answers", "w") as out:
        print(hashlib.sha256(json.dumps(alone).encode()).hexdigest(), file=out)


globals()["case_" + sys.argv[1]]()
