//! How fast a system recovers from kill -9. It runs in two processes, one of which is the agent, and is killed in the
//! middle of orders.
//!
//! The scheduler, the supervisor, the API and the data are one process on one machine. So an agent is killed alone, the
//! scheduler is killed together with all these, and "everything" means both processes.

use super::agent::{Begun, Input, NAME, STEPS, WORK};
use super::child::{PATIENCE, Place, Running, again, program, spawn};
use super::latency::quantile;
use super::lock;
use crate::client::Api;
use crate::say;
use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;
use shared::order::Id;
use shared::task::ProcessState;
use shared::time::{Timestamp, plus};
use shared::view::Status;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stepwarden_embedded::Durability;
use stepwarden_local::system::SKEW;
use submit::http::Accepted;

/// Time for each attempt at a step. An attempt that failed is repeated at once.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Orders in progress at each kill, and the time between two submissions: the first orders are nearly done when the
/// last one begins.
const ORDERS: u64 = 40;
const APART: Duration = Duration::from_millis(8);
/// Time between two polls of an order.
const LOOK: Duration = Duration::from_millis(10);

/// What kills cost.
#[derive(Debug, Serialize)]
pub struct Recovery {
    /// Timeout of each attempt, in milliseconds: a lost attempt is found after this time.
    pub timeout_ms: u64,
    /// Clock skew that is added to the timeout, in milliseconds.
    pub skew_ms: u64,
    /// How long a step takes, in milliseconds.
    pub step_ms: u64,
    /// Kills of an agent's process, which is restarted at once.
    pub agent: Kills,
    /// Kills of the process of the scheduler, the supervisor, the API and the data. It is restarted at once or, every
    /// other time, after the timeout, so that all attempts in progress have expired by then.
    pub scheduler: Kills,
    /// Kills of both processes at once, which are restarted in the same way.
    pub everything: Kills,
}

/// The kills of one victim.
#[derive(Debug, Default, Serialize)]
pub struct Kills {
    /// How often.
    pub kills: u32,
    /// Orders open at a kill, summed over all kills.
    pub orders: u64,
    /// Attempts at a step that expired, each of which ran again.
    pub expired: usize,
    /// Time to the beginning of the next attempt, in milliseconds: median. It counts from the expiry of the previous
    /// attempt (CompleteBy plus skew), or from the restart if that was later.
    pub again_p50_ms: Option<f64>,
    /// The same: longest.
    pub again_max_ms: Option<f64>,
    /// From the restart until the last order whose work the kill interrupted began its next step, in milliseconds:
    /// median. It includes the time of the interrupted step, which is done again.
    pub continues_p50_ms: Option<f64>,
    /// The same: longest.
    pub continues_max_ms: Option<f64>,
    /// From the restart until an order that was alone began its next step, in milliseconds: median. The interrupted
    /// step, which is done again, takes no time.
    pub alone_p50_ms: f64,
    /// From the restart until the last order that was open at the kill had ended, in milliseconds: median.
    pub final_p50_ms: f64,
    /// The same: longest.
    pub final_max_ms: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Agent,
    Scheduler,
    Everything,
}

/// Kills each victim `kills` times.
///
/// # Errors
/// A process does not start, or an order does not end.
pub async fn run(kills: u32, durability: Durability) -> Result<Recovery> {
    let folder =
        tempfile::Builder::new().prefix("stepwarden-bench-").tempdir().context("creating a temporary directory")?;
    let mut world = World::start(folder.path(), durability).await?;
    Ok(Recovery {
        timeout_ms: ms(TIMEOUT) as u64,
        skew_ms: ms(SKEW.unsigned_abs()) as u64,
        step_ms: ms(WORK) as u64,
        agent: world.kill_often(Victim::Agent, kills).await?,
        scheduler: world.kill_often(Victim::Scheduler, kills).await?,
        everything: world.kill_often(Victim::Everything, kills).await?,
    })
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The two processes, killed when dropped.
struct World<'a> {
    place: Place<'a>,
    api: Api,
    system: Running,
    agent: Running,
    /// The attempts that agents began since this was last emptied.
    begun: Arc<Mutex<Vec<Begun>>>,
}

impl<'a> World<'a> {
    async fn start(folder: &'a Path, durability: Durability) -> Result<Self> {
        let step = |name: &str, after: &str| {
            format!(
                "[[step]]\nname = \"{name}\"\nagent = \"{NAME}\"\ntimeout = \"{}ms\"\n{after}\
                 retry = {{ max = 50, backoff = [\"0s\"] }}\n",
                TIMEOUT.as_millis()
            )
        };
        let [first, second, third] = STEPS;
        let after = |name: &str| format!("after = [\"{name}\"]\n");
        let steps = [step(first, ""), step(second, &after(first)), step(third, &after(second))];
        let workflow = format!("name = \"bench\"\n{}", steps.concat());
        let place = Place::new(folder, durability, "bench", &workflow)?;
        let api = place.api()?;
        let begun = Arc::default();
        let system = place.start().await?;
        let agent = start_agent(place.port, &begun)?;
        Ok(Self { place, api, system, agent, begun })
    }

    async fn kill_often(&mut self, victim: Victim, kills: u32) -> Result<Kills> {
        let (mut all, mut again, mut until_final) = (Kills { kills, ..Kills::default() }, Vec::new(), Vec::new());
        let (mut continues, mut alone) = (Vec::new(), Vec::new());
        for kill in 0..kills {
            alone.push(self.kill_alone(victim, kill).await.with_context(|| format!("after {victim:?} was killed"))?);
            let orders = self.submit(&format!("{victim:?}-{kill}")).await?;
            let down_for = if victim == Victim::Agent || kill % 2 == 0 { Duration::ZERO } else { TIMEOUT };
            let (restart, at) = self.kill(victim, down_for, None).await?;
            self.wait_for(&orders).await.with_context(|| format!("after {victim:?} was killed"))?;
            until_final.push(ms(restart.elapsed()));
            let begun = std::mem::take(&mut *lock(&self.begun));
            continues.extend(continued(&begun, at));
            again.extend(lateness(begun, at));
            all.orders += orders.len() as u64;
        }
        until_final.sort_by(f64::total_cmp);
        again.sort_by(f64::total_cmp);
        continues.sort_by(f64::total_cmp);
        alone.sort_by(f64::total_cmp);
        let of_expired = |q| (!again.is_empty()).then(|| quantile(&again, q));
        let of_continued = |q| (!continues.is_empty()).then(|| quantile(&continues, q));
        Ok(Kills {
            expired: again.len(),
            again_p50_ms: of_expired(0.5),
            again_max_ms: of_expired(1.0),
            continues_p50_ms: of_continued(0.5),
            continues_max_ms: of_continued(1.0),
            alone_p50_ms: quantile(&alone, 0.5),
            final_p50_ms: quantile(&until_final, 0.5),
            final_max_ms: quantile(&until_final, 1.0),
            ..all
        })
    }

    /// Kills a victim while an order is in its second step, and restarts it at once. The step then takes no more time.
    /// Returns the milliseconds from the restart to the beginning of the third step.
    async fn kill_alone(&mut self, victim: Victim, kill: u32) -> Result<f64> {
        let name = format!("{victim:?}-{kill}-alone");
        let hold = self.place.folder.join(&name);
        let order = [self.submit_one(&name, &Input { number: 0, hold: Some(hold.clone()) }).await?];
        self.begins(STEPS[1]).await?;
        let (_, restart) = self.kill(victim, Duration::ZERO, Some(&hold)).await?;
        let third = self.begins(STEPS[2]).await?;
        self.wait_for(&order).await?;
        lock(&self.begun).clear();
        Ok(restart.duration_until(third).as_secs_f64() * 1000.0)
    }

    /// When this step of the only order begins.
    async fn begins(&self, step: &str) -> Result<Timestamp> {
        let begin = Instant::now();
        loop {
            if let Some(one) = lock(&self.begun).iter().find(|one| one.step == step) {
                return Ok(one.at);
            }
            ensure!(begin.elapsed() < PATIENCE, "step `{step}` did not begin within {} s", PATIENCE.as_secs());
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Submits orders one after another, so that they are at different steps when this returns.
    async fn submit(&self, name: &str) -> Result<Vec<Id>> {
        let mut ids = Vec::new();
        for number in 0..ORDERS {
            ids.push(self.submit_one(&format!("{name}-{number}"), &Input { number, hold: None }).await?);
            tokio::time::sleep(APART).await;
        }
        Ok(ids)
    }

    async fn submit_one(&self, key: &str, input: &Input) -> Result<Id> {
        let order = json!({"workflow": "bench", "input": input});
        let post = || self.api.request(Method::POST, "/orders").header("idempotency-key", key).json(&order);
        let answer = again(&self.api, post).await?;
        Ok(Accepted::deserialize(answer.body).context("cannot read the answer to a submission")?.order_id)
    }

    /// Kills a victim and restarts it after `down_for`; returns when the restart began. What holds a step ends meanwhile.
    async fn kill(&mut self, victim: Victim, down_for: Duration, hold: Option<&Path>) -> Result<(Instant, Timestamp)> {
        let (kills_system, kills_agent) = (victim != Victim::Agent, victim != Victim::Scheduler);
        // Kill both first: neither may do anything without the other.
        let victims = [(kills_system, &mut self.system), (kills_agent, &mut self.agent)];
        let mut victims: Vec<_> = victims.into_iter().filter_map(|(is, process)| is.then_some(process)).collect();
        for process in &mut victims {
            process.kill()?;
        }
        for process in victims {
            process.wait()?;
        }
        tokio::time::sleep(down_for).await;
        if let Some(hold) = hold {
            std::fs::write(hold, "").with_context(|| format!("writing {}", hold.display()))?;
        }
        let restart = (Instant::now(), Timestamp::now());
        if kills_system {
            self.system = self.place.start().await?;
        }
        if kills_agent {
            self.agent = start_agent(self.place.port, &self.begun)?;
        }
        Ok(restart)
    }

    /// Returns when the last of these orders has ended.
    async fn wait_for(&self, orders: &[Id]) -> Result<()> {
        let begin = Instant::now();
        for id in orders {
            loop {
                let order = self.api.read(&format!("/orders/{id}")).await;
                match order {
                    Ok(order) => match Status::deserialize(&order).context("reading an order")?.state {
                        ProcessState::Processed => break,
                        ProcessState::Pending | ProcessState::Processing => {}
                        ProcessState::Undoing | ProcessState::Undone | ProcessState::Error => {
                            anyhow::bail!("order {id} did not end well: {order}")
                        }
                    },
                    Err(error) => ensure!(error.is_passing(), "order {id}: {error}"),
                }
                ensure!(begin.elapsed() < PATIENCE, "order {id} did not end within {} s", PATIENCE.as_secs());
                tokio::time::sleep(LOOK).await;
            }
        }
        Ok(())
    }
}

/// Time to the beginning of each attempt that was not the first, in milliseconds: from the expiry of the previous one,
/// or from `restart` if that was later.
fn lateness(begun: Vec<Begun>, restart: Timestamp) -> Vec<f64> {
    let mut steps: BTreeMap<(Id, String), BTreeMap<u32, Begun>> = BTreeMap::new();
    for begun in begun {
        let attempts = steps.entry((begun.order.clone(), begun.step.clone())).or_default();
        // The same request may be delivered twice: the first delivery is when the step ran.
        attempts.entry(begun.attempt).or_insert(begun);
    }
    let late = |(before, next): (&Begun, &Begun)| {
        plus(before.complete_by, SKEW).max(restart).duration_until(next.at).as_secs_f64() * 1000.0
    };
    steps.values().flat_map(|attempts| attempts.values().zip(attempts.values().skip(1)).map(late)).collect()
}

/// Time from `restart` until the last order that was in progress began the step after its last one, in milliseconds.
/// `None` if all were in their last step.
fn continued(begun: &[Begun], restart: Timestamp) -> Option<f64> {
    let mut orders: BTreeMap<&Id, Vec<&Begun>> = BTreeMap::new();
    for one in begun {
        orders.entry(&one.order).or_default().push(one);
    }
    let next = |attempts: Vec<&Begun>| {
        let last = attempts.iter().filter(|one| one.at < restart).max_by_key(|one| one.at)?;
        let after = attempts.iter().filter(|one| one.at >= restart && one.step != last.step).map(|one| one.at).min()?;
        Some(restart.duration_until(after).as_secs_f64() * 1000.0)
    };
    orders.into_values().filter_map(next).max_by(f64::total_cmp)
}

/// Starts an agent; the attempts that it begins go to `begun`.
fn start_agent(port: u16, begun: &Arc<Mutex<Vec<Begun>>>) -> Result<Running> {
    let mut command = program()?;
    command.arg("bench-agent").env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", port + 1));
    for (name, value) in [("AWS_REGION", "local"), ("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "x")] {
        command.env(name, value);
    }
    command.env("CLOCK_SKEW_MS", SKEW.as_millis().to_string());
    let begun = Arc::clone(begun);
    spawn(command, move |line| {
        // The last line of a killed agent may be incomplete.
        if let Ok(one) = serde_json::from_str(line) {
            lock(&begun).push(one);
        }
    })
}

impl Recovery {
    /// Writes the result to standard output, for people.
    pub fn say(&self) -> Result<()> {
        say!("recovery            steps of {} ms with a timeout of {} ms", self.step_ms, self.timeout_ms);
        for (name, killed) in [("agent", &self.agent), ("scheduler", &self.scheduler), ("everything", &self.everything)]
        {
            let Kills { kills, orders, expired, again_p50_ms, again_max_ms, final_p50_ms, final_max_ms, .. } = killed;
            let alone = killed.alone_p50_ms;
            say!(
                "  {:<17} {kills} kills with {orders} orders open: all orders ended p50 {final_p50_ms:.0} ms, at most \
                 {final_max_ms:.0} ms after the restart",
                format!("{name} killed")
            );
            if let (Some(p50), Some(most)) = (killed.continues_p50_ms, killed.continues_max_ms) {
                say!("{:19} the slowest order continued p50 {p50:.0} ms, at most {most:.0} ms after the restart", "");
            }
            say!("{:19} with only one order open, it continued p50 {alone:.0} ms after the restart", "");
            if let (Some(p50), Some(most)) = (again_p50_ms, again_max_ms) {
                say!(
                    "{:19} {expired} steps ran again p50 {p50:.0} ms, at most {most:.0} ms after they had expired",
                    ""
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(ms).unwrap()
    }

    fn begun(order: &str, step: &str, attempt: u32, begun: i64, complete_by: i64) -> Begun {
        let order = Id::derive("tenant", order);
        Begun { order, step: step.into(), attempt, complete_by: at(complete_by), at: at(begun) }
    }

    // An attempt counts once however often its request comes, and nothing counts while everything is down.
    #[test]
    fn a_step_is_late_from_its_expiry_or_from_the_restart() {
        let begun = |step, attempt, at, complete_by| begun("key", step, attempt, at, complete_by);
        let again =
            [begun("a", 1, 0, 1000), begun("a", 1, 900, 1000), begun("a", 2, 1250, 2200), begun("b", 1, 50, 1050)];
        assert_eq!(lateness(again.to_vec(), at(500)), [200.0]);
        assert_eq!(lateness(again.to_vec(), at(1200)), [50.0]);
        assert_eq!(lateness(again[..2].to_vec(), at(0)), [0.0; 0]);
    }

    // The slowest order counts, from the restart to its next step. The interrupted step itself is no progress.
    #[test]
    fn an_order_continues_when_the_step_after_the_interrupted_one_begins() {
        let begun = |order, step, at| begun(order, step, 1, at, 1000);
        let mut all = vec![begun("a", "first", 0), begun("a", "second", 90), begun("b", "third", 95)];
        assert_eq!(continued(&all, at(100)), None);
        all.extend([begun("a", "second", 130), begun("b", "third", 120), begun("a", "third", 240)]);
        all.extend([begun("c", "first", 50), begun("c", "first", 150), begun("c", "second", 260)]);
        assert_eq!(continued(&all, at(100)), Some(160.0));
    }
}
