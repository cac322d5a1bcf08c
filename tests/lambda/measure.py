"""Measures each function's binary as Lambda would start it: a new process, the template's environment, real events. Cold: the
first response. Warm: batches of one and of ten, and a sweep over overdue orders.

Ratios are held, tests/lambda/ratios.json: of a cold start to a process of Python that starts on the same machine just
then, by processor time and by the clock, and of ten messages to one, by processor time. The endpoints and the remote services are those of `stepwarden up`, in another process on this machine, over plain HTTP. What
Lambda itself adds (fetching and unpacking the archive, starting the sandbox) and TLS are not in the figures.
"""

import argparse
import json
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/template"))

from template import Stack, read, target  # noqa: E402

# Bounds: a cold start is felt by whoever waits for an order's answer, and Lambda bills it.
MAX_MEGABYTES = 9.0
MAX_RSS_MEGABYTES = 20.0
# A ratio may be so many times the one that is written down.
SLACK = 1.5
RATIOS = ROOT / "tests/lambda/ratios.json"
PATIENCE_S = 20
# A machine that does something else as well makes everything slower: of up to so many rounds the best one of each figure counts.
ROUNDS = 5
FUNCTIONS = ("Submit", "Scheduler", "Agent", "Supervisor", "Operator")
# Warm invocations of each size that are measured, and some before them that are not.
WARM, WARM_UP = 20, 3
# The steps of the reference workflow expire after five seconds, and a second is for clocks that differ.
UNTIL_OVERDUE_S = 7


class RuntimeApi:
    """Lambda's Runtime API for one process: hands out events, and notes when it was asked and answered."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.events, self.asked, self.given, self.answered, self.answers = [], [], [], [], []
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
                deadline = int((time.time() + 50) * 1000)
                self.given.append(time.perf_counter())
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

    def stop(self):
        self.process.terminate()
        self.process.wait(15)

    def environment(self, function):
        """What the template gives a function, and what Lambda gives every one. The orders here are those of the sample's agents."""
        resource = "SampleAgents" if function == "Agent" else function
        variables = self.stack.properties(resource)["Environment"]["Variables"]
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

    def take(self, queue, count=1):
        """So many messages of a queue as a batch for a function."""
        deadline, messages = time.monotonic() + PATIENCE_S, []
        while len(messages) < count:
            body = {"QueueUrl": self.queues[queue], "WaitTimeSeconds": 1, "MaxNumberOfMessages": count - len(messages)}
            messages += self.ask("AmazonSQS.ReceiveMessage", body).get("Messages") or []
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {len(messages)} of {count} messages came to {queue}")
        record = {
            "attributes": {},
            "messageAttributes": {},
            "eventSource": "aws:sqs",
            "eventSourceARN": f"arn:aws:sqs:eu-west-1:111122223333:{queue}",
            "awsRegion": "eu-west-1",
        }
        fields = {"messageId": "MessageId", "receiptHandle": "ReceiptHandle", "body": "Body"}
        return {"Records": [record | {k: m[v] for k, v in fields.items()} for m in messages]}


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


class Process:
    """A function's binary at a Runtime API of its own."""

    def __init__(self, binaries, world, function):
        self.function, self.api = function, RuntimeApi()
        binary = binaries / function.lower() / "bootstrap"
        environment = world.environment(function) | {"AWS_LAMBDA_RUNTIME_API": self.api.address}
        self.sink = os.open(os.devnull, os.O_RDWR)
        actions = [(os.POSIX_SPAWN_DUP2, self.sink, 1), (os.POSIX_SPAWN_DUP2, self.sink, 2)]
        self.begin = time.perf_counter()
        self.pid = os.posix_spawn(binary, [str(binary)], environment, file_actions=actions)

    def __enter__(self):
        with self.api.changed:
            if not self.api.changed.wait_for(lambda: self.api.asked, PATIENCE_S):
                raise RuntimeError(f"{self.function} did not start")
        return self

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.sink)
        self.api.listener.close()

    def invoke(self, event):
        """Milliseconds from the event to its answer, and the answer."""
        answer = self.api.invoke(event)
        if not is_good(self.function, answer):
            raise RuntimeError(f"{self.function}: {answer}")
        return (self.api.answered[-1] - self.api.given[-1]) * 1000, answer

    def cpu(self):
        """Milliseconds of processor time so far."""
        threads = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e6

    def memory(self):
        """The most memory so far, in MB."""
        return int(Path(f"/proc/{self.pid}/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def calibrate():
    """Milliseconds that a process of Python takes to start and end, and of processor time: what the machine is worth just now."""
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
    wall, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall * 1000, (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def cold(world, binaries, function, count):
    """Medians of cold starts: milliseconds to `next`, to the first answer, of processor time until then; memory; that processor time,
    and the first answer, in starts of Python."""
    events, runs = Events(world), []
    # One run before, which reads the file from the disk.
    for _ in range(count + 1):
        event, (python, python_cpu) = events.next(function), calibrate()
        with Process(binaries, world, function) as process:
            process.invoke(event)
            # The event waited at the Runtime API when it was asked for.
            asked, first = (process.api.asked[0] - process.begin) * 1000, (process.api.answered[0] - process.begin) * 1000
            cpu = process.cpu()
            runs.append((asked, first, cpu, process.memory(), cpu / python_cpu, first / python))
    return tuple(statistics.median(values) for values in zip(*runs[1:], strict=True))


def warm(world, binaries):
    """Orders go one by one and ten by ten through warm functions, and are swept once they are overdue. By function and size: medians
    of milliseconds and of processor time for each invocation, of a sweep for each order; and memory in the end."""
    events, runs = Events(world), {}
    with ExitStack() as stack:
        names = ("Submit", "Scheduler", "Agent", "Supervisor")
        submit, scheduler, agent, supervisor = (stack.enter_context(Process(binaries, world, name)) for name in names)
        stages = (
            ("scheduler, orders", scheduler, "scheduler"),
            ("agent", agent, "agent-inventory"),
            ("scheduler, replies", scheduler, "replies"),
        )
        supervisor.invoke({})
        for size in (1, 10):
            for n in range(WARM_UP + WARM):
                works = [("submit", submit, 1, lambda: events.next("Submit"))] * size
                works += [(name, p, size, lambda q=queue: world.take(f"shop-{q}", size)) for name, p, queue in stages]
                for name, process, count, event in works:
                    event, before = event(), process.cpu()
                    ms, _ = process.invoke(event)
                    if n >= WARM_UP:
                        runs.setdefault((name, count), []).append((ms, process.cpu() - before))
        # Nobody does the other step of these orders.
        time.sleep(UNTIL_OVERDUE_S)
        before = supervisor.cpu()
        ms, swept = supervisor.invoke({})
        orders = (WARM_UP + WARM) * 11
        assert swept["expired"] == orders, f"{swept}, {orders} orders"
        runs["supervisor, an overdue order", orders] = [(ms / orders, (supervisor.cpu() - before) / orders)]
        memory = {p.function.lower(): p.memory() for p in (submit, scheduler, agent, supervisor)}
    return {key: tuple(map(statistics.median, zip(*all_, strict=True))) for key, all_ in runs.items()}, memory


def ratios(cold_starts, warm_runs):
    """What is held, by processor time, which other work on the machine does not make longer: cold starts in starts of Python, and
    batches of ten, or sweeps, against one message. And the first answer by the clock, which would show what only waits."""
    found = {f"cold, {name.lower()}": figures[4] for name, figures in cold_starts.items()}
    found |= {f"first response, {name.lower()}": figures[5] for name, figures in cold_starts.items()}
    for name in ("scheduler, orders", "agent", "scheduler, replies"):
        found[f"ten to one, {name}"] = warm_runs[name, 10][1] / warm_runs[name, 1][1]
    one = next(cpu for (name, _), (_, cpu) in warm_runs.items() if name.startswith("supervisor"))
    found["an overdue order to one message, supervisor"] = one / warm_runs["scheduler, orders", 1][1]
    return found


def least(best, found):
    """The best of each figure of several rounds."""
    return {key: min(best.get(key, value), value) for key, value in found.items()}


@contextmanager
def fresh_world(options):
    world = World(options.stepwarden)
    try:
        yield world
    finally:
        world.stop()


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--stepwarden", required=True)
    arguments.add_argument("--binaries", type=Path, default=ROOT / "target/lambda")
    arguments.add_argument("--runs", type=int, default=11)
    arguments.add_argument("--rounds", type=int, help=f"play so many; without it up to {ROUNDS}, until the ratios hold")
    arguments.add_argument("--write", action="store_true", help="write the ratios found, instead of holding them")
    options = arguments.parse_args()
    bounds = {} if options.write else json.loads(RATIOS.read_text())
    colds, warms, memory, found = {}, {}, {}, {}
    for played in range(1, (options.rounds or ROUNDS) + 1):
        # Apart, so that the orders of one are in no queue and no sweep of another. Schedulers and agents get what submit sent.
        now = dict.fromkeys(FUNCTIONS)
        for functions in ([f for f in FUNCTIONS if f != "Supervisor"], ["Supervisor"]):
            with fresh_world(options) as world:
                now |= {f: cold(world, options.binaries, f, options.runs) for f in functions}
        with fresh_world(options) as world:
            runs, most = warm(world, options.binaries)
        found = least(found, ratios(now, runs))
        colds = {f: min(colds.get(f, now[f]), now[f], key=lambda figures: figures[1]) for f in FUNCTIONS}
        warms, memory = least(warms, runs), least(memory, most)
        if bounds and not options.rounds and all(found[name] <= bound * SLACK for name, bound in bounds.items()):
            break
    over = []
    print(f"rounds: {played}; each figure is the best of them")
    print(f"cold, medians of {options.runs}: size MB, until it asks for work ms, first response ms, CPU ms, memory MB")
    for function, (asked, first, cpu, rss, *_) in colds.items():
        size = (options.binaries / function.lower() / "bootstrap").stat().st_size / 1e6
        print(f"  {function.lower():<30}{size:>9.1f}{asked:>9.1f}{first:>9.1f}{cpu:>9.1f}{rss:>9.1f}")
        figures = [("MB", size, MAX_MEGABYTES), ("MB of memory", rss, MAX_RSS_MEGABYTES)]
        over += [f"{function.lower()}: {v:.1f} {unit}, bound {most:.0f}" for unit, v, most in figures if v > most]
    print(f"warm, medians of {WARM}: messages, ms, CPU ms")
    for (name, size), (ms, cpu) in warms.items():
        print(f"  {name:<30}{size:>9}{ms:>9.2f}{cpu:>9.2f}")
    print("memory after that, MB")
    for name, most in memory.items():
        print(f"  {name:<30}{most:>9.1f}")
        over += [f"{name}: {most:.1f} MB after {WARM} batches"] if most > MAX_RSS_MEGABYTES else []
    print(f"ratios, and the ones written down; {SLACK} times those are too much")
    for name, ratio in found.items():
        print(f"  {name:<46}{ratio:>7.2f}{bounds.get(name, ratio):>7.2f}")
        if ratio > bounds.get(name, ratio) * SLACK:
            over.append(f"{name}: {ratio:.2f}, bound {bounds[name] * SLACK:.2f}")
    if options.write:
        # Of the best figures: the least of several rounds' ratios would be that in which one message took longest.
        typical = ratios(colds, warms)
        RATIOS.write_text(json.dumps({name: round(ratio, 2) for name, ratio in typical.items()}, indent=2) + "\n")
    for words in over:
        print(f"FAIL {words}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
