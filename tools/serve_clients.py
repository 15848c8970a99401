#!/usr/bin/env python3
"""serve_clients.py URL [tools]: the official client of OpenAI's API against a running `rafter serve`.

It needs the package openai (`./dev prove serve` installs it into a folder of its own). The model must have a
chat template. With `tools`, the template must render tools, and only they are tried. The last line is JSON
with the number of checks and those that failed.
"""

import asyncio
import json
import sys

import openai

URL = sys.argv[1].rstrip("/") + "/v1"
CLIENT = openai.OpenAI(base_url=URL, api_key="none", max_retries=0, timeout=120)
CHAT = [
    {"role": "system", "content": "Answer in one sentence."},
    {"role": "user", "content": "What is the capital of France?"},
]
DONE, FAILED = [], []


def check(holds, what):
    DONE.append(what)
    if not holds:
        FAILED.append(what)
        print("FAIL:", what)


def refused(kind, what, call, **options):
    try:
        call(**options)
        check(False, f"{what}: no error")
    except kind as error:
        check(error.body["message"] and "param" in error.body, f"{what}: {error.body}")


def models():
    listed = CLIENT.models.list().data
    check(len(listed) == 1 and listed[0].owned_by == "rafter", "one model is listed")
    check(CLIENT.models.retrieve(listed[0].id).id == listed[0].id, "and can be retrieved")
    refused(openai.NotFoundError, "an unknown model", CLIENT.models.retrieve, model="none")
    return listed[0].id


def chats(model):
    ask = {"model": model, "messages": CHAT, "max_completion_tokens": 24, "temperature": 0, "seed": 7}
    one = CLIENT.chat.completions.create(**ask)
    text = one.choices[0].message.content
    check(text and one.choices[0].message.role == "assistant" and one.model == model, "a chat")
    check(one.usage.total_tokens == one.usage.prompt_tokens + one.usage.completion_tokens, "its usage")
    check(one.choices[0].finish_reason in ("stop", "length") and one.object == "chat.completion", "its end")
    parts = list(CLIENT.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    check(
        "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == text,
        "the same as a stream",
    )
    check(parts[-1].usage == one.usage and not parts[-1].choices, "usage of the stream")
    with CLIENT.chat.completions.stream(**ask) as stream:
        try:
            final = stream.get_final_completion()
        except openai.LengthFinishReasonError as error:  # the helper raises it for each answer of full length
            final = error.completion
    check(final.choices[0].message.content == text, "the helper that joins a stream")
    several = CLIENT.chat.completions.create(**{**ask, "temperature": 1, "n": 3})
    check([c.index for c in several.choices] == [0, 1, 2], "three answers")
    check(len({c.message.content for c in several.choices}) > 1, "that differ")
    again = CLIENT.chat.completions.create(**{**ask, "temperature": 1, "n": 3})
    check(
        [c.message for c in again.choices] == [c.message for c in several.choices], "and are the same again"
    )
    lists = [{"role": m["role"], "content": [{"type": "text", "text": m["content"]}]} for m in CHAT]
    check(
        CLIENT.chat.completions.create(**{**ask, "messages": lists}).choices[0].message.content == text,
        "parts",
    )
    longer = CHAT + [one.choices[0].message, {"role": "user", "content": "And at night?"}]
    check(CLIENT.chat.completions.create(**{**ask, "messages": longer}).choices, "the answer as a message")
    scored = (
        CLIENT.chat.completions.create(**ask, logprobs=True, top_logprobs=5).choices[0].logprobs.content
    )
    check(
        len(scored) == one.usage.completion_tokens and all(len(t.top_logprobs) == 5 for t in scored),
        "logprobs",
    )
    check(
        all(t.top_logprobs[0].token == t.token and t.logprob <= 0 for t in scored),
        "the likeliest token is chosen",
    )
    word = text.split()[2]
    stopped = CLIENT.chat.completions.create(**ask, stop=[word]).choices[0]
    check(stopped.finish_reason == "stop" and stopped.message.content == text.split(word)[0], "a stop text")
    raw = CLIENT.chat.completions.with_raw_response.create(**ask, extra_body={"frobnicate": 1})
    check("frobnicate" in raw.headers["warning"] and raw.parse().choices, "an unknown field is named")


def completions(model):
    ask = {"model": model, "prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}
    one = CLIENT.completions.create(**ask, logprobs=3)
    scored = one.choices[0].logprobs
    check(
        one.object == "text_completion" and len(scored.tokens) == one.usage.completion_tokens,
        "a completion",
    )
    check(
        "".join(scored.tokens) == one.choices[0].text and len(scored.top_logprobs[0]) == 3,
        "its log-probabilities",
    )
    parts = list(CLIENT.completions.create(**ask, stream=True))
    check("".join(p.choices[0].text for p in parts) == one.choices[0].text, "the same as a stream")
    both = CLIENT.completions.create(**{**ask, "prompt": [ask["prompt"], "Paris is"]})
    check(
        [c.index for c in both.choices] == [0, 1] and both.choices[0].text == one.choices[0].text,
        "two prompts",
    )
    echo = CLIENT.completions.create(**ask, echo=True).choices[0].text
    check(echo == ask["prompt"] + one.choices[0].text, "echo")
    both = CLIENT.completions.create(**ask, echo=True, logprobs=2, extra_body={"prompt_logprobs": 2})
    shown, rows = both.choices[0].logprobs, both.choices[0].prompt_logprobs
    check("".join(shown.tokens) == echo and shown.token_logprobs[0] is None, "echo with log-probabilities")
    check(len(rows) == both.usage.prompt_tokens and rows[0] is None, "log-probabilities of the prompt")
    best = [max(e["logprob"] for e in row.values()) for row in rows[1:]]
    listed = [max(top.values()) for top in shown.top_logprobs[1 : len(rows)]]
    check(best == listed, "which are the same numbers")
    biased = CLIENT.completions.create(
        **ask, logit_bias={"5": 100}, extra_body={"return_token_ids": True}
    ).choices[0]
    check(set(biased.token_ids) == {5}, "a bias, and token ids")
    check(
        CLIENT.completions.create(
            **ask,
            presence_penalty=1.5,
            frequency_penalty=0.5,
            top_p=0.9,
            user="me",
            extra_body={"top_k": 5, "min_p": 0.1, "ignore_eos": True},
        ).choices,
        "sampling",
    )


def errors(model):
    chat, text = CLIENT.chat.completions.create, CLIENT.completions.create
    bad = openai.BadRequestError
    refused(openai.NotFoundError, "another model", chat, model="none", messages=CHAT)
    refused(bad, "temperature -1", chat, model=model, messages=CHAT, temperature=-1)
    refused(bad, "max_tokens 0", text, model=model, prompt="a", max_tokens=0)
    refused(bad, "the role robot", chat, model=model, messages=[{"role": "robot", "content": "x"}])
    refused(bad, "n 10000", chat, model=model, messages=CHAT, n=10000)
    refused(bad, "a long prompt", text, model=model, prompt="word " * 100000)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}
    refused(bad, "an unsupported JSON schema", chat, model=model, messages=CHAT, response_format=form)
    refused(bad, "embeddings", CLIENT.embeddings.create, model=model, input="x")


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather at a place",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "maxLength": 20}, "days": {"enum": [1, 2]}},
            "required": ["place", "days"],
            "additionalProperties": False,
        },
    },
}
NAMED = {"type": "function", "function": {"name": "weather"}}
DEMAND = [{"role": "user", "content": "Call the tool weather for Bonn and 2 days. Write only <tool_call>."}]


def joined(parts):
    """The text and the calls of a stream, joined as clients do."""
    text, calls, finish = "", [], None
    for part in parts:
        for choice in part.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                if call.index == len(calls):
                    calls.append([call.id, call.function.name, ""])
                calls[call.index][2] += call.function.arguments
    return text, calls, finish


def tool_calls(model):
    chat = CLIENT.chat.completions.create
    ask = {"model": model, "messages": CHAT, "tools": [WEATHER], "temperature": 0, "max_tokens": 200}
    one = chat(**ask, tool_choice=NAMED).choices[0]
    call = one.message.tool_calls[0]
    values = json.loads(call.function.arguments)
    check(one.finish_reason == "tool_calls" and one.message.content is None, "a call")
    check(call.type == "function" and call.id and call.function.name == "weather", "its name")
    check(set(values) == {"place", "days"} and values["days"] in (1, 2), "its arguments")
    text, calls, finish = joined(chat(**ask, tool_choice=NAMED, stream=True))
    check(not text and finish == "tool_calls", "a call in a stream")
    check([c[1:] for c in calls] == [["weather", call.function.arguments]], "which is the same")
    with CLIENT.chat.completions.stream(**ask, tool_choice=NAMED) as stream:
        final = stream.get_final_completion().choices[0].message
    check(final.tool_calls[0].function.arguments == call.function.arguments, "the helper that joins a stream")
    needed = chat(**ask, tool_choice="required", parallel_tool_calls=False).choices[0].message
    check(len(needed.tool_calls) == 1, "a required call")
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    turns = CHAT + [one.message, result]
    after = chat(**{**ask, "messages": turns, "max_tokens": 8}).choices[0]
    check(after.message.content is not None or after.message.tool_calls, "an answer to a result")
    spoken = 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"place": "Bonn"}}\n</tool_call>'
    form = {"structured_outputs": {"choice": [spoken]}}
    auto = chat(**ask, extra_body=form).choices[0]
    check(auto.message.content == "Let me see." and auto.finish_reason == "tool_calls", "text before a call")
    text, calls, finish = joined(chat(**ask, extra_body=form, stream=True))
    check(text == "Let me see." and calls[0][2] == '{"place": "Bonn"}', "and as a stream")
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    decided = chat(**{**ask, "tools": [strict], "messages": DEMAND}).choices[0]
    for call in decided.message.tool_calls or []:  # a small model may answer without a call
        values = json.loads(call.function.arguments)
        check(set(values) == {"place", "days"} and values["days"] in (1, 2), "a strict function")
    silent = chat(**ask, tool_choice="none", extra_body=form).choices[0].message
    check(silent.content == spoken and not silent.tool_calls, "tool_choice none")
    bad = openai.BadRequestError
    twice = {**ask, "tools": [WEATHER, WEATHER]}
    refused(bad, "two tools with one name", chat, **twice)
    refused(bad, "a result without a call", chat, **{**ask, "messages": CHAT + [result]})
    other = {"type": "function", "function": {"name": "gone"}}
    refused(bad, "an unknown function", chat, **ask, tool_choice=other)


async def at_once(model):
    client = openai.AsyncOpenAI(base_url=URL, api_key="none", max_retries=0, timeout=300)
    asks = [
        {"model": model, "prompt": f"Number {i % 8}", "max_tokens": 12, "seed": i % 8} for i in range(64)
    ]
    answers = await asyncio.gather(*(client.completions.create(**a) for a in asks))
    texts = [a.choices[0].text for a in answers]
    check(
        all(texts[i] == texts[i % 8] for i in range(64)),
        "64 requests at once: equal requests, equal answers",
    )
    alone = [(await client.completions.create(**a)).choices[0].text for a in asks[:8]]
    check(alone == texts[:8], "and the same as alone")
    stream = await client.completions.create(model=model, prompt="Count:", max_tokens=500, stream=True)
    async for _ in stream:
        break
    await stream.close()
    again = await client.completions.create(**asks[0])
    check(again.choices[0].text == texts[0], "an answer after a client has left a stream")


def main():
    model = models()
    if sys.argv[2:] == ["tools"]:
        tool_calls(model)
    else:
        chats(model)
        completions(model)
        errors(model)
        asyncio.run(at_once(model))
    print(json.dumps({"client": f"openai {openai.__version__}", "checks": len(DONE), "failed": FAILED}))
    sys.exit(1 if FAILED else 0)


main()
