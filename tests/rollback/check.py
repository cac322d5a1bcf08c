"""Goal: after a roll-back the older version goes on with the newer one's orders, or refuses them in words, and nothing is lost for the
newer one when it comes back. Method: both programs by turns on one data directory; agents are paused, so that orders are under
way, paused, and turning to undo whenever one version hands over to the other. Others wait for events, or work on a list."""
# N6: back and forth by version.

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

PATIENCE_S = 120
# A record that a version could not read is looked at again every five minutes.
ASIDE_S = 300
# Every instance reads which agents are paused at most every two seconds.
PAUSE_SEEN_S = 3
ENDED = {"Processed", "Undone"}
# Every rule that a definition can have and an older version may not know does no harm to it, or is refused.
WORKFLOW = """
name = "trip"
tombstones = true
[[step]]
name = "hold"
agent = "inventory"
timeout = "5s"
undo = { agent = "inventory" }
[[step]]
name = "pay"
agent = "payment"
after = ["hold"]
timeout = "5s"
undo = { agent = "payment" }
[[step]]
name = "send"
agent = "shipping"
after = ["pay"]
timeout = "5s"
undo = { agent = "shipping" }
"""

# Waits for somebody, before and after the change of versions.
ASKS = """
name = "asks"
[[step]]
name = "ask"
event = "answered"
timeout = "7d"
[[step]]
name = "pause"
after = ["ask"]
wait = "1s"
"""
# What a version before lists has to refuse.
LIST = """
name = "list"
output = { done = "${outputs.items.done}" }
[[step]]
name = "items"
each = "${input.items}"
workflow = "item"
with = { total_cents = "${item}" }
"""
ITEM = """
name = "item"
[[step]]
name = "send"
agent = "shipping"
timeout = "5s"
"""
ITEMS = 6


def until(what, look, patience=PATIENCE_S):
    """Waits until `look` sees something, and returns it."""
    deadline = time.monotonic() + patience
    while not (seen := look()):
        assert time.monotonic() < deadline, f"still waiting after {patience} s: {what}"
        time.sleep(0.1)
    return seen


class Refused(Exception):
    """The system did not start; why, in its own words."""


class System:
    """One version, up on the data directory."""

    def __init__(self, program, folder, workflows):
        self.token = secrets.token_hex(16)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        environment |= {"RUST_LOG": "error", "STEPWARDEN_TOKEN": self.token}
        command = [program, "up", "--port", "0", "--data", folder / "data", *workflows]
        self.log = open(folder / "log", "a")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=folder, env=environment)
        first = self.process.stdout.readline().split()
        if not first:
            code = self.process.wait(60)
            self.log.close()
            raise Refused(code, (folder / "log").read_text()[-2000:])
        self.url = first[0]

    def ask(self, path, body=None, key=None):
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        headers |= {"idempotency-key": key} if key else {}
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def act(self, path, verb):
        status, answer = self.ask(f"{path}/{verb}", {"by": "ann", "reason": "a change of versions"})
        assert status in (200, 202), (path, verb, status, answer)

    def pause(self, agent):
        """Pauses an agent, and waits until no instance gives it work."""
        self.act(f"/agents/{agent}", "pause")
        time.sleep(PAUSE_SEEN_S)

    def submit(self, workflow, input, key):
        status, answer = self.ask("/orders", {"workflow": workflow, "input": input}, key)
        assert status == 202, answer
        return answer["order_id"]

    def answer(self, id):
        status, answer = self.ask(f"/orders/{id}/events/answered", {}, f"answer-{id}")
        assert status == 202, answer

    def order(self, id):
        """How it stands; `None` where this version refuses it."""
        status, answer = self.ask(f"/orders/{id}")
        assert status in (200, 503) or answer["code"] == "unreadable", answer
        return answer if status == 200 else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.log.close()


def again(program, folder, workflows):
    """The newer version on what the older one left. One without marks of what its files held leaves them changed, which the newer one
    takes for damage: it says so, and goes on with all of it when it is asked to."""
    try:
        return System(program, folder, workflows)
    except Refused as refused:
        code, words = refused.args
        assert code == 2 and "older version" in words and "--accept-loss" in words, (code, words)
        print("the newer version asks for --accept-loss")
        return System(program, folder, ["--accept-loss", *workflows])


def states(system, ids):
    return [(order or {"state": "refused"})["state"] for order in map(system.order, ids)]


def main(newer, older):
    newer, older = (Path(program).resolve() for program in (newer, older))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Not `workflows`, which `up` reads unasked: the older version would refuse the file before it saw a record.
        (folder / "newer").mkdir()
        for name, text in {"trip": WORKFLOW, "asks": ASKS, "list": LIST, "item": ITEM}.items():
            (folder / f"newer/{name}.toml").write_text(text)
        workflows = ["--workflows", folder / "newer"]
        with System(newer, folder, workflows) as system:
            system.pause("shipping")
            ids = []
            for n in range(12):
                body = {"workflow": "trip", "input": {"total_cents": 100 + n}, "reply_queue": "default", "reference": f"r-{n}"}
                status, answer = system.ask("/orders", body, key=f"key-{n}")
                assert status == 202, answer
                ids.append(answer["order_id"])
            goes, turns, waits = ids[:4], ids[4:8], ids[8:]
            asks = [system.submit("asks", {}, f"ask-{n}") for n in range(2)]
            lists = [system.submit("list", {"items": list(range(1, ITEMS + 1))}, "list")]
            items = lambda: system.order(lists[0])["steps"][0].get("items", {})
            until("all items are open", lambda: items().get("open") == ITEMS)
            until("both ask", lambda: all(system.order(id)["steps"][0].get("waiting_until") for id in asks))
            paid = lambda id: system.order(id)["steps"][1]["state"] == "Processed"
            until("all are paid", lambda: all(map(paid, ids)))
            system.pause("inventory")
            for id in turns:
                system.act(f"/orders/{id}/actions", "cancel")
            for id in waits:
                system.act(f"/orders/{id}/actions", "pause")
        # The older version knows the workflow from the record alone.
        with System(older, folder, []) as system:
            before = states(system, ids)
            system.act("/agents/shipping", "resume")
            # What it refuses stands still; what it reads it brings to its end.
            readable = [id for id, state in zip(goes, before) if state != "refused"]
            until("what is readable goes on", lambda: set(states(system, readable)) <= ENDED)
            asked, listed = states(system, asks), states(system, lists)
            if "refused" not in asked:
                system.answer(asks[0])
                until("the older version takes the event", lambda: states(system, asks[:1]) == ["Processed"])
            before += asked + listed
            print(f"events: {asked}, list: {listed}")
            print(f"{older.parent.name[:12]}: {len(readable)} of {len(goes)} orders under way were finished, {before.count('refused')} of {len(before)} refused")
        if "refused" in before:
            log = (folder / "log").read_text()
            assert re.search("newer version", log), f"a refusal says why: {log[-2000:]}"
        with again(newer, folder, workflows) as system:
            system.act("/agents/inventory", "resume")
            for id in waits:
                system.act(f"/orders/{id}/actions", "resume")
            for id in asks:
                if states(system, [id]) != ["Processed"]:
                    system.answer(id)
            until("all come to their end", lambda: set(states(system, ids + asks + lists)) <= ENDED, ASIDE_S + PATIENCE_S)
            assert set(states(system, asks + lists)) == {"Processed"}, states(system, asks + lists)
            assert system.order(lists[0])["output"] == {"done": ITEMS}, system.order(lists[0])
            assert set(states(system, goes + waits)) == {"Processed"}, states(system, ids)
            assert set(states(system, turns)) == {"Undone"}, states(system, ids)
            for n, id in enumerate(ids):
                order = system.order(id)
                assert (order["reference"], order["tenant"]) == (f"r-{n}", "default"), order
                body = {"workflow": "trip", "input": {"total_cents": 100 + n}, "reply_queue": "default", "reference": f"r-{n}"}
                assert system.ask("/orders", body, key=f"key-{n}")[1]["order_id"] == id, "one key, one order"
    print("back again: every order came to its end once")


if __name__ == "__main__":
    main(*sys.argv[1:])
