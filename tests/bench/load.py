"""Orders sent over HTTP, by as many connections as are to be in flight at most. Each stays open for all of its orders."""

import asyncio
import json
import time


def request(port: int, path: str, order: dict) -> bytes:
    body = json.dumps(order)
    return f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: bytes) -> None:
    """Sends one request, reads its answer to the end, and fails if it is not a success."""
    writer.write(message)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    status = int(head.split(" ", 2)[1])
    _, _, length = head.partition("content-length:")
    body = await reader.readexactly(int(length.split("\r\n")[0] or 0))
    if not 200 <= status < 300:
        raise RuntimeError(f"the server answered {status}: {body[:500].decode(errors='replace')}")


async def run(port: int, path: str, orders: int, in_flight: int, seconds: float, more: dict) -> dict:
    numbers = iter(range(orders))
    latencies = []
    begin = time.monotonic()

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for n in numbers:
            before = time.monotonic()
            if before - begin >= seconds:
                break
            await send(reader, writer, request(port, path, {"number": n, "text": "x" * 200} | more))
            latencies.append((time.monotonic() - before) * 1000)
        writer.close()

    await asyncio.wait_for(asyncio.gather(*[connection() for _ in range(in_flight)]), seconds + 60)
    return {"orders": len(latencies), "seconds": time.monotonic() - begin, "ms": latencies}


def measure(port: int, path: str, orders: int, in_flight: int, seconds: float, more: dict) -> dict:
    """How many orders ended, in what time, and each one's latency. Starts no order after `seconds`. `more` is part of each order."""
    return asyncio.run(run(port, path, orders, in_flight, seconds, more))
