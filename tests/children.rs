//! Goal: an order that starts another one ends with it, over the tables and queues of a laptop. Method: the whole system in memory, called
//! over HTTP.

use crate::support::{Whole, trip, until};
use serde_json::{Value, json};
use shared::order::Id;
use shared::task::ProcessState;
use stepwarden_remotes::{Fault, Service, ServiceFaults};

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

async fn undo(whole: &Whole, id: &Id) -> u16 {
    whole.post(&format!("/orders/{id}/actions/undo"), &json!({"by": "ann", "reason": "r"})).await.0
}

/// Resubmits the order with these inputs of its items.
async fn resubmit(whole: &Whole, id: &Id, items: Value) -> Value {
    let body = json!({"by": "ann", "reason": "typo", "items": items});
    whole.post(&format!("/orders/{id}/actions/resubmit"), &body).await.1
}

// L8
#[tokio::test(flavor = "multi_thread")]
async fn an_order_starts_another_and_is_undone_with_it() {
    let whole = shop(1).await;
    let id = submit(&whole).await;
    whole.ends(&id, ProcessState::Processed).await;
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
    whole.ends(&id, ProcessState::Undone).await;
    whole.all_end(&[child], ProcessState::Undone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_fails_takes_its_parent_back() {
    let whole = shop(1).await;
    whole.fault(Service::Payment, ServiceFaults { permanent: 1.0, ..ServiceFaults::default() });
    let id = submit(&whole).await;
    let reason = whole.ends(&id, ProcessState::Undone).await.reason.unwrap();
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
    // Until then, a child has nothing that the outage keeps from being undone.
    whole.shown(Service::Payment, Fault::Outage, 1).await;
    assert_eq!(undo(&whole, &id).await, 200);
    whole.task_once(&child, "turned", |task| task.process_state() == ProcessState::Undoing).await;
    whole.fault(Service::Payment, ServiceFaults::default());
    whole.ends(&id, ProcessState::Undone).await;
    whole.all_end(&[child], ProcessState::Undone).await;
}

/// Each line is shipped from its own warehouse.
const WAREHOUSES: &str = r#"
name = "warehouses"
output = "${outputs.lines.done}"
[[step]]
name = "prepare"
agent = "noop"
timeout = "10s"
undo = { agent = "noop" }
[[step]]
name = "lines"
after = ["prepare"]
each = "${input.lines}"
workflow = "line"
with = { sku = "${item.sku}", from = "${item.warehouse}", line = "${index}" }
at_once = 2
"#;

/// What a warehouse does. One of them cannot.
const LINE: &str = r#"
name = "line"
tombstones = true
[input]
type = "object"
required = ["sku", "from"]
[[step]]
name = "pick"
after = []
agent = "noop"
timeout = "10s"
undo = { agent = "noop" }
[[step]]
name = "closed"
after = ["pick"]
when = "input.from == 'Reims'"
fail = "the warehouse in ${input.from} is closed"
"#;

// Each line of the order is shipped from its own warehouse, one fails, and its undo undoes it and only what was begun.
#[tokio::test(flavor = "multi_thread")]
async fn each_line_is_an_order_and_one_that_fails_takes_back_what_began() {
    let whole = Whole::start(&[WAREHOUSES.to_owned(), LINE.to_owned()]).await;
    let line = |n: usize, from: &str| json!({"sku": format!("s{n}"), "warehouse": from});
    let good: Vec<Value> = (0..30).map(|n| line(n, "Lyon")).collect();
    let id = whole.submit("a", &json!({"workflow": "warehouses", "input": {"lines": good}})).await;
    let task = whole.ends(&id, ProcessState::Processed).await;
    assert_eq!(task.output, Some(json!(30)));
    let order = whole.get(&format!("/orders/{id}")).await;
    assert_eq!(order["steps"][1]["items"]["done"], 30, "{order}");
    assert!(task.version < 60, "{} saves", task.version);

    let mut bad = good;
    bad[3] = line(3, "Reims");
    let id = whole.submit("b", &json!({"workflow": "warehouses", "input": {"lines": bad}})).await;
    let task = whole.ends(&id, ProcessState::Undone).await;
    assert!(task.reason.as_ref().unwrap().contains("1 of 30 orders failed"), "{:?}", task.reason);
    let order = whole.get(&format!("/orders/{id}")).await;
    let items = &order["steps"][1]["items"];
    let (undone, to_do) = (items["undone"].as_u64().unwrap(), items["to_do"].as_u64().unwrap());
    assert_eq!(undone + to_do, 30, "{items}");
    assert!((4..=25).contains(&undone), "{items}");
    let child = |item| Id::derive(&task.tenant, &key_of_item(&id, "lines", item, 0));
    let undone: Vec<Id> = (0..4).map(child).collect();
    whole.all_end(&undone, ProcessState::Undone).await;
    let shown = whole.get(&format!("/orders/{}", undone[3])).await;
    assert_eq!(shown["parent"], json!({"order_id": id, "step": "lines", "item": 3}), "{shown}");

    // A list has them only if it is asked for them.
    let listed = |answer: Value| answer["orders"].as_array().unwrap().len() as u64;
    assert_eq!(listed(whole.get("/orders?limit=100").await), 2);
    let path = format!("/orders?parent={id}&limit=");
    assert_eq!(listed(whole.get(&format!("{path}100")).await), items["undone"].as_u64().unwrap());
    let first = whole.get(&format!("{path}3")).await;
    // It has a `#`, which would end the query.
    let next = first["next"].as_str().unwrap().replace('#', "%23");
    let second = whole.get(&format!("{path}100&cursor={next}")).await;
    assert_eq!(listed(first.clone()) + listed(second), items["undone"].as_u64().unwrap());
    assert_eq!(listed(whole.get(&format!("{path}100&state=Error")).await), 0);
    // An operator pages through the items.
    let path = format!("/details/{id}/items/lines");
    let page = whole.get(&path).await;
    let states = page["states"].as_str().unwrap();
    assert_eq!((states.len(), &states[..4], page.get("next")), (30, "uuuu", None), "{page}");
    assert_eq!(page["items"][29], json!({"index": 29, "state": "to_do"}), "its order was never made");
    let some = whole.get(&format!("{path}?state=undone&cursor=1&limit=2")).await;
    let item = |item: usize| json!({"index": item, "state": "undone", "order_id": undone[item]});
    assert_eq!((&some["items"], &some["next"]), (&json!([item(1), item(2)]), &json!(3)), "{some}");
    for (path, field) in
        [("lines?state=no", "state"), ("lines?limit=101", "limit"), ("prepare", "step"), ("no", "step")]
    {
        let refused = whole.get(&format!("/details/{id}/items/{path}")).await;
        assert_eq!((&refused["status"], &refused["field"]), (&json!(400), &json!(field)), "{path}: {refused}");
    }
}

/// Pages of rows, of which some cannot be moved.
const MIGRATION: &str = r#"
name = "migration"
on_failure = "error"
output = { done = "${outputs.pages.done}", failed = "${outputs.pages.errors.map(e, e.index)}" }
[[step]]
name = "pages"
each = "${input.rows}"
workflow = "page"
batch = 10
with = { rows = "${item}", page = "${index}" }
at_once = 20
tolerate = "3%"
"#;

const PAGE: &str = r#"
name = "page"
on_failure = "error"
[[step]]
name = "bad"
when = "input.rows.exists(row, row < 0)"
fail = "a row cannot be moved"
[[step]]
name = "move"
after = ["bad"]
agent = "noop"
timeout = "10s"
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_tolerates_so_many_bad_pages_and_names_them() {
    let whole = Whole::start(&[MIGRATION.to_owned(), PAGE.to_owned()]).await;
    let mut rows: Vec<i64> = (1..=1000).collect();
    for page in [7, 42, 99] {
        rows[page * 10 + 3] = -1;
    }
    let id = whole.submit("a", &json!({"workflow": "migration", "input": {"rows": rows}})).await;
    let task = whole.ends(&id, ProcessState::Processed).await;
    assert_eq!(task.output, Some(json!({"done": 97, "failed": [7, 42, 99]})));
    let failed = whole.get(&format!("/details/{id}/items/pages?state=failed")).await;
    let errors: Vec<_> =
        failed["items"].as_array().unwrap().iter().map(|item| (&item["index"], &item["error"])).collect();
    assert_eq!(errors.iter().map(|(index, _)| index.as_u64().unwrap()).collect::<Vec<_>>(), [7, 42, 99]);
    assert!(errors.iter().all(|(_, why)| why.as_str().unwrap().contains("a row cannot be moved")), "{failed}");
}

/// Rows that are moved, and then reported one by one with a call.
const ROWS: &str = r#"
name = "rows"
on_failure = "error"
tombstones = true
output = "${outputs.report.items}"
[[step]]
name = "move"
after = []
each = "${input.rows}"
workflow = "row"
at_once = 5
[[step]]
name = "report"
after = ["move"]
each = "${input.rows}"
agent = "noop"
timeout = "10s"
with = { row = "${item.n}", place = "${index}", moved = "${outputs.move.done}" }
undo = { agent = "noop", with = { place = "${index}" } }
at_once = 5
"#;

const ROW: &str = r#"
name = "row"
on_failure = "error"
tombstones = true
[input]
type = "object"
required = ["n"]
properties = { n = { type = "integer" }, bad = { type = "boolean" } }
[[step]]
name = "write"
after = []
agent = "noop"
timeout = "10s"
undo = { agent = "noop" }
[[step]]
name = "check"
after = ["write"]
when = "first(input.bad, false)"
fail = "row ${input.n} is bad"
"#;

// A row that stopped the order is corrected, and its first order is undone before another does it.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_row_is_corrected_and_each_row_is_reported() {
    let whole = Whole::start(&[ROWS.to_owned(), ROW.to_owned()]).await;
    let rows: Vec<Value> = (0..8).map(|n| json!({"n": n, "bad": n == 6})).collect();
    let id = whole.submit("a", &json!({"workflow": "rows", "input": {"rows": rows}})).await;
    whole.ends(&id, ProcessState::Error).await;
    for (items, field) in [(json!({}), "items"), (json!({"06": {}}), "items"), (json!({"10000": {}}), "items")] {
        let refused = resubmit(&whole, &id, items.clone()).await;
        assert_eq!((&refused["status"], &refused["field"]), (&json!(400), &json!(field)), "{items}: {refused}");
    }
    for (items, why) in [
        (json!({"6": {"n": "six"}}), "is refused by the `[input]`"),
        (json!({"5": {"n": 5}}), "no such item of the list has failed"),
    ] {
        let refused = resubmit(&whole, &id, items).await;
        assert!(refused["detail"].as_str().unwrap().contains(why), "{refused}");
    }
    let done = resubmit(&whole, &id, json!({"6": {"n": 60}})).await;
    assert_eq!(done["outcome"], "applied", "{done}");
    let task = whole.ends(&id, ProcessState::Processed).await;
    assert_eq!(task.output.as_ref().and_then(Value::as_array).map(Vec::len), Some(8), "{:?}", task.output);
    let order = |step, made| Id::derive(&task.tenant, &key_of_item(&id, step, 6, made));
    whole.all_end(&[order("move", 0)], ProcessState::Undone).await;
    assert_eq!(whole.get(&format!("/details/{}", order("move", 1))).await["input"], json!({"n": 60}));
    // The call has the item that the order came with, as the file says.
    let reported = whole.get(&format!("/details/{}", order("report", 0))).await;
    assert_eq!(reported["order"]["workflow"], "rows.report", "{reported}");
    let input = json!({"item": rows[6], "index": 6, "outputs": {"move": {"done": 8}}});
    assert_eq!(reported["input"], input, "{reported}");

    assert_eq!(undo(&whole, &id).await, 200);
    whole.ends(&id, ProcessState::Undone).await;
    whole.all_end(&[order("move", 1), order("report", 0)], ProcessState::Undone).await;
}

// As many edited inputs as the pages say, in one request.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_long_inputs_go_in_one_resubmission() {
    let whole = Whole::start(&[ROWS.replacen("at_once = 5", "at_once = 20", 1), ROW.to_owned()]).await;
    let rows: Vec<Value> = (0..20).map(|n| json!({"n": n, "bad": true})).collect();
    let id = whole.submit("a", &json!({"workflow": "rows", "input": {"rows": rows}})).await;
    whole.ends(&id, ProcessState::Error).await;
    let items = |bytes: usize, n: usize| {
        let input = |n: usize| (n.to_string(), json!({"n": n, "text": "x".repeat(bytes)}));
        (0..n).map(input).collect::<Value>()
    };
    assert_eq!(resubmit(&whole, &id, items(16_000, 20)).await["code"], "too_large", "no record has room for that");
    let refused = resubmit(&whole, &id, items(14_000, 20)).await;
    assert!(refused["detail"].as_str().unwrap().contains("of 262144 bytes each"), "{refused}");
    assert_eq!(resubmit(&whole, &id, items(12_000, 20)).await["outcome"], "applied");
    whole.ends(&id, ProcessState::Processed).await;
}
