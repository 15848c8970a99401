#!/usr/bin/env python3
"""Takes the pictures of report pages for docs/report.md: a small UvA model at four settings with a trace, LoRA,
generation, scoring, a sweep and a serving plan.

  python3 tools/report_pictures.py [--folder RUNS] [--out docs/pictures] [PICTURE ...]

Run it with Debian's python3 (./dev setup all installs Chromium and Selenium for it) on an idle machine. --folder
keeps the runs in a folder and reuses those that are already there.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "browser"))
sys.dont_write_bytecode = True
os.environ.setdefault("RAFTER", os.path.join(ROOT, "build", "rafter"))

MODEL = "gpt:layers=12,width=256,heads=8,ff=1024,vocab=512,seq=256"
TRAIN = ["--data", "text.txt", "--batch", "8", "--steps", "12", "--val-every", "6", "--val-rows", "4", "--threads", "2"]
LADDER = {"f32": [], "bf16": ["--dtype", "bf16"], "mlp": ["--dtype", "bf16", "--remat", "mlp"], "block": ["--dtype", "bf16", "--remat", "block"]}
RUNS = [*LADDER, "lora", "generate", "score"]
MOST_BYTES = 200_000

# What a person would do first, so that each picture shows a panel in use.
LONGEST = """(() => { const v = rafter.traceViewer; const [step] = v.trace.header.steps, part = (step.end - step.begin) / 100, row = v.main;
  v.align(true); v.look(step.begin + 12 * part, step.begin + 17 * part);
  let best = -1;
  for (let i = row.after(step.begin + 13 * part); row.begin[i] < step.begin + 15 * part; i++) if (best < 0 || row.end[i] - row.begin[i] > row.end[best] - row.begin[best]) best = i;
  if (best >= 0) v.select({row, i: best}); })()"""
PICTURE = "document.querySelector('#memory-picture').scrollIntoView({block: 'end'})"
OVER = "(() => { const s = document.querySelector('#memory-over'); s.value = [...s.options].findIndex((o) => o.textContent.startsWith('%s')) - 1; s.dispatchEvent(new Event('change')); })()"
SIDES = """(() => { for (const [which, title] of [['a', '%s'], ['b', '%s']]) { const s = document.querySelector('#compare-' + which);
  s.value = [...s.options].findIndex((o) => o.textContent.startsWith(title)); s.dispatchEvent(new Event('change')); } })()"""
# picture: (run, panel, script, whether dark)
PICTURES = {
    "summary": ("f32", "summary", None, False),
    "trace": ("f32", "trace", LONGEST, False),
    "memory": ("f32", "memory", PICTURE, False),
    "memory-peak": ("f32", "memory", "document.querySelector('#memory-instant').scrollIntoView()", False),
    "memory-over": ("bf16", "memory", f"{OVER % 'mlp'}, {PICTURE}", True),
    "memory-difference": ("bf16", "memory", f"{OVER % 'mlp'}, document.querySelector('#memory-difference').scrollIntoView()", False),
    "memory-block": ("block", "memory", PICTURE, False),
    "roofline": ("f32", "roofline", None, False),
    "curves": ("f32", "curves", None, False),
    "sweep": ("f32", "sweep", None, False),
    "serving": ("f32", "sweep", "[...document.querySelectorAll('#panel-sweep h3')].find((h) => h.textContent.startsWith('Serving')).scrollIntoView()", False),
    "compare": ("f32", "compare", SIDES % ("bf16, train: pred", "mlp, train: pred"), False),
    "lora": ("lora", "memory", PICTURE, False),
    "generate": ("generate", "memory", PICTURE, False),
    "score": ("score", "summary", None, False),
}


def make(folder):
    """Makes missing runs, and the page of all runs."""
    rafter = os.environ["RAFTER"]

    def run(out, *arguments):
        if not os.path.exists(f"{folder}/{out}"):
            print(f"{out}: rafter {' '.join(arguments)}", flush=True)
            subprocess.run([rafter, *arguments], check=True, stdout=subprocess.DEVNULL, cwd=folder)

    def plan(out, *arguments):
        with open(f"{folder}/{out}", "wb") as file:
            subprocess.run([rafter, "plan", *arguments, "--json"], check=True, stdout=file, stderr=subprocess.DEVNULL, cwd=folder)

    text = "".join(open(path, encoding="utf-8").read() for path in sorted(f"{ROOT}/docs/{name}" for name in os.listdir(f"{ROOT}/docs") if name.endswith(".md")))
    with open(f"{folder}/text.txt", "w", encoding="utf-8") as file:
        file.write(text)
    with open(f"{folder}/texts.jsonl", "w", encoding="utf-8") as file:
        file.writelines('{"tokens": [' + ", ".join(str(32 + (7 * i + k * k) % 90) for k in range(200)) + "]}\n" for i in range(8))
    for name, more in LADDER.items():
        run(name, "train", MODEL, *TRAIN, *more, *(["--trace", "steps=9..10"] if name == "f32" else []), "--out", name)
    base = "f32/checkpoint-00000012"
    run("lora", "train", base, *TRAIN, "--lora", "rank=8,targets=all", "--out", "lora")
    run("generate", "generate", base, "--tokens", ",".join(str(65 + i % 26) for i in range(100)), "--max-tokens", "100", "--ignore-eos", "--threads", "2", "--out", "generate")
    run("score", "score", base, "--input", "texts.jsonl", "--output", "scored.jsonl", "--threads", "2", "--out", "score")
    plan("batch.json", "llama3-8b", "--on", "h100-sxm", "--job", "generate", "--dtype", "bf16", "--seq", "4096", "--sweep", "batch=1..256")
    plan("serve.json", "llama3-8b", "--on", "h100-sxm", "--job", "serve", "--dtype", "bf16", "--batch", "64", "--rate", "1..64")
    subprocess.run([rafter, "report", *RUNS, "batch.json", "serve.json", "--out", "report.html"], check=True, stdout=subprocess.DEVNULL, cwd=folder)
    return f"{folder}/report.html"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="*", help=", ".join(PICTURES))
    parser.add_argument("--folder")
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "pictures"))
    arguments = parser.parse_args()
    from browser import Browser  # names the missing package if there is one
    os.makedirs(arguments.out, exist_ok=True)
    folder = os.path.abspath(arguments.folder) if arguments.folder else tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    page, browser = make(folder), Browser(width=1200, height=800)
    browser.open(page)
    for name in arguments.pictures or PICTURES:
        run, panel, first, dark = PICTURES[name]
        browser.scheme("dark" if dark else "light")
        index = RUNS.index(run)
        browser.js(f"(() => {{ rafter.chooseRun({index}); }})()")
        browser.wait(f"rafter.state.ready && rafter.state.run === {index}")
        browser.find(f"#tab-{panel}").click()
        browser.js("(document.activeElement.blur(), window.scrollTo(0, 0))")
        browser.settle()
        if first:
            browser.js(first)
        browser.settle()
        browser.driver.execute_async_script("setTimeout(arguments[0], 300)")
        path = os.path.join(arguments.out, f"report-{name}.png")
        browser.picture(path)
        size = os.path.getsize(path)
        print(f"{path}  {size} bytes" + ("" if size < MOST_BYTES else f": more than {MOST_BYTES}"))
    browser.clean("the report")
    if not arguments.folder:
        shutil.rmtree(folder)
    browser.finish()


if __name__ == "__main__":
    main()
