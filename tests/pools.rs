//! Goal: work goes from an unhealthy pool to a healthy one, and nothing is lost or done twice on the way. Method: the
//! whole system in one process, with two pools of the payment agent; one of them is dead, or cannot reach its remote
//! service.

use crate::support::{Whole, count, trip, until};
use serde_json::json;
use shared::history::Kind;
use shared::pools::Layout;
use shared::task::{ProcessState, Task};
use stepwarden_remotes::{Fault, Service, ServiceFaults};

/// Position of the step that payment does.
const CHARGE: usize = 2;

async fn two_pools(timeout: &str, urls: &[(&str, &str)]) -> Whole {
    let pools = Layout::from([("payment".into(), vec!["payment".into(), "payment-b".into()])]);
    let urls = urls.iter().map(|(name, url)| ((*name).to_owned(), (*url).to_owned())).collect();
    Whole::start_with(&[trip("trip", timeout, 200, "")], |options| (options.pools, options.urls) = (pools, urls)).await
}

fn pool(task: &Task) -> &str {
    task.steps[CHARGE].pool.as_deref().unwrap_or("payment")
}

/// Submits orders until one goes directly to the second pool: the first pool is then known to be unhealthy. They come
/// four at a time, because a slow machine needs longer for one order than the first pool is left alone between two
/// probes: orders that come one by one could all be probes.
async fn goes_straight_to_the_second_pool(whole: &Whole) {
    let mut n = 0;
    until("an order that goes straight to the second pool", async || {
        let mut ids = Vec::new();
        for _ in 0..4 {
            n += 1;
            let body = json!({"workflow": "trip", "input": {"total_cents": n}});
            ids.push(whole.submit(&format!("straight-{n}"), &body).await);
        }
        let tasks = whole.ended(&ids).await;
        assert!(tasks.iter().all(|task| task.process_state() == ProcessState::Processed), "{tasks:#?}");
        let straight = |task: &Task| count(task, Kind::Claimed, CHARGE) == 1 && pool(task) == "payment-b";
        tasks.iter().any(straight).then_some(())
    })
    .await;
}

// J3, D10: if a pool's consumers are dead, its attempts expire, the next attempts go to the other pool, and after some
// of them new orders no longer try the dead pool.
#[tokio::test(flavor = "multi_thread")]
async fn the_work_of_a_dead_pool_goes_to_the_other_one() {
    let whole = two_pools("500ms", &[]).await;
    whole.system.pause_agent("payment", true);
    let ids = whole.submit_many("trip", 4).await;
    for task in whole.all_end(&ids, ProcessState::Processed).await {
        assert_eq!(pool(&task), "payment-b", "{:?}", task.log);
        assert_eq!(count(&task, Kind::Expired, CHARGE), usize::try_from(task.steps[CHARGE].failures).unwrap());
    }
    goes_straight_to_the_second_pool(&whole).await;
    // Requests that waited in the dead pool are too old to be done.
    let calls = whole.system.remotes.counts()[&Service::Payment].calls;
    assert!(whole.queued("agent-payment") > 0);
    whole.system.pause_agent("payment", false);
    until("the old requests read", async || (whole.queued("agent-payment") == 0).then_some(())).await;
    assert_eq!(whole.system.remotes.counts()[&Service::Payment].calls, calls);
}

// J3, E4: if a pool cannot reach its service, its breaker opens, and the other pool does the work.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_with_an_open_breaker_is_left_for_the_other_one() {
    let whole = two_pools("5s", &[("payment", "http://127.0.0.1:1")]).await;
    let ids = whole.submit_many("trip", 12).await;
    let tasks = whole.all_end(&ids, ProcessState::Processed).await;
    assert!(tasks.iter().all(|task| pool(task) == "payment-b"), "{tasks:#?}");
    assert!(tasks.iter().any(|task| count(task, Kind::Claimed, CHARGE) > 1), "the first ones tried the first pool");
    assert!(tasks.iter().all(|task| count(task, Kind::Expired, CHARGE) == 0), "nothing waited for a deadline");
    goes_straight_to_the_second_pool(&whole).await;
}

// J3, E5: one step in two pools is one effect: the idempotency key knows no pool.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_tried_in_two_pools_has_one_effect() {
    let whole = two_pools("5s", &[]).await;
    whole.fault(Service::Payment, ServiceFaults { lost_answer: 1.0, ..ServiceFaults::default() });
    let ids = whole.submit_many("trip", 3).await;
    whole.shown(Service::Payment, Fault::LostAnswer, 1).await;
    for id in &ids {
        whole.task_once(id, "tried twice", |task| count(task, Kind::Claimed, CHARGE) > 1).await;
    }
    whole.fault(Service::Payment, ServiceFaults::default());
    let tasks = whole.all_end(&ids, ProcessState::Processed).await;
    let second =
        |task: &Task| task.log.iter().any(|entry| entry.4.as_ref().is_some_and(|text| text.contains("payment-b")));
    assert!(tasks.iter().all(second), "{tasks:#?}");
    let counts = &whole.system.remotes.counts()[&Service::Payment];
    assert_eq!(counts.applied, 3);
    assert!(counts.replays > 0);
}

// J3: with no healthy pool orders wait, and they end once a pool has recovered.
#[tokio::test(flavor = "multi_thread")]
async fn with_no_healthy_pool_nothing_is_lost() {
    let whole = two_pools("500ms", &[]).await;
    whole.fault(Service::Payment, ServiceFaults { outage: true, ..ServiceFaults::default() });
    let ids = whole.submit_many("trip", 6).await;
    let is_held_back = async || {
        let tasks = whole.tasks(&ids).await;
        let held = |name: &str| tasks.iter().any(|task| count(task, Kind::Deferred, CHARGE) > 0 && pool(task) == name);
        (held("payment") || held("payment-b")).then_some(())
    };
    until("an open breaker", is_held_back).await;
    whole.fault(Service::Payment, ServiceFaults::default());
    whole.all_end(&ids, ProcessState::Processed).await;
}
