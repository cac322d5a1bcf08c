"""A report of `stepwarden bench --json` as a picture (SVG) that reads on light and on dark ground: throughput, rates, or memory."""

import json
import sys

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot, ticker

# Lines are the same on both grounds, and apart for those who see no red or green.
COLOURS = ["#3b82f6", "#0d9488", "#d97706", "#c026d3"]
# Stands for the colour of text, which the ground decides.
TEXT = "#010203"
STYLE = """<style>
svg { color: #1f2328; background: #ffffff }
@media (prefers-color-scheme: dark) { svg { color: #e6edf3; background: #0d1117 } }
</style>"""


def at_once(report: dict) -> str:
    backlog = report["backlog"]
    if backlog is None:
        return f"{report['in_flight']} in flight"
    return "all submitted first" if backlog >= report["orders"] else f"{backlog} at a time, submitted first"


def panels(report: dict) -> list[tuple]:
    """A title, names of the axes, whether y is logarithmic, and the lines by name."""
    found = []
    if rates := sorted(report.get("rates", []), key=lambda rate: rate["offered_per_second"]):
        lines = {name: [(rate["offered_per_second"], rate[f"{name}_ms"]) for rate in rates] for name in ["p50", "p90", "p99", "max"]}
        found.append(("Time from an order's scheduled submission to its end", "orders per second offered", "milliseconds", True, lines))
    if over_time := report.get("ended_over_time"):
        title = f"Orders ended, of {report['orders']}, {at_once(report)}"
        found.append((title, "seconds", "orders per second", False, {"": over_time}))
    if steady := report.get("steady"):
        title = f"Resident memory at {steady['offered_per_second']} orders per second"
        memory = [(sample["at_s"], sample["memory_bytes"] / 2**20) for sample in steady["samples"]]
        found.append((title, "seconds", "MB", False, {"": memory}))
    return found


def caption(report: dict) -> str:
    lines = [
        f"Stepwarden {report['version']}, {report['date']}, {report['cpus']} x {report['cpu_model']}",
        f"Orders of three steps. {report['durability']}",
    ]
    if recovery := report.get("recovery"):
        within = ", ".join(f"{who} {recovery[who]['final_max_ms'] / 1000:.1f} s" for who in ["agent", "scheduler", "everything"])
        lines.append(f"After kill -9, with steps of at most {recovery['timeout_ms']} ms, all orders final within: {within}")
    return "\n".join(lines)


def draw(report: dict, path: str) -> None:
    all_panels = panels(report)
    if not all_panels:
        sys.exit("nothing to draw: a picture shows throughput, rates, or a run with --duration")
    colours = ["text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"]
    # Text stays text, in whatever font the reader has.
    pyplot.rcParams.update(dict.fromkeys(colours, TEXT) | {"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9})
    figure, axes = pyplot.subplots(len(all_panels), figsize=(7.9, 2.9 * len(all_panels) + 0.6), squeeze=False, layout="constrained")
    for (title, x, y, is_log, lines), axis in zip(all_panels, axes[:, 0]):
        for (name, points), colour in zip(lines.items(), COLOURS):
            axis.plot(*zip(*points), color=colour, marker="o" if name else None, markersize=4, label=name)
        axis.set(title=title, xlabel=x, ylabel=y)
        axis.set_xlim(left=0)
        if is_log:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(ticker.ScalarFormatter())
            axis.yaxis.set_minor_formatter(ticker.LogFormatter(minor_thresholds=(2, 0.5)))
            axis.yaxis.set_major_formatter("{x:g}")
        else:
            axis.set_ylim(bottom=0)
        axis.grid(axis="y", alpha=0.2)
        axis.spines[["top", "right"]].set_visible(False)
        if any(lines):
            axis.legend(frameon=False)
    figure.supxlabel(caption(report), x=0.02, ha="left", fontsize=9)
    figure.savefig(path, transparent=True, metadata={"Date": None})
    with open(path) as file:
        svg = file.read()
    with open(path, "w") as file:
        file.write(svg.replace(TEXT, "currentColor").replace("<defs>", f"{STYLE}\n<defs>", 1))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: plot REPORT.json OUT.svg")
    with open(sys.argv[1]) as file:
        draw(json.load(file), sys.argv[2])
