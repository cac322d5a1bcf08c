//! A mended record: what is refused, and how an order continues from it. That nothing is refused which the system
//! itself writes is checked after every event of every test on this bench. // B9

use crate::support::*;
use serde_json::{Value, json};
use shared::decision::Kept;
use shared::mend::{Unfit, check, is_mended, mend};
use shared::step::State;
use shared::task::{Arrival, Phase, Task};
use shared::time::{Timestamp, plus};

/// The task on the bench after a person's change to its text: as it is saved, and what is sent.
fn mended(bench: &mut Bench, change: impl FnOnce(&mut Task)) -> Result<(), Unfit> {
    change(&mut bench.task);
    let version = bench.task.version;
    let (task, effects) = mend(&bench.task, "acme", "ann", "a bad disk", &bench.turn("operator"))?;
    assert_eq!(task.version, version + 1, "a save is exactly one version");
    assert!(is_mended(&task, "ann", "a bad disk") && !is_mended(&task, "bob", "a bad disk"));
    assert!(!is_mended(&task, "ann", "another reason"));
    (bench.task, bench.effects) = (*task, effects);
    check(&bench.task, "acme", &bench.workflow)
}

// Each rule is broken once, from a record that keeps all of them.
#[test]
fn a_text_that_an_order_could_not_go_on_with_is_refused_where_it_is_wrong() {
    let long = || "x".repeat(301);
    let deep = || serde_json::from_str::<Value>(&format!("{}0{}", "[".repeat(60), "]".repeat(60))).unwrap();
    type Change<'a> = (&'a str, Box<dyn Fn(&mut Value)>);
    fn to(at: &'static str, value: Value) -> Box<dyn Fn(&mut Value)> {
        Box::new(move |task| {
            let (parent, name) = at.rsplit_once('/').unwrap();
            let parent = task.pointer_mut(parent).unwrap();
            match name.parse::<usize>() {
                Ok(index) => parent[index] = value.clone(),
                Err(_) => parent[name] = value.clone(),
            }
        })
    }
    let all = |of: Vec<Change<'static>>| of;
    let cases = all(vec![
        ("tn", to("/tn", json!("beta"))),
        ("wf", to("/wf", json!("other"))),
        ("st", Box::new(|task: &mut Value| drop(task["st"].as_array_mut().unwrap().pop()))),
        (
            "pz",
            Box::new(|task: &mut Value| {
                task["pz"] = json!(1_000_000_000);
                task["ph"] = json!("Error");
            }),
        ),
        ("al.s", to("/al", json!({"v": 1, "s": 3, "r": "r"}))),
        ("al.v", to("/al", json!({"v": 9, "s": 0, "r": "r"}))),
        ("end", to("/end", json!(9))),
        ("act", to("/act", json!(9))),
        ("acon", to("/acon", json!(9))),
        ("bk", to("/bk", json!([1, 9]))),
        ("why", to("/why", json!(long()))),
        ("log", to("/log", json!([[0, "c", 3, 1, null]]))),
        ("log", to("/log", json!([[0, "c", 0, 1, long()]]))),
        ("log", to("/log", json!(vec![json!([0, "c", 0, 1, null]); 201]))),
        ("st[0].state", to("/st/0", json!({"state": "UndoPending", "a": 1}))),
        ("st[0].state", to("/st/0", json!({"state": "Failed", "a": 1}))),
        (
            "st[1].state",
            Box::new(|task: &mut Value| {
                task["ph"] = json!("Undoing");
                task["st"][0] = json!({"state": "UndoPending", "a": 1});
                task["st"][1] = json!({"state": "UndoPending", "a": 1});
            }),
        ),
        (
            "st[0].state",
            Box::new(|task: &mut Value| {
                task["ph"] = json!("Undoing");
                task["st"][0] = json!({"state": "UndoFailed", "a": 1});
            }),
        ),
        // An undo takes every step that may have run, or it would end with one of them done.
        (
            "st[0].state",
            Box::new(|task: &mut Value| {
                task["ph"] = json!("Undoing");
                task["st"][0] = json!({"state": "Processed", "a": 1});
                task["st"][1] = json!({"state": "Undone", "a": 1});
            }),
        ),
        ("st[0].a", to("/st/0/a", json!(9))),
        ("st[0].cb", to("/st/0/cb", json!(17_952_516_000_000_u64))),
        ("al.r", to("/al", json!({"v": 1, "s": 0, "r": long()}))),
        ("st[0].state", to("/ph", json!("Processed"))),
        ("st[0].state", to("/ph", json!("Undone"))),
        ("st[0].a", to("/st/0/a", json!(0))),
        ("st[0].c", to("/st/0/c", json!(9))),
        ("st[1].s", to("/st/1/s", json!(9))),
        ("st[1].e", to("/st/1/e", json!(long()))),
        ("st[1].o", to("/st/1/o", json!("x".repeat(4096)))),
        ("st[1].o", to("/st/1/o", deep())),
        ("st[0].i", to("/st/0/i", json!([1]))),
        ("st[0].i", to("/st/0/i", json!({"x": "x".repeat(16 * 1024)}))),
        ("st[0].i", to("/st/0/i", json!({ "x": deep() }))),
    ]);
    for (place, change) in cases {
        let mut bench = Bench::claimed(SIDE_BY_SIDE);
        bench.done("b");
        let mut text = serde_json::to_value(&bench.task).unwrap();
        change(&mut text);
        let mut task: Task = serde_json::from_value(text).unwrap_or_else(|e| panic!("{place}: {e}"));
        (task.id, task.version, task.updated_at) = (bench.task.id.clone(), bench.task.version, bench.task.updated_at);
        let refused = mended(&mut bench, |old| *old = task).unwrap_err();
        assert_eq!(refused.at, place, "{refused}");
        assert!(refused.to_string().len() > 20);
    }
    let mut bench = Bench::claimed(&many());
    let input = json!({"x": "x".repeat(16_000)});
    let refused = mended(&mut bench, |task| task.steps.iter_mut().for_each(|step| step.input = Some(input.clone())));
    assert_eq!(refused.unwrap_err().at, "st", "five inputs are too long together");
}

#[test]
fn a_text_with_events_that_no_step_could_take_is_refused() {
    let arrival = |step: Option<u16>, data: Option<Value>| Arrival {
        name: "paid".into(),
        key: "k".into(),
        hash: "h".into(),
        step,
        data,
        by: None,
    };
    let text = "name = \"w\"\n[[step]]\nname = \"a\"\nagent = \"x\"\ntimeout = \"10s\"\n[[step]]\nname = \"b\"\nafter = []\n\
                event = \"paid\"\ntimeout = \"300d\"\n";
    let cases = [
        ("ev.s", vec![arrival(Some(0), None)]),
        ("ev.d", vec![arrival(None, Some(json!([])))]),
        ("ev.d", vec![arrival(None, Some(json!({"x": "x".repeat(4090)})))]),
        ("ev", vec![arrival(None, Some(json!({}))); 17]),
    ];
    for (place, events) in cases {
        let refused = mended(&mut Bench::claimed(text), |task| task.events = events).unwrap_err();
        assert_eq!(refused.at, place, "{refused}");
    }
    let by = |by: &str, step: Option<u16>| Arrival { by: Some(by.into()), ..arrival(step, Some(json!({}))) };
    let people = text.replace("event =", "people = 1\nevent =");
    let cases = [
        ("ev.d", text, vec![arrival(Some(1), Some(json!({})))]),
        ("ev.b", text, vec![by("ann", None)]),
        ("ev.b", people.as_str(), vec![arrival(None, Some(json!({})))]),
        ("ev.s", people.as_str(), vec![by("ann", Some(1)), by("bob", Some(1))]),
    ];
    for (place, text, events) in cases {
        let refused = mended(&mut Bench::claimed(text), |task| task.events = events).unwrap_err();
        assert_eq!(refused.at, place, "{refused}");
    }
    let refused = mended(&mut Bench::claimed(text), |task| {
        let State::Waiting { event, .. } = &mut task.steps[1].state else { panic!("it waits") };
        *event = false;
    });
    assert_eq!(refused.unwrap_err().at, "st[1].state");
    // An undo does not wait for an attempt that could last as long as a wait for an event.
    let mut bench = Bench::claimed(text);
    mended(&mut bench, |task| task.steps[0].state = State::Pending { not_before: None }).unwrap();
    assert_eq!(bench.task.forward_by, Some(at(10_000)));
}

/// Five concurrent steps.
fn many() -> String {
    let step = |n: usize| format!("[[step]]\nname = \"s{n}\"\nagent = \"x\"\ntimeout = \"10s\"\n");
    format!("name = \"many\"\n{}", (0..5).map(step).collect::<String>())
}

// A Wake begins what can begin; a step with an agent is left to its reply, or to the sweep.
#[test]
fn a_mended_order_continues_where_its_text_says() {
    let mut bench = Bench::new(SIDE_BY_SIDE);
    mended(&mut bench, |_| {}).unwrap();
    bench.is("Pending a=Pending b=Pending c=Pending", "");
    bench.wake(1).is("Processing a=Processing#1 b=Processing#1 c=Pending", "do a#1, do b#1");
    bench.done("b");
    mended(&mut bench, |_| {}).unwrap();
    // No reply to an attempt that the text does not know may count for the next one.
    bench.is("Processing a=Processing#1 b=Processed#3 c=Pending", "");
    bench.done("a").is("Processing a=Processed#1 b=Processed#3 c=Processing#1", "do c#1, notice StepCompleted");
    // Where it was set aside for minutes a supervisor looks as early as after any other action.
    mended(&mut bench, |task| task.due = Some(plus(at(0), secs(300)))).unwrap();
    assert_eq!(bench.task.due, Some(at(10_000)));
    bench.at(11_000).supervise();
    assert_eq!(bench.expired, 1);
    // What can begin begins by a Wake, but nothing before the notice that belongs before it: the sweep sends both.
    let mut bench = Bench::claimed(ONE);
    mended(&mut bench, |task| task.steps[0].state = State::Pending { not_before: None }).unwrap();
    bench.is("Pending a=Pending#1", "wake");
    let mut bench = Bench::new(ONE);
    mended(&mut bench, |_| {}).unwrap();
    bench.is("Pending a=Pending", "").at(61_000).supervise().keeps(Kept::NothingReady, "notice Received, wake");
    let mut bench = Bench::claimed(ONE);
    bench.cancel();
    mended(&mut bench, |_| {}).unwrap();
    bench.is("Undoing a=Processing#1", "").at(11_000).supervise();
    bench.at(61_000).supervise().keeps(Kept::NothingReady, "notice Failed, wake");
}

// A text in which nothing is left to do ends the order, and tells its submitter.
#[test]
fn a_text_in_which_all_is_done_ends_the_order() {
    let mut bench = Bench::claimed(ONE);
    mended(&mut bench, |task| task.steps[0].state = State::Processed).unwrap();
    bench.is("Processed a=Processed#1", "notice Completed");
    assert!(bench.task.notice_owed && bench.task.due.is_some(), "no message would bring the notice again");
    // An order that had ended sends no second notice.
    bench.task.notice_owed = false;
    mended(&mut bench, |_| {}).unwrap();
    bench.is("Processed a=Processed#2", "");
    assert!(!bench.task.notice_owed && bench.task.due.is_none());

    // An undo that has not begun has everything ahead of it, and an undo that is over ends.
    let mut bench = Bench::claimed(ONE);
    bench.done("a");
    mended(&mut bench, |task| task.phase = Phase::Undoing).unwrap();
    assert_eq!(bench.state(), "Undoing a=Processed#2");
    mended(&mut bench, |task| task.steps[0].state = State::Undone).unwrap();
    bench.is("Undone a=Undone#3", "notice Undone");
    // What waits for a person waits.
    let mut bench = Bench::claimed(&on_failure_error(ONE));
    bench.failed("a");
    mended(&mut bench, |_| {}).unwrap();
    assert_eq!((bench.state().as_str(), bench.effects.len()), ("Error a=Failed#2", 0));
}

// A forward request that was sent may still start: an undo waits for it, even if the text does not contain it.
#[test]
fn an_undo_waits_for_requests_that_the_text_has_forgotten() {
    for (forgets, until) in [(false, at(10_000)), (true, at(10_000))] {
        let mut bench = Bench::claimed(ONE);
        bench.at(1000);
        mended(&mut bench, |task| {
            if forgets {
                task.forward_by = None;
                task.steps[0].state = State::Pending { not_before: None };
            }
        })
        .unwrap();
        assert_eq!(bench.task.forward_by, Some(until), "forgets: {forgets}");
    }
    let mut bench = Bench::claimed(ONE);
    mended(&mut bench, |task| task.forward_by = Some(Timestamp::UNIX_EPOCH)).unwrap();
    assert_eq!(bench.task.forward_by, Some(at(10_000)), "as its claim says");
    // What was never tried has nothing to wait for. Whether its record may be removed one day is not for the text to
    // say.
    let mut bench = Bench::new(ONE);
    mended(&mut bench, |task| task.expires = true).unwrap();
    assert_eq!((bench.task.forward_by, bench.task.expires), (None, false));
}
