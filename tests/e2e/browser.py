"""Debian's chromium, driven through its debugging pipe: as little as the tests
of the dashboard need, and nothing to install but the browser."""
import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time

BINARIES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = """--headless=new --remote-debugging-pipe --no-first-run
    --no-default-browser-check --disable-gpu --disable-dev-shm-usage
    --disable-background-networking --disable-component-update --disable-sync
    --disable-extensions --mute-audio
    --hide-scrollbars --force-color-profile=srgb""".split()


def find():
    return next((path for path in map(shutil.which, BINARIES) if path), None)


class Browser:
    """One browser with one page. Collects what the page asks the network for
    and what it complains about."""

    def __init__(self, binary, folder):
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        flags = FLAGS + [f"--user-data-dir={folder}"]
        if os.getuid() == 0:
            flags.append("--no-sandbox")
        # The browser wants its pipe at descriptors 3 and 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash",
             binary, *flags, "about:blank"],
            pass_fds=(to_read, to_write), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session = None
        self.requests, self.complaints = [], []
        target = self.call("Target.createTarget", url="about:blank")
        self._session = self.call("Target.attachToTarget", flatten=True,
                                  targetId=target["targetId"])["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        try:
            self.call("Browser.close", timeout=60)
        except (AssertionError, OSError):
            pass
        for fd in (self._read, self._write):
            os.close(fd)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    # ---- messages ----

    def _receive(self, deadline):
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            assert left > 0, "the browser does not answer"
            if select.select([self._read], [], [], left)[0]:
                data = os.read(self._read, 1 << 20)
                assert data, "the browser is gone"
                self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, message):
        params = message.get("params", {})
        method = message.get("method")
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"])
        elif (method == "Log.entryAdded"
              and params["entry"]["level"] in ("error", "warning")):
            self.complaints.append(params["entry"])
        elif (method == "Runtime.consoleAPICalled"
              and params["type"] in ("error", "warning", "assert")):
            self.complaints.append(params)

    def call(self, method, timeout=300, **params):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    # ---- the page ----

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("location.href !== 'about:blank' && "
                  "document.readyState === 'complete'")

    def run(self, script):
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script,
                           returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, (script, result)
        return result["result"].get("value")

    def wait(self, script, timeout=300):
        """Until the expression is true; gives its value. One that is an
        element is true."""
        deadline = time.monotonic() + timeout
        while True:
            value = self.run(f"(v => v instanceof Node || v)({script})")
            if value:
                return value
            assert time.monotonic() < deadline, f"not in time: {script}"
            time.sleep(0.1)

    def size(self, width, height, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width,
                  height=height, deviceScaleFactor=1, mobile=mobile)

    def colours(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": scheme}])

    def key(self, key, code=None, number=0, modifiers=0):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key,
                      code=code or key, windowsVirtualKeyCode=number,
                      modifiers=modifiers)

    def screenshot(self, path, whole=False):
        picture = self.call("Page.captureScreenshot", format="png",
                            captureBeyondViewport=whole)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture))
