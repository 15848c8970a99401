"""A server for the chat page that sends hostile answers and faults. The last message chooses the case."""

import http.server
import json
import threading
import time
import urllib.request

BROKEN = "window.broken=1"
HOSTILE = f"""<script>{BROKEN}</script>

<img src=x onerror='{BROKEN}'> <svg onload={BROKEN}>

[click](javascript:{BROKEN}) [data](data:text/html,{BROKEN}) [path](/health) [file](file:///etc/passwd)
[tab](java\tscript:{BROKEN}) [upper](JAVASCRIPT:{BROKEN}) <javascript:{BROKEN}> [angle](<javascript:{BROKEN}>)
[old](vbscript:{BROKEN}) [blob](blob:https://a.example/1) ![image](javascript:{BROKEN})

![pixel](https://evil.example/pixel.png) [good](https://good.example/a?b=c) <https://angle.example/>
[mail](mailto:a@b.example) https://bare.example/path.

# Head <b>line</b>

- one
  - two `<i>code</i>`
- **bold <u>x</u>**

> quoted <iframe src=/></iframe>

| a | b |
|---|--:|
| <script>{BROKEN}</script> | 2 |

```html
<script>{BROKEN}</script>
```
\u202eevil \u2028 \x00 </script><!-- --> ${{{BROKEN}}} *em* _em_ ~~gone~~ snake_case_name 2 * 3 * 4
"""
# Texts that grow a lot of work in readers that look ahead for each mark.
LADEN = [
    "*a " * 20000,
    "[" * 50000,
    "`" * 3001 + "``a` " * 9000,
    "> " * 9000 + "x",
    "- " * 9000 + "x",
    "**" * 30000,
    "[a](" * 15000,
    "|" * 30000 + "\n" + "|-" * 15000 + "\n" + "|\n" * 15000,
    " " * 60000 + "x",
    "_a" * 30000,
    "![[" * 20000,
    "https://" * 8000,
    "\\" * 60001,
    "<" * 60000,
]
LONG = "".join(
    f"Paragraph {i} has **bold** text, `code` and a [link](https://example.com/{i}).\n\n"
    for i in range(2600)
)
WRONG_LOGPROBS = {
    "content": [
        {
            "token": "good",
            "logprob": -0.5,
            "bytes": [103],
            "top_logprobs": [{"token": "good", "logprob": -0.5}],
        },
        {"token": 7, "logprob": "NaN", "bytes": ["x"], "top_logprobs": "none"},
        {
            "token": "<b>bad</b>",
            "logprob": 5,
            "bytes": [999],
            "top_logprobs": [None, 3, {"token": None}],
        },
        None,
        {"token": "é", "logprob": -1, "bytes": [195], "top_logprobs": []},
        {"token": "", "logprob": -1, "bytes": [169], "top_logprobs": []},
    ]
}


def tokens(text):
    return [text[i : i + 4] for i in range(0, len(text), 4)]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, status, body, kind="application/json", **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": len(data), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        page = self.server.files.get(self.path)
        if page:
            self.send(200, page[1], **page[0])
        elif self.path == "/v1/models":
            self.send(200, {"data": [{"id": self.server.model}]})
        elif self.path == "/metrics":
            self.server.looks += 1
            rows = {
                "num_requests_running": 3,
                "num_requests_waiting": 4,
                "kv_cache_bytes": 4194304,
                "kv_cache_used_bytes": 1572864,
                "step_seconds_total": 2,
                "step_limit_fraction": 0.5,
            }
            text = "".join(
                f'other:{name}{{model_name="a}} 9"}} {value}\n' for name, value in rows.items()
            )
            self.send(200, text.encode(), "text/plain")
        else:
            self.send(404, {"error": {"message": "nothing here"}})

    def event(self, value):
        data = value if isinstance(value, str) else json.dumps(value)
        piece = f"data: {data}\n\n".encode()
        self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        self.wfile.flush()

    def begin(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, text, logprobs=None, finish=None):
        self.event(
            {
                "choices": [
                    {"delta": {"content": text}, "logprobs": logprobs, "finish_reason": finish}
                ]
            }
        )

    def end(self):
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def answer(self, pieces, logprobs=None):
        self.begin()
        for piece in pieces:
            self.chunk(piece, logprobs)
        self.chunk("", None, "stop")
        self.event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": len(pieces)}})
        self.end()

    def slow(self):
        self.begin()
        try:
            for i in range(2000):
                self.chunk(f"word{i} ")
                time.sleep(0.01)
            self.end()
        except OSError:
            self.server.left += 1

    def end_with(self, last):
        self.begin()
        self.chunk("half an ")
        self.event(last)
        self.end()

    def lose(self):
        """Closes the connection as soon as the test has seen the first piece."""
        self.begin()
        self.chunk("half an ")
        self.server.seen.wait(60)
        self.close_connection = True

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        words = body["messages"][-1]["content"].split("\n")[-1].split(" ")
        case = words[0]
        error = {"error": {"message": f"<b>{case}</b> says no", "code": case, "param": None}}
        if case == "hostile":
            self.answer(tokens(HOSTILE))
        elif case == "whole":
            self.answer([HOSTILE])
        elif case == "long":
            self.answer([LONG])
        elif case == "laden":
            self.answer([LADEN[int(words[1])]])
        elif case == "fence":
            self.answer(tokens("```python\n" + "print('<b>')\n" * 400 + "``\nno end"))
        elif case == "logprobs":
            self.answer(["good answer"], WRONG_LOGPROBS)
        elif case == "slow":
            self.slow()
        elif case == "lost":
            self.lose()
        elif case == "fault":
            self.end_with(error)
        elif case == "late":
            self.end_with({"error": {**error["error"], "type": "timeout_error"}})
        elif case == "garbage":
            self.end_with("{not json")
        elif case == "busy":
            self.send(429, error, Retry_After=7)
        elif case == "stopping":
            self.send(503, error, Retry_After=1)
        elif case == "refused":
            self.send(400, {"error": {"message": "top_k is <i>odd</i>", "param": "top_k"}})
        elif case == "nonsense":
            self.send(200, b"<html>a proxy</html>", "text/html")
        else:
            self.answer(tokens(f"You wrote: {case}"))


class Server(http.server.ThreadingHTTPServer):
    """Serves the page of the rafter at `url`, with its headers, and the hostile answers."""

    daemon_threads = True

    def __init__(self, url):
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen = threading.Event()
        self.asked, self.left, self.looks, self.files = [], 0, 0, {}
        self.model = "tiny </title><script>window.broken = 1</script>"
        self.url = f"http://127.0.0.1:{self.server_port}/"
        for path in ("/", "/page.css", "/page.js"):
            with urllib.request.urlopen(url + path) as answer:
                kept = ("Content-Type", "Content-Security-Policy", "X-Content-Type-Options")
                headers = {name.replace("-", "_"): answer.headers[name] for name in kept}
                headers["kind"] = headers.pop("Content_Type")
                self.files[path] = (headers, answer.read())
        threading.Thread(target=self.serve_forever, daemon=True).start()
