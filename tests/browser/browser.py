"""Headless Chromium on the report's pages: Debian's chromium, chromium-driver and python3-selenium (./dev setup all)."""
import atexit
import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import devtools

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
PAGE_OF = os.environ.get("PAGE_OF", "build/page_of")
RAFTER = os.environ.get("RAFTER", "build/rafter")


def skip(why, remedy="./dev setup all installs it"):
    print(f"skip: {why}; {remedy}")
    sys.exit(77)


try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.chrome.service import Service
except ImportError:
    skip("python3-selenium is missing")
if not CHROMIUM or not DRIVER:
    skip("chromium or chromium-driver is missing")


def check_localhost():
    """Skips the test if no connection to localhost is possible, because Selenium needs one."""
    try:
        address = socket.gethostbyname("localhost")
    except OSError as error:
        skip(f"the name localhost has no address ({error})",
             "add the line '127.0.0.1 localhost' to /etc/hosts")
    try:
        with socket.create_server((address, 0)) as server:
            socket.create_connection(server.getsockname()).close()
    except OSError as error:
        skip(f"no program can connect to localhost ({error})",
             "bring up the loopback interface: ip link set lo up")


class Element:
    """The first element of a selector. Its click takes less processor time than Selenium's."""

    def __init__(self, browser, selector):
        self.browser, self.selector = browser, selector

    def __getattr__(self, name):
        return getattr(self.browser.driver.find_element(By.CSS_SELECTOR, self.selector), name)

    def click(self):
        """A click with the mouse on the middle of the element, which must be visible there."""
        place = self.browser.js(f"""(() => {{
          const node = document.querySelector({json.dumps(self.selector)});
          const box = () => node.getClientRects()[0];
          if (!node || !box()) return 'there is no such element, or it is hidden';
          const whole = ({{left, right, top, bottom}}) =>
            left >= 0 && top >= 0 && right <= innerWidth && bottom <= innerHeight;
          if (!whole(box())) node.scrollIntoView({{block: 'center', inline: 'nearest', behavior: 'instant'}});
          const {{left, right, top, bottom}} = box();
          const x = (Math.max(left, 0) + Math.min(right, innerWidth)) / 2;
          const y = (Math.max(top, 0) + Math.min(bottom, innerHeight)) / 2;
          const at = document.elementFromPoint(x, y);
          return node.contains(at) ? [x, y] : `${{at && at.outerHTML.slice(0, 100)}} is above it`;
        }})()""")
        if isinstance(place, str):
            raise AssertionError(f"no click on {self.selector}: {place}")
        self.browser.mouse("mouseMoved", *place)
        for kind in ("mousePressed", "mouseReleased"):
            self.browser.mouse(kind, *place, button="left", clickCount=1)


class Browser:
    """One browser for many pages. Failed expectations are counted and printed."""

    def __init__(self, width=1400, height=900, scale=1, dark=False, local=False):
        """local: pages may come from a server at 127.0.0.1. Other hosts are never found."""
        check_localhost()
        self.folder, self.driver = tempfile.mkdtemp(prefix="rafter-browser-"), None
        self.devtools = None
        atexit.register(self.close)
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        # An app's window has no address bar and no new tab, which would be pages of their own.
        rules = "MAP * ~NOTFOUND" + (", EXCLUDE 127.0.0.1" if local else "")
        for argument in (
            "--headless=new", "--app=data:,", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--hide-scrollbars", f"--user-data-dir={self.folder}/profile",
            f"--window-size={width},{height}", f"--force-device-scale-factor={scale}",
            f"--host-resolver-rules={rules}",
        ):
            options.add_argument(argument)
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        environment = dict(os.environ, HOME=self.folder, XDG_CONFIG_HOME=self.folder, XDG_CACHE_HOME=self.folder)
        self.driver = webdriver.Chrome(service=Service(DRIVER, env=environment), options=options)
        self.driver.set_script_timeout(240)
        address = self.driver.capabilities["goog:chromeOptions"]["debuggerAddress"]
        self.devtools = devtools.Page(address, self.driver.current_window_handle)
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)
        self.scheme("dark" if dark else "light")
        self.failures = self.checks = self.opened = 0

    def command(self, name, **arguments):
        return self.devtools.command(name, **arguments)

    def scheme(self, name):
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def page(self, model, name="page"):
        """Writes the page of a report model with the program and returns its path."""
        source, page = f"{self.folder}/{name}.json", f"{self.folder}/{name}.html"
        with open(source, "w", encoding="utf-8") as file:
            json.dump(model, file)
        subprocess.run([PAGE_OF, source, page], check=True)
        os.remove(source)
        return page

    def open(self, path, panel="", wait=True):
        """Opens a file:// page, waits until every panel is drawn, and returns the seconds."""
        self.opened += 1
        start = time.monotonic()
        # Another query makes the browser load a page again that differs only in its panel.
        self.driver.get(f"file://{os.path.abspath(path)}?{self.opened}" + (f"#{panel}" if panel else ""))
        if wait:
            self.wait("typeof rafter === 'object' && rafter.state.ready")
        return time.monotonic() - start

    def js(self, expression):
        return self.devtools.value(f"({expression})")

    def wait(self, expression, seconds=120):
        """Waits inside the page until the expression is true, also in the page that follows it."""
        end = time.monotonic() + seconds
        poll = f"""(async (end) => {{
          while (!({expression})) {{
            if (performance.now() > end) return false;
            await new Promise((done) => setTimeout(done, 20));
          }}
          return true;
        }})"""
        while True:
            left = end - time.monotonic()
            try:
                if self.devtools.value(f"{poll}(performance.now() + {1e3 * max(left, 0)})"):
                    return
            except devtools.Left:
                time.sleep(0.02)
            if left < 0:
                raise AssertionError(f"not within {seconds} s: {expression}; console: {self.console()}")

    def settle(self):
        """Waits two frames, so that everything has been drawn."""
        two = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
        self.devtools.value(two)

    def console(self):
        return [f"{entry['level']}: {entry['message']}" for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def key(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()
        self.settle()

    def find(self, selector):
        return Element(self, selector)

    def mouse(self, kind, x, y, **more):
        self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def wheel(self, x, y, down, modifiers=2):
        """modifiers: 2 is Ctrl, 8 Shift, 0 none."""
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=down, modifiers=modifiers)
        self.settle()

    def scrolls_by(self, selector, span):
        """The wheel over a picture scrolls the page and shows how to zoom. With Ctrl, or between a click and the pointer leaving, it zooms. `span`: the visible range."""
        self.js(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        self.settle()
        hint, at = f"(() => {{ const hint = document.querySelector({json.dumps(selector)}).parentNode.querySelector('.wheel-hint'); return !hint.hidden && hint.textContent; }})()", lambda: self.box(selector)
        place = lambda: (at()[0] + 0.5 * at()[2], max(at()[1], 0) + 0.3 * at()[3])
        self.mouse("mouseMoved", 3, 3)
        before, top = self.js(span), self.js("scrollY")
        self.wheel(*place(), 40, modifiers=0)
        self.wait(f"scrollY > {top}", 5)
        said = self.js(hint)
        self.expect("the wheel alone scrolls the page", self.js(span) == before, (self.js(span), before))
        self.expect("and says how to zoom", said and "Ctrl" in said and "click" in said, said)
        top = self.js("scrollY")
        self.wheel(*place(), -60)
        self.expect("with Ctrl it zooms", self.js(span) < before and self.js("scrollY") == top, (self.js(span), before))
        self.expect("then nothing is said", not self.js(hint))
        now, (x, y) = self.js(span), place()
        self.click(x, y)
        self.wheel(x, y, -60, modifiers=0)
        self.expect("after a click it zooms alone", self.js(span) < now and self.js("scrollY") == top, (self.js(span), now))
        now = self.js(span)
        self.mouse("mouseMoved", 3, 3)
        self.mouse("mouseMoved", x, y)
        self.wheel(x, y, 40, modifiers=0)
        self.expect("until the pointer has left", self.js(span) == now, (self.js(span), now))
        self.wait(f"scrollY > {top}", 5)

    def click(self, x, y, modifiers=0):
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1, modifiers=modifiers)
        self.settle()

    def drag(self, x, y, to_x, to_y, modifiers=0):
        """modifiers: 8 is shift."""
        self.mouse("mousePressed", x, y, button="left", clickCount=1, modifiers=modifiers)
        for part in (0.25, 0.5, 0.75, 1):
            self.mouse("mouseMoved", x + (to_x - x) * part, y + (to_y - y) * part, button="left", buttons=1, modifiers=modifiers)
        self.mouse("mouseReleased", to_x, to_y, button="left", clickCount=1, modifiers=modifiers)
        self.settle()

    def box(self, selector):
        """x, y, width, height in the window."""
        return self.js("(() => { const b = document.querySelector(arguments[0]).getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()"
                       .replace("arguments[0]", json.dumps(selector)))

    def picture(self, path, full=False):
        if full:
            size = self.command("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            data = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
            with open(path, "wb") as file:
                file.write(base64.b64decode(data))
        else:
            self.driver.save_screenshot(path)

    def expect(self, what, holds, got=None):
        self.checks += 1
        if not holds:
            self.failures += 1
            print(f"FAIL: {what}" + (f" (got {got!r})" if got is not None else ""))

    def clean(self, what):
        """The page printed nothing on the console and loaded nothing, and no panel failed."""
        said = self.console()
        self.expect(f"{what}: a silent console", not said, said[:5])
        self.expect(f"{what}: no panel failed", not self.js("rafter.state.errors"), self.js("rafter.state.errors"))
        asked = self.js("performance.getEntriesByType('resource').map((entry) => entry.name).filter((name) => !name.startsWith('data:') && !name.startsWith('blob:'))")
        self.expect(f"{what}: nothing fetched", not asked, asked)

    def close(self):
        if self.devtools:
            self.devtools.close()
        if self.driver:
            self.driver.quit()
        self.driver = self.devtools = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def finish(self):
        print(f"{self.checks} expectations, {self.failures} failed")
        self.close()
        sys.exit(1 if self.failures else 0)
