//! Goal: an order whose steps are all URLs ends like any other, under faults of the services behind them. Method: the
//! whole system in one process, and sample remote services that only the workflow file names.

use crate::support::{Whole, count, expected, trip};
use serde_json::json;
use shared::history::Kind;
use shared::task::ProcessState;
use stepwarden_remotes::{Remotes, Service, ServiceFaults};

/// The reference workflow with each agent replaced by the URLs of its service.
fn over_urls(url: &str) -> String {
    let mut text =
        trip("trip", "1s", 200, "").replace("undo = { agent", "undo = { http").replace("\nagent =", "\nhttp =");
    for service in ["inventory", "fraud", "payment", "shipping"] {
        text = text.replace(&format!("http = \"{service}\"\n"), &format!("http = \"{url}/{service}/apply\"\n"));
        text = text.replace(&format!("{{ http = \"{service}\""), &format!("{{ http = \"{url}/{service}/undo\""));
    }
    text
}

struct World {
    whole: Whole,
    remotes: Remotes,
}

impl World {
    async fn start() -> Self {
        let (remotes, url) = crate::support::remotes().await;
        let text = over_urls(&url);
        assert!(!text.contains("agent"), "{text}");
        Self { whole: Whole::start(&[text]).await, remotes }
    }

    fn ledger_is_clean(&self, tasks: &[shared::task::Task]) {
        let report = self.remotes.check(tasks.iter().map(|t| (t.id.0.clone(), expected(t)))).unwrap();
        assert!(report.is_clean(), "{report}");
    }
}

// A1, A2, A4: transient answers, silence, lost answers and refusals, over URLs only.
#[tokio::test(flavor = "multi_thread")]
async fn orders_over_urls_end_under_faults() {
    let world = World::start().await;
    let faults =
        ServiceFaults { transient: 0.2, hang: 0.03, lost_answer: 0.1, permanent: 0.1, ..ServiceFaults::default() };
    for service in [Service::Inventory, Service::Payment, Service::Shipping] {
        world.remotes.set_service_faults(service, faults.clone()).unwrap();
    }
    let ids = world.whole.submit_many("trip", 20).await;
    let tasks = world.whole.ended(&ids).await;
    for task in &tasks {
        assert!(
            matches!(task.process_state(), ProcessState::Processed | ProcessState::Undone),
            "{:?} {:#?}",
            task.reason,
            task.log
        );
    }
    world.ledger_is_clean(&tasks);
    assert_eq!(world.whole.set_aside(), 0);
    assert!(tasks.iter().any(|t| t.process_state() == ProcessState::Processed));
}

// A3, E4: `Retry-After` is honoured, and an outage holds the order up without an error.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_waits_until_its_url_is_well_again() {
    let world = World::start().await;
    world
        .remotes
        .set_service_faults(Service::Payment, ServiceFaults { outage: true, ..ServiceFaults::default() })
        .unwrap();
    let id = world.whole.submit("one", &json!({"workflow": "trip", "input": {"total_cents": 5}})).await;
    let failed = |task: &shared::task::Task| count(task, Kind::Unavailable, 2) > 0;
    let task = world.whole.task_once(&id, "it was tried", failed).await;
    assert!(task.steps[2].error.as_deref().unwrap().starts_with("503"), "{:?}", task.steps[2].error);
    world.remotes.set_service_faults(Service::Payment, ServiceFaults::default()).unwrap();
    let tasks = world.whole.ended(&[id]).await;
    assert_eq!(tasks[0].process_state(), ProcessState::Processed);
    assert_eq!(tasks[0].steps[2].output.as_ref().unwrap()["amount_cents"], 5);
    world.ledger_is_clean(&tasks);
}
