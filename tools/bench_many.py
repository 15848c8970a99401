"""The part `many` of ./dev bench: ranks of MPI on this machine.

  speed  GPT-2 124M, T = 256: two ranks of one thread with 4 sequences each, next to one process of two
         threads with 8, in turns; and the bytes of a rank next to those of the plan
  peers  the same ranks next to PyTorch DDP and FSDP2 over gloo, two processes of one thread, in turns
         (if bench/peers/environment.sh torch has installed it)
  links  two ranks in two network namespaces, whose link `tbf` limits: predicted next to measured step
         times, with and without exchanges that overlap with computation, and the mesh that the plan
         would choose next to the fastest one (needs root; changes
         nothing outside its namespaces)

--only REGEX selects rows by their names, which begin with the part's. --turns N sets the turns (3).
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

RAFTER = os.environ.get("RAFTER", "build/rafter")
MPIRUN = os.environ.get("RAFTER_MPIRUN") or shutil.which("mpirun.openmpi") or "mpirun"
STEPS, WARM = 4, 1
MODEL = ["gpt2", "--seq", "256", "--clip", "0"]
SPEED = [
    ("data=2", ["--mesh", "data=2", "--zero", "1"], 0.95),
    ("fsdp=2", ["--mesh", "fsdp=2"], 0.85),
    ("tensor=2", ["--mesh", "tensor=2"], 0.85),
]
PEERS = [("ddp", ["--mesh", "data=2", "--zero", "1"]), ("fsdp2", ["--mesh", "fsdp=2"])]
PEER_BARS = {"f32": 1.15, "bf16": 1.5}
# Models of `links`: name, shape, sequences, length; and the rates of the link.
LINK_MODELS = [
    ("small", "gpt:layers=2,width=256,heads=4,ff=1024,vocab=2048,seq=128", 8, 128),
    ("wide", "gpt:layers=1,width=512,heads=8,ff=2048,vocab=1024,seq=64", 4, 64),
    ("long", "gpt:layers=2,width=192,heads=6,ff=768,vocab=512,seq=512", 8, 512),
]
RATES = ["100mbit", "1gbit", "3gbit", "10gbit"]
LINK_MESHES = [
    ("data", ["--mesh", "data=2"]),
    ("data, zero 1", ["--mesh", "data=2", "--zero", "1"]),
    ("fsdp", ["--mesh", "fsdp=2"]),
    ("sequence", ["--mesh", "sequence=2"]),
]


def environment(more=None):
    return {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **(more or {}),
    }


def run(words, env):
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, check=False
    )
    if done.returncode:
        sys.exit(f"bench: {' '.join(words)} failed\n{done.stdout}{done.stderr}")
    return done.stdout


def train(launch, words, env, steps=STEPS):
    """Seconds of each step but the first ones, and the first line of the run's metrics."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        run(
            [
                *launch,
                RAFTER,
                "train",
                *words,
                "--data",
                "random:seed=0",
                "--val-every",
                "0",
                "--val-fraction",
                "0",
                "--steps",
                str(WARM + steps),
                "--out",
                f"{folder}/run",
                "--quiet",
            ],
            env,
        )
        with open(f"{folder}/run/metrics.jsonl", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        with open(f"{folder}/run/report.json", encoding="utf-8") as text:
            report = json.load(text)
    return [row["seconds"] for row in rows if "step" in row][WARM:], rows[0], report


def planned(words, env):
    return json.loads(run([RAFTER, "plan", *words, "--backend", "cpu", "--json"], env))


def spread(seconds):
    return {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds), "n": len(seconds)}


def shown(seconds):
    return f"{seconds['median']:.4f} s [{seconds['min']:.4f}..{seconds['max']:.4f}]"


def two_ranks(more=()):
    return [MPIRUN, "-n", "2", *more]


def waits(report):
    ranks = report.get("ranks", {})
    rows, all_seconds = ranks.get("waits", []), ranks.get("seconds") or 1
    return (
        {
            key: statistics.mean(row[key] for row in rows) / all_seconds
            for key in ("slow_rank_seconds", "network_seconds")
        }
        if rows
        else {}
    )


def speed(only, env, turns):
    out = []
    for dtype in ("f32", "bf16"):
        for name, mesh, bar in SPEED:
            if not re.search(only, f"speed {name} {dtype}"):
                continue
            words, alone, ranks, report = [*MODEL, "--dtype", dtype, "--batch", "8"], [], [], {}
            for _ in range(turns):
                ranks_seconds, first, report = train(two_ranks(), [*words, *mesh, "--threads", "1"], env)
                ranks += ranks_seconds
                alone += train([], [*words, "--threads", "2"], env)[0]
            bytes_planned = planned([*words, *mesh, "--threads", "1"], env)["memory"]["peak_bytes"]
            row = {
                "name": f"speed {name} {dtype}",
                "ranks_seconds": spread(ranks),
                "one_process_seconds": spread(alone),
                "ratio": statistics.median(alone) / statistics.median(ranks),
                "bar": bar if dtype == "f32" else None,
                "arena_bytes": first["arena_bytes"],
                "planned_bytes": bytes_planned,
                "waits": waits(report),
            }
            out.append(row)
            print(
                f"{name:9} {dtype:4} two ranks {shown(row['ranks_seconds'])}  one process "
                f"{shown(row['one_process_seconds'])}  {row['ratio']:.3f} x"
                + (f" (bar {bar})" if row["bar"] else "")
                + f"  rank {row['arena_bytes']} bytes, planned {bytes_planned}  waits "
                + ", ".join(
                    f"{key.split('_', 1)[0]} {100 * part:.1f} %" for key, part in row["waits"].items()
                ),
                flush=True,
            )
    return out


class Peer:
    """A script of bench/peers that stays open between turns."""

    def __init__(self, python, words):
        self.process = subprocess.Popen(
            [python, "bench/peers/torch_many.py", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "MALLOC_TOP_PAD_": "1073741824",
                "MALLOC_TRIM_THRESHOLD_": "17179869184",
                "MALLOC_MMAP_MAX_": "0",
            },
        )
        self.about = json.loads(self.process.stdout.readline() or sys.exit("bench: the peer did not start"))

    def seconds(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["seconds"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def peers(only, env, turns):
    python, out = (
        os.path.join(
            os.environ.get("RAFTER_PEERS") or os.path.expanduser("~/.cache/rafter-peers"), "bin/python3"
        ),
        [],
    )
    if not os.path.exists(python) or subprocess.call(
        [python, "-c", "import torch"], stderr=subprocess.DEVNULL
    ):
        print("PyTorch is left out: bench/peers/environment.sh torch installs it")
        return out
    for how, mesh in PEERS:
        for dtype, bar in PEER_BARS.items():
            if not re.search(only, f"peers {how} {dtype}"):
                continue
            shape = ["--model", "gpt2", "--dtype", dtype, "--batch", "8", "--seq", "256"]
            # each turn starts the peer again, so that it holds no core while rafter runs
            ours, theirs, about = [], [], {}
            for _ in range(turns):
                ours += train(
                    two_ranks(), [*MODEL, "--dtype", dtype, "--batch", "8", *mesh, "--threads", "1"], env
                )[0]
                peer = Peer(python, [*shape, "--how", how])
                about = peer.about
                theirs += peer.seconds(STEPS)
                peer.close()
            row = {
                "name": f"peers {how} {dtype}",
                "tool": f"{about['tool']} {about['version']}",
                "seconds": spread(ours),
                "peer_seconds": spread(theirs),
                "ratio": statistics.median(theirs) / statistics.median(ours),
                "bar": bar,
            }
            out.append(row)
            print(
                f"{row['tool']:28} {dtype:4} {shown(row['peer_seconds'])}  rafter {' '.join(mesh)} "
                f"{shown(row['seconds'])}  {row['ratio']:.2f} x (bar {bar})",
                flush=True,
            )
    return out


class Namespaces:
    """Two network namespaces with names of their own hosts, joined by a link with a limited rate."""

    NAMES = ("rafter-n0", "rafter-n1")
    ADDRESSES = ("10.211.0.1", "10.211.0.2")

    def __init__(self, folder):
        self.agent = f"{folder}/agent"
        with open(self.agent, "w", encoding="utf-8") as script:
            script.write(
                "#!/bin/sh\n# mpirun starts its daemon on the second host with this: HOST COMMAND...\nshift\n"
                f"exec ip netns exec {self.NAMES[1]} unshare -u sh -c "
                f'\'hostname {self.NAMES[1]}; exec sh -c "$*"\' sh "$@"\n'
            )
        os.chmod(self.agent, 0o755)

    def __enter__(self):
        self.drop()
        for command in (
            f"ip netns add {self.NAMES[0]}",
            f"ip netns add {self.NAMES[1]}",
            f"ip link add rfv0 netns {self.NAMES[0]} type veth peer name rfv1 netns {self.NAMES[1]}",
        ):
            run(command.split(), os.environ)
        for i, name in enumerate(self.NAMES):
            for command in (
                f"ip -n {name} addr add {self.ADDRESSES[i]}/24 dev rfv{i}",
                f"ip -n {name} link set rfv{i} up",
                f"ip -n {name} link set lo up",
            ):
                run(command.split(), os.environ)
        return self

    def __exit__(self, *_):
        self.drop()

    def drop(self):
        for name in self.NAMES:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)

    def limit(self, rate):
        for i, name in enumerate(self.NAMES):
            run(
                f"tc -n {name} qdisc replace dev rfv{i} root tbf rate {rate} burst 256kb "
                "latency 50ms".split(),
                os.environ,
            )

    def launch(self):
        return [
            "ip",
            "netns",
            "exec",
            self.NAMES[0],
            "unshare",
            "-u",
            "sh",
            "-c",
            f'hostname {self.NAMES[0]}; exec "$@"',
            "sh",
            MPIRUN,
            "-n",
            "2",
            "--host",
            ",".join(f"{a}:1" for a in self.ADDRESSES),
            "--mca",
            "plm_rsh_agent",
            self.agent,
            "--mca",
            "btl",
            "tcp,self",
            "--mca",
            "btl_tcp_if_include",
            "10.211.0.0/24",
            "--mca",
            "oob_tcp_if_include",
            "10.211.0.0/24",
            "--map-by",
            "slot",
            "--bind-to",
            "none",
            "-x",
            "XDG_CACHE_HOME",
            "-x",
            "OMPI_ALLOW_RUN_AS_ROOT",
            "-x",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
        ]


def links(only, env):
    if os.geteuid() or not shutil.which("tc") or not shutil.which("ip"):
        print("links are left out: network namespaces need root, ip and tc")
        return []
    out = []
    with tempfile.TemporaryDirectory() as folder, Namespaces(folder) as spaces:
        for rate in RATES:
            if not any(re.search(only, f"links {rate} {name}") for name, *_ in LINK_MODELS):
                continue
            spaces.limit(rate)
            machine = f"{folder}/{rate}.json"
            print(
                run(
                    [
                        *spaces.launch(),
                        RAFTER,
                        "calibrate",
                        "--network",
                        "--quick",
                        "--threads",
                        "1",
                        "--out",
                        machine,
                    ],
                    env,
                ),
                flush=True,
            )
            for name, model, batch, seq in LINK_MODELS:
                if not re.search(only, f"links {rate} {name}"):
                    continue
                rows = []
                for mesh, words in LINK_MESHES:
                    words = [
                        model,
                        "--seq",
                        str(seq),
                        "--batch",
                        str(batch),
                        "--clip",
                        "0",
                        "--threads",
                        "1",
                        "--on",
                        machine,
                        *words,
                    ]
                    for overlap in ("off", "on"):
                        how = [*words, "--overlap", overlap]
                        predicted = planned(how, env)["time"]["seconds"]
                        seconds = train(spaces.launch(), how, env, steps=9)[0]
                        rows.append(
                            {
                                "mesh": mesh,
                                "overlap": overlap,
                                "predicted_seconds": predicted,
                                "seconds": spread(seconds),
                                "error": predicted / statistics.median(seconds) - 1,
                            }
                        )
                        print(
                            f"{rate:8} {name:6} {mesh:13} overlap {overlap:3} predicted {predicted:.4f} s  "
                            f"measured {shown(rows[-1]['seconds'])}  {100 * rows[-1]['error']:+6.1f} %",
                            flush=True,
                        )
                chosen = min(rows, key=lambda row: row["predicted_seconds"])
                fastest = min(rows, key=lambda row: row["seconds"]["median"])
                out.append(
                    {
                        "name": f"links {rate} {name}",
                        "rows": rows,
                        "chosen": chosen["mesh"],
                        "chosen_overlap": chosen["overlap"],
                        "fastest": fastest["mesh"],
                        "fastest_overlap": fastest["overlap"],
                        "loss": chosen["seconds"]["median"] / fastest["seconds"]["median"] - 1,
                    }
                )
                print(
                    f"{rate:8} {name:6} the plan chooses {chosen['mesh']} (overlap {chosen['overlap']}), the "
                    f"fastest is {fastest['mesh']} (overlap {fastest['overlap']}) "
                    f"({100 * out[-1]['loss']:.1f} % faster)",
                    flush=True,
                )
    errors = [abs(row["error"]) for setting in out for row in setting["rows"]]
    if errors:
        print(
            f"{len(errors)} settings: {sum(e <= 0.15 for e in errors)} within 15 %, median error "
            f"{100 * statistics.median(errors):.1f} %; the choice is the fastest in "
            f"{sum((s['chosen'], s['chosen_overlap']) == (s['fastest'], s['fastest_overlap']) for s in out)} of "
            f"{len(out)}"
        )
    return out


def many(env, only="", turns=3):
    env = environment(env)
    return {"speed": speed(only, env, turns), "peers": peers(only, env, turns), "links": links(only, env)}
