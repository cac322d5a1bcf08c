"""Servers that a benchmark starts and ends, and what they cost, as Linux accounts it."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """A system did not do what was asked of it; the text says what."""


class Server:
    """One program and its children, in a session of their own. What it prints goes to NAME.out and NAME.err in the folder, or
    through pipes if it takes commands."""

    started = []

    def __init__(self, name: str, command: list, folder: Path, *, user: str | None = None, pipes=False, env: dict | None = None,
                 ends_by=signal.SIGKILL):
        self.name, self.ends_by = name, ends_by
        self.output = folder / f"{name}.out"
        as_user = {"user": user, "group": user, "extra_groups": []} if user else {}
        with self.output.open("ab") as output, self.output.with_suffix(".err").open("ab") as errors:
            self.process = subprocess.Popen(
                [str(word) for word in command], cwd=folder, stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else output, stderr=errors, start_new_session=True, text=True,
                env={**os.environ, **(env or {})}, **as_user)
        Server.started.append(self)

    def check(self) -> None:
        if self.process.poll() is not None:
            raise Failed(f"{self.name} ended with {self.process.returncode}")

    def result(self, seconds: float) -> dict:
        """The object that it prints before it ends."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name}: not done within {seconds} s") from None
        if self.process.returncode != 0:
            self.check()
        return json.loads(self.output.read_text())

    def pids(self) -> list[int]:
        """The program and everything that came from it."""
        parents = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit() and (fields := stat(int(entry))):
                parents.setdefault(int(fields[1]), []).append(int(entry))
        found = [self.process.pid]
        for pid in found:
            found.extend(parents.get(pid, []))
        return found

    def kill(self) -> None:
        """SIGKILL to all of its processes at once. Some may be leaders of sessions of their own, as PostgreSQL's are."""
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait(10)

    def stop(self) -> None:
        if self.process.poll() is None and self.ends_by != signal.SIGKILL:
            self.process.send_signal(self.ends_by)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                pass
        if self.process.poll() is None:
            self.kill()


def stop_all() -> None:
    """Ends whatever was started, the last one first."""
    while Server.started:
        Server.started.pop().stop()


def stat(pid: int) -> list[str] | None:
    """What follows the program's name in /proc/PID/stat: the state, the parent, and so on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def cpu_ms(servers: list[Server]) -> float:
    """User and system time of all their processes so far, and of the children that they have waited for."""
    fields = [stat(pid) for server in servers for pid in server.pids()]
    return sum(sum(map(int, f[11:15])) for f in fields if f) * 1000 / TICKS


def memory(servers: list[Server]) -> int:
    """Bytes resident in all their processes, where shared pages count once (PSS)."""
    total = 0
    for pid in [pid for server in servers for pid in server.pids()]:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total


class Peak(threading.Thread):
    """The largest `memory` seen, twice a second."""

    def __init__(self, servers: list[Server]):
        super().__init__(daemon=True)
        self.servers, self.bytes, self.done = servers, 0, threading.Event()

    def run(self) -> None:
        while True:
            self.bytes = max(self.bytes, memory(self.servers))
            if self.done.wait(0.5):
                return

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.join()


def written(folder: Path) -> int | None:
    """Bytes that the disk below the folder was given so far, by everybody, and of what is waiting for it. None if the folder is not
    on a disk of its own. What /proc/PID/io counts is many times more: all of a large page for each byte changed in it."""
    os.sync()
    device = os.stat(folder).st_dev
    wanted = [str(os.major(device)), str(os.minor(device))]
    disks = [line.split() for line in Path("/proc/diskstats").read_text().splitlines()]
    # The tenth field counts sectors of 512 bytes, whatever the disk's own are.
    return next((int(disk[9]) * 512 for disk in disks if disk[:2] == wanted), None)


def free_ports(n: int) -> list[int]:
    """Ports of the loopback interface that nobody listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def wait_until(what: str, is_so, seconds: float, servers: list[Server] = ()):
    """What `is_so` answers, once it is not false. Fails after `seconds`, or when a server has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for server in servers:
            server.check()
        if answer := is_so():
            return answer
        time.sleep(0.005)
    raise Failed(f"{what}: not within {seconds} s")
