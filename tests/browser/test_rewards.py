#!/usr/bin/env python3
"""Reinforcement learning in the report: charts of rewards, answers and phases, and the answers of each
step. The page has the values of the files, is bounded, and never runs a model's text."""

import itertools
import json
import math
import os
import subprocess

import rl_example
from browser import Browser, Keys, RAFTER
from test_layout import VISION, lab
from test_page import NAMELESS, reached_by_tab

TINY = "gpt:layers=2,width=32,heads=2,ff=64,vocab=300,seq=32"
HOSTILE = [
    "</script><script>window.broken = 1</script>",
    "<img src=x onerror='window.broken = 1'>",
    "<!--<script>",
    "\u202eevil\u202c \u2066hidden\u2069 zero\u200bwidth \U000e0041tag \u0007bell",
    "a" * 5000,
    "العربية and עברית stay in their direction",
    "",
]
# The contrast of each visible text with the paper below it, if it is less than 4.5. Backgrounds may
# be transparent.
CONTRAST = """(() => {
  const parse = (text) => {
    const n = text.match(/[\\d.e-]+/g).map(Number), unit = text.startsWith('color(');
    return [...n.slice(0, 3).map((c) => unit ? 255 * c : c), n.length > 3 ? n[3] : 1];
  };
  const light = (rgb) => rgb.slice(0, 3).map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const over = (top, below) => [0, 1, 2].map((i) => top[3] * top[i] + (1 - top[3]) * below[i]);
  const paper = (node) => {
    if (!node) return [255, 255, 255];
    const own = parse(getComputedStyle(node).backgroundColor);
    return own[3] > 0.999 ? own.slice(0, 3) : over(own, paper(node.parentElement));
  };
  const shown = document.querySelector('.panel.shown'), faults = [];
  const walker = document.createTreeWalker(shown, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(paper(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) faults.push([walker.currentNode.data.slice(0, 30), node.className, ratio]);
  }
  return faults;
})()"""
WIDE = """[...document.querySelectorAll('.panel.shown *')]
  .filter((node) => node.checkVisibility() && !node.closest('.scroll, .answer-text, .quote'))
  .filter((node) => node.getBoundingClientRect().right > innerWidth + 1)
  .map((node) => node.outerHTML.slice(0, 80))"""
TEXTS = (
    "[...document.querySelectorAll('#panel-samples .answer-text')].map((node) => node.textContent)"
)


def rafter(b, *arguments):
    done = subprocess.run(
        [os.path.abspath(RAFTER), *arguments],
        cwd=b.folder,
        check=True,
        stdout=subprocess.PIPE,
        env=dict(os.environ, RAFTER_RUNS=f"{b.folder}/runs", HOME=b.folder),
    )
    return done.stdout


def trained(b, name):
    with open(f"{b.folder}/text.txt", "w", encoding="utf-8") as file:
        file.write(" ".join(f"{i * i % 97} walls and {i % 7} beams" for i in range(300)))
    quick = ["--data", "text.txt", "--batch", "4", "--steps", "2", "--threads", "1", "--quiet"]
    rafter(b, "train", TINY, *quick, "--out", name)
    return f"{b.folder}/{name}"


def repeated(rows, times):
    """Rows of `times` as many steps, which differ from the first ones only in their step."""
    most = rows[-1]["step"]
    later = [row for row in rows if row["step"]]
    return rows + [{**row, "step": row["step"] + k * most} for k in range(1, times) for row in later]


def page_of(b, name, rows, shown):
    """The page of a run with these metrics and samples, made by the program."""
    folder = f"{b.folder}/{name}"
    rl_example.write(f"{folder}/metrics.jsonl", [{"arena_bytes": 1}, *rows])
    rl_example.write(f"{folder}/samples.jsonl", shown)
    rafter(b, "report", name, "--out", f"{name}.html")
    return f"{folder}.html"


def close(a, b):
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


def charts(b, page, rows):
    b.open(page, "rewards")
    b.clean("the rewards of a run")
    drawn = b.js("rafter.state.rewards.charts")
    wanted = {
        "reward": ["reward", "reward_min", "reward_max", "eval_reward"],
        "length": ["answer_tokens", "answer_tokens_max", "cut_fraction"],
        "policy": ["entropy", "kl"],
        "ratio": ["ratio_mean", "clip_fraction"],
        "loss": ["loss", "grad_norm"],
        "flat": ["flat_groups", "groups"],
        "rate": [
            f"{phase}_{what}"
            for what in ("tokens_per_second", "limit_fraction")
            for phase in ("sample", "train")
        ],
    }
    b.expect("all charts are there", set(drawn) == {*wanted, "components"}, list(drawn))
    for name, keys in wanted.items():
        for key, line in zip(keys, drawn[name]):
            values = [row[key] for row in rows if key in row]
            b.expect(
                f"{name}: {key}",
                line["points"] == len(values) and close(line["last"], values[-1]),
                (line, len(values), values[-1]),
            )
    parts = [line["label"] for line in drawn["components"]]
    b.expect(
        "a line for each component",
        parts == ["gsm8k", "gsm8k, evaluation", "format", "format, evaluation"],
        parts,
    )
    means = {
        (one["side"], one["phase"]): one["mean"] for one in b.js("rafter.state.rewards.phases")
    }
    for (side, phase), value in means.items():
        key = f"{'predicted_' if side == 'predicted' else ''}{phase}_seconds"
        b.expect(f"mean {key}", close(value, rl_example.mean(row[key] for row in rows[1:])), value)
    b.expect("seven times of phases", len(means) == 7, list(means))
    titles = b.js(
        """[...document.querySelectorAll('#panel-rewards canvas')].flatMap((node) =>
             Object.values(Chart.getChart(node).options.scales)
               .map(({title}) => [title.display, title.text]))"""
    )
    b.expect("each axis has a title", all(shown and text for shown, text in titles), titles)
    words = " ".join(text for _, text in titles)
    units = ("nats/token", "Tokens/s", "Tokens per answer", "Seconds per step", "Gradient norm")
    b.expect("with its unit", all(unit in words for unit in units), words)
    text = b.js("document.querySelector('#panel-rewards .cards').textContent")
    best = max(row["eval_reward"] for row in rows if "eval_reward" in row)
    b.expect("the best evaluation is a card", f"{best:.4g}" in text, text)
    lefts = b.js(
        "[...document.querySelectorAll('#panel-rewards .pairs canvas')].map((node) =>"
        " Chart.getChart(node).chartArea.left)"
    )
    b.expect("charts have the same left edge", len(set(lefts)) == 1, lefts)
    b.js("document.querySelector('#panel-rewards [data-value=time]').click()")
    b.settle()
    end = b.js("Chart.getChart(document.querySelector('#panel-rewards canvas')).scales.x.max")
    b.expect("over time", close(end, sum(row["seconds"] for row in rows[1:])), end)
    b.js("document.querySelector('#panel-rewards [data-value=step]').click()")
    b.settle()


def apart(b, page):
    """Lines of a chart differ in colour, dashes or marks; different colours are far apart."""
    for scheme in ("light", "dark"):
        b.scheme(scheme)
        b.open(page, "rewards")
        sets = b.js(
            """[...document.querySelectorAll('#panel-rewards canvas')].map((node) =>
                 Chart.getChart(node).data.datasets
                   .filter((set) => !set.band && set.side !== 'predicted')
                   .map((set) => [set.borderColor, String(set.borderDash), set.pointStyle || '']))"""
        )
        b.expect(
            f"{scheme}: lines differ",
            all(len(set(map(tuple, one))) == len(one) for one in sets),
            sets,
        )
        near = min(
            (math.dist(lab(x, m), lab(y, m)), x, y, who)
            for one in sets
            for x, y in itertools.combinations({line[0] for line in one}, 2)
            for who, m in VISION.items()
        )
        b.expect(f"{scheme}: colours differ by 25 or more for all readers", near[0] >= 25, near)
    b.scheme("light")


def viewer(b, page, shown):
    b.open(page, "samples")
    b.clean("the samples of a run")
    steps = sorted({row["step"] for row in shown})
    b.expect("every step can be chosen", b.js("rafter.state.samples.steps") == steps)
    b.expect("the last step is shown first", b.js("rafter.state.samples.at") == len(steps) - 1)

    def group(step, i):
        return [row for row in shown if row["step"] == step][i]

    def same(what, wanted, order=None):
        texts = b.js(
            "[...document.querySelectorAll('#panel-samples .answer')].map((node) =>"
            " [...node.querySelectorAll(':scope .token')].map((token) =>"
            " token.textContent.replace(/↵/g, '')).join(''))"
        )
        samples = [wanted["samples"][i] for i in order or range(len(wanted["samples"]))]
        b.expect(what, texts == ["".join(one["pieces"]) for one in samples], texts[:2])
        quotes = b.js(
            "[...document.querySelectorAll('#panel-samples .quote')].map((node) =>"
            " node.textContent)"
        )
        b.expect(
            f"{what}: prompt and reference", quotes == [wanted["prompt"], wanted["answer"]], quotes
        )

    same("the answers of the last step", group(60, 0))
    b.js("document.activeElement.blur()")
    b.key(Keys.HOME)
    same("Home goes to the first step", group(0, 0))
    b.key(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    same("an arrow goes to the next", group(2, 0))
    b.key(Keys.ARROW_LEFT, "g")
    same("g goes to the next group", group(1, 1))
    b.find("#samples-step").send_keys(Keys.ARROW_RIGHT)
    b.settle()
    same("the slider has the arrows of a slider", group(2, 0))
    said = b.js("document.querySelector('.step-said').textContent")
    reward = b.js("rafter.model.runs[0].metrics[2].reward")
    b.expect("the step is named with its reward", said == f"step 2, mean reward {reward:.4g}", said)
    b.js("rafter.showSamples(10)")
    b.settle()
    names = b.js(
        "[...document.querySelectorAll('#samples-group option')].map((node) => node.textContent)"
    )
    b.expect(
        "evaluations are named",
        len(names) == 6 and all("evaluation" in name for name in names[4:]),
        names,
    )
    orders(b, group(10, 0), same)
    words = b.js("document.querySelector('#panel-samples .answer').textContent")
    first = group(10, 0)["samples"][b.js("rafter.state.samples.shown")[0] - 1]
    b.expect(
        "an answer has its advantage",
        f"{first['advantage']:+.4g}".replace("-", "−") in words,
        words,
    )
    b.expect("its components", "gsm8k" in words and "format" in words, words)
    b.expect("and its length", f"{len(first['tokens'])} tokens" in words, words)
    tokens(b, first)
    b.clean("the samples, looked at")


def orders(b, group, same):
    rewards = [one["reward"] for one in group["samples"]]
    best = sorted(range(len(rewards)), key=lambda i: -rewards[i])
    worst = sorted(range(len(rewards)), key=lambda i: rewards[i])
    for value, order in (("worst", worst), ("best", best)):
        b.js(f"document.querySelector('#panel-samples [data-value={value}]').click()")
        b.settle()
        same(f"{value} first", group, order)


def tokens(b, sample):
    """Pointer and keys show a token's figures; the colour follows probability or KL."""
    strength = (
        "[...document.querySelector('.answer-text').querySelectorAll('.token')].map((node) =>"
        " parseFloat(node.style.getPropertyValue('--strength')) || 0)"
    )
    by_probability = b.js(strength)
    ranks = sorted(range(len(by_probability)), key=lambda i: sample["logprobs"][i])
    b.expect(
        "improbable tokens are stronger",
        by_probability[ranks[0]] == max(by_probability)
        and by_probability[ranks[-1]] == min(by_probability),
        by_probability[:9],
    )
    b.js("document.querySelector('.answer-text').focus()")
    b.key(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    said = b.js(
        "document.querySelector('#tooltip').hidden ||"
        " document.querySelector('#tooltip').textContent"
    )
    wanted = [f"id {sample['tokens'][2]}", "probability", "KL"]
    b.expect(
        "the third token has its figures",
        said is not True and all(word in said for word in wanted),
        said,
    )
    figure = math.exp(float(format(sample["logprobs"][2], ".4g")))
    b.expect("its probability", format(figure, ".4g") in said, (said, figure))
    b.expect(
        "screen readers hear it",
        str(sample["tokens"][2]) in b.js("document.querySelector('#announce').textContent"),
    )
    b.expect(
        "the arrows stay in the text",
        b.js("rafter.state.samples.steps[rafter.state.samples.at]") == 10,
    )
    b.js("document.activeElement.blur()")
    b.expect("the tooltip leaves with the focus", b.js("document.querySelector('#tooltip').hidden"))
    x, y, w, h = b.box(".answer-text .token")
    b.mouse("mouseMoved", x + w / 2, y + h / 2)
    b.settle()
    b.expect(
        "the pointer shows the first token",
        f"id {sample['tokens'][0]}" in b.js("document.querySelector('#tooltip').textContent"),
    )
    b.mouse("mouseMoved", 3, 3)
    b.key("c")
    b.expect(
        "c colours by KL",
        b.js("rafter.state.samples.colour") == "kl" and b.js(strength) != by_probability,
    )
    most = max(range(len(sample["kl"])), key=lambda i: sample["kl"][i])
    by_kl = b.js(strength)
    b.expect("large KL is stronger", by_kl[most] == max(by_kl), by_kl[:9])
    b.key("c")
    b.expect(
        "then not at all",
        b.js("document.querySelectorAll('#panel-samples .answer .token').length") == 0
        and b.js(TEXTS)[0] == sample["text"],
    )
    b.key("c")


def looks(b, page):
    for scheme, width in itertools.product(("light", "dark"), (1280, 768, 390)):
        b.scheme(scheme)
        b.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        for panel in ("rewards", "samples"):
            b.open(page, panel)
            b.settle()
            where = f"{panel}, {scheme}, {width}"
            wide, nameless = b.js(WIDE), b.js(NAMELESS)
            b.expect(
                f"{where}: nothing is cut off",
                not wide and b.js("document.documentElement.scrollWidth") <= width,
                wide[:3],
            )
            b.expect(f"{where}: every control has a name", not nameless, nameless[:3])
            for _ in range(3 if panel == "samples" else 1):
                pale = b.js(CONTRAST)
                b.expect(f"{where}: all text can be read (WCAG AA)", not pale, pale[:4])
                if panel == "samples":
                    b.key("c")
        if width == 1280:
            right = b.js(
                "Math.max(...[...document.querySelectorAll('#panel-samples .answer')].map((node) =>"
                " node.getBoundingClientRect().right))"
            )
            b.expect(f"{scheme}: answers use the width", right > 1200, right)
    b.scheme("light")
    b.command(
        "Emulation.setDeviceMetricsOverride",
        width=1400,
        height=900,
        deviceScaleFactor=1,
        mobile=False,
    )
    b.open(page, "samples")
    reached_by_tab(b)
    b.driver.execute_script(
        "document.querySelector('#panel-samples .legend .token').style.cssText = 'color: #aaa;"
        " background: #999'"
    )
    b.expect("the check finds a pale text", b.js(CONTRAST), b.js(CONTRAST))


def hostile(b):
    rows, shown = rl_example.run(3, kl=False)
    for row in shown:
        row["id"], row["prompt"], row["answer"] = HOSTILE[0], HOSTILE[1], HOSTILE[3]
        for i, one in enumerate(row["samples"]):
            one["text"] = HOSTILE[i % len(HOSTILE)]
            one["pieces"] = [HOSTILE[(i + k) % len(HOSTILE)] for k in range(len(one["tokens"]))]
            one["finish_reason"] = HOSTILE[1]
            one["rewards"] = {HOSTILE[1]: 1, HOSTILE[3]: 0, "__proto__": 1, "constructor": 0}
    for row in rows[1:]:
        row["rewards"] = {HOSTILE[0]: 0.5, HOSTILE[3]: 0.25, "__proto__": 1}
    page = page_of(b, "rl", rows, shown)
    for panel in ("rewards", "samples"):
        b.open(page, panel)
        for colour in ("logprobs", ""):
            b.js(f"(document.querySelector('#panel-samples [data-value=\"{colour}\"]').click(), 1)")
            b.settle()
            text = b.js("document.querySelector('#panel-samples').textContent")
            b.expect("no text runs as code", not b.js("window.broken"))
            b.expect(
                "no text becomes markup",
                b.js("document.querySelectorAll('main img, main script').length") == 0,
            )
            b.expect(
                "marks of direction are shown by number",
                "U+202E" in text and "U+E0041" in text and "U+200B" in text,
                text[:80],
            )
            b.expect(
                "and have no effect",
                not any(mark in text for mark in "\u202e\u202c\u2066\u2069\u200b\U000e0041\u0007"),
            )
            b.expect("other scripts stay", "العربية and עברית" in text)
            b.expect("scripts are only text", HOSTILE[0] in text)
            b.expect(
                "long words do not widen the page",
                b.js("document.documentElement.scrollWidth <= innerWidth"),
            )
    b.js("document.querySelector('#panel-samples [data-value=logprobs]').click()")
    b.js("document.querySelector('.answer-text').focus()")
    b.key(Keys.ARROW_RIGHT)
    b.expect(
        "nor in the tooltip",
        b.js("document.querySelectorAll('#tooltip img, #tooltip script').length") == 0
        and not b.js("window.broken"),
    )
    b.expect(
        "without KL, there is no choice of it",
        b.js("document.querySelector('#panel-samples [data-value=kl]')") is None,
    )
    lines = b.js("rafter.state.rewards.charts.policy.map((line) => line.label)")
    b.expect("and no line of it", lines == ["entropy"], lines)
    b.clean("hostile answers")


def lacking(b, plain):
    """Panels and charts without data are absent; wrong values do not break the page."""
    rafter(b, "report", plain, "--out", "plain.html")
    b.open(f"{b.folder}/plain.html")
    tabs = b.js("[...document.querySelectorAll('[role=tab]')].map((tab) => tab.id)")
    b.expect(
        "a training has no panels of rewards",
        "tab-rewards" not in tabs and "tab-samples" not in tabs,
        tabs,
    )
    wrong = {
        "steps": [
            None,
            3,
            {"step": "x"},
            {
                "step": 2,
                "groups": [
                    7,
                    {
                        "samples": [
                            3,
                            {},
                            {"text": 5, "pieces": 3},
                            {"text": "a", "pieces": [1, None, "b"], "logprobs": "x", "rewards": 3},
                        ]
                    },
                ],
            },
        ],
        "all_steps": 9,
    }
    odd = [{"step": 1, "reward": 0.5, "rewards": 7, "kl": "x"}, {"step": 2, "reward": "y"}]
    runs = [
        {"id": "odd", "name": "odd", "metrics": odd, "samples": wrong},
        {"id": "none", "name": "none", "metrics": odd, "samples": {"skipped_lines": 4}},
        {"id": "bare", "name": "bare", "samples": {"steps": []}},
    ]
    b.open(b.page({"rafter": "0", "runs": runs, "sweeps": []}), "samples")
    b.clean("wrong samples")
    b.expect(
        "only what is there",
        list(b.js("rafter.state.rewards.charts")) == ["reward"],
        b.js("rafter.state.rewards.charts"),
    )
    b.expect("the answer that can be read is there", b.js(TEXTS)[-1] == "a", b.js(TEXTS))
    b.js("rafter.chooseRun(1)")
    b.wait("rafter.state.ready && rafter.state.run === 1")
    said = b.js("document.querySelector('#panel-samples').textContent")
    b.expect("skipped lines are counted", "4 lines" in said, said)
    b.js("rafter.chooseRun(2)")
    b.wait("rafter.state.ready && rafter.state.run === 2")
    b.expect(
        "a run without rewards has grey tabs",
        b.js(
            "document.getElementById('tab-rewards').disabled &&"
            " document.getElementById('tab-samples').disabled"
        ),
    )
    b.clean("a run without rewards")


def long_run(b):
    """A thousand steps with large samples: the page is bounded and says how many steps it has."""
    rows, shown = rl_example.run(125, groups=2)
    for row in shown:
        for one in row["samples"]:
            for key in ("tokens", "pieces", "logprobs", "kl"):
                one[key] = (one[key] * 8)[:256]
    page = page_of(b, "rl", repeated(rows, 8), repeated(shown, 8))
    source, size = os.path.getsize(f"{b.folder}/rl/samples.jsonl"), os.path.getsize(page)
    b.expect(
        "the samples are large, the page is not", source > 100e6 and size < 10e6, (source, size)
    )
    b.open(page, "samples")
    b.clean("a long run")
    steps = b.js("rafter.state.samples.steps")
    b.expect(
        "the first and the last step are there",
        steps[0] == 0 and steps[-1] == 1000 and 10 < len(steps) < 500,
        steps,
    )
    said = b.js("document.querySelector('#panel-samples').textContent")
    b.expect(
        "the page says how many steps it has",
        "of 1,000 steps are shown" in said and "samples.jsonl has all" in said,
        said[:200],
    )
    count = b.js("document.querySelectorAll('#panel-samples *').length")
    b.expect("only one group is in the page", count < 8 * 256 * 3, count)
    points = b.js("rafter.state.rewards.charts.reward[0].points")
    b.expect("metrics have all steps", points == 1000, points)


def main():
    b = Browser()
    plain = os.path.basename(trained(b, "plain"))
    trained(b, "rl")
    rows, shown = rl_example.run()
    page = page_of(b, "rl", rows, shown)
    model = json.loads(rafter(b, "report", "rl", "--json"))
    b.expect("--json has the samples", len(model["runs"][0]["samples"]["steps"]) == 60)
    charts(b, page, rows)
    apart(b, page)
    viewer(b, page, shown)
    looks(b, page)
    hostile(b)
    lacking(b, plain)
    long_run(b)
    b.finish()


if __name__ == "__main__":
    main()
