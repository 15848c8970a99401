#!/usr/bin/env python3
"""The chat page with a server that sends hostile answers and faults: nothing of an answer runs or is
loaded, faults are said in plain words, large answers are shown, storage is bounded."""

import json

import chat_server
from browser import By, Keys
from chat_page import FREE, fresh, last, open_page, quiet, run, say, set_field, store, text_of

NAMES = "[...document.querySelectorAll('.answer .body *')].map((node) => node.localName)"
ALLOWED = {
    "div",
    "p",
    "br",
    "a",
    "code",
    "pre",
    "strong",
    "em",
    "del",
    "ul",
    "ol",
    "li",
    "blockquote",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "span",
    "button",
}
LINKS = (
    "[...document.querySelectorAll('.answer .body a')].map((a) => [a.getAttribute('href'), a.rel,"
    " a.target])"
)


def hostile(b, s):
    open_page(b, s.url)
    shown = None
    for case in ("whole", "hostile"):
        b.find("#fresh").click() if shown else None
        say(b, case)
        body = b.js("document.querySelector('.answer .body').textContent")
        b.expect(
            f"{case}: only harmless elements",
            set(b.js(NAMES)) <= ALLOWED,
            set(b.js(NAMES)) - ALLOWED,
        )
        b.expect(
            f"{case}: script tags are text",
            body.count(f"<script>{chat_server.BROKEN}</script>") >= 3,
            body,
        )
        b.expect(
            f"{case}: so are images and attributes",
            "<img src=x onerror=" in body and "<svg onload" in body,
        )
        links = b.js(LINKS)
        b.expect(
            f"{case}: links lead to http, https and mailto only",
            [link[0] for link in links]
            == [
                "https://evil.example/pixel.png",
                "https://good.example/a?b=c",
                "https://angle.example/",
                "mailto:a@b.example",
                "https://bare.example/path",
            ],
            links,
        )
        b.expect(
            f"{case}: links tell nothing about this page",
            all(link[1:] == ["noopener noreferrer", "_blank"] for link in links),
        )
        b.expect(
            f"{case}: other links are text",
            "[click](javascript:" in body and "[path](/health)" in body,
        )
        counts = b.js(
            "['strong', 'em', 'del', 'li', 'blockquote', 'td', 'pre', 'h3'].map((name) =>"
            " document.querySelectorAll(`.answer .body ${name}`).length)"
        )
        b.expect(f"{case}: Markdown is shown", counts == [1, 2, 1, 3, 1, 2, 1, 1], counts)
        b.expect(
            f"{case}: names and products keep their marks", "snake_case_name 2 * 3 * 4" in body
        )
        html = b.js("document.querySelector('.answer .body').innerHTML")
        b.expect("pieces and the whole look the same", shown in (None, html), html)
        shown = html
    b.expect("the model's name is text", "<script>" in text_of(b, "#model"))
    quiet(b, "hostile", s.url)


def probe(b, s):
    """The policy of the page stops what the renderer should never let through."""
    b.driver.execute_script("""try {
          document.body.innerHTML += '<img src=x onerror="window.broken = 1">';
          window.assigned = 1;
        } catch { }
        const script = document.createElement('script');
        try {
          script.text = 'window.broken = 1';
          document.body.append(script);
        } catch { }
        const image = document.createElement('img');
        image.src = 'https://evil.example/x.png';
        document.body.append(image);""")
    b.settle()
    b.expect(
        "the policy refuses HTML from texts and inline scripts",
        not b.js("window.broken") and not b.js("window.assigned"),
    )
    b.console()
    open_page(b, s.url)


def large(b, s):
    fresh(b, s.url)
    say(b, "long")
    b.expect(
        "an answer of 200 kB is complete",
        last(b)["content"] == chat_server.LONG and len(chat_server.LONG) > 190000,
    )
    b.expect(
        "with all of its links", b.js("document.querySelectorAll('.answer .body a').length") == 2600
    )
    b.find("#fresh").click()
    say(b, "fence")
    code = b.js("document.querySelector('.answer pre').textContent")
    b.expect(
        "a block of code without an end is whole",
        code.rstrip("\n") == "print('<b>')\n" * 400 + "``\nno end",
        code[-60:],
    )
    b.js("document.querySelector('.code button').focus()")
    b.key(Keys.ENTER)
    b.wait("document.querySelector('.code button').textContent === 'Copied'", 20)
    for i, text in enumerate(chat_server.LADEN):
        b.find("#fresh").click()
        say(b, f"laden {i}")
        kept = b.js("chat.state.messages[1].content.length")
        b.expect(
            f"laden text {i} is complete", kept == len(text.replace("\r", "")), (kept, len(text))
        )
        b.expect(
            f"laden text {i} is shown",
            b.js("document.querySelector('.answer .body').childElementCount") > 0,
        )
    quiet(b, "large answers", s.url)


# Texts of random pieces of Markdown that look different when they grow than when they are whole.
GROWING = r"""(() => {
  let seed = 7;
  const random = (n) => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return Math.floor(seed / 65536) % n;
  };
  const parts = ['a', 'b c', '\n', '\n\n', '- x', '1. y', '  - z', '```', '```js\n', '~~~', '    ', '# h', '> q',
    '|a|b|', '|-|-|', '**', '*', '_', '`', '``', '[t](http://e.e)', '[', '](', '---', '***', '<b>', '\\', ' ',
    '\t', '\r\n', 'https://x.y/z', '2) w', '+ v', '~~', '![', '<http://a.b>', 'é😀', ')', '\n- ', '\n  ', '\n```\n'];
  const differ = [];
  for (let round = 0; round < 3000; round++) {
    const text = Array.from({length: random(24) + 1}, () => parts[random(parts.length)]).join('');
    const [whole, grown] = [document.createElement('div'), document.createElement('div')];
    const one = chat.markdown(whole);
    one.add(text);
    one.end();
    const two = chat.markdown(grown);
    for (let i = 0; i < text.length;) {
      const length = 1 + random(5);
      two.add(text.slice(i, i + length));
      i += length;
      if (random(2)) two.draw();
    }
    two.end();
    if (whole.innerHTML !== grown.innerHTML || whole.querySelector('.tail')) differ.push(text);
  }
  return differ;
})()"""


def growing(b, s):
    differ = b.js(GROWING)
    b.expect("3000 texts look the same whole and grown", not differ, differ[:2])


def wrong_logprobs(b, s):
    fresh(b, s.url)
    say(b, "logprobs")
    b.find("#probabilities").click()
    shown = b.js("[...document.querySelectorAll('.tokens .token')].map((one) => one.textContent)")
    b.expect(
        "wrong tokens are shown as far as they are right",
        shown == ["g", "·", "<b>bad</b>", "·", "·", "é"],
        shown,
    )
    unknown = b.js("document.querySelectorAll('.token.unknown').length")
    b.expect("wrong probabilities are unknown", unknown == 3, unknown)
    for i in range(6):
        b.js(f"document.querySelectorAll('.tokens .token')[{i}].focus()")
        b.settle()
    b.find("#probabilities").click()
    quiet(b, "wrong probabilities", s.url)


FAULTS = {
    "busy": "The server is busy: its queue is full. Try again in 7 seconds.",
    "stopping": "The server is stopping and takes no new requests.",
    "lost": "The connection to the server is lost. The answer is not complete.",
    "fault": "The server had a fault. It says: <b>fault</b> says no",
    "late": "The answer took longer than the server allows. It says: <b>late</b> says no",
    "garbage": "an event that this page cannot read",
    "nonsense": "did not send a stream of events",
    "refused": "top_k is <i>odd</i>",
}


def faults(b, s):
    fresh(b, s.url)
    for case, words in FAULTS.items():
        say(b, case, wait=case != "lost")
        if case == "lost":
            b.wait(
                "document.querySelector('.message:last-child .body').textContent.includes('half"
                " an')"
            )
            s.seen.set()
            b.wait(FREE)
        said = text_of(b, ".message:last-child .failure")
        b.expect(f"{case} in plain words", words in said, said)
        b.expect(
            f"{case} offers a retry",
            len(b.driver.find_elements(By.CSS_SELECTOR, "[data-action=retry]")) == 1,
        )
        if case == "lost":
            b.expect("the half of an answer is kept", last(b)["content"] == "half an ")
    b.expect("a field shows its fault", "odd" in text_of(b, "#fault-top_k"))
    asked = len(s.asked)
    b.find("[data-action=retry]").click()
    b.wait(FREE)
    b.expect(
        "retry asks again",
        len(s.asked) == asked + 1 and s.asked[-1]["messages"] == s.asked[-2]["messages"],
    )
    say(b, "fine")
    b.expect("then all goes well", last(b)["content"] == "You wrote: fine", last(b))
    roles = [message["role"] for message in s.asked[-1]["messages"]]
    b.expect(
        "roles alternate, although questions had no answers",
        all(x != y for x, y in zip(roles, roles[1:])),
        roles,
    )
    quiet(b, "faults", s.url)


def stop_and_edit(b, s):
    fresh(b, s.url)
    left = s.left
    say(b, "slow", wait=False)
    b.wait("chat.state.messages[1]?.content.length > 20")
    b.expect(
        "only stop is offered",
        b.js("document.getElementById('send').hidden && !document.getElementById('stop').hidden"),
    )
    b.find("#probabilities").click()
    b.wait("document.querySelector('.answer .body').textContent.includes('word5 ')")
    b.expect("without probabilities, the text is shown", "No prob" in text_of(b, ".answer"))
    b.find("#probabilities").click()
    b.key(Keys.ESCAPE)
    b.wait(FREE)
    stopped = last(b)
    b.expect(
        "escape stops",
        stopped["finish"] == "stopped" and stopped["content"].startswith("word0 "),
        stopped["finish"],
    )
    b.expect(
        "what was written stays",
        stopped["content"].strip() in b.js("document.querySelector('.answer .body').textContent"),
    )
    for _ in range(200):
        if s.left > left:
            break
        b.settle()
    b.expect("the server notices", s.left == left + 1, s.left)
    b.find("#ask").send_keys(Keys.ARROW_UP)
    b.expect(
        "the arrow edits the last message", b.js("document.getElementById('ask').value") == "slow"
    )
    b.key(Keys.ESCAPE)
    b.expect(
        "escape ends the edit",
        b.js(
            "document.getElementById('editing').hidden && document.getElementById('ask').value"
            " === ''"
        ),
    )
    b.find("[data-action=edit]").click()
    b.find("#ask").clear()
    say(b, "fast")
    b.expect(
        "the edited message replaces the old one",
        [m["content"] for m in b.js("chat.state.messages")] == ["fast", "You wrote: fast"],
    )
    b.js(
        "document.getElementById('field-stop').value = 'a\\\\nb\\n\\nc',"
        " document.getElementById('field-stop').dispatchEvent(new Event('input'))"
    )
    set_field(b, "system", "Be brief.")
    set_field(b, "top_k", "5")
    set_field(b, "min_p", ".1")
    say(b, "again")
    body = s.asked[-1]
    sent = [
        body.get(name)
        for name in ("top_k", "min_p", "stop", "stream", "logprobs", "top_logprobs", "seed")
    ]
    b.expect(
        "settings are sent, and empty ones are not",
        sent == [5, 0.1, ["a\nb", "c"], True, True, 5, None],
        sent,
    )
    b.expect(
        "the system prompt comes first",
        [m["content"] for m in body["messages"]]
        == ["Be brief.", "fast", "You wrote: fast", "again"],
    )
    out = b.js("chat.exported()")
    b.expect(
        "the export has messages and settings",
        len(out["messages"]) == 4 and out["settings"]["top_k"] == "5",
        out,
    )
    b.find("#export").click()
    b.find("#fresh").click()
    b.expect(
        "a new conversation is empty",
        b.js("chat.state.messages.length === 0 && !document.getElementById('empty').hidden"),
    )
    b.find("#defaults").click()
    b.expect("fields can be cleared", b.js("document.getElementById('field-system').value") == "")
    quiet(b, "stop and edit", s.url)


def storage(b, s):
    """A conversation larger than the tab's storage keeps its newest messages."""
    fresh(b, s.url)
    for _ in range(12):
        say(b, "long")
    open_page(b, s.url)
    kept = b.js("chat.state.messages.map((one) => one.content.length)")
    b.expect(
        "the newest messages survive",
        4 <= len(kept) < 24 and kept[-1] == len(chat_server.LONG),
        kept,
    )
    b.expect(
        "and the page says that older ones do not", b.js("!document.getElementById('cut').hidden")
    )
    tokens = ", ".join(["{text: 'x', logprob: -1, bytes: [120], tops: []}"] * 2)
    small = b.js(
        "chat.kept([{role: 'user', content: 'q'}, {role: 'assistant', content: 'a', tokens:"
        f" [{tokens}]}}], 90)"
    )
    b.expect(
        "probabilities are dropped before messages",
        len(small) == 2 and json.loads(small[1])["tokens"] == [],
        small,
    )
    store(b, '{"messages": 5}')
    open_page(b, s.url)
    b.expect("a damaged storage is an empty conversation", b.js("chat.state.messages.length") == 0)
    quiet(b, "storage", s.url)


def live(b, s):
    fresh(b, s.url)
    b.wait("document.getElementById('live-queue').innerText.includes('running')", 20)
    b.expect(
        "the queue", text_of(b, "#live-queue") == "3 running, 4 waiting", text_of(b, "#live-queue")
    )
    b.expect(
        "memory", text_of(b, "#live-memory") == "1.5 MiB of 4.0 MiB", text_of(b, "#live-memory")
    )
    b.expect(
        "the fraction of the limit",
        text_of(b, "#live-limit") == "50.0 %",
        text_of(b, "#live-limit"),
    )
    b.driver.execute_script(
        "Object.defineProperty(document, 'visibilityState', {value: 'hidden', configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    b.driver.execute_async_script("setTimeout(arguments[0], 300)")
    looks = s.looks
    b.driver.execute_async_script("setTimeout(arguments[0], 4500)")
    b.expect("a page that cannot be seen does not ask", s.looks == looks, s.looks - looks)
    b.driver.execute_script(
        "delete document.visibilityState; document.dispatchEvent(new Event('visibilitychange'))"
    )
    for _ in range(500):
        if s.looks > looks:
            break
        b.settle()
    b.expect("a page that is seen again asks", s.looks > looks)


if __name__ == "__main__":
    run(
        with_mock=(
            hostile,
            probe,
            large,
            growing,
            wrong_logprobs,
            faults,
            stop_and_edit,
            storage,
            live,
        )
    )
