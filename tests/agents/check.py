"""Goal: an agent in another language, killed at work and started again, leaves nothing undone and nothing done twice.
Method: the real local system and examples/agents/gift_wrap.py, as two processes on loopback."""
# N3: in Python with one file.

import json
import os
import re
import secrets
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
AGENT = HERE.parents[1] / "examples/agents/gift_wrap.py"
PATIENCE_S = 90
ORDERS = 12


def until(what, look):
    """Waits until `look` sees something, and returns it."""
    deadline = time.monotonic() + PATIENCE_S
    while not (seen := look()):
        assert time.monotonic() < deadline, f"still waiting after {PATIENCE_S} s: {what}"
        time.sleep(0.05)
    return seen


class World:
    def __init__(self, program, folder):
        self.program, self.folder, self.agent = program, folder, None
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        # In memory nothing keeps the token for the command line to find.
        self.environment |= {"RUST_LOG": "error", "STEPWARDEN_TOKEN": secrets.token_hex(16)}
        command = [program, "up", "--memory", "--port", "0", "--workflows", HERE / "workflows", "--external-agent", "gift-wrap"]
        self.system = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=self.environment)
        text = ""
        while "AWS endpoints" not in text:
            line = self.system.stdout.readline()
            assert line, f"it ended: {text}"
            text += line
        self.environment |= {
            "STEPWARDEN_URL": text.split()[0],
            "AWS_ENDPOINT_URL": re.search(r"AWS endpoints\s+(\S+)", text)[1],
            "AWS_DEFAULT_REGION": "local",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "SHELF": str(folder / "shelf.db"),
            "CLOCK_SKEW_S": "0.1",
        }

    def start_agent(self):
        self.agent = subprocess.Popen([sys.executable, AGENT], cwd=self.folder, env=self.environment)

    def kill_agent(self):
        self.agent.send_signal(signal.SIGKILL)
        self.agent.wait()

    def verb(self, *arguments, text=None):
        """What a verb of the command line prints."""
        command = [self.program, *arguments]
        answer = subprocess.run(command, input=text, capture_output=True, text=True, cwd=self.folder, env=self.environment, timeout=30)
        assert answer.returncode == 0, f"{arguments}: {answer.stdout}{answer.stderr}"
        return answer.stdout

    def order(self, id):
        return json.loads(self.verb("get", id, "--json"))

    def shelf(self):
        """Gifts as key -> undone."""
        assert self.agent.poll() is None, "the agent has ended by itself"
        if not (self.folder / "shelf.db").exists():
            return {}
        with sqlite3.connect(self.folder / "shelf.db") as shelf:
            return dict(shelf.execute("SELECT key, undone FROM gifts"))

    def stop(self):
        if self.agent and self.agent.poll() is None:
            self.kill_agent()
        self.system.terminate()
        try:
            self.system.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.system.kill()


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        world = World(program, Path(folder))
        try:
            world.start_agent()
            ids = []
            for n in range(ORDERS):
                order = json.dumps({"paper": f"paper {n}"})
                answer = world.verb("submit", "-", "--workflow", "gift", "--key", f"gift-{n}", "--json", text=order)
                ids.append(json.loads(answer)["order_id"])
            until("some gifts are wrapped", lambda: len(world.shelf()) >= 3)
            wrapped = len(world.shelf())
            world.kill_agent()
            assert wrapped < ORDERS, "it was too late to kill the agent in the middle"
            world.start_agent()
            for n, id in enumerate(ids):
                ended = until(f"{id} has ended", lambda: (o := world.order(id))["state"] in ("Processed", "Undone", "Error") and o)
                assert ended["state"] == "Processed", ended
                outputs = [step.get("output") for step in ended["steps"] if step["name"] == "wrap"]
                assert outputs == [{"paper": f"paper {n}"}], ended
            assert world.shelf() == {f"{id}:wrap:do": 0 for id in ids}, world.shelf()
            world.verb("undo", ids[0], "--by", "somebody", "--reason", "a test")
            until("the gift is unwrapped", lambda: world.order(ids[0])["state"] == "Undone")
            assert world.shelf()[f"{ids[0]}:wrap:do"] == 1
            print(f"{ORDERS} orders Processed, {wrapped} wrapped before the kill, each once; one undone")
        finally:
            world.stop()


# The system runs in a folder of its own.
main(Path(sys.argv[1]).resolve())
