"""Steps that the tests of the chat page share: a server, a page, a message."""

import json
import os
import subprocess

import chat_server
from browser import Browser, Keys, RAFTER

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data")
TEMPLATE = ("--template", f"{DATA}/templates/zephyr.jinja")
MODEL = "llama:layers=2,width=64,heads=4,ff=128,vocab=300,seq=4096"
FREE = "!chat.state.running"
SERVERS = []


def serve(*options):
    """Starts rafter with random weights at a free port. Its answers are arbitrary bytes."""
    command = [
        RAFTER,
        "serve",
        MODEL,
        "--port",
        "0",
        "--threads",
        "2",
        "--batch",
        "2",
        "--served-name",
        "tiny",
    ]
    server = subprocess.Popen(
        command + list(options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    SERVERS.append(server)
    line = server.stdout.readline()
    assert line.startswith("http"), f"the server did not start: {line} {server.stderr.read()}"
    return line.split(" ")[0]


def open_page(b, url):
    b.driver.get(url)
    b.wait("typeof chat === 'object' && chat.state.ready", 30)


def store(b, text):
    """Stores a text as the conversation. The page stores nothing else before it is loaded again."""
    b.driver.execute_script(
        "sessionStorage.clear(); sessionStorage.setItem('rafter.chat', arguments[0]);"
        " Storage.prototype.setItem = () => {}",
        text,
    )


def fresh(b, url):
    if b.js("location.origin + '/'") != url.rstrip("/") + "/":
        open_page(b, url)
    store(b, "{}")
    open_page(b, url)


def say(b, text, wait=True):
    b.find("#ask").send_keys(text)
    b.key(Keys.ENTER)
    if wait:
        b.wait(FREE)
        b.settle()


def quiet(b, what, url, refused=0):
    """The console has at most the lines of refused requests, and all requests went to the server."""
    said = [line for line in b.console() if "Failed to load resource" not in line]
    b.expect(f"{what}: a silent console", not said, said[:3])
    names = b.js("performance.getEntriesByType('resource').map((entry) => entry.name)")
    other = [
        name for name in names if not name.startswith((url.rstrip("/") + "/", "data:", "blob:"))
    ]
    b.expect(f"{what}: requests go only to the server", not other, other[:3])
    b.expect(f"{what}: nothing of an answer ran", not b.js("window.broken"))


def set_field(b, name, value):
    field = b.find(f"#field-{name}")
    field.clear()
    field.send_keys(value)


def last(b):
    return b.js("chat.state.messages[chat.state.messages.length - 1]")


def text_of(b, selector):
    return b.js(f"document.querySelector({json.dumps(selector)}).innerText")


def run(with_rafter=(), with_mock=()):
    """Runs the steps with one browser, and ends the servers."""
    b = Browser(local=True)
    try:
        url = serve(*TEMPLATE)
        for step in with_rafter:
            step(b, url)
        server = chat_server.Server(url)
        for step in with_mock:
            step(b, server)
    finally:
        for server in SERVERS:
            server.terminate()
            server.wait()
            server.stdout.close()
            server.stderr.close()
    b.finish()
