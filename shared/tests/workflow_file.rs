//! Workflow files: what is accepted, and that every refusal names its line and says what to write instead.

use jiff::SignedDuration;
use shared::retry::Then;
use shared::workflow::file::{Known, parse};
use shared::workflow::{MAX_STEPS, Workflow};

const KNOWN: Known<'_> = Known { agents: &["inventory", "payment"], inputs: &["order"] };

const GOOD: &str = r#"name = "good"
input = "order"
[[step]]
name = "one"
agent = "inventory"
timeout = "5s"
retry = { max = 3, backoff = ["1s", "2s"] }
undo = { agent = "inventory" }
[[step]]
name = "two"
agent = "payment"
after = ["one"]
timeout = "5s"
"#;

fn read(text: &str) -> Result<Workflow, String> {
    parse("w.toml", text, KNOWN).map_err(|e| e.to_string())
}

/// `GOOD` with one thing replaced.
fn with(old: &str, new: &str) -> String {
    assert!(GOOD.contains(old), "{old}");
    GOOD.replacen(old, new, 1)
}

#[test]
fn every_refusal_names_its_line_and_says_what_to_write_instead() {
    let fifty_one: String = (0..=MAX_STEPS)
        .map(|n| format!("[[step]]\nname = \"s{n}\"\nagent = \"payment\"\ntimeout = \"1s\"\n"))
        .collect();
    let too_many = format!("name = \"many\"\n{fifty_one}");
    let too_many_line = 2 + 4 * MAX_STEPS;
    let circle = with("agent = \"inventory\"\n", "agent = \"inventory\"\nafter = [\n  \"three\",\n  \"two\",\n]\n")
        + "[[step]]\nname = \"three\"\nagent = \"payment\"\ntimeout = \"1s\"\n";
    // (file, line, what the message has to hold)
    let cases: Vec<(String, usize, &[&str])> = vec![
        (with("\"payment\"", "\"paymnt\""), 11, &["unknown agent `paymnt`", "write one of `inventory`, `payment`"]),
        (with("{ agent = \"inventory\" }", "{ agent = \"x\" }"), 8, &["unknown agent `x`", "write one of"]),
        (
            with("input = \"order\"", "input = \"ordr\""),
            2,
            &["unknown input check `ordr`", "`order`", "leave the line out"],
        ),
        (with("agent = \"payment\"\n", ""), 10, &["step `two` has no agent", "add `agent = \"NAME\"`"]),
        (
            with("timeout = \"5s\"\nretry", "retry"),
            4,
            &["step `one` has no timeout", "add, for example, `timeout = \"30s\"`"],
        ),
        (
            with("{ agent = \"inventory\" }", "{ timeout = \"1s\" }"),
            8,
            &["the undo of step `one` has no agent", "write `undo = { agent = \"inventory\" }`"],
        ),
        (with("name = \"two\"", "name = \"one\""), 10, &["a step named `one` already exists", "a unique name"]),
        (
            with("[\"one\"]", "[\"uno\"]"),
            12,
            &["step `two` waits for `uno`, which does not exist", "write one of `one`"],
        ),
        (with("[\"one\"]", "[\"two\"]"), 12, &["step `two` waits for itself", "remove `two` from its `after`"]),
        (with("[\"one\"]", "\"one\""), 12, &["\"one\" must be a list", "write [\"one\"]"]),
        (
            "name = \"w\"\n[[step]]\nname = \"a\"\nagent = \"payment\"\ntimeout = \"5s\"\nafter = [\"b\"]\n".into(),
            6,
            &["step `a` waits for `b`, which does not exist", "the only step, so leave `after` out"],
        ),
        (with("\"5s\"\nretry", "\"2d\"\nretry"), 6, &["the timeout 48h is out of range", "50ms to 12h"]),
        (with("\"5s\"\nretry", "'1 week'\nretry"), 6, &["write \"168h\""]),
        (
            with("\"5s\"\nretry", "\"202\"\nretry"),
            6,
            &["\"202\" is a duration without a unit", "\"202s\", \"202m\" or \"202h\""],
        ),
        (with("[\"1s\", \"2s\"]", "[\"1s\", \"202\"]"), 7, &["\"202\" is a duration without a unit"]),
        (circle, 8, &["in a cycle (one -> two -> one)", "remove one of these"]),
        (with("retry = {", "when = true\nretry = {"), 7, &["true must be a string; write \"true\""]),
        (with("retry = {", "retries = {"), 7, &["`retries` is not a key here", "write one of", "`retry`"]),
        (with("[[step]]", "[[steps]]"), 3, &["`steps` is not a key here", "`step`"]),
        (with("max = 3", "maximum = 3"), 7, &["`maximum` is not a key here", "`max`"]),
        (with("input = \"order\"", "on_failure = \"undoo\""), 2, &["`undoo` cannot be used here", "`undo`", "`error`"]),
        (with("\"5s\"\nretry", "\"5 bananas\"\nretry"), 6, &["duration", "write", "\"30s\""]),
        (with("\"5s\"\nretry", "5\nretry"), 6, &["5 is a duration without a unit", "write", "\"5s\""]),
        (with("[\"1s\", \"2s\"]", "[\"1s\", \"soon\"]"), 7, &["duration", "write", "\"30s\""]),
        (with("\"5s\"\nretry", "\"-5s\"\nretry"), 6, &["the timeout", "out of range", "write one from 50ms to 12h"]),
        (with("\"5s\"\nretry", "\"49ms\"\nretry"), 6, &["49ms", "out of range", "50ms to 12h"]),
        (with("\"5s\"\nretry", "\"13h\"\nretry"), 6, &["13h", "out of range", "50ms to 12h"]),
        (with("input = \"order\"", "deadline = \"999ms\""), 2, &["a deadline of 999ms", "write one from 1s to 8784h"]),
        (with("input = \"order\"", "retention = \"0d\""), 2, &["a retention of `0d`", "1d to 3650d", "\"30d\""]),
        (with("input = \"order\"", "retention = \"3651d\""), 2, &["a retention of `3651d`", "1d to 3650d"]),
        (with("input = \"order\"", "retention = \"720h\""), 2, &["a retention of `720h`", "a number of days"]),
        (with("input = \"order\"", "retention = 30"), 2, &["30 must be a string; write \"30\""]),
        (with("input = \"order\"", "deadline = \"8785h\""), 2, &["a deadline of 8785h", "write one from 1s to 8784h"]),
        (
            with("{ agent = \"inventory\" }", "{ agent = \"inventory\", timeout = \"0s\" }"),
            8,
            &["out of range", "50ms to 12h"],
        ),
        (with("\"2s\"]", "\"721h\"]"), 7, &["the wait 721h", "write one from 0s to 720h"]),
        (with("\"2s\"]", "\"-1s\"]"), 7, &["the wait", "write one from 0s to 720h"]),
        (with("max = 3", "max = 0"), 7, &["0 attempts", "write 1 to 1000"]),
        (
            with("max = 3", "max = 999, long = { every = \"1h\", times = 2 }"),
            7,
            &["999 attempts and 2 long ones", "write 1 to 1000"],
        ),
        (
            with("max = 3", "max = 3, long = { every = \"721h\", times = 2 }"),
            7,
            &["the wait 721h", "write one from 0s to 720h"],
        ),
        (with("[\"1s\", \"2s\"]", "[]"), 7, &["`backoff` is empty", "write at least one wait"]),
        (with("retry = {", "calls = { attempts = 0 }\nretry = {"), 7, &["`calls` needs", "for example"]),
        (with("retry = {", "calls = { base = \"9s\" }\nretry = {"), 7, &["`calls` needs", "for example"]),
        (with("retry = {", "late = { extend = \"9s\", times = 0 }\nretry = {"), 7, &["`late` needs", "for example"]),
        (with("retry = {", "late = { extend = \"13h\", times = 1 }\nretry = {"), 7, &["`late` needs", "50ms to 12h"]),
        (
            with("retry = {", "irreversible = true\nretry = {"),
            4,
            &["irreversible and has an undo", "keep one of the two"],
        ),
        (
            with("{ agent = \"inventory\" }", "{ agent = \"inventory\", retry = { then = \"undo\" } }"),
            8,
            &["an undo cannot be undone", "write `then = \"error\"`"],
        ),
        (
            with("name = \"good\"", "name = \"Good\""),
            1,
            &["`Good` cannot name a workflow", "write a lower-case letter"],
        ),
        (with("name = \"two\"", "name = \"2\""), 10, &["`2` cannot name a step", "write a lower-case letter"]),
        (with("name = \"two\"", "name = \"a:b\""), 10, &["`a:b` cannot name a step"]),
        (with("name = \"two\"", &format!("name = \"{}\"", "x".repeat(41))), 10, &["at most 40"]),
        ("name = \"empty\"\n".into(), 1, &["has no steps", "add at least one [[step]]"]),
        (String::new(), 1, &["name"]),
        (with("name = \"two\"\n", ""), 9, &["`name` is missing; add it"]),
        (
            with("{ agent = \"inventory\" }", "\"inventory\""),
            8,
            &["`undo`: \"inventory\" must be a table", "undo = { agent"],
        ),
        (with("[\"one\"]", "\"after-duration\""), 12, &["\"after-duration\" must be a list"]),
        (with("name = \"two\"", "name = [\"two\"]"), 10, &["`name`: [\"two\"] must be a string, in quotes"]),
        (with("[[step]]", "[step]"), 9, &["write [[step]] with two brackets"]),
        (with("max = 3", "max = -3"), 7, &["`max`: -3 must be a whole number from 0 to 4294967295"]),
        (with("retry = {", "irreversible = \"yes\"\nretry = {"), 7, &["`irreversible`: \"yes\" must be true or false"]),
        (with("retry = {", "deadline = \"1h\"\nretry = {"), 7, &["belongs to the workflow; move it above"]),
        (with("retry = {", "timeout = \"6s\"\nretry = {"), 7, &["`timeout` is given twice"]),
        (with("\"5s\"\nretry", "\"-5s\"\nretry"), 6, &["the timeout -5s is out of range"]),
        (with("timeout = \"5s\"\nretry", "timeout = \nretry"), 6, &["w.toml:6:"]),
        (too_many, too_many_line, &["51 steps are too many", "the limit is 50", "split the workflow"]),
    ];
    let mut wrong = Vec::new();
    for (text, line, parts) in cases {
        let error = match read(&text) {
            Ok(_) => panic!("accepted:\n{text}"),
            Err(error) => error,
        };
        if !error.starts_with(&format!("w.toml:{line}: "))
            || !parts.iter().all(|p| error.contains(p))
            || error.contains('\n')
        {
            wrong.push(format!("{error}\n    expected line {line} and {parts:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

// B3: the reference workflow, as the repository holds it.
#[test]
fn the_workflow_of_the_repository_is_accepted() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workflows/order.toml");
    let known = Known { agents: &["inventory", "fraud", "payment", "shipping"], inputs: &["order"] };
    let workflow = parse("order.toml", &std::fs::read_to_string(path).unwrap(), known).unwrap();
    let names: Vec<_> =
        workflow.steps.iter().map(|s| (s.name.as_str(), s.after.iter().map(|a| a.step).collect::<Vec<_>>())).collect();
    assert_eq!(names, [("reserve", vec![]), ("check-fraud", vec![]), ("charge", vec![0, 1]), ("ship", vec![2])]);
    assert_eq!(workflow.agents(), ["inventory", "fraud", "payment", "shipping"]);
    let json = serde_json::to_string(&workflow).unwrap();
    assert_eq!(serde_json::from_str::<Workflow>(&json).unwrap(), workflow);
}

#[test]
fn what_is_left_out_has_a_default() {
    let workflow = read(GOOD).unwrap();
    assert_eq!((workflow.on_failure, workflow.strict_notices, workflow.tombstones), (Then::Undo, false, false));
    let (one, two) = (&workflow.steps[0], &workflow.steps[1]);
    let undo = one.undo.as_ref().unwrap();
    assert_eq!((undo.timeout, undo.retry.max, undo.retry.then), (one.timeout, 3, Then::Error));
    let minutes: Vec<_> = two.retry.backoff.iter().map(SignedDuration::as_mins).collect();
    assert_eq!((two.retry.max, minutes), (6, vec![1, 5, 10, 30, 60]));
    let by_file = read(&with("input", "on_failure = \"error\"\ninput")).unwrap();
    assert!(by_file.steps.iter().all(|s| s.on_failure == Then::Error && s.retry.then == Then::Error));
    assert_eq!(read(&with("max = 3, ", "")).unwrap().steps[0].retry.max, 3, "one more than there are waits");
}

// A running task is pinned by this: it may never change for the same definition, whatever is released later.
#[test]
fn the_hash_of_a_definition_is_stable() {
    assert_eq!(read(GOOD).unwrap().hash().to_string(), "d8636062ad1dc0c665a8961b");
    let spaced = GOOD.replace(" = ", "   =   ").replace("\"5s\"", "\"5000ms\"");
    assert_eq!(read(&spaced).unwrap().hash(), read(GOOD).unwrap().hash(), "the spelling does not matter");
}

// Whatever a task is run by is part of the hash.
#[test]
fn the_hash_changes_with_every_field_that_matters() {
    let mut hashes = std::collections::BTreeMap::from([(read(GOOD).unwrap().hash(), "as it is".to_owned())]);
    for (old, new) in [
        ("name = \"good\"", "name = \"other\""),
        ("input = \"order\"\n", ""),
        ("input", "on_failure = \"error\"\ninput"),
        ("input", "strict_notices = true\ninput"),
        ("input", "tombstones = true\ninput"),
        ("name = \"two\"", "name = \"three\""),
        ("agent = \"payment\"", "agent = \"inventory\""),
        ("after = [\"one\"]\n", ""),
        ("timeout = \"5s\"\nretry", "timeout = \"6s\"\nretry"),
        ("max = 3", "max = 4"),
        ("max = 3", "max = 3, then = \"error\""),
        ("max = 3", "max = 3, long = { every = \"1h\", times = 1 }"),
        ("max = 3", "max = 3, long = { every = \"1h\", times = 2 }"),
        ("max = 3", "max = 3, long = { every = \"2h\", times = 1 }"),
        ("[\"1s\", \"2s\"]", "[\"1s\", \"3s\"]"),
        ("retry", "calls = { attempts = 2 }\nretry"),
        ("retry", "calls = { base = \"7ms\" }\nretry"),
        ("retry", "calls = { cap = \"7s\" }\nretry"),
        ("retry", "on_failure = \"error\"\nretry"),
        ("after = [\"one\"]", "after = [\"one\"]\nirreversible = true"),
        ("undo = { agent = \"inventory\" }\n", ""),
        ("{ agent = \"inventory\" }", "{ agent = \"payment\" }"),
        ("{ agent = \"inventory\" }", "{ agent = \"inventory\", timeout = \"6s\" }"),
        ("{ agent = \"inventory\" }", "{ agent = \"inventory\", retry = { max = 7 } }"),
        ("{ agent = \"inventory\" }", "{ agent = \"inventory\", calls = { attempts = 7 } }"),
    ] {
        let hash = read(&with(old, new)).unwrap().hash();
        let twin = hashes.insert(hash, format!("{old} -> {new}"));
        assert_eq!(twin, None, "same hash as {old} -> {new}");
    }
}

// Parsers of outside input never panic.
#[test]
fn no_cut_of_a_good_file_makes_the_parser_panic() {
    for end in 0..GOOD.len() {
        let _ = read(&GOOD[..end]);
        let _ = read(&GOOD[end..]);
        let _ = read(&format!("{}\u{e9}{}", &GOOD[..end], &GOOD[end..]));
    }
}
