//! The console's charts: the last hour, on a laptop from this process, in a deployment from CloudWatch.

#[cfg(feature = "deployment")]
pub mod cloudwatch;

use crate::Operator;
use edge::problem::Problem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use shared::time::Timestamp;
use stepwarden_aws::metrics::{CHARTED, Line, MINUTES, last_hour, minute};

/// Most agents of one chart: those with the highest counts.
const MAX_AGENTS: usize = 10;

/// Where the charts come from.
#[derive(Debug)]
pub enum Source {
    /// What this process counted: on a laptop it has all functions.
    Process,
    /// The metrics that all instances of the stack's functions report.
    #[cfg(feature = "deployment")]
    CloudWatch(Box<stepwarden_aws::Clients>),
}

/// The last hour, minute by minute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Charts {
    /// When the first minute began (UTC, milliseconds).
    pub from: Timestamp,
    /// Seconds from one point to the next.
    pub step_s: u32,
    /// The lines. A metric that is counted for each agent has at most ten, the agents with the highest counts.
    pub lines: Vec<Line>,
    /// Agents that are left out of a chart.
    pub left_out: usize,
}

impl Operator {
    /// The last hour until `now`.
    ///
    /// # Errors
    /// CloudWatch did not answer.
    pub async fn last_hour(&self, now: Timestamp) -> Result<Charts, Problem> {
        let lines = match &self.charts {
            Source::Process => last_hour(now),
            #[cfg(feature = "deployment")]
            Source::CloudWatch(clients) => {
                cloudwatch::last_hour(clients, self.config.stack(), minute(now)).await.map_err(|why| {
                    let detail = format!("the metrics of the last hour cannot be read from CloudWatch: {why}");
                    edge::problem::unavailable(None, detail).retry_after(60)
                })?
            }
        };
        let from = Timestamp::from_second((minute(now) + 1 - MINUTES as i64) * 60).expect("an hour ago is a time");
        let (lines, left_out) = highest(lines);
        Ok(Charts { from, step_s: 60, lines, left_out })
    }
}

/// The lines in the sequence of charts, with only the [`MAX_AGENTS`] highest agents each, and how many are left out.
fn highest(lines: Vec<Line>) -> (Vec<Line>, usize) {
    let count = lines.len();
    let mut kept = Vec::new();
    for metric in CHARTED {
        let mut of: Vec<_> = lines.iter().filter(|line| line.metric == metric.name).cloned().collect();
        let sum = |line: &Line| line.points.iter().flatten().sum::<f64>();
        of.sort_by(|a, b| sum(b).total_cmp(&sum(a)).then_with(|| a.agent.cmp(&b.agent)));
        of.truncate(MAX_AGENTS);
        kept.extend(of);
    }
    let left_out = count - kept.len();
    (kept, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepwarden_aws::metrics::{ORDERS_PROCESSED, STEP_FAILURES};

    #[test]
    fn the_agents_with_the_most_failures_are_charted() {
        let line = |metric: &str, agent: Option<String>, n: usize| Line {
            metric: metric.into(),
            agent,
            points: vec![None, Some(n as f64)],
        };
        let agents = (0..15).map(|n| line(STEP_FAILURES.name, Some(format!("agent-{n}")), n));
        let (lines, left_out) = highest(agents.chain([line(ORDERS_PROCESSED.name, None, 0)]).collect());
        assert_eq!((lines.len(), left_out), (11, 5));
        let agents: Vec<_> = lines.iter().filter_map(|line| line.agent.as_deref()).collect();
        assert_eq!((lines[0].metric.as_str(), agents[0], agents[9]), (ORDERS_PROCESSED.name, "agent-14", "agent-5"));
    }
}
