"""prove_serve.py - the proof `serve`: OpenAI's client, and a soak, against `rafter serve` (see prove.py)."""

import contextlib
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time

CLIENT = "openai==3.57.0"
TOOL_TEMPLATE = "tests/data/templates/qwen2_5.jinja"  # renders tools; the model's own template does not
# A shape with random weights and short steps, so that the soak has many requests.
SOAK_MODEL = "llama:layers=4,width=128,heads=4,ff=256,vocab=300,seq=1024"
SLOTS, QUEUE, THREADS = 8, 24, 24
GROWTH_BYTES = 8 << 20  # of resident memory after the first minute: buffers of the longest answers


@contextlib.contextmanager
def server(rafter, model, *options):
    """A server at a free port: yields its first line and the process. SIGTERM must end it with status 0."""
    words = [rafter, "serve", model, "--port", "0", "--json", *map(str, options)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the server did not start: {' '.join(words)}")
            yield json.loads(line), process
        except BaseException:
            process.kill()
            raise
        process.terminate()
        if process.wait(60):
            raise RuntimeError(f"the server ended with status {process.returncode}")


def clients(rafter, model, folder):
    """Runs serve_clients.py with OpenAI's package, installed into `folder`. Returns its last line."""
    python = f"{folder}/bin/python"
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", CLIENT], check=True)
    plain = run_client(rafter, python, model, [], [])
    tools = run_client(rafter, python, model, ["--template", TOOL_TEMPLATE], ["tools"])
    return {**plain, "tools": tools}


def run_client(rafter, python, model, options, words):
    """Runs serve_clients.py against a server with these options. Returns its last line."""
    base = ("--batch", 8, "--seq", "2k", "--served-name", "served")
    with server(rafter, model, *base, *options) as (facts, _):
        command = [python, "tools/serve_clients.py", facts["url"], *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"serve_clients.py: status {done.returncode}\n{done.stdout[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


class Soak:
    """Clients that ask, leave and send nonsense until the time is over."""

    def __init__(self, port, seconds):
        self.port, self.until = port, time.monotonic() + seconds
        self.counts = {"answered": 0, "refused": 0, "left": 0, "malformed": 0}
        self.faults, self.lock = [], threading.Lock()

    def count(self, what, fault=None):
        with self.lock:
            self.counts[what] += 1
            if fault:
                self.faults.append(fault)

    def request(self, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request("POST", "/v1/completions", body)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, text

    def ask(self, rng):
        tokens = rng.choice([1, 8, 60, 300, 900])
        prompt = "ab" * rng.randrange(1, 60)
        body = {"prompt": prompt, "max_tokens": tokens, "seed": rng.randrange(5), "ignore_eos": True}
        body |= {
            "stream": rng.random() < 0.5,
            "n": rng.choice([1, 1, 2]),
            "logprobs": rng.choice([None, 0, 5]),
        }
        status, text = self.request(json.dumps(body).encode())
        if status == 429:
            self.count("refused")
            time.sleep(0.2)
        elif status != 200 or b'"error"' in text:
            self.count("answered", f"{status}: {text[-300:]}")
        elif not body["stream"]:
            got = json.loads(text)["usage"]["completion_tokens"]
            expected = min(tokens, 1024 - len(prompt) + 1) * body["n"]
            self.count("answered", None if got == expected else f"{got} tokens, not {expected}")
        else:
            self.count(
                "answered", None if text.endswith(b"data: [DONE]\n\n") else f"a stream ends: {text[-100:]}"
            )

    def leave(self, rng):
        body = {"prompt": "a", "max_tokens": 900, "stream": rng.random() < 0.5, "ignore_eos": True}
        data = json.dumps(body).encode()
        with socket.create_connection(("127.0.0.1", self.port)) as s:
            s.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data
            )
            time.sleep(rng.random() * 0.2)
        self.count("left")

    def send_nonsense(self, rng):
        body = bytearray(b'{"prompt":"a","max_tokens":3,"messages":[]}')
        for _ in range(rng.randrange(1, 6)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        status, text = self.request(bytes(body))
        self.count(
            "malformed",
            None if status in (200, 400, 404, 429) else f"{status} for {bytes(body)}: {text[:200]}",
        )

    def work(self, seed):
        rng = random.Random(seed)
        while time.monotonic() < self.until:
            try:
                rng.choices([self.ask, self.leave, self.send_nonsense], [6, 2, 2])[0](rng)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.count("answered", repr(error))


def resident(pid):
    with open(f"/proc/{pid}/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def metric(port, name):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return float(re.search(r"^rafter:" + name + r"\{[^}]*\} (\S+)", text, re.M)[1])


def soak(rafter, seconds):
    """Random requests for `seconds` seconds. Raises RuntimeError for a failed answer, or if memory grows."""
    options = ("--batch", SLOTS, "--seq", 1024, "--max-queue", QUEUE, "--threads", 2)
    with server(rafter, SOAK_MODEL, *options) as (facts, process):
        run = Soak(facts["port"], seconds)
        threads = [threading.Thread(target=run.work, args=(i,)) for i in range(THREADS)]
        sizes, start, full = [], time.monotonic(), []
        for t in threads:
            t.start()
        while any(t.is_alive() for t in threads):
            time.sleep(1)
            sizes.append((time.monotonic() - start, resident(process.pid)))
            full.append(metric(facts["port"], "num_requests_running") / SLOTS)
        warm = [size for at, size in sizes if at > min(60, seconds / 2)]
        if run.faults:
            raise RuntimeError(f"{len(run.faults)} failed requests, for example {run.faults[0]}")
        if warm[-1] - warm[0] > GROWTH_BYTES:
            raise RuntimeError(f"resident memory grew from {warm[0]} to {warm[-1]} bytes")
        return {
            **run.counts,
            "seconds": round(seconds),
            "arena_bytes": facts["arena_bytes"],
            "resident_bytes_after_warm_up": warm[0],
            "resident_bytes_at_end": warm[-1],
            "mean_fraction_of_slots": round(sum(full) / len(full), 3),
        }
