#!/usr/bin/env python3
"""The chat page of `rafter serve`: streams, retry, settings, probabilities, keys, templates."""

import json
import urllib.request

from browser import Keys
from chat_page import (
    FREE,
    TEMPLATE,
    fresh,
    last,
    open_page,
    quiet,
    run,
    say,
    serve,
    set_field,
    text_of,
)


def conversation(b, url):
    open_page(b, url)
    b.expect("the page names the model", text_of(b, "#model") == "tiny")
    b.expect("the box has the focus", b.js("document.activeElement.id") == "ask")
    b.find("#ask").send_keys("a", Keys.SHIFT + Keys.ENTER, Keys.NULL, "b")
    b.expect("shift and enter begin a line", b.js("document.getElementById('ask').value") == "a\nb")
    b.find("#ask").clear()
    for name, value in (("seed", "9007199254740993"), ("max_tokens", "40"), ("temperature", "0.5")):
        set_field(b, name, value)
    say(b, "Once upon a time")
    one = last(b)
    b.expect(
        "the answer has text and tokens",
        one["content"] and len(one["tokens"]) == one["count"] > 1,
        one,
    )
    b.expect("no failure", not one["failure"], one["failure"])
    foot = text_of(b, ".answer .foot")
    b.expect(
        "its figures",
        f"{one['count']} tokens" in foot and "tokens/s" in foot and "first token" in foot,
        foot,
    )
    b.expect(
        "the live line",
        "tokens/s" in text_of(b, "#live-rate") and "–" not in text_of(b, "#live-first"),
    )
    b.wait("document.getElementById('live-memory').innerText.includes('of')", 20)
    b.wait("document.getElementById('live-queue').innerText === '0 running, 0 waiting'", 60)
    b.find("[data-action=retry]").click()
    b.wait(FREE)
    again = last(b)
    same = lambda m: (m["content"], [t["logprob"] for t in m["tokens"]])
    b.expect(
        "a retry with the same seed gives the same answer",
        same(again) == same(one),
        again["content"],
    )
    body = {
        "messages": [{"role": "user", "content": "Once upon a time"}],
        "max_tokens": 40,
        "temperature": 0.5,
        "seed": 9007199254740993,
    }
    answer = urllib.request.urlopen(url + "/v1/chat/completions", json.dumps(body).encode()).read()
    b.expect(
        "another client gets this answer too, so all digits of the seed arrive",
        json.loads(answer)["choices"][0]["message"]["content"] == one["content"],
    )
    b.expect("two messages", b.js("chat.state.messages.length") == 2)
    open_page(b, url)
    b.expect("the conversation survives loading", last(b)["content"] == one["content"])
    b.expect("and is shown", b.js("document.querySelectorAll('.message').length") == 2)
    b.expect(
        "and so do settings",
        b.js("document.getElementById('field-seed').value") == "9007199254740993",
    )
    quiet(b, "a conversation", url)


def wrong_settings(b, url):
    fresh(b, url)
    set_field(b, "temperature", "-1")
    say(b, "Hi")
    said = text_of(b, "#fault-temperature")
    b.expect("the server's message is at the field", "expected 0 to 100, got -1" in said, said)
    b.expect(
        "the field is marked",
        b.js("document.getElementById('field-temperature').getAttribute('aria-invalid')") == "true",
    )
    set_field(b, "temperature", "warm")
    b.expect("a change removes the message", text_of(b, "#fault-temperature") == "")
    b.find("[data-action=retry]").click()
    b.wait(FREE)
    said = text_of(b, "#fault-temperature")
    b.expect("a text gets the server's message", "a number" in said, said)
    set_field(b, "temperature", "0")
    set_field(b, "max_tokens", "3")
    b.find("[data-action=retry]").click()
    b.wait(FREE)
    b.expect("a right value is answered", last(b)["count"] == 3 and not last(b)["failure"], last(b))
    b.expect("the end has a reason", "maximum number of tokens" in text_of(b, ".answer .foot"))
    quiet(b, "wrong settings", url)


def probabilities(b, url):
    b.find("#probabilities").click()
    one = last(b)
    b.expect(
        "each token is shown",
        b.js("document.querySelectorAll('.tokens .token').length") == len(one["tokens"]),
    )
    b.expect(
        "the button is pressed",
        b.js("document.getElementById('probabilities').getAttribute('aria-pressed')") == "true",
    )
    x, y, w, h = b.box(".tokens .token")
    b.mouse("mouseMoved", x + w / 2, y + h / 2)
    b.settle()
    tip = text_of(b, "#tip")
    b.expect(
        "a token under the pointer shows its logarithm",
        f"(log {one['tokens'][0]['logprob']:.3f})" in tip,
        tip,
    )
    b.expect("and five alternatives", b.js("document.querySelectorAll('#tip tr').length") == 5, tip)
    b.expect(
        "the chosen one is marked", b.js("document.querySelectorAll('#tip tr.chosen').length") == 1
    )
    b.mouse("mouseMoved", 5, 5)
    b.settle()
    b.expect("the tip closes", b.js("document.getElementById('tip').hidden"))
    b.js("document.querySelector('.tokens .token').focus()")
    b.expect("the focus opens it", not b.js("document.getElementById('tip').hidden"))
    b.key(Keys.ARROW_RIGHT)
    at = "document.activeElement.dataset.i"
    b.expect("the arrow goes to the next token", b.js(at) == "1")
    name = b.js("document.activeElement.getAttribute('aria-label')")
    b.expect("which has a name for screen readers", "%" in name and "; also " in name, name)
    b.expect(
        "and shows its own figures",
        f"(log {one['tokens'][1]['logprob']:.3f})" in text_of(b, "#tip"),
    )
    b.key(Keys.END)
    b.expect("end goes to the last", b.js(at) == str(len(one["tokens"]) - 1))
    b.key(Keys.ESCAPE)
    b.expect("escape closes the tip", b.js("document.getElementById('tip').hidden"))
    stops = b.js(
        "[...document.querySelectorAll('.token')].filter((one) => one.tabIndex === 0).length"
    )
    b.expect("the tokens are one stop of the tabulator key", stops == 1, stops)
    say(b, "More")
    count = b.js("document.querySelectorAll('.message:last-child .token').length")
    b.expect("a new answer is shown as tokens at once", count == len(last(b)["tokens"]) > 0, count)
    b.find("#probabilities").click()
    b.expect("Markdown is back", b.js("!document.querySelector('.tokens')"))


def no_template(b, _):
    url = serve()
    open_page(b, url)
    set_field(b, "max_tokens", "5")
    set_field(b, "seed", "3")
    say(b, "Once")
    one = last(b)
    b.expect(
        "without a template the text is continued",
        one["count"] == 5 and len(one["tokens"]) == 5,
        one,
    )
    b.expect("and the page says so", "no chat template" in text_of(b, "#mode"), text_of(b, "#mode"))
    body = json.dumps({"prompt": "Once", "max_tokens": 5, "seed": 3}).encode()
    answer = json.loads(urllib.request.urlopen(url + "/v1/completions", body).read())
    b.expect("with the answer of other clients", answer["choices"][0]["text"] == one["content"])
    quiet(b, "no template", url)


def keys(b, _):
    path = f"{b.folder}/keys"
    with open(path, "w", encoding="utf-8") as file:
        file.write("good key\n")
    url = serve("--api-key-file", path, *TEMPLATE)
    open_page(b, url)
    b.expect("the page asks for a key", b.js("!document.getElementById('key-form').hidden"))
    b.find("#key").send_keys("bad", Keys.ENTER)
    b.wait("document.getElementById('key-fault').innerText.includes('refuses')", 20)
    b.find("#key").send_keys("good key", Keys.ENTER)
    b.wait("document.getElementById('key-form').hidden", 20)
    b.expect("then the model is known", text_of(b, "#model") == "tiny")
    set_field(b, "max_tokens", "3")
    say(b, "Hi")
    b.expect("requests have the key", last(b)["count"] == 3, last(b))
    open_page(b, url)
    b.expect(
        "the tab keeps it",
        b.js("document.getElementById('key-form').hidden") and text_of(b, "#model") == "tiny",
    )
    b.expect("only the tab", b.js("localStorage.length") == 0 and b.js("document.cookie") == "")
    b.find("#forget").click()
    b.wait("!document.getElementById('key-form').hidden", 20)
    b.expect("until the page forgets it", not b.js("sessionStorage.getItem('rafter.key')"))
    say(b, "Hi again")
    b.expect(
        "without a key the answer says what to do",
        "API key" in last(b)["failure"],
        last(b)["failure"],
    )
    quiet(b, "keys", url)


if __name__ == "__main__":
    run(with_rafter=(conversation, wrong_settings, probabilities, no_template, keys))
