"""Stepwarden and others on the same work, in turn: orders of three steps that do nothing, one after another, each kept on disk.

Each round starts every system fresh, in a fresh folder, on the loopback interface; the figures are medians over the rounds,
and the ratios medians of the ratios within each round. docs/compared.md tells what is equal and what is not."""

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import peers
from processes import Failed, stop_all

FIGURES = [
    ("orders_per_second", "orders/s, {in_flight} in flight"),
    ("p50_ms", "one at a time, p50, ms"),
    ("p99_ms", "one at a time, p99, ms"),
    ("cpu_ms_per_order", "CPU of all processes per order, ms"),
    ("fsyncs_per_order", "fsyncs per order"),
    ("written_kb_per_order", "the disk was given per order, KB"),
    ("idle_memory_mb", "memory, idle, MB"),
    ("peak_memory_mb", "memory, peak, MB"),
    ("worker_killed_ms", "worker killed: work continues after, ms"),
    ("server_killed_ms", "server killed: work continues after, ms"),
]
OURS = "stepwarden"
QUIET = 0.4
"""A machine with a load average above this share of its cores is busy: its times are no figures to publish."""


def summary(rounds: list[dict]) -> dict:
    """For each system and figure the median of all rounds, and the median of its ratio to ours within a round.

    A figure that a system does not have is None in every round. One that is there in some rounds only, or not a positive
    number, is an error: it would make a median of something else."""
    result = {}
    for name in rounds[0]:
        result[name] = {}
        for key, _ in FIGURES:
            values = [one[name][key] for one in rounds]
            if all(value is None for value in values):
                continue
            if not all(isinstance(value, (int, float)) and 0 < value < float("inf") for value in values):
                raise Failed(f"{name}: {key} is {values}")
            result[name][key] = {"median": statistics.median(values), "rounds": len(values)}
            ours = [one.get(OURS, {}).get(key) for one in rounds]
            if all(ours):
                result[name][key]["ratio"] = statistics.median(theirs / own for theirs, own in zip(values, ours))
    return result


def short(value: float) -> str:
    """Three significant digits, and no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(summed: dict, settings: peers.Settings, markdown: bool) -> str:
    head = ["", *(peers.ALL[name].title for name in summed)]
    rows = []
    for key, label in FIGURES:
        cells = [label.format(in_flight=settings.in_flight)]
        for name, figures in summed.items():
            figure = figures.get(key)
            ratio = f" ({short(figure['ratio'])})" if figure and name != OURS and "ratio" in figure else ""
            cells.append(short(figure["median"]) + ratio if figure else "-")
        if any(cell != "-" for cell in cells[1:]):
            rows.append(cells)
    if markdown:
        lines = [head, ["---"] * len(head), *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    widths = [max(len(line[n]) for line in [head, *rows]) for n in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in [head, *rows])


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def settle(seconds: int = 180) -> None:
    """Waits until what built the program no longer counts in the load average, at most so long."""
    until = time.monotonic() + seconds
    while is_busy(os.getloadavg()[0], os.cpu_count()) and time.monotonic() < until:
        time.sleep(2)


def is_busy(load: float, cpus: int) -> bool:
    return load > QUIET * cpus


def about(systems: dict, rounds: int, settings: peers.Settings) -> dict:
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpus": os.cpu_count(),
        "cpu_model": cpu_model(),
        "kernel": platform.release(),
        "load_average": os.getloadavg()[0],
        "rounds": rounds,
        "orders": settings.orders,
        "single": settings.single,
        "in_flight": settings.in_flight,
        "work": "service" if settings.calls_service else "nothing",
        "versions": {name: system.version for name, system in systems.items()},
    }


def sentence(facts: dict) -> str:
    versions = dict.fromkeys(f"Stepwarden {v}" if name == OURS else v for name, v in facts["versions"].items())
    rounds = "come from one round, with" if facts["rounds"] == 1 else f"are medians of {facts['rounds']} rounds, each with"
    work = " Each step calls a local service that takes 5 ms." if facts["work"] == "service" else ""
    rough = " The machine was busy: only ratios and counts mean something." if is_busy(facts["load_average"], facts["cpus"]) else ""
    return (f"Measured at {facts['date']} on a machine with {facts['cpus']} cores ({facts['cpu_model']}); the load average was "
            f"{facts['load_average']:.1f} at the start. Versions: {', '.join(versions)}. The figures {rounds} {facts['single']} orders "
            f"one at a time and {facts['orders']} orders with {facts['in_flight']} in flight. The ratio to Stepwarden is in "
            f"brackets.{work}{rough}")


def one_round(title: str, systems: dict) -> dict:
    figures = {}
    for name, system in systems.items():
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="stepwarden-peers-") as folder:
            # PostgreSQL may run as another user.
            os.chmod(folder, 0o711)
            try:
                figures[name] = system.measure(Path(folder))
            except Failed as failure:
                logs = [log for end in ("out", "err") for log in sorted(Path(folder).glob(f"*.{end}")) if log.stat().st_size]
                said = [f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in logs]
                raise Failed("\n".join([f"{title}: {system.title}: {failure}", *said])) from failure
            finally:
                stop_all()
        print(f"{title}: {system.title}: {figures[name]['orders_per_second']:.0f} orders/s, p50 {figures[name]['p50_ms']:.1f} ms, "
              f"in {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stepwarden", type=Path, required=True, help="the program; `run` builds it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--orders", type=int, default=2000, help="orders in the throughput run")
    parser.add_argument("--single", type=int, default=300, help="orders one at a time")
    parser.add_argument("--in-flight", type=int, default=128, help="submitted and not ended at most")
    parser.add_argument("--seconds", type=float, default=20, help="a peer's throughput run begins no order after so long")
    parser.add_argument("--work", choices=["nothing", "service"], default="nothing", help="what a step does: nothing, or a call of a local service that takes 5 ms")
    parser.add_argument("--only", default=",".join(peers.ALL), metavar="NAMES", help=f"of {', '.join(peers.ALL)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures of all rounds there")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := set(names) - set(peers.ALL):
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(peers.ALL)}")
    if min(args.rounds, args.orders, args.single, args.in_flight, args.seconds) < 1:
        parser.error("all numbers are at least 1")
    for wish in signal.SIGINT, signal.SIGTERM:
        signal.signal(wish, lambda *_: sys.exit("stopped"))
    settings = peers.Settings(args.orders, args.single, args.in_flight, args.seconds, args.stepwarden.resolve(), args.work == "service")
    systems = {name: peers.ALL[name](settings) for name in names}
    settle()
    facts = about(systems, args.rounds, settings)
    if is_busy(facts["load_average"], facts["cpus"]):
        busy = f"the load average is {facts['load_average']:.1f}, and above {QUIET * facts['cpus']:.1f} the machine is busy"
        if args.markdown:
            raise Failed(f"{busy}: no table to publish comes from it; end what else runs, or leave --markdown out")
        print(f"{busy}: only ratios and counts will mean something", file=sys.stderr)
    rounds = []
    failure = None
    try:
        for n in range(args.rounds):
            rounds.append(one_round(f"round {n + 1} of {args.rounds}", systems))
            if args.json:
                args.json.write_text(json.dumps({"about": facts, "rounds": rounds}, indent=1))
    except Failed as error:
        failure = error
        facts["rounds"] = len(rounds)
    if not rounds:
        raise failure
    summed = summary(rounds)
    if args.json:
        args.json.write_text(json.dumps({"about": facts, "summary": summed, "rounds": rounds}, indent=1))
    print(table(summed, settings, args.markdown), "", sentence(facts), sep="\n")
    if failure:
        raise failure


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(f"compare: {failure}")
