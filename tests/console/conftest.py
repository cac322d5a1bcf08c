"""A running system, and a browser that tells of every error and every breach of the page's security policy."""

import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SHOTS = Path(os.environ.get("SHOTS", ROOT / "target/console")).resolve()
PATIENCE_S = 60
# An order's whole way takes milliseconds; what is asked for is asked for again at most this long.
PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)


class System:
    """`stepwarden up`, and its API."""

    def __init__(self, binary, folder):
        workflows = folder / "workflows"
        shutil.copytree(HERE / "workflows", workflows)
        shutil.copy(ROOT / "workflows/order.toml", workflows)
        self.process = subprocess.Popen(
            [binary, "up", "--memory", "--port", "0", "--workflows", workflows],
            stdout=subprocess.PIPE, stderr=(folder / "log").open("w"), text=True, cwd=folder,
        )
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://127.0.0.1:"), f"the first line was {self.url!r}: {(folder / 'log').read_text()[-2000:]}"
        told = ""
        while "Stop with" not in told:
            told += self.process.stdout.readline()
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        self.token = re.search(r"token +(\S+)", told)[1]
        self.console = re.search(r"console +(\S+)", told)[1]
        assert self.console.endswith(f"/console#token={self.token}"), "the link signs in"
        self.aws = re.search(r"AWS endpoints +(\S+)", told)[1]
        self.remotes = re.search(r"remote services +(\S+)", told)[1]
        lines = (ROOT / "tests/data/northwind-orders.jsonl").read_text().splitlines()
        self.inputs = [json.loads(line) for line in lines]

    def call(self, method, path, body=None, base=None, **headers):
        """Status and JSON of the answer."""
        headers["authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request((base or self.url) + path, data, {"content-type": "application/json", **headers}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def submit(self, workflow="order", reference=None, number=0, key=None, **change):
        """The id of a new order."""
        body = {"workflow": workflow, "input": {**self.inputs[number], **change}, "reference": reference}
        key = key or str(uuid.uuid4())
        deadline = time.monotonic() + PATIENCE_S
        while True:
            status, told = self.call("POST", "/orders", body, **{"idempotency-key": key})
            if status != 429 or time.monotonic() > deadline:
                assert status == 202, told
                return told["order_id"]
            # On a slow machine too much may wait already.
            time.sleep(told["retry_after_s"])

    def submit_many(self, count):
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            return list(pool.map(lambda n: self.submit("noop", f"many-{n:04}"), range(count)))

    def faults(self, service, **faults):
        status, told = self.call("PUT", f"/faults/{service}", faults, base=self.remotes)
        assert status == 200, told

    def send(self, queue, body):
        """Puts a message into a queue, as somebody with the right to could."""
        queue = {"QueueUrl": f"{self.aws}/000000000000/stepwarden-{queue}", "MessageBody": body}
        request = urllib.request.Request(self.aws, json.dumps(queue).encode(), {"content-type": "application/x-amz-json-1.0", "x-amz-target": "AmazonSQS.SendMessage"})
        urllib.request.urlopen(request, timeout=30).read()

    def state(self, order):
        return self.call("GET", f"/orders/{order}")[1]["state"]

    def until(self, order, state):
        until(lambda: self.state(order) == state, f"{order} is {state}")

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()


def until(true, what):
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"not so after {PATIENCE_S} s: {what}"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def binary():
    return str(Path(os.environ["STEPWARDEN"]).resolve())


@pytest.fixture(scope="module")
def system(binary, tmp_path_factory):
    system = System(binary, tmp_path_factory.mktemp("system"))
    yield system
    system.end()


@pytest.fixture(scope="session")
def chromium():
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert path, "there is no Chromium here: apt-get install chromium, or set CHROMIUM to one"
    with sync_playwright() as playwright:
        # As root, as in a container, Chromium starts only without its sandbox.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield browser
        browser.close()


class Window:
    """A page of its own, and what went wrong in it. `expected` are statuses that a test asks for: the browser logs those."""

    def __init__(self, browser, url, expected=(), **options):
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, **{"locale": "en-GB", **options})
        self.context.set_default_timeout(PATIENCE_MS)
        self.page = self.context.new_page()
        self.wrong = []
        self.expected = list(expected)
        self.page.on("console", lambda m: self.wrong.append(m.text) if m.type in ("error", "warning") and not self.is_expected(m.text) else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"a script ran: {dialog.message}"))
        self.page.goto(url)

    def is_expected(self, text):
        return any(f"status of {status}" in text for status in self.expected) or ("net::" in text and "net" in self.expected)

    def shot(self, name, **options):
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png", animations="disabled", **options)


@pytest.fixture
def window(chromium, system):
    """Opens pages; afterwards none of them may have seen an error."""
    windows = []

    def open_one(path="", signed_in=True, **options):
        base, _, fragment = system.console.partition("#")
        fragment = fragment if signed_in else ""
        if path.startswith("#/") and fragment:
            path = f"#{fragment}&{path[1:]}"
        windows.append(Window(chromium, base + (path or (f"#{fragment}" if fragment else "")), **options))
        return windows[-1]

    yield open_one
    for one in windows:
        one.context.close()
    wrong = [line for one in windows for line in one.wrong]
    assert not wrong, wrong
