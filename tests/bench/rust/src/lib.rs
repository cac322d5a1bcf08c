//! What both workers do: nothing, or a call of the service that the order names. A step of an order that names a file notes
//! its time beside it, and the second step lasts until the file is there.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

/// The steps, in their order.
pub const STEPS: [&str; 3] = ["first", "second", "third"];

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    pub number: u64,
    #[serde(default)]
    pub text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
}

/// Its connections stay open.
static HTTP: LazyLock<reqwest::Client> = LazyLock::new(reqwest::Client::new);

/// One step.
pub async fn act(step: &str, order: &Order) {
    if let Some(service) = &order.service {
        let answer = HTTP.post(service).send().await.expect("the service answers");
        answer.error_for_status().expect("a success").bytes().await.expect("a whole answer");
    }
    let Some(hold) = &order.hold else { return };
    let now = clock_gettime(ClockId::Monotonic);
    let nanoseconds = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    let mut log = hold.clone().into_os_string();
    log.push(".log");
    let mut log = std::fs::OpenOptions::new().append(true).create(true).open(log).expect("the folder of the run");
    writeln!(log, "{step} {nanoseconds}").expect("a line");
    let mut tries = if step == "second" { 12_000 } else { 0 };
    while tries > 0 && !hold.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        tries -= 1;
    }
}
