//! Every operation of the API. What each route accepts and answers is written here once.

use super::shapes::{act_schema, at_home, reference, schema, submission};
use edge::auth::Scopes;
use edge::problem::CODES;
use operator::{act, again, items, jobs, list, mend, migrate, workflows};
use serde_json::{Value, json};
use shared::items::{Item, MAX_ITEMS};
use shared::workflow::beat::MAX_NOTE;
use shared::workflow::file::MAX_NAME;
use stepwarden_aws::list::{MAX_CURSOR, MAX_PAGE};
use submit::http::MAX_WAIT_S;
use submit::submission::MAX_TEXT;

/// One operation.
pub struct Route {
    pub method: &'static str,
    pub path: String,
    pub(super) id: String,
    pub tag: &'static str,
    /// The scope that the token needs; `None` if the route is open without a token.
    pub scope: Option<String>,
    pub(super) summary: String,
    pub(super) description: String,
    pub(super) parameters: Vec<Value>,
    /// Schema of the body, and an example.
    pub(super) body: Option<(Value, Value)>,
    pub(super) answers: Vec<Answer>,
    /// The codes of its refusals.
    pub codes: Vec<&'static str>,
}

/// Status, words, content, names of headers.
type Answer = (u16, &'static str, Option<Content>, Vec<&'static str>);
/// Media type, schema and example.
type Content = (&'static str, Value, Value);

const BODY: [&str; 4] = ["invalid_json", "invalid_field", "too_large", "unsupported_media_type"];
const ID: &str = "ord_7c4vkjz5ks4g0mx1yq3rfd9n8w";
const HASH: &str = "5f0c1c5e9d2b7a415f0c1c5e";
const AT: &str = "2026-11-21T09:30:00.125Z";

fn parameter(place: &str, name: &str, words: &str, schema: Value) -> Value {
    json!({"in": place, "name": name, "required": place == "path", "description": words, "schema": schema})
}

fn workflow_name() -> Value {
    parameter("path", "name", "Name of the workflow.", json!({"type": "string", "maxLength": MAX_NAME}))
}

fn workflow_row() -> Value {
    let (before, change) = ("0c9fd2b1a6e35d7714c2b8aa", json!({"version": 3, "hash": HASH, "by": "ann", "since": AT}));
    json!({"name": "order", "state": "active", "hash": HASH, "previous": before, "source": "operator", "deployed": before,
           "version": 3, "last_change": change})
}

fn workflow_history() -> Value {
    let mut all = workflow_row();
    let mut change = all["last_change"].clone();
    change["reason"] = json!("the new one is too slow");
    all["history"] = json!([change]);
    all
}

fn job() -> Value {
    json!({"job_id": "job_0ttzd2q51jbevbtn21p1csjzdv", "action": "resubmit", "state": "running", "dry_run": false, "by": "ann",
        "reason": "the bank is back", "orders": "state Error, step charge", "rate_per_s": 40, "abort_after_failures": 10,
        "found": 15_000, "more": false, "counts": {"good": 4000, "failed": 0, "left_alone": 2}, "created_at": AT, "done_by": AT})
}

fn job_act(verb: &str, id: &str, summary: &str, says: &str) -> Route {
    Route::new("post", &format!("/jobs/{{job_id}}/{verb}"), id, "operator", summary)
        .says(says)
        .body(reference("WhoAndWhy"), json!({"by": "ann", "reason": "the bank asks for a pause"}))
        .answers(200, "The job.", "Job", job())
        .refuses(&["no_such_job", "not_allowed"])
}

/// An action on one order, as its route is called.
fn order_act(name: &str, id: &str, summary: &str) -> Route {
    Route::new("post", &format!("/orders/{{order_id}}/actions/{name}"), id, "operator", summary).refuses(&[
        "no_such_order",
        "unreadable",
        "order_moved",
        "not_allowed",
    ])
}

fn step_name() -> Value {
    parameter("path", "step", "Name of the step.", json!({"type": "string", "maxLength": MAX_NAME}))
}

fn token_of(what: &str) -> Value {
    parameter("path", "token", &format!("Token of the {what}."), json!({"type": "string", "maxLength": 32}))
}

impl Route {
    fn new(method: &'static str, path: &str, id: &str, tag: &'static str, summary: &str) -> Self {
        let scopes = Scopes::default();
        let scope = match tag {
            "orders" => Some(scopes.orders),
            "documents" => None,
            // The address is all that a service needs.
            "callbacks" | "heartbeats" => None,
            "workflows" => Some(scopes.workflows),
            "erasure" => Some(scopes.erasure),
            _ => Some(scopes.operator),
        };
        let ids = [("order_id", "The order.", "Id"), ("job_id", "The job.", "JobId")];
        let ids = ids.into_iter().filter(|(name, ..)| path.contains(&format!("{{{name}}}")));
        let mut codes = vec!["misdirected"];
        if scope.is_some() {
            codes.extend(["unauthorized", "forbidden", "invalid_field", "unavailable"]);
        }
        Self {
            method,
            path: path.into(),
            id: id.into(),
            tag,
            scope,
            summary: summary.into(),
            description: String::new(),
            parameters: ids.map(|(name, words, schema)| parameter("path", name, words, reference(schema))).collect(),
            body: None,
            answers: Vec::new(),
            codes,
        }
    }

    fn says(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    fn takes(mut self, parameters: impl IntoIterator<Item = Value>) -> Self {
        self.parameters.extend(parameters);
        self
    }

    /// Takes a key, under which the same request is done only once.
    fn keyed(self, words: &str, example: &str) -> Self {
        let key = json!({"in": "header", "name": "Idempotency-Key", "required": true, "description": words,
            "schema": {"type": "string", "minLength": 1, "maxLength": MAX_TEXT, "pattern": "^[!-~]([ -~]*[!-~])?$"},
            "example": example});
        self.takes([key]).refuses(&["missing_idempotency_key", "invalid_idempotency_key"])
    }

    fn body(mut self, schema: Value, example: Value) -> Self {
        self.body = Some((schema, example));
        self.refuses(&BODY)
    }

    fn answers(mut self, status: u16, words: &'static str, schema: &str, example: Value) -> Self {
        self.answers.push((status, words, Some(("application/json", reference(schema), example)), vec!["traceparent"]));
        self
    }

    /// An answer that people read.
    fn page(mut self, status: u16, words: &'static str) -> Self {
        let page = ("text/html; charset=utf-8", json!({"type": "string"}), json!("<!doctype html>..."));
        self.answers.push((status, words, Some(page), vec!["traceparent"]));
        self
    }

    /// Whether one of its pages has this status.
    pub fn has_page(&self, status: u16) -> bool {
        let is_page =
            |content: &Option<Content>| content.as_ref().is_some_and(|(media, ..)| media.starts_with("text/html"));
        self.answers.iter().any(|(one, _, content, _)| *one == status && is_page(content))
    }

    /// Adds a header to the last answer.
    fn with(mut self, header: &'static str) -> Self {
        self.answers.last_mut().expect("an answer").3.push(header);
        self
    }

    fn refuses(mut self, codes: &[&'static str]) -> Self {
        self.codes.extend(codes.iter().filter(|code| !self.codes.contains(code)).copied().collect::<Vec<_>>());
        self
    }
}

/// Every operation of the API.
pub fn routes() -> Vec<Route> {
    let wait = format!(
        "Seconds to wait, at most {MAX_WAIT_S}, until the order has ended or, with `If-None-Match`, has changed. A \
         deployment may answer earlier."
    );
    let whole = |least: usize, most: usize| json!({"type": "integer", "minimum": least, "maximum": most});
    let text = || json!({"type": "string", "minLength": 1, "maxLength": 80});
    let time = || json!({"type": "string", "format": "date-time"});
    let state = || json!({"type": "string", "enum": operator::state_names()});
    // A parameter without a value is ignored.
    let query = |name: &str, words: &str, schema: Value| {
        let mut one = parameter("query", name, words, schema);
        one["allowEmptyValue"] = json!(true);
        one
    };
    let any = |most: usize| json!({"type": "string", "maxLength": most});
    let mut all = vec![
        Route::new("post", "/orders", "submitOrder", "orders", "Submit an order")
            .says(
                "Once this is answered, the order is stored durably. If the answer is lost, repeat the same request \
                 with the same key. The W3C `traceparent` of the request is stored with the order and sent with its \
                 messages; a malformed one is ignored.",
            )
            .keyed(
                "A new value for each order. Submitting the same order again under the same key creates no second order and returns the same answer.",
                "order-10248",
            )
            .takes([parameter("header", "traceparent", "W3C trace context.", json!({"type": "string"}))])
            .body(submission(), json!({"workflow": "order", "input": northwind()}))
            .answers(202, "Accepted.", "Accepted", json!({"order_id": ID, "status_url": format!("/orders/{ID}")}))
            .with("Location")
            .refuses(&[
                "idempotency_key_reused",
                "idempotency_key_spent",
                "invalid_input",
                "unknown_workflow",
                "unknown_reply_queue",
                "rate_limited",
                "overloaded",
                "unreadable",
            ]),
        Route::new("get", "/orders/{order_id}", "getOrder", "orders", "Get an order's state")
            .says("A token with the operator's scope sees the orders of all tenants, any other token only its own tenant's.")
            .takes([
                query("wait", &wait, whole(0, MAX_WAIT_S)),
                query("output", "Name of a step whose output is shown even if it has more than 4,096 bytes.", json!({"maxLength": MAX_NAME})),
            ])
            .answers(200, "Its state, its steps, and the next attempt.", "Order", order())
            .refuses(&["no_such_order", "unreadable"]),
        Route::new("get", "/orders/{order_id}/history", "getHistory", "orders", "Get an order's history")
            .says("A very long history keeps its first 20 and its last 180 entries.")
            .answers(200, "Oldest first.", "History", history())
            .refuses(&["no_such_order", "unreadable"]),
        Route::new("post", "/orders/{order_id}/events/{event}", "sendEvent", "orders", "Send an event to an order")
            .says(
                "For the step that waits for it or will do so later. Once this is answered, the event is stored \
                 durably. If the answer is lost, repeat the same request with the same key. A key is known as long as \
                 the order is kept. The body has at most 4,096 bytes.",
            )
            .takes([parameter("path", "event", "Name of the event.", json!({"type": "string", "maxLength": MAX_NAME}))])
            .keyed("A new value for each event of the order.", "payment-10248")
            .body(json!({"type": "object"}), json!({"amount": 12.5}))
            .answers(202, "Accepted.", "EventAccepted",
                json!({"order_id": ID, "event": "paid", "status_url": format!("/orders/{ID}")}))
            .with("Location")
            .refuses(&[
                "no_such_order",
                "no_such_event",
                "event_key_reused",
                "event_early",
                "event_late",
                "event_refused",
                "too_many_events",
                "unreadable",
            ]),
        Route::new("post", "/callbacks/{order_id}/{step}/{token}", "callBack", "callbacks", "Report the end of accepted work")
            .says(
                "For services. The address is part of a step's call, and is all that a service needs to know. A callback \
                 that is repeated gets the same answer. The body has at most 65,536 bytes.",
            )
            .takes([step_name(), token_of("step")])
            .body(json!({"type": "object"}), json!({"state": "finished"}))
            .answers(202, "Recorded.", "CallbackAccepted", json!({"order_id": ID, "step": "render"}))
            .refuses(&["no_such_callback", "event_key_reused", "event_late", "event_refused", "invalid_field", "unavailable", "unreadable"]),
        Route::new("get", "/links/{order_id}/{step}/{token}", "openLink", "callbacks", "Open the page of a link")
            .says("For people, in a browser. It changes nothing, because programs that check mails open every address.")
            .takes([step_name(), token_of("link")])
            .page(200, "The question, and a form with a button for each answer.")
            .page(404, "There is no such link.")
            .page(409, "The question is closed, or not open yet.")
            .page(503, "Try again."),
        Route::new("post", "/links/{order_id}/{step}/{token}", "answerLink", "callbacks", "Answer on the page of a link")
            .says("What the form on that page sends. The same answer again gets the same page.")
            .takes([step_name(), token_of("link")])
            .page(200, "The answer is stored.")
            .page(400, "The form was changed, or its reason is too long.")
            .page(404, "There is no such link.")
            .page(409, "The question is closed, or not open yet.")
            .page(413, "The form is too large.")
            .page(415, "The body is not a form.")
            .page(422, "The step does not take this answer.")
            .page(429, "The order cannot keep any more early events.")
            .page(503, "Try again."),
        Route::new("post", "/heartbeats/{order_id}/{step}/{attempt}/{token}", "beat", "heartbeats", "Say that an attempt is still being worked on")
            .says(
                "For agents. The address is part of the request of a step with `heartbeat`. The answer says until when \
                 the agent may go on. After 404 or 409, the agent has to stop at once. Without an answer, it has to \
                 stop at the last time that it was given.",
            )
            .takes([
                step_name(),
                parameter("path", "attempt", "Number of the attempt.", whole(1, u32::MAX as usize)),
                token_of("attempt"),
            ])
            .body(
                json!({"type": "object", "additionalProperties": false, "properties": {
                    "percent": {"type": ["integer", "null"], "minimum": 0, "maximum": 100,
                        "description": "How much of the work is done."},
                    "note": {"type": ["string", "null"], "maxLength": MAX_NOTE,
                        "description": "How far the work is, in a sentence of at most 200 bytes."},
                }}),
                json!({"percent": 40, "note": "4 of 10 files"}),
            )
            .answers(200, "Go on.", "Alive", json!({"complete_by": "2026-07-30T10:00:10Z"}))
            .refuses(&["no_such_heartbeat", "attempt_over", "invalid_field", "unavailable", "unreadable"]),
        Route::new("get", "/orders", "listOrders", "operator", "List orders")
            .says("Newest first, of all tenants. A page may be empty even if there is a next one.")
            .takes([
                query("state", "Only orders in this state.", state()),
                query("workflow", "Only orders of this workflow.", any(list::MAX_WORKFLOW)),
                query("tenant", "Only orders of this tenant.", any(list::MAX_TEXT)),
                query(
                    "parent",
                    "Only the orders that this order started. Lists without it leave such orders out, except lists of the states \
                     `Error`, `Paused` and `Waiting`.",
                    any(list::MAX_TEXT),
                ),
                query("label", "Only orders with this label.", any(shared::order::MAX_LABEL)),
                query("reference", "Only orders whose reference begins with this text.", any(list::MAX_TEXT)),
                query("step", "Only orders in which this step is failing or has failed.", any(MAX_NAME)),
                query("error", "Only orders in which the failing or failed step has this error. Numbers and ids in it \
                    do not matter.", any(300)),
                query("from", "Only orders accepted at or after this time.", time()),
                query("to", "Only orders accepted before this time.", time()),
                query("limit", "Maximum number of orders on the page.", whole(1, MAX_PAGE)),
                query("cursor", "`next` of the previous page, with the same filter.", any(MAX_CURSOR)),
            ])
            .answers(200, "A page.", "Orders", json!({"orders": [row()]})),
        Route::new("post", "/jobs", "startJob", "operator", "Start one action on many orders")
            .says(
                "The system lists the orders that match now, and acts on them at the given rate, whatever becomes of \
                 the client. An order is acted on only if it still matches when its turn comes, and at most once.",
            )
            .keyed("A new value for each job. Under the same key the request finds the job that it started.", "the-bank-is-back")
            .body(
                at_home(schema::<jobs::Start>()),
                json!({"action": "resubmit", "filter": {"state": "Error", "step": "charge"}, "by": "ann",
                       "reason": "the bank is back", "rate_per_s": 40}),
            )
            .answers(202, "The job, new or started before under this key.", "Job", job())
            .with("Location")
            .refuses(&["not_possible", "no_such_workflow"]),
        Route::new("get", "/jobs", "listJobs", "operator", "List jobs")
            .takes([query("cursor", "`next` of the previous page.", any(MAX_CURSOR))])
            .answers(200, "A page, newest first. Jobs are kept for 120 days.", "Jobs", json!({"jobs": [job()]})),
        Route::new("get", "/jobs/{job_id}", "getJob", "operator", "Show a job")
            .answers(200, "The job with its progress.", "Job", job())
            .refuses(&["no_such_job"]),
        Route::new("get", "/jobs/{job_id}/results", "listJobResults", "operator", "List the results of a job")
            .takes([
                query("page", "`next` of the previous page.", whole(0, u32::MAX as usize)),
                query("only", "Only orders that were not acted on.", json!({"type": "string", "enum": ["failed"]})),
            ])
            .answers(
                200,
                "A page: one entry for each order, in the sequence in which the job acts.",
                "JobResults",
                json!({"results": [{"order_id": ID, "outcome": "applied", "version": 8}]}),
            )
            .refuses(&["no_such_job"]),
        job_act("pause", "pauseJob", "Pause a job", "Within about a second, the job starts no more actions."),
        job_act("resume", "resumeJob", "Resume a job", "The job continues where it was."),
        job_act("abort", "abortJob", "Abort a job", "What was done stays done. The remaining orders get no result."),
        Route::new("get", "/agents", "listAgents", "operator", "List agents")
            .answers(
                200,
                "Agents: whether they are paused or strained, and what waits for them.",
                "Agents",
                json!({"agents": [{"name": "payment", "waiting": 3, "dead": 0, "pools": [{"name": "payment", "dead": 0,
                       "queues": [{"name": "agent-payment", "waiting": 3}]}],
                       "paused": {"by": "ann", "reason": "the bank is down", "since": AT}}]}),
            ),
        Route::new("post", "/queues/{name}/redrive", "redrive", "operator", "Move dead letters back")
            .takes([parameter("path", "name", "A dead-letter queue, or `set-aside`.", text())])
            .body(reference("Redrive"), json!({"by": "ann", "reason": "the bug is mended", "limit": 10, "dry_run": true}))
            .answers(
                200,
                "What was moved.",
                "Moved",
                json!({"waiting": 2, "moved": 2, "task_started": false, "left": []}),
            )
            .refuses(&["no_such_queue"]),
        Route::new("get", "/queues", "listQueues", "operator", "List queues").answers(
            200,
            "What waits in each queue, approximately.",
            "Queues",
            json!({"queues": [{"name": "agent-payment", "waiting": 3, "in_flight": 1, "delayed": 0, "dead_letters": 0}]}),
        ),
        Route::new("get", "/overview", "getOverview", "operator", "Get what waits for a person, what is stuck, and why")
            .says(
                "It also shows which orders wait in which step, since when and until when. Uses a bounded number of \
                 reads; `more` marks counts that are incomplete.",
            )
            .answers(200, "State of the system.", "Overview", overview_example()),
        Route::new("get", "/details/{order_id}", "getDetails", "operator", "Get everything about an order")
            .says("Its status, history and input, the limits of its steps, and which actions are possible now.")
            .answers(
                200,
                "The order in full.",
                "Details",
                json!({"order": order(), "history": history()["history"], "input": northwind(),
                       "plan": [{"step": "charge", "timeout_ms": 5000, "max_failures": 5, "irreversible": false}],
                       "acts": [{"act": "retry-now", "fits": true, "steps": ["charge"]}]}),
            )
            .refuses(&["no_such_order", "unreadable"]),
        Route::new("get", "/details/{order_id}/record", "getRecord", "operator", "Get an order's record as it is stored")
            .says("Works for unreadable records, too; use it with `mend`.")
            .answers(
                200,
                "The text of the record, its mark, and the reason if it cannot be read.",
                "Record",
                json!({"order_id": ID, "why": "the attribute `task` ends too early", "record": "{\"wf\":\"order\",\"wh",
                       "columns": {"pk": ID, "version": "7"}, "seen": "5f0c1c5e9d2b7a41"}),
            )
            .refuses(&["no_such_order"]),
        Route::new("get", "/details/{order_id}/items/{step}", "getItems", "operator", "Get the items of a step's list")
            .says(
                "Where every item stands, and a page of them with their orders and, for those that failed or are stuck, why. The \
                 step has `each` and has begun its list.",
            )
            .takes([
                parameter("path", "step", "The step.", json!({"type": "string", "maxLength": MAX_NAME})),
                parameter("query", "state", "Only items in this state.", json!({"type": "string", "enum": Item::NAMES})),
                parameter("query", "cursor", "`next` of the previous page.", json!({"type": "integer", "minimum": 0, "maximum": MAX_ITEMS})),
                parameter("query", "limit", "Maximum number of items on the page.", json!({"type": "integer", "minimum": 1, "maximum": items::MAX_PAGE, "default": items::MAX_PAGE})),
            ])
            .answers(
                200,
                "The page.",
                "ItemsPage",
                json!({"order_id": ID, "step": "parcels", "workflow": "parcel", "states": "ddfo",
                       "items": [{"index": 2, "state": "failed", "order_id": ID, "error": "order ord_6 was undone: out of stock"}]}),
            )
            .refuses(&["no_such_order", "unreadable"]),
        Route::new("get", "/workflows", "listWorkflows", "operator", "List workflows and the definition that new orders of each get").says("The scope for changing workflows allows reading them, too.").answers(
            200,
            "All workflows.",
            "Workflows",
            json!({"workflows": [workflow_row()], "agents": ["inventory", "payment"]}),
        ),
        Route::new("get", "/workflows/{name}", "getWorkflow", "operator", "Get a workflow and its changes")
            .takes([
                workflow_name(),
                parameter("query", "before", "Only changes with a lower number.", json!({"type": "integer", "minimum": 1})),
            ])
            .answers(200, "The workflow.", "WorkflowHistory", workflow_history())
            .refuses(&["no_such_workflow"]),
        Route::new("get", "/workflows/{name}/{hash}", "getDefinition", "operator", "Get a definition of a workflow")
            .takes([workflow_name(), parameter("path", "hash", "Hash of the definition.", json!({"type": "string", "maxLength": 64}))])
            .answers(
                200,
                "The definition.",
                "Definition",
                json!({"name": "order", "hash": HASH, "toml": "name = \"order\"\n", "origin": {"by": "ann", "reason": "longer timeout", "since": AT}, "definition": {"name": "order", "steps": []}}),
            )
            .refuses(&["no_such_workflow", "not_possible"]),
        Route::new("post", "/workflows", "putWorkflow", "workflows", "Check a workflow file and keep its definition")
            .says("New orders get it once it is activated. Putting the same text again changes nothing.")
            .body(
                reference("WorkflowFile"),
                json!({"by": "ann", "reason": "longer timeout", "toml": "name = \"order\"\n", "file": "order.toml"}),
            )
            .answers(
                200,
                "Its hash, and what it would change.",
                "WorkflowPut",
                json!({"name": "order", "hash": HASH, "active": "0c9fd2b1a6e35d7714c2b8aa", "version": 2,
                       "differences": ["step `ship`: timeout changes from 5s to 10s"], "warnings": []}),
            )
            .refuses(&["invalid_workflow"]),
        Route::new("get", "/leases", "listLeases", "operator", "Get the leading supervisor").answers(
            200,
            "The current leases.",
            "Leases",
            json!({"leases": [{"name": "supervisor-0", "holder": "host-4711", "token": 12, "expires": AT}]}),
        ),
        Route::new("get", "/charts", "getCharts", "operator", "Get the last hour").answers(
            200,
            "How many orders ended, what failed and how old the oldest are, minute by minute.",
            "Charts",
            json!({"from": AT, "step_s": 60, "left_out": 0, "lines": [
                {"metric": "step_failures", "agent": "payment", "points": [0.0, 2.0]},
                {"metric": "oldest_pending_age", "points": [null, 1.5]},
            ]}),
        ),
        Route {
            answers: vec![(200, "This document.", Some(("application/json", json!({"type": "object"}), Value::Null)), vec![])],
            ..Route::new("get", "/openapi.json", "getDocument", "documents", "Get this document")
        },
        Route {
            answers: vec![(
                200,
                "What it means and what to do, in Markdown.",
                Some(("text/markdown", json!({"type": "string"}), json!("# overloaded\n"))),
                vec![],
            )],
            ..Route::new("get", "/problems/{code}", "getProblem", "documents", "Get the page about a problem's code")
        }
        .takes([parameter("path", "code", "The code.", json!({"type": "string", "enum": CODES.iter().map(|c| c.0).collect::<Vec<_>>()}))])
        .refuses(&["no_such_route"]),
    ];
    let known = (304, "Not changed since the version in `If-None-Match`.", None, vec!["traceparent", "ETag"]);
    let if_none_match = || {
        parameter("header", "If-None-Match", "The ETag of the version that the client has.", json!({"type": "string"}))
    };
    for route in
        all.iter_mut().filter(|route| route.method == "get" && (route.id == "getOrder" || route.tag == "operator"))
    {
        route.answers[0].3.push("ETag");
        route.answers.push(known.clone());
        route.parameters.push(if_none_match());
    }
    for name in act::NAMES {
        let act = order_act(name, name, summary(name))
            .says("The history keeps the action with name and reason. Repeating it answers `repeated`.")
            .body(act_schema(name), json!({"by": "ann", "reason": "asked by the customer"}))
            .answers(200, "Done.", "ActDone", json!({"order_id": ID, "outcome": "applied", "version": 8}))
            .with("ETag");
        all.push(act);
    }
    for verb in workflows::VERBS {
        let what = match verb {
            "activate" => "Give new orders of a workflow the definition with this hash",
            "retire" => "Take no more orders of a workflow",
            _ => "Give new orders of a workflow the definition that was active before",
        };
        let mut body = json!({"by": "ann", "reason": "the new one is too slow", "if_version": 2});
        if verb == "activate" {
            body["hash"] = json!(HASH);
        }
        let change =
            Route::new("post", &format!("/workflows/{{name}}/{verb}"), &format!("{verb}Workflow"), "workflows", what)
                .says("Every instance follows within 5 s. Orders keep the definition that they were submitted with.")
                .takes([workflow_name()])
                .body(reference(if verb == "activate" { "WorkflowActivation" } else { "WorkflowAct" }), body)
                .answers(200, "The workflow now.", "WorkflowRow", workflow_row())
                .refuses(&["no_such_workflow", "workflow_moved", "not_possible"]);
        all.push(change);
    }
    all.push(
        order_act(mend::NAME, mend::NAME, "Replace an unreadable record with a mended one")
            .says(
                "Replaces only the record that `seen` names, and only while it is unreadable. The history keeps the action with \
                 name and reason. Repeating it answers `repeated`.",
            )
            .body(
                reference("Mend"),
                json!({"by": "ann", "reason": "a damaged disk", "seen": "5f0c1c5e9d2b7a41",
                       "record": {"wf": "order", "wh": "5f0c1c5e", "ph": "Error", "st": [], "tn": "default", "log": []}}),
            )
            .answers(200, "Done.", "ActDone", json!({"order_id": ID, "outcome": "applied", "version": 8}))
            .with("ETag"),
    );
    all.push(
        order_act(migrate::NAME, migrate::NAME, "Continue an order under another definition of its workflow")
            .says(
                "No settled step runs again, and no undo that is owed is forgotten; a definition that would break this \
                 rule is refused. While a step is with an agent, the answer is `waits`: no other step starts, and the \
                 order is moved once no request can start any more. A later migration replaces one that waits. A dry \
                 run changes nothing.",
            )
            .body(reference("Migrate"), json!({"by": "ann", "reason": "a new check", "to": "latest", "dry_run": true}))
            .answers(
                200,
                "What was done, or would be.",
                "Migration",
                json!({"order_id": ID, "outcome": "would_apply", "version": 8, "from": HASH, "to": HASH, "again": ["charge"],
                       "left_out": [], "undone_differently": [], "added": ["check-sanctions"], "changed": [], "doubts": []}),
            )
            .with("ETag")
            .refuses(&["not_possible"]),
    );
    all.push(
        order_act(again::NAME, "runAgain", "Run steps of an order again, and all that come after them")
            .says(
                "Also possible for an order that has ended. What these steps did is undone first, beginning with the \
                 last step. A step that was undone gets a new idempotency key; any other step keeps its key, so that \
                 its service does nothing twice. Earlier replies, events and callbacks for these steps no longer \
                 count. A dry run changes nothing.",
            )
            .body(reference("RunAgain"), json!({"by": "ann", "reason": "the wrong box", "from": ["charge"], "dry_run": true}))
            .answers(
                200,
                "What was recorded, or would be.",
                "RunAgainResult",
                json!({"order_id": ID, "outcome": "would_apply", "version": 8, "again": ["charge", "ship"],
                       "undone_first": ["ship", "charge"], "stays": [], "new_keys": ["charge", "ship"], "old_keys": [], "new_orders": []}),
            )
            .with("ETag"),
    );
    all.push(
        Route::new(
            "post",
            "/orders/{order_id}/erasure",
            "eraseOrder",
            "erasure",
            "Erase what an order says about people",
        )
        .says(
            "Ids, states, attempts and times stay, and so does the record of who erased the order and why. The \
             order must have ended. The orders that it started are erased with it. A repeated request gets the \
             same answer.",
        )
        .body(reference("WhoAndWhy"), json!({"by": "ann", "reason": "request 17"}))
        .answers(
            200,
            "It is erased.",
            "Erased",
            json!({"order_id": ID, "erased_at": "2026-11-21T10:30:00Z", "detail": "ann: request 17"}),
        )
        .refuses(&["no_such_order", "unreadable", "not_allowed"]),
    );
    for (verb, summary) in [("pause", "Give an agent no more work"), ("resume", "Give an agent work again")] {
        let set = Route::new("post", &format!("/agents/{{name}}/{verb}"), &format!("{verb}Agent"), "operator", summary)
            .takes([parameter("path", "name", "The agent.", text())])
            .body(reference("WhoAndWhy"), json!({"by": "ann", "reason": "the bank is down"}))
            .answers(
                200,
                "Recorded; in effect within seconds.",
                "AgentSet",
                json!({"agent": "payment", "paused": verb == "pause", "within_s": 2}),
            )
            .refuses(&["no_such_agent"]);
        all.push(set);
    }
    all
}

fn summary(act: &str) -> &'static str {
    match act {
        "resubmit" => "Continue an order in Error from its failed steps",
        "skip" => "Skip a failed step or a failed undo",
        "mark-done" => "Record that a failed step or a failed undo was done by hand",
        "retry-now" => "Start the next attempt now instead of waiting for it",
        "cancel" => "Stop an open order and undo its finished steps",
        "undo" => "Undo an order, even one that is Processed",
        "pause" => "Start no more steps of an order until it is resumed",
        "resume" => "End the pause of an order",
        other => panic!("say what `{other}` does"),
    }
}

fn northwind() -> Value {
    let orders = include_str!("../data/northwind-orders.jsonl");
    serde_json::from_str(orders.lines().next().expect("orders")).expect("JSON")
}

fn order() -> Value {
    let step = json!({"name": "charge", "agent": "payment", "after": ["reserve", "check-fraud"], "state": "Pending",
        "attempts": 2, "failures": 2, "undo_failures": 0, "locked_by": null, "complete_by": null,
        "next_attempt_at": "2026-11-21T09:30:07.500Z", "last_error": "503 from payment", "output": null});
    json!({"order_id": ID, "workflow": "order", "workflow_hash": "5f0c1c5e", "state": "Pending", "reason": null,
        "reference": "10248", "tenant": "default", "priority": "normal", "version": 7, "created_at": AT, "updated_at": AT,
        "locked_by": null, "complete_by": null, "failure_count": 2, "alert_owed": false,
        "undo_from": null, "steps": [step]})
}

fn row() -> Value {
    let trouble = json!({"step": "charge", "agent": "payment", "undo": false, "error": "the card was refused"});
    json!({"order_id": ID, "workflow": "order", "state": "Error", "reason": "the card was refused", "tenant": "default",
        "version": 7, "failure_count": 0, "created_at": AT, "updated_at": AT, "trouble": [trouble]})
}

fn overview_example() -> Value {
    let why = json!({"workflow": "order", "step": "charge", "agent": "payment", "undo": false, "count": 2,
        "error": "503 from payment", "order_id": ID, "since": AT});
    let some = |count: usize, why: &Value| json!({"count": count, "more": false, "why": why});
    json!({"waiting": some(0, &json!([])), "paused": some(0, &json!([])), "retrying": some(2, &json!([why])),
        "waits": {"count": 3, "more": false, "steps": [{"workflow": "trial", "step": "month", "wait": "waits 30d",
            "count": 3, "since": AT, "order_id": ID, "until": AT}]},
        "open": {"count": 17, "more": false}, "oldest": {"order_id": ID, "created_at": AT, "is_exact": true},
        "paused_agents": {}, "strained_agents": {}, "breakers": {}})
}

fn history() -> Value {
    json!({"order_id": ID, "history": [{"at": AT, "event": "received"},
        {"at": AT, "event": "step_started", "step": "reserve", "attempt": 1}]})
}
