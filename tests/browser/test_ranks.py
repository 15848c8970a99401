#!/usr/bin/env python3
"""A run on several ranks: a lane for each rank with the causes of its waits, which opens to the lanes of
its threads; tables of ranks; idle time of pipeline stages."""

import rank_models
from browser import Browser, Keys

ROWS = "rafter.traceViewer.trace.rows.map((row) => row.id)"


def middle(b, id):
    """The y of a row's middle in the picture."""
    return b.js(
        f"(() => {{ const lane = rafter.traceViewer.lanes.find((one) => one.row.id === '{id}');"
        "return lane.y + lane.row.height / 2; })()"
    )


def lanes(b):
    b.expect(
        "a lane for each rank",
        [row for row in b.js(ROWS) if row in ("rank 0", "rank 1", "rank 2")]
        == ["rank 0", "rank 1", "rank 2"],
        b.js(ROWS),
    )
    b.expect(
        "the lanes of rank 0 are open",
        "rank 0 op" in b.js(ROWS) and "rank 0 thread 1" in b.js(ROWS) and "rank 1 op" not in b.js(ROWS),
        b.js(ROWS),
    )
    height = b.box(".trace canvas")[3]
    x, y, _, _ = b.box(".trace canvas")
    b.click(x + 60, y + middle(b, "rank 1"))
    b.expect(
        "a click on a name opens the rank",
        "rank 1 thread 1" in b.js(ROWS) and b.js("rafter.state.trace.open") == [0, 1],
        b.js("rafter.state.trace.open"),
    )
    b.expect(
        "the picture is higher", b.box(".trace canvas")[3] > height + 80, (b.box(".trace canvas")[3], height)
    )
    b.expect(
        "the rank's button is pressed",
        b.find("[data-rank='1']").get_attribute("aria-pressed") == "true"
        and b.find("[data-rank='2']").get_attribute("aria-pressed") == "false",
    )
    b.click(x + 60, y + middle(b, "rank 1"))
    b.expect(
        "another click closes it",
        "rank 1 op" not in b.js(ROWS) and abs(b.box(".trace canvas")[3] - height) < 1,
        b.box(".trace canvas")[3],
    )
    b.find("[data-rank='2']").click()
    b.settle()
    b.expect("a button opens it, too", "rank 2 op" in b.js(ROWS) and b.js("rafter.state.trace.rank") == 2)
    b.find(".trace canvas").send_keys("r")
    b.settle()
    b.expect("r closes the rank", "rank 2 op" not in b.js(ROWS))
    b.key("R")
    b.expect("R opens all", all(f"rank {rank} thread 0" in b.js(ROWS) for rank in range(3)), b.js(ROWS))
    b.key("R")
    b.expect("R closes all", not any("op" in row for row in b.js(ROWS)), b.js(ROWS))
    b.key("R")


def causes(b):
    """The waits of a rank lane, and their texts."""
    found = b.js("""(() => {
      const viewer = rafter.traceViewer, {things, columns, header} = viewer.trace, sums = {};
      for (const rank of viewer.trace.ranks) {
        const row = rank.lane;
        for (let i = 0; i < row.count; i++) {
          const title = things.title[row.key[i]], key = `${rank.rank} ${title}`;
          if (header.gaps.includes(title)) sums[key] = (sums[key] || 0) + row.end[i] - row.begin[i];
        }
      }
      return sums;
    })()""")
    b.expect(
        "the lanes of the other ranks show waits for the slow one",
        found.get("0 slow rank", 0) > 1000
        and found.get("1 slow rank", 0) > 1000
        and "2 slow rank" not in found,
        found,
    )
    b.expect("all wait for the network", all(found.get(f"{rank} network", 0) > 0 for rank in range(3)), found)
    text = b.js("""(() => {
      const viewer = rafter.traceViewer, row = viewer.trace.ranks[1].lane, {things} = viewer.trace;
      viewer.select({row, i: [...row.key].findIndex((key) => things.title[key] === 'slow rank')});
      return viewer.details.textContent;
    })()""")
    b.expect("a wait names the rank", "It waits for rank 2 (node-2)." in text, text)
    b.wait("!rafter.traceViewer.sums.textContent.includes('of rank 2')", 5)
    b.expect(
        "its rank is the one of the sums",
        b.js("rafter.state.trace.rank") == 1
        and "of rank 1 (node-1)" in b.js("rafter.traceViewer.sums.textContent"),
        b.js("rafter.traceViewer.sums.textContent"),
    )
    b.expect(
        "and of the causes",
        "threads of rank 1 (node-1)" in b.js("rafter.traceViewer.causes.textContent"),
        b.js("rafter.traceViewer.causes.textContent"),
    )
    b.expect(
        "the causes are explained",
        "another rank has not begun it" in b.js("rafter.traceViewer.causes.textContent"),
    )
    exchange = b.js(
        "(() => { const {things, ranks} = rafter.traceViewer.trace;"
        "return [...ranks[1].lane.key].some((key) => things.paints[things.paint[key]].id === 'exchange'); })()"
    )
    b.expect(
        "exchanges have a colour of their own",
        exchange and "exchange between chips" in b.js("rafter.traceViewer.legend.textContent"),
    )
    b.key(Keys.ESCAPE)


def moving(b):
    """Keys go from rank to rank; a search and a range belong to the rank."""
    b.js("(() => { const v = rafter.traceViewer; v.select({row: v.trace.ranks[2].main, i: 1}); })()")
    b.expect("an op of a closed rank opens it", "rank 2 op" in b.js(ROWS))
    b.key(Keys.ARROW_DOWN)
    b.expect(
        "down goes to its threads",
        b.js("rafter.state.trace.selectedRow") == "rank 2 thread 0",
        b.js("rafter.state.trace.selectedRow"),
    )
    b.js("rafter.traceViewer.find('mlp/up')")
    one = b.js("rafter.state.trace.matches")
    named = b.js(
        "(() => { const {main, trace: {things}} = rafter.traceViewer;"
        "return [...main.key].filter((key) => things.title[key].includes('mlp/up')).length; })()"
    )
    b.expect("matches are those of the rank", one == named > 0, (one, named))
    b.js("rafter.traceViewer.next(1)")
    b.expect("the next match is in its lane", b.js("rafter.state.trace.selectedRow") == "rank 2 op")
    b.js("rafter.traceViewer.find('')")
    b.key("v")
    b.wait("rafter.state.trace.sums && 'rank 2 thread 0' in rafter.state.trace.sums.lanes", 5)
    b.expect(
        "the sums have the threads of the rank",
        sorted(b.js("rafter.state.trace.sums.lanes")) == ["rank 2 thread 0", "rank 2 thread 1"],
        b.js("rafter.state.trace.sums.lanes"),
    )
    b.key(Keys.ESCAPE)


def tables(b, model):
    trace = b.js("rafter.state.trace.ranks")
    said = model["runs"][0]["trace"]["header"]["ranks"]
    for row, rank in zip(trace, said):
        steps, threads = rank["steps"], rank["threads"]
        slow = sum(step["gaps"][0][rank_models.LATE] for step in steps) / len(steps) / threads
        b.expect(
            "the trace's table has the waits of a rank",
            abs(row["slow"] - slow) < 1e-12 + 1e-9 * slow,
            (row, slow),
        )
    b.expect(
        "and the error of its clock",
        "± 4.00 us" in b.js("document.querySelector('#panel-trace').textContent"),
    )
    b.find("#tab-summary").click()
    b.settle()
    text = b.js("document.querySelector('#summary-ranks').textContent")
    b.expect(
        "the summary has a table of ranks",
        b.js("rafter.state.rankTable") == {"rows": 3, "slowest": 2},
        b.js("rafter.state.rankTable"),
    )
    for word in (
        "node-1",
        "Own work",
        "Waits for slower ranks",
        "Waits for the network",
        "Allocated bytes",
        "123,456,789",
        "Rank 2 is slow",
        "2 (slow)",
    ):
        b.expect(f"it says {word}", word in text, text)


def stages(b):
    """The idle time of pipeline stages: measured below predicted."""
    model = rank_models.rank_model(2, options=("--mesh", "pipeline=2", "--accumulate", "2"))
    for rank in model["runs"][0]["trace"]["header"]["ranks"]:
        rank.update(
            stage=rank["rank"],
            bubble={
                "steps": 2,
                "seconds": 0.05,
                "busy_seconds": 0.038,
                "idle_seconds": 0.012,
                "fill_seconds": 0.005,
                "drain_seconds": 0.004,
                "transfers": 3,
            },
        )
    b.open(b.page(model, "stages"), "memory")
    rows = b.js("rafter.state.stages")
    b.expect(
        "each stage has two rows",
        [(row["stage"], row["of"]) for row in rows]
        == [(0, "predicted"), (0, "measured"), (1, "predicted"), (1, "measured")],
        rows,
    )
    b.expect(
        "the measured one has the measured times",
        rows[1]["idle"] == 0.012
        and rows[1]["busy"] == 0.038
        and rows[0]["idle"] == model["runs"][0]["plan"]["pipeline"]["stage"][0]["idle_seconds"],
        rows,
    )
    text = b.js("document.querySelector('#panel-memory').textContent")
    b.expect("the table shows them", "12.0 ms" in text and "24 %" in text and "measured" in text, text[:600])
    b.clean("stages")
    del model["runs"][0]["trace"]
    b.open(b.page(model, "planned"), "memory")
    b.expect(
        "a plan has only predicted rows",
        [row["of"] for row in b.js("rafter.state.stages")] == ["predicted", "predicted"],
        b.js("rafter.state.stages"),
    )


def narrow(b, page):
    """At 390 pixels, no panel is wider than the window, and ranks can be opened."""
    b.command("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=False)
    for panel in ("trace", "summary"):
        b.open(page, panel)
        b.settle()
        b.expect(
            f"{panel} fits 390 pixels",
            b.js("document.documentElement.scrollWidth") <= 390,
            b.js("document.documentElement.scrollWidth"),
        )
    b.open(page, "trace")
    b.find("[data-rank='1']").click()
    b.settle()
    b.expect("a rank opens", "rank 1 op" in b.js(ROWS))
    b.command("Emulation.setDeviceMetricsOverride", width=1400, height=900, deviceScaleFactor=1, mobile=False)


def many(b):
    """Many ranks have a list in place of buttons."""
    b.open(b.page(rank_models.rank_model(20, steps=1, threads=1), "many"), "trace")
    b.expect("there is a lane for each rank", len([row for row in b.js(ROWS) if row.count(" ") == 1]) == 20)
    b.driver.execute_script(
        "const list = document.querySelector('#panel-trace select[aria-label=\"Open a rank\"]');"
        "list.value = 17; list.dispatchEvent(new Event('change'))"
    )
    b.settle()
    b.expect("the list opens a rank", "rank 17 op" in b.js(ROWS) and b.js("rafter.state.trace.rank") == 17)
    b.clean("many ranks")


def main():
    b = Browser()
    model = rank_models.rank_model()
    page = b.page(model, "ranks")
    b.open(page, "trace")
    lanes(b)
    causes(b)
    moving(b)
    tables(b, model)
    b.clean("ranks")
    stages(b)
    many(b)
    narrow(b, page)
    b.scheme("dark")
    b.open(page, "trace")
    b.clean("dark")
    b.finish()


if __name__ == "__main__":
    main()
