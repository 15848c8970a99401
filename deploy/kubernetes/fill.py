#!/usr/bin/env python3
"""fill.py MODEL --rate R [...] - writes the Kubernetes manifest of rafter.yaml.in to stdout.

The number of replicas and their memory come from `rafter plan` for the machine --on:
  - `plan --job serve` simulates the server's scheduler and gives the highest rate at which its queue
    does not grow. With --ttft, the rate is lowered until 95 % of the requests get their first token
    in time. Replicas = rate / this rate, rounded up, + --spare.
  - `plan --job generate` gives the bytes of weights and KV cache, with --batch and --seq as in the
    arguments of `rafter serve`. --outside is added for requests, answers and forms.
Options after `--` are passed to the plans and to the server, such as `-- --compute fast`.
"""
import argparse
import json
import math
import os
import string
import subprocess
import sys

SERVICE = string.Template("""---
apiVersion: v1
kind: Service
metadata:
  name: rafter-$replica
  labels: {app: rafter}
spec:
  publishNotReadyAddresses: true
  selector: {statefulset.kubernetes.io/pod-name: rafter-$replica}
  ports:
    - {name: http, port: 8000, targetPort: http}
""")
HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", help="the model for the plan: a file, a folder or a preset")
    parser.add_argument("--rate", type=float, required=True, help="requests per second of all clients")
    parser.add_argument("--prompt-tokens", type=int, default=512, help="mean tokens of a prompt")
    parser.add_argument("--max-tokens", type=int, default=256, help="mean tokens of an answer")
    parser.add_argument("--ttft", type=float, help="seconds to the first token, for 95 %% of the requests")
    parser.add_argument("--spare", type=int, default=1, help="replicas to add")
    parser.add_argument("--on", default="local", help="the machine of a replica, as for `rafter plan`")
    parser.add_argument("--cpus", type=int, default=os.cpu_count(), help="cores of a replica")
    parser.add_argument("--batch", type=int, default=8, help="answers that a replica generates at once")
    parser.add_argument("--seq", default="4k", help="maximum tokens of a prompt and its answer")
    parser.add_argument("--outside", type=int, default=1024, help="MiB of memory besides the plan")
    parser.add_argument("--startup", type=int, default=600, help="seconds that loading may take")
    parser.add_argument("--image", default="rafter:latest")
    parser.add_argument("--path", help="the model in the volume rafter-models (default: /models/NAME)")
    parser.add_argument("--rafter", default="rafter", help="the program")
    argv = sys.argv[1:]
    cut = argv.index("--") if "--" in argv else len(argv)
    asked = parser.parse_args(argv[:cut])
    for name, value in (("rate", asked.rate), ("ttft", asked.ttft)):
        if value is not None and not 0 < value < math.inf:
            parser.error(f"--{name}: expected a number above 0")
    if min(asked.batch, asked.cpus, asked.outside + 1, asked.spare + 1) < 1:
        parser.error("a count is too low")
    return asked, argv[cut + 1:]


def plan(asked, more, *options):
    command = [asked.rafter, "plan", asked.model, "--on", asked.on, "--batch", str(asked.batch), "--json",
               *options, *more]
    if asked.on == "local": command += ["--threads", str(asked.cpus)]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode: sys.exit(f"fill.py: {' '.join(command)} failed\n{ran.stderr.strip()}")
    return json.loads(ran.stdout)


def rate_of_replica(asked, more):
    """The requests per second of one replica, and why."""
    load = ["--job", "serve", "--prompt-tokens", str(asked.prompt_tokens),
            "--max-tokens", str(asked.max_tokens)]
    row = plan(asked, more, *load)["serving"]["sustained"]
    if row["saturated"]: sys.exit("fill.py: at the lowest simulated rate, the queue of a replica grows")
    if asked.ttft is None or row["ttft_seconds"]["p95"] <= asked.ttft:
        return row["requests_per_second"], "highest rate without a growing queue"
    rates = [row["requests_per_second"] * part / 20 for part in range(1, 20)]
    rows = plan(asked, more, *load, "--rate", ",".join(f"{r:.6g}" for r in rates))["serving"]["rates"]
    rows_in_time = [r for r in rows if not r["saturated"] and r["ttft_seconds"]["p95"] <= asked.ttft]
    fast = [r["requests_per_second"] for r in rows_in_time]
    if not fast:
        best = min(r["ttft_seconds"]["p95"] for r in rows)
        sys.exit(f"fill.py: no rate has a first token within {asked.ttft} s for 95 % of the requests "
                 f"(the shortest such time is {best:.3g} s); choose a faster machine, or a longer --ttft")
    return max(fast), f"95 % of first tokens within {asked.ttft} s"


def service_of(replica):
    return SERVICE.substitute(replica=replica)


def gateway(replicas):
    """The configuration of deploy/nginx without TLS, which the ingress does, with all replicas."""
    text = open(os.path.join(HERE, "../nginx/rafter.conf"), encoding="utf-8").read()
    head, rest = text.split("    # replicas: begin\n")
    tail = rest.split("    # replicas: end\n")[1]
    servers = "".join(f"    server rafter-{i}:8000 max_fails=2 fail_timeout=5s;\n" for i in range(replicas))
    lines = []
    for line in (head + servers + tail).split("\n"):
        word = line.split()[0] if line.split() else ""
        if word.startswith("ssl_") or word == "server_name": continue
        lines.append("    listen 8080;" if word == "listen" else line)
    return "\n".join("    " + line if line else "" for line in lines).rstrip("\n")


def main():
    asked, more = arguments()
    rate, why = rate_of_replica(asked, more)
    replicas = math.ceil(asked.rate / rate - 1e-9) + asked.spare
    arena = plan(asked, more, "--job", "generate", "--seq", asked.seq)["memory"]["peak_bytes"]
    path = asked.path or "/models/" + os.path.basename(asked.model.rstrip("/"))
    args = ["serve", path, "--host", "0.0.0.0", "--batch", str(asked.batch), "--seq", asked.seq,
            "--threads", str(asked.cpus), *more]
    text = open(os.path.join(HERE, "rafter.yaml.in"), encoding="utf-8").read()
    sys.stdout.write(string.Template(text).substitute(
        why=f"{asked.rate:g} requests/s at {rate:.4g} a replica ({why}), and {asked.spare} spare",
        replicas=replicas, image=asked.image, args=json.dumps(args), cpu=asked.cpus,
        startup_failures=max(1, math.ceil(asked.startup / 2)),
        memory=f"{math.ceil(arena / MIB) + asked.outside}Mi",
        memory_why=f"planned: {arena / MIB:.1f} MiB of weights and KV cache; outside: {asked.outside} MiB",
        services="".join(service_of(i) for i in range(replicas)), nginx=gateway(replicas)))


if __name__ == "__main__":
    main()
