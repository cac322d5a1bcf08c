//! The agent of the recovery runs, in a separate process that can be killed: each step takes a while, or until a file
//! exists, and is reported on standard output when it begins. It is served as users serve theirs.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use shared::order::Id;
use shared::time::Timestamp;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use stepwarden_agent::{Agent, AgentError, Call};

/// Name by which the workflow of the recovery runs knows it.
pub const NAME: &str = "worker";
/// The steps of that workflow.
pub const STEPS: [&str; 3] = ["first", "second", "third"];
/// How long a step takes, unless its order names a file.
pub const WORK: Duration = Duration::from_millis(100);
/// Time between two looks for that file.
const LOOK: Duration = Duration::from_millis(5);
/// Concurrent requests.
const CONCURRENCY: usize = 64;

/// An attempt at a step that begins; a line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Begun {
    /// The order.
    pub order: Id,
    /// The step.
    pub step: String,
    /// Which attempt.
    pub attempt: u32,
    /// The attempt's CompleteBy.
    pub complete_by: Timestamp,
    /// When it began.
    pub at: Timestamp,
}

/// The input of an order.
#[derive(Deserialize, Serialize)]
pub struct Input {
    /// A number, so that inputs differ.
    pub number: u64,
    /// The second step takes until this file exists, and the other steps take no time.
    #[serde(default)]
    pub hold: Option<PathBuf>,
}

async fn work(call: Call<Input>) -> Result<(), AgentError> {
    let Call { input, order_id, step, attempt, complete_by, .. } = call;
    let is_second = step == STEPS[1];
    let begun = Begun { order: Id(order_id), step, attempt, complete_by, at: Timestamp::now() };
    let line = serde_json::to_string(&begun).expect("it has string keys only");
    // The parent may be gone; then this process is about to be killed too.
    let _ = writeln!(std::io::stdout(), "{line}");
    match input.hold {
        None => tokio::time::sleep(WORK).await,
        // The attempt's time bounds this.
        Some(file) => {
            while is_second && !file.exists() {
                tokio::time::sleep(LOOK).await;
            }
        }
    }
    Ok(())
}

/// Serves until it is killed, at the endpoints that the environment names.
pub async fn serve() -> Result<()> {
    let agent = STEPS.iter().fold(Agent::new(NAME).at_once(CONCURRENCY), |agent, step| agent.step(step, work));
    // It has a runtime of its own.
    let served = tokio::task::spawn_blocking(|| stepwarden_agent::serve([agent])).await;
    served.context("the agent ended")?.context("serving the agent")
}
