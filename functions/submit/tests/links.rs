//! Goal: whoever has the link of a step may answer for it in a browser, once; opening the link changes nothing, and each
//! refusal is a page that says what to do. Method: requests as API Gateway passes them on, over the real store. // L2

use crate::world::{World, answer};
use serde_json::{Value, json};
use shared::decision::{Act, Event, What};
use shared::order::Id;
use shared::task::ProcessState;
use shared::time::SignedDuration;
use shared::workflow::accept;
use shared::workflow::link::address;
use submit::links::{MAX_FORM, MAX_REASON};

const TEXT: &str = r#"
name = "one"
[[step]]
name = "mail"
after = []
agent = "x"
timeout = "10s"
with = { to = "ann", at = "${links.approval}" }
[[step]]
name = "approval"
after = ["mail"]
event = "approved"
timeout = "24h"
link = { ask = "Approve ${input.cents} cents for ${input.who}?", answers = ["yes", "no"] }
failed = "event.answer == 'no'"
output = { why = "${first(event.reason, 'none')}" }
[[step]]
name = "parcel"
after = ["approval"]
event = "arrived"
early = "refuse"
timeout = "30d"
link = {}
remind = { every = "1d", agent = "x", with = { at = "${links.parcel}" } }
"#;

/// An answer: status, headers as text, and the page.
struct Page {
    status: i64,
    headers: String,
    text: String,
}

/// A request of a browser. API Gateway passes the bodies of forms on as base64.
async fn request(world: &World, method: &str, path: &str, media: &str, body: &str) -> Page {
    let bytes = serde_json::to_value(aws_lambda_events::encodings::Body::Binary(body.as_bytes().to_vec())).unwrap();
    let event = json!({"headers": {"content-type": media}, "body": bytes, "isBase64Encoded": true});
    let (status, headers, text) = answer(world, (method, path), event).await;
    Page { status, headers: format!("{headers:?}"), text }
}

async fn open(world: &World, path: &str) -> (i64, String) {
    let page = request(world, "GET", path, "", "").await;
    (page.status, page.text)
}

/// Sends the form, and returns status and title.
async fn send(world: &World, path: &str, form: &str) -> (i64, String) {
    let page = request(world, "POST", path, "application/x-www-form-urlencoded", form).await;
    let title = page.text.split_once("<h1>").and_then(|(_, rest)| rest.split_once("</h1>")).map(|(title, _)| title);
    (page.status, title.unwrap_or_default().to_owned())
}

async fn mailed(world: &World, id: &Id) {
    world.wake(id).await;
    world.done(id, "mail", Value::Null).await;
}

/// An order whose first steps have begun, and a link of it.
async fn asked(world: &World, step: &str) -> (Id, String) {
    let id = world.begin(json!({})).await;
    let link = address("", &id, step, &world.task(&id).await.secret.unwrap());
    (id, link)
}

async fn begun(world: &World) -> (Id, String, String) {
    let id = world.accept(json!({"cents": 5, "who": "<b>eve & co</b>"})).await;
    let secret = world.task(&id).await.secret.unwrap();
    let of = |step: &str| address("", &id, step, &secret);
    (id.clone(), of("approval"), of("parcel"))
}

const CLOSED: &str = "This question is closed";

#[tokio::test]
async fn a_link_shows_the_question_and_only_its_form_answers() {
    let world = World::new(TEXT).await;
    let (id, approval, parcel) = begun(&world).await;
    mailed(&world, &id).await;
    let version = world.task(&id).await.version;

    let page = request(&world, "GET", &approval, "", "").await;
    assert_eq!(page.status, 200);
    for part in [
        "Approve 5 cents for &lt;b&gt;eve &amp; co&lt;/b&gt;?",
        "<button name=\"answer\" value=\"yes\">yes</button><button name=\"answer\" value=\"no\">no</button>",
        "<form method=\"post\">",
        " UTC.",
    ] {
        assert!(page.text.contains(part), "{part}: {}", page.text);
    }
    for header in ["default-src 'none'", "form-action 'self'", "no-referrer", "noindex", "no-store", "text/html"] {
        assert!(page.headers.contains(header), "{header}: {}", page.headers);
    }
    // A forged link: another token, step or order, that of a callback, or that of another secret.
    let secret = world.task(&id).await.secret.unwrap();
    let token = accept::address("", &id, "approval", 0, &secret).rsplit('/').next().unwrap().to_owned();
    for path in [
        address("", &id, "approval", "another"),
        approval.replace("/approval/", "/parcel/"),
        approval.replace("/approval/", "/mail/"),
        approval[..approval.len() - 1].to_owned(),
        approval.replace(&id.0, "ord_00000000000000000000000000"),
        approval.replace(&id.0, "x"),
        format!("/links/{id}/approval/{token}"),
    ] {
        let (status, text) = open(&world, &path).await;
        assert_eq!((status, text.contains("This link leads nowhere")), (404, true), "{path}: {text}");
        assert_eq!(send(&world, &path, "answer=yes").await, (404, "This link leads nowhere".into()), "{path}");
    }
    let (status, text) = open(&world, &parcel).await;
    assert_eq!((status, text.contains("This question is not open yet")), (409, true), "{text}");
    assert_eq!(send(&world, &parcel, "").await, (409, "This question is not open yet".into()));

    let unread = |status: i64| (status, "This form cannot be read".to_owned());
    for form in ["", "answer=maybe", "answer=", "answer=yes&answer=no", "answer=%zz", "answer=yes&by=ann"] {
        assert_eq!(send(&world, &approval, form).await, unread(400), "{form}");
    }
    let long = format!("answer=no&reason={}", "%C3%A9".repeat(MAX_REASON + 1));
    assert_eq!(send(&world, &approval, &long).await, unread(400));
    assert_eq!(send(&world, &approval, &"x".repeat(MAX_FORM + 1)).await, unread(413));
    assert_eq!(request(&world, "POST", &approval, "application/json", "{}").await.status, 415);
    assert_eq!(request(&world, "PUT", &approval, "", "").await.status, 405);
    assert_eq!(world.task(&id).await.version, version, "nothing was written");

    let yes = format!("answer=yes&reason={}", "%C3%A9".repeat(MAX_REASON));
    for _ in 0..2 {
        assert_eq!(send(&world, &approval, &yes).await, (200, "Sent: yes".into()), "the same again is the same");
    }
    for form in ["answer=no", "answer=yes"] {
        assert_eq!(send(&world, &approval, form).await, (409, CLOSED.into()), "{form}");
    }
    let (status, text) = open(&world, &approval).await;
    assert_eq!((status, text.contains(CLOSED), text.contains("<form")), (409, true, false), "{text}");
    let task = world.task(&id).await;
    assert_eq!(task.steps[1].output, Some(json!({"why": "é".repeat(MAX_REASON)})));
    assert!(task.events[0].key.starts_with("link:") && task.events[0].by.is_none());

    // One button, and after the end.
    assert!(open(&world, &parcel).await.1.contains("<button>Send</button>"));
    assert_eq!(send(&world, &parcel, "answer=yes").await, unread(400));
    assert_eq!(send(&world, &parcel, "reason=").await, (200, "Sent.".into()));
    assert_eq!(world.task(&id).await.process_state(), ProcessState::Processed);
    assert_eq!(send(&world, &parcel, "").await, (200, "Sent.".into()), "its answer is known after the end");
    assert_eq!(send(&world, &parcel, "reason=late").await, (409, CLOSED.into()));
}

// Whoever answers before the step waits is not told to come back, and a no is a no.
#[tokio::test]
async fn an_early_answer_is_kept() {
    let world = World::new(TEXT).await;
    let (id, approval, _) = begun(&world).await;
    assert_eq!(open(&world, &approval).await.0, 200);
    assert_eq!(send(&world, &approval, "answer=no&reason=too+much").await, (200, "Sent: no".into()));
    assert_eq!(open(&world, &approval).await.0, 409);
    assert_eq!(send(&world, &approval, "answer=yes").await.0, 409, "one answer");
    mailed(&world, &id).await;
    assert_eq!(world.task(&id).await.process_state(), ProcessState::Undoing);
}

#[tokio::test]
async fn a_link_ends_with_the_time_of_its_step() {
    let world = World::new(TEXT).await;
    let (id, approval, _) = begun(&world).await;
    mailed(&world, &id).await;
    world.later(SignedDuration::from_mins(24 * 60 + 1));
    assert_eq!(open(&world, &approval).await.0, 200, "until somebody saved that its time is over");
    world.submit.engine.recover(std::slice::from_ref(&id), 1).await.remove(0).unwrap();
    assert_eq!(open(&world, &approval).await.0, 409);
    assert_eq!(send(&world, &approval, "answer=yes").await, (409, CLOSED.into()));
}

// Keys are of the whole order: the same answer to another question is another event.
#[tokio::test]
async fn two_questions_may_get_the_same_answer() {
    let world = World::new(
        r#"
name = "one"
[[step]]
name = "manager"
after = []
event = "manager_ok"
timeout = "1d"
link = { ask = "Manager?", answers = ["yes", "no"] }
remind = { every = "1h", agent = "x", with = { at = "${links.manager}" } }
[[step]]
name = "finance"
after = []
event = "finance_ok"
timeout = "1d"
link = { ask = "Finance?", answers = ["yes", "no"] }
remind = { every = "1h", agent = "x", with = { at = "${links.finance}" } }
"#,
    )
    .await;
    let id = world.begin(json!({})).await;
    let secret = world.task(&id).await.secret.unwrap();
    for step in ["manager", "finance", "manager"] {
        let sent = send(&world, &address("", &id, step, &secret), "answer=yes").await;
        assert_eq!(sent, (200, "Sent: yes".into()), "{step}");
    }
    assert_eq!(world.task(&id).await.process_state(), ProcessState::Processed);
}

// A resubmitted question is asked again, and the same answer counts again.
#[tokio::test]
async fn a_question_that_is_asked_again_gets_another_answer() {
    let world = World::new(
        r#"
name = "one"
on_failure = "error"
[[step]]
name = "approval"
event = "approved"
timeout = "1d"
link = { ask = "Approve?", answers = ["yes", "no"] }
remind = { every = "1h", agent = "x", with = { at = "${links.approval}" } }
failed = "event.answer == 'no'"
"#,
    )
    .await;
    let (id, link) = asked(&world, "approval").await;
    for _ in 0..2 {
        for _ in 0..2 {
            assert_eq!(send(&world, &link, "answer=no").await, (200, "Sent: no".into()), "a double click counts once");
        }
        assert_eq!(world.task(&id).await.process_state(), ProcessState::Error);
        let what = What::Resubmit { step: None, input: None };
        let again = Act { what, by: "ann".into(), reason: "asks again".into(), seen: None };
        world.handle(&id, Event::Act(again)).await;
        world.wake(&id).await;
    }
    assert_eq!(world.task(&id).await.events.len(), 2);
}

// An answer that its step did not take when it began to wait was no answer: the person may give it again.
#[tokio::test]
async fn an_answer_that_was_not_taken_can_be_given_again_and_an_old_page_gives_none() {
    let world = World::new(
        r#"
name = "one"
[[step]]
name = "limits"
after = []
agent = "x"
timeout = "10s"
with = { at = "${links.approval}" }
[[step]]
name = "approval"
after = ["limits"]
event = "approved"
timeout = "1d"
link = { ask = "Approve?", answers = ["yes", "no"] }
take = "outputs.limits.open || first(event.reason, '') != ''"
"#,
    )
    .await;
    let (id, link) = asked(&world, "approval").await;
    let (_, first) = open(&world, &link).await;
    assert!(first.contains("name=\"round\" value=\"0\""), "{first}");
    for _ in 0..2 {
        assert_eq!(send(&world, &link, "answer=yes&round=0").await, (200, "Sent: yes".into()));
    }
    // One is kept; another answer is closed, as the page says by now.
    assert_eq!(send(&world, &link, "answer=no&round=0").await, (409, CLOSED.into()));
    assert!(open(&world, &link).await.1.contains(CLOSED));
    let output = json!({"open": false});
    world.done(&id, "limits", output).await;
    assert!(world.task(&id).await.events[0].data.is_none(), "it was not taken");

    // The old page is closed, however often it is sent. The new one asks again.
    assert_eq!(send(&world, &link, "answer=yes&round=0").await, (409, CLOSED.into()));
    assert!(open(&world, &link).await.1.contains("name=\"round\" value=\"1\""));
    assert_eq!(send(&world, &link, "answer=yes&round=1").await, (422, "This answer was not accepted".into()));
    assert_eq!(send(&world, &link, "answer=yes&round=x").await.0, 400);
    for _ in 0..2 {
        assert_eq!(send(&world, &link, "answer=yes&reason=fine&round=1").await, (200, "Sent: yes".into()));
    }
    assert_eq!(world.task(&id).await.process_state(), ProcessState::Processed);
}
