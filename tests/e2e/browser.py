"""A headless Chromium for tests of the web pages, driven by chromedriver (Debian's chromium and chromium-driver)."""
import json
import os
import shlex
import shutil
import tempfile

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import axe_core_python
from conftest import DIES_WITH_US, seconds, wait_until

AXE = os.path.join(os.path.dirname(axe_core_python.__file__), "axe.min.js")
PHONE, DESKTOP = (360, 740), (1280, 860)


class Browser:
    """Use as a context manager. Pages are opened with open(), which forgets what the page before it stored."""

    def __init__(self):
        found = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
        missing = [name for name, path in found.items() if not path]
        assert not missing, f"{' and '.join(missing)} not found: install them with `make packages-test` (Debian: chromium, chromium-driver)"
        self.folder = tempfile.TemporaryDirectory(prefix="fd-browser-")
        options = webdriver.ChromeOptions()
        options.binary_location = self.dies_with_its_parent(found["chromium"])
        for flag in ("headless=new", "no-first-run", "disable-gpu", "disable-dev-shm-usage", "disable-background-networking",
                     "disable-component-update", "disable-sync", f"user-data-dir={self.folder.name}/profile"):
            options.add_argument("--" + flag)
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")  # which root cannot have; the pages are our own
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(self.dies_with_its_parent(found["chromedriver"])))
        self.driver.set_script_timeout(seconds(30))

    def dies_with_its_parent(self, program):
        """A script that starts it so: neither outlives the process that runs the tests, however that ends."""
        path = os.path.join(self.folder.name, os.path.basename(program))
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec {shlex.join(DIES_WITH_US)} {shlex.quote(program)} "$@"\n')
        os.chmod(path, 0o755)
        return path

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.quit()
        self.folder.cleanup()

    def cdp(self, method, **parameters):
        return self.driver.execute_cdp_cmd(method, parameters)

    def look_as(self, size=DESKTOP, scheme="light"):
        """The size of the window, and what the system prefers."""
        self.cdp("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=size == PHONE)
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url, size=DESKTOP, scheme="light", fresh=True):
        self.look_as(size, scheme)
        if fresh:
            origin = "/".join(url.split("/")[:3])
            self.driver.get("about:blank")
            self.cdp("Storage.clearDataForOrigin", origin=origin, storageTypes="all")
            self.driver.get(url)
            self.run("sessionStorage.clear(); localStorage.clear()")  # the former is the tab's
        self.driver.get(url)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        """Of all that match, joined; read at once, so that nothing can go away in between."""
        return self.run("return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent).join('\\n')", selector)

    def count(self, selector):
        return self.run("return document.querySelectorAll(arguments[0]).length", selector)

    def click(self, selector):
        self.find(selector).click()

    def button(self, label, within="body"):
        """The last visible button with that label."""
        found = [one for one in self.all(f"{within} button") if one.text == label and one.is_displayed()]
        assert found, f"no button '{label}' in {within}"
        return found[-1]

    def press(self, *keys):
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def until(self, accept, what, limit_s=30):
        return wait_until(accept, limit_s, lambda: f"{what}\n{self.text('main')[:2000]}\n{self.errors(take=False)}", 0.03)

    def errors(self, take=True, known=()):
        """What the console says that is a warning or worse, without lines with one of the known texts."""
        self.seen = getattr(self, "seen", []) + [one for one in self.driver.get_log("browser") if one["level"] in ("SEVERE", "WARNING")]
        out = [one["message"] for one in self.seen if not any(text in one["message"] for text in known)]
        if take:
            self.seen = []
        return out

    def axe(self):
        """What axe-core finds wrong, as lines."""
        if not self.run("return 'axe' in window"):
            with open(AXE, encoding="utf-8") as file:
                self.run(file.read())
        found = self.driver.execute_async_script("axe.run().then(arguments[0], (error) => arguments[0]({error: String(error)}))")
        assert "error" not in found, found
        return [f"{rule['id']} ({rule['impact']}): {node['html'][:160]}: {json.dumps(node['any'] + node['all'])[:300]}"
                for rule in found["violations"] for node in rule["nodes"]]

    def screenshot(self, path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.driver.save_screenshot(path)


__all__ = ["Browser", "DESKTOP", "Keys", "PHONE"]
