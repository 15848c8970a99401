#!/usr/bin/env python3
"""Four settings of one model, next to LoRA, generation and scoring. The peak of the memory curve is the arena that
each run mapped, to the byte. The largest buffers are named by layer and shape. The comparison gives the savings
and costs of each setting. Ops of other panels are found in the trace."""
import json
import os
import subprocess
from browser import Browser, RAFTER

BLOCKS, ROWS, FF = 12, 4 * 32, 128
MODEL = f"gpt:layers={BLOCKS},width=32,heads=2,ff={FF},vocab=2048,seq=32"
LADDER = {"f32": [], "bf16": ["--dtype", "bf16"], "remat-mlp": ["--dtype", "bf16", "--remat", "mlp"], "remat-block": ["--dtype", "bf16", "--remat", "block"]}


def main():
    b = Browser()
    rafter = os.path.abspath(RAFTER)

    def run(*arguments):
        return subprocess.run([rafter, *arguments], cwd=b.folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout

    with open(f"{b.folder}/text.txt", "w", encoding="utf-8") as file:
        file.write(" ".join(f"{i * i % 97} walls and {i % 7} beams" for i in range(300)))
    with open(f"{b.folder}/rows.jsonl", "w", encoding="utf-8") as file:
        file.write('{"tokens": [1, 2, 3, 4, 5, 6, 7, 8]}\n{"tokens": [3, 4, 5, 9, 9, 1]}\n')
    train = ["--data", "text.txt", "--batch", "4", "--steps", "2", "--val-every", "2", "--val-rows", "2", "--threads", "2", "--quiet"]
    for name, more in LADDER.items():
        run("train", MODEL, *train, *more, *(["--trace", "steps=2"] if name == "f32" else []), "--out", name)
    base = "f32/checkpoint-00000002"
    run("train", base, *train, "--lora", "rank=4,targets=all", "--out", "lora")
    run("generate", base, "--tokens", "1,2,3,4", "--max-tokens", "6", "--ignore-eos", "--threads", "2", "--quiet", "--out", "generate")
    run("score", base, "--input", "rows.jsonl", "--output", "scored.jsonl", "--threads", "2", "--quiet", "--out", "score")
    names = [*LADDER, "lora", "generate", "score"]
    run("report", *names, "--out", "page.html")
    model = json.loads(run("report", *names, "--json"))
    b.open(f"{b.folder}/page.html", "memory")
    b.clean("the page of seven runs")
    for i, (name, entry) in enumerate(zip(names, model["runs"])):
        b.js(f"(() => {{ rafter.chooseRun({i}); }})()")
        b.wait(f"rafter.state.ready && rafter.state.run === {i}")
        b.clean(name)
        memory, plan = b.js("rafter.state.memory"), entry["plan"]
        b.expect(f"{name}: the curve's peak is the arena", memory["curve"]["peak_bytes"] == entry["measured"]["arena_bytes"] == plan["memory"]["peak_bytes"], memory["curve"])
        b.expect(f"{name}: its largest are the plan's", memory["instant"]["first"] == plan["memory"]["largest"][0]["name"], memory["instant"])
        b.expect(f"{name}: a sentence", b.js("rafter.state.summary.sentence") == entry["summary"]["sentence"] != "")
        b.expect(f"{name}: measured ops under the roofs", b.js("rafter.state.roofline.which") == "measured" and b.js("rafter.state.roofline.points") > 5, b.js("rafter.state.roofline"))

    # The MLP tensors that each version keeps: 12 layers of [T, F] in f32, then in bf16, then none.
    b.js("rafter.chooseRun(0)")
    b.wait("rafter.state.ready && rafter.state.run === 0")
    largest = [{row["name"]: row for row in entry["plan"]["memory"]["largest"]} for entry in model["runs"][:4]]
    up = [found.get("block.*/mlp/up/u") for found in largest]
    b.expect("every layer's activation is named and summed", up[0]["count"] == up[1]["count"] == BLOCKS and up[0]["shape"] == [ROWS, FF] and up[0]["bytes"] == 4 * BLOCKS * ROWS * FF == 2 * up[1]["bytes"], up)
    b.expect("with recomputation at most one is kept", all(one is None or one["count"] <= 1 for one in up[2:]), up[2:])
    text = b.js("document.querySelector('#memory-instant').textContent")
    b.expect("and so says the page", f"{BLOCKS} × " in text and f"(4 × 32, {FF})" in text and "block.*/mlp/up/u" in text)
    peaks = [entry["plan"]["memory"]["peak_bytes"] for entry in model["runs"][:4]]
    for k in range(1, 4):
        b.js(f"(() => {{ const s = document.querySelector('#memory-over'), o = [...s.options].findIndex((x) => x.textContent.startsWith('{names[k]}')); s.value = o - 1; s.dispatchEvent(new Event('change')); }})()")
        over = b.js("rafter.state.memory.over")
        b.expect(f"{names[k]} over it", over["peak_change"] == peaks[k] - peaks[0] < 0, over and over["peak_change"])
    # The savings and costs of each version, as compare prints them.
    plans = [entry["plan"] for entry in model["runs"]]
    for a, c in ((1, 2), (2, 3)):
        for which, title in (("a", names[a]), ("b", names[c])):
            b.js(f"(() => {{ const s = document.querySelector('#compare-{which}'), o = [...s.options].findIndex((x) => x.textContent.startsWith('{title}, train: predicted')); s.value = o; s.dispatchEvent(new Event('change')); }})()")
        got = b.js("rafter.state.compare")
        b.expect(f"{names[a]} to {names[c]} saves memory", got["peak_change"] == plans[c]["memory"]["peak_bytes"] - plans[a]["memory"]["peak_bytes"] < 0, got["peak_change"])
        b.expect("and costs time", got["seconds"] == [plans[a]["time"]["seconds"], plans[c]["time"]["seconds"]] and got["seconds"][1] > got["seconds"][0], got["seconds"])
        b.expect("in recomputation", all("recompute" in name for name, seconds, _ in got["rows"] if seconds > 0) and any("recompute" in name for name, _, _ in got["rows"]), got["rows"][:3])

    # The op with the largest loss can be found in the trace.
    loss = model["runs"][0]["summary"]["walks"][0]["losses"][0]["name"]
    b.js("rafter.show('summary')")
    b.settle()
    b.js(f"[...document.querySelectorAll('#panel-summary tr.choose')].find((row) => row.cells[0].textContent === '{loss}').click()")
    b.wait("rafter.state.panel === 'trace'")
    b.settle()
    b.expect("a row of the summary leads to the trace", loss.endswith(b.js("rafter.state.trace.selected") or "?") or b.js("rafter.state.trace.selected") == loss, (loss, b.js("rafter.state.trace.selected")))
    b.clean("after all that")
    b.finish()


if __name__ == "__main__":
    main()
