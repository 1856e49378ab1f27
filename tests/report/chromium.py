"""A real browser in tests: the system's Chromium through its own driver, spoken to in plain HTTP."""

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
ABSENT = "needs the system packages chromium and chromium-driver"
needs_chromium = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=ABSENT)
# Nothing of the browser's own goes to the network, so that every request seen is the page's.
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-extensions", "--no-first-run",
    "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)  # fmt: skip


class Browser:
    """One window."""

    def __init__(self, session: str) -> None:
        self._session = session

    def open(self, address: str, *, width: int = 1400, height: int = 1000) -> "Browser":
        self._cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.log("browser"), self.log("performance")
        self._post("url", {"url": address})
        return self

    def run(self, script: str, *arguments: object) -> object:
        """The value that the body of a function returns."""
        return self._post("execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str, *, seconds: float = 5.0) -> object:
        """Until the script's value is true."""
        end = time.monotonic() + seconds
        while not (found := self.run(script)):
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds} s: {script}")
            time.sleep(0.1)
        return found

    def pointer(self, *moves: tuple[str, float, float]) -> None:
        """("move" | "down" | "up", x, y) in the window."""
        names = {"move": "mouseMoved", "down": "mousePressed", "up": "mouseReleased"}
        for name, x, y in moves:
            pressed = {} if name == "move" else {"button": "left", "clickCount": 1}
            self._cdp("Input.dispatchMouseEvent", type=names[name], x=x, y=y, **pressed)

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self._cdp("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def dark(self, on: bool) -> None:
        value = "dark" if on else "light"
        self._cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def log(self, kind: str) -> list[dict]:
        return self._post("se/log", {"type": kind})

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.log("browser")]

    def requests(self) -> list[str]:
        """Addresses of all that was asked for since the page was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def screenshot(self, path) -> None:
        shot = self._cdp("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _cdp(self, command: str, **parameters: object) -> dict:
        return self._post("goog/cdp/execute", {"cmd": command, "params": parameters})

    def _post(self, path: str, content: dict):
        return _send(f"{self._session}/{path}", content)


@contextlib.contextmanager
def browsing(folder):
    """A browser with an empty profile in `folder`; ended with its driver."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    root = f"http://127.0.0.1:{port}"
    options = {"binary": CHROMIUM, "args": [*_FLAGS, f"--user-data-dir={folder}"]}
    wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
    try:
        _until_up(root)
        session = f"{root}/session/" + _send(f"{root}/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        try:
            yield Browser(session)
        finally:
            _send(session, None, method="DELETE")
    finally:
        driver.terminate()
        driver.wait()


def _until_up(root: str) -> None:
    for _ in range(100):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{root}/status", timeout=5):
            return
        time.sleep(0.1)
    raise RuntimeError("The browser's driver did not start.")


def _send(address: str, content: dict | None, *, method: str = "POST"):
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(json.loads(error.read())["value"]["message"]) from None
