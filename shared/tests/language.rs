//! Steps with conditions, mapped data and caught failures, as tables.
//!
//! Method: as in `transitions.rs`.

use crate::support::*;
use serde_json::{Value, json};
use shared::decision::{Event, What};
use shared::message::{Effect, Outcome, Reply};
use shared::step::FailureKind;
use shared::task::Task;

/// A bench for steps in the usual form: `name | key = value; key = value`, one a line. A step without a doer has agent x.
pub fn bench(steps: &str, input: Value) -> Bench {
    let mut bench = Bench::new(&file(steps));
    bench.input = input;
    bench
}

/// The same, whose first claims are saved.
pub fn claimed(steps: &str, input: Value) -> Bench {
    let mut bench = bench(steps, input);
    bench.wake(0);
    bench
}

pub fn file(steps: &str) -> String {
    let mut text =
        "name = \"w\"\ndefault = { timeout = \"10s\", retry = { max = 2, backoff = [\"1s\"] } }\n".to_owned();
    for line in steps.trim().lines() {
        let (name, keys) = line.split_once('|').unwrap();
        text += &format!("[[step]]\nname = \"{}\"\n", name.trim());
        let doers = [
            "agent =",
            "http =",
            "lambda =",
            "aws =",
            "value =",
            "fail =",
            "wait =",
            "until =",
            "event =",
            "workflow =",
        ];
        if !keys.split(';').any(|key| doers.iter().any(|doer| key.trim().starts_with(doer))) {
            text += "agent = \"x\"\n";
        }
        for key in keys.split(';') {
            text += &format!("{}\n", key.trim());
        }
    }
    text
}

/// A refusal by the service of `step`, with a status and a body.
fn refused(bench: &Bench, step: &str, status: u16, answer: Value) -> Event {
    Event::Reply(Reply { status: Some(status), answer: Some(answer), ..bench.told(step, failed()) })
}

fn last_detail(bench: &Bench) -> &str {
    bench.task.log.iter().rev().find_map(|entry| entry.4.as_deref()).unwrap()
}

const CHOICE: &str = r#"
a | after = []
b | after = ["a"]; when = "input.amount > 1000"
c | after = ["b!"]
d | after = ["b?"]
"#;

// K3: in the save that would claim it, once, and the reason is kept.
#[test]
fn a_condition_is_asked_once_and_what_hangs_on_it_follows() {
    let mut bench = self::bench(CHOICE, json!({"amount": 2000}));
    bench.wake(0).is("Processing a=Processing#1 b=Pending c=Pending d=Pending", "do a#1");
    bench.done("a").is("Processing a=Processed#1 b=Processing#1 c=Pending d=Pending", "do b#1, notice StepCompleted");
    // A retry does not ask again, whatever it would say now.
    bench.input = json!({"amount": 1});
    bench.answered("b", unavailable(None)).at(1000).wake(3);
    bench.is("Processing a=Processed#1 b=Processing#2f1 c=Pending d=Pending", "do b#2");
    bench.done("b");
    bench.is(
        "Processing a=Processed#1 b=Processed#2f1 c=Processing#1 d=Processing#1",
        "do c#1, do d#1, notice StepCompleted",
    );

    let mut bench = self::bench(CHOICE, json!({"amount": 250}));
    bench.wake(0).done("a");
    bench.is("Processing a=Processed#1 b=PassedOver c=PassedOver d=Processing#1", "do d#1, notice StepCompleted");
    let why: Vec<_> = bench.task.log.iter().filter_map(|entry| entry.4.as_deref()).collect();
    assert_eq!(why, ["`input.amount > 1000` is false: input.amount is 250", "`b` did not run"]);
    bench.done("d").is("Processed a=Processed#1 b=PassedOver c=PassedOver d=Processed#1", "notice Completed");
}

#[test]
fn an_order_whose_last_steps_are_passed_over_ends_in_the_same_save() {
    let mut bench = self::bench("a | after = []\nb | after = [\"a\"]; when = \"has(outputs.a.next)\"", json!({}));
    bench.wake(0).done("a").is("Processed a=Processed#1 b=PassedOver", "notice Completed");
}

#[test]
fn a_step_that_is_passed_over_needs_no_agent_that_runs() {
    let mut bench = self::bench(CHOICE, json!({"amount": 250}));
    bench.wake(0).withhold("x");
    bench.done("a").is("Pending a=Processed#1 b=Pending c=Pending d=Pending", "notice StepCompleted");
    bench.agents.paused.clear();
    bench.woken().is("Processing a=Processed#1 b=PassedOver c=PassedOver d=Processing#1", "do d#1");
}

const MAPPED: &str = r#"
a | after = []; with = { sum = "${input.amount * 2}", note = "${input.?note}", text = "order ${order.id}" }; output = { id = "${answer.code}" }
b | after = ["a"]; with = { of = "${outputs.a.id}", at = "${now}" }
"#;

// K1: from the order's input and from earlier outputs.
#[test]
fn what_an_agent_gets_and_what_is_kept_is_mapped() {
    let mut bench = claimed(MAPPED, json!({"amount": 21}));
    assert_eq!(bench.request("a").input, json!({"sum": 42, "text": "order ord_1"}));
    let done = bench.answer("a", done(json!({"code": "c-7", "rest": 1})));
    bench.at(2500).on(&done);
    assert_eq!(bench.task.steps[0].output, Some(json!({"id": "c-7"})));
    let sent = bench.request("b").input.clone();
    assert_eq!(sent, json!({"of": "c-7", "at": at(2500).as_second()}));
    // The same key with another body would be refused: a redelivery and a later attempt send the same.
    bench.at(4000).on(&done);
    assert_eq!(bench.request("b").input, sent);
    bench.answered("b", unavailable(None)).at(9000).wake(4);
    assert_eq!((bench.request("b").input.clone(), bench.request("b").attempt), (sent, 2));
}

// K2: a field that is missing fails the step before anything is called.
#[test]
fn a_mistake_calls_nothing_and_names_the_field() {
    let mut bench = self::bench(MAPPED, json!({}));
    bench.wake(0).is("Undoing a=Failed b=Pending", "wake, notice Failed");
    let error = bench.task.steps[0].error.clone().unwrap();
    assert!(error.contains("input.amount * 2") && error.contains("`input.amount`"), "{error}");
    bench.wake(1).is("Undone a=Failed b=Pending", "notice Undone");

    // The answer lacks what is to be kept: the service did its work, and its undo is owed.
    let steps = "a | after = []; output = { id = \"${answer.code}\" }; undo = { agent = \"x\" }; catch = \"true\"";
    let mut bench = self::bench(steps, json!({}));
    bench.wake(0).done("a").is("Undoing a=Failed#1", "wake+11000, notice Failed");
    bench.at(11_000).wake(2).is("Undoing a=UndoProcessing#2", "undo a#2");
}

const EXISTING: &str = r#"
create | after = []; catch = "error.status == 409 && error.answer.code == 'Duplicate'"; undo = { agent = "x", with = { id = "${output.id}" } }
lookup | after = ["create?"]; when = "errors.create.status == 409"
use | after = ["create?", "lookup?"]; with = { id = "${first(outputs.create.id, outputs.lookup.id)}" }
"#;

// K4: told apart by status and body.
#[test]
fn a_caught_failure_takes_another_path() {
    let mut bench = claimed(EXISTING, json!({}));
    let there = refused(&bench, "create", 409, json!({"code": "Duplicate"}));
    bench.on(&there).is("Processing create=Caught#1 lookup=Processing#1 use=Pending", "do lookup#1");
    bench.answered("lookup", done(json!({"id": 7})));
    bench.is("Processing create=Caught#1 lookup=Processed#1 use=Processing#1", "do use#1, notice StepCompleted");
    assert_eq!(bench.request("use").input, json!({"id": 7}));
    // What was there before stays: the refused step needs its output for its undo, so it has none.
    bench.failed("use").at(11_000).wake(4);
    bench.is("Undone create=Undone#1 lookup=Undone#1 use=Undone#1", "notice Undone");

    let mut bench = self::bench(EXISTING, json!({}));
    bench.wake(0).answered("create", done(json!({"id": 3})));
    bench.is("Processing create=Processed#1 lookup=PassedOver use=Processing#1", "do use#1, notice StepCompleted");
    assert_eq!(bench.request("use").input, json!({"id": 3}));
    bench
        .failed("use")
        .at(11_000)
        .wake(3)
        .is("Undoing create=UndoProcessing#2 lookup=PassedOver use=Undone#1", "undo create#2");
    assert_eq!(bench.request("create").input, json!({"id": 3}));

    for (status, answer) in [(404, json!({"code": "Duplicate"})), (409, json!({"code": "Locked"}))] {
        let mut bench = claimed(EXISTING, json!({}));
        let other = refused(&bench, "create", status, answer);
        bench.on(&other).is("Undoing create=Failed#1 lookup=Pending use=Pending", "wake+11000, notice Failed");
    }
    // `catch` itself has no value: the failure is not caught, and it stays a refusal, which leaves nothing to undo.
    let mut bench = claimed(EXISTING, json!({}));
    let other = refused(&bench, "create", 409, json!([]));
    bench.on(&other).is("Undoing create=Failed#1 lookup=Pending use=Pending", "wake+11000, notice Failed");
    assert!(last_detail(&bench).contains("error.answer.code"), "{}", last_detail(&bench));
    assert!(last_detail(&bench).contains("no such card"), "{}", last_detail(&bench));
    bench.at(11_000).wake(2).is("Undone create=Undone#1 lookup=Pending use=Pending", "notice Undone");
}

// An attempt before the refusal may have done its work, so its undo is owed.
#[test]
fn a_refusal_after_silence_does_not_say_that_nothing_was_done() {
    let steps = "a | after = []; undo = { agent = \"x\", with = { id = \"${order.id}\" } }";
    let undo = |silence: fn(&mut Bench)| {
        let mut bench = claimed(steps, json!({}));
        silence(&mut bench);
        bench.failed("a").at(40_000);
        bench.woken();
        bench.effects()
    };
    assert_eq!(undo(|_| ()), "notice Undone");
    let silent = |bench: &mut Bench| {
        bench.at(11_000).supervise().at(12_000).wake(2);
    };
    assert_eq!(undo(silent), "undo a#3");
    let unavailable = |bench: &mut Bench| {
        bench.answered("a", unavailable(None)).at(1000).wake(2);
    };
    assert_eq!(undo(unavailable), "undo a#3");
    let mut bench = claimed(steps, json!({}));
    let unsure = Event::Reply(Reply { unsure: true, ..bench.told("a", failed()) });
    bench.on(&unsure).at(11_000).wake(2).is("Undoing a=UndoProcessing#2", "undo a#2");
}

// An operator's input is for the step that failed, not for its undo.
#[test]
fn an_input_of_a_person_does_not_replace_what_the_undo_maps() {
    let steps = "a | after = []; undo = { agent = \"x\", with = { id = \"${output.id}\" } }\nb | after = [\"a\"]";
    let mut bench = Bench::new(&format!("on_failure = \"error\"\n{}", file(steps)));
    bench.wake(0).failed("a");
    bench.on(&act(What::Resubmit { step: Some("a".into()), input: Some(json!({"x": 1})) }));
    bench.woken();
    assert_eq!(bench.request("a").input, json!({"x": 1}));
    bench.answered("a", done(json!({"id": 7}))).cancel().at(40_000);
    bench.woken();
    assert_eq!(bench.request("a").input, json!({"id": 7}));
}

// K4: whether a service that fell silent did anything is unknown, so its undo is owed even if the order went on.
#[test]
fn spent_attempts_are_caught_by_a_supervisor_too() {
    let steps = r#"
a | after = []; catch = "error.kind == 'spent'"; undo = { agent = "x" }
b | after = ["a?"]; when = "errors.a.kind == 'spent'"
"#;
    let mut bench = self::bench(steps, json!({}));
    bench.wake(0).at(11_000).supervise().is("Pending a=Pending+1000#1f1 b=Pending", "wake+1000");
    bench.at(12_000).wake(2).at(23_000).supervise().is("Pending a=Caught#2f2 b=Pending", "wake");
    assert!(bench.task.due.is_some(), "b is left to a scheduler");
    bench.woken().is("Processing a=Caught#2f2 b=Processing#1", "do b#1");
    bench.failed("b").at(34_000).wake(6);
    bench.is("Undoing a=UndoProcessing#3f2 b=Undone#1", "undo a#3");

    // The last step is caught: the supervisor ends the order, and no queue would repeat its notice.
    let mut bench = self::bench("a | after = []; catch = \"error.kind == 'spent'\"; retry = { max = 1 }", json!({}));
    bench.wake(0).at(11_000).supervise().is("Processed a=Caught#1f1", "notice Completed");
    assert!(bench.task.notice_owed && bench.task.due.is_some());
}

// A failure is caught only on the way forward.
#[test]
fn a_failure_during_the_undo_is_not_caught() {
    let mut bench = self::bench("a | after = []; catch = \"true\"\nb | after = []", json!({}));
    bench.wake(0).failed("b").failed("a").is("Undoing a=Failed#1 b=Failed#1", "");
}

#[test]
fn a_fail_step_ends_the_order_with_its_reason_or_lets_it_go_on() {
    let steps = r#"
ask | after = []
no | after = ["ask"]; when = "!outputs.ask.yes"; fail = "refused by ${outputs.ask.by}"
go | after = ["no"]
"#;
    let answer = |yes: bool| done(json!({"yes": yes, "by": "ann"}));
    let mut bench = claimed(steps, json!({}));
    bench.answered("ask", answer(true));
    bench.is("Processing ask=Processed#1 no=Processed go=Processing#1", "do go#1, notice StepCompleted");
    let mut bench = claimed(steps, json!({}));
    bench.answered("ask", answer(false));
    bench.is("Undoing ask=Processed#1 no=Failed go=Pending", "wake+11000, notice Failed");
    assert_eq!(bench.task.reason.as_deref(), Some("`no` failed: refused by ann"));
}

#[test]
fn a_value_is_computed_and_needs_no_agent() {
    let steps = r#"
a | value = { double = "${input.n * 2}", list = "${[1, 2].map(x, x + input.n)}" }
b | after = ["a"]; value = "${outputs.a.double + 1}"
"#;
    let mut bench = self::bench(steps, json!({"n": 4}));
    bench.wake(0).is("Processed a=Processed b=Processed", "notice Completed");
    let outputs: Vec<_> = bench.task.steps.iter().map(|step| step.output.clone().unwrap()).collect();
    assert_eq!(outputs, [json!({"double": 8, "list": [5, 6]}), json!(9)]);
    assert_eq!(bench.task.forward_by, None);
    let bench = claimed(steps, json!({"n": "x".repeat(5000)}));
    assert_eq!(bench.task.steps[0].state, shared::step::State::Failed);
}

// Two of a batch in one save: a step that fails stops the turns of those behind it.
#[test]
fn a_mistake_stops_the_turns_of_the_same_save() {
    let steps = r#"
a | after = []
b | after = ["a"]; with = { x = "${input.x}" }
c | after = ["a"]
"#;
    let mut bench = self::bench(steps, json!({}));
    bench.wake(0).done("a").is("Undoing a=Processed#1 b=Failed c=Pending", "wake+11000, notice Failed");
    // Nor is a step claimed that stands before it, or before what it computes.
    let steps = r#"
a | after = []
c | after = ["a"]; irreversible = true
v | after = ["a"]; value = 1
b | after = ["v"]; fail = "no"
"#;
    let mut bench = self::bench(steps, json!({}));
    bench.wake(0).done("a");
    bench.is("Undoing a=Processed#1 c=Pending v=Processed b=Failed", "wake+11000, notice Failed");
}

#[test]
fn a_person_decides_about_a_step_that_failed_by_a_mistake() {
    let text = format!("on_failure = \"error\"\n{}", file("a | after = []; with = { x = \"${input.x}\" }"));
    let mut bench = Bench::new(&text);
    bench.input = json!({});
    bench.wake(0).is("Error a=Failed", "notice AttentionNeeded, alert");
    // The same mistake again, and then an input of a person in place of what the file maps.
    let seen = bench.task.version;
    bench.resubmit().wake(seen + 1).is("Error a=Failed", "notice AttentionNeeded, alert");
    bench.on(&act(What::Resubmit { step: Some("a".into()), input: Some(json!({"x": 1})) }));
    bench.woken().is("Processing a=Processing#1", "do a#1");
    assert_eq!(bench.request("a").input, json!({"x": 1}));
}

const CALL: &str = r#"
a | after = []; http = { url = "https://x.example/items/${input.id}?k=1", query = { q = "${input.?q}", n = "${1 + 1}" }, headers = { x-of = "${input.id}", authorization = "Bearer {secret:t}" } }; with = { a = "${input.id}" }; form = true
"#;

// K1: an existing API is called as it is.
#[test]
fn a_call_is_mapped_before_it_travels() {
    let parse = |text: &str| {
        let known = shared::workflow::file::Known { agents: &["x", "http"], inputs: &[] };
        shared::workflow::file::parse("w.toml", text, known)
    };
    let workflow = parse(&file(CALL)).unwrap();
    let call = |input: Value| -> Result<String, String> {
        let mut bench = Bench::new(ONE);
        bench.workflow = workflow.clone();
        bench.task = Task::new(submission("ord_1", true), &workflow, at(0));
        bench.input = input;
        bench.wake(0);
        match bench.effects.first() {
            Some(Effect::Request(request)) => {
                assert_eq!(request.http, None, "an earlier agent would send another body");
                let http = request.over_http().unwrap().clone();
                assert_eq!(http.headers["authorization"].text(), "Bearer {secret:t}");
                assert!(http.query.is_empty());
                Ok(format!("{} {}", http.url.text(), http.headers["x-of"].text()))
            }
            _ => Err(bench.task.steps[0].error.clone().unwrap()),
        }
    };
    let good = [
        (json!({"id": "a b"}), "https://x.example/items/a%20b?k=1&n=2 a b"),
        (json!({"id": "a/../b", "q": "ü&"}), "https://x.example/items/a%2F..%2Fb?k=1&n=2&q=%C3%BC%26 a/../b"),
        (json!({"id": "x@evil.example:1"}), "https://x.example/items/x%40evil.example%3A1?k=1&n=2 x@evil.example:1"),
        (json!({"id": "%00"}), "https://x.example/items/%2500?k=1&n=2 %00"),
        (json!({"id": "/../x"}), "https://x.example/items/%2F..%2Fx?k=1&n=2 /../x"),
        (json!({"id": "?x#y\\"}), "https://x.example/items/%3Fx%23y%5C?k=1&n=2 ?x#y\\"),
        (json!({"id": "%2e%2e"}), "https://x.example/items/%252e%252e?k=1&n=2 %2e%2e"),
        (json!({"id": 7}), "https://x.example/items/7?k=1&n=2 7"),
    ];
    for (input, wanted) in good {
        assert_eq!(call(input.clone()).as_deref(), Ok(wanted), "{input}");
    }
    let bad = [
        (json!({}), "`input.id`"),
        (json!({"id": null}), "is null"),
        (json!({"id": ""}), "is empty"),
        (json!({"id": ".."}), "segment"),
        (json!({"id": "."}), "segment"),
        (json!({"id": "a\r\nx: y"}), "control"),
        (json!({"id": "\u{0}"}), "control"),
        (json!({"id": "ü"}), "header"),
        (json!({"id": "\u{ff0e}\u{ff0e}"}), "header"),
        (json!({"id": "a\nx-admin: 1"}), "control"),
        (json!({"id": "{secret:t}"}), "header"),
        (json!({"id": ["a"]}), "list"),
    ];
    let text =
        file("a | after = []; http = { url = \"https://x.example/a\", method = \"GET\", query = { k = \"1\" } }");
    let plain = Bench { workflow: parse(&text).unwrap(), ..Bench::new(ONE) };
    let mut plain = Bench { task: Task::new(submission("ord_1", true), &plain.workflow, at(0)), ..plain };
    plain.wake(0);
    assert_eq!(plain.request("a").http.as_ref().unwrap().url.text(), "https://x.example/a?k=1");
    let long = call(json!({"id": "x".repeat(3000)})).unwrap_err();
    assert!(long.contains("the limit is 2048"), "{long}");
    for (input, words) in bad {
        let error = call(input.clone()).unwrap_err();
        assert!(error.contains(words) && error.contains("input.id"), "{input}: {error}");
    }
}

// Security: a host out of the data is a name and nothing else; an earlier agent, which knows no list, finds no call.
#[test]
fn a_host_out_of_the_data_is_a_name() {
    use shared::workflow::file::{Known, Settings, parse_for};
    let text = file("a | after = []; http = \"https://${input.shop}.example.com:8443/x/${input.id}\"");
    let settings = Settings { hosts: "*.example.com".parse().unwrap(), ..Settings::default() };
    let workflow = parse_for("w.toml", &text, Known { agents: &["http"], inputs: &[] }, &settings).unwrap();
    let call = |shop: &str| -> Result<String, String> {
        let mut bench = Bench::new(ONE);
        bench.workflow = workflow.clone();
        bench.task = Task::new(submission("ord_1", true), &workflow, at(0));
        bench.input = json!({"shop": shop, "id": "a/../b"});
        bench.wake(0);
        match bench.effects.first() {
            Some(Effect::Request(request)) => {
                assert_eq!((&request.http, &request.call), (&None, &None));
                assert_eq!(request.over_http(), request.held.as_ref());
                Ok(request.held.as_ref().unwrap().url.text().to_owned())
            }
            _ => Err(bench.task.steps[0].error.clone().unwrap()),
        }
    };
    assert_eq!(call("eu.shop-7").as_deref(), Ok("https://eu.shop-7.example.com:8443/x/a%2F..%2Fb"));
    for wrong in [
        "",
        ".",
        "a.",
        "..",
        "evil.example/",
        "evil.example?",
        "evil.example#",
        "evil.example\\",
        "a@evil.example",
        "a:80",
        "a%2e",
        "%00",
        "a b",
        "a\u{ff0e}b",
        "a\u{3002}b",
        "\u{430}pple",
        "a\u{200b}",
        "a_b",
        "-a",
        "[::1]",
        "{step}",
        "${input.id}",
    ] {
        let error = call(wrong).unwrap_err();
        assert!(error.contains("`input.shop` is not the name of a host"), "{wrong:?}: {error}");
    }
    assert!(call("a\r\nhost: b").unwrap_err().contains("control"));
}

#[test]
fn a_refusal_by_the_agent_itself_has_no_status() {
    let mut bench = self::bench("a | after = []; catch = \"error.status == 0 && error.kind == 'refused'\"", json!({}));
    bench.wake(0).failed("a").is("Processed a=Caught#1", "notice Completed");
    let mut bench = self::bench("a | after = []; catch = \"true\"", json!({}));
    bench.wake(0);
    let reply = bench.told("a", Outcome::Failed { error: "unusable".into() });
    let done = Event::Reply(Reply { kind: Some(FailureKind::Mistake), ..reply });
    bench.on(&done).is("Undoing a=Failed#1", "wake+11000, notice Failed");
}

// K4: what the agent found before any call is no refusal by the service, so no `catch` passes over it. Nothing was done.
#[test]
fn a_failure_before_any_call_is_not_caught() {
    let steps = "a | after = []; catch = \"true\"; undo = { agent = \"x\", with = { id = \"${output.id}\" } }";
    let mut bench = claimed(steps, json!({}));
    let reply = Reply { uncalled: true, ..bench.told("a", failed()) };
    bench.on(&Event::Reply(reply.clone())).is("Undoing a=Failed#1", "wake+11000, notice Failed");
    bench.at(11_000).wake(2).is("Undone a=Undone#1", "notice Undone");
    // A request that was delivered before may have led to a call.
    let mut bench = claimed(steps.replace("output.id", "order.id").as_str(), json!({}));
    bench.on(&Event::Reply(Reply { unsure: true, ..reply })).is("Undoing a=Failed#1", "wake+11000, notice Failed");
    bench.at(11_000).wake(2).is("Undoing a=UndoProcessing#2", "undo a#2");
}
