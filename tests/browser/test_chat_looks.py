#!/usr/bin/env python3
"""How the chat page looks and is reached: widths from 320 to 1400 pixels, light and dark, contrast,
names of controls, the tabulator key, reduced motion."""

import json

from browser import ActionChains, Keys
from chat_page import FREE, fresh, run, say

# Elements that can take the focus and are visible, without a name.
NAMELESS = """[...document.querySelectorAll('a[href], button, input, textarea, [tabindex]')]
  .filter((node) => node.tabIndex >= 0 && node.checkVisibility())
  .filter((node) => !node.getAttribute('aria-label') && !node.textContent.trim()
    && ![...(node.labels || [])].some((label) => label.textContent.trim()))
  .map((node) => node.outerHTML.slice(0, 90))"""
# The contrast of every visible text with the paper below it, if it is less than 4.5.
CONTRAST = """(() => {
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const paper = (node) => {
    for (; node; node = node.parentElement) {
      const colour = parse(getComputedStyle(node).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  const faults = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
    if (node.closest('button:disabled, script, noscript, .unseen')) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(paper(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) faults.push([walker.currentNode.data.slice(0, 30), node.className, ratio]);
  }
  return faults;
})()"""


# Elements that are wider than the window.
WIDE = """[...document.querySelectorAll('body *')]
  .filter((node) => node.checkVisibility() && !node.closest('.unseen, .skip, .table, pre'))
  .filter((node) => node.getBoundingClientRect().right > innerWidth + 1)
  .map((node) => node.outerHTML.slice(0, 80))"""


def planted(b, s):
    """The checks below notice faults that are put into the page."""
    fresh(b, s.url)
    b.expect("no fault before", not b.js(CONTRAST) and not b.js(NAMELESS) and not b.js(WIDE))
    b.driver.execute_script("""const add = (tag, text, style) => {
        const node = document.createElement(tag);
        node.textContent = text;
        Object.assign(node.style, style);
        document.querySelector('main').append(node);
      };
      add('p', 'pale', {color: '#999'});
      add('button', '', {});
      add('p', 'wide', {width: '3000px', maxWidth: 'none'});""")
    b.expect(
        "a pale text is found", [fault[0] for fault in b.js(CONTRAST)] == ["pale"], b.js(CONTRAST)
    )
    b.expect("a button without a name is found", len(b.js(NAMELESS)) == 1, b.js(NAMELESS))
    b.expect("a wide text is found", len(b.js(WIDE)) == 1, b.js(WIDE))


def looks(b, s):
    fresh(b, s.url)
    say(b, "whole")
    say(b, "busy")
    for scheme, width in (
        ("light", 1400),
        ("dark", 1400),
        ("light", 390),
        ("dark", 390),
        ("light", 320),
    ):
        b.scheme(scheme)
        b.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        for settings in (False, True):
            b.js(f"(chat.showSettings({json.dumps(settings)}), 1)")
            for _ in range(2):
                b.find("#probabilities").click()
                b.settle()
                where = f"{scheme}, {width}"
                wide, pale, nameless = b.js(WIDE), b.js(CONTRAST), b.js(NAMELESS)
                b.expect(f"{where}: nothing is cut off", not wide, wide[:3])
                b.expect(f"{where}: all text can be read (WCAG AA)", not pale, pale[:4])
                b.expect(f"{where}: every control has a name", not nameless, nameless[:4])
        x, y, w, h = b.box("#send")
        b.expect(
            f"{width}: send can be touched",
            w >= 40 and h >= 40 and x + w <= width and y + h <= 800,
            (x, y, w, h),
        )
        b.expect(f"{width}: the messages have room", b.box("#talk")[3] > 300, b.box("#talk"))
    b.command(
        "Emulation.setDeviceMetricsOverride",
        width=1400,
        height=900,
        deviceScaleFactor=1,
        mobile=False,
    )
    b.scheme("light")
    b.command(
        "Emulation.setEmulatedMedia",
        features=[{"name": "prefers-reduced-motion", "value": "reduce"}],
    )
    say(b, "slow", wait=False)
    b.wait("chat.state.running && document.querySelector('.open')")
    moving = b.js("document.getAnimations().length")
    b.expect("nothing moves for those who want that", moving == 0, moving)
    b.find("#stop").click()
    b.wait(FREE)
    b.scheme("light")


def by_keyboard(b, s):
    """The tabulator key reaches every control, and the page works without a pointer."""
    fresh(b, s.url)
    say(b, "whole")
    controls = (
        "[...document.querySelectorAll('a[href], button, input, textarea, [tabindex=\"0\"]')]"
        ".filter((node) => node.tabIndex >= 0 && !node.disabled && node.checkVisibility())"
    )
    wanted = b.js(f"{controls}.length")
    seen = set()
    for _ in range(2 * wanted + 5):
        ActionChains(b.driver).send_keys(Keys.TAB).perform()
        seen.add(b.js(f"{controls}.indexOf(document.activeElement)"))
    missed = [
        b.js(f"{controls}[{i}].outerHTML.slice(0, 90)") for i in range(wanted) if i not in seen
    ]
    b.expect("every control is reached", not missed, missed[:4])
    live_text = b.js("document.getElementById('announce').textContent")
    b.expect(
        "screen readers hear the answer and its end",
        "Head <b>line</b>" in live_text and "End of the answer" in live_text,
        live_text[-200:],
    )
    b.expect(
        "politely",
        b.js("document.getElementById('announce').getAttribute('aria-live')") == "polite",
    )


if __name__ == "__main__":
    run(with_mock=(planted, looks, by_keyboard))
