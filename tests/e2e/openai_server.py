#!/usr/bin/env python3
"""A server in the shape of OpenAI's API, with delays and faults on request.

openai_server.py ROOT: listens on the loopback. It writes its port to ROOT/port and each request as a
line of JSON to ROOT/log. Before each request it reads ROOT/faults (JSON, may be missing):
  kinds [K, ...]    what the requests get, in turn (default: ["ok"]):
    ok              an answer of max_tokens events, a usage and [DONE]
    status:N        an error with this status          text:N      the same without JSON
    cut             the connection closes in the middle of a chunk        drop      it closes before any byte
    no_done         the stream ends properly, without [DONE] and without a finish_reason
    no_usage        no usage                           bad_usage   a usage below 0
    json            no stream, but one JSON object     empty       no tokens
    garbage         an event that is not JSON          error       an error inside the stream
    long            a line of 2 MiB                    endless     a line without an end
    bad_utf8, nul, deep      an event with invalid UTF-8, a NUL, or 100,000 brackets
    stall           nothing after the first token      bare        no blank line after [DONE]
    eos             half of the tokens have no text, the last event has none either
    redirect        307 to another path
  split N           bytes of a write                   end TEXT    line break (default \\n)
  first_ms, token_ms N      delays                     slots N     answers at once; others wait
  models TEXT       the body of /v1/models             key T       401 without "Bearer T"
  metrics           names of /metrics: vllm, none
"""
import asyncio
import json
import os
import sys

ROOT = sys.argv[1]
TEXTS = [" the", " \u00e9", " \u65e5\u672c", " \U0001f600", " \"quoted\"", " new\nline"]
state = {"count": 0, "running": 0, "waiting": 0, "slots": None}


def faults():
    try:
        with open(f"{ROOT}/faults", encoding="utf-8") as f: return json.load(f)
    except FileNotFoundError: return {}


class Broken(Exception): pass


class Answer:
    """Writes one response in pieces of `split` bytes."""
    def __init__(self, writer, fault):
        self.writer, self.fault = writer, fault
        self.end = fault.get("end", "\n")

    async def raw(self, data):
        step = self.fault.get("split") or max(1, len(data))
        for i in range(0, len(data), step):
            self.writer.write(data[i:i + step])
            await self.writer.drain()
            if step < len(data): await asyncio.sleep(0)

    async def head(self, status, kind, extra=""):
        text = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n{extra}\r\n"
        await self.raw(text.encode())

    async def chunk(self, data):
        await self.raw(b"%x\r\n" % len(data) + data + b"\r\n")

    async def event(self, data):
        if not isinstance(data, (str, bytes)): data = json.dumps(data, ensure_ascii=False)
        if isinstance(data, str): data = data.encode()
        await self.chunk(b": a comment" + self.end.encode() + b"data: " + data + 2 * self.end.encode())

    async def whole(self, status, body, kind="application/json", extra=""):
        await self.head(status, kind, extra)
        if body: await self.chunk(body.encode())
        await self.raw(b"0\r\n\r\n")


def piece(chat, text, finish=None, first=False):
    choice = {"index": 0, "finish_reason": finish}
    if chat: choice["delta"] = ({"role": "assistant"} if first else {}) | {"content": text}
    else: choice["text"] = text
    return {"id": "x", "object": "chunk", "model": "mock", "choices": [choice]}


async def special(out, kind):
    """The faults of one event. Returns whether the answer has ended."""
    events = {"garbage": "{]", "deep": "[" * 100000, "nul": b'{"choices":[{"text":"a\0b"}]}',
              "error": {"error": {"message": "engine \x1b[31mfailed", "code": 500}},
              "bad_utf8": b'{"choices":[{"text":"\xff\xfe"}]}'}
    if kind in events: await out.event(events[kind])
    elif kind == "long": await out.event("x" * (2 << 20))
    elif kind == "endless":
        for _ in range(64): await out.chunk(b"data: " + b"y" * 65536)
    elif kind == "cut":
        await out.raw(b"40\r\ndata: {\"cho")
        raise Broken
    elif kind == "no_done": await out.raw(b"0\r\n\r\n")
    elif kind == "stall": await asyncio.sleep(30)
    else: return False
    return True


async def stream(out, fault, kind, chat, tokens):
    await out.head(200, "text/event-stream")
    if chat: await out.event(piece(chat, "", first=True))
    if kind == "empty": tokens = 0
    for i in range(tokens):
        await asyncio.sleep((fault.get("token_ms", 0) if i else fault.get("first_ms", 0)) / 1000)
        text = "" if kind == "eos" and i % 2 else TEXTS[i % len(TEXTS)]
        await out.event(piece(chat, text))
        if i == 0 and await special(out, kind): return
    await out.event(piece(chat, "", finish="stop" if kind == "eos" else "length"))
    if kind != "no_usage":
        usage = {"prompt_tokens": 7, "completion_tokens": -1 if kind == "bad_usage" else tokens}
        await out.event({"choices": [], "usage": usage})
    if kind == "bare": await out.chunk(b"data: [DONE]")
    else: await out.event("[DONE]")
    await out.raw(b"0\r\n\r\n")


async def answer(out, fault, kind, path, body):
    chat, tokens = "chat" in path, body.get("max_tokens", 4)
    name, _, number = kind.partition(":")
    if name == "drop": raise Broken
    refusal = json.dumps({"error": {"message": f"no \x1b[2J luck {number}"}})
    if name == "status": return await out.whole(number, refusal)
    if name == "text": return await out.whole(number, "<html>\nno luck</html>", "text/html")
    if name == "redirect": return await out.whole(307, "", extra="Location: /elsewhere\r\n")
    if name == "json": return await out.whole(200, json.dumps({"choices": [{"text": "hello"}]}))
    if state["slots"] is None or state["limit"] != fault.get("slots"):
        state["limit"] = fault.get("slots")
        state["slots"] = asyncio.Semaphore(state["limit"] or 1 << 20)
    state["waiting"] += 1
    await state["slots"].acquire()
    state["waiting"] -= 1
    state["running"] += 1
    try: await stream(out, fault, kind, chat, tokens)
    finally:
        state["running"] -= 1
        state["slots"].release()
    return None


async def respond(out, method, path, headers, body):
    fault = faults()
    with open(f"{ROOT}/log", "a", encoding="utf-8") as log:
        row = {"method": method, "path": path, "body": body, "key": headers.get("authorization")}
        log.write(json.dumps(row) + "\n")
    if fault.get("key") and headers.get("authorization") != "Bearer " + fault["key"]:
        await out.whole(401, json.dumps({"error": {"message": "wrong key"}}))
    elif path == "/v1/models": await out.whole(200, fault.get("models", '{"data": [{"id": "mock"}]}'))
    elif path == "/metrics" and fault.get("metrics", "vllm") == "vllm":
        page = (f'# HELP x y\nvllm:num_requests_running{{model="a}} b"}} {state["running"]}.0\n'
                f'vllm:num_requests_waiting{{model="m"}} {state["waiting"]}\n')
        await out.whole(200, page, "text/plain")
    elif path in ("/v1/completions", "/v1/chat/completions") and method == "POST":
        kinds = fault.get("kinds", ["ok"])
        kind = kinds[state["count"] % len(kinds)]
        state["count"] += 1
        await answer(out, fault, kind, path, body)
    else: await out.whole(404, '{"detail": "Not Found"}')


async def serve(reader, writer):
    try:
        while True:
            line = await reader.readline()
            if not line: break
            method, path, _ = line.decode().split(" ", 2)
            headers = {}
            while (line := (await reader.readline()).decode().strip()):
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            out = Answer(writer, faults())
            await respond(out, method, path, headers, json.loads(body) if body else None)
    except (Broken, ConnectionError, asyncio.IncompleteReadError): pass
    finally: writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 24)
    with open(f"{ROOT}/port.new", "w", encoding="utf-8") as f:
        f.write(str(server.sockets[0].getsockname()[1]))
    os.rename(f"{ROOT}/port.new", f"{ROOT}/port")
    async with server: await server.serve_forever()

asyncio.run(main())
