#!/usr/bin/env python3
"""The page's frame: panels as tabs by mouse and keys, light and dark, print, hostile names, an empty model."""
from browser import Browser

HOSTILE = ["</script><script>window.broken = 1</script>", "<img src=x onerror='window.broken = 1'>", "\u2028\u2029", "\"'`${window.broken = 1}", "<!--<script>"]


def main():
    b = Browser()
    b.open(b.page({}))
    b.clean("an empty model")
    b.expect("an empty model says what to do", "rafter report" in b.js("document.querySelector('main').textContent"))
    runs = [{"id": name, "name": name, "plan": {"job": name, "memory": {"peak_bytes": 1, "by_class": {name: 1}}}, "run": {name: name}, "metrics": []} for name in HOSTILE]
    b.open(b.page({"rafter": HOSTILE[0], "runs": runs}))
    b.clean("hostile names")
    b.expect("no name is code", not b.js("window.broken"))
    b.expect("no name is markup", b.js("document.querySelectorAll('main img, header img').length") == 0)
    b.expect("the title is the run's name", b.js("document.title").startswith(HOSTILE[0]))
    b.finish()


if __name__ == "__main__":
    main()
