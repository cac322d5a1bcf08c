//! Links with which somebody answers for a step without signing in.
//!
//! Method: as in `transitions.rs`. // L2

use crate::language::{bench, file};
use crate::support::*;
use serde_json::json;
use shared::decision::Event;
use shared::workflow::accept;
use shared::workflow::file::{Known, parse};
use shared::workflow::link::{address, is_token};

const ASK: &str = r#"
mail | after = []; with = { to = "${input.to}", at = "${links.ask_ann}" }
ask-ann | after = ["mail"]; event = "approved"; timeout = "24h"; link = { ask = "Pay ${input.cents}?", answers = ["yes", "no"] }; failed = "event.answer == 'no'"; remind = { every = "8h", agent = "x", with = { text = "please: ${links.ask_ann}" } }
"#;

#[test]
fn a_step_and_its_reminders_hand_out_the_same_link() {
    let mut bench = bench(ASK, json!({"to": "ann", "cents": 5}));
    bench.task.secret = Some("s".into());
    let link = address("https://orders.example", &bench.task.id, "ask-ann", "s");
    bench.wake(0);
    assert_eq!(bench.request("mail").input, json!({"to": "ann", "at": link}));
    bench.done("mail").at(8 * 3_600_000 - 60_000).supervise();
    bench.at(8 * 3_600_000).woken();
    assert_eq!(bench.request("ask-ann").input, json!({"text": format!("please: {link}")}));
    // The link of a step is no address for its callback, and none of another step or order.
    let token = link.rsplit('/').next().unwrap();
    assert_eq!(token.len(), 32);
    assert!(is_token(token, "s", "ask-ann"));
    for (secret, step) in [("t", "ask-ann"), ("s", "mail"), ("", "ask-ann")] {
        assert!(!is_token(token, secret, step), "{secret} {step}");
    }
    assert!(!accept::is_token(token, "s", "ask-ann") && !is_token(&token[1..], "s", "ask-ann"));
    // It sends the event of its step, as anybody would who may.
    let no = Event::Arrived { name: "approved".into(), key: "k".into(), data: json!({"answer": "no"}), by: None };
    bench.on(&no);
    assert_eq!(bench.task.process_state(), shared::task::ProcessState::Undoing);
}

// The question can be asked at any time, and none keeps anybody from answering.
#[test]
fn the_question_is_that_of_the_file() {
    let mut bench = bench(ASK, json!({}));
    let ask = |bench: &Bench, index: usize, input| bench.workflow.question(&bench.task, index, &input);
    assert_eq!(ask(&bench, 1, json!({"cents": 5})).as_deref(), Some("Pay 5?"));
    assert!(bench.workflow.reads_input(), "also if no step reads it");
    assert_eq!(ask(&bench, 1, json!({})).as_deref(), Some("Order r-1 waits for the event approved."));
    bench.task.reference = None;
    assert_eq!(ask(&bench, 1, json!({})).as_deref(), Some("Order ord_1 waits for the event approved."));
    assert_eq!(ask(&bench, 0, json!({"cents": 5})), None);
}

#[test]
fn a_mistake_in_a_file_says_what_to_write() {
    let read = |steps: &str| parse("w.toml", &file(steps), Known { agents: &["x"], inputs: &[] });
    read(ASK).unwrap();
    let change = |from: &str, to: &str| ASK.replace(from, to);
    for (steps, words) in [
        (change("event = \"approved\"", "event = \"approved\"; people = 2"), "counts `people`; remove one of the two"),
        (change("[\"yes\", \"no\"]", "[]"), "a link has 1 to 5 `answers`"),
        (change("[\"yes\", \"no\"]", "[\"yes\", \" no\"]"), "an answer is a string of 1 to 40 characters; change `no`"),
        (change("[\"yes\", \"no\"]", "[\"yes\", \"yes\"]"), "`yes` is among the answers twice"),
        (
            change("Pay ${input.cents}", "Pay ${outputs.mail.x}"),
            "`ask` of step `ask-ann`: `outputs.mail.x` cannot be read here",
        ),
        (change("links.ask_ann", "links.mail"), "`links.mail`: no step `mail` has a `link`; add `link = {}`"),
        (change("links.ask_ann", "order.id"), "no step hands out the link of `ask-ann` in time; put `${links.ask_ann}`"),
        // A step after it has its turn once the question is closed.
        (
            "a | after = []; event = \"approved\"; timeout = \"1h\"; link = {}\nb | after = [\"a\"]; with = { at = \"${links.a}\" }".to_owned(),
            "hands out the link of `a` in time",
        ),
        // What a person need not give, or no button says.
        (change("'no'\"", "'no'\"; output = { why = \"${event.reason}\" }"), "write `first(event.reason, '')`"),
        (change("ask = \"Pay ${input.cents}?\", answers = [\"yes\", \"no\"]", ""), "because the link has no `answers`"),
        (format!("{ASK}c | after = [\"ask-ann\"]; event = \"approved\"; timeout = \"1h\""), "would also reach `c`"),
        ("a | after = []; link = {}".to_owned(), "`link` is for a step that waits for an event"),
        (change("'no'\"", "'no'\"; output = { at = \"${links.ask_ann}\" }"), "`links.ask_ann` cannot be read here"),
    ] {
        let error = read(&steps).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
}
