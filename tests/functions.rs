//! Goal: on a laptop a `lambda` step calls the URL or the program that stands for its function, bounded in time and size,
//! and a workflow that nothing stands for is refused with what to add. Method: the whole system in one process.

use crate::support::{Whole, listen, until, workflow};
use axum::Json;
use axum::http::HeaderMap;
use axum::routing::post;
use serde_json::{Value, json};
use shared::task::{ProcessState, Task};
use std::path::Path;
use stepwarden_embedded::Durability;
use stepwarden_local::functions::{Target, target};
use stepwarden_local::system::{Options, System};

/// Steps that try again soon, with calls that are not repeated within an attempt.
const HEAD: &str =
    r#"default = { timeout = "20s", retry = { max = 2, backoff = ["20ms"] }, calls = { attempts = 1 } }"#;

/// A system with stand-ins for Lambda functions, as `--lambda` takes them.
async fn start(workflows: &[String], functions: &[&str]) -> Whole {
    let functions = functions.iter().map(|text| target(text).unwrap()).collect();
    Whole::start_with(workflows, |options| options.functions = functions).await
}

async fn ends(whole: &Whole, workflow: &str, input: Value, state: ProcessState) -> Task {
    let id = whole.submit(workflow, &json!({"workflow": workflow, "input": input})).await;
    whole.ends(&id, state).await
}

// K5: a program reads the event and writes the result; a URL gets a POST.
#[tokio::test(flavor = "multi_thread")]
async fn programs_and_urls_stand_for_functions() {
    let price = async |headers: HeaderMap, Json(event): Json<Value>| {
        assert!(headers["idempotency-key"].to_str().unwrap().ends_with(":price:do"), "{headers:?}");
        Json(json!({"cents": event["sku"].as_str().unwrap().len() * 100}))
    };
    let (listener, url) = listen().await;
    let url = format!("price={url}/price");
    let router = axum::Router::new().route("/price", post(price));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let text = format!(
        r#"
name = "sale"
{HEAD}
[[step]]
name = "stock"
after = []
lambda = "arn:aws:lambda:eu-west-1:123456789012:function:stock:live"
output = {{ order = "${{answer.order_id}}", key = "${{answer.idempotency_key}}", sku = "${{answer.input.sku}}" }}
[[step]]
name = "price"
after = ["stock"]
lambda = "price"
with = {{ sku = "${{outputs.stock.sku}}" }}
[[step]]
name = "pick"
after = ["price"]
lambda = {{ function = "pick", permanent = ["OutOfStock"] }}
catch = "error.answer.errorType == 'OutOfStock'"
[[step]]
name = "pack"
after = ["price"]
lambda = {{ function = "pack", done = ["AlreadyPacked"] }}
"#
    );
    // The first gives back what it gets; the last two fail as a function does.
    let pick = r#"pick=cat >/dev/null; echo '{"errorType": "OutOfStock", "errorMessage": "none"}'; exit 1"#;
    let pack = r#"pack=cat >/dev/null; echo '{"errorType": "AlreadyPacked", "errorMessage": "today"}'; exit 1"#;
    let whole = start(&[text], &["stock=cat", &url, pick, pack]).await;
    let task = ends(&whole, "sale", json!({"sku": "a-b"}), ProcessState::Processed).await;
    let stock = task.steps[0].output.as_ref().unwrap();
    assert_eq!(stock["sku"], "a-b");
    assert_eq!(stock["key"], format!("{}:stock:do", stock["order"].as_str().unwrap()));
    assert_eq!(task.steps[1].output, Some(json!({"cents": 300})));
    assert_eq!(task.steps[2].attempt, 1, "a permanent error is not tried again");
    assert_eq!(task.steps[3].attempt, 1, "an error that means done is not tried again");
}

// K5: a program that fails, writes too much or hangs is a failure like any other, and a hung one is ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_is_bounded() {
    let step = |name: &str, timeout: &str| {
        format!(
            "[[step]]\nname = \"{name}\"\nafter = []\nlambda = \"{name}\"\nwith = {{}}\ntimeout = \"{timeout}\"\n\
             catch = \"true\"\nretry = {{ max = 1 }}\n"
        )
    };
    let all = [step("fails", "20s"), step("hangs", "600ms"), step("dies", "20s")].concat();
    let text = format!("name = \"bad\"\n{HEAD}\n{all}");
    let long = format!(
        "name = \"long\"\n{HEAD}\n[[step]]\nname = \"long\"\nlambda = \"long\"\nwith = {{}}\ntimeout = \"2s\"\n"
    );
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let hangs = format!("hangs=echo $$ > {}; sleep 60 | cat", pid.display());
    let functions = ["fails=echo first >&2; echo no room >&2; exit 3", &hangs, "dies=kill -9 $$", "long=cat /dev/zero"];
    let whole = start(&[text, long], &functions).await;
    let task = ends(&whole, "bad", json!({}), ProcessState::Processed).await;
    let error = |step: usize| task.steps[step].error.clone().unwrap_or_default();
    assert_eq!(error(0), "the function failed: Exit3: no room (1 call)");
    assert_eq!(error(2), "the function failed: Signal9 (1 call)");
    let pid = std::fs::read_to_string(&pid).unwrap();
    let process = Path::new("/proc").join(pid.trim());
    until("the program has ended", async || (!process.exists()).then_some(())).await;
    let task = ends(&whole, "long", json!({}), ProcessState::Undone).await;
    let error = task.steps[0].error.clone().unwrap_or_default();
    assert!(error.contains("longer than 1048576 bytes"), "{error}");
}

// K5: the system does not start with a step that it could never do, and says what to add.
#[tokio::test]
async fn what_nothing_stands_for_is_refused_at_start() {
    for (step, words) in [
        ("lambda = \"stock\"", "Lambda function `stock` is not on this machine; add --lambda stock=URL"),
        (
            "aws = \"sns:Publish\"\nwith = {}",
            "`sns:Publish` needs AWS, and this machine has none; set AWS_ENDPOINT_URL",
        ),
    ] {
        let text = format!("name = \"w\"\n{HEAD}\n[[step]]\nname = \"a\"\n{step}\n");
        let workflows = [("w".to_owned(), workflow(&text))].into();
        let options = Options::embedded(None, Durability::Process, workflows);
        let error = System::start(options).await.err().expect("it does not start").to_string();
        assert!(error.contains("step `a` of workflow `w`") && error.contains(words), "{error}");
    }
}

#[test]
fn a_target_is_a_url_or_a_command() {
    let good = |text: &str| target(text).unwrap();
    assert_eq!(good("a=http://localhost:1/x=y"), ("a".into(), Target::Url("http://localhost:1/x=y".into())));
    assert_eq!(good("a=python3 a.py"), ("a".into(), Target::Command("python3 a.py".into())));
    for (wrong, words) in [
        ("a", "NAME=URL or NAME=COMMAND"),
        ("a= ", "NAME=URL or NAME=COMMAND"),
        ("a b=cat", "`a b` is not the name of a function"),
        ("a:live=cat", "without account or alias"),
        ("a=http://", "`http://` is not a URL"),
    ] {
        let error = target(wrong).unwrap_err();
        assert!(error.contains(words), "{wrong}: {error}");
    }
}
