//! A step that makes a single call for each item, without a workflow of its own for it.

use super::{CHILD, family_of, give, lines};
use crate::support::*;
use serde_json::{Value, json};
use shared::message::{Outcome, Request};
use shared::ports::StateStore;
use shared::task::Phase;

const CALL: &str = r#"
name = "parent"
config = { shop = "s1" }
[[step]]
name = "pay"
agent = "x"
timeout = "10s"
after = []
undo = { agent = "x" }
[[step]]
name = "lines"
after = ["pay"]
each = "${input.lines}"
at_once = 3
agent = "x"
timeout = "10s"
retry = { max = 1, backoff = [] }
with = { n = "${index}", sku = "${item.sku}", paid = "${outputs.pay.receipt.id}", shop = "${config.shop}" }
output = { box = "${answer.box}" }
undo = { agent = "x", with = { n = "${index}", box = "${output.box}" } }
"#;

/// Answers of a call: `pay` gets a receipt, and the call of this item is refused.
fn call_without(item: Option<u64>) -> Box<dyn Fn(&Request) -> Outcome + Send> {
    Box::new(move |request| match request.input["n"].as_u64() {
        n if n.is_some() && n == item => failed(),
        Some(n) => done(json!({"box": n * 10, "more": "x"})),
        None => done(json!({"receipt": {"id": "r7", "more": "x"}, "more": "x"})),
    })
}

#[tokio::test]
async fn a_single_call_is_made_for_each_item() {
    let mut family = family_of(CALL, CHILD, lines(7)).await;
    family.answers = call_without(None);
    family.after(5).await;
    let own = family.parent();
    assert_eq!(own.phase, Phase::Processed, "{:?}", own.reason);
    let items: Value = (0..7).map(|n| json!({"box": n * 10})).collect();
    assert_eq!(family.report(), json!({"total": 7, "done": 7, "failed": 0, "errors": [], "items": items}));
    assert_eq!((family.count("do lines"), family.most_open), (7, 3));
    let child = family.child_of(4, 0).unwrap();
    assert_eq!((child.workflow.as_str(), child.parent.clone().unwrap().item), ("parent.lines", Some(4)));
    // No more of its parent than the call names.
    let input = json!({"item": {"sku": "s4"}, "index": 4, "outputs": {"pay": {"receipt": {"id": "r7"}}}});
    assert_eq!(family.store.order(&child).await.unwrap().unwrap().input, input);
    // An instance that knows nothing yet finds the definition.
    family.restart();
    assert!(family.engine.workflow(&child.workflow_hash).await.unwrap().of_item);
}

#[tokio::test]
async fn a_call_that_fails_undoes_those_that_were_made() {
    let mut family = family_of(CALL, CHILD, lines(20)).await;
    family.answers = call_without(Some(1));
    family.after(60).await;
    let own = family.parent();
    assert_eq!(own.phase, Phase::Undone);
    assert!(own.reason.as_ref().unwrap().contains("1 of 20 orders failed"), "{:?}", own.reason);
    let made = family.phases().len();
    assert!((3..=20).contains(&made) && family.phases().values().all(|phase| *phase == Phase::Undone));
    // What was refused left nothing that its undo could name.
    for n in (0..made).filter(|n| *n != 1) {
        assert_eq!(family.count(&format!("do lines {n}")), family.count(&format!("undo lines {n}")), "{n}");
    }
    assert!(family.asked.iter().all(|asked| asked != "undo lines 1"), "{:?}", family.asked);
    assert_eq!(family.asked.last().unwrap(), "undo pay");
}

// An order of a call does not stop for a person, whatever the workflow says.
#[tokio::test]
async fn a_call_without_with_gets_the_item_and_a_long_answer_fails_nothing() {
    let text =
        on_failure_error(&CALL.replace("with = { n", "#").replace("at_once = 3", "at_once = 3\ntolerate = \"40%\""));
    let text = text.replace("undo = { agent = \"x\", #", "#").replace("output =", "#");
    let text = text.replace("undo = { agent = \"x\", with = { n = \"${index}\", box = \"${output.box}\" } }", "");
    let items: Value = (0..5).map(|n| json!({"n": n, "long": "x".repeat(20)})).collect();
    let mut family = family_of(&text, CHILD, items).await;
    family.answers = Box::new(|request| match request.input["n"].as_u64() {
        Some(n) if request.input["long"].as_str().is_none_or(|long| long.len() != 20) || n == 3 => failed(),
        Some(2) => done(json!("y".repeat(5000))),
        Some(n) => done(json!(n)),
        None => done(json!(null)),
    });
    family.after(60).await;
    assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.parent().reason);
    assert_eq!(family.report()["items"], json!([0, 1, null, null, 4]));
    assert_eq!((family.report()["failed"].as_u64(), family.child_of(3, 0).unwrap().phase), (Some(1), Phase::Undone));
}

// Of a call, it is the item that is another; the rest is as the file says.
#[tokio::test]
async fn a_call_for_a_failed_item_is_made_with_another_item() {
    let text = CALL.replace("name = \"lines\"", "name = \"lines\"\non_failure = \"error\"");
    let mut family = family_of(&text, CHILD, lines(3)).await;
    family.answers = Box::new(|request| match request.input["n"].as_u64() {
        Some(1) if request.input["sku"] == "s1" => failed(),
        Some(n) => done(json!({"box": [n, request.input["sku"], request.input["paid"]]})),
        None => done(json!({"receipt": {"id": "r7"}})),
    });
    family.after(30).await;
    assert_eq!(family.parent().phase, Phase::Error, "{:?}", family.parent().reason);
    family.act(give(&[(1, json!({"sku": "other"}))])).await;
    family.after(90).await;
    assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.parent().reason);
    assert_eq!(family.report()["items"][1], json!({"box": [1, "other", "r7"]}));
    assert_eq!(family.report()["items"][2], json!({"box": [2, "s2", "r7"]}));
}
