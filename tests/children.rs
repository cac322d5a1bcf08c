//! Goal: an order that starts another one ends with it, over the tables and queues of a laptop. Method: the whole system in memory, called
//! over HTTP.

use crate::support::{Whole, trip, until};
use serde_json::{Value, json};
use shared::order::Id;
use shared::task::{ProcessState, Task};
use stepwarden_remotes::{Service, ServiceFaults};

/// Starts a trip between two steps, of which the first can be undone.
const SHOP: &str = r#"
name = "shop"
output = "${outputs.trip}"
[[step]]
name = "prepare"
agent = "noop"
timeout = "10s"
undo = { agent = "noop" }
[[step]]
name = "trip"
after = ["prepare"]
workflow = "trip"
output = { of = "${answer.of}" }
[[step]]
name = "tell"
after = ["trip"]
agent = "noop"
timeout = "10s"
"#;

async fn shop(charge_max: u32) -> Whole {
    let trip = trip("trip", "10s", charge_max, "output = { of = \"${order.parent}\" }");
    // A file with an `output` says when each step begins.
    let trip = trip.replace("name = \"check-fraud\"\n", "name = \"check-fraud\"\nafter = []\n");
    Whole::start(&[SHOP.to_owned(), trip]).await
}

async fn submit(whole: &Whole) -> Id {
    whole.submit("k", &json!({"workflow": "shop", "input": {"total_cents": 100}})).await
}

fn child_of(order: &Value) -> Id {
    Id(order["steps"][1]["child"].as_str().unwrap_or_else(|| panic!("no child: {order}")).to_owned())
}

/// The parent, once it has ended so.
async fn ends(whole: &Whole, id: &Id, state: ProcessState) -> Task {
    let task = whole.ended(std::slice::from_ref(id)).await.remove(0);
    assert_eq!(task.process_state(), state, "{:?} {:#?}", task.reason, task.log);
    task
}

async fn undo(whole: &Whole, id: &Id) -> u16 {
    let request = whole.http.post(format!("{}/orders/{id}/actions/undo", whole.system.url));
    request.json(&json!({"by": "ann", "reason": "r"})).send().await.unwrap().status().as_u16()
}

// L8
#[tokio::test(flavor = "multi_thread")]
async fn an_order_starts_another_and_is_undone_with_it() {
    let whole = shop(1).await;
    let id = submit(&whole).await;
    ends(&whole, &id, ProcessState::Processed).await;
    let order = whole.get(&format!("/orders/{id}")).await;
    let child = child_of(&order);
    whole.all_end(std::slice::from_ref(&child), ProcessState::Processed).await;
    assert_eq!(order["output"], json!({"of": id}), "{order}");
    let shown = whole.get(&format!("/orders/{child}")).await;
    assert_eq!(shown["parent"], json!({"order_id": id, "step": "trip"}), "{shown}");
    // Only what was submitted is listed.
    let listed = whole.get("/orders").await;
    let ids: Vec<&Value> = listed["orders"].as_array().unwrap().iter().map(|order| &order["order_id"]).collect();
    assert_eq!(ids, [&json!(id)], "{listed}");

    // Its parent has counted how it ended.
    assert_eq!(undo(&whole, &child).await, 409);
    assert_eq!(undo(&whole, &id).await, 200);
    ends(&whole, &id, ProcessState::Undone).await;
    whole.all_end(&[child], ProcessState::Undone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_fails_takes_its_parent_back() {
    let whole = shop(1).await;
    whole.fault(Service::Payment, ServiceFaults { permanent: 1.0, ..ServiceFaults::default() });
    let id = submit(&whole).await;
    let reason = ends(&whole, &id, ProcessState::Undone).await.reason.unwrap();
    assert!(reason.contains("was undone: `charge` failed"), "{reason}");
    let child = child_of(&whole.get(&format!("/orders/{id}")).await);
    whole.all_end(&[child], ProcessState::Undone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_a_child_that_runs() {
    let whole = shop(200).await;
    whole.fault(Service::Payment, ServiceFaults { outage: true, ..ServiceFaults::default() });
    let id = submit(&whole).await;
    let child = until("the child", async || {
        let order = whole.get(&format!("/orders/{id}")).await;
        order["steps"][1]["child"].as_str().map(|child| Id(child.to_owned()))
    })
    .await;
    assert_eq!(undo(&whole, &id).await, 200);
    whole.task_once(&child, "turned", |task| task.process_state() == ProcessState::Undoing).await;
    whole.fault(Service::Payment, ServiceFaults::default());
    ends(&whole, &id, ProcessState::Undone).await;
    whole.all_end(&[child], ProcessState::Undone).await;
}
