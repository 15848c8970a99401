"""Checks the ranks of a trace, for trace_events.py."""


def check(folder, header, columns, trace, fail):
    """The lanes of each rank follow each other, a rank is a process, and waits for ranks name other ranks."""
    ranks, lane = header.get("ranks"), 0
    processes = {event["pid"] for event in trace["traceEvents"]}
    if ranks is None:
        if processes != {1}:
            fail(f"{folder}: processes {processes}")
        return
    if processes != set(range(1, len(ranks) + 1)):
        fail(f"{folder}: processes {processes} of {len(ranks)} ranks")
    for number, rank in enumerate(ranks):
        if (
            rank["rank"] != number
            or rank["first_lane"] != lane
            or [one["rank"] for one in header["lanes"][lane : lane + rank["lanes"]]]
            != [number] * rank["lanes"]
        ):
            fail(f"{folder}: the lanes of rank {number}")
        lane += rank["lanes"]
        if [step["step"] for step in rank["steps"]] != [step["step"] for step in header["steps"]]:
            fail(f"{folder}: rank {number} has other steps")
        if rank["count"] != sum(rank["first_lane"] <= one < lane for one in columns["lane"]):
            fail(f"{folder}: rank {number} has another number of spans")
        # an exchange ends for all ranks at about the same time, so steps of all ranks overlap
        for mine, theirs in zip(rank["steps"], header["steps"]):
            if mine["end"] <= theirs["begin"] or mine["begin"] >= theirs["end"]:
                fail(f"{folder}: step {mine['step']} of rank {number} does not overlap that of rank 0")
    if lane != len(header["lanes"]):
        fail(f"{folder}: lanes of no rank")
    owner = [one["rank"] for one in header["lanes"]]
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and owner[event["tid"] - 1] + 1 != event["pid"]:
            fail(f"{folder}: an event is in the process of another rank")
    gaps, waits = header["gaps"], 0
    for i in range(header["count"]):
        if header["kinds"][columns["kind"][i]] == "gap" and gaps[columns["id"][i]] in (
            "slow rank",
            "network",
        ):
            waits += 1
            other = columns["value"][i]
            if other not in range(len(ranks)) or (other == owner[columns["lane"][i]]):
                fail(f"{folder}: a wait of rank {owner[columns['lane'][i]]} for rank {other}")
    if not waits:
        fail(f"{folder}: no wait for another rank")
