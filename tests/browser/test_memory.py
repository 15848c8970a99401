#!/usr/bin/env python3
"""The memory viewer: its peak is the plan's, to the byte. Lists, zoom, filters, hover, folding and an overlaid plan work."""
import json
import re
import subprocess
from browser import Browser, Keys, RAFTER

SHAPE = "gpt:layers=4,width=128,heads=4,ff=512,vocab=512,seq=64"


def plan(*options):
    return json.loads(subprocess.run([RAFTER, "plan", SHAPE, "--batch", "8", "--threads", "2", "--json", "--tensors", "--ops", *options],
                                     check=True, capture_output=True).stdout)


def alive(one, op):
    """Live tensors at an op, counted again by kind: [(name, bytes)], largest first."""
    kinds = {}
    for t in one["tensors"]:
        if t["first"] + ("shares" in t) <= op <= t["last"]:
            name = re.sub(r"block\.\d*", "block.*", t["name"], count=1)
            kinds[name] = kinds.get(name, 0) + t["bytes"]
    return kinds


def main():
    none, mlp = plan(), plan("--remat", "mlp")
    runs = [{"id": "a", "name": "all kept", "plan": none, "metrics": []}, {"id": "b", "name": "remat=mlp", "of": "a", "plan": mlp, "metrics": []}]
    b = Browser()
    b.open(b.page({"rafter": "0", "runs": runs, "sweeps": []}), "memory")
    b.clean("the memory viewer")
    state = lambda: b.js("rafter.state.memory")
    now = state()
    peak_op = next(o["id"] for o in none["ops"] if o["name"] == none["memory"]["peak_op"])
    b.expect("the curve's peak is the plan's", now["curve"]["peak_bytes"] == none["memory"]["peak_bytes"], now["curve"])
    b.expect("at its op the plan's live bytes", now["curve"]["live_bytes"] == none["memory"]["live_bytes"] and now["curve"]["peak_op"] == none["memory"]["peak_op"])
    kinds = alive(none, peak_op)
    b.expect("the live tensors there", now["instant"]["bytes"] == sum(kinds.values()) and now["instant"]["kinds"] == len(kinds), now["instant"])
    b.expect("every tensor is drawn", now["drawn"] == len(none["tensors"]), now["drawn"])
    text = b.js("document.querySelector('#memory-instant').textContent")
    b.expect("the sum over layers is named", "block.*/mlp/up/u" in text and "4 × " in text)

    # Another op: the page counts its live bytes. With ops as the axis, places are easy to find.
    b.expect("predicted time is the first axis", state()["axis"] == "predicted", state()["axis"])
    b.js("document.querySelector('#panel-memory [data-value=ops]').click()")
    b.settle()
    b.js("document.querySelector('#memory-picture').scrollIntoView({block: 'end'})")
    x, y, w, h = b.box("#memory-picture")
    left, right = x + 78, x + w - 12
    b.click(left + (right - left) * 0.25, y + 500)
    now = state()
    op = now["instant"]["op"]
    kinds = alive(none, op)
    b.expect("a click chooses an instant", op != peak_op and abs(op - 0.25 * len(none["ops"])) < 2, op)
    b.expect("and the live tensors at that time", now["instant"]["bytes"] == sum(kinds.values()) and kinds[now["instant"]["first"]] == max(kinds.values()), now["instant"])
    b.key("p")
    b.expect("p: the peak again", state()["instant"]["op"] == peak_op)

    # Moves the pointer over the middle of a large transient tensor.
    b.js("document.querySelector('[data-value=scale]') && document.querySelector('[data-value=scale]').click()")
    b.settle()
    view = state()["view"]
    b.expect("to scale: from address 0", view["y0"] == 0 and view["y1"] == none["memory"]["peak_bytes"], view)
    big = max((t for t in none["tensors"] if t["first"] >= 0 and t["last"] < len(none["ops"]) and "shares" not in t), key=lambda t: t["bytes"] * (t["last"] - t["first"]))
    over = lambda t: (left + (right - left) * ((t["first"] + t["last"] + 1) / 2 - view["x0"]) / (view["x1"] - view["x0"]),
                      y + 18 + 400 - 400 * (t["offset"] + t["bytes"] / 2 - view["y0"]) / (view["y1"] - view["y0"]))
    b.mouse("mouseMoved", *over(big))
    b.settle()
    tip = b.js("document.querySelector('#tooltip').textContent")
    b.expect("hover names the tensor", state()["hover"] == big["name"] and big["name"] in tip and big["reason"] in tip and big["dtype"] in tip, (big["name"], tip))
    b.expect("with its bytes", re.sub(r"\D", "", tip.split("bytes")[1].split("(")[0]) == str(big["bytes"]), tip)

    # A hidden class is neither drawn nor selectable.
    b.js(f"document.querySelector('[data-class={big['class']}]').click()")
    b.settle()
    left_out = sum(t["class"] == big["class"] for t in none["tensors"])
    b.expect("a hidden class is not drawn", state()["drawn"] == len(none["tensors"]) - left_out, state()["drawn"])
    b.mouse("mouseMoved", over(big)[0] + 1, over(big)[1])
    b.settle()
    b.expect("nor hit", state()["hover"] != big["name"], state()["hover"])
    b.js(f"document.querySelector('[data-class={big['class']}]').click()")

    # Zoom and pan keep the place under the pointer, and keep the view inside the arena.
    px, part = left + 0.3 * (right - left), 0.3
    before = state()["view"]
    b.wheel(px, y + 200, -400)
    after = state()["view"]
    b.expect("the wheel zooms in time", after["x1"] - after["x0"] < 0.7 * (before["x1"] - before["x0"]) and after["y0"] == before["y0"], after)
    held = lambda v: v["x0"] + part * (v["x1"] - v["x0"])
    b.expect("about the pointer", abs(held(after) - held(before)) < (before["x1"] - before["x0"]) / w, (held(before), held(after)))
    b.drag(px, y + 200, px + 200, y + 200)
    moved = state()["view"]
    b.expect("a drag moves", moved["x0"] < after["x0"] and abs((moved["x1"] - moved["x0"]) - (after["x1"] - after["x0"])) < 1e-6, moved)
    for _ in range(30):
        b.key(Keys.ARROW_LEFT)
    b.expect("not past the start", state()["view"]["x0"] == 0, state()["view"])
    b.key("0")
    b.expect("0: the whole picture", state()["view"] == before, state()["view"])
    b.wheel(px, y + 200, -400, modifiers=10)
    after = state()["view"]
    b.expect("with Shift the wheel zooms addresses", after["y1"] - after["y0"] < 0.7 * (before["y1"] - before["y0"]) and after["x0"] == before["x0"] and after["x1"] == before["x1"], after)
    b.key("0")
    b.scrolls_by("#memory-picture", "rafter.state.memory.view.x1 - rafter.state.memory.view.x0")
    b.key("0", "p")
    b.expect("a plan that was not traced leads to no trace", not b.js("document.querySelector('[data-link=trace]')"))
    b.js("document.querySelector('[data-value=predicted]').click()")
    b.settle()
    seconds = sum(o["seconds"] for o in none["ops"]), sum(o["seconds"] for o in mlp["ops"])
    b.expect("time as predicted", abs(state()["view"]["x1"] - max(seconds)) < 1e-9 * max(seconds), state()["view"])
    b.js("document.querySelector('[data-value=ops]').click()")

    # The other plan, made for comparison, is drawn over this one.
    over = state()["over"]
    b.expect("the plan made for comparison is drawn over it", over and over["name"] == "remat=mlp", over)
    b.expect("its peak", over["peak_bytes"] == mlp["memory"]["peak_bytes"] and over["peak_change"] == mlp["memory"]["peak_bytes"] - none["memory"]["peak_bytes"], over)
    b.expect("its time", abs(over["seconds_change"] - (mlp["time"]["seconds"] - none["time"]["seconds"])) < 1e-12)
    there = next(o["id"] for o in mlp["ops"] if o["name"] == none["memory"]["peak_op"])
    mine, theirs = alive(none, peak_op), alive(mlp, there)
    wanted = {name: theirs.get(name, 0) - mine.get(name, 0) for name in {*mine, *theirs} if theirs.get(name, 0) != mine.get(name, 0)}
    b.expect("the bytes that it frees at the peak", dict(over["same"]) == wanted and over["same"][0][1] == max(wanted.values(), key=abs) and wanted["block.*/mlp/up/u"] < 0, over["same"][:3])
    b.js("(() => { const s = document.querySelector('#memory-over'); s.value = ''; s.dispatchEvent(new Event('change')); })()")
    b.settle()
    b.expect("nothing over it", state()["over"] is None and not b.js("document.querySelector('#memory-difference').textContent"))
    b.clean("after all that")

    # For a plan without tensors, the page says how to get them.
    bare = json.loads(json.dumps(none))
    del bare["tensors"], bare["ops"]
    b.open(b.page({"rafter": "0", "runs": [{"id": "a", "name": "a", "plan": bare, "metrics": []}]}), "memory")
    text = b.js("document.querySelector('#panel-memory').textContent")
    b.expect("an empty state names the command", "--tensors --ops" in text and "block.*/mlp/up/u" in text, text[:200])
    b.clean("a plan without tensors")

    # Plans that the picture shows only in part: a stage of a pipeline, a JAX program, tensors in
    # host memory.
    def other(model, *options):
        return json.loads(subprocess.run([RAFTER, "plan", model, "--json", "--tensors", "--ops", *options], check=True, capture_output=True).stdout)

    stages = other("gpt:layers=8,width=512,heads=8,ff=2048,vocab=512,seq=256", "--on", "h100-sxm:4", "--mesh", "pipeline=4", "--batch", "8", "--accumulate", "8", "--dtype", "bf16")
    jax = other("uva", "--on", "a5000", "--batch", "4", "--dtype", "bf16", "--program", "jax-scan")
    host = other("uva", "--on", "a5000", "--batch", "4", "--dtype", "bf16", "--offload", "optimizer")
    for name, one, said in (("a pipeline", stages, "of 4"), ("a JAX program", jax, "compiled by XLA"), ("a host", host, "In the host's memory")):
        b.open(b.page({"rafter": "0", "runs": [{"id": "a", "name": "a", "plan": one, "metrics": []}], "sweeps": []}), "memory")
        b.clean(name)
        b.expect(f"{name}: the page says so", said in b.js("document.querySelector('#panel-memory').textContent"))
        now, most = state(), max(o["top_bytes"] for o in one["ops"])
        b.expect(f"{name}: the curve", now["curve"]["peak_bytes"] == most and now["view"]["y1"] == most, (now["curve"], most))
        b.expect(f"{name}: the drawing", now["drawn"] == sum(t.get("memory") != "host" for t in one["tensors"]), now["drawn"])
    b.finish()


if __name__ == "__main__":
    main()
