#!/usr/bin/env python3
"""Pictures of the report's pages for docs/: trains a small model of twelve layers with a trace, reports it and photographs panels.

  python3 tools/report_pictures.py [--page REPORT.html] [--out docs/pictures] [--dark] [PANEL ...]

Run it with Debian's python3 (./dev setup all installs Chromium and Selenium for it). --page takes a report that is there.
"""
import argparse
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "browser"))
sys.dont_write_bytecode = True
os.environ.setdefault("RAFTER", os.path.join(ROOT, "build", "rafter"))

MODEL = "gpt:layers=12,width=192,heads=6,ff=768,vocab=512,seq=128"
TRAIN = ["--data", "random:seed=0", "--batch", "8", "--microbatch", "4", "--threads", "2", "--steps", "12", "--trace", "steps=8..9"]
MOST_BYTES = 200_000
PANELS = ["summary", "trace", "memory", "roofline", "sweep", "compare"]  # those that docs/report.md shows

# What a person would do first in a panel, so that its picture shows it at work.
BEFORE = {
    "trace": """(() => { const v = rafter.traceViewer; if (!v) return; const [step] = v.trace.header.steps, part = (step.end - step.begin) / 100, row = v.main;
      v.align(true); v.look(step.begin + 12 * part, step.begin + 17 * part);
      let best = -1;
      for (let i = row.after(step.begin + 13 * part); row.begin[i] < step.begin + 15 * part; i++) if (best < 0 || row.end[i] - row.begin[i] > row.end[best] - row.begin[best]) best = i;
      if (best >= 0) v.select({row, i: best}); })()""",
}


def report(folder):
    rafter, run, page = os.environ["RAFTER"], f"{folder}/uva-small", f"{folder}/report.html"
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder}
    subprocess.run([rafter, "train", MODEL, *TRAIN, "--out", run], **quiet)
    with open(f"{folder}/sweep.json", "w", encoding="utf-8") as sweep:
        subprocess.run([rafter, "plan", "uva", "--on", "a5000", "--sweep", "batch=8..128", "--json"], check=True, stdout=sweep, cwd=folder)
    subprocess.run([rafter, "report", run, f"{folder}/sweep.json", "--against", "remat=mlp", "--out", page], **quiet)
    return page


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("panels", nargs="*")
    parser.add_argument("--page")
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "pictures"))
    parser.add_argument("--dark", action="store_true")
    arguments = parser.parse_args()
    from browser import Browser  # says what is missing where it is missing
    os.makedirs(arguments.out, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = arguments.page or report(folder)
        browser = Browser(width=1200, height=800, dark=arguments.dark)
        browser.open(page)
        for panel in arguments.panels or PANELS:
            browser.find(f"#tab-{panel}").click()
            browser.js("document.activeElement.blur()")
            if panel in BEFORE:
                browser.js(BEFORE[panel])
            browser.settle()
            browser.driver.execute_async_script("setTimeout(arguments[0], 300)")
            path = os.path.join(arguments.out, f"report-{panel}.png")
            browser.picture(path)
            size = os.path.getsize(path)
            print(f"{path}  {size} bytes" + ("" if size < MOST_BYTES else f": more than {MOST_BYTES}"))
        browser.clean("the report")
        browser.finish()


if __name__ == "__main__":
    main()
