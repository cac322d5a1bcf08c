//! The `lambda` and the `aws` of a workflow file: what is accepted, what it becomes, what a request carries, and that every
//! refusal names its line and says what to write instead.

use crate::language::file;
use crate::support::*;
use serde_json::json;
use shared::message::Effect;
use shared::task::Task;
use shared::workflow::Workflow;
use shared::workflow::file::{Known, parse};

const KNOWN: Known<'_> = Known { agents: &["x", "http"], inputs: &[] };

const FULL: &str = r#"
stock | after = []; lambda = { function = "stock:live", permanent = ["OutOfStock"] }; undo = { lambda = "release" }
save | after = ["stock"]; aws = { action = "dynamodb:PutItem", transient = ["B", "A"] }; with = { TableName = "orders", Item = { id = { S = "${order.id}" } } }; output = { status = "${status}" }; undo = { aws = "dynamodb:DeleteItem", with = { TableName = "orders" } }
tell | after = ["save"]; aws = "sns:Publish"; with = { Message = "${outputs.save.status}" }
keep | after = ["tell"]; aws = "s3:PutObject"; with = { Bucket = "b", Key = "${order.id}", Body = "${outputs.stock}" }
"#;

fn read(steps: &str) -> Result<Workflow, String> {
    parse("w.toml", &file(steps), KNOWN).map_err(|e| e.to_string())
}

// K5: what a file says is what a request carries.
#[test]
fn functions_and_actions_are_read() {
    let workflow = read(FULL).unwrap();
    assert_eq!(workflow.agents(), ["http"]);
    let calls: Vec<_> =
        workflow.calls_of_aws().map(|(step, call)| format!("{step} {} {}", call.action, call.envelope)).collect();
    let wanted = [
        "stock lambda:Invoke true",
        "stock lambda:Invoke true",
        "save dynamodb:PutItem false",
        "save dynamodb:DeleteItem false",
        "tell sns:Publish false",
        "keep s3:PutObject false",
    ];
    assert_eq!(calls, wanted);
    let save = workflow.steps[1].aws.as_ref().unwrap();
    assert_eq!(save.transient, ["A", "B"], "the order of a list does not matter");
    let json = serde_json::to_string(&workflow).unwrap();
    assert_eq!(Workflow::recorded(&json, &workflow.hash()), Ok(workflow), "a task finds its definition again");
    let named = read("a | lambda = \"${config.stock}\"");
    assert!(named.unwrap_err().contains("`config.stock`"), "a name that is not in `config`");
    let text =
        file("a | lambda = \"${config.stock}:live\"").replace("[[step]]", "config = { stock = \"s-1\" }\n[[step]]");
    let function = parse("w.toml", &text, KNOWN).unwrap().steps.remove(0).aws.unwrap().function;
    assert_eq!(function.as_deref(), Some("s-1:live"));
}

// B3: every setting is part of the definition that a task is pinned to.
#[test]
fn every_setting_changes_the_hash() {
    let mut hashes = std::collections::BTreeSet::from([read(FULL).unwrap().hash()]);
    for (old, new) in [
        ("stock:live", "stock"),
        ("OutOfStock", "Gone"),
        ("\"release\"", "\"free\""),
        ("PutItem\"", "UpdateItem\""),
        ("[\"B\", \"A\"]", "[\"B\"]"),
        ("${status}", "${status + 1}"),
        ("sns:Publish", "sqs:SendMessage"),
    ] {
        assert!(hashes.insert(read(&FULL.replacen(old, new, 1)).unwrap().hash()), "{old} -> {new}");
    }
}

#[test]
fn every_refusal_names_its_line_and_says_what_to_write_instead() {
    let cases: &[(&str, &[&str])] = &[
        ("a | lambda = \"a b\"", &["`a b` does not name a Lambda function", "its ARN"]),
        ("a | lambda = \"${input.f}\"", &["`input.f` cannot be read here", "write it out, or read `config`"]),
        ("a | lambda = \"arn:aws:s3:::b\"", &["does not name a Lambda function"]),
        ("a | lambda = { permanent = [\"X\"] }", &["the name is missing", "function = "]),
        ("a | lambda = { action = \"stock\" }", &["`lambda` takes no `action`", "function = "]),
        ("a | aws = { function = \"sqs:SendMessage\" }", &["`aws` takes no `function`", "action = "]),
        ("a | lambda = { function = \"f\", action = \"g\" }", &["both `function` and `action`"]),
        ("a | lambda = { function = \"f\", retries = 3 }", &["`retries` is not a key here", "`permanent`"]),
        ("a | lambda = { function = \"f\", permanent = [\"a b\"] }", &["`a b` does not name an error"]),
        ("a | lambda = { function = \"f\", permanent = [\"x#Y\"] }", &["`x#Y` does not name an error", "alone"]),
        (
            "a | lambda = { function = \"f\", permanent = [\"X\"], transient = [\"X\"] }",
            &["`X` is named twice", "transient or permanent"],
        ),
        ("a | lambda = \"f\"; form = true; with = { a = 1 }", &["only a step with `http` sends a form"]),
        ("a | lambda = \"f\"; agent = \"x\"", &["both `agent` and `lambda`", "keep one of the two"]),
        ("a | lambda = \"f\"; http = \"https://x.example\"", &["both `http` and `lambda`"]),
        ("a | lambda = \"f\"; aws = \"sns:Publish\"", &["both `lambda` and `aws`"]),
        ("a | lambda = 5", &["a name, or a table"]),
        ("a | aws = \"PutItem\"; with = {}", &["`PutItem` is not an action of AWS", "dynamodb:PutItem"]),
        ("a | aws = \"lambda:Invoke\"; with = {}", &["write `lambda = \"FUNCTION\"`"]),
        ("a | aws = \"dynamo:PutItem\"; with = {}", &["unknown service `dynamo`", "`dynamodb`", "`sqs`"]),
        ("a | aws = \"dynamodb:putItem\"; with = {}", &["unknown action `putItem` of `dynamodb`", "`PutItem`"]),
        ("a | aws = \"secretsmanager:GetSecretValue\"; with = {}", &["unknown service `secretsmanager`"]),
        ("a | aws = \"sns:Publish\"", &["`sns:Publish` gets its parameters from `with`", "add `with"]),
        ("a | aws = \"sns:Publish\"; with = \"text\"", &["`sns:Publish` takes a table"]),
        ("a | aws = \"s3:PutObject\"; with = { Bucket = \"b\", Body = \"x\" }", &["needs `Key` in `with`"]),
        (
            "a | aws = \"s3:PutObject\"; with = { Bucket = \"b\", Key = \"k\", ACL = \"public-read\" }",
            &["takes no `ACL`", "`ContentType`"],
        ),
        ("a | aws = \"s3:GetObject\"; with = { Bucket = \"b\", Key = \"k\", Body = \"x\" }", &["takes no `Body`"]),
        ("a | aws = \"scheduler:GetSchedule\"; with = {}", &["needs `Name` in `with`"]),
        ("a | aws = \"sns:Publish\"; with = { Message = \"{secret:t}\" }", &["`{secret:`"]),
        ("a | lambda = \"f\"; undo = {}", &["the undo of step `a` has no agent", "lambda = \"FUNCTION\""]),
        ("a | lambda = \"f\"; output = { x = \"${input.x}\" }", &["`input.x` cannot be read here", "`answer`"]),
        ("a | value = 1; lambda = \"f\"", &["takes no `lambda`"]),
        ("a | fail = \"no\"; aws = \"sns:Publish\"", &["takes no `aws`"]),
        ("a | after = []\nb | lambda = \"f\"", &["step `b` does not say when it starts"]),
    ];
    for (steps, words) in cases {
        let error = read(steps).unwrap_err();
        assert!(error.starts_with("w.toml:") && !error.contains('\n'), "{error}");
        for word in *words {
            assert!(error.contains(word), "{steps}: `{word}` is missing: {error}");
        }
    }
    let nobody = parse("w.toml", &file("a | lambda = \"f\""), Known { agents: &["x"], inputs: &[] }).unwrap_err();
    assert!(nobody.to_string().contains("nothing here calls AWS"), "{nobody}");
}

// K5, N2: an earlier agent finds nothing to call in such a request, and so gives it back.
#[test]
fn a_request_carries_its_signed_call_and_no_other() {
    let mut bench = Bench::new(ONE);
    bench.workflow = read(FULL).unwrap();
    bench.task = Task::new(submission("ord_1", true), &bench.workflow, at(0));
    bench.wake(0);
    let request = bench.request("stock").clone();
    assert_eq!((request.http, request.call), (None, None));
    let call = request.aws.unwrap();
    assert_eq!((call.function.as_deref(), call.envelope), (Some("stock:live"), true));
    bench.done("stock");
    let Some(Effect::Request(request)) = bench.effects.first() else { panic!("{:?}", bench.effects) };
    assert_eq!(request.input, json!({"TableName": "orders", "Item": {"id": {"S": "ord_1"}}}));
    assert_eq!(request.aws, bench.workflow.steps[1].aws);
    bench.failed("save").at(60_000);
    bench.woken();
    let undo = bench.effects.iter().find_map(|effect| match effect {
        Effect::Request(request) => request.aws.clone(),
        _ => None,
    });
    assert_eq!(undo.map(|call| call.action).as_deref(), Some("dynamodb:DeleteItem"));
}
