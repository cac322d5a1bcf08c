"""What every agent of Stepwarden does, in one file without dependencies. docs/agents.md of Stepwarden has the rules.

An `Agent` is the handler of a Lambda function; `run()` serves the same agent as a program, which `stepwarden up` starts.
"""

import json
import os
import random
import re
import signal
import threading
import time
import traceback
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

STACK = os.environ.get("STACK", "stepwarden")
# In Lambda boto3 calls, which signs and knows of endpoints itself.
ENDPOINT = None if "AWS_LAMBDA_FUNCTION_NAME" in os.environ else os.environ.get("AWS_ENDPOINT_URL")
# Largest difference between two clocks: no call starts later than this before CompleteBy.
SKEW_S = int(os.environ.get("CLOCK_SKEW_MS", "1000")) / 1000
# Requests that one program works on at a time, and seconds that they may take once it is told to stop.
THREADS, GRACE_S = 4, 4
# How long a step waits that this program hands back: until then it has ended, and with it the work.
HANDED_BACK_MS = 2000


class Failed(Exception):
    """A permanent failure: the step is not tried again. Its `catch` may read `status` and `answer`.

    `uncalled=True` says that the service was not called and cannot be, for example because the input does not fit. Then no `catch`
    applies, and an undo that uses data of the order is not called."""

    def __init__(self, error, status=None, answer=None, uncalled=False):
        super().__init__(error)
        self.more = {"status": status, "answer": answer, "uncalled": uncalled or None}


class Unavailable(Exception):
    """The service does not answer now: the step is tried again, not before `retry_after_s` if the service said so."""

    def __init__(self, error, status=None, retry_after_s=None):
        super().__init__(error)
        self.retry_after_s = retry_after_s
        self.more = {"status": status, "retry_after_ms": retry_after_s and int(retry_after_s * 1000)}


class NotYet(Exception):
    """The step polls, and the service's work is neither done nor has it failed. The words are what the service said."""


class Accepted(Exception):
    """The service accepted the work and reports its end later, to the request's `callback`. `output` is what the undo needs to know
    until then."""

    def __init__(self, output):
        super().__init__("the service accepted the work")
        self.output = output


class Stopped(Exception):
    """The attempt is over: the function ends its work, and there is no reply."""


class Agent:
    """An agent called `name`. `do` and `undo` have a function for each step: it gets the request, and returns the step's
    output, or raises `Failed`, `Unavailable`, `NotYet` or `Accepted`. Any other exception counts as `Unavailable`."""

    def __init__(self, name, do, undo=None):
        self.name, self.functions = name, {"do": do, "undo": undo or {}}
        # Requests that nothing was replied to yet, by identity, with what deletes their message.
        self.lock, self.open = threading.Lock(), {}

    def __call__(self, event, context):
        """A batch from Lambda. What is not answered is redelivered."""

        def one(record):
            try:
                self.answer(record["body"], int(record["attributes"]["ApproximateReceiveCount"]))
            except Exception:
                traceback.print_exc()
                return {"itemIdentifier": record["messageId"]}

        with ThreadPoolExecutor(max_workers=len(event["Records"])) as pool:
            return {"batchItemFailures": [failed for failed in pool.map(one, event["Records"]) if failed]}

    def run(self):
        """Serves requests until SIGTERM or SIGINT."""
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        busy = [threading.Lock() for _ in range(THREADS)]
        for lock in busy:
            threading.Thread(target=self.serve, args=(lock, stop), daemon=True).start()
        stop.wait()
        end = time.monotonic() + GRACE_S
        for lock in busy:
            lock.acquire(timeout=max(0, end - time.monotonic()))
        self.hand_back()

    def hand_back(self):
        """Gives back what is not done when the program ends, which counts no failed attempt. How far it came is unknown."""
        with self.lock:
            left, self.open = list(self.open.values()), {}
        for request, delete in left:
            try:
                reply(request, {"outcome": "deferred", "error": "the agent was stopped before the work was done",
                                "retry_after_ms": HANDED_BACK_MS, "unsure": True})
                delete()
            except Exception as error:
                print(f"{self.name}: not handed back: {type(error).__name__}: {error}", flush=True)

    def serve(self, busy, stop):
        requests = f"{STACK}-agent-{self.name}"
        while not stop.is_set():
            try:
                received = sqs("ReceiveMessage", requests, MaxNumberOfMessages=1, WaitTimeSeconds=20,
                               MessageSystemAttributeNames=["ApproximateReceiveCount"])
                for message in received.get("Messages", []):
                    handle = message["ReceiptHandle"]
                    with busy:
                        self.answer(message["Body"], int(message["Attributes"]["ApproximateReceiveCount"]),
                                    lambda: sqs("DeleteMessage", requests, ReceiptHandle=handle))
                        # Only now: had this program died before, the request would be redelivered.
                        sqs("DeleteMessage", requests, ReceiptHandle=handle)
            except Exception as error:
                print(f"{self.name}: {type(error).__name__}: {error}", flush=True)
                stop.wait(1)

    def answer(self, body, deliveries, delete=lambda: None):
        request = json.loads(body)
        try:
            if "heartbeat" in request:
                # The message goes at the first answer: SQS keeps none from others for longer than 12 hours.
                request["heartbeat"]["first"] = delete
                heartbeat(request)
        except Stopped:
            return
        with self.lock:
            self.open[id(request)] = request, delete
        outcome = None
        try:
            outcome = self.outcome(request, deliveries)
        finally:
            with self.lock:
                is_handed_back = self.open.pop(id(request), None) is None
        while outcome and not is_handed_back:
            try:
                return reply(request, outcome)
            except Exception:
                # No redelivery would do the work of hours again.
                if "heartbeat" not in request:
                    raise
                time.sleep(1)
                heartbeat(request)

    def outcome(self, request, deliveries):
        """The outcome of an attempt; None is silence, because after CompleteBy another instance may do the step."""
        function = self.functions[request["direction"]].get(request["step"])
        calls, outcome = request["calls"], None
        for n in range(calls["attempts"]):
            wait = random.random() * min(seconds(calls["cap"]), seconds(calls["base"]) * 2 ** (n - 1)) if n else 0
            if time.time() + wait + SKEW_S >= complete_by(request):
                break
            time.sleep(wait)
            try:
                if function is None:
                    raise Unavailable(f"agent {self.name} has no function to {request['direction']} {request['step']}")
                outcome = with_output("done", function(request))
                break
            except Accepted as accepted:
                outcome = with_output("accepted", accepted.output)
                break
            except NotYet as not_yet:
                outcome = {"outcome": "not_yet", "why": str(not_yet)}
                break
            except Stopped:
                return None
            except Failed as error:
                # An earlier call may have taken effect, although its answer was lost.
                unsure = {"unsure": True} if n or deliveries > 1 else {}
                outcome = {"outcome": "failed", "error": str(error), **given(error.more), **unsure}
                break
            except Unavailable as error:
                outcome = {"outcome": "unavailable", "error": str(error), **given(error.more)}
                if error.retry_after_s:
                    break
            except Exception as error:
                traceback.print_exc()
                outcome = {"outcome": "unavailable", "error": f"{type(error).__name__}: {error}"}
        return outcome if time.time() < complete_by(request) else None


def reply(request, outcome):
    echoed = {key: request[key] for key in ("task_id", "step", "attempt", "traceparent") if key in request}
    tenant = re.sub(r"[^A-Za-z0-9_-]", "_", request["tenant"])[:128] or "_"
    message = json.dumps({"type": "reply", **echoed, **outcome}, allow_nan=False)
    return sqs("SendMessage", f"{STACK}-replies", MessageGroupId=tenant, MessageBody=message)


def complete_by(request):
    return datetime.fromisoformat(request["complete_by"].replace("Z", "+00:00")).timestamp()


def heartbeat(request, percent=None, note=None):
    """Says that the work goes on, with how much of it is done (0 to 100) and a sentence. A step with `heartbeat` calls it at
    least that often; calls in between send nothing. Raises `Stopped` once the attempt is over."""
    beats = request.get("heartbeat")
    if not beats:
        return
    now = time.time()
    if now >= beats.get("next", 0):
        beats["next"] = now + beats["every_ms"] / 2000
        percent = None if percent is None else int(max(0, min(100, percent)))
        note = None if note is None else str(note).encode()[:200].decode(errors="ignore")
        body = json.dumps(given({"percent": percent, "note": note})).encode()
        asked = urllib.request.Request(beats["url"], body, {"content-type": "application/json"})
        try:
            with opener().open(asked, timeout=10) as answer:
                request["complete_by"] = json.loads(answer.read())["complete_by"]
            # It may be repeated: it is deleted once the request is answered, too.
            beats.pop("first", lambda: None)()
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            if '"attempt_over"' in said or '"no_such_heartbeat"' in said:
                raise Stopped(said) from None
            missed(beats, f"{error.code} {said[:200]}")
        except Exception as error:
            missed(beats, type(error).__name__)
    if time.time() + SKEW_S >= complete_by(request):
        raise Stopped("no heartbeat was answered in time")


def missed(beats, why):
    print(f"a heartbeat did not count: {why}", flush=True)
    beats["next"] = time.time() + beats["every_ms"] / 4000


def with_output(outcome, output):
    try:
        json.dumps(output, allow_nan=False)
    except (TypeError, ValueError) as error:
        # The work is done, so it must not be tried again; the step's undo is owed.
        return {"outcome": "failed", "kind": "mistake", "error": f"the output is not JSON: {error}"}
    return {"outcome": outcome, "output": output}


def given(fields):
    return {key: value for key, value in fields.items() if value is not None}


def seconds(text):
    """Seconds of an ISO 8601 duration such as PT0.1S."""
    units = {"H": 3600, "M": 60, "S": 1}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)([HMS])", text))


urls, clients = {}, []


def sqs(action, queue, **fields):
    """Calls SQS: over plain HTTP at an endpoint of this machine, else with boto3, which Lambda's Python has."""
    if queue not in urls:
        urls[queue] = call("GetQueueUrl", QueueName=queue)["QueueUrl"]
    return call(action, QueueUrl=urls[queue], **fields)


def call(action, **fields):
    if not ENDPOINT:
        if not clients:
            import boto3

            clients.append(boto3.client("sqs"))
        return getattr(clients[0], re.sub(r"(?<!^)(?=[A-Z])", "_", action).lower())(**fields)
    headers = {"content-type": "application/x-amz-json-1.0", "x-amz-target": f"AmazonSQS.{action}"}
    asked = urllib.request.Request(ENDPOINT, json.dumps(fields).encode(), headers)
    with opener().open(asked, timeout=30) as answer:
        return json.loads(answer.read() or "{}")


def opener():
    # No proxy to an endpoint of this machine.
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if ENDPOINT else []))
