//! A report as a picture (SVG), readable on light and on dark ground.

use super::{Kills, Latency, Report};
use std::fmt::Write as _;

/// Size of one panel, its margins, and the height of a line below all of them, in pixels.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 50.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
const LINE: f64 = 20.0;
/// Marks on an axis, about.
const MARKS: f64 = 5.0;
/// Bins of a rate over time.
const BINS: usize = 60;
/// Lines are the same on both grounds, and apart for those who see no red or green.
const STYLE: &str = "<style>
svg { color: #1f2328; background: #ffffff; font: 12px sans-serif }
@media (prefers-color-scheme: dark) { svg { color: #e6edf3; background: #0d1117 } }
text { fill: currentColor }
.title { font-size: 15px }
.grid { stroke: currentColor; stroke-opacity: 0.2 }
.line { fill: none; stroke-width: 2 }
</style>";
const COLOURS: [&str; 4] = ["#3b82f6", "#0d9488", "#d97706", "#c026d3"];

/// One panel: lines with their names, over the same axes. Both begin at zero, but for a logarithmic one.
struct Panel {
    title: String,
    x: &'static str,
    y: &'static str,
    /// Whether y is logarithmic.
    is_log: bool,
    lines: Vec<(&'static str, Vec<(f64, f64)>)>,
}

/// Draws what was measured: throughput, rates, or memory.
#[must_use]
pub fn svg(report: &Report) -> String {
    let (panels, lines) = (panels(report), caption(report));
    let height = HEIGHT * panels.len() as f64 + LINE * (lines.len() + 1) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\">\n\
         {STYLE}\n"
    );
    for (n, panel) in panels.iter().enumerate() {
        let _ = write!(svg, "<g transform=\"translate(0 {})\">\n{}</g>\n", HEIGHT * n as f64, panel.draw());
    }
    for (n, line) in lines.iter().enumerate() {
        let y = HEIGHT * panels.len() as f64 + LINE * (n + 1) as f64;
        let _ = writeln!(svg, "<text x=\"{LINE}\" y=\"{y}\">{}</text>", escaped(line));
    }
    svg + "</svg>\n"
}

fn panels(report: &Report) -> Vec<Panel> {
    let mut panels = Vec::new();
    if !report.rates.is_empty() {
        let mut rates: Vec<_> = report.rates.iter().collect();
        rates.sort_by_key(|rate| rate.offered_per_second);
        let line = |name, of: fn(&Latency) -> f64| {
            (name, rates.iter().map(|r| (f64::from(r.offered_per_second), of(&r.latency))).collect())
        };
        panels.push(Panel {
            title: "Time from an order's scheduled submission to its end".into(),
            x: "orders per second offered",
            y: "milliseconds",
            is_log: true,
            lines: vec![
                line("p50", |l| l.p50_ms),
                line("p90", |l| l.p90_ms),
                line("p99", |l| l.p99_ms),
                line("max", |l| l.max_ms),
            ],
        });
    }
    if let Some(run) = &report.throughput {
        let in_flight = run.at_once();
        panels.push(Panel {
            title: format!("Orders ended, of {}, {in_flight}", run.orders),
            x: "seconds",
            y: "orders per second",
            is_log: false,
            lines: vec![("", over_time(&run.ends_s))],
        });
    }
    if let Some(steady) = &report.steady {
        let memory = steady.samples.iter().map(|s| (s.at_s, s.memory_bytes as f64 / f64::from(1 << 20))).collect();
        panels.push(Panel {
            title: format!("Resident memory at {} orders per second", steady.offered_per_second),
            x: "seconds",
            y: "MB",
            is_log: false,
            lines: vec![("", memory)],
        });
    }
    panels
}

/// How many a second, in equal parts of the time until the last one.
fn over_time(ends_s: &[f64]) -> Vec<(f64, f64)> {
    let width = ends_s.last().copied().unwrap_or_default().max(1e-3) / BINS as f64;
    let mut bins = [0_u32; BINS];
    for end in ends_s {
        bins[((end / width) as usize).min(BINS - 1)] += 1;
    }
    bins.iter().enumerate().map(|(n, count)| ((n as f64 + 0.5) * width, f64::from(*count) / width)).collect()
}

fn caption(report: &Report) -> Vec<String> {
    let mut lines = vec![
        format!("Stepwarden {}, {}, {} x {}", report.version, report.date, report.cpus, report.cpu_model),
        format!("Orders of three steps. {}", report.durability),
    ];
    if let Some(recovery) = &report.recovery {
        let most = |name: &str, kills: &Kills| format!("{name} {:.1} s", kills.final_max_ms / 1000.0);
        lines.push(format!(
            "After kill -9, with steps of at most {} ms, all orders final within: {}, {}, {}",
            recovery.timeout_ms,
            most("agent", &recovery.agent),
            most("scheduler", &recovery.scheduler),
            most("everything", &recovery.everything)
        ));
    }
    lines
}

impl Panel {
    fn draw(&self) -> String {
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(0.0, f64::max).max(1e-3);
        let (width, height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
        let (right, top) = (most(|p| p.0), most(|p| p.1));
        let x_step = step(right);
        let x = |value: f64| LEFT + value / right * width;
        // An axis of values ends at a mark; time ends when it ended.
        let y_marks = if self.is_log {
            let least = points().map(|p| p.1).fold(top, f64::min).max(1e-3);
            log_marks(least, top)
        } else {
            let step = step(top);
            marks((top / step).ceil() * step, step).collect()
        };
        let (lowest, highest) = (y_marks[0], y_marks[y_marks.len() - 1]);
        let share = |value: f64| match self.is_log {
            true => (value.max(lowest) / lowest).ln() / (highest / lowest).ln(),
            false => value / highest,
        };
        let y = |value: f64| HEIGHT - BOTTOM - share(value) * height;
        let (end, floor, middle) = (WIDTH - RIGHT, HEIGHT - BOTTOM, (TOP + HEIGHT - BOTTOM) / 2.0);
        let mut svg = format!("<text class=\"title\" x=\"{LEFT}\" y=\"24\">{}</text>\n", escaped(&self.title));
        let y_step = y_marks[1] - y_marks[0];
        for mark in y_marks {
            let (at, label) = (y(mark), number(mark, y_step));
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{end}\"/>");
            let _ =
                writeln!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", LEFT - 8.0, at + 4.0);
        }
        for mark in marks(right, x_step) {
            let (at, label) = (x(mark), number(mark, x_step));
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{at:.1} {floor}v5\"/>");
            let _ = writeln!(svg, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", floor + 18.0);
        }
        let (centre, low) = (f64::midpoint(LEFT, end), HEIGHT - 12.0);
        let _ = writeln!(svg, "<text x=\"{centre}\" y=\"{low}\" text-anchor=\"middle\">{}</text>", self.x);
        let turned = format!("transform=\"translate(18 {middle}) rotate(-90)\" text-anchor=\"middle\"");
        let _ = writeln!(svg, "<text {turned}>{}</text>", self.y);
        // Names stand one above the other where their lines end close together.
        let mut free = f64::INFINITY;
        for ((name, points), colour) in self.lines.iter().zip(COLOURS) {
            let at: Vec<_> = points.iter().map(|point| (x(point.0), y(point.1))).collect();
            let path: Vec<_> = at.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let path = path.join(" ");
            let _ = writeln!(svg, "<polyline class=\"line\" stroke=\"{colour}\" points=\"{path}\"/>");
            let Some(last) = at.last().filter(|_| !name.is_empty()) else { continue };
            for (x, y) in &at {
                let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            }
            let (beside, level) = (last.0 + 8.0, (last.1 + 4.0).min(free));
            free = level - 13.0;
            let _ = writeln!(svg, "<text x=\"{beside:.1}\" y=\"{level:.1}\">{name}</text>");
        }
        svg
    }
}

/// A distance of marks on an axis of this length that reads well: 1, 2 or 5 times a power of ten.
fn step(length: f64) -> f64 {
    let least = length / MARKS;
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| *step >= least * 0.999).unwrap_or(10.0 * power)
}

fn marks(end: f64, step: f64) -> impl Iterator<Item = f64> {
    (0..).map(move |n| f64::from(n) * step).take_while(move |mark| *mark <= end * 1.001)
}

/// The marks from the last one below `least` to the first one above `most`, each 1, 2 or 5 times a power of ten.
fn log_marks(least: f64, most: f64) -> Vec<f64> {
    let powers = least.log10().floor() as i32..=most.log10().ceil() as i32;
    let all: Vec<f64> = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|n| n * 10_f64.powi(power))).collect();
    let first = all.iter().rposition(|mark| *mark <= least).unwrap_or(0);
    let last = all.iter().position(|mark| *mark >= most && *mark > all[first]).unwrap_or(all.len() - 1);
    all[first..=last].to_vec()
}

/// A mark, with as many decimals as its step has.
fn number(mark: f64, step: f64) -> String {
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    format!("{mark:.decimals$}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_over_time_counts_each_order_once() {
        let ends: Vec<f64> = (1..=600).map(|n| f64::from(n) / 100.0).collect();
        let rates = over_time(&ends);
        assert_eq!(rates.len(), BINS);
        let counted: f64 = rates.iter().map(|(_, rate)| rate * 6.0 / BINS as f64).sum();
        assert!((counted - 600.0).abs() < 1e-6, "{counted}");
        assert!(rates.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn marks_read_well() {
        for (length, expected) in [(400.0, 100.0), (5.4, 2.0), (0.37, 0.1), (1000.0, 200.0), (7.0, 2.0)] {
            assert!((step(length) / expected - 1.0).abs() < 1e-9, "{length}: {}", step(length));
        }
        assert_eq!(
            marks(400.0, 100.0).map(|m| number(m, 100.0)).collect::<Vec<_>>(),
            ["0", "100", "200", "300", "400"]
        );
        assert_eq!(number(0.2, 0.1), "0.2");
        assert_eq!(log_marks(8.0, 130.0), [5.0, 10.0, 20.0, 50.0, 100.0, 200.0]);
        assert_eq!(log_marks(10.0, 10.0), [10.0, 20.0]);
    }
}
