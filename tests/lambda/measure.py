"""Measures each function's binary as Lambda would start it: a new process, the template's environment, one real event.

The endpoints and the remote services are those of `stepwarden up`, in another process on this machine, over plain HTTP. What
Lambda itself adds (fetching and unpacking the archive, starting the sandbox) and TLS are not in the figures.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/template"))

from template import Stack, read, target  # noqa: E402

# Bounds: a cold start is felt by whoever waits for an order's answer, and Lambda bills it.
MAX_MEGABYTES = 8.0
MAX_FIRST_RESPONSE_MS = 15.0
MAX_RSS_MEGABYTES = 20.0
PATIENCE_S = 20
# Wall time on a machine that does something else as well says more about the machine: of up to so many rounds the best one
# of each function counts.
ROUNDS = 5
FUNCTIONS = ("Submit", "Scheduler", "Agent", "Supervisor", "Operator")


class RuntimeApi:
    """Lambda's Runtime API for one process: hands out events, and notes when it was asked and answered."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.events, self.asked, self.answered, self.answers = [], [], [], []
        self.changed = threading.Condition()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        try:
            self._answer(connection)
        except OSError:
            pass  # The process was killed at the end of its run.

    def _answer(self, connection):
        data = b""
        while True:
            while b"\r\n\r\n" not in data:
                if not (more := connection.recv(65536)):
                    return
                data += more
            head, data = data.split(b"\r\n\r\n", 1)
            lines = head.split(b"\r\n")
            headers = {k.lower(): v.strip() for k, v in (line.split(b":", 1) for line in lines[1:])}
            if headers.get(b"transfer-encoding") == b"chunked":
                while not data.endswith(b"0\r\n\r\n"):
                    data += connection.recv(65536)
                size, rest = data.split(b"\r\n", 1)
                body, data = rest[: int(size, 16)], b""
            else:
                length = int(headers.get(b"content-length", 0))
                while len(data) < length:
                    data += connection.recv(65536)
                body, data = data[:length], data[length:]
            if lines[0].startswith(b"GET"):
                now = time.perf_counter()
                with self.changed:
                    self.asked.append(now)
                    self.changed.notify_all()
                    if not self.changed.wait_for(lambda: self.events, PATIENCE_S):
                        return
                    event = self.events.pop(0)
                deadline = int((time.time() + 30) * 1000)
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nlambda-runtime-aws-request-id: 8476a536-e9f4-11e8-9739-2dfe598c3fcd\r\n"
                    b"lambda-runtime-deadline-ms: %d\r\nlambda-runtime-trace-id: Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700\r\n"
                    b"lambda-runtime-invoked-function-arn: arn:aws:lambda:eu-west-1:111122223333:function:f\r\n"
                    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (deadline, len(event), event)
                )
            else:
                now = time.perf_counter()
                with self.changed:
                    self.answered.append(now)
                    self.answers.append((lines[0].split(b" ")[1].decode(), body))
                    self.changed.notify_all()
                connection.sendall(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")

    def invoke(self, event):
        """The answer to one event."""
        with self.changed:
            count = len(self.answers)
            self.events.append(json.dumps(event).encode())
            self.changed.notify_all()
            if not self.changed.wait_for(lambda: len(self.answers) > count, PATIENCE_S):
                raise RuntimeError(f"no answer within {PATIENCE_S} s")
            path, body = self.answers[-1]
        if not path.endswith("/response"):
            raise RuntimeError(f"{path}: {body.decode()}")
        return json.loads(body)


class World:
    """`stepwarden up` with tables and queues that only the measured functions use."""

    def __init__(self, binary):
        self.process = subprocess.Popen([binary, "up", "--memory", "--port", "0"], stdout=subprocess.PIPE, text=True)
        told = ""
        while "Stop with" not in told:
            line = self.process.stdout.readline()
            assert line, f"it ended: {told}"
            told += line
        words = told.split()
        self.aws = words[words.index("endpoints") + 1]
        self.remotes = words[words.index("services") + 1]
        self.stack = Stack(read())
        self.names = {}
        for name, p in self.stack.of_type("AWS::DynamoDB::Table").items():
            wanted = ("TableName", "BillingMode", "AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes")
            self.ask("DynamoDB_20120810.CreateTable", {k: p[k] for k in wanted if k in p})
            self.names[f"<{name}>"] = p["TableName"]
        self.queues = {}
        for p in self.stack.of_type("AWS::SQS::Queue").values():
            self.queues[p["QueueName"]] = self.ask("AmazonSQS.CreateQueue", {"QueueName": p["QueueName"]})["QueueUrl"]
        for name, p in self.stack.of_type("AWS::Events::EventBus").items():
            self.ask("AWSEvents.CreateEventBus", {"Name": p["Name"]})
            self.names[f"<{name}>"] = p["Name"]

    def ask(self, operation, body):
        kind = "application/x-amz-json-1.0"
        credential = "AWS4-HMAC-SHA256 Credential=test/20260101/eu-west-1/any/aws4_request, SignedHeaders=host, Signature=0"
        headers = {"content-type": kind, "x-amz-target": operation, "authorization": credential}
        request = urllib.request.Request(self.aws, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def environment(self, function):
        """What the template gives a function, and what Lambda gives every one."""
        variables = self.stack.properties(function)["Environment"]["Variables"]
        variables = {k: str(self.names.get(v, v)) for k, v in variables.items()}
        for name in list(variables):
            if name.endswith("_URL"):
                variables[name] = f"{self.remotes}/{name.removesuffix('_URL').lower()}"
        unknown = [v for v in variables.values() if target(v)]
        assert not unknown, unknown
        return variables | {
            "AWS_ENDPOINT_URL": self.aws,
            "AWS_REGION": "eu-west-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_SESSION_TOKEN": "test",
            "AWS_LAMBDA_FUNCTION_NAME": f"shop-{function.lower()}",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "256",
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_LOG_GROUP_NAME": "log",
            "AWS_LAMBDA_LOG_STREAM_NAME": "stream",
        }

    def take(self, queue):
        """One message of a queue as a batch for a function."""
        deadline = time.monotonic() + PATIENCE_S
        body = {"QueueUrl": self.queues[queue], "WaitTimeSeconds": 1}
        while not (messages := self.ask("AmazonSQS.ReceiveMessage", body).get("Messages")):
            if time.monotonic() > deadline:
                raise RuntimeError(f"nothing came to {queue}")
        record = {
            "messageId": messages[0]["MessageId"],
            "receiptHandle": messages[0]["ReceiptHandle"],
            "body": messages[0]["Body"],
            "attributes": {},
            "messageAttributes": {},
            "eventSource": "aws:sqs",
            "eventSourceARN": f"arn:aws:sqs:eu-west-1:111122223333:{queue}",
            "awsRegion": "eu-west-1",
        }
        return {"Records": [record]}


def api_event(method, path, body=None, query=None, **headers):
    return {
        "version": "2.0",
        "routeKey": f"{method} {path}",
        "rawPath": path,
        "rawQueryString": urllib.parse.urlencode(query or {}),
        "queryStringParameters": query or {},
        "headers": {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}},
        "requestContext": {
            "accountId": "111122223333",
            "apiId": "a",
            "domainName": "a.example",
            "domainPrefix": "a",
            "http": {"method": method, "path": path, "protocol": "HTTP/1.1", "sourceIp": "127.0.0.1", "userAgent": "t"},
            "requestId": "r",
            "routeKey": f"{method} {path}",
            "stage": "$default",
            "time": "01/Jan/2026:00:00:00 +0000",
            "timeEpoch": 1767225600000,
        },
        "body": None if body is None else json.dumps(body),
        "isBase64Encoded": False,
    }


class Events:
    """One order goes through the functions: what one sends is the next one's event."""

    def __init__(self, world):
        self.world = world
        self.orders = (ROOT / "tests/data/northwind-orders.jsonl").read_text().splitlines()
        self.count = 0

    def next(self, function):
        if function == "Submit":
            self.count += 1
            order = json.loads(self.orders[self.count % len(self.orders)])
            body = {"workflow": "order", "input": order}
            return api_event("POST", "/orders", body, idempotency_key=f"cold-{self.count}")
        if function == "Scheduler":
            return self.world.take("shop-scheduler")
        if function == "Agent":
            return self.world.take("shop-agent-inventory")
        if function == "Supervisor":
            return {}
        return api_event("GET", "/orders", query={"limit": "10"})


def is_good(function, answer):
    if function in ("Scheduler", "Agent"):
        return answer == {"batchItemFailures": []}
    if function == "Supervisor":
        return answer["failed"] == 0
    return answer["statusCode"] == {"Submit": 202, "Operator": 200}[function]


def cold_start(binary, environment, function, event):
    """Milliseconds to the first `next` and to the first answer, of processor time until then, and the most memory in MB."""
    api = RuntimeApi()
    environment = environment | {"AWS_LAMBDA_RUNTIME_API": api.address}
    sink = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, sink, 1), (os.POSIX_SPAWN_DUP2, sink, 2)]
    begin = time.perf_counter()
    process = os.posix_spawn(binary, [str(binary)], environment, file_actions=actions)
    try:
        with api.changed:
            if not api.changed.wait_for(lambda: api.asked, PATIENCE_S):
                raise RuntimeError(f"{function} did not start")
        answer = api.invoke(event)
        if not is_good(function, answer):
            raise RuntimeError(f"{function}: {answer}")
        status = Path(f"/proc/{process}/status").read_text()
        rss = int(status.split("VmHWM:")[1].split()[0]) / 1024
        threads = Path(f"/proc/{process}/task").iterdir()
        cpu = sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e6
        # The event waited at the Runtime API when it was asked for.
        return (api.asked[0] - begin) * 1000, (api.answered[0] - begin) * 1000, cpu, rss
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(sink)
        api.listener.close()


def measure(world, binaries, functions, count):
    """Medians of cold starts by function: milliseconds to `next`, to the first answer, of processor time, and memory."""
    events, medians = Events(world), {}
    for function in functions:
        binary, environment = binaries / function.lower() / "bootstrap", world.environment(function)
        # One run before, which reads the file from the disk.
        runs = [cold_start(binary, environment, function, events.next(function)) for _ in range(count + 1)]
        medians[function] = tuple(statistics.median(values) for values in zip(*runs[1:], strict=True))
    return medians


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--stepwarden", required=True)
    arguments.add_argument("--binaries", type=Path, default=ROOT / "target/lambda")
    arguments.add_argument("--runs", type=int, default=11)
    options = arguments.parse_args()
    best = {}
    for _ in range(ROUNDS):
        world = World(options.stepwarden)
        try:
            for function, medians in measure(world, options.binaries, FUNCTIONS, options.runs).items():
                best[function] = min(best.get(function, medians), medians, key=lambda m: m[1])
        finally:
            world.process.terminate()
            world.process.wait(15)
        if all(first <= MAX_FIRST_RESPONSE_MS for _, first, _, _ in best.values()):
            break
    over = []
    print(f"{'function':<11}{'size MB':>9}{'next ms':>9}{'first response ms':>19}{'CPU ms':>8}{'memory MB':>11}   medians of {options.runs}")
    for function, (asked, first, cpu, rss) in best.items():
        size = (options.binaries / function.lower() / "bootstrap").stat().st_size / 1e6
        print(f"{function.lower():<11}{size:>9.1f}{asked:>9.1f}{first:>19.1f}{cpu:>8.1f}{rss:>11.1f}")
        figures = [("MB", size, MAX_MEGABYTES), ("ms", first, MAX_FIRST_RESPONSE_MS), ("MB of memory", rss, MAX_RSS_MEGABYTES)]
        over += [f"{function.lower()}: {v:.1f} {unit}, bound {most:.0f}" for unit, v, most in figures if v > most]
    for words in over:
        print(f"FAIL {words}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
