"""A parser of traces that shares nothing with the program: it reads trace.json by the Trace Event Format and trace.bin by docs/formats.md, and checks that both agree."""
import array
import json
import sys

import trace_ranks

TYPES = {"i64": "q", "f64": "d", "i32": "i", "u16": "H", "u8": "B"}
NUMBER = (int, float)


def fail(text):
    sys.exit(text)


def events_of(path):
    """Checks the required fields of each event's phase, and that the complete events of a thread nest."""
    with open(path) as file:
        trace = json.load(file, parse_constant=lambda word: fail(f"{path}: {word} is no JSON"))
    events = trace["traceEvents"]
    named, last, open_until = set(), {}, {}
    for i, event in enumerate(events):
        where = f"{path}: event {i}"
        if not isinstance(event.get("ph"), str) or not isinstance(event.get("pid"), int) or not isinstance(event.get("name"), str):
            fail(f"{where} lacks ph, pid or name")
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                named.add(event["tid"])
            if not isinstance(event.get("args"), dict):
                fail(f"{where}: metadata without args")
            continue
        if not isinstance(event.get("ts"), NUMBER) or event["ts"] < 0:
            fail(f"{where}: ts is no time")
        if event["ph"] == "C":
            if not event.get("args") or not all(isinstance(value, NUMBER) for value in event["args"].values()):
                fail(f"{where}: a counter without numbers")
            continue
        if event["ph"] != "X":
            fail(f"{where}: phase {event['ph']}")
        if not isinstance(event.get("dur"), NUMBER) or event["dur"] < 0 or not isinstance(event.get("tid"), int):
            fail(f"{where}: a complete event without dur or tid")
        tid, begin, end = event["tid"], event["ts"], event["ts"] + event["dur"]
        if begin < last.get(tid, 0) - 1e-9:
            fail(f"{where}: begins before the one in front of it")
        last[tid] = begin
        stack = open_until.setdefault(tid, [])
        while stack and stack[-1] <= begin + 2e-3:  # times are rounded to ns
            stack.pop()
        if stack and end > stack[-1] + 2e-3:
            fail(f"{where}: reaches over the end of what holds it")
        stack.append(end)
    if not {event["tid"] for event in events if event["ph"] == "X"} <= named:
        fail(f"{path}: a thread has no name")
    return trace


def columns_of(path):
    with open(path, "rb") as file:
        data = file.read()
    at = data.index(b"\n") + 1
    header = json.loads(data[:at])
    if at % 8:
        fail(f"{path}: the header is no multiple of 8 bytes")
    columns = {}
    for column in header["columns"]:
        values = array.array(TYPES[column["type"]])
        size = values.itemsize * header["count"]
        values.frombytes(data[at:at + size])
        columns[column["name"]], at = values, at + size
    if at != len(data):
        fail(f"{path}: {len(data) - at} bytes too many")
    return header, columns


def check(folder):
    trace, (header, columns) = events_of(f"{folder}/trace.json"), columns_of(f"{folder}/trace.bin")
    with open(f"{folder}/plan.json") as file:
        plan = json.load(file)
    plans = {one["name"]: one for one in [plan, *plan.get("plans", [])]}
    for name, digest, ops in zip(header["plans"], header["digests"], header["ops"]):
        if " of stage " in name:  # plan.json has the plan of rank 0
            continue
        one = plans[name]
        if one["digest"] != digest or not one["tensors"] or len(one["ops"]) != len(ops):
            fail(f"{folder}: plan.json does not hold the plan {name} that was walked")
        for mine, theirs in zip(ops, one["ops"]):
            for key in ("id", "name", "op", "kernel", "bytes", "seconds", "limit_seconds", "phase"):
                if mine[key] != theirs[key]:
                    fail(f"{folder}: op {mine['id']} of {name}: {key} is {mine[key]} and {theirs[key]}")
            if mine["flops"] != theirs["hardware_flops"]:
                fail(f"{folder}: op {mine['id']} of {name}: flops differ")
    kinds = header["kinds"]
    shown = [i for i in range(header["count"]) if kinds[columns["kind"][i]] not in ("counter", "lost")]
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    if len(shown) != len(complete):
        fail(f"{folder}: {len(shown)} spans and {len(complete)} events")
    predictions = [i for i in shown if kinds[columns["kind"][i]] == "predicted"]
    predicted, after = iter(predictions), dict(zip(predictions, predictions[1:]))
    for i, event in zip(shown, complete):
        begin, end = columns["begin"][i], columns["end"][i]
        # one track: ends at the latest where the next span begins
        if i in after and columns["lane"][i] == columns["lane"][after[i]]:
            end = min(end, columns["begin"][after[i]])
        if abs(event["ts"] * 1e3 - begin) > 1 or abs(event["dur"] * 1e3 - (end - begin)) > 1 or event["tid"] != columns["lane"][i] + 1:
            fail(f"{folder}: span {i} is not its event")
        kind = kinds[columns["kind"][i]]
        if kind in ("op", "predicted"):
            op = header["ops"][columns["plan"][i]][columns["id"][i]]
            args = event["args"]
            if event["name"] != op["name"] or args["id"] != op["id"]:
                fail(f"{folder}: event {event['name']} is not its op")
            if kind == "op" and any(args[key] != op[key] for key in ("flops", "bytes", "shape", "dtype", "kernel")):
                fail(f"{folder}: event {event['name']} does not say its op")
            if kind != "op":
                continue
            of = next(predicted)
            takes = columns["end"][of] - columns["begin"][of]
            if columns["begin"][of] != begin:
                fail(f"{folder}: the prediction of {event['name']} does not stand above it")
            if columns["id"][of] != columns["id"][i] or abs(args["predicted_us"] * 1e3 - takes) > 1 or takes < 0 or (takes == 0) != (op["seconds"] < 1e-9):
                fail(f"{folder}: the prediction of {event['name']}")
            if end > begin and abs(args["percent_of_limit"] - 100 * columns["value"][of] / (end - begin)) > 0.0051:
                fail(f"{folder}: percent of limit of {event['name']}")
            if "train" in header["plans"] and (abs(takes - op["seconds"] * 1e9) > 1 or abs(columns["value"][of] - op["limit_seconds"] * 1e9) > 1):
                fail(f"{folder}: {event['name']} is not predicted as planned")
    if not header["steps"]:
        fail(f"{folder}: no step was recorded")
    ranks = header.get("ranks", [{"rank": 0, **header}])
    steps = [(one["rank"], one["threads"], step) for one in ranks for step in one["steps"]]
    for rank, threads, step in steps:
        whole = (step["end"] - step["begin"]) * 1e-9 * threads
        told = step["work"] + step["phases"] + sum(map(sum, step["gaps"]))
        if abs(told - whole) > 1e-6 * whole:
            fail(f"{folder}: rank {rank}, step {step['step']}: {told} of {whole} thread-seconds have a cause")
        after = step["after"]
        whole = (after["end"] - step["end"]) * 1e-9 * threads
        told = after["work"] + after["phases"] + sum(map(sum, after["gaps"]))
        if after["end"] < step["end"] or abs(told - whole) > 1e-6 * whole + 1e-12 or sum(after["by_phase"].values()) > whole:
            fail(f"{folder}: behind step {step['step']}: {told} of {whole} thread-seconds have a cause")
    for one, next_one in zip(header["steps"], header["steps"][1:]):
        if one["after"]["end"] > next_one["begin"] or (one["step"] + 1 == next_one["step"] and not header["about"]["command"] == "bench" and one["after"]["end"] != next_one["begin"]):
            fail(f"{folder}: between steps {one['step']} and {next_one['step']} lies time of none")
    trace_ranks.check(folder, header, columns, trace, fail)
    return header


def unexplained(header):
    """The share of all threads' time without a measured cause, from the start of the first step to the end of the time after the last one."""
    place = header["gaps"].index("unexplained")
    whole = sum(step["after"]["end"] - step["begin"] for step in header["steps"]) * 1e-9 * header["threads"]
    return sum(part["gaps"][side][place] for step in header["steps"] for part in (step, step["after"]) for side in (0, 1)) / whole


if __name__ == "__main__":
    for name in sys.argv[1:]:
        head = check(name)
        phases = sorted({phase for step in head["steps"] for phase in step["after"]["by_phase"]})
        print(f"{name}: {head['count']} spans, steps {[step['step'] for step in head['steps']]}, plans {head['plans']}; between steps {phases}; unexplained {100 * unexplained(head):.3f} %")
