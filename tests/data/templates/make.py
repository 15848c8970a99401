#!/usr/bin/env python3
"""Renders the templates of this folder and random programs into golden.json, with Jinja2 set up as in transformers.

    pip install jinja2==3.1.6 && python3 make.py [--templates DIR] [--out FILE] [--programs N]

A second run gives the same bytes. Each row names a template and a conversation. It has a text, a text with
`spans` (the bytes of its generation blocks), the message that the template raised, or `fails` if Jinja itself
refused the template.
"""
import argparse, copy, datetime, json, os, random
import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))
NOW = datetime.datetime(2024, 7, 26, 13, 5, 9)


class Raised(Exception):
    pass


class Generation(Extension):
    """{% generation %}: keeps the block's text and its place in the output."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    def mark(self, caller):
        return "\ue000" + caller() + "\ue001"


def raise_exception(message):
    raise Raised(message)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return env


ENV = environment()


def render(source, variables):
    try:
        # the filter indent appends to its argument if that is a list
        text = ENV.from_string(source).render(**copy.deepcopy(variables))
    except Raised as e:
        return {"raises": str(e)}
    except Exception:
        return {"fails": True}
    spans, out = [], b""
    for part in text.replace("\ue001", "\ue000\ue001").split("\ue000"):
        if part.startswith("\ue001"):
            spans[-1].append(len(out))
            part = part[1:]
        elif out or spans or text.startswith("\ue000"):
            spans.append([len(out)])
        out += part.encode()
    spans = [s for s in spans if len(s) == 2]
    return {"text": out.decode(), **({"spans": spans} if spans else {})}


def u(content, **more):
    return {"role": "user", "content": content, **more}


def a(content, **more):
    return {"role": "assistant", "content": content, **more}


def s(content):
    return {"role": "system", "content": content}


TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "The weather <at> a \"place\" & time", "parameters": {
        "type": "object", "properties": {"place": {"type": "string", "enum": ["Zürich", "東京"]}, "days": {"type": "integer"}, "scale": {"default": 1.5}},
        "required": ["place"], "extra": [], "more": {}, "null": None, "strict": True}}},
    {"type": "function", "function": {"name": "time", "parameters": {}, "return": "text"}},
]
CALL = {"type": "function", "id": "abcdefghi", "function": {"name": "weather", "arguments": {"place": "Zürich", "days": 2}}}
CALL2 = {"type": "function", "id": "123456789", "function": {"name": "time", "arguments": {"zone": "UTC", "real": 1e20, "small": 1.5e-7}}}

CONVERSATIONS = [
    [u("What is the capital of France?")],
    [s("Be brief."), u("Hi")],
    [u("Hi"), a("Hello! How can I help?"), u("Tell me a joke.")],
    [s("  You are\na cat.  "), u("  Meow? \n"), a("\n Meow. \t"), u("purr")],
    [u("1"), a("2"), u("3"), a("4"), u("5"), a("6"), u("7"), a("8"), u("9")],
    [u("Hi"), a("Hello")],
    [s("S"), u("Hi"), a("Hello"), u("Bye"), a("")],
    [u("")],
    [u("naïve café \u00a0 東京 😀\u200d👩 \u2028 Ω \"q\" 'a' \\ <b>&amp;</b> {{ x }} {% if %}")],
    [s("日本語で\u3000"), u("\u3000こんにちは\u3000"), a("やあ！")],
    [a("I start"), u("no")],
    [u("one"), u("two")],
    [u("Hi"), s("late system"), a("ok")],
    [s("only system")],
    [],
    [u([{"type": "text", "text": " part one "}, {"type": "image"}, {"type": "text", "text": "part two"}]), a([{"type": "text", "text": "ok"}]), u("x")],
    [s([{"type": "text", "text": "sys"}]), u([{"type": "text", "text": "hi"}])],
    [u("think"), a("<think>\nhm\n</think>\n\nfour"), u("again"), a("<think>\nno\n</think>\n\nfive")],
    [u("think"), a("four", reasoning_content="\nbecause\n")],
    [u("weather?"), a("", tool_calls=[CALL]), {"role": "tool", "content": "sunny", "tool_call_id": "abcdefghi"}, a("It is sunny.")],
    [u("weather?"), a("Both.", tool_calls=[CALL, CALL2]), {"role": "tool", "content": {"content": 3.0, "unit": "°C"}, "tool_call_id": "abcdefghi"},
     {"role": "tool", "content": [1, "two", None, True], "tool_call_id": "short"}, u("and?")],
    [{"role": "alien", "content": "x"}],
    [{"role": "user"}],
    [u(None)],
    [u("named", name="Bob"), a("yes", name="")],
]


def variables():
    base = {"bos_token": "<s>", "eos_token": "</s>", "documents": None}
    for messages in CONVERSATIONS:
        for prompt in (False, True):
            yield {**base, "messages": messages, "add_generation_prompt": prompt, "tools": None}
    for index in (0, 1, 2, 14, 19, 20):
        yield {**base, "messages": CONVERSATIONS[index], "add_generation_prompt": True, "tools": TOOLS}
    yield {**base, "messages": CONVERSATIONS[17], "add_generation_prompt": True, "tools": [], "enable_thinking": False}
    yield {"messages": CONVERSATIONS[2], "add_generation_prompt": True}


# ---- random programs -------------------------------------------------------------------------------------------------

DATA = {
    "i": 7, "j": -3, "z": 0, "f": 2.5, "t": True, "n": None, "e": "", "s": "Hello, World", "w": "  two  words\n", "uni": "z 東y😀",
    "xs": [3, 1, 2], "ys": ["a", "b\n", ""], "no": [], "d": {"a": 1, "b": [1, 2], "items": "x"}, "rows": [{"k": "x", "v": 1}, {"k": "y", "v": None}, {"k": "x"}],
}


class Grammar:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.names = list(DATA) + ["missing"]

    def pick(self, *choices):
        choice = self.r.choice(choices)
        return choice() if callable(choice) else choice

    def text(self):
        return self.pick("'x'", '"it\'s"', "'\\n\\t\\\\'", "'東'", "''", "'a,b,,c'", "' pad '", "'\\x41\\u6771'")

    def number(self):
        return self.pick("0", "1", "2", "-1", "10", "1.5", "0.1", "1e3", "3.0")

    def name(self):
        return self.r.choice(self.names)

    def atom(self, depth):
        return self.pick(self.text, self.number, self.name, self.name, self.name, "true", "False", "none")

    def expr(self, depth=3):
        if depth <= 0:
            return self.atom(depth)
        e = lambda: self.expr(depth - 1)
        return self.pick(
            lambda: self.atom(depth), lambda: self.atom(depth),
            lambda: f"({e()} {self.pick('+', '-', '*', '/', '//', '~', '~', '+')} {e()})",
            lambda: f"({self.pick('i', 'j', 'f', self.number)} % {self.number()})",
            lambda: f"{e()} {self.pick('+', '~', 'and', 'or', '==', '!=')} {e()}",
            lambda: f"({e()} {self.pick('==', '!=', '<', '>', '<=', '>=', 'in', 'not in')} {e()})",
            lambda: f"({e()} {self.pick('and', 'or')} {e()})", lambda: f"(not {e()})",
            lambda: f"({e()} if {e()} else {e()})", lambda: f"({e()} if {self.name()})",
            lambda: f"[{e()}, {e()}]", lambda: f"({e()}, {e()})", lambda: "{'k': %s, 'l': %s}" % (e(), e()),
            lambda: f"{self.name()}[{self.pick('0', '-1', '9', chr(39) + 'a' + chr(39), self.name)}]",
            lambda: f"{self.name()}[{self.pick('', '1', '-2', 'j')}:{self.pick('', '2', '-1', 'i')}{self.pick('', ':2', ':-1')}]",
            lambda: f"{self.name()}.{self.pick('a', 'b', 'k', 'none')}",
            lambda: f"({e()})|{self.filter()}", lambda: f"{self.name()}|{self.filter()}|{self.filter()}",
            lambda: f"{self.name()} is {self.pick('', 'not ')}{self.test()}", lambda: f"({e()}) is {self.test()}",
            lambda: f"{self.pick('s', 'w', 'uni', 'e')}.{self.method()}",
            lambda: f"d.{self.pick('get(' + chr(39) + 'a' + chr(39) + ')', 'get(e, 5)', 'keys()|list', 'values()|list', 'items()|list')}",
            lambda: f"range({self.pick('3', 'i', '1, 4', '5, 0, -2')})|{self.pick('list', 'length', 'join(' + chr(39) + '-' + chr(39) + ')')}",
            lambda: f"rows|{self.pick('map(attribute=' + chr(39) + 'k' + chr(39) + ')', 'selectattr(' + chr(39) + 'v' + chr(39) + ')', 'rejectattr(' + chr(39) + 'k' + chr(39) + ', ' + chr(39) + 'equalto' + chr(39) + ', ' + chr(39) + 'x' + chr(39) + ')')}|list",
            lambda: f"xs|{self.pick('select(' + chr(39) + 'gt' + chr(39) + ', 1)', 'reject(' + chr(39) + 'odd' + chr(39) + ')', 'map(' + chr(39) + 'string' + chr(39) + ')')}|list",
            lambda: f"-{self.name()}", lambda: f"{e()} < {e()} < {e()}",
        )

    def filter(self):
        return self.pick("trim", "upper", "lower", "length", "tojson", "default('D')", "default('D', true)", "join", "join(', ')", "first", "last",
                         "list", "string", "int", "float", "int(9)", "replace('l', 'LL')", "replace('a', 'b', 1)", "title", "capitalize",
                         "indent(2)", "indent(1, true)", "items|list", "tojson(indent=2)", "tojson(sort_keys=true)", "tojson(separators=[',', ':'])",
                         "tojson(ensure_ascii=true)", "trim('x')", "count", "d(1)")

    def test(self):
        return self.pick("defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean", "true", "false", "integer",
                         "float", "odd", "even", "in [1, 7, 'x']", "equalto 7", "eq(none)", "divisibleby 2")

    def method(self):
        return self.pick("strip()", "lstrip()", "rstrip('\\nd')", "split()", "split(' ')", "split('l', 1)", "startswith('H')", "endswith('😀')",
                         "upper()", "lower()", "replace('o', '')", "title()", "capitalize()", "splitlines()", "split(none, 1)",
                         "strip('Hd')", "removeprefix('He')", "join(['1', '2'])")

    def tag(self, inside, kind="%"):
        return "{" + kind + self.pick("", "", "-", "+" if kind == "%" else "") + " " + inside + " " + self.pick("", "", "-", "+" if kind == "%" else "") \
            + ("%" if kind == "%" else "}") + "}"

    def data(self):
        return self.pick("text", "\n", "  \n", " ", "\n  ", "x\n\n", "\t", "a b", "%", "}", "#")

    def statement(self, depth):
        body = lambda: self.body(depth - 1)
        if depth <= 0:
            return self.data() + self.tag(self.expr(2), "{")
        return self.pick(
            lambda: self.tag(self.expr(), "{"), lambda: self.tag(self.expr(), "{"), self.data, self.data,
            lambda: self.tag("if " + self.expr(2)) + body() + self.tag("endif"),
            lambda: self.tag("if " + self.expr(2)) + body() + self.tag("elif " + self.expr(1)) + body() + self.tag("else") + body() + self.tag("endif"),
            lambda: self.tag(f"for x in {self.pick('xs', 'ys', 's', 'd', 'rows', 'no', 'range(3)', 'missing')}" + self.pick("", "", " if x", " if x != 1"))
            + self.pick("", "{{ loop.index }}/{{ loop.length }}{{ loop.first }}{{ loop.last }}", "{{ loop.previtem }}|{{ loop.nextitem is defined }}", "{{ x }}",
                        "{% if loop.index0 == 1 %}{% break %}{% endif %}", "{% if x == 1 %}{% continue %}{% endif %}") + body() + self.pick("", self.tag("else") + body()) + self.tag("endfor"),
            lambda: self.tag("for k, v in d.items()") + "{{ k }}={{ v }};" + body() + self.tag("endfor"),
            lambda: self.tag(f"set {self.pick('i', 's', 'new', 'xs')} = {self.expr(2)}"),
            lambda: self.tag("set blk") + body() + self.tag("endset") + "{{ blk|length }}",
            lambda: self.tag("set ns = namespace(c=0)") + self.tag("for x in xs") + self.tag("set ns.c = ns.c + x") + body() + self.tag("endfor") + "{{ ns.c }}",
            lambda: self.tag("macro m(p, q=" + self.expr(1) + ")") + "{{ p }}" + body() + self.tag("endmacro") + "{{ m(1) }}{{ m(i, q=2) }}",
            lambda: self.tag("filter upper") + self.pick("abc", "{{ s }}") + self.tag("endfilter"),
            lambda: "{#" + self.pick("", "-", "+") + " note\n" + self.pick("", "-", "+") + "#}" + self.data(),
        )

    def body(self, depth):
        return "".join(self.pick(self.data, lambda: self.statement(depth)) for _ in range(self.r.randint(1, 3)))

    def program(self):
        # Jinja decides the scope of a variable before it runs: if a scope sets a variable, and only
        # inner scopes read it earlier, it is undefined there. The C renderer uses the caller's
        # variable in this case. Programs read these names once at the top to avoid it.
        return "{% set seen = (i, s, xs) %}" + self.body(2) + self.body(1) + self.pick("", "\n")


def addresses(result):
    text = result.get("text", "")
    return any(word in text for word in ("<generator", " object at 0x", "<function", "<bound method", "<built-in", "dict_", "range(", "<Macro", "<Namespace"))


def programs(count):
    """Keeps half of the programs that Jinja renders and one in ten of those that it refuses."""
    found, seed = [], 0
    while len(found) < count:
        seed += 1
        source = Grammar(seed).program()
        result = render(source, DATA)
        if addresses(result) or len(source) > 600 or len(json.dumps(result)) > 3000 or ("fails" in result and seed % 8):
            continue
        found.append({"source": source, **result})
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--templates", default=HERE)
    parser.add_argument("--out", default=os.path.join(HERE, "golden.json"))
    parser.add_argument("--programs", type=int, default=400)
    options = parser.parse_args()
    conversations = list(variables())
    renderings = []
    for name in sorted(n for n in os.listdir(options.templates) if n.endswith(".jinja")):
        with open(os.path.join(options.templates, name), encoding="utf-8", newline="") as file:
            source = file.read()
        for index, conversation in enumerate(conversations):
            renderings.append({"template": name, "conversation": index, **render(source, conversation)})
    golden = {"made_by": f"make.py, jinja2 {jinja2.__version__}", "now": NOW.strftime("%Y-%m-%d %H:%M:%S"), "conversations": conversations,
              "data": DATA, "programs": programs(options.programs)}
    with open(options.out, "w", encoding="utf-8") as file:
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in renderings)
        file.write(json.dumps(golden, ensure_ascii=False)[:-1] + ',\n"renderings": [\n' + rows + "]}\n")


main()
