#!/usr/bin/env python3
"""Reports of real small runs: training with a trace, LoRA, generation, scoring. Every panel of every run is drawn without output on the console."""
import json
import os
import subprocess

from browser import Browser, RAFTER

MODEL = "gpt:layers=2,width=32,heads=2,ff=64,vocab=300,seq=32"


def main():
    b = Browser()
    rafter = os.path.abspath(RAFTER)

    def run(*arguments):
        done = subprocess.run([rafter, *arguments], cwd=b.folder, check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode:
            raise SystemExit(f"rafter {' '.join(arguments)}: {done.stderr.decode()}")
        return done.stdout

    with open(f"{b.folder}/text.txt", "w", encoding="utf-8") as file:
        file.write(" ".join(f"{i * i % 97} walls and {i % 7} beams" for i in range(300)))
    quick = ["--data", "text.txt", "--batch", "4", "--microbatch", "2", "--threads", "2", "--quiet"]
    run("train", MODEL, *quick, "--steps", "6", "--trace", "steps=3..5", "--out", "full")
    run("train", "full", *quick, "--steps", "4", "--lora", "rank=2", "--trace", "steps=2", "--out", "lora")
    run("generate", "full", "--prompt", "7 walls", "--max-tokens", "8", "--threads", "2", "--trace", "all", "--out", "said", "--quiet")
    run("score", "full", "--input", "text.txt", "--seq", "32", "--stride", "16", "--threads", "2", "--trace", "all", "--out", "scored")
    names = ["full", "lora", "said", "scored"]
    run("report", *names, "--out", "page.html")
    model = json.loads(run("report", *names, "--json"))
    b.open(f"{b.folder}/page.html")
    b.clean("four runs")

    # The page contains the report model, and the model contains the plans of the runs. The page
    # adds no bytes and no FLOPs of its own.
    page = json.loads(b.js("document.getElementById('model').textContent"))
    for name, on_page, in_model in zip(names, page["runs"], model["runs"]):
        with open(f"{b.folder}/{name}/plan.json", encoding="utf-8") as file:
            plan = json.load(file)
        b.expect(f"{name}: the plan is the run's, value for value", on_page["plan"] == plan == in_model["plan"])
        b.expect(f"{name}: so are its settings and measurements", all(on_page[key] == in_model[key] for key in ("run", "measured")))

    for index, name in enumerate(names):
        b.driver.execute_script(f"const run = document.getElementById('run'); run.value = {index}; run.dispatchEvent(new Event('change'))")
        b.wait(f"rafter.state.ready && rafter.state.run === {index}")
        for panel in b.js("[...document.querySelectorAll('[role=tab]')].map((tab) => tab.id.slice(4))"):
            b.find(f"#tab-{panel}").click()
            b.settle()
            b.expect(f"{name}: {panel} is drawn", b.js(f"document.querySelector('#panel-{panel} .body').textContent.trim().length") > 20)
        b.clean(name)
        traced = "trace" in page["runs"][index]
        b.expect(f"{name}: has a trace", traced)
        if not traced:
            continue
        b.expect(f"{name}: all of it", b.js("rafter.state.trace.events") == page["runs"][index]["trace"]["header"]["count"])
        ops = b.js("rafter.traceViewer.main.count")
        named = b.js("(() => { const {things} = rafter.traceViewer.trace, row = rafter.traceViewer.main; let known = 0; for (let i = 0; i < row.count; i++) known += things.op[row.key[i]] !== null; return known; })()")
        b.expect(f"{name}: every op of the trace is one of the plan's", ops == named > 10, (ops, named))
        peak = max(plan["memory"]["peak_bytes"] for plan in [page["runs"][index]["plan"], *page["runs"][index]["plan"].get("plans", [])])
        live = b.js("Math.max(...rafter.traceViewer.trace.counters.filter((one) => /live/.test(one.title)).map((one) => one.most))")
        b.expect(f"{name}: live bytes stay below the plan's peak", 0 < live <= peak, (live, peak))
    b.finish()


if __name__ == "__main__":
    main()
