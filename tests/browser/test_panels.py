#!/usr/bin/env python3
"""Roofline, curves, sweeps, configuration: for real small runs and sweeps, every number on the page is that of the files."""
import json
import math
import os
import subprocess
from browser import Browser, RAFTER

MODEL = "gpt:layers=2,width=32,heads=2,ff=64,vocab=300,seq=32"


def main():
    b = Browser()
    folder = b.folder
    rafter = os.path.abspath(RAFTER)

    def run(*arguments, out=None):
        done = subprocess.run([rafter, *arguments], cwd=folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if out:
            with open(f"{folder}/{out}", "wb") as file:
                file.write(done.stdout)
        return done.stdout

    with open(f"{folder}/text.txt", "w", encoding="utf-8") as file:
        file.write(" ".join(f"{i * i % 97} walls and {i % 7} beams" for i in range(1500)))
    for name, more in (("one", []), ("two", ["--remat", "mlp", "--lr", "1e-2"])):
        run("train", MODEL, "--data", "text.txt", "--steps", "12", "--batch", "4", "--threads", "2", "--val-every", "4", "--val-rows", "4", "--out", name, "--quiet", *more)
    run("plan", MODEL, "--on", "a5000", "--sweep", "batch=1..64", "--json", out="sweep.json")
    run("plan", "llama3-8b", "--on", "h100-sxm", "--job", "serve", "--dtype", "bf16", "--rate", "1..16", "--json", out="serve.json")
    run("report", "one", "two", "sweep.json", "serve.json", "--out", "page.html")
    model = json.loads(run("report", "one", "two", "sweep.json", "serve.json", "--json"))
    b.open(f"{folder}/page.html", "roofline")
    b.clean("the page of two runs, a sweep and a serving plan")

    # Roofline: the measured points of the first run, with the values of report.json.
    one = model["runs"][0]
    ops = {op["id"]: op for op in one["plan"]["ops"]}
    rows = one["measured"]["walks"][0]["ops"]
    products = [r for r in rows if ops[r["id"]]["intensity"] > 0 and r.get("flops_per_second", 0) > 0]
    streams = [r for r in rows if ops[r["id"]]["intensity"] == 0 and r.get("bytes_per_second", 0) > 0]
    state = b.js("rafter.state.roofline")
    b.expect("every measured product is a point", state["points"] == len(products) > 10, (state, len(products)))
    b.expect("every measured stream is a point", state["streams"] == len(streams) > 10, (state, len(streams)))
    for r in products:
        o = ops[r["id"]]
        if not math.isclose(r["flops_per_second"], o["hardware_flops"] / r["seconds"], rel_tol=1e-9) or not math.isclose(o["intensity"], o["hardware_flops"] / o["bytes"], rel_tol=1e-9):
            b.expect("rates are work over time", False, r)
    drawn = b.js("Chart.getChart(document.querySelector('#panel-roofline canvas')).data.datasets.filter(d => !d.roof).flatMap(d => d.data.map(p => [p.x, p.y])).sort((p, q) => p[0] - q[0] || p[1] - q[1])")
    wanted = sorted([ops[r["id"]]["intensity"], r["flops_per_second"]] for r in products)
    b.expect("at their intensity and speed", drawn == wanted, (drawn[:2], wanted[:2]))
    roofs = b.js("Chart.getChart(document.querySelector('#panel-roofline canvas')).data.datasets.filter(d => d.roof).map(d => d.data)")
    c = one["plan"]["machine"]["ceilings"]
    b.expect("below the machine's ceilings", roofs[0][0]["y"] == c["flops_per_second"] and (len(roofs) < 2 or math.isclose(roofs[1][1]["y"] / roofs[1][1]["x"], c["read_bytes_per_second"])), roofs)
    b.js("document.querySelector('#panel-roofline [data-value=predicted]').click()")
    b.expect("predicted points", b.js("rafter.state.roofline.points") == sum(o["flops_per_second"] > 0 for o in ops.values()), b.js("rafter.state.roofline"))

    # Sums by layer, as the program calculated them.
    b.js("rafter.show('summary')")
    b.settle()
    layers = one["summary"]["walks"][0]["layers"]
    said = b.js("[...[...document.querySelectorAll('#panel-summary h3')].find(h => h.textContent === 'By layer').nextElementSibling.querySelectorAll('tbody tr')].map(r => r.cells[0].textContent)")
    drawn = b.js("Chart.getChart([...document.querySelectorAll('#panel-summary h3')].find(h => h.textContent === 'By layer').nextElementSibling.querySelector('canvas')).data.datasets[0].data")
    b.expect("layers are in their order", said == [layer["name"] for layer in layers] == ["block.0", "block.1", "outside of layers"], said)
    b.expect("as long as they took", drawn == [layer["seconds"] for layer in layers[:2]], drawn)
    calls = [(r["seconds"] * r["calls"] / 12, ops[r["id"]]["name"]) for r in rows]
    b.expect("with all their ops", all(math.isclose(layer["seconds"], sum(t for t, name in calls if f"/{layer['name']}/" in name), rel_tol=1e-9) for layer in layers[:2]), layers)
    b.expect("means are labelled as means", "the mean of 12" in b.js("document.querySelector('#panel-summary').textContent"))

    # Curves of both runs.
    b.js("rafter.show('curves')")
    b.settle()
    charts = b.js("rafter.state.curves.charts")
    for r, entry in enumerate(model["runs"][:2]):
        losses, validated = [m["loss"] for m in entry["metrics"]], [m["val_loss"] for m in entry["metrics"] if "val_loss" in m]
        b.expect("losses of every step", charts["loss"][2 * r]["points"] == 12 and charts["loss"][2 * r]["last"] == losses[-1], charts["loss"])
        b.expect("and of every validation", charts["loss"][2 * r + 1]["points"] == len(validated) == 3 and charts["loss"][2 * r + 1]["last"] == validated[-1], charts["loss"])
        b.expect("predicted next to measured", charts["rate"][2 * r + 1]["last"] == entry["plan"]["rate"]["tokens_per_second"] and charts["seconds"][2 * r]["last"] == entry["metrics"][-1]["seconds"])
    times = sorted(m["seconds"] for m in model["runs"][0]["metrics"][1:])
    spread = b.js("rafter.state.curves.spread")[0]
    b.expect("the spread of step times", (spread["low"], spread["median"], spread["high"]) == (times[0], times[5], times[-1]), (spread, times))
    b.js("document.querySelector('#panel-curves [data-value=tokens]').click()")
    last = b.js("(() => { const d = Chart.getChart(document.querySelector('#panel-curves canvas')).data.datasets[0].data; return d[d.length - 1]; })()")
    b.expect("over tokens", last == {"x": model["runs"][0]["metrics"][-1]["tokens"], "y": model["runs"][0]["metrics"][-1]["loss"]}, last)

    # Sweeps and serving.
    b.js("rafter.show('sweep')")
    b.settle()
    state, sweep = b.js("rafter.state.sweep"), model["sweeps"][0]
    b.expect("the sweep", state["sweeps"] == [{"name": "sweep.json", "rows": len(sweep["rows"]), "cliffs": len(sweep["cliffs"])}], state)
    b.expect("the rates", [r["rates"] for r in state["rates"]] == [len(model["runs"][2]["plan"]["serving"]["rates"])], state)
    drawn = b.js("Chart.getChart(document.querySelector('#panel-sweep canvas')).data.datasets[0].data.map(p => [p.x, p.y])")
    b.expect("throughput over the swept value", drawn == [[float(r["batch"]), r["rate"]["tokens_per_second"]] for r in sweep["rows"]], drawn)
    text = b.js("document.querySelector('#panel-sweep').textContent")
    b.expect("the causes of cliffs are shown", all(cliff["cause"] in text for cliff in sweep["cliffs"]))

    # Measured and predicted rates of a bench, over the parameter that its tests vary or that was
    # swept.
    row = lambda test, rate, **more: {"test": test, "model": "tiny", "dtype": "f32", "threads": 2, "tokens_per_second": rate, "predicted_tokens_per_second": 1.1 * rate, "n": 3,
                                      "seconds": {"median": 1 / rate, "min": 0.9 / rate, "max": 1.2 / rate}, "predicted_seconds": 0.9 / rate, "limit_fraction": 0.5, "limit": "read bandwidth", **more}
    bench = {"name": "bench.jsonl", "rows": [row("batch4", 300), row("batch1", 100), row("batch2", 180), row("tg8", 90), row("tg8@d16", 80), row("train", 50)]}
    swept = {"name": "swept.jsonl", "rows": [row("pp8", 400, sweep="threads", value="1"), row("pp8", 700, sweep="threads", value="2")]}
    b.open(b.page({"rafter": "0", "runs": [], "sweeps": [], "benches": [bench, swept]}, "bench"), "sweep")
    b.settle()
    b.expect("charts of a bench", b.js("rafter.state.sweep.benches") == [
        {"name": "bench.jsonl", "rows": 6, "charts": [{"over": "answers at once", "points": [[1, 100], [2, 180], [4, 300]]}, {"over": "tokens of context", "points": [[0, 90], [16, 80]]}]},
        {"name": "swept.jsonl", "rows": 2, "charts": [{"over": "threads", "points": [[1, 400], [2, 700]]}]}], b.js("rafter.state.sweep.benches"))
    drawn = b.js("[...document.querySelectorAll('#panel-sweep canvas')].map(c => Chart.getChart(c).data.datasets.map(d => d.data.map(p => [p.x, p.y])))")
    close = lambda a, b: len(a) == len(b) and all(math.isclose(x, y, rel_tol=1e-9) for p, q in zip(a, b) for x, y in zip(p, q))
    b.expect("measured and predicted over answers at once", close(drawn[0][0], [[1, 100], [2, 180], [4, 300]]) and close(drawn[0][1], [[1, 110], [2, 198], [4, 330]]), drawn[0])
    b.expect("and over the time between two tokens", close(drawn[1][0], [[1 / 100, 100], [2 / 180, 180], [4 / 300, 300]]), drawn[1])
    b.expect("every row is in the table", b.js("document.querySelectorAll('#panel-sweep tbody tr').length") == 8)
    b.clean("a page of benches")

    # A serving plan without ops also has its figures in the summary.
    b.open(b.page({"rafter": "0", "runs": [model["runs"][2]], "sweeps": []}, "serving"), "summary")
    b.settle()
    text = b.js("document.querySelector('#panel-summary').textContent")
    b.expect("a plan without ops has a summary", all(one in text for one in ("Time of", "Tokens per second", "Memory", "Time to the first token")), text[:300])
    b.open(f"{folder}/page.html", "roofline")
    b.settle()

    # Configuration: options that differ come first.
    b.js("rafter.show('configuration')")
    b.settle()
    options = b.js("[...[...document.querySelectorAll('#panel-configuration h3')].find(h => h.textContent === 'Options').nextElementSibling.querySelectorAll('tbody tr')].map(r => [...r.cells].map(c => c.textContent))")
    differ = [row[0] for row in options if row[1] != row[2]]
    b.expect("options that differ come first", {row[0] for row in options[:len(differ)]} == set(differ) == {"remat", "lr", "out"}, options[:4])
    b.expect("every option is listed", {row[0] for row in options} >= set(model["runs"][0]["run"]["options"]), len(options))

    # Headings sort, and screen readers get the order.
    b.js("rafter.show('roofline')")
    head = "[...document.querySelectorAll('#panel-roofline th button')].find(h => h.textContent === 'FLOP/byte')"
    b.js(f"{head}.click()")
    cells = b.js("[...document.querySelectorAll('#panel-roofline tbody tr')].map(r => r.cells[3].textContent)")
    numbers = [float(cell.replace(",", "")) if cell != "–" else 0 for cell in cells]
    b.expect("a heading sorts", numbers == sorted(numbers, reverse=True) and b.js(f"{head}.closest('th').getAttribute('aria-sort')") == "descending", numbers[:5])

    # If one step takes a thousand times as long, the other steps stay visible.
    far = [{"step": i, "loss": 1.0, "seconds": 60.0 if i == 250 else 0.05 + 0.0001 * (i % 7), "tokens": i} for i in range(1, 301)]
    b.open(b.page({"rafter": "0", "runs": [{"id": "far", "name": "far", "metrics": far}], "sweeps": []}), "curves")
    b.settle()
    cut = b.js("rafter.state.curves.charts.seconds[0] && Chart.getChart(document.querySelectorAll('#panel-curves canvas')[1]).options.scales.y.max")
    b.expect("an axis ends at the last ordinary step", cut is not None and math.isclose(cut, 3 * 0.0506), cut)
    b.expect("and names the step above it", "1 of the points" in b.js("document.querySelector('#panel-curves').textContent"))

    # Ten runs have eight colours: the ninth and tenth have marks, also in the legend.
    many = [{"id": f"r{k}", "name": f"r{k}", "metrics": [{"step": i, "loss": 9.0 - k - 0.01 * i, "seconds": 0.05, "tokens": i} for i in range(1, 31)]} for k in range(10)]
    b.open(b.page({"rafter": "0", "runs": many, "sweeps": []}), "curves")
    b.settle()
    looks = b.js("(() => { const chart = Chart.getChart(document.querySelector('#panel-curves canvas')); return chart.legend.legendItems.map(item => [item.text, item.strokeStyle, item.pointStyle]); })()")
    b.expect("no two runs look alike", len(looks) == 10 and len({tuple(look[1:]) for look in looks}) == 10, looks)
    b.clean("ten runs")

    # On a narrow screen, panels are below each other, and wide content can be scrolled with the
    # keyboard.
    b.command("Emulation.setDeviceMetricsOverride", width=800, height=900, deviceScaleFactor=1, mobile=False)
    b.open(b.page(model, "narrow"), "summary")
    b.settle()
    sides = b.js("[...document.querySelectorAll('#panel-summary .columns')].map((one) => getComputedStyle(one).gridTemplateColumns.split(' ').length)")
    b.expect("one column at 800 pixels", sides and set(sides) == {1}, sides)
    loose = b.js("[...document.querySelectorAll('#panel-summary .table')].filter((one) => (one.scrollWidth > one.clientWidth + 1) !== (one.tabIndex === 0)).length")
    b.expect("tables that scroll take the focus", loose == 0, loose)
    b.command("Emulation.setDeviceMetricsOverride", width=1400, height=900, deviceScaleFactor=1, mobile=False)

    # The dark scheme, and print.
    b.scheme("dark")
    b.settle()
    b.clean("in the dark")
    b.open(b.page({"rafter": "0", "runs": [{"id": "p", "name": "p", "plan": {"job": "train", "memory": {"peak_bytes": 1, "by_class": {}}}}], "sweeps": []}), "curves")
    for panel, command in (("curves", "rafter train"), ("sweep", "--sweep"), ("roofline", "--ops"), ("memory", "--tensors"), ("configuration", "rafter report")):
        b.js(f"rafter.show('{panel}')")
        b.expect(f"{panel}: the empty state names a command", command in b.js(f"document.querySelector('#panel-{panel}').textContent"))
    b.clean("an empty page")
    b.finish()


if __name__ == "__main__":
    main()
