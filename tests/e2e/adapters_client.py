"""adapters_client.py CASE: requests to a server with adapters, for test_adapters.sh. SERVE_URL
names the server.
"""

import concurrent.futures
import http.client
import json
import struct
import sys

import lib_client
from lib_client import FAILED, URL, check

PROMPTS = ["Once upon a time", "Once upon a dime", "x", "A" * 90, "A" * 91]


def request(method, path, body=None):
    status, _, text = lib_client.request(method, path, body)
    return status, text.decode()


def ask(model, prompt=PROMPTS[0], **more):
    body = {"model": model, "prompt": prompt, "max_tokens": 24, "seed": 5, "ignore_eos": True, "logprobs": 1}
    status, text = request("POST", "/v1/completions", {**body, **more})
    return status, json.loads(text)


def load(name, path):
    return request("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})


def unload(name):
    return request("POST", "/v1/unload_lora_adapter", {"lora_name": name})


def code(answer):
    return json.loads(answer[1])["error"]["code"]


def models():
    return json.loads(request("GET", "/v1/models")[1])["data"]


def metric(name):
    for line in request("GET", "/metrics")[1].splitlines():
        if line.startswith(f"rafter:{name}{{"):
            return float(line.split()[-1])
    return None


def as_f32(numbers):
    return [struct.pack("f", x) for x in numbers]


def case_as_generated():
    for model, file in (("tiny", "none"), ("some", "some"), ("all", "all")):
        with open(f"{file}.json", encoding="utf-8") as out:
            expected = json.load(out)
        _, got = ask(model, [5, 9, 3], max_tokens=12, temperature=0, return_token_ids=True)
        check(got["model"] == model, f"the answer names its model: {got['model']}")
        choice = got["choices"][0]
        check(choice["token_ids"] == expected["tokens"], f"{model}: the tokens of generate")
        check(
            as_f32(choice["logprobs"]["token_logprobs"]) == as_f32(expected["logprobs"]),
            f"{model}: the log-probabilities of generate",
        )
    rows = models()
    check([(r["id"], r["parent"]) for r in rows] == [("tiny", None), ("some", "tiny"), ("all", "tiny")], rows)
    check(json.loads(request("GET", "/v1/models/all")[1])["parent"] == "tiny", "/v1/models/all")
    check(request("GET", "/v1/models/none")[0] == 404, "an unknown model in the list")
    check(metric("lora_adapters") == 2 and metric("lora_adapter_slots") == 2, "the metrics count adapters")
    check(ask("none")[0] == 404, "a request for an unknown model")


def answers(names):
    asks = [(m, p, t) for p in PROMPTS for m in names for t in (0, 1)]
    return asks, [ask(m, p, temperature=t)[1]["choices"] for m, p, t in asks]


def case_alone():
    with open("answers.json", "w", encoding="utf-8") as file:
        json.dump(answers(["tiny"])[1], file)


def case_mixed():
    with open("base.json", encoding="utf-8") as file:
        base = json.load(file)
    asks, alone = answers(["some", "tiny", "all"])
    check([a for a, of in zip(alone, asks) if of[0] == "tiny"] == base, "the base has its own bits")
    check(alone[0] != alone[2] != alone[4] != alone[0], "the adapters change the answers")
    for at_once in (7, 28):
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            jobs = [pool.submit(ask, *asks[i % 30][:2], temperature=asks[i % 30][2]) for i in range(60)]
        for i, job in enumerate(jobs):
            check(job.result()[1]["choices"] == alone[i % 30], f"request {i % 30} of {at_once} at once")
    with open("answers.json", "w", encoding="utf-8") as file:
        json.dump(alone, file)


def case_before_training():
    check([r["id"] for r in models()] == ["tiny"], "no adapters at first")
    check(load("mine", "mine")[0] == 404, "the adapter does not exist yet")
    check(metric("lora_adapters") == 0 and metric("lora_adapter_slots") == 4, "empty slots")
    with open("answers.json", "w", encoding="utf-8") as file:
        json.dump(ask("tiny")[1]["choices"], file)


def case_fresh():
    with open("answers.json", encoding="utf-8") as file:
        base = json.load(file)
    check(metric("lora_adapters") == 1, "the metrics count the new adapter")
    check(ask("mine")[1]["choices"] != base, "the adapter answers")
    check(ask("tiny")[1]["choices"] == base, "the base answers as before")


def case_unload():
    """An adapter that is unloaded finishes its answers. Its slot is free afterwards."""
    check(load("all", "all")[0] == 200, "load all")
    expected = ask("all", max_tokens=200)[1]["choices"]
    connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=60)
    body = {"model": "all", "prompt": PROMPTS[0], "max_tokens": 200, "seed": 5, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}).encode())
    stream = connection.getresponse()
    first = stream.readline()
    check(first.startswith(b"data: "), f"the stream begins: {first}")
    status, text = unload("all")
    check(status == 200 and text == "Success: LoRA adapter 'all' removed successfully.", text)
    check(ask("all")[0] == 404, "a later request does not find the adapter")
    check(code(unload("all")) == "adapter_not_found", "it cannot be unloaded twice")
    rows = [row[6:] for row in (first + stream.read()).decode().split("\n\n") if row]
    connection.close()
    check(rows[-1] == "[DONE]", "the stream ends properly")
    got = "".join(c["text"] for row in rows[:-1] for c in json.loads(row)["choices"])
    check(got == expected[0]["text"], "the stream has the text of a whole answer")
    check(load("some", "some")[0] == 200, "the slot is free")
    check(code(load("all", "all")) == "no_adapter_slot", "and then it is in use")
    some = ask("some")[1]["choices"]
    # The prompt of the first adapter is in the cache, and the slot has another adapter now.
    check(unload("some")[0] == 200 and load("all", "all")[0] == 200, "the first adapter comes back")
    check(ask("all", max_tokens=200)[1]["choices"] == expected, "with its own answers")
    check(ask("all")[1]["choices"] != some, "and not those of the other")


def case_errors():
    work = sys.argv[2]
    before = ask("some")[1]["choices"]
    refused = [
        (load("x", "all"), 400, "invalid_adapter", "rank is too large"),
        (load("x", "foreign"), 400, "invalid_adapter", "wrong shape"),
        (load("x", "cut"), 400, "invalid_adapter", "adapter_model.safetensors"),
        (load("x", "empty"), 400, "invalid_adapter", "adapter_config.json"),
        (load("x", "gone"), 404, "adapter_not_found", "gone with an adapter does not exist"),
        (load("x", "../outside/some"), 403, "path_not_allowed", "outside"),
        (load("x", f"{work}/outside/some"), 403, "path_not_allowed", "outside"),
        (load("x", f"{work}/nowhere"), 403, "path_not_allowed", "outside"),
        (load("x", "/"), 403, "path_not_allowed", "outside"),
        (load("x", "link"), 403, "path_not_allowed", "outside"),
        (load("x", "a" * 5000), 404, "adapter_not_found", "aaa"),
        (load("some", "some"), 400, "adapter_exists", "some"),
        (load("tiny", "some"), 400, "adapter_exists", "tiny"),
        (load("", "some"), 400, "invalid_value", "lora_name"),
        (load("a\nb", "some"), 400, "invalid_value", "lora_name"),
        (load("n" * 201, "some"), 400, "invalid_value", "lora_name"),
        (load(3, "some"), 400, "invalid_type", "lora_name"),
        (request("POST", "/v1/load_lora_adapter", {"lora_name": "x"}), 400, "missing_field", "lora_path"),
        (request("POST", "/v1/load_lora_adapter", []), 400, "invalid_type", "object"),
        (unload("x"), 404, "adapter_not_found", "x"),
        (request("POST", "/v1/unload_lora_adapter", {}), 400, "missing_field", "lora_name"),
    ]
    for i, (answer, status, word, says) in enumerate(refused):
        message = json.loads(answer[1])["error"]["message"]
        right = answer[0] == status and code(answer) == word and says in message
        check(right, f"refusal {i}: {answer}")
    check(request("GET", "/v1/load_lora_adapter")[0] == 405, "GET")
    check([r["id"] for r in models()] == ["tiny", "some"], f"the adapters are as before: {models()}")
    check(ask("some")[1]["choices"] == before, "the answers are as before")
    check(load("same", f"{work}/tuned/some")[0] == 200, "an absolute path inside of the folder")
    check(ask("same")[1]["choices"] == before, "two names of one adapter")


def case_off():
    for answer in (load("x", "some"), unload("some")):
        check(answer[0] == 403 and code(answer) == "adapter_loading_off", f"loading is off: {answer}")


globals()["case_" + sys.argv[1]]()
sys.exit(1 if FAILED else 0)
