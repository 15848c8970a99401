#!/usr/bin/env python3
"""Compare and summary: two runs, a run and its plan, two plans. Every difference agrees with the files, largest first."""
import json
import math
import os
import re
import subprocess
from browser import Browser, RAFTER

MODEL = "gpt:layers=2,width=32,heads=2,ff=64,vocab=300,seq=32"


def near(a, b):
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-15)


def main():
    b = Browser()
    rafter = os.path.abspath(RAFTER)

    def run(*arguments):
        return subprocess.run([rafter, *arguments], cwd=b.folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout

    for name, more in (("kept", []), ("again", ["--remat", "block"])):
        run("train", MODEL, "--data", "random:seed=0", "--steps", "3", "--batch", "4", "--accumulate", "2", "--threads", "2", "--out", name, "--quiet", *more)
    run("report", "kept", "again", "--against", "remat=mlp", "--out", "page.html")
    model = json.loads(run("report", "kept", "again", "--against", "remat=mlp", "--json"))
    kept, again, mlp = model["runs"]
    b.open(f"{b.folder}/page.html", "compare")
    b.clean("the page")
    state = lambda: b.js("rafter.state.compare")

    def seconds(entry, measured):
        rows = {o["id"]: o for o in entry["measured"]["walks"][0]["ops"]} if measured else None
        return {o["name"]: (rows[o["id"]]["seconds"] if rows else o["seconds"]) * o["calls"] for o in entry["plan"]["ops"]}

    def bytes_of(entry):
        return {o["name"]: o["bytes"] * o["calls"] for o in entry["plan"]["ops"]}

    # Two measured runs. Ops with the same time to the nanosecond have no row.
    now = state()
    b.expect("two measured runs come first", now["a"].startswith("kept") and now["a"].endswith("measured") and now["b"].startswith("again") and now["b"].endswith("measured"), now)
    b.expect("peaks", now["peak_change"] == again["plan"]["memory"]["peak_bytes"] - kept["plan"]["memory"]["peak_bytes"] < 0, now["peak_change"])
    b.expect("options that differ", set(now["options"]) == {"remat"}, now["options"])
    b.js("document.querySelector('#panel-compare [data-value=op]').click()")
    now = state()
    x, y = seconds(kept, True), seconds(again, True)
    wanted = {name: y.get(name, 0) - x.get(name, 0) for name in {*x, *y}}
    b.expect("the difference of every op", all(near(change, wanted[name]) for name, change, _ in now["rows"]) and not any(wanted[name] for name in {*wanted} - {row[0] for row in now["rows"]}), len(now["rows"]))
    sizes = [abs(change) for _, change, _ in now["rows"]]
    b.expect("largest first", sizes == sorted(sizes, reverse=True))
    p, q = bytes_of(kept), bytes_of(again)
    b.expect("and of its bytes", all(change == q.get(name, 0) - p.get(name, 0) for name, _, change in now["rows"]))
    largest = [{l["name"]: l["bytes"] for l in e["plan"]["memory"]["largest"]} for e in (kept, again)]
    wanted = {n: largest[1].get(n, 0) - largest[0].get(n, 0) for n in {*largest[0], *largest[1]} if largest[1].get(n, 0) != largest[0].get(n, 0)}
    b.expect("tensors at the peaks", dict(now["kinds"]) == wanted, {*wanted.items()} ^ {*dict(now["kinds"]).items()})
    b.js("document.querySelector('#panel-compare [data-value=kind]').click()")
    kinds = {}
    for name, change in ((n, y.get(n, 0) - x.get(n, 0)) for n in {*x, *y}):
        name = re.sub(r"block\.\d*", "block.*", name, count=1)
        kinds[name] = kinds.get(name, 0) + change
    off = [(name, change, kinds[name]) for name, change, _ in state()["rows"] if abs(change - kinds[name]) > 1e-12]
    b.expect("by kind over layers", not off and not any(kinds[name] for name in {*kinds} - {row[0] for row in state()["rows"]}), off)

    # A run with its plan, and two plans.
    def choose(a, other):
        sides = state()["sides"]
        for which, title in (("a", a), ("b", other)):
            b.js(f"(() => {{ const s = document.querySelector('#compare-{which}'); s.value = {sides.index(title)}; s.dispatchEvent(new Event('change')); }})()")

    sides = state()["sides"]
    b.expect("every run as planned and as measured, and the plan alone", len(sides) == 5 and sides[-1] == "remat=mlp: predicted", sides)
    choose(sides[1], sides[0])
    b.js("document.querySelector('#panel-compare [data-value=op]').click()")
    planned = seconds(kept, False)
    b.expect("a run with its plan", all(near(change, x[name] - planned[name]) for name, change, _ in state()["rows"]) and not any(change for _, _, change in state()["rows"]))
    choose(sides[1], sides[4])
    then = seconds(mlp, False)
    b.expect("two plans", all(near(change, then.get(name, 0) - planned.get(name, 0)) for name, change, _ in state()["rows"]) and any("recompute" in name for name, _, _ in state()["rows"]))
    choose(sides[0], sides[4])
    b.expect("a run is compared with another plan by predictions", all(near(change, then.get(name, 0) - planned.get(name, 0)) for name, change, _ in state()["rows"]) and state()["a"] == sides[1] and "Only one of the two sides was measured" in b.js("document.querySelector('#panel-compare').textContent"), state()["a"])
    choose(sides[1], sides[4])
    before = state()
    b.js("[...document.querySelectorAll('#panel-compare button')].find(x => x.textContent === 'Swap').click()")
    b.expect("swapped", state()["a"] == before["b"] and state()["peak_change"] == -before["peak_change"])

    # The whole table is copied, with values as numbers.
    b.js("window.copied = null, navigator.clipboard ? navigator.clipboard.writeText = async (text) => { window.copied = text; } : (document.execCommand = () => { window.copied = document.activeElement.value; })")
    b.js("[...document.querySelectorAll('#panel-compare .copy')].find(c => c.closest('.table').querySelector('th').textContent === 'Op').click()")
    b.settle()
    lines = b.js("window.copied").split("\n")
    b.expect("a table is copied whole", len(lines) == len(state()["rows"]) + 1 and lines[1].split("\t")[0] == state()["rows"][0][0], lines[:2])

    # The summary of the page is that of the program.
    b.js("rafter.show('summary')")
    b.settle()
    if "summary" in kept:
        text = b.js("document.querySelector('#panel-summary').textContent")
        b.expect("the sentence", kept["summary"]["sentence"] in text and b.js("rafter.state.summary.sentence") == kept["summary"]["sentence"])
        ticks = b.js("[...document.querySelectorAll('#panel-summary canvas')].map((c) => Chart.getChart(c)).filter(Boolean).map((c) => c.scales.x.ticks.length)")
        b.expect("labels of time have room", ticks and max(ticks) <= 5, ticks)
        b.expect("every note", all(note in text for note in kept["summary"]["notes"]), kept["summary"]["notes"])
        b.expect("every kind and phase", all(group["name"] in text for walk in kept["summary"]["walks"][:1] for group in walk["kinds"] + walk["phases"]))
    b.clean("after all that")
    run("report", "kept", "--against", "remat=mlp", "--out", "against.html")
    b.open(f"{b.folder}/against.html", "compare")
    b.expect("--against compares two plans first", state()["a"] == "kept: predicted" and state()["b"] == "remat=mlp: predicted", [state()["a"], state()["b"]])
    b.open(b.page({"rafter": "0", "runs": [{"id": "p", "name": "p", "plan": kept["plan"], "metrics": []}], "sweeps": []}), "compare")
    b.expect("with one plan the page says what to add", "--against" in b.js("document.querySelector('#panel-compare').textContent"))
    b.clean("one plan alone")
    b.finish()


if __name__ == "__main__":
    main()
