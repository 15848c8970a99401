#!/usr/bin/env python3
"""The trace viewer: zoom, pan, search, filters, selection, details and keys work, and it stays usable with two million spans."""
import sys

import models
from browser import Browser, Keys

VIEW = "({from: rafter.state.trace.from, to: rafter.state.trace.to})"
SPAN = "rafter.state.trace.to - rafter.state.trace.from"


def near(a, b, part=1e-6):
    return abs(a - b) <= part * max(abs(a), abs(b), 1)


def moving(b, x, y):
    """Wheel, drag, keys, minimap."""
    whole = b.js(SPAN)
    under = b.js(f"rafter.traceViewer.timeAt({600})")
    b.wheel(x + 600, y + 120, -300)
    b.expect("the wheel zooms in", near(b.js(SPAN), whole * 2.718281828 ** -0.6, 1e-3), b.js(SPAN) / whole)
    b.expect("the time under the pointer stays there", near(b.js("rafter.traceViewer.timeAt(600)"), under, 1e-3), (b.js("rafter.traceViewer.timeAt(600)"), under))
    before = b.js(VIEW)
    b.drag(x + 700, y + 120, x + 500, y + 120)
    after = b.js(VIEW)
    b.expect("dragging to the left moves to later", after["from"] > before["from"] and near(after["to"] - after["from"], before["to"] - before["from"]))
    b.key("0")
    b.expect("0 shows everything", near(b.js(SPAN), whole))
    for inward, outward in (("+", "-"), ("w", "s")):
        b.key(inward)
        b.expect(f"{inward} zooms in", near(b.js(SPAN), whole / 1.6))
        b.key(outward)
        b.expect(f"{outward} zooms out", near(b.js(SPAN), whole), b.js(SPAN))
    b.key("+", "+")
    before = b.js(VIEW)
    b.key("d")
    b.expect("d moves to later", b.js(VIEW)["from"] > before["from"])
    b.key("a")
    b.expect("a moves back", near(b.js(VIEW)["from"], before["from"], 1e-3))
    b.key(Keys.ARROW_RIGHT)
    b.expect("the arrow moves to later", b.js(VIEW)["from"] > before["from"])
    b.click(x + 200, y + 20)
    b.expect("the overview moves the view", b.js(VIEW)["from"] < before["from"])
    for _ in range(60):
        b.key("+")
    b.expect("zooming in ends", b.js(SPAN) >= 200, b.js(SPAN))
    b.key("f")


def choosing(b, x, y):
    """Clicks, steps from op to op and lane to lane, double clicks, the details."""
    lanes = b.js("rafter.traceViewer.lanes.map((lane) => [lane.row.id, lane.y + lane.row.height / 2])")
    where = dict(lanes)
    at = b.js("(() => { const row = rafter.traceViewer.main; return rafter.traceViewer.xAt((row.begin[2] + row.end[2]) / 2); })()")
    b.click(x + at, y + where["op"])
    name = b.js("rafter.state.trace.selected")
    b.expect("a click shows the op", bool(name) and name in b.js("rafter.traceViewer.details.textContent"), name)
    words = b.js("rafter.traceViewer.details.textContent")
    for word in ("Kernel", "FLOPs", "Bytes", "Predicted", "Measured", "Writes", "f32"):
        b.expect(f"the details say {word}", word in words)
    first = b.js("rafter.traceViewer.selected.i")
    b.key(".")
    b.expect(". goes to the next op", b.js("rafter.traceViewer.selected.i") == first + 1)
    b.key(",")
    b.expect(", goes back", b.js("rafter.traceViewer.selected.i") == first)
    b.key(Keys.ARROW_DOWN)
    b.expect("down goes to the lane below", b.js("rafter.state.trace.selectedRow") == "thread 0", b.js("rafter.state.trace.selectedRow"))
    b.key("z")
    b.expect("z zooms to the op", b.js("rafter.traceViewer.selected.row.begin[rafter.traceViewer.selected.i] > rafter.state.trace.from"))
    b.key(Keys.ESCAPE)
    b.expect("escape clears", b.js("rafter.state.trace.selected") is None)
    b.key("0")
    rows = b.js("[...rafter.traceViewer.details.querySelectorAll('tbody tr')].map((row) => row.children[0].textContent)")
    late = b.js("""(() => {
      const {main, trace: {things}} = rafter.traceViewer, late = {};
      for (let i = 0; i < main.count; i++) late[things.title[main.key[i]]] = (late[things.title[main.key[i]]] || 0) + main.end[i] - main.begin[i] - 1e9 * things.op[main.key[i]].seconds;
      return Object.entries(late).sort((a, b) => b[1] - a[1]).slice(0, 8).map(([name]) => name);
    })()""")
    b.expect("without a selection it lists the ops furthest above their prediction", rows == late, (rows, late))
    b.js("rafter.traceViewer.details.querySelector('tbody tr').click()")
    b.expect("and a row of it leads to the op", b.js("rafter.state.trace.selected") == late[0])
    b.key(Keys.ESCAPE, "0")
    gap = b.js("(() => { const viewer = rafter.traceViewer, row = viewer.trace.rows.find((one) => one.id === 'thread 1');"
               "for (let i = 0; i < row.count; i++) if (viewer.trace.things.paints[viewer.trace.things.paint[row.key[i]]].id.startsWith('gap-')) { viewer.select({row, i}); break; }"
               "return viewer.details.textContent; })()")
    b.expect("a gap shows its cause", "waits for the others" in gap, gap)


def from_the_tab(b):
    """A panel gets its keys also while its tab has the focus. The arrow keys belong to the tab."""
    b.find("#tab-memory").click()
    b.find("#tab-trace").click()
    b.settle()
    whole = b.js(SPAN)
    b.key("+")
    b.expect("keys work after a click on the tab", near(b.js(SPAN), whole / 1.6), b.js(SPAN) / whole)
    view = b.js(VIEW)
    b.key(Keys.ARROW_RIGHT)
    b.expect("the tab's arrow goes to the next panel and moves no view", b.js("rafter.state.panel") == "memory" and b.js(VIEW) == view, b.js("rafter.state.panel"))
    b.key(Keys.ARROW_LEFT)
    b.key("/")
    b.expect("/ goes to the search from there", b.js("document.activeElement.id") == "trace-search")
    b.key(Keys.ESCAPE)


def searching(b):
    b.key("/")
    b.expect("/ goes to the search", b.js("document.activeElement.id") == "trace-search")
    b.key("MLP/UP")
    matches = b.js("rafter.state.trace.matches")
    named = b.js("(() => { const viewer = rafter.traceViewer; let count = 0; for (let i = 0; i < viewer.main.count; i++)"
                 "count += viewer.trace.things.title[viewer.main.key[i]].includes('mlp/up'); return count; })()")
    b.expect("a search finds ops by a part of their name, in any case", matches == named > 0, (matches, named))
    b.expect("the rest is dimmed", b.js("rafter.traceViewer.trace.things.shown.filter((paint) => paint === rafter.traceViewer.trace.things.dim).length") > 10)
    b.key(Keys.ENTER)
    one = b.js("rafter.traceViewer.selected.i")
    b.expect("enter goes to a match", "mlp/up" in b.js("rafter.state.trace.selected"))
    b.key("n")
    b.settle()
    two = b.js("rafter.traceViewer.selected.i")
    b.expect("n goes to the next", two > one and "mlp/up" in b.js("rafter.state.trace.selected"), (one, two))
    b.find(".trace canvas").send_keys("N")
    b.settle()
    b.expect("N goes back", b.js("rafter.traceViewer.selected.i") == one)
    b.js("(rafter.traceViewer.find('no such op'), rafter.traceViewer.next(1))")
    b.expect("an empty search result is shown", "nothing" in b.js("document.querySelector('#trace-search').parentNode.textContent"))
    b.js("rafter.traceViewer.find('')")
    b.find("[data-paint='attention']").click()
    b.settle()
    b.expect("a class can be shown alone", b.js("rafter.state.trace.only") == ["attention"] and b.find("[data-paint='attention']").get_attribute("aria-pressed") == "true")
    b.expect("others are dimmed", b.js("rafter.traceViewer.trace.things.shown[rafter.traceViewer.main.key[2]] === rafter.traceViewer.trace.things.dim"))
    b.find("[data-paint='attention']").click()
    b.expect("and not alone again", b.js("rafter.state.trace.only") == [])


def colouring(b):
    b.key("c")
    b.expect("c colours by measured / predicted", b.js("rafter.state.trace.colouring") == "ratio")
    wrong = b.js("""(() => {
      const viewer = rafter.traceViewer, {things} = viewer.trace, row = viewer.main, took = {}, runs = {};
      for (let i = 0; i < row.count; i++) { const key = row.key[i]; took[key] = (took[key] || 0) + row.end[i] - row.begin[i]; runs[key] = (runs[key] || 0) + 1; }
      const right = (ratio) => ratio <= 0.8 ? 'r0' : ratio <= 1.25 ? 'r1' : ratio <= 2 ? 'r2' : ratio <= 4 ? 'r3' : 'r4';
      return Object.keys(took).filter((key) => things.paints[things.shown[key]].colour !== right(took[key] / (1e9 * things.op[key].seconds * runs[key]))).length;
    })()""")
    b.expect("each op has the colour of its ratio", wrong == 0, wrong)
    b.expect("the legend says what colours mean", "predicted" in b.js("rafter.traceViewer.legend.textContent"))
    b.key("c")
    b.expect("c colours by class again", b.js("rafter.state.trace.colouring") == "class" and "attention" in b.js("rafter.traceViewer.legend.textContent"))


def aligning(b):
    b.expect("predictions are above their ops", b.js("rafter.state.trace.aligned") is True)
    wrong = b.js("""(() => {
      const viewer = rafter.traceViewer, ops = viewer.main, row = viewer.lanes.find((lane) => lane.row.kind === 'predicted').row;
      if (row.count !== ops.count) return 'count';
      for (let i = 0; i < ops.count; i++) {
        const length = Math.floor(viewer.run.plan.ops[viewer.trace.columns.id[ops.event[i]]].seconds * 1e9), room = i + 1 < ops.count ? ops.begin[i + 1] - ops.begin[i] : Infinity;
        if (row.begin[i] !== ops.begin[i] || Math.abs(row.end[i] - row.begin[i] - Math.min(length, room)) > 1) return i;
      }
      return -1;
    })()""")
    b.expect("as long as predicted, or until the next op", wrong == -1, wrong)
    b.js("rafter.traceViewer.select({row: rafter.traceViewer.lanes.find((lane) => lane.row.kind === 'predicted').row, i: 5})")
    b.expect("a prediction says it is one", "Lane" in b.js("rafter.traceViewer.details.textContent") and "This thread" not in b.js("rafter.traceViewer.details.textContent"))
    b.key("p")
    b.expect("p puts them end to end", b.js("rafter.state.trace.aligned") is False)
    wrong = b.js("""(() => {
      const {columns, header, predicted} = rafter.traceViewer.trace, rows = predicted.inOrder, spans = rows.flatMap((row) => Array.from({length: row.count}, (_, i) => [row.event[i], row.begin[i], row.end[i]])).sort((a, b) => a[0] - b[0]);
      let at = 0, step = 0;
      for (const [event, begin, end] of spans) {
        for (; step < header.steps.length && columns.begin[event] >= header.steps[step].begin; step++) at = header.steps[step].begin;
        if (Math.abs(begin - at) > 1 || Math.abs(end - begin - columns.end[event] + columns.begin[event]) > 1) return event;
        at = end;
      }
      return rafter.traceViewer.lanes.filter((lane) => lane.row.kind === 'predicted').length === rows.length ? -1 : 'lanes';
    })()""")
    b.expect("from each step's begin, as long as predicted", wrong == -1, wrong)
    b.key("p")
    b.expect("p puts them above their ops again", b.js("rafter.state.trace.aligned") is True)
    b.key(Keys.ESCAPE)


def beyond(b):
    """Outside the steps, the viewer shows the rest of the record; key 0 shows the steps again."""
    model = models.model(steps=4)
    for i, step in enumerate(model["runs"][0]["trace"]["header"]["steps"]):
        step["whole"] = i in (1, 2)
    b.open(b.page(model, "beyond"), "trace")
    whole = b.js("rafter.traceViewer.wholes")
    b.expect("the steps at first", b.js("[rafter.state.trace.from, rafter.state.trace.to]") == whole[0], whole)
    b.key("-", "-", "-", "-")
    b.expect("zooming out shows the rest", b.js("rafter.state.trace.from") <= whole[1][0] and b.js("rafter.state.trace.to") >= whole[1][1], whole)
    b.expect("in the overview, too", b.js("rafter.traceViewer.whole") == whole[1])
    b.key("0")
    b.expect("0 shows the steps again", b.js("[rafter.state.trace.from, rafter.state.trace.to]") == whole[0] == b.js("rafter.traceViewer.whole"))
    b.clean("beyond the steps")


def scrolling(b):
    b.scrolls_by(".trace canvas", SPAN)
    b.key(Keys.ESCAPE, "0")
    b.js("window.scrollTo(0, 0)")


def to_memory_and_back(b):
    """From one execution of an op to the tensors alive during it, and back to the same execution; from another instant to the first execution of its op."""
    b.js("(() => { const v = rafter.traceViewer; v.select({row: v.main, i: v.main.count - 7}); })()")
    name, i = b.js("rafter.state.trace.selected"), b.js("rafter.traceViewer.selected.i")
    op = next(one for one in b.js("rafter.traceViewer.run.plan.ops") if one["name"] == name)
    b.find("[data-link='memory']").click()
    b.wait("rafter.state.panel === 'memory'")
    b.settle()
    now = b.js("rafter.state.memory.instant")
    b.expect("the memory panel shows the op's instant", now["op"] == op["id"] and now["name"] == name, (now, name))
    # bytes as laid out, in whole lines
    held = sum(one["bytes"] for one in b.js("rafter.traceViewer.run.plan.tensors") if one["first"] + ("shares" in one) <= op["id"] <= one["last"])
    b.expect("with the live tensors of that instant", now["bytes"] == held >= op["live_bytes"], (now, held, op["live_bytes"]))
    b.find("[data-link='trace']").click()
    b.wait("rafter.state.panel === 'trace'")
    b.settle()
    b.expect("and back to the same execution", b.js("rafter.traceViewer.selected.i") == i and b.js("rafter.state.trace.selected") == name, b.js("rafter.state.trace.selected"))
    b.key("m")
    b.wait("rafter.state.panel === 'memory'")
    b.js("document.querySelector('#panel-memory [data-value=ops]').click()")
    b.key("0", "+", "+", "+", "p")
    b.js(f"rafter.memoryPanel.choose(rafter.traceViewer.run.plan, rafter.traceViewer.run.plan.ops[3])")
    b.settle()
    view = b.js("rafter.state.memory.view")
    b.expect("an instant outside the view is brought into view", view["x0"] <= 3 < view["x1"], view)
    b.key("t")
    b.wait("rafter.state.panel === 'trace'")
    b.settle()
    name = b.js("rafter.traceViewer.run.plan.ops[3].name")
    b.expect("another instant's op is found in the trace", b.js("rafter.state.trace.selected") == name, b.js("rafter.state.trace.selected"))
    inside = b.js("(() => { const {row, i} = rafter.traceViewer.selected; return row.begin[i] >= rafter.state.trace.from && row.end[i] <= rafter.state.trace.to; })()")
    b.expect("and is in view", inside)
    b.key(Keys.ESCAPE, "0")


def many(b):
    """More steps than buttons, with spans of the first steps lost: the page lists the complete steps and shows them first."""
    model = models.model(steps=30)
    for step in model["runs"][0]["trace"]["header"]["steps"][:5]:
        step["whole"] = False
        del step["gaps"], step["work"]
    b.open(b.page(model, "many"), "trace")
    b.expect("the first whole step begins the view", b.js("rafter.state.trace.from === rafter.model.runs[0].trace.header.steps[5].begin"))
    b.expect("whole steps can be chosen", b.js("document.querySelectorAll('#panel-trace .bar select option').length") == 26)
    b.driver.execute_script("const list = document.querySelector('#panel-trace .bar select'); list.value = 3; list.dispatchEvent(new Event('change'))")
    b.expect("one is shown", b.js("(() => { const step = rafter.model.runs[0].trace.header.steps[8], view = rafter.state.trace; return Math.abs(view.from - step.begin) < 1 && Math.abs(view.to - step.end) < 1; })()"))
    b.clean("many steps")


def faster(b):
    """Ops that took less than predicted: predictions of a step extend into the next step, and still find their ops."""
    b.open(b.page(models.model(steps=4, pace=0.3), "faster"), "trace")
    b.expect("predictions that overlap have rows of their own", b.js("rafter.traceViewer.trace.predicted.inOrder.length") > 1)
    b.expect("those that overlap the next op say so", b.js("rafter.traceViewer.trace.predicted.atOps[0].cut.some((one) => one)"))
    aligning(b)
    b.clean("a run that was faster than predicted")


def broken(b):
    """A truncated or edited page may contain a trace that the program would refuse. Its panel says so, and the other panels work."""
    for what, change in {"columns cut": {"columns": models.trace(models.plan(), 1)["columns"][:400]}, "no columns": {"columns": ""}, "no gzip": {"columns": "AAAA"},
                         "a header of nothing": {"header": {}}, "more spans than there are": {"more": 1}}.items():
        model = models.model(steps=1)
        trace = model["runs"][0]["trace"]
        trace["header"]["count"] += change.pop("more", 0)
        trace.update(change)
        b.open(b.page(model, "broken"), "memory")
        b.expect(f"{what}: the trace's panel says that it cannot be drawn", "could not be drawn" in b.js("document.querySelector('#panel-trace .body').textContent"))
        b.expect(f"{what}: only this panel fails", len(b.js("rafter.state.errors")) == 1 and b.js("document.querySelectorAll('#panel-memory canvas').length") > 0, b.js("rafter.state.errors"))
        b.console()  # the console shows it too


def selecting(b, x, y):
    b.key("0")
    b.drag(x + 300, y + 150, x + 800, y + 150, modifiers=8)
    chosen = b.js("rafter.state.trace.selection")
    ends = b.js("[rafter.traceViewer.timeAt(300), rafter.traceViewer.timeAt(800)]")
    b.expect("shift and drag selects", chosen and near(chosen[0], ends[0], 1e-3) and near(chosen[1], ends[1], 1e-3), (chosen, ends))
    b.wait("rafter.state.trace.sums && Math.abs(rafter.state.trace.sums.range - (rafter.state.trace.selection[1] - rafter.state.trace.selection[0])) < 1")
    slow = b.js("""(() => {
      const viewer = rafter.traceViewer, [a, b] = rafter.state.trace.selection, things = viewer.trace.things, sums = {}, lanes = {};
      const names = viewer.trace.header.kinds, c = viewer.trace.columns;
      for (let i = 0; i < viewer.trace.header.count; i++) {
        const cut = Math.min(b, c.end[i]) - Math.max(a, c.begin[i]), kind = names[c.kind[i]];
        if (cut <= 0) continue;
        if (kind === 'op') { const id = rafter.opClass(viewer.run.plan.ops[c.id[i]].op).id; sums[id] = (sums[id] || 0) + cut; }
        const id = `thread ${c.lane[i]}`, own = c.lane[i] === 0; /* the run's own thread is held by ops, others by their parts of them */
        if (kind === (own ? 'op' : 'busy')) lanes[id] = (lanes[id] || 0) + cut;
        if (kind === 'wait' || (own && kind === 'gap' && viewer.trace.header.gaps[c.id[i]] === 'wait')) lanes[id] -= cut; /* other gaps are inside waits */
      }
      let inside = 0; /* of each step as much as of it lies in the range, from the lanes by what they worked */
      for (const step of viewer.trace.header.steps) inside += 1e9 * step.gaps[1].reduce((all, one) => all + one, 0) * Math.max(0, Math.min(b, step.end) - Math.max(a, step.begin)) / (step.end - step.begin);
      const worked = Object.values(lanes).reduce((all, one) => all + one, 0);
      for (const id of Object.keys(lanes)) lanes[id] *= 1 - inside / worked;
      let beside = b - a;
      for (const step of viewer.trace.header.steps) beside -= Math.max(0, Math.min(b, step.end) - Math.max(a, step.begin));
      return {sums, lanes, inside, beside};
    })()""")
    fast = b.js("rafter.state.trace.sums")
    b.expect("the sums of a selection are those of a slow look at every span", set(slow["sums"]) == set(fast["classes"]) and
             all(near(fast["classes"][name], value, 1e-5) for name, value in slow["sums"].items()), (slow["sums"], fast["classes"]))
    b.expect("the time between steps is shown", near(slow["beside"], fast["beside"], 1e-5), (slow["beside"], fast["beside"]))
    b.expect("time lost inside ops does not count as work", slow["inside"] > 0 and fast["gaps"]["other threads"] >= 0.999 * slow["inside"], fast["gaps"])
    b.expect("and so are the lanes'", all(near(fast["lanes"][name], value, 1e-4) for name, value in slow["lanes"].items()), (slow["lanes"], fast["lanes"]))
    b.key("z")
    b.expect("z zooms to the selection", near(b.js(SPAN), chosen[1] - chosen[0], 1e-3))
    b.key(Keys.ESCAPE)
    b.expect("escape clears the selection", b.js("rafter.state.trace.selection") is None)


def pixels(b):
    """The drawing by sums equals, pixel by pixel, a slow evaluation of every span."""
    worst = b.js("""(() => {
      const viewer = rafter.traceViewer, things = viewer.trace.things;
      let worst = 0;
      for (const row of viewer.trace.rows) for (let trial = 0; trial < 40; trial++) {
        const width = (viewer.trace.to - viewer.trace.from) * Math.pow(0.5, trial % 12), a = viewer.trace.from + width * ((trial * 0.37) % 1), b = a + width;
        const fast = new Float64Array(things.paints.length), slow = new Float64Array(things.paints.length);
        row.sumTime(things, a, b, fast);
        for (let i = 0; i < row.count; i++) slow[things.shown[row.key[i]]] += Math.max(0, Math.min(b, row.end[i]) - Math.max(a, row.begin[i]));
        for (let p = 0; p < fast.length; p++) worst = Math.max(worst, Math.abs(fast[p] - slow[p]) / width);
      }
      return worst;
    })()""")
    # f32 sums of 64 spans: 64 * 2^-24 of the width, and rounding
    b.expect("sums over blocks are the sums of spans", worst < 1e-5, worst)


def innermost(b):
    """At every time, a thread's row shows the innermost span. No two overlap, and each nanosecond of a span belongs to the span itself or to a span inside it."""
    wrong = b.js("""(() => {
      const {trace} = rafter.traceViewer, c = trace.columns, names = trace.header.kinds, wrong = [];
      for (const row of trace.rows.filter((one) => one.kind === 'thread')) {
        for (let i = 1; i < row.count; i++) if (row.begin[i] < row.end[i - 1] || row.end[i] <= row.begin[i]) wrong.push([row.id, i]);
        const own = [...c.begin.keys()].filter((i) => c.lane[i] === Number(row.id.slice(7)) && ['op', 'busy', 'wait', 'gap'].includes(names[c.kind[i]]));
        for (let trial = 0; trial < 400; trial++) {
          const span = own[(trial * 7919) % own.length], time = c.begin[span] + ((trial * 0.618) % 1) * (c.end[span] - c.begin[span]) + 0.25;
          let inner = -1; /* the shortest that is open */
          for (const i of own) if (c.begin[i] <= time && time < c.end[i] && (inner < 0 || c.end[i] - c.begin[i] <= c.end[inner] - c.begin[inner])) inner = i;
          const at = row.at(time);
          if (inner >= 0 && (at < 0 || row.event[at] !== inner)) wrong.push([row.id, time, inner, at]);
        }
      }
      return wrong.slice(0, 5);
    })()""")
    b.expect("threads show the innermost span", not wrong, wrong)


def large(b, steps):
    """Two million spans."""
    model = models.model(steps=steps)
    count = model["runs"][0]["trace"]["header"]["count"]
    page = b.page(model, "large")
    seconds = b.open(page, "trace")
    x, y, width, _ = b.box(".trace canvas")
    b.expect("all spans are present", b.js("rafter.state.trace.events") == count and (steps < 2010 or count >= 2_000_000), count)
    b.settle()
    frames, drawn = [], []
    for i in range(24):
        b.wheel(x + 700, y + 120, -250 if i < 14 else 250)
        frames.append(b.js("rafter.state.trace.frameSeconds"))
        drawn.append(b.js("rafter.state.trace.drawn"))
    for _ in range(8):
        b.key("d")
        frames.append(b.js("rafter.state.trace.frameSeconds"))
        drawn.append(b.js("rafter.state.trace.drawn"))
    b.key("0")
    hidden = b.js("""(() => {
      const viewer = rafter.traceViewer, {things} = viewer.trace, ratio = viewer.view.node.width / viewer.view.width, wrong = [], {data, width} = viewer.view.context.getImageData(0, 0, viewer.view.node.width, viewer.view.node.height);
      const gaps = things.paints.filter((paint) => paint.id.startsWith('gap-')).map((paint) => rafter.colour(paint.colour));
      for (const {row, y} of viewer.lanes.filter((lane) => lane.row.kind === 'thread')) for (let x = viewer.gutter + 3; x < viewer.view.width - 3; x += 17) {
        const sums = new Float64Array(things.paints.length);
        row.sumTime(things, viewer.timeAt(x), viewer.timeAt(x + 1), sums);
        const work = sums.reduce((all, sum, paint) => all + (things.paints[paint].id.startsWith('gap-') ? 0 : sum), 0);
        const at = 4 * (Math.floor((x + 0.5) * ratio) + width * Math.floor((y + row.height - 1.5) * ratio));
        const colour = '#' + [...data.slice(at, at + 3)].map((one) => one.toString(16).padStart(2, '0')).join('');
        if (work > 0.2 * (viewer.timeAt(x + 1) - viewer.timeAt(x)) && gaps.includes(colour)) wrong.push([row.id, x, colour]);
      }
      return wrong;
    })()""")
    b.expect("work is visible next to waiting in the same pixels", not hidden, hidden[:3])
    search = b.js("(() => { const start = performance.now(); rafter.traceViewer.find('mlp'); rafter.traceViewer.view.drawNow(); return (performance.now() - start) / 1e3; })()")
    rows = b.js("rafter.traceViewer.trace.rows.length")
    frames.sort()
    print(f"{count} spans: page ready after {seconds:.2f} s; a frame takes {1e3 * frames[len(frames) // 2]:.1f} ms (median) and {1e3 * frames[-1]:.1f} ms at most, "
          f"a search {1e3 * search:.0f} ms; at most {max(drawn)} rectangles a frame")
    # Each lane draws at most two rectangles per pixel, or two spans with labels: the width is the
    # limit, not the number of spans.
    b.expect("the drawing is bounded by the pixels", max(drawn) <= 4 * width * rows, (max(drawn), rows))
    b.clean("two million spans")


def main():
    b = Browser()
    b.open(b.page(models.model(runs=2, steps=4)), "trace")
    b.clean("a trace")
    x, y, _, _ = b.box(".trace canvas")
    first = b.js("rafter.model.runs[0].trace.header.steps[0].begin")
    b.expect("the requested steps are shown at first", b.js("rafter.state.trace.from") == first)
    b.key("0")
    b.expect("0 again: the whole record", b.js("rafter.state.trace.from === rafter.traceViewer.trace.from && rafter.state.trace.to === rafter.traceViewer.trace.to"))
    b.key("0")
    moving(b, x, y)
    choosing(b, x, y)
    searching(b)
    colouring(b)
    aligning(b)
    selecting(b, x, y)
    pixels(b)
    innermost(b)
    from_the_tab(b)
    scrolling(b)
    to_memory_and_back(b)
    b.js("rafter.chooseRun(1)")
    b.wait("rafter.state.ready && rafter.state.run === 1")
    b.expect("another run's trace is shown", b.js("rafter.traceViewer.run === rafter.model.runs[1]"))
    b.clean("after all that")
    many(b)
    faster(b)
    beyond(b)
    broken(b)
    large(b, int(sys.argv[1]) if len(sys.argv) > 1 else 2010)
    b.finish()


if __name__ == "__main__":
    main()
