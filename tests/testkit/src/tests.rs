//! Goal: scenarios catch what their authors would want to know, and a bad file says what to write. Method: the files of
//! `examples/`, as they are and with one thing changed, over the real functions.

use super::{Answer, Event, Order, Outcome, play_file};
use serde_json::json;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/branches");

fn example(name: &str) -> String {
    std::fs::read_to_string(Path::new(EXAMPLE).join("tests").join(name)).unwrap()
}

/// The results of `text` as a scenario file beside the example's workflows.
fn played(text: &str) -> Result<Vec<Outcome>, String> {
    let input = r#"{"email": "eve@example.com", "name": null}"#;
    let dir = folder(&[("tests/input.json", input), ("tests/t.toml", text)]);
    std::fs::create_dir(dir.path().join("workflows")).unwrap();
    for entry in std::fs::read_dir(Path::new(EXAMPLE).join("workflows")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, dir.path().join("workflows").join(path.file_name().unwrap())).unwrap();
    }
    let shown =
        |error: shared::workflow::file::Error| error.to_string().replace(&format!("{}/", dir.path().display()), "");
    play_file(&dir.path().join("tests/t.toml"), 0).map_err(shown)
}

/// A folder with these files.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    dir
}

/// Checks what is said about answers to calls with these names.
fn are_refused(order: impl Fn() -> Order, names: &[(&str, &str)]) {
    for (name, why) in names {
        let found = order().answers(name, [Answer::ok(json!({}))]).play(0..0).unwrap_err();
        assert!(found.contains(why), "{name}: {found}");
    }
}

/// All sentences about the scenarios of `text`.
fn failures(text: &str) -> Vec<String> {
    played(text).unwrap().into_iter().flat_map(|outcome| outcome.failures).collect()
}

#[path = "../examples/nothing_to_pack.rs"]
mod example;

// A test in a README is compiled by nobody: `#[test]` makes rustdoc leave its function out.
#[test]
fn the_example_runs_and_is_the_one_of_the_readme() {
    example::main();
    let readme = include_str!("../README.md");
    let lines = |text: &str| -> Vec<String> {
        let chain = text.lines().map(str::trim).skip_while(|line| !line.starts_with("Order::of(")).skip(1);
        chain.take_while(|line| line.starts_with('.')).map(str::to_owned).collect()
    };
    let shown = lines(readme);
    assert_eq!(shown.last().map(String::as_str), Some(".check(0..20);"));
    assert_eq!(shown, lines(include_str!("../examples/nothing_to_pack.rs")));
}

// Months pass in virtual time.
#[test]
fn the_scenarios_of_the_examples_end_as_they_expect() {
    // By example: with how many seeds each of its scenarios is played, and how many it has.
    let examples = [
        // The mini-cases: what exists already is looked up, a payment is confirmed only if it has to be, and all marks of `after`.
        ("branches", 4, 12),
        // The mini-case: two people, reminders, a no, and a month.
        ("approvals", 1, 7),
        ("waits", 1, 4),
        // The mini-cases Pickup and Webhook.
        ("events", 2, 8),
        ("polls", 2, 4),
        // The mini-case of the warehouses: children are found beside the file, and one item has an answer of its own.
        ("lists", 2, 5),
        // A list is collected page by page, and a call is made for each of its items.
        ("pages", 2, 4),
    ];
    std::thread::scope(|scope| {
        for (example, seeds, count) in examples {
            scope.spawn(move || assert_eq!(all_of(example, seeds), count, "{example}"));
        }
    });
}

#[test]
fn a_name_that_leads_to_no_call_of_a_child_says_what_to_write() {
    let file = Path::new(EXAMPLES).join("lists/workflows/dispatch.toml");
    let names = [
        ("lines", "step `lines` starts orders; name a step of theirs, such as `lines/pick`"),
        ("lines/pack", "workflow `shipment` has no step `pack`; write one of `pick`, `hand-over`"),
        ("pay/pick", "step `pay` starts no order; write `pay` alone"),
        ("invoice[0]/write", "step `invoice` has no `each`; write `invoice/write`"),
        ("lines[x]/pick", "`x` is no position in a list; write `lines[0]/pick` for the first item"),
        ("lines/hand-over.undo", "step `hand-over` has no `undo`; remove `lines/hand-over.undo`"),
    ];
    are_refused(|| Order::of(&file).input(json!({ "order": "S-1", "lines": [] })), &names);
}

#[test]
fn a_call_for_each_item_has_the_name_of_its_step() {
    let text = "name = \"mails\"\n[[step]]\nname = \"mails\"\nafter = []\neach = \"${input.to}\"\n\
        http = { url = \"https://mail.example/messages\", method = \"POST\" }\nwith = { to = \"${item}\" }\ntimeout = \"10s\"\n\
        undo = { http = { url = \"https://mail.example/recall\", method = \"POST\" }, with = { of = \"${item}\" } }\n\
        [[step]]\nname = \"note\"\nafter = [\"mails\"]\nhttp = { url = \"https://a.example/n\", method = \"POST\" }\ntimeout = \"10s\"\n";
    let dir = folder(&[("mails.toml", text)]);
    let order = || Order::of(dir.path().join("mails.toml")).input(json!({ "to": ["a", "b"] }));
    let undone = order().answers("mails", [Answer::ok(json!({ "id": 1 }))]).answers("note", [Answer::refused("no")]);
    let undone = undone.ends("Undone").undone(["mails"]).calls("mails", 2).calls("mails[1]", 1).calls("mails.undo", 2);
    undone.calls("mails[0].undo", 1).sent("mails[1].undo", json!({ "body": { "of": "b" } })).check(0..2);
    let failed = order().answers("mails[1]", [Answer::refused("no such address")]);
    failed.ends("Undone").failed(["mails"]).error("no such address").check(0..2);
    let names = [
        ("mails/mails", "step `mails` makes a call for each item; write `mails` alone"),
        ("mails[x]", "`x` is no position in a list; write `mails[0]` for the first item"),
        ("mails[x].undo", "`x` is no position in a list; write `mails[0].undo` for the first item"),
        ("note[0]", "step `note` has no `each`; write `note`"),
        ("mails.remind", "step `mails` has no `remind`; remove `mails.remind`"),
    ];
    are_refused(order, &names);
}

// Its file is named with its line, and what the folder has.
#[test]
fn a_workflow_that_is_started_and_has_no_file_is_named() {
    let dir = folder(&[("a.toml", "name = \"a\"\n[[step]]\nname = \"x\"\nworkflow = \"b\"\n")]);
    let found = Order::of(dir.path().join("a.toml")).play(0..0).unwrap_err();
    assert!(found.contains("a.toml:4: no file beside this one defines workflow `b`;"), "{found}");
}

/// Plays all scenarios of an example, each also with this number of seeds, and says how many there are.
fn all_of(example: &str, seeds: u64) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir(Path::new(EXAMPLES).join(example).join("tests")).unwrap() {
        for outcome in play_file(&entry.unwrap().path(), seeds).unwrap() {
            assert_eq!(outcome.failures, Vec::<String>::new(), "{}: {}", outcome.file, outcome.name);
            count += 1;
        }
    }
    count
}

#[test]
fn what_is_not_as_expected_is_named() {
    let customer = [
        (
            "state = \"Processed\"\nran = [\"create\"",
            "state = \"Undone\"\nran = [\"create\"",
            "state: expected Undone, but it is Processed",
        ),
        ("ran = [\"create\", \"greet\"]", "ran = [\"create\"]", "ran: `greet` is not expected"),
        ("passed_over = [\"look-up\"]", "passed_over = [\"look-up\", \"greet\"]", "passed_over: `greet` is missing"),
        ("caught = [\"create\"]", "caught = []", "caught: `create` is not expected"),
        ("failed = [\"create\"]", "failed = [\"greet\"]", "failed: `greet` is missing"),
        ("undone = [\"create\"]", "undone = []", "undone: `create` is not expected"),
        (
            "{ id = \"c7\" }\nsent",
            "{ id = \"c8\" }\nsent",
            r#"outputs.look-up: expected {"id":"c8"}, but it is {"id":"c7"}"#,
        ),
        (
            "customer = \"c1\", ",
            "",
            r#"sent.greet.body: expected {"template":"welcome"}, but it is {"customer":"c1","template":"welcome"}"#,
        ),
        (
            "Bearer {secret:crm-token}",
            "Bearer {secret:other}",
            r#"sent.create.headers.authorization: expected "Bearer {secret:other}", but it is "Bearer {secret:crm-token}""#,
        ),
        (
            "ada%40example.com",
            "ada@example.com",
            r#"sent.look-up.url: expected "https://crm.example/customers?email=ada@example.com", but it is "https://crm.example/customers?email=ada%40example.com""#,
        ),
        ("create = 5, greet", "create = 4, greet", "calls.create: expected 4, but it is 5"),
        (
            "error = \"no such template\"",
            "error = \"no such letter\"",
            "error: expected one with `no such letter`, but it is `",
        ),
    ];
    let payment = [
        (
            "order = \"${order.id}\"",
            "order = \"${order.tenant}\"",
            r#"sent.ship.body: expected {"charge":"ch_1","order":"acme"}, but it is {"#,
        ),
        ("order = \"${order.id}\"", "order = \"${input.no}\"", "sent.ship.body: `input.no` does not exist"),
        ("sent.confirm = {", "sent.\"charge.undo\" = {", "sent.charge.undo: it was not called"),
        ("\"card[number]\" = \"4242\"", "\"card[number]\" = 4242", "sent.charge.body: expected"),
        // The order itself is different.
        (
            "charge = { answer = { id = \"ch_1\", status = \"succeeded\" } }",
            "",
            "state: expected Processed, but it is Error: the undo of `charge` failed: `output.id`",
        ),
        (
            "{ status = 503 }, { status = 200 }",
            "{ refused = \"too late\" }",
            "state: expected Undone, but it is Error: the undo of `charge` failed: too late",
        ),
    ];
    let claim = [("cents = 900000", "cents = 400000", "ran: `expert`, `letter` is missing")];
    let tables = [("customer.toml", &customer[..]), ("payment.toml", &payment), ("claim.toml", &claim)];
    for (file, table) in tables {
        for (from, to, sentence) in table {
            let text = example(file);
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text, "{from}");
            let found = failures(&changed);
            assert!(found.iter().any(|one| one.starts_with(sentence)), "{sentence}: {found:#?}");
        }
    }
    let nothing = failures("[[scenario]]\nname = \"x\"\nworkflow = \"claim\"\nexpect = { state = \"Refused\" }\n");
    assert_eq!(
        nothing,
        [
            "state: expected Refused, but it is Undone: `assess` failed: `input.claim` does not exist; write `first(input.claim, '')` if it may be absent"
        ]
    );
}

#[test]
fn inputs_and_answers_of_the_file_are_those_of_its_scenarios() {
    let head = "workflow = \"../workflows/customer.toml\"\ninput = \"input.json\"\n[answers]\ncreate = { answer = { id = \"c1\" } }\n";
    let one = "[[scenario]]\nname = \"one\"\n[scenario.expect]\nstate = \"Processed\"\nsent.create.body = { email = \"eve@example.com\" }\n";
    let two = "[[scenario]]\nname = \"two\"\ninput = { email = \"x\" }\nanswers.create.refused = \"no\"\nexpect = { state = \"Undone\", error = \"no\" }\n";
    let found = failures(&format!("{head}{one}{two}"));
    // A null is a value: it is sent.
    assert_eq!(
        found,
        [
            r#"sent.create.body: expected {"email":"eve@example.com"}, but it is {"email":"eve@example.com","name":null}"#
        ]
    );
    let undo = "answers.create.undo = { unavailable = true }\nanswers.greet = { status = 400 }\nexpect = { state = \"Error\", calls = { \"create.undo\" = 15 } }\n";
    assert_eq!(failures(&format!("{head}[[scenario]]\nname = \"undo\"\n{undo}")), Vec::<String>::new());
}

// K7: that an input is refused can be expected, and is refused by the code that runs.
#[test]
fn an_input_that_does_not_fit_its_schema_may_be_expected() {
    let workflow =
        "name = \"w\"\n[input]\nrequired = [\"n\"]\n[[step]]\nname = \"a\"\nagent = \"mail\"\ntimeout = \"5s\"\n";
    let play = |state: &str, input: &str| {
        let text = format!(
            "workflow = \"w.toml\"\n[[scenario]]\nname = \"x\"\ninput = {input}\nexpect = {{ state = \"{state}\" }}\n"
        );
        let dir = folder(&[("w.toml", workflow), ("t.toml", &text)]);
        play_file(&dir.path().join("t.toml"), 0).map(|mut all| all.remove(0).failures)
    };
    assert_eq!(play("Refused", "{}").unwrap(), Vec::<String>::new());
    assert!(play("Refused", "{ n = 1 }").unwrap()[0].starts_with("state: expected Refused, but it is"));
    assert!(play("Processed", "{}").unwrap_err().to_string().contains("the workflow refuses this input"));
}

#[test]
fn a_file_that_is_wrong_says_where_and_what_to_write() {
    let scenario = "[[scenario]]\nname = \"x\"\nworkflow = \"claim\"\n";
    let undone = "expect = { state = \"Undone\" }\n";
    let says = |text: &str, sentence: &str| {
        let wanted = format!("tests/t.toml:{sentence}");
        match played(text) {
            Err(said) => assert!(said.starts_with(&wanted), "{wanted}\n{said}\n{text}"),
            Ok(outcomes) => panic!("{wanted}: {outcomes:?}"),
        }
    };
    for (text, sentence) in [
        ("", "1: the file has no scenario; add a [[scenario]] with `name` and `expect`"),
        (scenario, "2: the scenario expects nothing; add [scenario.expect] with at least `state`"),
        (
            &format!("[[scenario]]\nname = \"x\"\n{undone}"),
            "2: the scenario has no workflow; add `workflow = \"NAME\"`, here or at the top of the file",
        ),
        (
            &format!("workflow = \"clam\"\n[[scenario]]\nname = \"x\"\n{undone}"),
            "1: there is no workflow `clam`; workflows has `claim`, `customer`, `payment`",
        ),
        (
            &format!("{scenario}{undone}{scenario}{undone}"),
            "6: a scenario named `x` already exists; give each a unique name",
        ),
        (&format!("{scenario}answers.pay = {{ status = 200 }}\nanswers.pay.undo = {{}}\n{undone}"), "5: "),
    ] {
        says(text, sentence);
    }
    for (expect, sentence) in [
        (
            "state = \"Done\"",
            "an order does not end as `Done`; write `Processed`, `Undone`, `Error`, or `Refused` if its input does not fit",
        ),
        ("state = \"Undone\", run = []", "unknown field `run`, expected one of `state`, `ran`"),
        (
            "state = \"Undone\", ran = [\"assses\"]",
            "workflow `claim` has no step `assses`; write one of `assess`, `expert`, `letter`, `pay`",
        ),
        (
            "state = \"Undone\", caught = [\"pay\"]",
            "step `pay`: has no `catch`, so its failure is never caught; remove it from `caught`",
        ),
        (
            "state = \"Undone\", undone = [\"pay\"]",
            "step `pay`: has no `undo`, so it is never undone; remove it from `undone`",
        ),
        (
            "state = \"Undone\", sent.pay = { input = 1 }",
            "`input` is not sent to a URL; write `method`, `url`, `headers`, `body`",
        ),
    ] {
        says(&format!("{scenario}expect = {{ {expect} }}"), &format!("4: {sentence}"));
    }
    for (line, sentence) in [
        ("answers.asses = {}", "workflow `claim` has no step `asses`"),
        ("answers.\"pay.undo\" = {}", "step `pay` has no `undo`; remove `pay.undo`"),
        (
            "answers.pay = { output = 1 }",
            "write `answer`, which is what the service answers; the step's `output` is taken from it",
        ),
        ("answers.pay = { status = 700 }", "an answer cannot have the status 700; write one from 200 to 599"),
        (
            "answers.pay = { status = 402, silent = true }",
            "keep one of `refused`, `unavailable`, `silent`, and an answer with `status` or `answer`",
        ),
        ("answers.pay = []", "the list of answers is empty; write at least one, such as { status = 200 }"),
        ("answers.pay = { headers = { \"a b\" = \"x\" } }", "`a b` is not an HTTP header"),
        ("answers.pay = { takes = \"25h\" }", "`takes` is out of range; write a time from 0s to 24h"),
        ("input = \"none.json\"", "the input tests/none.json cannot be read"),
        ("input = 5", "an input is a table, or the path of a JSON file with an object"),
    ] {
        says(&format!("{scenario}{line}\n{undone}"), &format!("4: {sentence}"));
    }
}

// A workflow that other tests of this folder do not use may be broken; the one under test may not.
#[test]
fn a_broken_workflow_is_refused_with_its_own_line() {
    let broken = "name = \"a\"\n[[step]]\nname = \"x\"\nagent = \"mine\"\n";
    let good = "name = \"b\"\n[[step]]\nname = \"x\"\nagent = \"mine\"\ntimeout = \"5s\"";
    let play = |name: &str| {
        let text = format!(
            "[[scenario]]\nname = \"x\"\nworkflow = \"{name}\"\nexpect = {{ state = \"Processed\", sent.x.input = {{}} }}\n"
        );
        let dir = folder(&[("workflows/a.toml", broken), ("workflows/b.toml", good), ("tests/t.toml", &text)]);
        play_file(&dir.path().join("tests/t.toml"), 2)
    };
    assert_eq!(play("b").unwrap()[0].failures, Vec::<String>::new());
    let error = play("a").unwrap_err().to_string();
    assert!(
        error.ends_with("workflows/a.toml:3: step `x` has no timeout; add, for example, `timeout = \"30s\"`"),
        "{error}"
    );
}

#[test]
fn an_output_that_is_kept_beside_the_record_is_compared_too() {
    let long = "x".repeat(6000);
    let text = example("claim.toml").replacen("{ cents = 1800 }", &format!("{{ cents = 1800, note = \"{long}\" }}"), 1);
    let scenario = |note: &str| {
        text.replacen("ran = [", &format!("outputs.pay = {{ note = \"{note}\" }}\nran = ["), 1).replacen(
            "[scenario.expect]",
            &format!("pay = {{ answer = {{ note = \"{long}\" }} }}\n[scenario.expect]"),
            1,
        )
    };
    assert_eq!(failures(&scenario(&long)), Vec::<String>::new());
    let found = failures(&scenario("${outputs.pay.note + 'y'}"));
    assert!(found.len() == 1 && found[0].starts_with("outputs.pay: expected ") && found[0].len() < 2100, "{found:?}");
}

// The same in Rust.
#[test]
fn an_order_in_rust_catches_what_a_scenario_catches() {
    let of =
        || Order::of(Path::new(EXAMPLE).join("workflows/customer.toml")).input(json!({"email": "ada@example.com"}));
    let create = || of().answers("create", [Answer::status(409, json!({"code": "Duplicate"}))]);
    let found = || create().answers("look-up", [Answer::ok(json!({"customers": [{"id": "c7"}]}))]);
    found().ran(["look-up", "greet"]).caught(["create"]).output("look-up", json!({"id": "c7"})).check(0..3);
    for (order, words) in [
        (found().ends("Undone"), "state: expected Undone, but it is Processed"),
        (found().ran(["greet"]), "ran: `look-up` is not expected"),
        (found().calls("create", 2), "calls.create: expected 2, but it is 1"),
        (
            found().sent("look-up", json!({"method": "POST"})),
            "sent.look-up.method: expected \"POST\", but it is \"GET\"",
        ),
        (found().output("look-up", json!({"id": "${input.email}"})), "expected {\"id\":\"ada@example.com\"}"),
    ] {
        let outcome = order.play(0..0).unwrap();
        assert!(outcome.failures.iter().any(|failure| failure.contains(words)), "{words}: {outcome}");
        assert!(outcome.to_string().contains("look-up"), "{outcome}");
    }
    for (order, words) in [
        (found().ends("Done"), "write `Processed`"),
        (found().ran(["lookup"]), "has no step `lookup`; write one of"),
        (found().answers("greet.undo", [Answer::ok(json!({}))]), "has no `undo`"),
        (found().answers("greet", [Answer::status(99, json!({}))]), "write one from 200 to 599"),
        (found().answers("greet", [Answer::silent().after(Duration::from_secs(100_000))]), "24h"),
        (found().answers("greet", []), "write at least one"),
        (found().answers("greet", [Answer::ok(json!({})).header("a b", "c")]), "not an HTTP header"),
        (found().sent("look-up", json!({"input": 1})), "`input` is not sent by `look-up`; write `method`"),
        (found().event(Event::of("paid", json!({})), "accepted"), "waits for `paid`; its steps wait for no event"),
        (found().caught(["greet"]), "has no `catch`"),
        (Order::of("nowhere.toml"), "nowhere.toml: cannot be read"),
    ] {
        let why = order.play(0..0).unwrap_err();
        assert!(why.contains(words), "{words}: {why}");
    }
    let panic = std::panic::catch_unwind(|| found().undone(["create"]).check(0..0)).unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().contains("undone: `create` is missing"), "{panic:?}");
}

#[test]
fn an_order_in_rust_sends_events() {
    let pickup = Path::new(EXAMPLES).join("events/workflows/pickup.toml");
    let outcome = Order::of(pickup)
        .event(Event::of("nobody-waits", json!({})).at(Duration::from_secs(1)), "no_such_event")
        .play(0..0);
    assert!(outcome.is_ok(), "{outcome:?}");
}
