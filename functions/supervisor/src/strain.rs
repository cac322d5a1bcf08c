//! What a sweep learns about the agents: it records strained agents and alerts an operator once.
//!
//! The record is written before the alert, which it shows as owed until a supervisor has sent it.

use shared::engine::Engine;
use shared::message::Effect;
use shared::ports::Error;
use shared::strain::{self, Strain};
use shared::task::OWED_GRACE;
use shared::time::{SignedDuration, Timestamp, plus};
use std::collections::BTreeMap;

/// How often a supervisor with nothing due checks whether another one died before it sent its alert.
const LOOK_EVERY: SignedDuration = SignedDuration::from_mins(1);

/// Sends the alerts about agents.
#[derive(Default)]
pub(crate) struct Alerts {
    /// When it last read the record.
    looked: Option<Timestamp>,
    /// Whether an alert was owed then.
    is_owed: bool,
}

impl Alerts {
    /// Records which agents the sweep found strained, and sends owed alerts. The next sweep retries what fails;
    /// recovery does not depend on it.
    pub async fn follow(&mut self, engine: &Engine, held: &BTreeMap<String, u32>, looked_at: u32, least: u32) {
        let strained: Vec<_> = held.iter().filter(|(_, held)| strain::is_strained(**held, looked_at, least)).collect();
        let now = engine.now();
        let is_time = self.looked.is_none_or(|looked| looked.duration_until(now).abs() >= LOOK_EVERY);
        // Under normal load this costs one read a minute.
        if strained.is_empty() && !self.is_owed && !is_time {
            return;
        }
        self.looked = Some(now);
        let mut known = engine.agents().await.strained.clone();
        for (agent, held) in strained {
            let Some(next) = strain::next(known.get(agent), *held, looked_at, now) else { continue };
            match replace(engine, agent, &next, known.get(agent)).await {
                Ok(true) => {
                    tracing::warn!(
                        agent,
                        held = next.held,
                        looked_at = next.looked_at,
                        stretch = next.stretch,
                        "an agent is strained; its back-off is stretched"
                    );
                    if next.alert_owed {
                        tell(engine, agent, &next).await;
                    }
                    known.insert(agent.clone(), next);
                }
                // Another supervisor saw it first.
                Ok(false) => {}
                Err(error) => warn(agent, &error),
            }
        }
        self.is_owed = false;
        for (agent, strain) in engine.agents().await.strained.iter().filter(|(_, strain)| strain.alert_owed) {
            // The supervisor that recorded it is probably sending it now.
            let is_told = plus(strain.last, OWED_GRACE) <= now && tell(engine, agent, strain).await;
            self.is_owed |= !is_told;
        }
    }
}

/// Sends the alert and records that it is no longer owed. If the record fails, the alert is sent again.
async fn tell(engine: &Engine, agent: &str, strain: &Strain) -> bool {
    for sent in engine.messenger.send(vec![Effect::Strained(Box::new(strain.event(agent)))]).await {
        if let Err(error) = sent {
            warn(agent, &error);
            return false;
        }
    }
    match replace(engine, agent, &Strain { alert_owed: false, ..strain.clone() }, Some(strain)).await {
        Ok(is_cleared) => is_cleared,
        Err(error) => {
            warn(agent, &error);
            false
        }
    }
}

async fn replace(engine: &Engine, agent: &str, strain: &Strain, seen: Option<&Strain>) -> Result<bool, Error> {
    let replaced = engine.store.save_strain(agent, strain, seen).await;
    // Saved or not, this instance's copy is now stale.
    engine.forget_agents();
    replaced
}

fn warn(agent: &str, error: &Error) {
    tracing::warn!(agent, error = error as &dyn std::error::Error, "an agent's alert waits for the next sweep");
}
