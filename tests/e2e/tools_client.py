"""tools_client.py CASE: requests with tools, for test_tools.sh. SERVE_URL names the server."""

import json
import sys

from lib_client import request

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather at a place",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "maxLength": 6},
                "days": {"$ref": "#/$defs/days"},
            },
            "required": ["place", "days"],
            "additionalProperties": False,
            "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
        },
    },
}
TIME = {"type": "function", "function": {"name": "time"}}
ASK = {
    "messages": [{"role": "user", "content": "Hi"}],
    "tools": [WEATHER, TIME],
    "max_tokens": 400,
    "seed": 5,
}
# A text with two calls, as models of each template write it.
SPOKEN = {
    "qwen2_5": 'It is.\n<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"place": "Bonn", "days": 2}}\n</tool_call>',
    "llama3_1": '{"name": "time", "parameters": {}}; '
    '{"name": "weather", "parameters": {"place": "Bonn", "days": 2}}',
    "mistral_tools": 'It is.[TOOL_CALLS] [{"name": "time", "arguments": {}}, '
    '{"name": "weather", "arguments": {"place": "Bonn", "days": 2}}]',
}
SPOKEN["qwen3"] = SPOKEN["qwen2_5"]


def check(holds, what):
    if not holds:
        sys.exit(f"FAIL: {what}")


def post(body, path=CHAT):
    status, _, text = request("POST", path, body, timeout=120)
    return status, text


def whole(body):
    """The content, the calls and the finish reason of each choice."""
    status, text = post(body)
    check(status == 200, f"{str(body)[:300]}: {status} {text[:400]}")
    rows = []
    for choice in json.loads(text)["choices"]:
        calls = choice["message"].get("tool_calls", [])
        check(all(c["type"] == "function" and len(c["id"]) >= 9 for c in calls), f"{calls}")
        check(len({c["id"] for c in calls}) == len(calls), f"ids: {calls}")
        functions = [(c["function"]["name"], c["function"]["arguments"]) for c in calls]
        rows.append((choice["message"]["content"], functions, choice["finish_reason"]))
    return rows


def streamed(body):
    status, text = post({**body, "stream": True})
    check(status == 200, f"{str(body)[:300]}: {status} {text[:400]}")
    rows = {}
    for event in text.decode().split("\n\n"):
        if not event or event == "data: [DONE]":
            continue
        for choice in json.loads(event[6:])["choices"]:
            row = rows.setdefault(choice["index"], [None, [], None])
            delta = choice["delta"]
            if delta.get("content"):
                row[0] = (row[0] or "") + delta["content"]
            for call in delta.get("tool_calls", []):
                function = call["function"]
                if call["index"] == len(row[1]):
                    check(call["id"] and call["type"] == "function", f"the first delta of a call: {call}")
                    row[1].append([function["name"], ""])
                else:
                    check(set(call) == {"index", "function"}, f"a later delta: {call}")
                row[1][call["index"]][1] += function["arguments"]
            row[2] = choice["finish_reason"] or row[2]
    return [(r[0], [tuple(c) for c in r[1]], r[2]) for _, r in sorted(rows.items())]


def both(body):
    """The answer, which is the same as a stream."""
    rows, stream = whole(body), streamed(body)
    check(rows == stream, f"a stream has another answer: {rows} {stream}")
    return rows


def check_call(name, arguments):
    values = json.loads(arguments)
    if name == "time":
        check(values == {}, f"arguments of time: {arguments}")
        return
    check(name == "weather" and list(values) == ["place", "days"], f"{name} {arguments}")
    check(len(values["place"]) <= 6 and values["days"] in range(1, 10), f"arguments: {arguments}")


def case_formats(template):
    named = {"type": "function", "function": {"name": "weather"}}
    for seed in range(3):
        rows = both({**ASK, "seed": seed, "n": 2, "tool_choice": "required"})
        for content, calls, finish in rows:
            if finish != "tool_calls":  # several calls may exceed max_tokens
                check(finish == "length", f"{finish}")
                continue
            check(content is None and calls, f"required: {content} {calls}")
            for call in calls:
                check_call(*call)
        one = {**ASK, "seed": seed, "tool_choice": "required", "parallel_tool_calls": False}
        for content, calls, finish in both(one):
            check(content is None and len(calls) == 1 and finish == "tool_calls", f"one call: {calls}")
            check_call(*calls[0])
        for content, calls, finish in both({**ASK, "seed": seed, "tool_choice": named}):
            check([c[0] for c in calls] == ["weather"] and finish == "tool_calls", f"named: {calls}")
            check_call(*calls[0])
    spoken = {"structured_outputs": {"choice": [SPOKEN[template]]}}
    content, calls, finish = both({**ASK, **spoken})[0]
    check(content == (None if template == "llama3_1" else "It is."), f"the text before calls: {content}")
    check(calls[0] == ("time", "{}") and calls[1][0] == "weather", f"calls: {calls}")
    check(json.loads(calls[1][1]) == {"place": "Bonn", "days": 2}, f"arguments: {calls}")
    check(finish == "tool_calls", f"finish_reason: {finish}")
    first = both({**ASK, **spoken, "parallel_tool_calls": False})[0]
    check(first[1] == calls[:1], f"without parallel calls: {first}")
    silent = both({**ASK, **spoken, "tool_choice": "none"})[0]
    check(silent == (SPOKEN[template], [], "stop"), f"tool_choice none: {silent}")
    plain = both({**ASK, "structured_outputs": {"choice": ["No < call."]}})[0]
    check(plain == ("No < call.", [], "stop"), f"a text without calls: {plain}")
    cut = both({**ASK, "tool_choice": named, "max_tokens": 45})[0]
    check(cut[2] == "length", f"a call that is cut: {cut}")
    # The answer and the result of a call are the next prompt.
    message = json.loads(post({**ASK, "tool_choice": named})[1])["choices"][0]["message"]
    call = message["tool_calls"][0]
    result = {"role": "tool", "tool_call_id": call["id"], "content": [{"type": "text", "text": "sunny"}]}
    turns = ASK["messages"] + [message, result]
    status, text = post({"messages": turns, "tools": ASK["tools"]}, "/tokenize")
    check(status == 200, f"the next prompt: {text[:400]}")
    prompt = json.loads(post({"tokens": json.loads(text)["tokens"]}, "/detokenize")[1])["prompt"]
    check("sunny" in prompt and '"place": ' in prompt and "weather" in prompt, f"the next prompt: {prompt}")
    more = {**ASK, "messages": turns, "max_tokens": 3, "ignore_eos": True}
    check(whole(more)[0][2] == "length", "the conversation continues")


def strict(tool):
    none = {"type": "object", "properties": {}, "additionalProperties": False}
    function = {"parameters": none, **tool["function"], "strict": True}
    return {"type": "function", "function": function}


def case_strict():
    """The model decides to call: here a bias for { makes it begin a call, as Llama's template has it."""
    begins = {**ASK, "logit_bias": {"123": 100}}
    for seed in range(4):
        body = {**begins, "seed": seed, "tools": [strict(WEATHER), strict(TIME)]}
        content, calls, finish = both(body)[0]
        check(content is None and len(calls) == 1 and finish == "tool_calls", f"strict: {content} {calls}")
        check_call(*calls[0])
    loose = both({**begins, "max_tokens": 20})[0]
    check(loose == ("{" * 20, [], "length"), f"tools that are not strict: {loose}")
    free = both({**ASK, "tools": [strict(WEATHER)], "logit_bias": {"97": 100}, "max_tokens": 20})[0]
    check(free == ("a" * 20, [], "length"), f"text without a call: {free}")
    formed = {"tools": [strict(WEATHER)], "structured_outputs": {"choice": ["No."]}}
    check(both({**ASK, **formed})[0] == ("No.", [], "stop"), "a form of the request counts")
    wrong = '{"name": "time", "parameters": {"a" 1}}'
    body = {**ASK, "structured_outputs": {"choice": [wrong]}}
    check(whole(body)[0] == (wrong, [], "stop"), "arguments that are not JSON are text")
    check(streamed(body)[0][1:] == ([("time", '{"a" 1}')], "tool_calls"), "a stream has begun the call")


def case_prompts(golden, template):
    """Conversations with calls have the prompts of Jinja2. Clients write arguments as texts."""
    with open(golden, encoding="utf-8") as file:
        data = json.load(file)
    compared = 0
    for row in data["renderings"]:
        if row["template"] != template + ".jinja" or "text" not in row:
            continue
        variables = data["conversations"][row["conversation"]]
        messages, tools = json.loads(json.dumps(variables["messages"])), variables.get("tools")
        known = {"role", "content", "tool_calls", "tool_call_id", "name"}
        plain = all(isinstance(m.get("content"), str) and set(m) <= known for m in messages)
        uses = tools or "tool_calls" in str(messages)
        if not messages or not plain or not uses or "enable_thinking" in variables:
            continue
        for message in messages:
            for call in message.get("tool_calls", []):
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
        body = {"messages": messages, "add_generation_prompt": variables["add_generation_prompt"]}
        status, text = post({**body, "tools": tools} if tools else body, "/tokenize")
        check(status == 200, f"{messages}: {text}")
        prompt = bytes(i for i in json.loads(text)["tokens"] if i < 256).decode()
        check(prompt == row["text"], f"{prompt!r} is not {row['text']!r}")
        compared += 1
    check(compared >= 5, f"only {compared} prompts")


def refused(fields, param, words):
    body = fields if isinstance(fields, bytes) else {**ASK, "max_tokens": 4, **fields}
    status, text = post(body)
    error = json.loads(text).get("error", {})
    check(status == 400 and error.get("param") == param, f"{str(fields)[:200]}: {status} {text[:300]}")
    check(words in error["message"], f"{error['message']} does not say {words}")


def tool(name, schema=None):
    return {"type": "function", "function": {"name": name, "parameters": schema or {"type": "object"}}}


def called(schema):
    return {"tools": [tool("f", schema)], "tool_choice": "required"}


def case_refused():
    refused({"tools": [tool(f"f{i}") for i in range(10000)]}, "tools", "too many tools")
    refused({"tools": [tool(f"f{i}", {"description": "x" * 9}) for i in range(1024)]}, "messages", "context")
    refused({"tools": [tool("f"), tool("f")]}, "tools[1].function.name", "same name")
    refused({"tools": [tool("f"), "g"]}, "tools[1]", "expected an object")
    refused({"tools": {"f": 1}}, "tools", "a list of tools")
    odd = tool("f")
    odd["function"]["strict"] = 1
    refused({"tools": [odd]}, "tools[0].function.strict", "true or false")
    unknown = {"type": "object", "properties": {"a": {"not": {}}}}
    refused({"tools": [strict(tool("f", unknown))]}, "tools", '"not" is not supported')
    refused({"tool_choice": {"type": "function", "function": {"name": "gone"}}}, "tool_choice", "no tool")
    refused({"tools": [], "tool_choice": "required"}, "tool_choice", "needs tools")
    refused({"tool_choice": 7}, "tool_choice", "not supported")
    refused({"parallel_tool_calls": "yes"}, "parallel_tool_calls", "true or false")
    refused({"functions": [{"name": "f"}]}, "functions", "not supported")
    lonely = {"role": "tool", "tool_call_id": "x", "content": "sunny"}
    refused({"messages": ASK["messages"] + [lonely]}, "messages[1].tool_call_id", "id of a call")
    huge = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 10**9}}}
    refused(called(huge), "tool_choice", "too large")
    negated = {"type": "object", "properties": {"a": {"not": {}}}}
    refused(called(negated), "tool_choice", '"not" is not supported')
    pattern = {"type": "string", "pattern": "((a{0,999}){0,999}){0,999}"}
    refused(called({"type": "object", "properties": {"a": pattern}}), "tool_choice", "too large")
    refused(called({"type": "object", "properties": {"x" * 600: {}}}), "tool_choice", "properties")
    two = {**called({"type": "object"}), "response_format": {"type": "json_object"}}
    refused(two, "tool_choice", "two forms")
    levels = 900
    schema = b'{"properties":{"a":' * levels + b"{}" + b"}}" * levels
    body = json.dumps({**ASK, "tools": [tool("f", {"x": "HERE"})]}).encode()
    refused(body.replace(b'{"x": "HERE"}', schema), "messages", "nest more than 100 deep")
    items = {"type": "object"}
    for _ in range(80):
        items = {"items": items}
    refused(called({"type": "object", "properties": {"a": items}}), "tool_choice", "too deeply")
    check(post({**ASK, "max_tokens": 2})[0] == 200, "the server still answers")


def case_no_tools():
    refused({}, "tools", "knows no tools")
    call = {"id": "a", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    turns = ASK["messages"] + [{"role": "assistant", "tool_calls": [call]}]
    refused({"messages": turns, "tools": None}, "messages", "knows no tools")
    silent = whole({**ASK, "tool_choice": "none", "max_tokens": 2, "ignore_eos": True})
    check(silent[0][1:] == ([], "length"), f"tool_choice none: {silent}")


globals()["case_" + sys.argv[1]](*sys.argv[2:])
