"""A Chromium without a window, through its own driver (WebDriver, W3C 2018), for tests of the page."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

PROGRAMS = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of a reference, section 11


class Browser:
    """One tab. Selectors are CSS."""

    def __init__(self, client: httpx.Client, session: str) -> None:
        self._client = client
        self._session = session

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._client.request(method, f"/session/{self._session}{path}", json=body)
        value = answer.json()["value"]
        assert answer.status_code == 200, value
        return value

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a script returns."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def texts(self, selector: str) -> list[str]:
        return list(
            self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)
        )

    def _find(self, selector: str) -> str:
        found = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        return str(found[_ELEMENT])

    def click(self, selector: str) -> None:
        self._ask("POST", f"/element/{self._find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self._ask("POST", f"/element/{self._find(selector)}/value", {"text": text})

    def resize(self, width: int, height: int) -> None:
        self._ask("POST", "/window/rect", {"width": width, "height": height})

    def prefer(self, scheme: str) -> None:
        """Pretend that the system is "light" or "dark" (Chromium's own command)."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        body = {"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}}
        self._ask("POST", "/goog/cdp/execute", body)

    def screenshot(self) -> bytes:
        return base64.b64decode(self._ask("GET", "/screenshot"))

    def until(self, holds: Callable[[], Any], seconds: float = 30) -> Any:
        """What `holds` gives as soon as that is true."""
        end = time.monotonic() + seconds
        while not (found := holds()):
            assert time.monotonic() < end, "it did not come to that"
            time.sleep(0.05)
        return found


@contextmanager
def browser(width: int = 1100, height: int = 800) -> Iterator[Browser]:
    """A browser as long as the block runs."""
    program, driver = PROGRAMS
    assert program is not None
    assert driver is not None
    process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        port = None
        while port is None:
            line = process.stdout.readline().decode()
            assert line, "the driver ended"
            port = re.search(r"started successfully on port (\d+)", line)
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        options = {"binary": program, "args": [*arguments, f"--window-size={width},{height}"]}
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        with httpx.Client(base_url=f"http://127.0.0.1:{port[1]}", timeout=120, trust_env=False) as client:
            session = client.post("/session", json=wanted).json()["value"]["sessionId"]
            yield Browser(client, session)
            client.delete(f"/session/{session}")
    finally:
        process.kill()
        process.wait(30)
