"""serve_client.py CASE: one case of test_serve.sh. SERVE_URL and SERVE_PID name the server.

It uses only Python's standard library.
"""

import http.client
import json
import os
import re
import socket
import sys
import threading
import time

from lib_client import FAILED, URL, check, request

# The random model of test_serve.sh answers with arbitrary bytes, so requests compare whole answers.
ASK = {"prompt": "Once upon a time", "max_tokens": 24, "seed": 11, "ignore_eos": True}
LONG = {"prompt": "Count:", "max_tokens": 3000, "ignore_eos": True}


def post(path, body, headers=None):
    status, _, text = request("POST", path, body, headers)
    return status, json.loads(text)


def get(path):
    return request("GET", path)[2].decode()


def events(text):
    """The JSON objects of a stream; the last event must be [DONE]."""
    rows = [row[6:] for row in text.decode().split("\n\n") if row]
    check(rows and rows[-1] == "[DONE]", f"the stream ends with [DONE] (got {rows[-1:]})")
    return [json.loads(row) for row in rows[:-1]]


def stream(path, body):
    status, headers, text = request("POST", path, {**body, "stream": True})
    check(
        status == 200 and headers["content-type"].startswith("text/event-stream"),
        f"a stream: {status} {headers}",
    )
    return events(text)


def metric(name, **labels):
    for line in get("/metrics").splitlines():
        match = re.fullmatch(r"rafter:" + name + r"\{(.*)\} (\S+)", line)
        if match and all(f'{k}="{v}"' in match[1] for k, v in labels.items()):
            return float(match[2])
    return None


def wait_for(what, holds):
    """Waits until holds() is true, for a time that only a lost event needs."""
    for _ in range(300):
        if holds():
            return True
        time.sleep(0.05)
    check(False, what)
    return False


def idle():
    return metric("num_requests_running") == 0 and metric("num_requests_waiting") == 0


def send(path, body, **options):
    """Sends a request on a socket of its own, and returns the socket."""
    data = json.dumps(body).encode()
    s = socket.socket()
    for name, value in options.items():
        s.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    s.connect((URL.hostname, URL.port))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    s.sendall(head.encode() + data)
    return s


def text_of(answer):
    return [c["text"] for c in answer["choices"]]


# ---- cases --------------------------------------------------------------------------------------


def case_completions():
    status, one = post("/v1/completions", ASK)
    check(
        status == 200 and one["object"] == "text_completion" and one["model"] == "tiny", f"an answer: {one}"
    )
    check(
        one["usage"] == {"prompt_tokens": 16, "completion_tokens": 24, "total_tokens": 40},
        f"usage: {one['usage']}",
    )
    check(
        one["choices"][0]["finish_reason"] == "length" and one["choices"][0]["logprobs"] is None,
        "the choice",
    )
    ids = list(b"Once upon a time")
    check(
        text_of(post("/v1/completions", {**ASK, "prompt": ids})[1]) == text_of(one),
        "ids give the same answer",
    )
    both = post("/v1/completions", {**ASK, "prompt": ["Once upon a time", "Ho"], "n": 2})[1]
    check([c["index"] for c in both["choices"]] == [0, 1, 2, 3], "indexes of two prompts with two answers")
    check(text_of(both)[0] == text_of(one)[0] and text_of(both)[1] != text_of(both)[0], "the first of them")
    check(
        both["usage"]["prompt_tokens"] == 18 and both["usage"]["completion_tokens"] == 96,
        f"{both['usage']}",
    )
    rows = stream("/v1/completions", {**ASK, "n": 2, "stream_options": {"include_usage": True}})
    joined = ["".join(c["text"] for r in rows for c in r["choices"] if c["index"] == i) for i in (0, 1)]
    check(joined == text_of(both)[:2], "the stream has the same texts")
    check(rows[-1]["choices"] == [] and rows[-1]["usage"]["completion_tokens"] == 48, f"usage: {rows[-1]}")
    check(all(r["usage"] is None for r in rows[:-1]), "other events have no usage")
    steady = stream("/v1/completions", {**ASK, "stream_options": {"continuous_usage_stats": True}})
    check(
        [r["usage"]["completion_tokens"] for r in steady]
        == sorted(r["usage"]["completion_tokens"] for r in steady)
        and steady[-1]["usage"]["completion_tokens"] == 24,
        "continuous usage",
    )
    echo = post("/v1/completions", {**ASK, "echo": True})[1]
    check(text_of(echo)[0] == "Once upon a time" + text_of(one)[0], "echo")
    middle = next(c for c in text_of(one)[0][2:] if " " < c < "~")
    stopped = post("/v1/completions", {**ASK, "stop": ["never found", middle]})[1]["choices"][0]
    check(
        stopped["finish_reason"] == "stop" and stopped["text"] == text_of(one)[0].split(middle)[0],
        f"stop: {stopped}",
    )
    cut = "".join(
        c["text"] for r in stream("/v1/completions", {**ASK, "stop": middle}) for c in r["choices"]
    )
    check(cut == stopped["text"], "a stop text in a stream")
    check(text_of(post("/v1/completions", {**ASK, "seed": 12})[1]) != text_of(one), "another seed")
    equal = {**ASK, "prompt": ["Once upon a time"] * 3, "temperature": 1}
    check(len(set(text_of(post("/v1/completions", equal)[1]))) == 1, "equal prompts with a seed")
    del equal["seed"]
    check(len(set(text_of(post("/v1/completions", equal)[1]))) == 3, "equal prompts without a seed")
    bias = post("/v1/completions", {**ASK, "max_tokens": 3, "logit_bias": {"65": 100}})[1]
    check(text_of(bias) == ["AAA"], f"a bias: {text_of(bias)}")


def case_chats():
    ask = {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "seed": 3,
        "max_completion_tokens": 8,
        "ignore_eos": True,
    }
    status, one = post("/v1/chat/completions", ask)
    message = one["choices"][0]["message"]
    check(
        status == 200 and one["object"] == "chat.completion" and message["role"] == "assistant",
        f"an answer: {one}",
    )
    check(
        one["id"].startswith("chatcmpl-") and one["created"] > 1e9 and one["system_fingerprint"],
        "id and time",
    )
    rows = stream("/v1/chat/completions", {**ask, "stream_options": {"include_usage": True}})
    deltas = [r["choices"][0]["delta"] for r in rows[:-1]]
    check(deltas[0] == {"role": "assistant", "content": ""}, f"the first delta: {deltas[0]}")
    check(
        "".join(d.get("content", "") for d in deltas) == message["content"], "the stream has the same text"
    )
    check(
        rows[-2]["choices"][0]["finish_reason"] == "length" and rows[-1]["usage"] == one["usage"], "its end"
    )
    parts = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    same = post("/v1/chat/completions", {**ask, "messages": parts, "model": "tiny"})[1]
    check(same["choices"][0]["message"] == message, "parts and the role developer")
    tokens = post("/tokenize", {"messages": ask["messages"]})[1]
    check(tokens["count"] == one["usage"]["prompt_tokens"], f"tokens of the prompt: {tokens['count']}")
    raw = post(
        "/v1/completions", {"prompt": tokens["tokens"], "max_tokens": 8, "seed": 3, "ignore_eos": True}
    )[1]
    check(text_of(raw) == [message["content"]], "the same ids give the same answer")


def case_logprobs():
    ask = {**ASK, "max_tokens": 4, "return_token_ids": True}
    one = post("/v1/completions", {**ask, "logprobs": 2})[1]["choices"][0]
    lp = one["logprobs"]
    check(all(len(lp[k]) == 4 for k in ("tokens", "token_logprobs", "text_offset")), f"lists: {lp}")
    check(one["prompt_token_ids"] == list(b"Once upon a time") and len(one["token_ids"]) == 4, "token ids")
    check(all(x <= 0 for x in lp["token_logprobs"]) and lp["text_offset"][0] == 0, f"numbers: {lp}")
    bare = post("/v1/completions", {**ask, "logprobs": 0})[1]["choices"][0]["logprobs"]
    check(
        bare["token_logprobs"] == lp["token_logprobs"] and bare["top_logprobs"] is None,
        "without alternatives",
    )
    rows = stream("/v1/completions", {**ask, "logprobs": 2})
    chosen = [c for r in rows for c in r["choices"] if c["logprobs"]]
    check(
        sum((c["logprobs"]["token_logprobs"] for c in chosen), []) == lp["token_logprobs"],
        "those of a stream",
    )
    check(
        sum((c["logprobs"]["text_offset"] for c in chosen), []) == lp["text_offset"], "offsets of a stream"
    )
    check(sum((c["token_ids"] for c in chosen), []) == one["token_ids"], "token ids of a stream")
    case_prompt_logprobs(one)
    chat = {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 3,
        "logprobs": True,
        "top_logprobs": 3,
        "temperature": 0,
        "ignore_eos": True,
    }
    content = post("/v1/chat/completions", chat)[1]["choices"][0]["logprobs"]["content"]
    check(len(content) == 3 and all(len(t["top_logprobs"]) == 3 for t in content), f"of a chat: {content}")
    check(
        all(t["top_logprobs"][0] == {k: t[k] for k in ("token", "logprob", "bytes")} for t in content),
        "greedy",
    )


def case_prompt_logprobs(one):
    """The scores of a prompt are those of the same tokens as an answer: `one` has 2 alternatives."""
    ids, lp = one["prompt_token_ids"] + one["token_ids"], one["logprobs"]
    ask = {**ASK, "max_tokens": 2, "prompt": ids}
    whole = post("/v1/completions", {**ask, "prompt_logprobs": 2, "n": 2})[1]["choices"]
    rows = whole[0]["prompt_logprobs"]
    check(rows[0] is None and len(rows) == len(ids), f"rows of a prompt: {len(rows)}")
    check(whole[1]["prompt_logprobs"] == rows, "those of the second answer")
    own = [row[str(i)]["logprob"] for row, i in zip(rows[-4:], ids[-4:])]
    check(own == lp["token_logprobs"], f"the bits of an answer: {own} {lp['token_logprobs']}")
    for row, i in zip(rows[1:], ids[1:]):
        best = max(row.values(), key=lambda e: e["logprob"])
        check(best["rank"] == 1 and len(row) in (2, 3) and str(i) in row, f"ranks: {row}")
        higher = sum(e["logprob"] > row[str(i)]["logprob"] for e in row.values())
        check(row[str(i)]["rank"] >= 1 + higher, f"the rank of the token: {row}")
    bare = post("/v1/completions", {**ask, "prompt_logprobs": 0})[1]["choices"][0]["prompt_logprobs"]
    check(all(bare[t] == {str(ids[t]): rows[t][str(ids[t])]} for t in range(1, len(ids))), "no alternatives")
    check(text_of({"choices": whole})[0] == text_of(post("/v1/completions", ask)[1])[0], "the same answer")
    echoed = {**ask, "prompt": ids, "echo": True, "logprobs": 2}
    shown = post("/v1/completions", echoed)[1]["choices"][0]["logprobs"]
    check(all(len(v) == len(ids) + 2 for v in shown.values()), f"echo with logprobs: {shown}")
    check(shown["token_logprobs"][0] is None and shown["top_logprobs"][0] is None, "its first token")
    check(shown["token_logprobs"][-6:-2] == lp["token_logprobs"], f"its numbers: {shown['token_logprobs']}")
    check(shown["top_logprobs"][-6:-2] == lp["top_logprobs"], f"its alternatives: {shown['top_logprobs']}")
    parts = [c["logprobs"] for r in stream("/v1/completions", echoed) for c in r["choices"] if c["logprobs"]]
    joined = {k: sum((p[k] for p in parts), []) for k in shown}
    check(joined == shown, f"those of a stream: {joined}")
    turns = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "prompt_logprobs": 1}
    status, chat = post("/v1/chat/completions", turns)
    check(status == 200 and len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"], f"a chat: {chat}")
    for many in ({"prompt": ["a" * 4000] * 4}, {"prompt": "a" * 4000, "n": 4}):
        status, refused = post("/v1/completions", {**many, "prompt_logprobs": 20, "max_tokens": 1})
        check(status == 400 and refused["error"]["code"] == "too_many_logprobs", f"too many: {refused}")


def case_forms():
    """Forms of requests that some clients send: absolute paths, long names, numbers above 64 bits."""
    with socket.create_connection((URL.hostname, URL.port)) as s:
        s.sendall(f"GET {URL.geturl()}/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        check(s.recv(100).startswith(b"HTTP/1.1 200"), "a request in absolute form")
    name = json.loads(get("/v1/models"))["data"][0]["id"]
    check(len(name) == 200 and request("GET", f"/v1/models/{name}")[0] == 200, "a model with a long name")
    status, headers, _ = request(
        "OPTIONS",
        "/v1/chat/completions",
        headers={"Origin": "http://page", "Access-Control-Request-Headers": "content-type,x-stainless-os"},
    )
    check(status == 204 and "x-stainless-os" in headers["access-control-allow-headers"], "a preflight")
    largest = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 2**64 - 1}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": largest}}
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "temperature": 0}
    status, answer = post("/v1/chat/completions", {**body, "tools": [tool]})
    check(status == 200, f"a schema with the largest number of 64 bits: {answer}")
    called = {"name": "f", "arguments": '{"n": 18446744073709551615}'}
    call = {"id": "c", "type": "function", "function": called}
    turns = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "y"},
    ]
    status, answer = post("/v1/chat/completions", {**body, "messages": turns, "tools": [tool]})
    check(status == 200, f"arguments with a number above 64 bits: {answer}")


def case_errors():
    deep = b'{"prompt":' + b"[" * 5000 + b"]" * 5000 + b"}"
    chat = {"messages": [{"role": "user", "content": "x"}]}
    rows = [
        ("POST", "/v1/completions", b'{"prompt": ', 400, "invalid_json"),
        ("POST", "/v1/completions", b"", 400, "invalid_json"),
        ("POST", "/v1/completions", b'{"prompt":"\xff"}', 400, "invalid_json"),
        ("POST", "/v1/completions", b'{"prompt":"a","prompt":"b"}', 400, "invalid_json"),
        ("POST", "/v1/completions", deep, 400, "invalid_json"),
        ("POST", "/v1/completions", {"prompt": "a", "temperature": -1}, 400, "invalid_value"),
        ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "invalid_value"),
        ("POST", "/v1/completions", {"prompt": "a", "max_tokens": -5}, 400, "invalid_value"),
        ("POST", "/v1/completions", {"prompt": "a", "n": 1000000}, 400, "invalid_value"),
        ("POST", "/v1/completions", {"prompt": [1, 999]}, 400, "invalid_token"),
        ("POST", "/v1/completions", {"prompt": ""}, 400, "invalid_value"),
        ("POST", "/v1/completions", {"prompt": "a" * 5000}, 400, "context_length_exceeded"),
        ("POST", "/v1/completions", {"prompt": [1] * 5000}, 400, "context_length_exceeded"),
        ("POST", "/v1/completions", {"prompt": "a", "model": "none"}, 404, "model_not_found"),
        (
            "POST",
            "/v1/chat/completions",
            {"messages": [{"role": "robot", "content": "x"}]},
            400,
            "invalid_message",
        ),
        (
            "POST",
            "/v1/chat/completions",
            {**chat, "tools": [{"type": "function", "function": {"name": "f"}}]},
            400,
            "unsupported_field",
        ),
        (
            "POST",
            "/v1/chat/completions",
            {**chat, "response_format": {"type": "xml"}},
            400,
            "invalid_value",
        ),
        ("POST", "/v1/embeddings", {"input": "x"}, 400, "unsupported_endpoint"),
        ("GET", "/v1/completions", None, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", None, 405, "method_not_allowed"),
        ("GET", "/v1/nothing", None, 404, "not_found"),
        ("GET", "/v1/models/none", None, 404, "model_not_found"),
        ("POST", "/v1/completions", b'{"prompt":"' + b"a" * (1 << 20) + b'"}', 413, "body_too_large"),
    ]
    for method, path, body, expected, code in rows:
        status, headers, text = request(method, path, body)
        what = f"{method} {path} {str(body)[:60]}"
        check(status == expected, f"{what}: {status} {text[:200]}")
        if status == expected:
            error = json.loads(text)["error"]
            check(
                error["code"] == code
                and error["message"]
                and set(error) == {"message", "type", "param", "code"},
                f"{what}: {error}",
            )
        check(status != 405 or headers["allow"], f"{what}: no header Allow")
    # A body of unknown length that grows over the limit.
    connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=60)
    connection.request(
        "POST",
        "/v1/completions",
        (b"a" * 65536 for _ in range(40)),
        encode_chunked=True,
        headers={"Transfer-Encoding": "chunked"},
    )
    check(connection.getresponse().status == 413, "a chunked body over the limit")
    status, headers, _ = request("POST", "/v1/completions", {**ASK, "max_tokens": 1, "frobnicate": 1})
    check(status == 200 and "frobnicate" in headers.get("warning", ""), f"an unknown field: {headers}")
    status, headers, _ = request("GET", "/health", headers={"X-Request-Id": "my-id.7"})
    check(headers["x-request-id"] == "my-id.7", "the id of a request")
    status, headers, _ = request("GET", "/health", headers={"X-Request-Id": "a b"})
    check(re.fullmatch("[0-9a-f]{32}", headers["x-request-id"]), "a request id with a space is replaced")
    raw = socket.create_connection((URL.hostname, URL.port))
    raw.sendall(b"\x16\x03\x01nonsense\r\n\r\n")
    raw.close()
    check(post("/v1/completions", ASK)[0] == 200, "the server still answers")


def case_facts():
    models = json.loads(get("/v1/models"))
    check(models["object"] == "list" and models["data"][0]["id"] == "tiny", f"{models}")
    check(json.loads(get("/v1/models/tiny"))["max_model_len"] == 4096, "one model")
    check(request("HEAD", "/v1/models")[0] == 200, "HEAD")
    check(
        json.loads(get("/health"))["status"] == "ok" and json.loads(get("/ready"))["status"] == "ready",
        "health",
    )
    check(json.loads(get("/version"))["version"].startswith("rafter "), "version")
    tokens = post("/tokenize", {"prompt": "a\u00e9", "return_token_strs": True})[1]
    check(tokens["tokens"] == list("a\u00e9".encode()) and tokens["token_strs"][0] == "a", f"{tokens}")
    check(post("/detokenize", {"tokens": tokens["tokens"]})[1] == {"prompt": "a\u00e9"}, "detokenize")
    nothing = post("/tokenize", {"prompt": None, "content": "a"})[1]
    check(nothing["tokens"] == [97], f"null is unset: {nothing}")
    before = metric("generation_tokens_total")
    post("/v1/completions", ASK)
    check(metric("generation_tokens_total") == before + 24, "tokens are counted")
    check(metric("kv_cache_bytes") > 0, "bytes of the cache")
    check(wait_for("counts of steps", lambda: metric("step_seconds_total") > 0), "measured seconds")
    check(
        metric("step_predicted_seconds_total") > 0 and 0 < metric("step_limit_fraction"),
        "predicted seconds",
    )
    types = {}
    for line in get("/metrics").splitlines():
        if line.startswith("# TYPE"):
            types[line.split()[2]] = line.split()[3]
        elif not line.startswith("#"):
            name, value = re.fullmatch(r'([a-z0-9_:]+)\{model_name="tiny"[^}]*\} (\S+)', line).groups()
            base = re.sub("_(bucket|sum|count)$", "", name)
            check(
                (name in types or types.get(base) == "histogram") and float(value) >= 0, f"a metric: {line}"
            )
    check(len(types) > 15, "there are metrics")


def case_page():
    """The page is the files of the sources, with a strict policy, and needs no key."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../src/serve/page")
    for path, kind in (("/", "html"), ("/page.css", "css"), ("/page.js", "javascript")):
        status, headers, text = request("GET", path)
        check(status == 200 and headers["content-type"] == f"text/{kind}; charset=utf-8", f"{path}: {status}")
        policy = headers["content-security-policy"]
        check("default-src 'none'" in policy and "unsafe" not in policy, f"{path}: {policy}")
        check(headers["x-content-type-options"] == "nosniff", f"{path}: no guessing of types")
        check(headers["cache-control"] == "no-cache", f"{path}: a browser asks again")
        if path != "/page.js":
            with open(os.path.join(folder, "page." + kind), "rb") as file:
                check(file.read() == text, f"{path} is the source's file")
        tag = headers["etag"]
        status, again, text = request("GET", path, headers={"If-None-Match": f'"other", {tag}'})
        check(status == 304 and not text and again["etag"] == tag, f"{path}: unchanged, {status}")
        status, again, _ = request("GET", path, headers={"If-None-Match": '"other"'})
        check(status == 200, f"{path}: changed, {status}")
        status, again, text = request("HEAD", path)
        check(status == 200 and not text and again["etag"] == tag, f"{path}: HEAD, {status}")
        status, again, _ = request("POST", path, {}, {"Authorization": "Bearer first"})
        check(status == 405 and again["allow"] == "GET, HEAD", f"{path}: POST, {status}")
    check(request("GET", "/v1/models")[0] == 401, "the rest needs a key")
    check(request("GET", "/page.html", headers={"Authorization": "Bearer first"})[0] == 404, "other paths")
    check(request("GET", "//", headers={"Authorization": "Bearer first"})[0] == 404, "other paths")


def case_disconnects():
    """A client that leaves frees its memory, whether it streams or not, and whether it runs or waits."""

    def aborted():
        return metric("request_success_total", finished_reason="abort")

    for streams in (False, True):
        before = aborted()
        s = send("/v1/completions", {**LONG, "stream": streams})
        wait_for("the answer runs", lambda: metric("num_requests_running") == 1)
        s.close()
        wait_for(f"the server notices that a client left (stream: {streams})", idle)
        check(aborted() == before + 1, f"one answer was cancelled (stream: {streams})")
        wait_for("the pages are free", lambda: metric("kv_cache_used_bytes") == 0)
    # Two slots run, and four requests wait: two clients of waiting requests leave.
    running = [send("/v1/completions", LONG) for _ in range(2)]
    wait_for("two answers run", lambda: metric("num_requests_running") == 2)
    waiting = [send("/v1/completions", {**LONG, "stream": bool(i % 2)}) for i in range(4)]
    wait_for("four answers wait", lambda: metric("num_requests_waiting") == 4)
    waiting[0].close()
    waiting[1].close()
    wait_for(
        "the server notices that clients in the queue left", lambda: metric("num_requests_waiting") == 2
    )
    check(metric("num_requests_running") == 2, "the answers before them still run")
    # A client that only ends its own side of the connection has left too.
    waiting[2].shutdown(socket.SHUT_WR)
    wait_for("half-closed", lambda: metric("num_requests_waiting") == 1)
    for s in running + waiting:
        s.close()
    wait_for("all left", idle)
    check(post("/v1/completions", ASK)[0] == 200, "the server still answers")


def case_slow_readers():
    """A client that does not read is cut off, and others do not notice."""
    expected = text_of(post("/v1/completions", ASK)[1])
    slow = send("/v1/completions", {**LONG, "logprobs": 20, "stream": True}, SO_RCVBUF=4096)
    wait_for("the slow answer runs", lambda: metric("num_requests_running") == 1)
    while metric("num_requests_running"):
        check(text_of(post("/v1/completions", ASK)[1]) == expected, "an answer next to a slow reader")
    check(metric("request_success_total", finished_reason="abort") == 1, "the slow answer was ended")
    slow.settimeout(20)
    try:
        while slow.recv(1 << 20):
            pass
    except ConnectionError:
        pass
    slow.close()
    # Connections that send half a request, or nothing, do not block others.
    silent = [socket.create_connection((URL.hostname, URL.port)) for _ in range(200)]
    for i, s in enumerate(silent):
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 50\r\n\r\n{"[: 1 + i])
    check(text_of(post("/v1/completions", ASK)[1]) == expected, "an answer next to silent connections")
    for s in silent:
        s.close()


def case_idle():
    """A connection without activity is closed."""
    s = socket.create_connection((URL.hostname, URL.port))
    s.sendall(b"GET /health HTTP/1.1\r\n")
    s.settimeout(30)
    check(s.recv(100)[:12] in (b"", b"HTTP/1.1 408"), "the server closes it")


def case_queue():
    """More requests than slots and queue get 429. Those that were accepted are answered."""
    results = []

    def ask():
        results.append(request("POST", "/v1/completions", {**ASK, "max_tokens": 400}))

    threads = [threading.Thread(target=ask) for _ in range(24)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    codes = [r[0] for r in results]
    check(set(codes) == {200, 429} and codes.count(200) >= 3, f"statuses: {sorted(codes)}")
    check(all(int(r[1]["retry-after"]) >= 1 for r in results if r[0] == 429), "Retry-After")
    check(
        len({r[2][r[2].index(b"choices") :] for r in results if r[0] == 200}) == 1,
        "equal requests, equal answers",
    )
    check(post("/v1/completions", {**ASK, "n": 4})[0] == 400, "more answers than the server ever accepts")
    wait_for("idle", idle)
    check(post("/v1/completions", ASK)[0] == 200, "the server still answers")


def case_seeded():
    """Prints an answer at temperature 1 of a request with the fields of the next argument."""
    fields = json.loads(sys.argv[2]) if sys.argv[2:] else {}
    status, answer = post("/v1/completions", {"prompt": "a", "max_tokens": 24, "temperature": 1, **fields})
    check(status == 200, f"{status} {answer}")
    print(answer["choices"][0]["text"].encode())


def case_deadline():
    status, answer = post("/v1/completions", LONG)
    check(status == 504 and answer["error"]["code"] == "deadline_exceeded", f"{status} {answer}")
    _, _, text = request("POST", "/v1/completions", {**LONG, "stream": True})
    check(events(text)[-1]["error"]["code"] == "deadline_exceeded", "a stream ends with the error")
    wait_for("the slots are free", idle)


def case_keys():
    good = {"Authorization": "Bearer second key"}
    check(request("GET", "/v1/models")[0] == 401, "no key")
    for key in (
        "Bearer wrong",
        "Bearer ",
        "Basic second key",
        "Bearer second keys",
        "Bearer " + "x" * 5000,
        "Bearer " + "0" * 44 + "7",  # the end of a long comment
    ):
        status, headers, text = request("GET", "/v1/models", headers={"Authorization": key})
        check(status == 401 and headers["www-authenticate"] == "Bearer", f"{key[:30]}: {status}")
        check(json.loads(text)["error"]["type"] == "authentication_error", "the error's type")
    check(request("GET", "/v1/models", headers=good)[0] == 200, "the right key")
    check(request("POST", "/v1/completions", ASK, good)[0] == 200, "a request with the key")
    check(request("POST", "/v1/completions", ASK)[0] == 401, "a request without it")
    check(request("GET", "/health")[0] == 200 and request("GET", "/metrics")[0] == 200, "open paths")
    status, headers, _ = request("OPTIONS", "/v1/completions", headers={"Origin": "https://page.example"})
    check(
        status == 204 and headers["access-control-allow-origin"] == "https://page.example",
        f"{status} {headers}",
    )
    check("authorization" in headers["access-control-allow-headers"].lower(), "headers that pages may send")
    status, headers, _ = request("POST", "/v1/completions", {**ASK, "frob": 1}, good)
    check(status == 400 and headers["access-control-allow-origin"], "--strict refuses unknown fields")


def case_determinism():
    """The same request gives the same bytes alone, with others, and after other requests."""
    asks = [
        {**ASK, "prompt": p, "temperature": t, "seed": s, "logprobs": 1}
        for p, t, s in (
            ("Once upon a time", 1, 1),
            ("Once upon a dime", 0, 1),
            ("x", 0.7, 9),
            ("Once", 1, 5),
            ("Once upon a time there was", 1, 2),
            ("A" * 700, 1, 3),
            ("A" * 701, 0.5, 3),
        )
    ]
    asks[1] |= {"prompt_logprobs": 2}
    asks[4] |= {"prompt_logprobs": 0, "echo": True, "n": 2}
    alone = [post("/v1/completions", a)[1]["choices"] for a in asks]
    for at_once in (7, 28):
        results = {}

        def ask(i):
            results[i] = post("/v1/completions", asks[i % 7])[1].get("choices")

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(at_once)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for i in range(at_once):
            check(results[i] == alone[i % 7], f"request {i % 7} of {at_once} at once")
    with open("answers.json", "w", encoding="utf-8") as file:
        json.dump(alone, file)


def case_drain():
    """After SIGTERM, running and waiting answers end properly, and new requests get 503."""
    results = {}

    def ask(i):
        results[i] = request("POST", "/v1/completions", {**ASK, "max_tokens": 600, "stream": bool(i % 2)})

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    wait_for(
        "answers run and wait", lambda: metric("num_requests_running") + metric("num_requests_waiting") == 6
    )
    os.kill(int(os.environ["SERVE_PID"]), int(os.environ["SIGNAL"]))
    refused = None
    for _ in range(200):
        status, _, text = request("GET", "/ready")
        if status == 503:
            refused = request("POST", "/v1/completions", ASK)
            break
        time.sleep(0.01)
    check(
        refused and refused[0] == 503 and int(refused[1]["retry-after"]) >= 1, f"a new request: {refused}"
    )
    for t in threads:
        t.join()
    for i, (status, _, text) in results.items():
        check(status == 200, f"request {i}: {status}")
        if i % 2:
            check(events(text)[-1]["choices"][0]["finish_reason"] == "length", "the end of a stream")
        else:
            check(json.loads(text)["usage"]["completion_tokens"] == 600, "a whole answer")


def case_cut():
    """Answers that do not end within --drain-seconds end with an error."""
    results = []
    thread = threading.Thread(
        target=lambda: results.append(request("POST", "/v1/completions", {**LONG, "stream": True}))
    )
    thread.start()
    wait_for("the answer runs", lambda: metric("num_requests_running") == 1)
    os.kill(int(os.environ["SERVE_PID"]), 15)
    thread.join()
    check(events(results[0][2])[-1]["error"]["code"] == "shutting_down", "the stream ends with the error")


def case_xla():
    """What every backend must do. Equal bits are not promised, so only the shapes of answers are compared."""
    for path, ask in (
        ("/v1/completions", ASK),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 24}),
    ):
        ask = {**ask, "ignore_eos": True, "logprobs": 2 if "prompt" in ask else True}
        status, one = post(path, ask)
        check(status == 200 and one["usage"]["completion_tokens"] == 24, f"{path}: {status} {one}")
        parts = stream(path, {**ask, "stream_options": {"include_usage": True}})
        check(parts[-1]["usage"]["completion_tokens"] == 24, f"a stream of {path}")
    form = {"structured_outputs": {"choice": ["France", "Spain"]}}
    status, one = post("/v1/completions", {"prompt": "Paris is in", **form})
    check(status == 200 and one["choices"][0]["text"] in ("France", "Spain"), f"a form: {one}")
    status, one = post("/v1/completions", {**ASK, "prompt_logprobs": 1})
    check(len(one["choices"][0]["prompt_logprobs"]) == one["usage"]["prompt_tokens"], "logprobs of a prompt")
    several = [{**ASK, "prompt": "ab" * (1 + i), "n": 1 + i % 2, "max_tokens": 8} for i in range(8)]
    results, threads = {}, []
    for i, body in enumerate(several):
        threads.append(threading.Thread(target=lambda i=i, b=body: results.update({i: post(ASKED, b)})))
        threads[-1].start()
    for t in threads:
        t.join()
    tokens = [results[i][1]["usage"]["completion_tokens"] for i in range(8)]
    check(tokens == [8, 16] * 4, f"eight requests at once: {tokens}")
    connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=60)
    connection.request("POST", ASKED, json.dumps({**ASK, "max_tokens": 200, "stream": True}))
    connection.getresponse().readline()
    connection.close()
    wait_for("a client that left is noticed", lambda: metric("num_requests_running") == 0)
    check(metric("request_success_total", finished_reason="abort") == 1, "an aborted answer is counted")


ASKED = "/v1/completions"
globals()["case_" + sys.argv[1]]()
sys.exit(1 if FAILED else 0)
