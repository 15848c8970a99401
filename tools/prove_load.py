"""prove_load.py - other programs that load a server, for the proof `serve` (see prove.py).

python3 tools/prove_load.py build/rafter MODEL FOLDER: installs guidellm and inference-perf into FOLDER, one
after the other, and sends requests to a server with MODEL. A program that cannot be installed is skipped by
name.
"""

import json
import os
import shutil
import subprocess
import sys

import prove_serve  # tools/prove_serve.py

TOKENIZER = "../shared/data/models/TinyStories-656K"  # it only makes the prompts
REQUESTS, ANSWER = 16, 32
GUIDELLM = "guidellm==0.8.1"
PERF = "inference-perf==0.7.0"
# inference-perf declares Python 3.12, and runs with 3.11 without its own list of packages.
PERF_NEEDS = (
    "aiohttp pydantic numpy<2.5 datasets transformers==5.13.0 jinja2 google-cloud-storage pyyaml boto3 uvloop"
    " tqdm aiofiles tiktoken rich av pillow prometheus-client"
).split()
PERF_SETTINGS = """
api: {{type: completion, streaming: true}}
data:
  type: random
  input_distribution:
    {{type: normal, min: 128, max: 128, mean: 128, std_dev: 0, total_count: {requests}}}
  output_distribution:
    {{type: normal, min: {answer}, max: {answer}, mean: {answer}, std_dev: 0, total_count: {requests}}}
load: {{type: constant, num_workers: 1, worker_max_concurrency: 16, stages: [{{rate: 4, duration: 4}}]}}
server: {{type: vllm, model_name: m, base_url: "{url}", ignore_eos: true}}
tokenizer: {{pretrained_model_name_or_path: {tokenizer}}}
report: {{request_lifecycle: {{summary: true, per_stage: true, per_request: false}}}}
storage: {{local_storage: {{path: out}}}}
"""


def install(folder, *lists):
    """Installs packages, as lists of words for pip. Returns the folder of programs, or None."""
    if not os.path.exists(f"{folder}/bin/python"):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    for words in lists:
        command = [f"{folder}/bin/python", "-m", "pip", "install", "--quiet", "--no-cache-dir", *words]
        if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
            return None
    return f"{os.path.abspath(folder)}/bin"


def run(words, folder):
    """Runs a program in `folder`, without access to Hugging Face."""
    outside = {**os.environ, "HF_HUB_OFFLINE": "1"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(words, cwd=folder, env=outside, check=False, **streams)
    if done.returncode:
        raise RuntimeError(f"{os.path.basename(words[0])}: status {done.returncode}\n{done.stdout[-2000:]}")


def guidellm(programs, url, folder):
    """Both forms of requests, from four clients and as a Poisson process. Returns the completed requests."""
    results = {}
    for path in ("/v1/completions", "/v1/chat/completions"):
        for profile in ("concurrent,streams=4", "poisson,rate=4"):
            words = [f"{programs}/guidellm", "run", "--disable-console"]
            words += ["--backend", f"kind=openai_http,target={url},model=m,request_format={path}"]
            words += ["--tokenizer", f"kind=huggingface_auto,model={os.path.abspath(TOKENIZER)}"]
            words += ["--data", f"kind=synthetic_text,prompt_tokens=128,output_tokens={ANSWER}"]
            words += ["--profile", f"kind={profile}", "--constraint", f"kind=max_requests,count={REQUESTS}"]
            run([*words, "--output", "kind=json,path=out.json"], folder)
            with open(f"{folder}/out.json", encoding="utf-8") as file:
                got = json.load(file)["benchmarks"][0]["metrics"]
            counts, tokens = got["request_totals"], got["output_token_count"]["successful"]["mean"]
            if counts["successful"] != REQUESTS or counts["errored"] or tokens != ANSWER:
                raise RuntimeError(f"guidellm, {path}, {profile}: {counts}, {tokens} tokens in an answer")
            results[f"{path} {profile.split(',')[0]}"] = counts["successful"]
    return results


def inference_perf(programs, url, folder):
    """Returns the number of completed requests."""
    with open(f"{folder}/settings.yml", "w", encoding="utf-8") as file:
        tokenizer = os.path.abspath(TOKENIZER)
        file.write(PERF_SETTINGS.format(url=url, tokenizer=tokenizer, requests=REQUESTS, answer=ANSWER))
    run([f"{programs}/inference-perf", "-c", "settings.yml"], folder)
    with open(f"{folder}/out/summary_lifecycle_metrics.json", encoding="utf-8") as file:
        got = json.load(file)
    with open(f"{folder}/out/validation.json", encoding="utf-8") as file:
        errors = json.load(file)["global"]["errors"]
    done = got["successes"]["count"]
    if done != REQUESTS or got["failures"]["count"] or errors:
        raise RuntimeError(f"inference-perf: {done} requests completed, errors: {errors}")
    return done


PROGRAMS = {
    GUIDELLM: (guidellm, [[GUIDELLM]]),
    PERF: (inference_perf, [["--no-deps", "--ignore-requires-python", PERF], PERF_NEEDS]),
}


def prove(rafter, model, folder):
    """Runs both programs. Returns the completed requests of each; raises RuntimeError for an error."""
    results = {}
    options = ("--batch", 8, "--seq", "2k", "--compute", "fast", "--served-name", "m")
    for name, (loads, lists) in PROGRAMS.items():
        there = f"{folder}/{name.split('==', maxsplit=1)[0]}"
        programs, work = install(there, *lists), f"{there}/work"
        if not programs:
            print(f"  skipped: {name} could not be installed", flush=True)
            results[name] = "skipped: could not be installed"
            continue
        shutil.rmtree(work, ignore_errors=True)
        os.makedirs(work)
        with prove_serve.server(rafter, model, *options) as (facts, _):
            results[name] = loads(programs, facts["url"], work)
    return results


if __name__ == "__main__":
    print(json.dumps(prove(*sys.argv[1:4])))
