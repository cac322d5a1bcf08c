"""Records what a version writes: every kind of message, and the items of an order under way, one JSON file each.

    tests/lambda/.venv/bin/python tests/lambda/record.py --stepwarden target/release/stepwarden tests/data/recorded/VERSION

tests/upgrade.rs feeds the files to the present code. Record a version when it is released, and never change its files.
"""

import argparse
import json
import os
import signal
from pathlib import Path

from measure import ROOT, Events, RuntimeApi, World, is_good


def run(binary, environment, function, event):
    api = RuntimeApi()
    process = os.posix_spawn(binary, [str(binary)], environment | {"AWS_LAMBDA_RUNTIME_API": api.address})
    try:
        answer = api.invoke(event)
        if not is_good(function, answer):
            raise RuntimeError(f"{function}: {answer}")
        return answer
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--stepwarden", required=True)
    arguments.add_argument("--binaries", type=Path, default=ROOT / "target/lambda")
    arguments.add_argument("--replies", default="replies", help="the queue this version's agents reply to")
    arguments.add_argument("folder", type=Path)
    options = arguments.parse_args()
    options.folder.mkdir(parents=True)
    world = World(options.stepwarden)

    def keep(name, value):
        (options.folder / f"{name}.json").write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")

    def items(table):
        return world.ask("DynamoDB_20120810.Scan", {"TableName": f"shop-{table}"})["Items"]

    def step(function, event):
        return run(options.binaries / function.lower() / "bootstrap", world.environment(function), function, event)

    def message(queue):
        event = world.take(f"shop-{queue}")
        return event, json.loads(event["Records"][0]["body"])

    def task(name):
        keep(name, next(item for item in items("state") if item["pk"]["S"].startswith("ord_")))

    try:
        events = Events(world)
        event = events.next("Submit")
        body = json.loads(event["body"])
        more = {"reply_queue": "default", "reference": body["input"]["order_ref"], "priority": "high"}
        event["body"] = json.dumps(body | more)
        step("Submit", event)
        keep("order", items("orders")[0])
        keep("workflow", next(item for item in items("state") if item["pk"]["S"].startswith("workflow#")))
        task("task-submitted")
        keep("notice-received", message("notices-default")[1])
        wake, body = message("scheduler")
        keep("wake", body)
        step("Scheduler", wake)
        task("task-claimed")
        for agent, of in (("inventory", "reserve"), ("fraud", "check-fraud")):
            request, body = message(f"agent-{agent}")
            keep(f"request-{of}", body)
            step("Agent", request)
            reply, body = message(options.replies)
            keep(f"reply-{of}", body)
            step("Scheduler", reply)
        task("task-charging")
        request, body = message("agent-payment")
        keep("request-charge", body)
        step("Supervisor", {})
        keep("lease", next(item for item in items("state") if item["pk"]["S"].startswith("lease#")))
    finally:
        world.process.terminate()
        world.process.wait(15)
    print(f"recorded into {options.folder}")


if __name__ == "__main__":
    main()
