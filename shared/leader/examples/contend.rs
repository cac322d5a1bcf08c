//! Two contenders for one lease, in one process: each leads for a while, and the token rises. Nothing to install.

use leader::memory::MemoryLeases;
use leader::{CancellationToken, Settings, run_while_leader};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let leases = Arc::new(MemoryLeases::default());
    let mut contenders = tokio::task::JoinSet::new();
    for name in ["ann", "ben"] {
        let leases = Arc::clone(&leases);
        contenders.spawn(async move {
            let settings = Settings::new("cleanup", name, Duration::from_millis(600));
            for _ in 0..2 {
                run_while_leader(&*leases, &settings, &CancellationToken::new(), |leadership| async move {
                    println!("{name} leads under token {}", leadership.token());
                    sleep(Duration::from_millis(100)).await;
                })
                .await;
                sleep(Duration::from_millis(300)).await;
            }
        });
    }
    contenders.join_all().await;
}
