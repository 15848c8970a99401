#!/usr/bin/env python3
"""The frame of the page: tabs by mouse and keys, light and dark, names for screen readers, print, hostile names, incomplete models."""
import base64

import models
from browser import Browser, Keys

HOSTILE = ["</script><script>window.broken = 1</script>", "<img src=x onerror='window.broken = 1'>", "\u2028\u2029", "\"'`${window.broken = 1}", "<!--<script>", "a" * 4000, "\u202eevil"]

# Elements that can take the focus and are visible.
REACHABLE = """[...document.querySelectorAll('a[href], button, input, select, summary, canvas[tabindex], [tabindex]')]
  .filter((node) => node.tabIndex >= 0 && !node.disabled && node.checkVisibility({visibilityProperty: true}) && !node.closest('dialog:not([open])'))"""
NAMELESS = f"""{REACHABLE}.filter((node) => !(node.getAttribute('aria-label') || node.getAttribute('aria-labelledby') || node.textContent.trim()
  || (node.labels && [...node.labels].some((label) => label.textContent.trim())) || node.title)).map((node) => node.outerHTML.slice(0, 120))"""
CONTRAST = """(() => {
  const light = (colour) => [0, 1, 2].map((i) => parseInt(colour.slice(1 + 2 * i, 3 + 2 * i), 16) / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const worst = {};
  for (const text of ['ink', 'muted', 'accent', 'fault']) for (const below of ['paper', 'raised']) {
    const [a, b] = [light(rafter.colour(text)), light(rafter.colour(below))];
    worst[`${text} on ${below}`] = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }
  return worst;
})()"""


def readable(b, scheme):
    for pair, ratio in b.js(CONTRAST).items():
        b.expect(f"{scheme}: {pair} can be read (WCAG AA)", ratio >= 4.5, ratio)


def reached_by_tab(b):
    """The tabulator key reaches every control of the page, and no control keeps the focus."""
    wanted = b.js(f"{REACHABLE}.length")
    b.js("document.activeElement.blur()")
    seen = set()
    for _ in range(3 * wanted + 10):
        b.key(Keys.TAB)
        at = b.js(f"{REACHABLE}.indexOf(document.activeElement)")
        if at in seen and len(seen) >= wanted:
            break
        if at >= 0:
            seen.add(at)
    missed = [b.js(f"{REACHABLE}[{i}].outerHTML.slice(0, 100)") for i in range(wanted) if i not in seen]
    b.expect("every control is reached by tab", not missed, missed[:4])


def frame(b, page):
    b.open(page)
    b.clean("two runs")
    ids = b.js("[...document.querySelectorAll('[role=tab]')].map((tab) => tab.id.slice(4))")
    b.expect("the panels exist", {"trace", "memory"} <= set(ids), ids)
    ids = [name for name in ids if not b.js(f"document.getElementById('tab-{name}').disabled")]
    for name in ids:
        b.find(f"#tab-{name}").click()
        b.settle()
        b.expect(f"the tab of {name} shows it", b.js("rafter.state.panel") == name and b.js(f"document.getElementById('panel-{name}').checkVisibility()"))
        b.expect(f"{name} is not empty", b.js(f"document.querySelector('#panel-{name} .body').childElementCount") > 0)
        b.expect(f"everything in {name} has a name", not b.js(NAMELESS), b.js(NAMELESS))
        b.expect(f"{name} fits the window", b.js("document.documentElement.scrollWidth <= innerWidth"), b.js("document.documentElement.scrollWidth"))
        b.clean(f"panel {name}")
    b.find(f"#tab-{ids[0]}").click()
    b.key(Keys.ARROW_RIGHT)
    b.expect("the arrow goes to the next panel", b.js("rafter.state.panel") == ids[1] and b.js("document.activeElement.id") == f"tab-{ids[1]}")
    b.key(Keys.END)
    b.expect("end goes to the last", b.js("rafter.state.panel") == ids[-1])
    b.expect("the address names the panel", b.js("location.hash") == f"#{ids[-1]}")
    b.key("?")
    b.expect("? lists the keys", b.js("document.getElementById('help').open") and "zoom in" in b.js("document.getElementById('help').textContent"))
    b.key(Keys.ESCAPE)
    b.expect("escape closes them", not b.js("document.getElementById('help').open"))
    b.find("#words-button").click()
    words = b.js("document.getElementById('words').textContent")
    b.expect("the terms are explained", b.js("document.getElementById('words').open") and all(word in words for word in ("bound by", "limit", "predicted", "remat", "block.3/mlp/up", "step/micro/", "arena")), words[:80])
    b.key("+")
    b.expect("keys in the dialog do not reach the panels", b.js("document.getElementById('words').open") and b.js("rafter.state.trace.from === rafter.traceViewer.whole[0]"))
    b.key(Keys.ESCAPE)
    b.expect("escape closes them, too", not b.js("document.getElementById('words').open"))
    b.find("#tab-trace").click()
    reached_by_tab(b)
    b.driver.execute_script("const run = document.getElementById('run'); run.value = 1; run.dispatchEvent(new Event('change'))")
    b.wait("rafter.state.run === 1 && rafter.state.ready")
    b.expect("another run can be chosen", b.js("document.title").startswith("run-1"))
    b.clean("the other run")


def themes(b):
    b.expect("light as the system is", b.js("rafter.state.theme") == "light")
    readable(b, "light")
    b.scheme("dark")
    b.wait("rafter.state.theme === 'dark'")
    b.expect("dark paper", b.js("getComputedStyle(document.documentElement).backgroundColor") == "rgb(20, 23, 27)")
    readable(b, "dark")
    b.clean("dark")
    for want in ("light", "dark"):
        b.find("#theme").click()
        b.expect(f"the switch says {want}", b.js("rafter.state.theme") == want)
    b.find("#theme").click()
    b.scheme("light")
    b.wait("rafter.state.theme === 'light'")


def paper(b):
    b.driver.execute_script("""window.addEventListener('beforeprint', () => { window.onPaper = {theme: rafter.state.theme,
      shown: [...document.querySelectorAll('.panel')].every((panel) => panel.checkVisibility()), blank: [...document.querySelectorAll('main canvas')].filter((canvas) => canvas.width < 300).length}; })""")
    pdf = base64.b64decode(b.command("Page.printToPDF", landscape=True, printBackground=True)["data"])
    said = b.js("window.onPaper")
    b.expect("printing shows every panel in light colours", said and said["shown"] and said["theme"] == "light", said)
    b.expect("printing draws every canvas", said and said["blank"] == 0, said)
    b.expect("a page for each panel at least", pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") >= b.js("document.querySelectorAll('.panel').length"), len(pdf))
    b.clean("print")


def lacking(b):
    b.open(b.page({}))
    b.clean("an empty model")
    b.expect("an empty model says what to do", "rafter report" in b.js("document.querySelector('main').textContent"))
    bare = models.plan()
    for key in ("ops", "tensors"):
        bare.pop(key)
    b.open(b.page({"rafter": "0.1.0", "runs": [{"id": "plan", "name": "plan.json", "plan": bare}], "sweeps": []}))
    b.clean("a plan without tensors and ops")


def hostile(b):
    model = models.model(runs=1, steps=1)
    plan = model["runs"][0]["plan"]
    for i, thing in enumerate(plan["ops"] + plan["tensors"]):
        thing["name"] = HOSTILE[i % len(HOSTILE)]
    for thing in plan["ops"]:
        thing["kernel"] = thing["op"] = HOSTILE[1]
    plan["model"]["name"] = plan["machine"]["name"] = HOSTILE[0]
    for name in ("phases", "gaps", "kinds"):
        model["runs"][0]["trace"]["header"][name][-1:] = [HOSTILE[0]] if name != "kinds" else model["runs"][0]["trace"]["header"][name][-1:]
    model["rafter"] = HOSTILE[0]
    model["runs"] += [dict(model["runs"][0], id=name, name=name, run={"command": name, "options": {name: name}}) for name in HOSTILE]
    model["runs"][0]["name"] = HOSTILE[0]
    b.open(b.page(model))
    b.clean("hostile names")
    for name in b.js("[...document.querySelectorAll('[role=tab]')].map((tab) => tab.id)"):
        b.find(f"#{name}").click()
        b.settle()
    b.js("rafter.traceViewer.select({row: rafter.traceViewer.main, i: 1})")
    b.expect("no name runs as code", not b.js("window.broken"))
    b.expect("no name becomes markup", b.js("document.querySelectorAll('img, main script').length") == 0)
    b.expect("the title is the run's name", b.js("document.title").startswith(HOSTILE[0]))
    b.expect("long names do not widen the page", b.js("document.documentElement.scrollWidth <= innerWidth"), b.js("document.documentElement.scrollWidth"))
    b.clean("hostile names, looked at")


def main():
    b = Browser()
    frame(b, b.page(models.model(runs=2, steps=2)))
    themes(b)
    paper(b)
    lacking(b)
    hostile(b)
    b.finish()


if __name__ == "__main__":
    main()
