"""The systems that are measured: how each is started in a fresh folder, what its orders are, and what is killed."""

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import load
from processes import Failed, Peak, Server, cpu_ms, free_ports, memory, wait_until, written

HERE = Path(__file__).resolve().parent
MODULES = HERE / "node_modules"
RUST = HERE / "rust"


@dataclass
class Settings:
    orders: int
    """Orders in the throughput run."""
    single: int
    """Orders one at a time, before it."""
    in_flight: int
    """Submitted and not ended at most, in the throughput run."""
    seconds: float
    """No order is begun after so long in the throughput run."""
    stepwarden: Path
    """The program."""
    calls_service: bool = False
    """Each step calls a local service that takes 5 ms, instead of doing nothing."""


def command(words: list) -> str:
    """What a command prints, in one line."""
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def rust(worker: str) -> Path:
    """A program of the folder `rust`."""
    path = RUST / "target/release" / worker
    if not path.exists():
        raise Failed(f"{path} is missing: tests/bench/run builds it")
    return path


def start_service(folder: Path) -> str:
    """Starts the service that takes 5 ms, and returns its URL."""
    [port] = free_ports(1)
    service = Server("remote", [rust("bench-service"), port], folder)

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until("the service of 5 ms listens", listens, 20, [service])
    return f"http://127.0.0.1:{port}/"


class Stepwarden:
    """`stepwarden bench`, which has the load generator inside."""

    title = "Stepwarden"

    def __init__(self, settings: Settings):
        self.settings = settings
        self.version = command([settings.stepwarden, "--version"]).split()[-1]

    def measure(self, folder: Path) -> dict:
        s = self.settings
        bench = [s.stepwarden, "bench", "--json"]
        counts = ["--orders", s.orders, "--single", s.single, "--in-flight", s.in_flight, "--data", folder / "data"]
        if s.calls_service:
            counts += ["--service", start_service(folder)]
        before = written(folder)
        report = Server("bench", [*bench, "--only", "single,throughput", *counts], folder).result(300)
        after = written(folder)
        killed = Server("recovery", [*bench, "--only", "recovery", "--kills", 1], folder).result(300)["recovery"]
        return {
            "orders_per_second": report["orders_per_second"],
            "p50_ms": report["p50_ms"],
            "p99_ms": report["p99_ms"],
            "cpu_ms_per_order": report["cpu_ms_per_order"],
            "fsyncs_per_order": report["fsyncs_per_order"],
            "idle_memory_mb": report["idle_memory_bytes"] / 1e6,
            "peak_memory_mb": report["peak_memory_bytes"] / 1e6,
            "written_kb_per_order": before and (after - before) / 1e3 / (s.orders + s.single),
            "worker_killed_ms": killed and killed["agent"]["alone_p50_ms"],
            "server_killed_ms": killed and killed["scheduler"]["alone_p50_ms"],
            "report": report,
        }


class Peer:
    """A server, and a worker in a process of its own. What differs is in the classes below."""

    def __init__(self, settings: Settings):
        self.settings = settings

    def measure(self, folder: Path) -> dict:
        self.folder = folder
        self.service = start_service(folder) if self.settings.calls_service else None
        self.start()
        servers = [self.server, self.worker]
        time.sleep(1)
        idle, before = memory(servers), written(folder)
        with Peak(servers) as peak:
            single = sorted(self.single(self.settings.single))
            fsyncs, cpu, own = self.fsyncs(), cpu_ms(servers), time.process_time()
            many = self.many()
            cpu, own = cpu_ms(servers) - cpu, time.process_time() - own
            fsyncs = self.fsyncs() - fsyncs if fsyncs is not None else None
        after = written(folder)
        ended = many["orders"]
        if not ended:
            raise Failed(f"{self.title}: no order ended")
        return {
            "orders_per_second": ended / many["seconds"],
            "p50_ms": quantile(single, 0.5),
            "p99_ms": quantile(single, 0.99),
            "cpu_ms_per_order": cpu / ended,
            "fsyncs_per_order": fsyncs / ended if fsyncs is not None else None,
            "idle_memory_mb": idle / 1e6,
            "peak_memory_mb": peak.bytes / 1e6,
            "written_kb_per_order": before and (after - before) / 1e3 / (ended + len(single)),
            "worker_killed_ms": self.killed("worker"),
            "server_killed_ms": self.killed("server"),
            "orders": ended,
            "this_program_cpu_ms_per_order": own * 1000 / ended,
        }

    def killed(self, which: str) -> float:
        """Kills it in the second step of an order and starts it again at once. Milliseconds from there to the third step."""
        servers = [self.server, self.worker]
        hold = self.folder / f"{which}-killed"
        log = Path(f"{hold}.log")

        def begun(step: str) -> int | None:
            text = log.read_text() if log.exists() else ""
            return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(step)), None)

        self.submit({"number": 0, "text": "x" * 200, "hold": str(hold)})
        wait_until(f"{self.title}: the second step of an order begins", lambda: begun("second"), 20, servers)
        getattr(self, which).kill()
        hold.touch()
        restart = time.monotonic_ns()
        setattr(self, which, getattr(self, f"start_{which}")())
        third = wait_until(f"{self.title}: the order goes on after its {which} was killed", lambda: begun("third"), 90, [self.server, self.worker])
        return (third - restart) / 1e6

    def fsyncs(self) -> int | None:
        return None


class Restate(Peer):
    """One server with its defaults, but for loopback and telemetry; one deployment, with all services in one process of Node."""

    def __init__(self, settings: Settings):
        super().__init__(settings)
        binaries = list(MODULES.glob("@restatedev/restate-server-*/bin/restate-server"))
        nodes = list(MODULES.glob("node-*/bin/node"))
        if not binaries or not nodes:
            raise Failed("npm installed no binaries of Restate and Node for this machine: they exist for Linux on x64 and arm64")
        self.binary, self.node = binaries[0], nodes[0]
        self.version = f"Restate {command([self.binary, '--version']).split()[-1]}{self.of_worker()}"

    def of_worker(self) -> str:
        sdk = json.loads((MODULES / "@restatedev/restate-sdk/package.json").read_text())["version"]
        return f" (SDK {sdk}, Node {command([self.node, '--version'])})"

    def start(self) -> None:
        self.ingress, self.admin, self.fabric, self.port = free_ports(4)
        (self.folder / "restate.toml").write_text(f"""
            node-name = "bench"
            base-dir = "{self.folder}/data"
            listen-mode = "tcp"
            bind-ip = "127.0.0.1"
            bind-port = {self.fabric}
            disable-telemetry = true
            log-filter = "warn"
            [ingress]
            bind-port = {self.ingress}
            [admin]
            bind-port = {self.admin}
        """)
        self.server = self.start_server()
        self.worker = self.start_worker()
        servers = [self.server, self.worker]
        deployment = {"uri": f"http://127.0.0.1:{self.port}"}
        wait_until("Restate: its admin answers", lambda: self.http(self.admin, "/health") is not None, 60, servers)
        wait_until("Restate: it takes the services", lambda: self.http(self.admin, "/deployments", deployment), 60, servers)
        wait_until("Restate: it runs an order", lambda: self.http(self.ingress, self.path, {"number": 0}) is not None, 60, servers)

    def start_server(self) -> Server:
        return Server("restate-server", [self.binary, "--no-logo", "--config-file", self.folder / "restate.toml"], self.folder,
                      env={"DO_NOT_TRACK": "1"})

    def start_worker(self) -> Server:
        return Server("service", [self.node, HERE / "restate_service.js", self.port], self.folder,
                      env={"NODE_ENV": "production", "RESTATE_LOGGING": "ERROR"})

    def http(self, port: int, path: str, body: dict | None = None) -> str | None:
        """The answer, or none if it was not a success."""
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.read().decode()
        except (urllib.error.URLError, OSError):
            return None

    def single(self, orders: int) -> list[float]:
        return load.measure(self.ingress, self.path, orders, 1, 60, self.more())["ms"]

    def many(self) -> dict:
        return load.measure(self.ingress, self.path, self.settings.orders, self.settings.in_flight, self.settings.seconds, self.more())

    def more(self) -> dict:
        return {"service": self.service} if self.service else {}

    def submit(self, order: dict) -> None:
        if not self.http(self.ingress, f"{self.path}/send", order):
            raise Failed("Restate did not take an order")

    def fsyncs(self) -> int:
        metrics = self.http(self.fabric, "/metrics") or ""
        return sum(int(n) for n in re.findall(r"^restate_rocksdb_wal_synced_total\{.*\} (\d+)$", metrics, re.MULTILINE))


class RestateCalls(Restate):
    title = "Restate, three calls"
    path = "/order/calls"


class RestateSteps(Restate):
    title = "Restate, three steps in a handler"
    path = "/order/steps"


def crate(name: str) -> str:
    """The version of a package of the workers in Rust."""
    return re.search(rf'name = "{name}"\nversion = "(.*)"', (RUST / "Cargo.lock").read_text())[1]


class RestateInRust:
    """The services in Rust instead."""

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self.program = rust("bench-restate")

    def of_worker(self) -> str:
        return f" (SDK {crate('restate-sdk')} for Rust)"

    def start_worker(self) -> Server:
        return Server("service", [self.program, self.port], self.folder)


class RestateCallsInRust(RestateInRust, RestateCalls):
    title = "Restate in Rust, three calls"


class RestateStepsInRust(RestateInRust, RestateSteps):
    title = "Restate in Rust, three steps in a handler"


class Dbos(Peer):
    """A process of Python that runs the workflows, on a PostgreSQL of its own with its defaults."""

    title = "DBOS on PostgreSQL"

    def __init__(self, settings: Settings):
        super().__init__(settings)
        found = [shutil.which("postgres"), *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/postgres")), reverse=True)]
        if not any(found):
            raise Failed("there is no PostgreSQL: install it (Debian: apt-get install postgresql), or leave DBOS out with --only")
        self.binaries = Path(next(filter(None, found))).resolve().parent
        # The server refuses to run as root.
        self.user = "postgres" if os.geteuid() == 0 else None
        server = command([self.binaries / "postgres", "--version"]).split()[2]
        self.version = f"DBOS {self.of_worker()}, PostgreSQL {server})"

    def of_worker(self) -> str:
        from importlib.metadata import version
        return f"{version('dbos')} (Python {sys.version.split()[0]}"

    def start(self) -> None:
        self.database = self.folder / "database"
        [self.port] = free_ports(1)
        self.database.mkdir()
        if self.user:
            shutil.chown(self.database, self.user, self.user)
        init = Server("initdb", [self.binaries / "initdb", "-D", self.database / "data", "-U", "bench", "--auth=trust"], self.folder, user=self.user)
        if init.process.wait(60) != 0:
            init.check()
        self.server = self.start_server()
        import psycopg

        def connection():
            try:
                return psycopg.connect(self.url("postgres"), autocommit=True)
            except psycopg.OperationalError:
                return None

        with wait_until("PostgreSQL: it answers", connection, 30, [self.server]) as database:
            database.execute("CREATE DATABASE bench")
        self.worker = self.start_worker()

    def url(self, database: str) -> str:
        # Not a Unix socket: one that refuses at once gives DBOS 3.4.0 an error that it does not try again after.
        return f"postgresql://bench@127.0.0.1:{self.port}/{database}"

    def start_server(self) -> Server:
        words = [self.binaries / "postgres", "-D", self.database / "data", "-h", "127.0.0.1", "-p", self.port, "-k", ""]
        # By SIGINT it ends at once and leaves no shared memory behind.
        return Server("postgres", words, self.folder, user=self.user, ends_by=signal.SIGINT)

    def worker_words(self) -> list:
        return [sys.executable, HERE / "dbos_worker.py"]

    def start_worker(self) -> Server:
        worker = Server("worker", [*self.worker_words(), self.url("bench"), *([self.service] if self.service else [])], self.folder, pipes=True)
        self.answer(worker, 60)
        return worker

    def answer(self, worker: Server, seconds: float) -> dict:
        ready, _, _ = select.select([worker.process.stdout], [], [], seconds)
        line = worker.process.stdout.readline() if ready else ""
        if not line:
            worker.check()
            raise Failed(f"the worker of DBOS did not answer within {seconds} s")
        return json.loads(line)

    def tell(self, message: dict) -> None:
        self.worker.process.stdin.write(json.dumps(message) + "\n")
        self.worker.process.stdin.flush()

    def single(self, orders: int) -> list[float]:
        self.tell({"single": orders})
        return self.answer(self.worker, 120)["ms"]

    def many(self) -> dict:
        s = self.settings
        self.tell({"orders": s.orders, "in_flight": s.in_flight, "seconds": s.seconds})
        return self.answer(self.worker, s.seconds + 120)

    def submit(self, order: dict) -> None:
        self.tell(order)

    def fsyncs(self) -> int | None:
        """Of the log. Each backend adds what it counted at most once a second, so up to a second of the run is missing."""
        import psycopg

        time.sleep(1.1)
        with psycopg.connect(self.url("postgres"), autocommit=True) as database:
            try:
                [count] = database.execute("SELECT wal_sync FROM pg_stat_wal").fetchone()
            except psycopg.Error:
                # Before version 14 nobody counts, and since 18 it is counted elsewhere.
                return None
        return count


class DbosInRust(Dbos):
    """The worker in Rust instead."""

    title = "DBOS in Rust on PostgreSQL"

    def of_worker(self) -> str:
        return f"{crate('dbos')} (Rust"

    def worker_words(self) -> list:
        return [rust("bench-dbos")]


def quantile(ordered: list[float], q: float) -> float:
    return ordered[min(int(len(ordered) * q), len(ordered) - 1)]


ALL = {
    "stepwarden": Stepwarden, "restate-calls": RestateCalls, "restate-steps": RestateSteps, "dbos": Dbos,
    "restate-calls-rust": RestateCallsInRust, "restate-steps-rust": RestateStepsInRust, "dbos-rust": DbosInRust,
}
