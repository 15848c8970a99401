"""prove_serve.py - the proof `serve`: OpenAI's client, a soak and a trace (see prove.py).

python3 tools/prove_serve.py build/rafter [--minutes M]: only the soak and the trace, each for M minutes.
"""

import contextlib
import csv
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
# The cache has memory for three sequences of full length, so that memory limits the answers that run.
SLOTS, SEQUENCES, QUEUE, THREADS = 16, 3, 24, 32
PATIENCE = 900  # seconds: other programs may take most of the cores
GROWTH_BYTES = 8 << 20  # of resident memory after the first minute: buffers of the longest answers
TRACE = "../shared/data/traces/AzureLLMInferenceTrace_conv.csv"
# Short steps with the long prompts of the trace.
TRACE_MODEL = "llama:layers=2,width=64,heads=2,ff=128,vocab=300,seq=16384"
TRACE_OPTIONS = {"--batch": 32, "--sequences": 2, "--seq": 16384, "--prefill-chunk": 512, "--step-growth": 0}
TRACE_CLIENTS, TRACE_MOST = 40, 512  # clients; max_tokens, if no answer of the trace is longer
FILLED = 0.68  # of the cache with tokens of running answers, on average


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
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
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


def metrics(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {name: float(value) for name, value in re.findall(r"^rafter:(\w+)\{[^}]*\} (\S+)", text, re.M)}


def filled(sample):
    return sample["kv_cache_live_tokens"] / sample["kv_cache_tokens"]


def check_arena(rafter, model, options, facts):
    """The server's arena has the planned bytes."""
    words = map(str, words_of(options))
    asked = [rafter, "plan", model, "--job", "serve", "--prompt-tokens", "1", "--max-tokens", "1", *words]
    planned = subprocess.run([*asked, "--json"], stdout=subprocess.PIPE, check=True)
    peak = json.loads(planned.stdout)["memory"]["peak_bytes"]
    if peak != facts["arena_bytes"]:
        raise RuntimeError(f"the arena has {facts['arena_bytes']} bytes, the plan {peak}")


def watch(run, threads, port, pid):
    """Runs the threads to their end. Returns samples of time, resident bytes and metrics."""
    samples, start = [], time.monotonic()
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        time.sleep(0.5)
        samples.append((time.monotonic() - start, resident(pid), metrics(port)))
    if run.faults:
        raise RuntimeError(f"{len(run.faults)} failed requests, for example {run.faults[0]}")
    if samples[-1][2]["num_preemptions_total"]:
        raise RuntimeError("an answer lost its memory")
    return samples


def words_of(options):
    return [word for pair in options.items() for word in pair]


def guarded(rafter):
    """Builds the program in which an allocation during a step is fatal. Returns its path."""
    path = f"{os.path.dirname(rafter)}/rafter_guarded"
    subprocess.run(["cmake", "--build", os.path.dirname(rafter), "--target", "rafter_guarded"], check=True)
    return path


def soak(rafter, seconds):
    """Random requests for `seconds` seconds. A step must not allocate. Raises RuntimeError for a failed answer,
    or if memory grows."""
    rafter = guarded(rafter)
    options = {"--batch": SLOTS, "--sequences": SEQUENCES, "--seq": 1024, "--threads": 2}
    more = ("--max-queue", QUEUE, "--request-timeout", 0)
    with server(rafter, SOAK_MODEL, *words_of(options), *more) as (facts, process):
        check_arena(rafter, SOAK_MODEL, options, facts)
        run = Soak(facts["port"], seconds)
        threads = [threading.Thread(target=run.work, args=(i,)) for i in range(THREADS)]
        samples = watch(run, threads, facts["port"], process.pid)
        warm = [(size, m) for at, size, m in samples if min(60, seconds / 2) < at < seconds]
        if warm[-1][0] - warm[0][0] > GROWTH_BYTES:
            raise RuntimeError(f"resident memory grew from {warm[0][0]} to {warm[-1][0]} bytes")
        return {
            **run.counts,
            "seconds": round(seconds),
            "arena_bytes": facts["arena_bytes"],
            "resident_bytes_after_warm_up": warm[0][0],
            "resident_bytes_at_end": warm[-1][0],
            "mean_answers": round(sum(m["num_requests_running"] for _, m in warm) / len(warm), 1),
            "mean_fraction_of_cache": round(sum(filled(m) for _, m in warm) / len(warm), 3),
        }


class Replay:
    """Clients that send the requests of a trace, each as soon as its last one has ended. A client leaves when
    it has read as many tokens as in the trace."""

    def __init__(self, port, seconds, rows):
        self.port, self.until, self.rows = port, time.monotonic() + seconds, iter(rows)
        self.answers, self.tokens, self.faults, self.lock = 0, 0, [], threading.Lock()

    def request(self, prompt, answer):
        body = {"prompt": [3 + i * i % 290 for i in range(prompt)], "max_tokens": max(TRACE_MOST, answer)}
        body |= {"stream": True, "ignore_eos": True, "return_token_ids": True, "seed": prompt}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("POST", "/v1/completions", json.dumps(body).encode())
        reply, got = connection.getresponse(), 0
        if reply.status != 200:
            raise ValueError(f"{reply.status}: {reply.read()[:200]}")
        while got < answer and time.monotonic() < self.until:
            line = reply.readline()
            if not line or b'"error"' in line:
                raise ValueError(f"a stream ends after {got} of {answer} tokens: {line[:200]}")
            if line.startswith(b"data: {"):
                got += len(json.loads(line[6:])["choices"][0].get("token_ids", []))
        connection.close()
        return got

    def work(self):
        while time.monotonic() < self.until:
            with self.lock:
                row = next(self.rows, None)
            if row is None:
                return
            try:
                got = self.request(*row)
                with self.lock:
                    self.answers += 1
                    self.tokens += got
            except (OSError, http.client.HTTPException, ValueError) as error:
                with self.lock:
                    self.faults.append(repr(error))


def replay(rafter, seconds):
    """The Azure trace at saturation. Raises RuntimeError if running answers fill less than FILLED."""
    with open(TRACE, encoding="utf-8") as file:
        rows = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]
    options = TRACE_OPTIONS | {"--threads": 2}
    more = ("--max-queue", 2 * TRACE_CLIENTS, "--no-prefix-cache")
    with server(rafter, TRACE_MODEL, *words_of(options), *more) as (facts, process):
        check_arena(rafter, TRACE_MODEL, options, facts)
        run = Replay(facts["port"], seconds, rows)
        threads = [threading.Thread(target=run.work) for _ in range(TRACE_CLIENTS)]
        samples = watch(run, threads, facts["port"], process.pid)
    samples = [m for at, _, m in samples if seconds / 4 < at < seconds]
    mean = sum(filled(m) for m in samples) / len(samples)
    if mean < FILLED:
        raise RuntimeError(f"running answers fill {mean:.3f} of the cache (expected {FILLED} or more)")
    return {
        "seconds": round(seconds),
        "answers": run.answers,
        "tokens": run.tokens,
        "mean_answers": round(sum(m["num_requests_running"] for m in samples) / len(samples), 1),
        "mean_waiting": round(sum(m["num_requests_waiting"] for m in samples) / len(samples), 1),
        "cache_tokens": int(samples[-1]["kv_cache_tokens"]),
        "mean_fraction_of_cache": round(mean, 3),
    }


def main():
    words = sys.argv[1:]
    minutes = float(words[words.index("--minutes") + 1]) if "--minutes" in words else 2
    for piece in (soak, replay):
        print(json.dumps({piece.__name__: piece(words[0], 60 * minutes)}), flush=True)


if __name__ == "__main__":
    main()
