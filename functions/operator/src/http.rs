//! The operator routes of the HTTP API, as API Gateway passes them on (payload format 2.0).

use crate::act::{self, Done, Why};
use crate::again::{self, RunAgain};
use crate::agents::{All, Set};
use crate::mend::{self, Mend};
use crate::migrate::{self, Migrate};
use crate::queues::{Leases, Queues};
use crate::workflows::{Activation, VERBS};
use crate::{Operator, console, items, jobs, list};
use aws_lambda_events::encodings::Body;
use aws_lambda_events::event::apigw::{ApiGatewayV2httpRequest, ApiGatewayV2httpResponse};
use edge::http::{body, caller, check_media_type, header, json_answer, read, refuse, traced, traceparent};
use edge::problem::{self, Problem};
use edge::{auth, query};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::decision::{Act, Refusal};
use shared::job::Control;
use shared::operator::Outcome;
use shared::order::Id;
use shared::registry::Change;
use shared::time::Timestamp;
use std::hash::{DefaultHasher, Hash, Hasher};
use stepwarden_aws::BoxFuture;
use stepwarden_aws::traces::{self, Span};

/// Largest body, in bytes: an edited input and the fields around it.
pub const MAX_BODY: usize = 64 * 1024;

/// Largest body of a resubmission, in bytes: the edited inputs of a list's items and the fields around them.
pub const MAX_RESUBMISSION: usize = 300 * 1024;

/// Whether a request is for this function; all others are for submission.
#[must_use]
pub fn takes(event: &ApiGatewayV2httpRequest) -> bool {
    let parts = parts(event);
    match parts.as_slice() {
        ["orders"] => event.request_context.http.method == "GET",
        ["orders", _, "actions", ..] | ["orders", _, "erasure"] => true,
        ["jobs" | "charts" | "agents" | "queues" | "leases" | "overview" | "details" | "workflows" | "console", ..] => {
            true
        }
        _ => false,
    }
}

/// Answers one request. Compiled here for all that run it.
#[must_use]
pub fn handler(operator: &Operator, event: ApiGatewayV2httpRequest) -> BoxFuture<'_, ApiGatewayV2httpResponse> {
    Box::pin(answered(operator, event))
}

async fn answered(operator: &Operator, event: ApiGatewayV2httpRequest) -> ApiGatewayV2httpResponse {
    let span = span(&event);
    let answer = match span.around(Box::pin(route(operator, &event))).await {
        Ok(answer) if event.request_context.http.method == "GET" => unless_known(&event, answer),
        Ok(answer) => {
            span.answered(200, None);
            answer
        }
        Err(problem) => {
            span.answered(problem.status, Some(problem.code));
            refuse(&problem)
        }
    };
    traced(answer, traceparent(&event))
}

/// A span only for requests that change something, because spans of the console's polls would hide others.
fn span(event: &ApiGatewayV2httpRequest) -> Span {
    let route = match parts(event).as_slice() {
        _ if event.request_context.http.method != "POST" => return Span::none(),
        ["orders", _, "actions", _] => "/orders/{order_id}/actions/{action}",
        ["orders", _, "erasure"] => "/orders/{order_id}/erasure",
        ["jobs"] => "/jobs",
        ["jobs", _, "pause"] => "/jobs/{job_id}/pause",
        ["jobs", _, "resume"] => "/jobs/{job_id}/resume",
        ["jobs", _, "abort"] => "/jobs/{job_id}/abort",
        ["agents", _, "pause"] => "/agents/{name}/pause",
        ["agents", _, "resume"] => "/agents/{name}/resume",
        ["queues", _, "redrive"] => "/queues/{name}/redrive",
        ["workflows"] => "/workflows",
        ["workflows", _, verb] if VERBS.contains(verb) => "/workflows/{name}/{verb}",
        _ => return Span::none(),
    };
    Span::request("POST", route, traceparent(event).as_deref())
}

/// The answer with an `ETag`, or 304 if the client already has it.
fn unless_known(event: &ApiGatewayV2httpRequest, mut answer: ApiGatewayV2httpResponse) -> ApiGatewayV2httpResponse {
    let Some(Body::Text(text)) = &answer.body else { return answer };
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let etag = format!("\"{:016x}\"", hasher.finish());
    if header(event, "if-none-match").is_some_and(|tags| tags.split(',').any(|tag| tag.trim() == etag)) {
        answer.status_code = 304;
        answer.body = None;
    }
    answer.headers.insert("etag", etag.parse().expect("hexadecimal digits"));
    answer
}

fn parts(event: &ApiGatewayV2httpRequest) -> Vec<&str> {
    event.raw_path.as_deref().unwrap_or("/").split('/').filter(|part| !part.is_empty()).collect()
}

async fn route(operator: &Operator, event: &ApiGatewayV2httpRequest) -> Result<ApiGatewayV2httpResponse, Problem> {
    let method = event.request_context.http.method.as_str();
    let parts = parts(event);
    // A browser loads the page, which has no data, before it asks for a token.
    if let ("GET", ["console", rest @ ..]) = (method, parts.as_slice()) {
        return static_file(event, rest);
    }
    match parts.as_slice() {
        ["workflows", ..] if method != "GET" || auth::has_scope(event, &operator.scopes.workflows) => {
            auth::check(event, &operator.scopes.workflows)?;
        }
        ["orders", _, "erasure"] => auth::check(event, &operator.scopes.erasure)?,
        _ => auth::check(event, &operator.scopes.operator)?,
    }
    if !matches!(
        parts.as_slice(),
        ["orders" | "jobs"] | ["workflows", _] | ["details", _, "items", _] | ["jobs", _, "results"]
    ) {
        query::read(event, &[])?;
    }
    match (method, parts.as_slice()) {
        ("GET", ["orders"]) => {
            let query = query::read(event, &list::PARAMETERS)?;
            Ok(json_answer(200, &operator.list(&query).await?, &[]))
        }
        ("POST", ["orders", id, "actions", mend::NAME]) => {
            let mend: Mend = parse_up_to(event, mend::MAX_BODY)?;
            traces::set("act", mend::NAME);
            traces::set("task.id", (*id).to_owned());
            let mended = Box::pin(operator.mend(id, &mend, caller(event))).await?;
            Ok(done(&mended, mended.version))
        }
        ("POST", ["orders", id, "actions", migrate::NAME]) => {
            let wish: Migrate = parse(event)?;
            traces::set("act", migrate::NAME);
            traces::set("task.id", (*id).to_owned());
            let report = Box::pin(operator.migrate(id, &wish, caller(event))).await?;
            Ok(done(&report, report.version))
        }
        ("POST", ["orders", id, "actions", again::NAME]) => {
            let wish: RunAgain = parse(event)?;
            traces::set("act", again::NAME);
            traces::set("task.id", (*id).to_owned());
            let report = Box::pin(operator.run_again(id, &wish, caller(event))).await?;
            Ok(done(&report, report.version))
        }
        ("POST", ["orders", id, "actions", name]) => post_act(operator, event, id, name).await,
        ("POST", ["orders", id, "erasure"]) => {
            let why: Why = parse(event)?;
            traces::set("task.id", (*id).to_owned());
            Ok(json_answer(200, &Box::pin(operator.erase(id, &why, caller(event))).await?, &[]))
        }
        ("GET", ["jobs"]) => {
            let query = query::read(event, &["cursor"])?;
            Ok(json_answer(200, &operator.jobs(&query).await?, &[]))
        }
        ("POST", ["jobs"]) => {
            query::read(event, &[])?;
            let start = parse_up_to(event, jobs::MAX_BODY)?;
            let job = Box::pin(operator.start_job(header(event, "idempotency-key"), &start, caller(event))).await?;
            Ok(json_answer(202, &job, &[("location", &format!("/jobs/{}", job.job_id))]))
        }
        ("GET", ["jobs", id]) => Ok(json_answer(200, &operator.job(id).await?, &[])),
        ("GET", ["jobs", id, "results"]) => {
            let query = query::read(event, &jobs::PARAMETERS)?;
            Ok(json_answer(200, &operator.job_results(id, &query).await?, &[]))
        }
        ("POST", ["jobs", id, verb @ ("pause" | "resume" | "abort")]) => {
            let what = match *verb {
                "pause" => Control::Pause,
                "resume" => Control::Resume,
                _ => Control::Abort,
            };
            Ok(json_answer(200, &operator.control_job(id, what, &parse(event)?, caller(event)).await?, &[]))
        }
        ("GET", ["details", id]) => Ok(json_answer(200, &operator.details(id).await?, &[])),
        ("GET", ["details", id, "record"]) => Ok(json_answer(200, &operator.record(id).await?, &[])),
        ("GET", ["details", id, "items", step]) => {
            let query = query::read(event, &items::PARAMETERS)?;
            Ok(json_answer(200, &operator.items(id, step, &query).await?, &[]))
        }
        ("GET", ["overview"]) => Ok(json_answer(200, &operator.overview().await?, &[])),
        ("GET", ["queues"]) => Ok(json_answer(200, &Queues { queues: operator.queues().await }, &[])),
        ("GET", ["agents"]) => Ok(json_answer(200, &All { agents: operator.agents().await? }, &[])),
        ("POST", ["agents", name, verb @ ("pause" | "resume")]) => {
            let body: Why = parse(event)?;
            let (by, reason) = act::who_and_why(caller(event), body.by.as_deref(), body.reason.as_deref())?;
            operator.set_agent(name, *verb == "pause", by, reason).await?;
            let within_s = shared::engine::AGENTS_FOR.as_secs();
            let set = Set { agent: (*name).to_owned(), paused: *verb == "pause", within_s };
            Ok(json_answer(200, &set, &[]))
        }
        ("POST", ["queues", name, "redrive"]) => {
            let body: crate::queues::Redrive = parse(event)?;
            let (by, reason) = act::who_and_why(caller(event), body.by.as_deref(), body.reason.as_deref())?;
            Ok(json_answer(200, &operator.redrive(name, &body, &by, &reason).await?, &[]))
        }
        ("GET", ["workflows"]) => Ok(json_answer(200, &operator.workflows().await?, &[])),
        ("GET", ["workflows", name]) => {
            let query = query::read(event, &["before"])?;
            let before = query.get("before").map(|text| query::number("before", text, 1, usize::MAX)).transpose()?;
            Ok(json_answer(200, &operator.workflow_history(name, before.map(|n| n as u64)).await?, &[]))
        }
        ("GET", ["workflows", name, hash]) => Ok(json_answer(200, &operator.definition(name, hash).await?, &[])),
        ("POST", ["workflows"]) => {
            let put = parse(event)?;
            Ok(json_answer(200, &operator.put_workflow(&put, caller(event)).await?, &[]))
        }
        ("POST", ["workflows", name, verb @ ("activate" | "retire" | "rollback")]) => {
            let (change, wish) = match *verb {
                "activate" => parse::<Activation>(event)?.parts()?,
                "retire" => (Change::Retire, parse(event)?),
                _ => (Change::Rollback, parse(event)?),
            };
            Ok(json_answer(200, &operator.change_workflow(name, change, &wish, caller(event)).await?, &[]))
        }
        ("GET", ["charts"]) => Ok(json_answer(200, &operator.last_hour(Timestamp::now()).await?, &[])),
        ("GET", ["leases"]) => Ok(json_answer(200, &Leases { leases: operator.leases().await? }, &[])),
        (_, ["orders" | "workflows" | "jobs"]) => Err(problem::wrong_method("GET, POST")),
        (
            _,
            ["agents" | "charts" | "leases" | "queues" | "overview" | "console"]
            | ["details" | "console" | "jobs", _]
            | ["jobs", _, "results"]
            | ["details", _, "record"]
            | ["details", _, "items", _]
            | ["workflows", _],
        ) => Err(problem::wrong_method("GET")),
        (_, ["workflows", _, verb]) => Err(problem::wrong_method(if VERBS.contains(verb) { "POST" } else { "GET" })),
        (
            _,
            ["orders", _, "actions", _]
            | ["orders", _, "erasure"]
            | ["jobs", _, "pause" | "resume" | "abort"]
            | ["agents", _, "pause" | "resume"]
            | ["queues", _, "redrive"],
        ) => Err(problem::wrong_method("POST")),
        _ => {
            let path = event.raw_path.as_deref().unwrap_or("/");
            Err(problem::no_such_route(None, format!("{method} {path} is not a route; GET /orders lists orders")))
        }
    }
}

fn static_file(event: &ApiGatewayV2httpRequest, path: &[&str]) -> Result<ApiGatewayV2httpResponse, Problem> {
    let file = match path {
        [] if event.raw_path.as_deref().is_some_and(|path| path.ends_with('/')) => return Ok(console::without_slash()),
        [] => console::file(None),
        [name] => console::file(Some(name)),
        _ => None,
    };
    let none = || format!("the console has no file `{}`; open /console", path.join("/"));
    file.ok_or_else(|| problem::no_such_route(None, none()))
}

async fn post_act(
    operator: &Operator,
    event: &ApiGatewayV2httpRequest,
    id: &str,
    name: &str,
) -> Result<ApiGatewayV2httpResponse, Problem> {
    let body: act::Body = parse_up_to(event, if name == "resubmit" { MAX_RESUBMISSION } else { MAX_BODY })?;
    let what = act::what(name, &body).unwrap_or_else(|| {
        let names = act::NAMES.join(", ");
        let detail = format!(
            "there is no action `{name}`; write one of {names}, {}, {}, {}",
            migrate::NAME,
            again::NAME,
            mend::NAME
        );
        Err(problem::no_such_route(None, detail))
    })?;
    traces::set("act", name.to_owned());
    let (by, reason) = act::who_and_why(caller(event), body.by.as_deref(), body.reason.as_deref())?;
    let none = || act::no_such_order(id);
    let id = Id::parse(id).ok_or_else(none)?;
    traces::set("task.id", id.0.clone());
    let act = Act { what, by, reason, seen: body.if_version };
    let step = body.step;
    let answer = |outcome: &'static str, version: u64| {
        done(&Done { order_id: id.clone(), outcome: outcome.into(), version }, version)
    };
    match operator.act(id.clone(), act).await.map_err(|e| act::unavailable(&e))? {
        Outcome::Applied(version) => Ok(answer("applied", version)),
        Outcome::Repeated(version) => Ok(answer("repeated", version)),
        Outcome::NotAllowed { why: Refusal::UnknownStep } => {
            Err(operator.no_such_step(&id, &step.unwrap_or_default()).await)
        }
        Outcome::NotAllowed { why } => Err(problem::not_allowed(None, why.to_string())),
        Outcome::Moved { version } => {
            let detail = format!("the order is now at version {version}; read it again and decide anew");
            Err(problem::order_moved("if_version", detail))
        }
        Outcome::NotFound => Err(none()),
    }
}

/// The answer to what was done to an order, now at this version.
fn done(what: &impl Serialize, version: u64) -> ApiGatewayV2httpResponse {
    json_answer(200, what, &[("etag", &format!("\"{version}\""))])
}

fn parse<T: DeserializeOwned>(event: &ApiGatewayV2httpRequest) -> Result<T, Problem> {
    parse_up_to(event, MAX_BODY)
}

fn parse_up_to<T: DeserializeOwned>(event: &ApiGatewayV2httpRequest, most: usize) -> Result<T, Problem> {
    check_media_type(event)?;
    let body = body(event)?;
    if body.len() > most {
        let detail = format!("the body has {} bytes; the limit is {most}", body.len());
        return Err(problem::too_large(None, detail));
    }
    read(&body)
}
