"""Long work: a worker outside Lambda, whose heartbeats go through API Gateway without a token but that of their address."""

import re
import time

import deploy
from deploy import ROOT
from world import check, until
from yours import PUBLIC, post

AGENT, STACK = "worker", "worker-agent"
HEARTBEAT_S, SWEEP_S = 5, 2
TOML = f"""
name = "film"
[[step]]
name = "render"
agent = "{AGENT}"
timeout = "12h"
heartbeat = "{HEARTBEAT_S}s"
retry = {{ max = 2, backoff = ["1s"] }}
"""


def request(system):
    """The next request of the agent, which its worker takes off the queue."""
    return until("the worker has a request", lambda: next(iter(system.take(f"agent-{AGENT}")), None), 60)


def beat(system, path, **progress):
    return system.call("POST", path, progress, signed=False)


def submit(system, key):
    code, answer = system.call("POST", "/orders", {"workflow": "film", "input": {}}, idempotency_key=key)
    check(code == 202, f"{key}: {code} {answer}")
    return answer["order_id"]


def address(order, told, attempt):
    path = re.fullmatch(rf"{PUBLIC}(/heartbeats/{order}/render/{attempt}/[0-9a-f]+)", told["heartbeat"]["url"])
    check(path, f"another address: {told['heartbeat']}")
    return path[1]


def long_work(system, _sample, _options):
    deploy.stack(STACK, (ROOT / "infra/agent.yaml").read_text(), {"Stack": system.stack, "Agent": AGENT})
    system.settle()
    put = post(system, "/workflows", toml=TOML, file="film.toml")
    post(system, "/workflows/film/activate", hash=put["hash"], if_version=0)
    time.sleep(5)
    order = submit(system, "film")
    told = request(system)
    path = address(order, told, 1)
    code, answer = beat(system, path[:-1] + ("0" if path[-1] != "0" else "1"))
    check((code, answer["code"]) == (404, "no_such_heartbeat"), f"another token: {code} {answer}")
    # Twice as long as an attempt without heartbeats.
    end, until_when = time.monotonic() + 4 * HEARTBEAT_S, told["complete_by"]
    while time.monotonic() < end:
        code, answer = beat(system, path, percent=40, note="4 of 10 films")
        check(code == 200 and answer["complete_by"] >= until_when, f"heartbeat: {code} {answer}, before {until_when}")
        until_when = answer["complete_by"]
        time.sleep(HEARTBEAT_S / 2)
    step = system.status(order)["steps"][0]
    check((step["state"], step["attempts"], step["progress"]["percent"]) == ("Processing", 1, 40), f"the step with heartbeats: {step}")
    # The worker dies.
    died = time.monotonic()
    again = request(system)
    found = time.monotonic() - died
    check(again["attempt"] == 2 and found < 2 * HEARTBEAT_S + 1 + SWEEP_S + 10, f"attempt {again['attempt']} after {found:.1f} s")
    code, answer = beat(system, path)
    check((code, answer["code"]) == (409, "attempt_over"), f"a heartbeat of an older attempt: {code} {answer}")
    # The next one is told to stop.
    second = address(order, again, 2)
    check(beat(system, second)[0] == 200, "the second worker")
    system.act(order, "cancel", "e2e")
    code, answer = beat(system, second)
    check((code, answer["code"]) == (409, "attempt_over"), f"a heartbeat after the cancel: {code} {answer}")
    system.ends(order, "Undone")
    # And one that is stopped hands its work back.
    order = submit(system, "film-2")
    told = request(system)
    echoed = {key: told[key] for key in ("task_id", "step", "attempt")}
    back = {"outcome": "deferred", "error": "stopped", "retry_after_ms": 1000, "unsure": True}
    system.send("replies", {"type": "reply", **echoed, **back})
    told = request(system)
    echoed["attempt"] = told["attempt"]
    system.send("replies", {"type": "reply", **echoed, "outcome": "done", "output": None})
    system.ends(order, "Processed")
    kinds = [event for event, _ in system.events(order)]
    check("step_expired" not in kinds and "step_deferred" in kinds, f"handed back: {kinds}")
    deploy.remove(STACK)
    system.queues = {name: url for name, url in system.queues.items() if not name.startswith(f"agent-{AGENT}")}
    system.settle()
    return f"heartbeats through API Gateway; a dead worker found after {found:.1f} s, heartbeats {HEARTBEAT_S} s apart; one told to stop, one handed back"
