//! Goal: the simulation's ports behave like the adapters. Method: the contract's suites in virtual time without faults,
//! with store and messenger in memory and with the real adapters; and sends of any size by the real messenger.
//!
//! `SEED=n cargo test -p stepwarden-simulation under_faults` repeats the sends of seed `n`.

use contract::messenger::{self, Place};
use serde_json::Value;
use shared::message::{AlertEvent, Effect};
use shared::order::Id;
use shared::pools::Layout;
use shared::ports::Messenger;
use std::sync::Arc;
use stepwarden_simulation::parts::{Draw, Faulty, Message, Node, REPLY_QUEUE, Role, World};
use stepwarden_simulation::{Allowed, Class, Defect, Plan, RunOptions, workflows};

struct Ports {
    world: Arc<World>,
    faulty: Faulty,
}

/// A world in which nothing goes wrong, except for a defect.
fn ports(is_real_store: bool, is_real_messenger: bool, defect: Option<Defect>) -> Ports {
    let plan =
        Plan { is_real_store, is_real_messenger, classes: true, pools: true, ..Plan::new(1, &workflows(), &[], 0) };
    let ports = over(plan, &RunOptions { allowed: Allowed::none(), defect, ..RunOptions::default() });
    assert_eq!(
        ports.world.config.pools,
        Layout::from([("payment".into(), vec!["payment".into(), "payment-b".into()])])
    );
    ports
}

fn over(plan: Plan, options: &RunOptions) -> Ports {
    let world = Arc::new(World::new(plan, options));
    let faulty = Faulty::new(&world, &Arc::new(Node::new(Role::Scheduler, 0)));
    Ports { world, faulty }
}

impl Place for Ports {
    const REPLY_QUEUE: &'static str = REPLY_QUEUE;
    type Messenger = Faulty;

    fn messenger(&self) -> &Faulty {
        &self.faulty
    }

    async fn receive(&self, queue: &str) -> Vec<Value> {
        let messages = self.world.queues.receive(queue).await;
        let take = |message: Message| {
            self.world.queues.delete(queue, &message);
            serde_json::from_str(&message.body).expect("JSON")
        };
        messages.into_iter().map(take).collect()
    }
}

async fn stores(is_real_store: bool, defect: Option<Defect>) {
    let new = || ports(is_real_store, false, defect).faulty;
    contract::store::suite(&new()).await;
    contract::store::sizes(&new()).await;
    contract::store::attention(&new()).await;
    let store = new();
    contract::store::agents(&store, async |name, pause| store.set_agent(name, pause).await).await;
    contract::lease::suite(&new()).await;
}

#[tokio::test(start_paused = true)]
async fn the_store_in_memory_keeps_the_contract() {
    stores(false, None).await;
}

#[tokio::test(start_paused = true)]
async fn the_store_over_the_adapter_keeps_the_contract() {
    stores(true, None).await;
}

#[tokio::test(start_paused = true)]
async fn the_queues_keep_the_contract() {
    messenger::suite(&ports(false, false, None)).await;
}

#[tokio::test(start_paused = true)]
async fn the_real_messenger_over_the_queues_keeps_the_contract() {
    messenger::suite(&ports(false, true, None)).await;
}

// An order of the simulation seldom fills a request. Whatever fails, of any number of requests and in any part: what is
// reported as sent was taken.
#[tokio::test(start_paused = true)]
async fn what_the_messenger_reports_under_faults_holds() {
    let seeds = match std::env::var("SEED") {
        Ok(seed) => seed.parse().map(|seed| seed..=seed).expect("SEED is a whole number"),
        Err(_) => 0..=199,
    };
    let (mut sent, mut failed) = (0, 0);
    use Class::{AlertRefused, NoticeRefused, PartialBatch, SendError, SendLost};
    for seed in seeds {
        let rates = [SendError, SendLost, PartialBatch, NoticeRefused, AlertRefused].map(|class| (class, 0.15));
        let plan = Plan { is_real_messenger: true, rates: rates.into(), ..Plan::new(seed, &workflows(), &[], 0) };
        let ports = over(plan, &RunOptions::default());
        let mut draw = Draw::of(seed, "effects");
        let effects = (0..draw.between(1, 60)).map(|n| effect(usize::try_from(n).expect("a few"), &mut draw)).collect();
        let results = ports.faulty.send(effects).await;
        assert_eq!(ports.world.violations(), [], "seed {seed}");
        sent += results.iter().filter(|result| result.is_ok()).count();
        failed += results.iter().filter(|result| result.is_err()).count();
    }
    println!("{sent} sent, {failed} failed");
    assert!(sent > failed && failed > 0);
}

fn effect(n: usize, draw: &mut Draw) -> Effect {
    match draw.between(0, 4) {
        0 | 1 => Effect::Request(Box::new(messenger::request(n, "payment", "tenant"))),
        2 => messenger::wake(n, i64::try_from(draw.between(0, 5000)).expect("a few seconds")),
        3 => Effect::Alert(Box::new(AlertEvent::unreadable(&Id(format!("ord_{n}")), "reason"))),
        _ => Effect::SetAside(Box::new(messenger::aside(&n.to_string(), "no message", "{"))),
    }
}

// The suite can fail: with a store that ignores the version, one that forgets the last leader, or an incomplete index.
#[test]
fn a_store_with_a_defect_breaks_the_contract() {
    for defect in [Defect::IgnoresVersion, Defect::IgnoresToken, Defect::NoMovedSweep] {
        let broken = std::panic::catch_unwind(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.expect("a runtime").block_on(stores(false, Some(defect)));
        });
        assert!(broken.is_err(), "{defect:?}");
    }
}
