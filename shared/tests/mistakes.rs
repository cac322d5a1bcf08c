//! Mistakes that a writer of a workflow makes, each refused when the file is read, at its line, with what to write.

use crate::language::file;
use shared::workflow::file::{Known, parse};

/// A file in short form, part of the line that is named, and parts of the message.
type Mistake<'a> = (&'a str, &'a str, &'a [&'a str]);

const MISTAKES: &[Mistake<'_>] = &[
    // Steps that start an order.
    ("a | workflow = \"Other\"", "workflow", &["`Other` cannot name a workflow"]),
    ("a | workflow = \"b\"; undo = { agent = \"x\" }", "undo", &["starts an order, so it takes no `undo`"]),
    ("a | workflow = \"b\"; timeout = \"5s\"", "timeout", &["takes no `timeout`"]),
    ("a | workflow = \"b\"; irreversible = true", "name = \"a\"", &["takes no `irreversible`"]),
    ("a | workflow = \"b\"; agent = \"x\"", "agent", &["takes no `agent`"]),
    ("a | workflow = \"b\"; form = true", "name = \"a\"", &["`form` says how `with` is sent"]),
    ("a | workflow = \"b\"; with = \"x\"; form = true", "with", &["only a step with `http` sends a form"]),
    ("a | workflow = \"b\"; output = \"${outputs.x}\"", "output", &["`outputs.x` cannot be read here", "`answer`"]),
    ("a | workflow = \"b\"; with = { x = \"${outputs.b.x}\" }", "with", &["no step comes before this one"]),
    ("a | workflow = \"b\"\nb |", "name = \"b\"", &["step `b` does not say when it starts"]),
    ("a | workflow = \"b\"; remind = { every = \"1h\", agent = \"x\" }", "remind", &["is for a step that waits"]),
    // Steps with a list.
    ("a | each = \"${input.l}\"; wait = \"2d\"", "wait", &["a step with `wait` takes no `each`", "remove `each`"]),
    ("a | each = \"${input.l}\"; agent = \"x\"; workflow = \"b\"", "agent", &["takes no `agent`"]),
    ("a | each = \"${input.l}\"; agent = \"y\"", "agent", &["unknown agent `y`"]),
    (
        "a | each = \"${input.l}\"; agent = \"x\"; with = { x = \"${now}\" }",
        "with",
        &["`now` cannot be read here", "`item`"],
    ),
    ("a | each = \"${input.l}\"; agent = \"x\"; output = \"${item}\"", "output", &["`item` cannot be read here"]),
    ("a | each = \"${input.l}\"; agent = \"x\"; catch = \"item.x\"", "catch", &["`item.x` cannot be read here"]),
    ("a | agent = \"x\"; with = { x = \"${item}\" }", "with", &["`item` cannot be read here"]),
    (
        "a | each = \"${input.l}\"; http = { url = \"https://x.example\", headers = { idempotency-key = \"${input.k}\" } }",
        "name = \"a\"",
        &["the same idempotency-key `${input.k}` for every item", "${uuid('a')}"],
    ),
    (
        "a | each = \"${input.l}\"; agent = \"x\"\nb | after = [\"a\"]; with = { x = \"${outputs.a.box}\" }",
        "with",
        &["no such field as `outputs.a.box`", "total"],
    ),
    ("a | workflow = \"b\"; each = \"l\"", "each", &["`each` takes a list", "`each = \"${input.lines}\"`"]),
    ("a | workflow = \"b\"; at_once = 5", "at_once", &["`at_once` is for a step with a list"]),
    ("a | workflow = \"b\"; tolerate = \"5%\"", "tolerate", &["`tolerate` is for a step with a list"]),
    ("a | workflow = \"b\"; each = \"${input.l}\"; at_once = 0", "at_once", &["cannot be 0", "from 1 to 100"]),
    ("a | workflow = \"b\"; each = \"${input.l}\"; at_once = 101", "at_once", &["cannot be 101"]),
    ("a | workflow = \"b\"; each = \"${input.l}\"; batch = 5", "batch", &["`item` is a list", "with = { items"]),
    ("a | workflow = \"b\"; each = \"${input.l}\"; tolerate = \"3\"", "tolerate", &["cannot be `3`", "to \"100%\""]),
    ("a | workflow = \"b\"; each = \"${input.l}\"; tolerate = \"101%\"", "tolerate", &["cannot be `101%`"]),
    ("a | workflow = \"b\"; each = \"${input.l}\"; tolerate = \"1.%\"", "tolerate", &["cannot be `1.%`"]),
    ("a | workflow = \"b\"; each = \"${item}\"", "each", &["`item` cannot be read here"]),
    ("a | workflow = \"b\"; with = { x = \"${item}\" }", "with", &["`item` cannot be read here"]),
    (
        "a | workflow = \"b\"; each = \"${input.l}\"\nb | after = [\"a\"]; with = { x = \"${outputs.a.count}\" }",
        "with",
        &["no such field as `outputs.a.count`", "total"],
    ),
    // Waits.
    ("a | wait = \"2d\"; with = { x = 1 }", "with", &["a step with `wait` calls nothing", "remove `with`"]),
    ("a | until = \"${now}\"; undo = { agent = \"x\" }", "undo", &["a step with `until` calls nothing"]),
    ("a | wait = \"2d\"; timeout = \"5s\"", "timeout", &["takes no `timeout`"]),
    ("a | wait = \"2d\"; until = \"${now}\"", "wait", &["both `wait` and `until`", "keep one of the two"]),
    ("a | wait = \"2d\"; value = { x = 1 }", "value", &["both `value` and `wait`"]),
    ("a | wait = \"-2s\"", "wait", &["`wait`: \"-2s\" is negative"]),
    ("a | wait = \"400d\"", "wait", &["more than 366 days away"]),
    ("a | wait = \"tomorrow\"", "wait", &["not a duration; write for example \"90s\""]),
    ("a | wait = true", "wait", &["`wait` takes a time", "`wait = \"2d\"`"]),
    ("a | until = \"2026-03-01\"", "until", &["`until`: \"2026-03-01\" is not a time", "RFC 3339"]),
    ("a | until = 2026-03-01T09:00:00Z", "until", &["a date without quotes", "write it as a string"]),
    ("a | wait = \"${outputs.b.x}\"\nb | after = [\"a\"]", "wait", &["no step comes before this one"]),
    ("a | wait = \"2d\"\nb |", "name = \"b\"", &["step `b` does not say when it starts"]),
    ("a | wait = \"2d\"\nb | after = [\"a\"]; when = \"outputs.a.x\"", "when", &["a step that waits has no output"]),
    // Heartbeats.
    ("a | heartbeat = \"500ms\"", "heartbeat", &["a heartbeat of 500ms is out of range", "1s to 1h"]),
    ("a | heartbeat = \"2h\"; timeout = \"9h\"", "heartbeat", &["a heartbeat of 2h is out of range"]),
    ("a | heartbeat = \"5s\"", "heartbeat", &["two heartbeats of 5s take the whole timeout of 10s"]),
    ("a | timeout = \"24h\"", "timeout", &["the timeout 24h is out of range", "or add a `heartbeat`"]),
    ("a | heartbeat = \"1m\"; timeout = \"800h\"", "timeout", &["the timeout 800h is out of range", "to 30d"]),
    (
        "a | heartbeat = \"1m\"; timeout = \"24h\"; undo = { agent = \"x\" }",
        "undo",
        &["the undo of step `a` has no heartbeat, so it takes at most 12h"],
    ),
    ("a | undo = { agent = \"x\", heartbeat = \"9s\" }", "heartbeat", &["two heartbeats of 9s"]),
    (
        "a | http = \"https://x.example/\"; heartbeat = \"1s\"",
        "heartbeat",
        &["a call to a URL or to AWS sends no heartbeats", "`accept` or `poll`"],
    ),
    (
        "a | heartbeat = \"1s\"; late = { extend = \"1s\", times = 1 }",
        "late",
        &["a step with a `heartbeat` gets more time through its heartbeats, so it takes no `late`"],
    ),
    (
        "a | heartbeat = \"1s\"; poll = { every = \"5s\", for = \"1m\", done = \"true\" }",
        "poll",
        &["a step with a `heartbeat` has one long attempt, so it takes no `poll`"],
    ),
    ("a | wait = \"1h\"; heartbeat = \"1m\"", "heartbeat", &["calls nothing, so it takes no `heartbeat`"]),
    // Polls.
    ("a | poll = { every = \"5s\", for = \"1m\" }", "poll", &["`done` is missing"]),
    ("a | poll = { every = \"5ms\", for = \"1m\", done = \"true\" }", "poll", &["`every` of 5ms is out of range"]),
    (
        "a | poll = { every = \"5s\", for = \"5s\", done = \"true\" }",
        "poll",
        &["`for` of 5s is out of range", "above `every`"],
    ),
    (
        "a | poll = { every = \"5s\", for = \"1m\", done = \"status == 200\" }",
        "poll",
        &["`status` cannot be read here", "`answer`"],
    ),
    ("a | poll = { every = \"5s\", for = \"1m\", done = \"input.x\" }", "poll", &["`input.x` cannot be read here"]),
    (
        "a | poll = { every = \"5s\", for = \"1m\", done = \"answer.x\" }; retry = { max = 2 }",
        "retry",
        &["takes no `retry`"],
    ),
    (
        "a | poll = { every = \"5s\", for = \"1m\", done = \"answer.x\" }; late = { extend = \"1s\", times = 1 }",
        "late",
        &["takes no `late`"],
    ),
    (
        "a | value = { x = 1 }; poll = { every = \"5s\", for = \"1m\", done = \"true\" }",
        "poll",
        &["calls nothing", "remove `poll`"],
    ),
    // Pages.
    ("a | pages = { items = \"${answer.x}\" }", "pages", &["`next` is missing"]),
    (
        "a | pages = { items = \"answer.x\", next = \"${answer.?n}\" }",
        "pages",
        &["`items` of `pages` reads the answer"],
    ),
    (
        "a | with = { c = \"${page.?cursor}\" }; pages = { items = \"${answer.x}\", next = \"${answer.n}\" }",
        "pages",
        &["`answer.n` may not be there on the last page", "`.?n`"],
    ),
    (
        "a | with = { c = \"c\" }; pages = { items = \"${answer.x}\", next = \"${answer.?n}\" }",
        "pages",
        &["asks for the same page again and again", "${page.?cursor}"],
    ),
    (
        "a | with = { c = \"${page.cursor}\" }; pages = { items = \"${answer.x}\", next = \"${answer.?n}\" }",
        "pages",
        &["reads `page.cursor`", "write `page.?cursor`"],
    ),
    ("a | with = { c = \"${page.?cursor}\" }", "with", &["`page.cursor` cannot be read here"]),
    (
        "a | with = { c = \"${page.?cursor}\" }; undo = { agent = \"x\" }; pages = { items = \"${answer.x}\", next = \"${answer.?n}\" }",
        "undo",
        &["takes no `undo`", "it only reads"],
    ),
    (
        "a | value = 1; pages = { items = \"${answer.x}\", next = \"${answer.?n}\" }",
        "pages",
        &["calls nothing", "remove `pages`"],
    ),
    // Accepted work.
    ("a | accept = { within = \"1ms\" }", "accept", &["`within` of 1ms is out of range"]),
    ("a | accept = { when = \"status == 202\" }", "accept", &["reports with the outcome `accepted`", "remove `when`"]),
    ("a | http = \"https://x.example\"; accept = { when = \"input.x\" }", "accept", &["`input.x` cannot be read here"]),
    (
        "a | accept = { }; output = { x = \"${event.x}\" }",
        "output",
        &["`event.x` may be absent", "write `first(event.x, ...)`"],
    ),
    ("a | http = \"https://x.example\"; accept = { }; with = { x = 1 }", "accept", &["does not hand out its address"]),
    ("a | lambda = \"f\"; accept = { }", "accept", &["always answers 200", "`when = \"true\"`"]),
    ("a | with = { to = \"${callback}\" }", "with", &["`callback` cannot be read here"]),
    (
        "a | accept = { }; poll = { every = \"5s\", for = \"1m\", done = \"true\" }",
        "poll",
        &["both `accept` and `poll`"],
    ),
    ("a | wait = \"1h\"; accept = { }", "accept", &["calls nothing", "remove `accept`"]),
    // Edges.
    (
        "a | after = []; when = \"input.x\"\nb | after = [\"a\"]",
        "after = [\"a\"]",
        &["`a`, which has a `when`", "\"a!\"", "\"a?\""],
    ),
    (
        "a | after = []; catch = \"true\"\nb | after = [\"a\"]",
        "after = [\"a\"]",
        &["`a`, which has a `catch`", "\"a!\"", "\"a?\""],
    ),
    (
        "a | after = []; when = \"input.x\"\nb | after = []; when = \"input.y\"\nc | after = [\"a!\"]\nd | after = [\"b!\"]\ne | after = [\"c\", \"d\"]",
        "after = [\"c\", \"d\"]",
        &["`c` and `d`, which different conditions can pass over", "mark each"],
    ),
    (
        "a | when = \"input.x\"\nb |",
        "name = \"b\"",
        &["step `b` does not say when it starts", "add `after", "`after = []`"],
    ),
    ("a | after = []\nb | with = { x = 1 }", "name = \"b\"", &["step `b` does not say when it starts"]),
    (
        "a | after = []\nb | after = [\"a!\", \"a?\"]",
        "after = [\"a!\", \"a?\"]",
        &["names `a` twice with different marks"],
    ),
    ("a | after = []\nb | after = [\"x!\"]", "x!", &["waits for `x`, which does not exist", "`a`"]),
    ("a | after = [\"a?\"]; when = \"true\"", "a?", &["waits for itself"]),
    ("a | after = [\"b!\"]\nb | after = [\"a?\"]", "after", &["in a cycle"]),
    // What can never run.
    (
        "a | after = []; when = \"input.x > 1\"\nb | after = []; when = \"!(input.x > 1)\"\nc | after = [\"a!\", \"b!\"]",
        "after = [\"a!\", \"b!\"]",
        &["step `c` never runs", "`a` and `b` never both run", "mark the steps in `after` with `?`"],
    ),
    (
        "a | after = []; when = \"input.x == 'eu' && input.y\"\nb | after = []; when = \"input.x == 'us'\"\nc | after = [\"a!\", \"b!\"]",
        "after = [\"a!\", \"b!\"]",
        &["step `c` never runs"],
    ),
    (
        "a | after = []; when = \"input.x < 5\"\nb | after = [\"a!\"]\nc | after = [\"b!\"]; when = \"input.x >= 5\"",
        "after = [\"b!\"]",
        &["step `c` never runs", "false whenever `a` ran"],
    ),
    (
        "a | after = []; catch = \"error.status == 409\"\nb | after = [\"a?\"]; when = \"!ran.a\"\nc | after = [\"a!\", \"b!\"]",
        "after = [\"a!\", \"b!\"]",
        &["step `c` never runs", "`b` and `a` never both run"],
    ),
    (
        "a | after = []; catch = \"true\"\nb | after = [\"a!\"]; when = \"errors.a.kind == 'refused'\"",
        "after = [\"a!\"]",
        &["step `b` never runs", "false whenever `a` ran"],
    ),
    (
        "a | after = []; when = \"input.x && input.y\"\nb | after = []; when = \"!(input.x && input.y)\"\nc | after = [\"a!\", \"b!\"]",
        "after = [\"a!\", \"b!\"]",
        &["step `c` never runs"],
    ),
    (
        "a | after = []; when = \"input.x == 1 && input.x == 2\"",
        "name = \"a\"",
        &["step `a` never runs", "contradicts itself"],
    ),
    (
        "a | after = []; catch = \"error.kind == 'unknown'\"",
        "catch",
        &["no failure is of the kind `unknown`", "`refused`, `spent`"],
    ),
    (
        "a | after = []; catch = \"true\"\nb | after = [\"a?\"]; when = \"errors.a.kind in ['', 'timedout']\"",
        "when",
        &["no failure is of the kind `timedout`"],
    ),
    // What may not have run.
    (
        "a | after = []; when = \"input.x\"\nb | after = [\"a?\"]; with = { x = \"${outputs.a.id}\" }",
        "outputs.a.id",
        &["may not have run", "first(outputs.a.id, ...)", "\"a!\""],
    ),
    (
        "a | after = []; catch = \"true\"\nb | after = [\"a?\"]; when = \"outputs.a.id == 1\"",
        "outputs.a.id",
        &["may not have run"],
    ),
    (
        "a | after = []; when = \"input.x\"\nb | after = [\"a!\"]\nc | after = [\"b?\"]; with = { x = \"${outputs.b.id}\" }",
        "outputs.b.id",
        &["may not have run"],
    ),
    (
        "a | after = []; when = \"input.x\"\nb | after = [\"a?\"]; when = \"!ran.a\"; with = { x = \"${outputs.a.id}\" }",
        "outputs.a.id",
        &["may not have run"],
    ),
    (
        "a | after = []; when = \"input.x\"\nb | after = [\"a?\"]; fail = \"${outputs.a.why}\"",
        "outputs.a.why",
        &["may not have run"],
    ),
    // What is not there.
    (
        "a | after = []\nb | after = []; with = { x = \"${outputs.a.id}\" }",
        "outputs.a.id",
        &["no step comes before this one", "add the step to `after`"],
    ),
    (
        "a | after = []\nb | after = [\"a\"]; with = { x = \"${outputs.aa.id}\" }",
        "outputs.aa.id",
        &["no step `aa` comes before this one", "write one of `a`"],
    ),
    (
        "a | after = []\nb | after = [\"a\"]; when = \"errors.a.status == 409\"",
        "errors.a.status",
        &["step `a` has no `catch`", "always empty"],
    ),
    (
        "a | after = []; with = { x = \"${config.url}\" }",
        "config.url",
        &["`config.url` is not in the workflow's `config`", "add `url`"],
    ),
    ("a | after = []; with = { x = \"${inputs.id}\" }", "inputs.id", &["inputs"]),
    ("a | after = []; with = { x = \"${answer.id}\" }", "answer.id", &["`answer.id` cannot be read here"]),
    ("a | after = []; output = { x = \"${input.id}\" }", "input.id", &["`input.id` cannot be read here", "`answer`"]),
    (
        "a | after = []; undo = { agent = \"x\", with = { x = \"${ran.a}\" } }",
        "ran.a",
        &["`ran.a` cannot be read here", "`output`"],
    ),
    ("a | after = []; when = \"error.status == 409\"", "error.status", &["`error.status` cannot be read here"]),
    (
        "a | fail = \"no\"\nb | after = [\"a\"]; with = { x = \"${outputs.a}\" }",
        "outputs.a",
        &["a `fail` step has no output"],
    ),
    ("a-b | after = []\na_b | after = []; with = { x = 1 }", "a_b", &["the same name in expressions", "rename"]),
    // Kinds.
    ("a | after = []; catch = \"error.status == '409'\"", "error.status", &["error.status", "number"]),
    ("a | after = []; catch = \"error.kind == 409\"", "error.kind", &["string"]),
    ("a | after = []\nb | after = [\"a\"]; when = \"ran.a == 'yes'\"", "ran.a", &["true or false"]),
    ("a | after = []; when = \"input.n + 1\"", "input.n", &["a condition is true or false"]),
    ("a | after = []; when = \"input.?x\"", "input.?x", &["has(input.x)"]),
    // Spelling.
    ("a | after = []; when = \"${input.x}\"", "${input.x}", &["without `${`"]),
    ("a | after = []; with = { x = \"{{ input.x }}\" }", "{{ input.x }}", &["`${input.x}`"]),
    ("a | after = []; with = { x = \"{input.x}\" }", "{input.x}", &["`${input.x}`"]),
    ("a | after = []; when = \"input.x = 1\"", "input.x = 1", &["=="]),
    ("a | after = []; when = \"input.x and input.y\"", "input.x and", &["&&"]),
    ("a | after = []; when = \"length(input.x) > 1\"", "length", &["size"]),
    ("a | after = []; with = { x = \"${input.x\" }", "${input.x", &["}"]),
    (
        "a | after = []\nb | http = \"https://x.example/${input.id}\"",
        "name = \"b\"",
        &["step `b` does not say when it starts"],
    ),
    (
        "a | after = []; http = { url = \"https://x.example\", method = \"GET\", query = { k = \"{order_id}\" } }",
        "https://x.example",
        &["`k` of the query has a brace", "${order.id}"],
    ),
    ("a | after = []; value = 1; irreversible = true", "name = \"a\"", &["takes no `irreversible`"]),
    (
        "a | value = { amount = 1, lines = 2 }\nb | after = [\"a\"]; with = { x = \"${outputs.a.count}\" }",
        "outputs.a.count",
        &["no such field", "`amount`, `lines`"],
    ),
    (
        "a | after = []; output = { id = \"${answer.id}\" }; catch = \"true\"\nb | after = [\"a?\"]; with = { x = \"${first(outputs.a.ident, 0)}\" }",
        "outputs.a.ident",
        &["no such field", "`id`"],
    ),
    ("a | after = []; with = { order = \"{order_id}\" }", "{order_id}", &["only in a URL or a header", "${order.id}"]),
    // Keys that do not fit.
    ("a | after = []; value = 1; fail = \"x\"", "value = 1", &["both `value` and `fail`"]),
    ("a | after = []; value = 1; timeout = \"5s\"", "timeout = \"5s\"", &["takes no `timeout`", "remove `timeout`"]),
    ("a | after = []; value = 1; undo = { agent = \"x\" }", "undo", &["takes no `undo`"]),
    ("a | after = []; with = 7", "with = 7", &["neither a table nor a string"]),
    ("a | after = []; with = { at = 2026-01-01 }", "2026-01-01", &["a date without quotes"]),
    ("a | after = []; form = true", "name = \"a\"", &["`form` says how `with` is sent"]),
    ("a | after = []; with = { x = 1 }; form = true", "with", &["only a step with `http` sends a form"]),
    (
        "a | after = []; http = { url = \"https://x.example\", method = \"GET\" }; with = { x = 1 }",
        "with",
        &["a GET has no body", "`query`"],
    ),
    ("a | after = []; http = \"https://x.example/{input.id}\"", "{input.id}", &["`${input.id}`"]),
    (
        "a | after = []; http = { url = \"https://x.example\", headers = { authorization = \"${input.token}\" } }",
        "authorization",
        &["would put a secret into the file"],
    ),
    (
        "a | after = []; http = { url = \"https://x.example\", output = \"/id\" }; output = { id = \"${answer.id}\" }",
        "output = {",
        &["keep one of the two"],
    ),
];

// K2: file, line and remedy.
#[test]
fn every_mistake_is_refused_at_its_line_with_what_to_write() {
    let mut wrong = Vec::new();
    for (steps, line, parts) in MISTAKES {
        let text = file(steps);
        let Err(error) = parse("w.toml", &text, Known { agents: &["x", "http"], inputs: &[] }) else {
            wrong.push(format!("accepted: {steps}"));
            continue;
        };
        let named = text.lines().nth(error.line - 1).unwrap_or_default();
        if !named.contains(line) || !parts.iter().all(|part| error.message.contains(part)) {
            wrong.push(format!("{error}\n    in `{named}`; expected `{line}` and {parts:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), MISTAKES.len(), wrong.join("\n"));
}

// A table of its own takes the keys behind it.
#[test]
fn a_key_of_a_step_below_a_table_is_refused() {
    let text =
        "name = \"w\"\n[[step]]\nname = \"a\"\nagent = \"x\"\ntimeout = \"5s\"\n[step.with]\nx = 1\noutput = \"y\"\n";
    let known = Known { agents: &["x"], inputs: &[] };
    let error = parse("w.toml", text, known).unwrap_err().to_string();
    assert!(error.contains("`output` is a key of a step") && error.contains("`with = { ... }`"), "{error}");
    let error = parse("w.toml", &text.replace("output = \"y\"", "heartbeat = \"1s\""), known).unwrap_err().to_string();
    assert!(error.contains("`heartbeat` is a key of a step"), "{error}");
    parse("w.toml", &text.replace("output", "note"), known).unwrap();
    // An inline table ends where it ends.
    let step = "[[step]]\nname = \"a\"\nagent = \"x\"\ntimeout = \"5s\"\n";
    let config = |config: &str| parse("w.toml", &format!("name = \"w\"\n{config}\n{step}"), known);
    config("config = { name = 1, deadline = 2 }").unwrap();
    let error = config("[config]\nlimit = 1\ndeadline = \"4h\"").unwrap_err().to_string();
    assert!(error.contains("`deadline` is a key of the workflow") && error.contains("above `[config]`"), "{error}");
}

// What an order returns may come from any step, and a step may have been passed over.
#[test]
fn the_output_of_a_workflow_reads_what_ran() {
    let with = |output: &str, steps: &str| {
        let text = file(steps).replacen("\n", &format!("\noutput = {output}\n"), 1);
        parse("w.toml", &text, Known { agents: &["x"], inputs: &[] }).map_err(|e| e.to_string())
    };
    let steps = "a | after = []\nb | after = [\"a\"]; when = \"input.x\"\nc | after = [\"b!\"]";
    with("{ id = \"${outputs.a.id}\", of = \"${order.id}\" }", steps).unwrap();
    with("\"${first(outputs.c.id, outputs.a.id)}\"", steps).unwrap();
    let table = [
        (
            "\"${outputs.b.id}\"",
            "w.toml:2: `output` of the workflow: `outputs.b.id` is read where `b` may not have run",
        ),
        ("\"${outputs.c.id}\"", "`outputs.c.id` is read where `c` may not have run"),
        ("\"${outputs.d.id}\"", "no step `d` comes before this one"),
        ("\"${answer.id}\"", "`answer.id` cannot be read here"),
        ("\"${now}\"", "`now` cannot be read here"),
        ("\"${input.\"", "`output`: "),
    ];
    for (output, wanted) in table {
        let error = with(output, steps).unwrap_err();
        assert!(error.contains(wanted), "{output}: {error}");
    }
    // Such a file says when each step begins.
    assert!(with("{ x = 1 }", "a |\nb |").unwrap_err().contains("does not say when it starts"));
}

#[test]
fn a_list_needs_work_for_its_items() {
    let text = "name = \"w\"\n[[step]]\nname = \"a\"\neach = \"${input.l}\"\n";
    let error = parse("w.toml", text, Known { agents: &["x"], inputs: &[] }).unwrap_err().to_string();
    let wanted = "w.toml:4: a step with `each` starts an order or makes a call for each item; add `workflow = \"NAME\"`, or one of";
    assert!(error.starts_with(wanted), "{error}");
}

// What the rules must not refuse.
#[test]
fn what_has_run_may_be_read() {
    let good = [
        "a | after = []\nb | after = [\"a\"]; when = \"input.x\"\nc | after = [\"b?\"]; with = { x = \"${outputs.a.id}\" }",
        "a | after = []; when = \"input.x\"\nb | after = [\"a!\"]; with = { x = \"${outputs.a.id}\" }",
        "a | after = []; when = \"input.x\"\nb | after = [\"a!\"]\nc | after = [\"b\"]; with = { x = \"${outputs.a.id}\" }",
        "a | after = []; when = \"input.x\"\nb | after = [\"a?\"]; when = \"ran.a && outputs.a.id == 1\"; with = { x = \"${outputs.a.id}\" }",
        "a | after = []; when = \"input.x\"\nb | after = [\"a!\"]\nc | after = [\"a!\"]\nd | after = [\"b\", \"c\"]",
        "a | after = []; when = \"input.x\"\nb | after = [\"a?\"]; with = { x = \"${first(outputs.a.id, '')}\" }",
        "a | after = []; when = \"input.x\"\nb | after = []; when = \"!input.x\"\nc | after = [\"a?\", \"b?\"]",
        "a | after = []; when = \"now < 5\"\nb | after = []; when = \"now >= 5\"\nc | after = [\"a!\", \"b!\"]",
        "a | after = []; when = \"input.x > 5\"\nb | after = []; when = \"input.x <= 6\"\nc | after = [\"a!\", \"b!\"]",
        "a | after = []; catch = \"true\"\nb | after = [\"a?\"]; when = \"errors.a.kind == '' || ran.a\"\nc | after = [\"a!\", \"b!\"]",
        "a | after = []\nno | after = [\"a\"]; when = \"outputs.a.bad\"; fail = \"bad\"\nb | after = [\"no\"]; with = { x = \"${outputs.a.id}\" }",
    ];
    for steps in good {
        parse("w.toml", &file(steps), Known { agents: &["x"], inputs: &[] }).unwrap_or_else(|e| panic!("{steps}: {e}"));
    }
}

// docs/workflows.md: what it shows can be written.
#[test]
fn the_examples_of_the_documentation_are_accepted() {
    let docs = include_str!("../../docs/workflows.md");
    let known = Known { agents: &["x", "http", "approval", "payment", "mail", "loyalty", "renderer"], inputs: &[] };
    let prelude = "name = \"w\"\ndefault = { timeout = \"10s\" }\nconfig = { limit_cents = 1000 }\n\
                   [[step]]\nname = \"reserve\"\nagent = \"x\"\n";
    let examples: Vec<&str> = docs
        .split("```toml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .filter(|text| text.contains("[[step]]"))
        .collect();
    assert!(examples.len() >= 4, "{} examples", examples.len());
    for text in examples {
        let whole = if text.starts_with("name =") { text.to_owned() } else { format!("{prelude}{text}") };
        parse("w.toml", &whole, known).unwrap_or_else(|e| panic!("{e}\n{text}"));
    }
}

// Each expression may look at as many list items as the bounds allow, so their number is bounded too.
#[test]
fn a_mapping_has_a_bounded_number_of_expressions() {
    let known = Known { agents: &["x"], inputs: &[] };
    let text =
        |count: usize| file(&format!("a | with = {{ list = [\"{}\"] }}", vec!["${input.a}"; count].join("\", \"")));
    parse("w.toml", &text(200), known).unwrap();
    let error = parse("w.toml", &text(201), known).unwrap_err().to_string();
    assert!(
        error.contains("`with` has 201 expressions, but the limit is 200; compute a part in a `value` step"),
        "{error}"
    );
    // Several in one text count as several.
    let joined = file(&format!("a | with = {{ text = \"{}\" }}", "${input.a}".repeat(201)));
    assert!(parse("w.toml", &joined, known).unwrap_err().to_string().contains("201 expressions"));
}
