//! The operator routes over the embedded endpoints: JSON in as API Gateway sends it, JSON out. // B9
//!
//! Method: tables, queues and bus in memory, through the SDK; orders are driven by the engine's own events, so every state
//! is one that the system really reaches. The clock is a number.

use crate::common::{START, WORKFLOW, World, ids, names, parsed, request, sorted, token};
use crate::jobs;
use serde_json::{Value, json};
use shared::message::Outcome;
use shared::order::Id;
use shared::ports::StateStore;
use shared::task::{OWED_GRACE, ProcessState};
use shared::time::{SignedDuration, Timestamp};
use stepwarden_aws::config::queue;
use stepwarden_embedded::Fault;

// B9, D8: an order in Error is resubmitted once; the Wake is sent, and the history has name and reason.
#[tokio::test]
async fn an_operator_resubmits_an_order_and_nobody_can_do_it_twice() {
    let world = World::new().await;
    let id = world.in_error("k1", "acme").await;
    world.drain(queue::SCHEDULER).await;
    let version = world.task(&id).await.version;
    let more = json!({"if_version": version, "step": "a", "input": {"card": "4242"}});
    let (status, body) = world.act(&id, "resubmit", more.clone()).await;
    assert_eq!((status, &body["outcome"], &body["version"]), (200, &json!("applied"), &json!(version + 1)));
    assert_eq!(world.drain(queue::SCHEDULER).await.len(), 1, "one Wake");
    let (status, body) = world.act(&id, "resubmit", more).await;
    assert_eq!((status, &body["outcome"]), (200, &json!("repeated")), "{body}");
    let (status, body) = world.act(&id, "resubmit", json!({})).await;
    assert_eq!((status, &body["code"]), (409, &json!("not_allowed")), "{body}");
    world.drain(&queue::agent("x")).await;
    world.wake(&id).await;
    let requests = world.drain(&queue::agent("x")).await;
    assert_eq!(
        (requests.len(), &requests[0]["input"], &requests[0]["attempt"]),
        (1, &json!({"card": "4242"}), &json!(2))
    );
    let history = shared::view::history(&world.task(&id).await, &world.workflow);
    let entry = history.iter().find(|e| e.event == "resubmitted").unwrap();
    assert!(entry.detail.as_ref().unwrap().starts_with("ann: ticket 7"), "{entry:?}");
}

// D8, B9: of many operators who act on one version at once, exactly one succeeds.
#[tokio::test]
async fn of_many_operators_who_saw_the_same_version_one_acts() {
    let world = World::new().await;
    let id = world.in_error("k1", "acme").await;
    let version = world.task(&id).await.version;
    let names = ["resubmit", "skip", "mark-done", "cancel", "undo", "resubmit", "skip", "cancel"];
    let acts = names.iter().map(|name| world.act(&id, name, json!({"if_version": version})));
    let answers = futures::future::join_all(acts).await;
    let count = |is: &dyn Fn(&Value) -> bool| answers.iter().filter(|(_, body)| is(body)).count();
    assert_eq!(count(&|body| body["outcome"] == "applied"), 1, "{answers:?}");
    // An operator who asked for the same act as the one that succeeded may get `repeated`.
    assert_eq!(count(&|body| body["code"] == "order_moved" || body["outcome"] == "repeated"), names.len() - 1);
}

// B9: every action by its route, in a state that allows it.
#[tokio::test]
async fn each_act_has_a_route_and_changes_the_order() {
    let world = World::new().await;
    let cases = [
        ("skip", json!({"step": "a"}), "Pending", "skipped"),
        ("mark-done", json!({"output": {"ref": 1}}), "Pending", "marked_done"),
        ("cancel", json!({}), "Undoing", "cancelled"),
        ("undo", json!({}), "Undoing", "undo_asked"),
    ];
    for (name, more, state, event) in cases {
        let id = world.in_error(name, "acme").await;
        let (status, body) = world.act(&id, name, more).await;
        assert_eq!(status, 200, "{name}: {body}");
        let task = world.task(&id).await;
        assert_eq!(task.process_state().name(), state, "{name}");
        assert!(shared::view::history(&task, &world.workflow).iter().any(|e| e.event == event), "{name}");
    }
    let id = world.submit("waits", "acme").await;
    world.wake(&id).await;
    world.reply(&id, "a", Outcome::Unavailable { error: "503".into(), retry_after_ms: None }).await;
    for name in ["retry-now", "pause", "resume"] {
        let (status, body) = world.act(&id, name, json!({})).await;
        assert_eq!((status, &body["outcome"]), (200, &json!("applied")), "{name}: {body}");
    }
}

// B9: a wrong request is refused with code and field, and changes nothing.
#[tokio::test]
async fn a_wrong_request_is_refused_with_its_field_and_changes_nothing() {
    let world = World::new().await;
    let id = world.in_error("k1", "acme").await;
    let before = world.task(&id).await;
    let path = format!("/orders/{id}/actions");
    let cases = [
        ("/resubmit", json!({"by": "ann"}), 400, "invalid_field", "reason"),
        ("/resubmit", json!({"reason": "r"}), 400, "invalid_field", "by"),
        ("/resubmit", json!({"by": "ann", "reason": "r", "output": 1}), 400, "invalid_field", "output"),
        ("/cancel", json!({"by": "ann", "reason": "r", "step": "a"}), 400, "invalid_field", "step"),
        ("/skip", json!({"by": "ann", "reason": "r", "input": {}}), 400, "invalid_field", "input"),
        ("/skip", json!({"by": "ann", "reason": "r", "steps": "a"}), 400, "invalid_field", "steps"),
        ("/skip", json!({"by": "ann", "reason": "r", "step": "zz"}), 400, "invalid_field", "step"),
        ("/skip", json!({"by": "ann", "reason": "x".repeat(500)}), 400, "invalid_field", "reason"),
        ("/explode", json!({"by": "ann", "reason": "r"}), 404, "no_such_route", ""),
    ];
    for (act, body, status, code, field) in cases {
        let (got, answer) = world.post(&format!("{path}{act}"), body).await;
        assert_eq!((got, &answer["code"]), (status, &json!(code)), "{act}: {answer}");
        assert_eq!(answer["field"].as_str().unwrap_or_default(), field, "{act}: {answer}");
    }
    let (status, answer) = world.act(&Id("ord_none".into()), "cancel", json!({})).await;
    assert_eq!((status, &answer["code"]), (404, &json!("no_such_order")));
    for (method, path, allow) in [("GET", format!("{path}/cancel"), "POST"), ("DELETE", "/agents".into(), "GET")] {
        let answer = world.answer(request(method, &path, Value::Null)).await;
        assert_eq!((&answer["statusCode"], &answer["headers"]["allow"]), (&json!(405), &json!(allow)), "{answer}");
    }
    assert_eq!(world.task(&id).await, before);
}

// B9, N5: with a token its subject acts, and with a signature its identity, whatever the body says.
#[tokio::test]
async fn the_caller_overrides_the_name_in_the_body() {
    let world = World::new().await;
    let role = format!("arn:aws-us-gov:sts::123456789012:assumed-role/{}/{}", "r".repeat(64), "ann@example.com");
    let callers = [
        ("ann@example.com", token("ann@example.com", "stepwarden/operator")),
        (&*role, json!({"iam": {"accountId": "123456789012", "userArn": role}})),
    ];
    for (n, (caller, known)) in callers.into_iter().enumerate() {
        let id = world.in_error(&format!("k{n}"), "acme").await;
        let body = json!({"by": "somebody else", "reason": "r"});
        let path = format!("/orders/{id}/actions/cancel");
        assert_eq!(world.call_as(known, "POST", &path, body).await.0, 200);
        assert_eq!(world.task(&id).await.reason, Some(format!("cancelled by {caller}: r")));
    }
}

// F1, F3: the submitter gets the notice of an end by a person, even if the queue was unavailable at that moment.
#[tokio::test]
async fn the_notice_of_an_end_by_hand_is_not_lost_when_its_queue_is_away() {
    let world = World::new().await;
    let id = world.submit("k1", "acme").await;
    world.wake(&id).await;
    world.done(&id, "a", json!(1)).await;
    world.reply(&id, "b", Outcome::Failed { error: "no".into() }).await;
    world.drain(&queue::notices("shop")).await;
    world.fail("SendMessage", Fault::InternalError, usize::MAX);
    let (status, body) = world.act(&id, "mark-done", json!({})).await;
    assert_eq!((status, &body["code"]), (503, &json!("unavailable")), "{body}");
    let task = world.task(&id).await;
    assert_eq!((task.process_state(), task.notice_owed), (ProcessState::Processed, true));
    world.endpoints.set_fault_hook(None);
    world.later(i64::try_from(OWED_GRACE.as_millis()).unwrap());
    world.operator.engine.recover(std::slice::from_ref(&id), 1).await.pop().unwrap().unwrap();
    let notices = world.drain(&queue::notices("shop")).await;
    assert_eq!(notices.len(), 1);
    assert_eq!((&notices[0]["kind"], &notices[0]["seq"]), (&json!("completed"), &json!(task.version)));
    let task = world.task(&id).await;
    assert_eq!((task.notice_owed, task.due), (false, None), "told, and out of the index");
}

// B9: lists by state, tenant and time, newest first, page by page, without an index for them.
#[tokio::test]
async fn orders_are_listed_newest_first_page_by_page() {
    let world = World::new().await;
    assert_eq!(world.get("/orders").await["next"], json!(null), "an empty list ends, and says so");
    let mut ids = Vec::new();
    for n in 0..25 {
        let tenant = if n % 5 == 0 { "rare" } else { "acme" };
        ids.push(world.submit(&format!("k{n}"), tenant).await.0);
        // Over the end of two months.
        world.later(3 * 24 * 3600 * 1000);
    }
    ids.reverse();
    let listed: Vec<_> = world.pages("limit=4").await.iter().flat_map(|page| names(&page["orders"])).collect();
    assert_eq!(listed, ids, "each once, newest first");
    let rare = world.get("/orders?tenant=rare&limit=100").await;
    assert_eq!(rare["orders"].as_array().unwrap().len(), 5);
    let from = Timestamp::from_millisecond(START).unwrap() + SignedDuration::from_hours(24 * 3 * 20);
    let late = world.get(&format!("/orders?from={from}&limit=100")).await;
    assert_eq!(late["orders"].as_array().unwrap().len(), 5);
    let to = Timestamp::from_millisecond(START).unwrap() + SignedDuration::from_hours(24 * 3 * 3);
    let early = world.get(&format!("/orders?to={to}&limit=100")).await;
    assert_eq!(early["orders"].as_array().unwrap().len(), 3);
    assert_eq!(world.get("/orders?workflow=other").await["orders"], json!([]));
    for wrong in
        ["/orders?stat=Error", "/orders?state=Broken", "/orders?from=now", "/orders?limit=0", "/orders?cursor=x"]
    {
        let (status, body) = world.call("GET", wrong, Value::Null).await;
        assert_eq!((status, &body["code"]), (400, &json!("invalid_field")), "{wrong}: {body}");
    }
}

// B9: orders that wait for a person, and paused orders, are found through the sparse index, also page by page.
#[tokio::test]
async fn orders_in_error_and_paused_ones_are_listed_with_their_trouble() {
    let world = World::new().await;
    for n in 0..7 {
        world.in_error(&format!("e{n}"), "acme").await;
        world.later(1000);
    }
    let paused = world.submit("p", "acme").await;
    assert_eq!(world.act(&paused, "pause", json!({})).await.0, 200);
    let pages = world.pages("state=error&limit=5").await;
    let lengths: Vec<_> = pages.iter().map(|page| page["orders"].as_array().unwrap().len()).collect();
    assert_eq!(lengths, [5, 2]);
    let trouble = json!([{"step": "a", "agent": "x", "undo": false, "error": "no such card"}]);
    assert_eq!(pages[0]["orders"][0]["trouble"], trouble);
    let all = world.get("/orders?state=Paused").await;
    assert_eq!(all["orders"][0]["order_id"], json!(paused));
    assert_eq!(world.get("/orders?state=pending").await["orders"].as_array().unwrap().len(), 1);
    assert_eq!(world.act(&paused, "resume", json!({})).await.0, 200);
    assert_eq!(world.get("/orders?state=paused").await["orders"], json!([]));
}

// B9: acts in bulk, by filter: a dry run changes nothing, a run answers for each order, and a second run finds no
// orders left. A damaged record is named wherever it belongs, and affects no list, no count and no other order.
#[tokio::test(start_paused = true)]
async fn an_unreadable_record_hides_no_other() {
    let world = World::new().await;
    let (a, b, c) =
        (world.in_error("a", "acme").await, world.in_error("b", "acme").await, world.in_error("c", "other").await);
    let (open, damaged) = (world.submit("open", "acme").await, world.submit("damaged", "acme").await);
    let (paused, held) = (world.submit("paused", "acme").await, world.submit("held", "acme").await);
    for id in [&paused, &held] {
        assert_eq!(world.act(id, "pause", json!({})).await.0, 200);
    }
    // Its definition was never stored.
    let lost = parsed(&WORKFLOW.replace("name = \"sample\"", "name = \"lost\""));
    let lost = world.submit_to(&lost, "lost", "acme").await;
    for id in [&b, &damaged, &held] {
        world.damage(id).await;
    }
    let readable = sorted([&a, &c, &open, &paused]);
    let unreadable = sorted([&b, &damaged, &held, &lost]);

    let all = world.get("/orders").await;
    assert_eq!((ids(&all["orders"]), ids(&all["unreadable"])), (readable.clone(), unreadable.clone()), "{all}");
    assert!(all["unreadable"].as_array().unwrap().iter().all(|one| !one["why"].as_str().unwrap().is_empty()), "{all}");
    for (query, fitting, left_out) in [
        ("state=Error", sorted([&a, &c]), sorted([&b])),
        ("state=Paused", sorted([&paused]), sorted([&held])),
        ("tenant=other", sorted([&c]), Vec::new()),
        ("tenant=acme&state=Pending", sorted([&open, &paused]), unreadable.clone()),
    ] {
        let page = world.get(&format!("/orders?{query}")).await;
        assert_eq!((ids(&page["orders"]), ids(&page["unreadable"])), (fitting, left_out), "{query}: {page}");
    }
    // Page by page, each order occurs once.
    let (mut seen, mut named) = (Vec::new(), Vec::new());
    for page in world.pages("limit=1").await {
        seen.extend(ids(&page["orders"]));
        named.extend(ids(&page["unreadable"]));
    }
    seen.sort();
    named.sort();
    assert_eq!((seen, named), (readable, unreadable.clone()));

    let overview = world.get("/overview").await;
    assert_eq!(ids(&overview["unreadable"]), unreadable, "{overview}");
    assert_eq!((&overview["waiting"]["count"], &overview["paused"]["count"]), (&json!(2), &json!(1)), "{overview}");
    let why = overview["paused"]["why"][0]["error"].as_str().unwrap_or_default();
    assert!(why.starts_with("paused by "), "{overview}");
    for (answer, what) in [
        (world.call("GET", &format!("/details/{b}"), Value::Null).await, "details"),
        (world.act(&b, "resubmit", json!({})).await, "an action"),
        (world.call("GET", &format!("/details/{lost}"), Value::Null).await, "details without a definition"),
    ] {
        assert_eq!((answer.0, &answer.1["code"]), (500, &json!("unreadable")), "{what}: {}", answer.1);
        assert!(answer.1["detail"].as_str().unwrap().contains("cannot be read"), "{what}: {}", answer.1);
    }
}

// A sweep moves an unreadable record back, so it is not among the first open orders; the overview names it all the
// same.
#[tokio::test(start_paused = true)]
async fn a_record_that_was_set_aside_is_named_behind_any_number_of_orders() {
    let world = World::new().await;
    let damaged = world.submit("damaged", "acme").await;
    for n in 0..20 {
        world.submit(&format!("o{n}"), "acme").await;
    }
    world.damage(&damaged).await;
    let store = &world.operator.engine.store;
    store.set_aside(&damaged, "why", Timestamp::now() + SignedDuration::from_hours(24), true).await.unwrap();
    let overview = world.get("/overview").await;
    assert_eq!(ids(&overview["unreadable"]), std::slice::from_ref(&damaged.0), "{overview}");
    assert!(overview["unreadable"][0]["why"].as_str().unwrap().contains("damaged"), "{overview}");
}

// B9: the texts of a filter have bounds.
#[tokio::test]
async fn a_filter_of_empty_or_long_texts_is_refused() {
    let world = World::new().await;
    // A variable that is not set must not select every order.
    for field in ["workflow", "tenant", "parent", "label", "reference", "agent", "step"] {
        let wrong = json!({"action": "cancel", "filter": {field: ""}, "by": "a", "reason": "r"});
        let (status, body) = jobs::ask(&world, "k", wrong).await;
        assert_eq!((status, &body["field"]), (400, &json!(field)), "{body}");
    }
    let listed = async |query: String| world.call("GET", &format!("/orders?{query}"), Value::Null).await.0;
    // The calls of a list are orders of `WORKFLOW.STEP`.
    let longest = [["w"; 40].concat(), ["s"; 40].concat()].join(".");
    assert_eq!(listed(format!("workflow={longest}")).await, 200);
    assert_eq!(listed(format!("workflow={longest}s")).await, 400);
}

// B9, E4: a paused agent gets no new requests; when it is resumed, the sweep continues its orders.
#[tokio::test]
async fn a_paused_agent_gets_no_requests_until_it_is_resumed() {
    let world = World::new().await;
    let why = json!({"by": "ann", "reason": "they move"});
    assert_eq!(world.post("/agents/x/pause", why.clone()).await.0, 200);
    assert_eq!(world.post("/agents/nobody/pause", why.clone()).await.1["code"], json!("no_such_agent"));
    let agents = world.get("/agents").await;
    assert_eq!((&agents["agents"][0]["paused"]["by"], agents["agents"][1].get("paused")), (&json!("ann"), None));
    // An instance may use a reading that is this old.
    world.later(2_000);
    let id = world.submit("k1", "acme").await;
    world.wake(&id).await;
    assert_eq!(world.task(&id).await.version, 0);
    assert!(world.drain(&queue::agent("x")).await.is_empty());
    world.later(61_000);
    world.operator.engine.recover(std::slice::from_ref(&id), 1).await.pop().unwrap().unwrap();
    assert!(world.drain(queue::SCHEDULER).await.is_empty(), "no Wake for what is withheld");
    assert_eq!(world.post("/agents/x/resume", why).await.0, 200);
    world.later(61_000);
    world.operator.engine.recover(std::slice::from_ref(&id), 1).await.pop().unwrap().unwrap();
    assert_eq!(world.drain(queue::SCHEDULER).await.len(), 1);
    world.wake(&id).await;
    assert_eq!(world.drain(&queue::agent("x")).await.len(), 1);
    assert_eq!(world.task(&id).await.failure_count(), 0);
}

// E6, B9: poison messages go back to their queue, unchanged; a message that cannot go back stays, with the reason.
#[tokio::test]
async fn messages_set_aside_go_back_to_where_they_came_from() {
    let world = World::new().await;
    let aside = |queue: &str, body: &str| {
        json!({"queue": queue, "message_id": "m", "reason": "not JSON", "body": body}).to_string()
    };
    world.send(queue::SET_ASIDE, &aside("test-scheduler", "{\"type\":\"wake\"}")).await;
    world.send(queue::SET_ASIDE, &aside("test-agent-x", "{\"a\":1}")).await;
    world.send(queue::SET_ASIDE, &aside("test-gone", "{}")).await;
    let why = json!({"by": "ann", "reason": "fixed", "dry_run": true});
    let (status, body) = world.post("/queues/set-aside/redrive", why).await;
    assert_eq!((status, &body["waiting"], &body["moved"]), (200, &json!(3), &json!(0)), "{body}");
    assert_eq!(body["left"].as_array().unwrap().len(), 3, "the first few, to look at: {body}");
    let (_, body) = world.post("/queues/set-aside/redrive", json!({"by": "ann", "reason": "fixed"})).await;
    assert_eq!((&body["moved"], &body["left"][0]["why"]), (&json!(2), &json!("queue `test-gone` no longer exists")));
    assert_eq!(world.drain(queue::SCHEDULER).await, [json!({"type": "wake"})]);
    assert_eq!(world.drain(&queue::agent("x")).await, [json!({"a": 1})]);
    let (status, body) = world.post("/queues/nothing/redrive", json!({"by": "ann", "reason": "r"})).await;
    assert_eq!((status, &body["code"]), (404, &json!("no_such_queue")), "{body}");
}

// E6: dead letters, a bounded number by hand, or all of them by a move task.
#[tokio::test]
async fn dead_letters_go_back_some_or_all() {
    let world = World::new().await;
    let dead = queue::dead(&queue::agent("x"));
    for n in 0..15 {
        world.send(&dead, &format!("{{\"n\":{n}}}")).await;
    }
    let path = "/queues/agent-x/redrive";
    let (_, body) = world.post(path, json!({"by": "ann", "reason": "r", "limit": 12})).await;
    assert_eq!((&body["waiting"], &body["moved"]), (&json!(15), &json!(12)), "{body}");
    assert_eq!(world.drain(&queue::agent("x")).await.len(), 12);
    let (status, body) = world.post(path, json!({"by": "ann", "reason": "r", "limit": 5000})).await;
    assert_eq!((status, &body["field"]), (400, &json!("limit")));
    let (_, body) = world.post(path, json!({"by": "ann", "reason": "r", "all": true, "rate_per_s": 500})).await;
    assert_eq!((&body["task_started"], &body["waiting"]), (&json!(true), &json!(3)), "{body}");
    let mut moved = 0;
    for _ in 0..200 {
        moved += world.drain(&queue::agent("x")).await.len();
        if moved == 3 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{moved} of 3 were moved");
}

// A queue that was deleted, or does not exist yet, hides no other queue.
#[tokio::test]
async fn a_queue_that_is_missing_hides_no_other() {
    let mut world = World::new().await;
    world.operator.config.agents.push("gone".into());
    world.operator.config.reply_queues = "shop=*;gone".parse().unwrap();
    world.send(&queue::agent("x"), "{}").await;
    let find =
        |all: &Value, name: &str| all.as_array().unwrap().iter().find(|row| row["name"] == name).cloned().unwrap();
    let is_unknown = |row: &Value| {
        let why = row["why"].as_str().unwrap_or_default();
        why.contains("gone") && row.get("waiting").is_none()
    };
    let queues = world.get("/queues").await["queues"].clone();
    let x = find(&queues, "agent-x");
    assert_eq!((&x["waiting"], &x["dead_letters"], x.get("why")), (&json!(1), &json!(0), None), "{x}");
    for name in ["agent-gone", "notices-gone"] {
        let row = find(&queues, name);
        assert!(is_unknown(&row) && row.get("dead_letters").is_none(), "{row}");
    }
    let agents = world.get("/agents").await["agents"].clone();
    let x = find(&agents, "x");
    assert_eq!((&x["waiting"], &x["dead"], x.get("why")), (&json!(1), &json!(0), None), "{x}");
    let gone = find(&agents, "gone");
    assert!(is_unknown(&gone) && gone.get("dead").is_none(), "{gone}");
    assert_eq!(gone["pools"][0]["name"], "gone");
    // The counts of an existing queue are shown beside a missing one.
    let dead = world.config.queue_url(&queue::dead(&queue::agent("x")));
    world.clients.sqs.delete_queue().queue_url(dead).send().await.unwrap();
    let row = find(&world.get("/queues").await["queues"], "agent-x");
    assert_eq!((&row["waiting"], row.get("dead_letters")), (&json!(1), None), "{row}");
    assert!(row["why"].as_str().unwrap().contains("agent-x-dead"), "{row}");
}

// I1: who leads, as the store has it.
#[tokio::test]
async fn leases_show_who_leads_if_anyone() {
    use leader::LeaseStore;
    let world = World::new().await;
    assert_eq!(world.get("/leases").await["leases"], json!([]));
    let store = &world.operator.engine.store;
    store
        .acquire("supervisor", "v1", world.now(), SignedDuration::from_secs(10), SignedDuration::ZERO)
        .await
        .unwrap()
        .unwrap();
    let lease = world.get("/leases").await["leases"][0].clone();
    assert_eq!((&lease["holder"], &lease["token"]), (&json!("v1"), &json!(1)));
    world.later(11_000);
    assert_eq!(world.get("/leases").await["leases"][0].get("holder"), None, "it has run out");
}
