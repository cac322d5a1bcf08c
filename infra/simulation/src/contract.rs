//! Goal: the simulation's ports answer as the adapters do. Method: the contract's suites in virtual time with no faults,
//! over the store in memory and over the real adapter.

use crate::node::{Node, Role};
use crate::plan::Plan;
use crate::port::Faulty;
use crate::world::World;
use crate::{Allowed, Defect, RunOptions, workflows};
use contract::messenger::{self, Place};
use serde_json::Value;
use shared::pools::Layout;
use std::sync::Arc;

struct Ports {
    world: Arc<World>,
    faulty: Faulty,
}

/// A world in which nothing goes wrong, but for a defect.
fn ports(is_real_store: bool, defect: Option<Defect>) -> Ports {
    let plan = Plan { is_real_store, classes: true, pools: true, ..Plan::new(1, &workflows(), 0) };
    let options = RunOptions { allowed: Allowed::none(), defect, ..RunOptions::default() };
    let world = Arc::new(World::new(plan, &options));
    assert_eq!(world.config.pools, Layout::from([("payment".into(), vec!["payment".into(), "payment-b".into()])]));
    let faulty = Faulty::new(&world, &Arc::new(Node::new(Role::Scheduler, 0)));
    Ports { world, faulty }
}

impl Place for Ports {
    const REPLY_QUEUE: &'static str = crate::world::REPLY_QUEUE;
    type Messenger = Faulty;

    fn messenger(&self) -> &Faulty {
        &self.faulty
    }

    async fn receive(&self, queue: &str) -> Vec<Value> {
        let messages = self.world.queues.receive(queue).await;
        let take = |message: crate::queues::Message| {
            self.world.queues.delete(queue, message.receipt);
            serde_json::from_str(&message.body).expect("JSON")
        };
        messages.into_iter().map(take).collect()
    }
}

async fn stores(is_real_store: bool, defect: Option<Defect>) {
    let new = || ports(is_real_store, defect).faulty;
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
    messenger::suite(&ports(false, None)).await;
}

// The suite can fail: a store that writes whatever version is there, one that forgets who led last, and one that shows
// nothing of what has begun.
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
