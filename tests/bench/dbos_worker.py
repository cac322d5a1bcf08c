"""Orders of three steps that do nothing, as DBOS workflows. Takes commands as lines of JSON, answers each with one line."""

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from urllib.parse import urlsplit

from dbos import DBOS, DBOSConfig

LOCAL = threading.local()
SERVICE = {"service": sys.argv[2]} if len(sys.argv) > 2 else {}


def act(step: str, order: dict) -> None:
    """Nothing, or a call of the service that the order names. Where the order names a file, note the time beside it, and let the second
    step last until the file is there."""
    if service := order.get("service"):
        call(service)
    if hold := order.get("hold"):
        with open(f"{hold}.log", "a") as log:
            log.write(f"{step} {time.monotonic_ns()}\n")
        for _ in range(12_000 if step == "second" else 0):
            if os.path.exists(hold):
                break
            time.sleep(0.005)


@DBOS.step()
def first(order: dict) -> None:
    act("first", order)


@DBOS.step()
def second(order: dict) -> None:
    act("second", order)


@DBOS.step()
def third(order: dict) -> None:
    act("third", order)


@DBOS.workflow()
def run(order: dict) -> None:
    first(order)
    second(order)
    third(order)


def call(service: str) -> None:
    """Each thread has a connection that stays open."""
    if not hasattr(LOCAL, "http"):
        LOCAL.http = HTTPConnection(urlsplit(service).netloc, timeout=60)
    LOCAL.http.request("POST", urlsplit(service).path)
    answer = LOCAL.http.getresponse()
    answer.read()
    if answer.status != 200:
        raise RuntimeError(f"the service answered {answer.status}")


def timed(n: int) -> float:
    """Milliseconds from the submission of order `n` to its end."""
    begin = time.monotonic()
    run({"number": n, "text": "x" * 200} | SERVICE)
    return (time.monotonic() - begin) * 1000


def many(orders: int, in_flight: int, seconds: float) -> dict:
    """Orders with `in_flight` at once, until all are done or the time is up: how many ended, and in what time."""
    begin = time.monotonic()
    with ThreadPoolExecutor(in_flight) as pool:
        ended = sum(pool.map(lambda n: time.monotonic() - begin < seconds and timed(n) > 0, range(orders)))
    return {"orders": ended, "seconds": time.monotonic() - begin}


def main(url: str) -> None:
    # The version is told, so that a worker started again takes up the orders of the one before.
    DBOS(config=DBOSConfig(name="bench", system_database_url=url, log_level="WARNING", application_version="1"))
    DBOS.launch()
    answer({"ready": True})
    for line in sys.stdin:
        match json.loads(line):
            case {"single": orders}:
                answer({"ms": [timed(n) for n in range(orders)]})
            case {"orders": orders, "in_flight": in_flight, "seconds": seconds}:
                answer(many(orders, in_flight, seconds))
            case {"hold": _} as order:
                threading.Thread(target=run, args=[order | {"text": "x" * 200}], daemon=True).start()
    DBOS.destroy()


def answer(value: dict) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
