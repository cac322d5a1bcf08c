"""The deployed system as its users, its operators and its enemies meet it: the API, the queues, the remote services."""

import http.client
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
import urllib.request

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

import emulator

FINAL = ("Processed", "Undone", "Error")
SERVICES = ("inventory", "fraud", "payment", "shipping")
# The time a message that was not settled stays away. template.yaml has 6 x the function's timeout; with that, one run
# would take a quarter of an hour.
VISIBILITY_S = 20
# Where people read the documents.
DOCS = "https://git.example/stepwarden/blob/main/"


class Failed(Exception):
    """Something is not as it has to be."""


def check(holds, text):
    if not holds:
        raise Failed(text)


def until(what, look, patience=120.0, every=0.25):
    """What `look` returns once it is true."""
    deadline = time.monotonic() + patience
    while True:
        if found := look():
            return found
        if time.monotonic() > deadline:
            raise Failed(f"still waiting after {patience:.0f} s: {what}")
        time.sleep(every)


class Remotes:
    """The sample remote services, in a process of their own."""

    def __init__(self, stepwarden):
        command = [stepwarden, "remotes", "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        check(self.url.startswith("http://127.0.0.1:"), f"the remote services did not start: {self.url!r}")

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def faults(self, seed=1, **services):
        self.ask("PUT", "/faults", {"seed": seed, "services": services})

    def ledger(self, order):
        return self.ask("GET", f"/ledger/orders/{order}")["entries"]

    def stop(self):
        self.process.terminate()
        self.process.wait(10)


class System:
    def __init__(self, stack, outputs, ministack, remotes, update):
        self.stack, self.outputs, self.ministack, self.remotes = stack, outputs, ministack, remotes
        # Deploys the stack again, with other parameters.
        self.update = update
        self.sqs, self.lambda_ = emulator.client("sqs"), emulator.client("lambda")
        self.queues, self.consumed = {}, []
        self.orders = {}
        self.settle()
        self._hear_alerts()

    def settle(self):
        """Short visibility timeouts, and what the emulator has otherwise than AWS."""
        urls = self.sqs.list_queues(QueueNamePrefix=f"{self.stack}-")["QueueUrls"]
        mine = {url.rsplit("/", 1)[1].removeprefix(f"{self.stack}-"): url for url in urls}
        self.queues |= mine
        # The classes of priority share the dead letters of the ordinary one.
        base = lambda name: name.removesuffix("-high").removesuffix("-low")  # noqa: E731
        self.consumed = [name for name in mine if f"{base(name)}-dead" in mine]
        for name in self.consumed:
            self.sqs.set_queue_attributes(
                QueueUrl=self.queues[name], Attributes={"VisibilityTimeout": str(VISIBILITY_S)}
            )
        for source in self.lambda_.list_event_source_mappings()["EventSourceMappings"]:
            # CloudFormation hands parameters on as text; AWS reads a number from it, MiniStack stops polling.
            most = int(source["ScalingConfig"]["MaximumConcurrency"])
            self.lambda_.update_event_source_mapping(UUID=source["UUID"], ScalingConfig={"MaximumConcurrency": most})

    # ------------------------------------------------------------------ the API

    def call(self, method, path, body=None, signed=True, caller=None, **headers):
        """Status and body of an answer. `caller` is a key of somebody else than the account's root user."""
        host = f"{self.outputs['ApiId']}.execute-api.localhost:{emulator.PORT}"
        data = None if body is None else json.dumps(body)
        headers = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        request = AWSRequest(method, f"http://{host}{path}", data=data, headers=headers)
        if signed:
            credentials = Credentials(*(caller or emulator.ROOT.values()))
            SigV4Auth(credentials, "execute-api", emulator.REGION).add_auth(request)
        connection = http.client.HTTPConnection("127.0.0.1", emulator.PORT, timeout=30)
        try:
            connection.request(method, path, data, {**dict(request.headers), "host": host})
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()

    def submit(self, key, order, what, **more):
        """The id of an accepted order. A submission that a kill cut off is repeated under its key, as clients do."""
        body = {"workflow": "order", "reference": order["order_ref"], "input": order, **more}
        answers = []

        def accepted():
            answers.append(self.call("POST", "/orders", body, idempotency_key=key))
            check(answers[-1][0] == 202 or answers[-1][0] >= 500 or answers[-1][0] == 429, f"{key}: {answers[-1]}")
            return answers[-1][0] == 202

        until(f"{key} is accepted: {answers[-1:]}", accepted, 60)
        order_id = answers[-1][1]["order_id"]
        self.orders[order_id] = what
        return order_id

    def status(self, order_id):
        code, body = self.call("GET", f"/orders/{order_id}")
        if code >= 500:
            return {"state": None, "steps": []}
        check(code == 200, f"accepted order {order_id}: {code} {body}")
        return body

    def events(self, order_id):
        code, body = self.call("GET", f"/orders/{order_id}/history")
        return [(e["event"], e.get("step")) for e in body["history"]] if code == 200 else []

    def act(self, order_id, action, reason):
        code, body = self.call("POST", f"/orders/{order_id}/actions/{action}", {"by": "e2e", "reason": reason})
        check(code == 200, f"{action} of {order_id}: {code} {body}")

    def ends(self, order_id, *states, patience=180.0):
        def ended():
            state = self.status(order_id)["state"]
            check(state not in FINAL or state in states, f"{order_id} ended as {state} and not as {states}")
            return state in states

        until(f"{order_id} is {states}", ended, patience)

    # ------------------------------------------------------------------ queues

    def attribute(self, queue, *names):
        answer = self.sqs.get_queue_attributes(QueueUrl=self.queues[queue], AttributeNames=["All"])["Attributes"]
        return sum(int(answer[f"ApproximateNumberOfMessages{name}"]) for name in names)

    def waiting(self, queue):
        return self.attribute(queue, "", "NotVisible")

    def take(self, queue):
        """All messages of a queue, taken off it. Without the queue's own wait: a worker has to begin before its heartbeat is late."""
        taken = []
        while messages := self.sqs.receive_message(QueueUrl=self.queues[queue], MaxNumberOfMessages=10, WaitTimeSeconds=0).get("Messages"):
            for message in messages:
                self.sqs.delete_message(QueueUrl=self.queues[queue], ReceiptHandle=message["ReceiptHandle"])
                taken.append(json.loads(message["Body"]))
        return taken

    def send(self, queue, *bodies):
        """One request, so that one batch takes them all."""
        texts = [body if isinstance(body, str) else json.dumps(body) for body in bodies]
        entries = [{"Id": str(n), "MessageBody": text} for n, text in enumerate(texts)]
        answer = self.sqs.send_message_batch(QueueUrl=self.queues[queue], Entries=entries)
        check(not answer.get("Failed"), f"sending to {queue}: {answer.get('Failed')}")

    def _ear(self, name, service, sender):
        """The ARN of a queue to which `sender` may send."""
        url = self.sqs.create_queue(QueueName=name)["QueueUrl"]
        arn = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        statement = {
            "Effect": "Allow",
            "Principal": {"Service": service},
            "Action": "sqs:SendMessage",
            "Resource": arn,
            "Condition": {"ArnEquals": {"aws:SourceArn": sender}},
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        self.sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
        self.queues[name] = url
        return arn

    def _hear_alerts(self):
        """What people get from the topic, and what programs get from the bus."""
        topic, bus, events = self.outputs["AlertTopic"], self.outputs["EventBusName"], emulator.client("events")
        mails = self._ear("mails-heard", "sns.amazonaws.com", topic)
        emulator.client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=mails, Attributes={"RawMessageDelivery": "true"})
        rule = events.put_rule(Name="heard", EventBusName=bus, EventPattern='{"source": ["stepwarden"]}')["RuleArn"]
        events.put_targets(Rule="heard", EventBusName=bus, Targets=[{"Id": "heard", "Arn": self._ear("events-heard", "events.amazonaws.com", rule)}])
        self._alerts, self._mails = [], []

    def alerts(self):
        """Details of all events on the bus."""
        self._alerts += [event["detail"] for event in self.take("events-heard")]
        return self._alerts

    def mails(self, words, patience=30):
        """All that reached the topic with these words, once there is one: sentences, each with a link to the runbook."""

        def look():
            self._mails += self.take("mails-heard")
            return [m for m in self._mails if words in m]

        found = until(f"a mail with `{words}`", look, patience)
        for mail in found:
            check(re.search(rf" What to do: {re.escape(DOCS)}docs/runbook\.md#[a-z-]+$", mail) and "<" not in mail, f"no link: {mail}")
        return found

    # ------------------------------------------------------------------ harm

    def kill_some(self, seed, every=0.7):
        """Kills a function's process every now and then until told to stop."""
        stop, killed, draw = threading.Event(), [], random.Random(seed)

        def kill():
            while not stop.wait(every):
                running = self.ministack.function_processes()
                if running:
                    one = draw.choice(sorted(running))
                    try:
                        os.kill(one, signal.SIGKILL)
                        killed.append(one)
                    except ProcessLookupError:
                        pass

        thread = threading.Thread(target=kill)
        thread.start()

        def end():
            stop.set()
            thread.join()
            return len(killed)

        return end
