"""Runs orders with faults through the deployed system and checks what came of them; the exit code is the verdict.

Every part shows one row of the failure table and ends with what the row promises; at the end every order is final and the
ledgers of the remote services hold each effect once, or applied and undone: the checks of the local system.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from pathlib import Path

import deploy
import emulator
import signed
import worker
import yours
from deploy import ROOT
from world import DOCS, FINAL, SERVICES, VISIBILITY_S, Failed, Remotes, System, check, until

STACK = "shop"
# More orders than make an agent strained if one sweep finds them held up there (STRAIN_LEAST, usually 10).
STRAINING = 16
# What was sent as poison, by the queue it went to.
POISON = {
    "scheduler": '{"type": "wake"',
    "replies": '{"type": "cancel", "task_id": "ord_none", "by": "nobody", "reason": "only replies belong there"}',
    "agent-inventory": "not a request",
    "submissions": '{"idempotency_key": "bad", "workflow": "order", "input": {"order_ref": 7}}',
}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--stepwarden", required=True, help="the local binary, for the remote services")
    arguments.add_argument("--rust-agent", type=Path, default=ROOT / "target/e2e/parcel", help="a folder with an agent in Rust, built")
    arguments.add_argument("--binaries", type=Path, default=ROOT / "target/lambda", help="folder of NAME/bootstrap")
    arguments.add_argument("--orders", type=int, default=24, help="orders of the first part")
    arguments.add_argument("--seed", type=int, default=1, help="of faults and kills")
    arguments.add_argument("--classes", action="store_true", help="with PriorityClasses: queues of their own for urgent orders")
    arguments.add_argument("--only", nargs="*", help="names of parts; the others are left out")
    arguments.add_argument("--keep", action="store_true", help="keep the folder with the emulator's log")
    options = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stepwarden-e2e-"))
    begin = time.monotonic()
    ministack = remotes = None
    try:
        remotes = Remotes(options.stepwarden)
        ministack = emulator.MiniStack(folder)
        urls = {f"{name.capitalize()}Url": f"{remotes.url}/{name}" for name in SERVICES}
        # EventBridge starts the supervisor once a minute; within it, it sweeps every two seconds.
        parameters = {**urls, "HttpPolicyArns": signed.prepare(), "Sample": "true", "DocsUrl": DOCS, "ExternalAgents": ",".join((*yours.OWN, worker.AGENT)), "PublicUrl": yours.PUBLIC, "SweepEveryMs": "2000", "PriorityClasses": str(options.classes).lower()}
        outputs = deploy.deploy(STACK, parameters, options.binaries)
        print(f"deployed in {time.monotonic() - begin:.1f} s: {outputs['ApiUrl']}", flush=True)
        # A changed parameter reaches the agents' stacks, and all of them still work afterwards.
        update = lambda **changed: deploy.deploy(STACK, parameters | changed, options.binaries, again=True)  # noqa: E731
        parameters["AgentConcurrency"] = "21"
        outputs = update()
        print(f"updated in {time.monotonic() - begin:.1f} s", flush=True)
        run(System(STACK, outputs, ministack, remotes, update), options)
        delete()
        print(f"all checks hold, {time.monotonic() - begin:.0f} s")
    except Exception as error:
        if not isinstance(error, Failed):
            raise
        options.keep = True
        print(f"FAIL {error}", file=sys.stderr)
        return 1
    finally:
        if ministack:
            ministack.stop()
        if remotes:
            remotes.stop()
        if options.keep:
            print(f"the emulator's log: {folder}/ministack.log")
        else:
            import shutil

            shutil.rmtree(folder, ignore_errors=True)
    return 0


def priority(n):
    """Every third order is urgent, every third one may wait."""
    return {"priority": ("normal", "high", "low")[n % 3]}


def orders():
    """The 830 real orders, one after another."""
    with (ROOT / "tests/data/northwind-orders.jsonl").open() as lines:
        yield from map(json.loads, lines)


def run(system, options):
    sample = orders()
    parts = [callers, sample_orders, silent_agent, refused_payment, failed_undo, cancelled, poison, half_a_batch, signed.signed_calls, yours.own_folder, worker.long_work, by_alias]
    for part in parts:
        if options.only and part.__name__ not in options.only:
            continue
        begin = time.monotonic()
        system.remotes.faults()
        row = part(system, sample, options)
        print(f"  ok   {row} ({time.monotonic() - begin:.0f} s)", flush=True)
    system.remotes.faults()
    finish(system)


# Calls fail, hang and lose their answers; processes are killed on the way.
def sample_orders(system, sample, options):
    code, _ = system.call("GET", "/orders", signed=False)
    check(code == 403, f"an unsigned call was answered {code}")
    every = {"transient": 0.1, "permanent": 0.04, "hang": 0.02, "lost_answer": 0.04, "undo_transient": 0.1}
    system.remotes.faults(options.seed, **dict.fromkeys(SERVICES, every))
    end = system.kill_some(options.seed)
    try:
        ids = [
            system.submit(f"sample-{n}", next(sample), "sample", reply_queue="default", **priority(n))
            for n in range(options.orders)
        ]
        time.sleep(5)
    finally:
        kills = end()
    check(kills > 0, "no process was killed")
    for order_id in ids:
        system.ends(order_id, "Processed", "Undone", patience=300)
    check(len(set(ids)) == options.orders, "two keys, one order")
    return f"{options.orders} orders with faults, {kills} function processes killed: all Processed or Undone"


# Each managed policy opens the routes of its kind of caller, and no others.
def callers(system, _sample, _options):
    iam = emulator.client("iam")
    routes = {
        "Submitter": ("GET", "/orders/ord_none"),
        "Operator": ("GET", "/orders"),
        "Publisher": ("POST", "/workflows"),
        "Eraser": ("POST", "/orders/ord_none/erasure"),
    }
    for kind in routes:
        iam.create_user(UserName=kind)
        iam.attach_user_policy(UserName=kind, PolicyArn=system.outputs[f"{kind}PolicyArn"])
        key = iam.create_access_key(UserName=kind)["AccessKey"]
        caller = (key["AccessKeyId"], key["SecretAccessKey"])
        for whose, (method, path) in routes.items():
            code, answer = system.call(method, path, {} if method == "POST" else None, caller=caller)
            check((code == 403) == (whose != kind), f"{kind} calls {method} {path}: {code} {answer}")
        iam.detach_user_policy(UserName=kind, PolicyArn=system.outputs[f"{kind}PolicyArn"])
    return "callers that sign: the managed policies open the routes of their kind, and no others"


# The remote service is silent until CompleteBy; the supervisor's schedule gives the steps back, and tells that the agent is
# strained: so many orders held up at one agent in one sweep.
def silent_agent(system, sample, options):
    system.remotes.faults(shipping={"hang": 1.0})
    ids = [system.submit(f"silent-{n}", next(sample), "silent agent", **priority(n)) for n in range(STRAINING)]
    for order_id in ids:
        until("the step expired", lambda: ("step_expired", "ship") in system.events(order_id), 150)
    heard = until("the alert", lambda: [a for a in system.alerts() if a.get("agent") == "shipping"], 90)
    check(heard[0]["runbook"].endswith("#agent-strained") and heard[0]["held"] >= 10, f"another alert: {heard[0]}")
    system.mails("Agent shipping is in trouble: it holds up ")
    code, agents = system.call("GET", "/agents")
    strained = [a["name"] for a in agents["agents"] if a.get("strained")]
    check(code == 200 and "shipping" in strained, f"the operator does not see it: {code} {agents}")
    system.remotes.faults()
    for order_id in ids:
        system.ends(order_id, "Processed", patience=300)
    return f"a silent agent: {len(ids)} steps expired and were requeued, an alert told that it is strained, all Processed"


def refused_payment(system, sample, options):
    system.remotes.faults(payment={"permanent": 1.0})
    order_id = system.submit("refused", next(sample), "refused payment")
    system.ends(order_id, "Undone")
    reserved = [e for e in system.remotes.ledger(order_id) if e["service"] == "inventory"]
    check([bool(e["undone_at"]) for e in reserved] == [True], f"the reservation was not released once: {reserved}")
    return "a permanent error: what was done is undone"


# An undo that fails for good stops the order in Error, with an alert; an operator resubmits it.
def failed_undo(system, sample, options):
    system.remotes.faults(payment={"permanent": 1.0}, inventory={"undo_fails": 1.0})
    order_id = system.submit("failed-undo", next(sample), "failed undo")
    system.ends(order_id, "Error")
    heard = until("the alert", lambda: [a for a in system.alerts() if a.get("order_id") == order_id], 90)
    check("runbook" in heard[0] and heard[0]["resubmit"], f"the alert says too little: {heard[0]}")
    system.mails(f"Order {order_id} needs a person (workflow: order).")
    code, listed = system.call("GET", "/orders?state=Error")
    check(code == 200 and order_id in json.dumps(listed), f"not in the operator's list: {code} {listed}")
    system.remotes.faults(payment={"permanent": 1.0})
    system.act(order_id, "resubmit", "the inventory is back")
    until("the order goes on", lambda: system.status(order_id)["state"] != "Error", 30)
    system.ends(order_id, "Undone")
    return "an undo that fails for good: Error, alert, resubmitted by an operator, Undone"


def cancelled(system, sample, options):
    system.remotes.faults(shipping={"hang": 1.0})
    order_id = system.submit("cancelled", next(sample), "cancelled")
    until("the parcel is being booked", lambda: ("step_started", "ship") in system.events(order_id), 60)
    system.act(order_id, "cancel", "the customer called")
    system.remotes.faults()
    system.ends(order_id, "Undone")
    return "cancelled by an operator on the way: Undone"


# Messages that cannot be handled are set aside with their reason; their neighbours in the batch are not held up.
def poison(system, sample, options):
    good = next(sample)
    by_message = {"idempotency_key": "by-message", "workflow": "order", "reference": good["order_ref"], "input": good}
    for queue, body in POISON.items():
        system.send(queue, *([by_message, body] if queue == "submissions" else [body]))
    until("all poison is set aside", lambda: system.waiting("set-aside") == len(POISON), 60)
    aside = system.take("set-aside")
    check(sorted(m["body"] for m in aside) == sorted(POISON.values()), f"set aside: {aside}")
    check(all(m["reason"] for m in aside), f"set aside without a reason: {aside}")
    heard = until(
        "an alert for each", lambda: [a for a in system.alerts() if a.get("message_id")][len(POISON) - 1 :], 60
    )
    check(heard, "no alert")
    check(len(system.mails(" cannot be handled and was set aside.")) == len(POISON), "not a mail for each")
    code, again = system.call(
        "POST", "/orders", {k: v for k, v in by_message.items() if k != "idempotency_key"}, idempotency_key="by-message"
    )
    check(code == 202, f"the good neighbour: {code} {again}")
    system.orders[again["order_id"]] = "by message"
    system.ends(again["order_id"], "Processed")
    return f"{len(POISON)} messages that cannot be handled: set aside with an alert each, their neighbour Processed"


# One message of a batch fails, because its submitter's queue is away: only that one comes again, and goes through then.
def half_a_batch(system, sample, options):
    order_id = system.submit("half", next(sample), "half a batch", reply_queue="default")
    system.ends(order_id, "Processed")
    until("its notices", lambda: [n for n in system.take("notices-default") if n["kind"] == "completed"], 30)
    ship = next(s for s in system.status(order_id)["steps"] if s["name"] == "ship")
    settled = {"type": "reply", "task_id": order_id, "step": "ship", "attempt": ship["attempts"], "outcome": "done"}
    settled["output"] = ship["output"]
    until("nothing is under way", lambda: not system.waiting("replies"), 60)
    attributes = {"MessageRetentionPeriod": "1209600"}
    system.sqs.delete_queue(QueueUrl=system.queues["notices-default"])
    try:
        # The reply that ended the order comes again, as SQS may deliver any message twice: its notice is owed again.
        # Its neighbour is a late reply, which changes nothing.
        system.send("replies", settled, {**settled, "step": "charge"})
        until("one of two stays", lambda: system.attribute("replies", "NotVisible") == 1, 15, 0.05)
        time.sleep(1)
        check(system.waiting("replies") == 1, "both or none of the batch came again")
        check("1 partial failures" in system.ministack.log.read_text(), "the batch did not fail in part")
    finally:
        # Without the tag no role may send to it.
        system.sqs.create_queue(QueueName=f"{STACK}-notices-default", Attributes=attributes, tags={"stepwarden": STACK})
    seen = until("the notice", lambda: system.take("notices-default"), VISIBILITY_S + 30)
    check(seen[0]["order_id"] == order_id and seen[0]["state"] == "Processed", f"another notice: {seen}")
    until("it is settled", lambda: not system.waiting("replies"), 30)
    return "half a batch fails: only that half comes again, and its notice goes out then"


# A version is reached by its alias alone: what is deployed waits until it is named, and the version before is one parameter away. The
# emulator keeps the share of a canary and sends it nothing.
def by_alias(system, sample, _options):
    name = f"{STACK}-submit"
    variables = system.lambda_.get_function_configuration(FunctionName=name)["Environment"]["Variables"]
    publish = lambda: system.lambda_.publish_version(FunctionName=name)["Version"]  # noqa: E731

    def named(version, canary=""):
        system.update(SubmitVersion=version, SubmitCanaryVersion=canary, CanaryWeight="0.25")
        system.settle()

    def answers(key, *codes):
        body = {"workflow": "order", "input": next(sample)}
        until(f"{key} is answered by {codes}", lambda: system.call("POST", "/orders", body, idempotency_key=key)[0] in codes, 60)

    good = publish()
    named(good)
    # With these values no instance starts.
    system.lambda_.update_function_configuration(FunctionName=name, Environment={"Variables": variables | {"WORKFLOW_CONFIG": "{"}})
    bad = publish()
    system.ends(system.submit("alias", next(sample), "by alias"), "Processed")
    named(good, bad)
    alias = system.lambda_.get_alias(FunctionName=name, Name="live")
    check((alias["FunctionVersion"], alias["RoutingConfig"]["AdditionalVersionWeights"]) == (good, {bad: 0.25}), f"alias: {alias}")
    named(bad)
    answers("bad", 500, 502, 503, 504)
    named(good)
    system.ends(system.submit("alias-back", next(sample), "by alias"), "Processed")
    system.lambda_.update_function_configuration(FunctionName=name, Environment={"Variables": variables})
    named("")
    system.ends(system.submit("no-alias", next(sample), "by alias"), "Processed")
    return "a version by its alias: what is deployed waits, and the version before is one parameter away"


def finish(system):
    """The table of all orders, and what has to hold for all of them."""
    table, expected = [], {}
    for order_id, what in system.orders.items():
        status, events = system.status(order_id), [event for event, _ in system.events(order_id)]
        state = status["state"]
        expected[order_id] = {"applied": list(SERVICES)} if state == "Processed" else "undone" if state == "Undone" else "any"
        counts = [events.count(e) for e in ("step_expired", "step_unavailable", "step_undone")]
        table.append((status["reference"], what, state, sum(s["attempts"] for s in status["steps"]), *counts))
    head = ("order", "part", "state", "attempts", "expired", "given back", "undone")
    widths = [max(len(str(row[n])) for row in [head, *table]) for n in range(len(head))]
    for row in [head, *table]:
        print("  " + "  ".join(str(v).ljust(w) if n < 3 else str(v).rjust(w) for n, (v, w) in enumerate(zip(row, widths))))
    open_ones = [row for row in table if row[2] not in FINAL]
    check(not open_ones, f"not ended: {open_ones}")
    report = system.remotes.ask("POST", "/check", expected)
    words = [v["words"] for v in report["violations"]]
    check(report["violation_count"] == 0, "ledgers: " + "; ".join(words))
    print(f"  ok   every order ended; {report['effects']} effects, each applied once, or applied and undone")
    busy = lambda: {q: n for q in system.consumed if (n := system.waiting(q))}  # noqa: E731
    until("all queues are empty", lambda: not busy(), VISIBILITY_S * 6)
    dead = {q: n for q in system.queues if q.endswith("-dead") and (n := system.waiting(q))}
    check(not dead, f"dead letters: {dead}")
    check(system.waiting("set-aside") == 0, f"set aside: {system.take('set-aside')}")
    print("  ok   no message is left, dead, or set aside but the poison")
    # A queue that is away has no tag either, so the answer is the same as for a queue of somebody else's.
    log = system.ministack.log.read_text().splitlines()
    denied = [line for line in log if "AccessDenied" in line and f"{STACK}-notices-default" not in line and signed.TABLE not in line and not re.search(rf"{STACK}-agent-({'|'.join((*yours.OWN, worker.AGENT))})", line)]
    check(not denied, f"a role lacks a right: {denied[:3]}")
    print("  ok   the functions' roles, enforced, were enough")


def delete():
    """The stack goes as docs/deploy.md says; the tables stay."""
    cloudformation, dynamodb = emulator.client("cloudformation"), emulator.client("dynamodb")
    cloudformation.delete_stack(StackName=STACK)

    def is_gone():
        stacks = cloudformation.list_stacks()["StackSummaries"]
        return all(s["StackStatus"] == "DELETE_COMPLETE" for s in stacks if s["StackName"] == STACK)

    until("the stack is deleted", is_gone, 60)
    left = {t for t in dynamodb.list_tables()["TableNames"] if t.startswith(f"{STACK}-")}
    check(left == {f"{STACK}-orders", f"{STACK}-state"}, f"tables left by the deleted stack: {left}")
    print("  ok   the stack is deleted, and both tables are kept")


if __name__ == "__main__":
    sys.exit(main())
