"""Report models of runs on several ranks: a real plan with invented times of each rank."""

import array

import models

RANK_GAPS = [*models.GAPS, "slow rank", "network"]
LATE, NETWORK = 9, 10


def rank_spans(plan, rank, ranks, threads):
    """Spans of one step of a rank, as models.step_spans. The last rank computes for twice the time.

    At each exchange, the others wait for it, and then all wait for the network.
    """
    spans, now, waits = [], 1000 + 50 * rank, [0, 0, 0]
    spans.append((threads + 1, 0, now, 0, models.PHASES.index("data"), "phase"))
    for op in plan["ops"]:
        takes = max(400, int(op["seconds"] * 1e9))
        exchange = op["op"] in ("all_reduce", "reduce_scatter", "all_gather", "send", "recv")
        whole = 2 * takes
        own = whole if rank == ranks - 1 else takes
        if exchange:
            late = 0 if rank == ranks - 1 else rank_spans.behind
            spans.append((0, now, now + late + takes, 0, op["id"], "op"))
            if late:
                spans.append((0, now + 20, now + late, ranks - 1, LATE, "gap"))
            spans.append((0, now + late, now + late + takes // 2, (rank + 1) % ranks, NETWORK, "gap"))
            for thread in range(1, threads):
                spans.append((thread, now, now + late + takes, 0, models.GAPS.index("serial"), "gap"))
            waits[0] += late
            waits[1] += takes // 2
            rank_spans.behind = 0
            end = now + late + takes
        else:
            rank_spans.behind += whole - own
            spans.append((0, now, now + own, 0, op["id"], "op"))
            for thread in range(threads):
                spans.append((thread, now + 20, now + own, 0, op["id"], "busy"))
            waits[2] += own
            end = now + own
        spans.append((threads, now, now + takes, 1e9 * op["limit_seconds"], op["id"], "predicted"))
        now = end + 100
    spans.append((threads + 1, 1000 + 50 * rank, now, 0, models.PHASES.index("forward"), "phase"))
    spans.append((threads + 3, 1000, 1000, 4096, 0, "counter"))
    return spans, now, waits


def ranked(plan, ranks=3, steps=2, threads=2):
    """A trace of several ranks with invented times, and the table of ranks of report.json."""
    columns, entries, table, begin = {name: array.array(code) for name, _, code in models.COLUMNS}, [], [], 0
    lanes, whole = threads + 4, 0
    parts = []
    for rank in range(ranks):
        rank_spans.behind = 0
        parts.append(rank_spans(plan, rank, ranks, threads))
        whole = max(whole, parts[-1][1])
    for rank, (spans, took, waits) in enumerate(parts):
        said, own = [], []
        for step in range(steps):
            at = step * (whole + 3000)
            own += [(lane, a + at, b + at, value, of, kind) for lane, a, b, value, of, kind in spans] + [
                (threads + 2, at, at + whole, step, step, "step")
            ]
            gaps = [[0] * len(RANK_GAPS), [0] * len(RANK_GAPS)]
            gaps[0][LATE], gaps[0][NETWORK] = 1e-9 * waits[0] * threads, 1e-9 * waits[1] * threads
            said.append(
                {
                    "step": step,
                    "begin": at,
                    "end": at + whole,
                    "tokens": 256,
                    "work": 1e-9 * waits[2] * threads,
                    "gaps": gaps,
                }
            )
        for lane, a, b, value, of, kind in sorted(own, key=lambda span: (span[0], span[1], -span[2])):
            for name, one in (
                ("begin", a),
                ("end", b),
                ("value", value),
                ("id", of),
                ("lane", lane + rank * lanes),
                ("kind", models.KINDS.index(kind)),
                ("plan", 0),
            ):
                columns[name].append(one)
        entries.append(
            {
                "rank": rank,
                "host": f"node-{rank}",
                "threads": threads,
                "first_lane": rank * lanes,
                "lanes": lanes,
                "dropped": 0,
                "steps": said,
                "clock_ahead_seconds": 12.5 * rank,
                "clock_error_seconds": 2e-6 * rank,
            }
        )
        all_seconds = 1e-9 * whole * steps
        table.append(
            {
                "host": f"node-{rank}",
                "exchanges": 10,
                "exchange_seconds": 1e-9 * steps * (waits[0] + 2 * waits[1]),
                "slow_rank_seconds": 1e-9 * steps * waits[0],
                "network_seconds": 1e-9 * steps * waits[1],
                "between_seconds": 0,
                "work_seconds": all_seconds - 1e-9 * steps * (waits[0] + waits[1]),
                "step_work_seconds": all_seconds / steps - 1e-9 * (waits[0] + waits[1]),
                "planned_bytes": 123456789,
                "allocated_bytes": 123456789,
                "threads": threads,
            }
        )
    header = {
        "kinds": models.KINDS,
        "phases": models.PHASES,
        "gaps": RANK_GAPS,
        "counters": [{"name": "live", "unit": "bytes"}],
        "plans": [plan.get("name", "train")],
        "digests": [plan["digest"]],
        "threads": threads,
        "dropped": 0,
        "steps": entries[0]["steps"],
        "ranks": entries,
    }
    excess = table[-1]["step_work_seconds"] - sum(row["step_work_seconds"] for row in table[:-1]) / (
        ranks - 1
    )
    return models.pack(columns, header), {
        "seconds": 1e-9 * whole * steps,
        "waits": table,
        "slowest": {"rank": ranks - 1, "excess_seconds": excess, "noise_seconds": excess / 100},
    }


def rank_model(ranks=3, steps=2, threads=2, options=("--mesh", "data=2")):
    """A report of a traced run on several ranks."""
    one = models.plan(models.TINY, *options)
    spans, table = ranked(one, ranks, steps, threads)
    measured = {"digest": one["digest"], "walks": [], "ranks": table}
    summary = {
        "sentence": "The run waits.",
        "notes": [],
        "measured": True,
        "walks": [
            {
                "walk": "train",
                "count": steps,
                "seconds": table["seconds"] / steps,
                "predicted_seconds": one["time"]["seconds"],
                "limit_seconds": one["time"]["seconds"] / 2,
                "kinds": [],
                "phases": [],
            }
        ],
    }
    return {
        "rafter": "0.1.0",
        "runs": [
            {
                "id": "ranks",
                "name": "ranks",
                "plan": one,
                "run": {"command": "train", "options": {"batch": 8}},
                "metrics": [],
                "measured": measured,
                "summary": summary,
                "trace": spans,
            }
        ],
        "sweeps": [],
    }
