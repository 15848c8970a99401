#!/usr/bin/env python3
"""How the page looks: at 390, 768 and 1400 pixels nothing is cut off or wasted, tabs without content
are grey, charts share their left edge, labels do not overlap, colours of op classes can be
distinguished, and numbers are written as the program writes them."""

import itertools
import json
import math
import os
import subprocess

import models
from browser import Browser, RAFTER

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "numbers.tsv")
# How people with protanopia and deuteranopia see linear RGB (Machado, Oliveira, Fernandes 2009).
VISION = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}


def lab(colour, matrix):
    """CIELAB of #rrggbb as seen through the matrix."""
    rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    rgb = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    r, g, b = [min(1, max(0, sum(m * c for m, c in zip(row, rgb)))) for row in matrix]
    x, y, z = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883,
    )
    f = lambda t: t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
    return 116 * f(y) - 16, 500 * (f(x) - f(y)), 200 * (f(y) - f(z))


def numbers(b):
    with open(TABLE, encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file if not line.startswith("#")]
    functions = {"rate": "bandwidth"}
    for kind, value, text in rows:
        if kind == "number":  # only the program prints such numbers
            continue
        said = b.js(f"rafter.{functions.get(kind, kind)}({value})")
        b.expect(f"{kind} {value}", said == text, said)
    b.expect(
        "ticks leave out zeros",
        b.js(
            "[rafter.tick(rafter.count)(1e7), rafter.tick(rafter.seconds)(2),"
            " rafter.tick(rafter.count)(20), rafter.tick(rafter.bytes)(1.5 * 2 ** 30)]"
        )
        == ["10 M", "2 s", "20", "1.5 GiB"],
    )


def colours(b):
    for scheme in ("light", "dark"):
        b.scheme(scheme)
        b.wait(f"rafter.state.theme === '{scheme}'")
        named = b.js(
            "Object.fromEntries(rafter.opClasses.filter((one) => one.id !== 'other').map((one) =>"
            " [one.id, rafter.colour(one.colour)]))"
        )
        near = min(
            (math.dist(lab(x, m), lab(y, m)), a, c, who)
            for who, m in VISION.items()
            for (a, x), (c, y) in itertools.combinations(named.items(), 2)
        )
        b.expect(
            f"{scheme}: colours of op classes differ by 25 or more, also for colour-blind readers",
            near[0] >= 25,
            near,
        )
    b.scheme("light")
    b.wait("rafter.state.theme === 'light'")


WIDE = (
    "[...document.querySelectorAll('header *')].filter((node) => node.getClientRects().length &&"
    " !node.closest('#tabs') && node.getBoundingClientRect().right > innerWidth + 1).map((node) =>"
    " node.id || node.textContent.slice(0, 30))"
)
TALL = """[...document.querySelectorAll('.panel.shown tbody tr')]
  .map((row) => [row.getBoundingClientRect().height, row.textContent.slice(0, 60)])
  .filter(([height]) => height > 56)"""
SILENT = """[...document.querySelectorAll('.panel.shown .table')].filter((table) => {
    const scroll = table.querySelector('.scroll'), note = table.querySelector('.sideways');
    return (scroll.scrollWidth > scroll.clientWidth + 1) !== note.checkVisibility();
  }).length"""


def widths(b, page, planned):
    for width in (390, 768, 1400):
        b.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        b.open(page)
        b.expect(f"{width}: the header fits", not b.js(WIDE), b.js(WIDE))
        for name in ("theme", "print", "words-button", "help-button"):
            x, y, w, h = b.box(f"#{name}")
            b.expect(
                f"{width}: {name} can be reached",
                x >= 0 and x + w <= width and w > 20 and h > 20,
                (x, y, w, h),
            )
        for name in b.js(
            "[...document.querySelectorAll('[role=tab]')].filter((tab) => !tab.disabled).map((tab)"
            " => tab.id.slice(4))"
        ):
            b.js(f"(() => {{ rafter.show('{name}'); }})()")
            b.settle()
            b.driver.execute_async_script("setTimeout(arguments[0], 60)")
            b.expect(
                f"{width}: {name} does not widen the page",
                b.js("document.documentElement.scrollWidth") <= width,
                b.js("document.documentElement.scrollWidth"),
            )
            tall, silent = b.js(TALL), b.js(SILENT)
            b.expect(f"{width}: rows of {name} have at most two lines", not tall, tall[:3])
            b.expect(f"{width}: tables of {name} say that they scroll", silent == 0, silent)
            x, _, w, _ = b.box(f"#tab-{name}")
            b.expect(
                f"{width}: the tab of {name} is in view", x >= -1 and x + w <= width + 1, (x, w)
            )
        b.clean(f"{width} pixels")
    # One width of text, and no empty third to the right.
    b.open(planned, "summary")
    b.settle()
    right = b.js(
        "Math.max(...[...document.querySelectorAll('#panel-summary table, #panel-summary"
        " canvas')].map((node) => node.getBoundingClientRect().right))"
    )
    b.expect("the summary uses the width", right > 1300, right)
    limits = b.js(
        "[...new Set([...document.querySelectorAll('main p, main .sentence, main"
        " .caption')].map((node) => getComputedStyle(node).maxWidth))]"
    )
    b.expect("text has one width", limits == ["860px"], limits)


def tabs(b, page):
    b.open(page)
    grey = b.js(
        "[...document.querySelectorAll('[role=tab]:disabled')].map((tab) => [tab.id.slice(4),"
        " tab.title])"
    )
    b.expect(
        "a plan has no trace, curves, sweep and comparison",
        {name for name, _ in grey} == {"trace", "curves", "sweep", "compare"},
        grey,
    )
    b.expect("grey tabs say why", all(len(title) > 20 for _, title in grey), grey)
    b.find("#tab-summary").click()
    b.find("#tab-trace").click()
    b.expect("a grey tab does nothing", b.js("rafter.state.panel") == "summary")
    b.key("\ue014")  # right
    b.find("#tab-summary").send_keys("\ue014")
    b.settle()
    b.expect(
        "arrows skip grey tabs", b.js("rafter.state.panel") == "memory", b.js("rafter.state.panel")
    )
    b.expect("memory is shown over predicted time", b.js("rafter.state.memory.axis") == "predicted")


def curves(b):
    rows = [
        {
            "step": i,
            "loss": 6.0 - i / 400,
            "val_loss": 6.1 - i / 400 if i % 100 == 0 else None,
            "seconds": 0.05,
            "tokens": 2048 * i,
            "tokens_per_second": 40960,
            "lr": 3e-4,
            "grad_norm": 1,
        }
        for i in range(1, 1052)
    ]
    rows = [{key: value for key, value in row.items() if value is not None} for row in rows]
    b.open(
        b.page(
            {"rafter": "0", "runs": [{"id": "r", "name": "r", "metrics": rows}], "sweeps": []},
            "curves",
        ),
        "curves",
    )
    b.settle()
    charts = b.js(
        """[...document.querySelectorAll('#panel-curves canvas')].map((node) => {
             const {chartArea: area, scales: {x}} = Chart.getChart(node);
             return {left: area.left, height: area.bottom - area.top, max: x.max,
                     ticks: x.ticks.map((tick) => tick.label)};
           })"""
    )
    b.expect(
        "all curves share their left edge",
        len({chart["left"] for chart in charts}) == 1 and len(charts) >= 5,
        [chart["left"] for chart in charts],
    )
    b.expect(
        "the loss is the largest",
        charts[0]["height"] > 300
        and all(chart["height"] < charts[0]["height"] for chart in charts[1:]),
        charts[0],
    )
    b.expect("the axis ends with the data", charts[0]["max"] == 1051, charts[0]["max"])
    b.expect(
        "steps are whole numbers",
        "1,000" in charts[0]["ticks"] and not any("k" in tick for tick in charts[0]["ticks"]),
        charts[0]["ticks"],
    )


def roofline(b, page):
    b.open(page, "roofline")
    b.driver.execute_async_script("setTimeout(arguments[0], 100)")
    for which in ("products", "bytes"):
        state = b.js(f"rafter.state.roofline.{which}")
        boxes, dots = state["labels"], state["dots"]
        b.expect(
            f"{which}: points have labels",
            len(boxes) >= 3 and all("%" in box["text"] for box in boxes),
            boxes[:2],
        )
        apart = (
            lambda p, q: p["x"] >= q["x"] + q["w"]
            or q["x"] >= p["x"] + p["w"]
            or p["y"] >= q["y"] + q["h"]
            or q["y"] >= p["y"] + p["h"]
        )
        b.expect(
            f"{which}: labels do not overlap",
            all(apart(p, q) for p, q in itertools.combinations(boxes, 2)),
            [box["text"] for box in boxes],
        )
        round_box = lambda dot: {
            "x": dot["x"] - dot["r"],
            "y": dot["y"] - dot["r"],
            "w": 2 * dot["r"],
            "h": 2 * dot["r"],
        }
        b.expect(
            f"{which}: labels cover no point",
            all(apart(box, round_box(dot)) for box in boxes for dot in dots),
        )
        b.expect(
            f"{which}: points have sizes",
            max(dot["r"] for dot in dots) > 2 * min(dot["r"] for dot in dots),
            [dot["r"] for dot in dots][:9],
        )
    shown = b.js(
        "(() => { const {x, y} = Chart.getChart(document.querySelector('#panel-roofline"
        " canvas')).scales; return [x.min, x.max, y.min, y.max]; })()"
    )
    data = b.js(
        "Chart.getChart(document.querySelector('#panel-roofline"
        " canvas')).data.datasets.filter((set) => !set.roof).flatMap((set) => set.data.map((at) =>"
        " [at.x, at.y]))"
    )
    peak = b.js("rafter.model.runs[0].plan.machine.ceilings.flops_per_second")
    ridge = peak / b.js("rafter.model.runs[0].plan.machine.ceilings.read_bytes_per_second")
    xs, ys = [ridge, *(x for x, _ in data)], [peak, *(y for _, y in data)]
    b.expect(
        "axes are near data and ceilings",
        shown[0] > min(xs) / 3
        and shown[1] < 3 * max(xs)
        and shown[2] > min(ys) / 3
        and shown[3] < 3 * max(ys),
        (shown, min(xs), max(xs)),
    )


def main():
    b = Browser()
    traced, planned = b.page(models.model(runs=2, steps=2), "traced"), f"{b.folder}/plan.html"
    subprocess.run(
        [
            os.path.abspath(RAFTER),
            "plan",
            "gpt2",
            "--on",
            "a100-80g",
            "--batch",
            "8",
            "--report",
            planned,
        ],
        check=True,
        stdout=subprocess.PIPE,
    )
    b.open(planned)
    numbers(b)
    colours(b)
    widths(b, traced, planned)
    tabs(b, planned)
    curves(b)
    roofline(b, planned)
    b.clean("all of it")
    b.finish()


if __name__ == "__main__":
    main()
