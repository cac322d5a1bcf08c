//! Links: pages where whoever has a step's link answers in a browser, without signing in.
//!
//! Programs that check mails open every address in them, so GET changes nothing. It shows a form, which sends the
//! event.

use crate::Submit;
use crate::problem::{self, Problem};
use crate::submission::unavailable;
use aws_lambda_events::event::apigw::{ApiGatewayV2httpRequest, ApiGatewayV2httpResponse};
use edge::http::{answer, body, header};
use edge::query;
use serde_json::{Map, Value};
use shared::order::{Id, canonical_hash};
use shared::step::State;
use shared::task::{Arrival, Phase, Task};
use shared::workflow::Workflow;
use shared::workflow::link::{Link, is_token};
use std::sync::Arc;

/// Longest reason, in characters.
pub const MAX_REASON: usize = 500;
/// Longest form, in bytes. A character of the reason may take twelve.
pub const MAX_FORM: usize = 8 * 1024;
const FORM: &str = "application/x-www-form-urlencoded";
/// The page may only send its form to where it came from.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; \
     frame-ancestors 'none'";
const STYLE: &str = "body{font:1.1rem/1.5 system-ui,sans-serif;max-width:36rem;margin:12vh auto;padding:0 1rem}\
     h1{font-size:1.4rem}textarea{display:block;width:100%;box-sizing:border-box;font:inherit;margin:.3rem 0 1rem}\
     button{font:inherit;padding:.5rem 1.2rem;margin:0 .6rem .6rem 0}p.small{color:#555;font-size:.95rem}\
     @media(prefers-color-scheme:dark){body{background:#111;color:#eee}p.small{color:#aaa}}";

/// The step that a link leads to.
struct Found {
    task: Task,
    workflow: Arc<Workflow>,
    index: usize,
}

impl Found {
    fn link(&self) -> (&Link, &str) {
        self.workflow.steps[self.index].link().expect("it was found by its link")
    }
}

/// The page of a link, or the answer to its form. A refusal is a page, too.
pub(crate) async fn page(
    submit: &Submit,
    event: &ApiGatewayV2httpRequest,
    at: (&str, &str, &str),
) -> ApiGatewayV2httpResponse {
    let page = match event.request_context.http.method.as_str() {
        "POST" => send(submit, event, at).await,
        _ => form(submit, at).await,
    };
    match page {
        Ok((title, rest)) => html(200, &title, &rest),
        Err(problem) => refused(&problem),
    }
}

/// The question, and a button for each answer.
async fn form(submit: &Submit, at: (&str, &str, &str)) -> Result<(String, String), Problem> {
    let found = find(submit, at).await?;
    let until = found.until()?;
    let input = submit.engine.input(&found.task, &found.workflow).await.map_err(|e| unavailable(&e))?;
    let question = found.workflow.question(&found.task, found.index, &input).unwrap_or_default();
    let (link, _) = found.link();
    let buttons = match link.answers.as_slice() {
        [] => "<button>Send</button>".to_owned(),
        answers => {
            let button = |one: String| format!("<button name=\"answer\" value=\"{one}\">{one}</button>");
            answers.iter().map(|one| button(escape(one))).collect()
        }
    };
    let until = until.map(|until| format!(" It can be answered until {}.", escape(&until))).unwrap_or_default();
    let name = found.task.reference.as_deref().unwrap_or(&found.task.id.0);
    let rest = format!(
        "<p class=\"small\">Order {} of the workflow {}.{until}</p>\
         <form method=\"post\"><label>Reason, if you want to give one<textarea name=\"reason\" rows=\"3\" \
         maxlength=\"{MAX_REASON}\"></textarea></label><input type=\"hidden\" name=\"round\" value=\"{}\">{buttons}</form>",
        escape(name),
        escape(&found.workflow.name),
        found.round(),
    );
    Ok((question, rest))
}

/// Sends the event with the form's answer.
async fn send(
    submit: &Submit,
    event: &ApiGatewayV2httpRequest,
    at: (&str, &str, &str),
) -> Result<(String, String), Problem> {
    let found = find(submit, at).await?;
    let (link, name) = found.link();
    let (data, round) = data(event, link)?;
    let (data, now) = (Value::Object(data), found.round());
    // A repeated answer is the same event; a different one comes too late. Keys count for the whole order, so other
    // steps and earlier waits need other keys.
    let key = format!("link:{}:{}:{}", at.1, round.unwrap_or(now), canonical_hash(&data));
    let said = data["answer"].as_str().map_or_else(|| "Sent.".to_owned(), |answer| format!("Sent: {answer}"));
    let stored = (said, "<p>Your answer is stored. You can close this page.</p>".to_owned());
    match found.task.events.iter().find(|event| event.key == key) {
        // Browsers re-send a form when they show an old page.
        Some(known) if round.is_some_and(|round| round != now) && known.step.is_some() => return Ok(stored),
        Some(_) => {}
        None => drop(found.until()?),
    }
    if round.is_some_and(|round| round != now) {
        return Err(problem::event_late(None, "the question was asked again"));
    }
    let sent = submit.deliver(&found.task.id, name, &key, data, None).await;
    // The form is short enough, so the order must be full.
    sent.map_err(|why| if why.code == "too_large" { problem::unreadable(None, why.detail) } else { why })?;
    Ok(stored)
}

/// The data of the event (the answer and the reason, if any), and how often this form's question had been answered
/// before.
fn data(event: &ApiGatewayV2httpRequest, link: &Link) -> Result<(Map<String, Value>, Option<usize>), Problem> {
    let media_type = header(event, "content-type").unwrap_or_default().split(';').next().unwrap_or_default();
    if !media_type.trim().eq_ignore_ascii_case(FORM) {
        return Err(problem::unsupported_media_type("Content-Type", format!("send Content-Type: {FORM}")));
    }
    let body = body(event)?;
    if body.len() > MAX_FORM {
        return Err(problem::too_large(None, format!("the form has more than {MAX_FORM} bytes; shorten the reason")));
    }
    let text = String::from_utf8(body).map_err(|_| problem::invalid_field("body", "is not a form"))?;
    let mut data = Map::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let field = ["answer", "reason", "round"].into_iter().find(|field| *field == name);
        let field = field.ok_or_else(|| problem::invalid_field("body", "has a field that the form does not have"))?;
        let value = query::decode(value).map_err(|_| problem::invalid_field(field, "is not percent-encoded UTF-8"))?;
        let value = value.trim().replace("\r\n", "\n");
        if !value.is_empty() && data.insert(field.to_owned(), value.into()).is_some() {
            return Err(problem::invalid_field(field, "is given twice; send the form once"));
        }
    }
    let round = data.remove("round");
    let reason = data.get("reason").and_then(Value::as_str).unwrap_or_default();
    if reason.chars().count() > MAX_REASON {
        return Err(problem::invalid_field("reason", format!("must have at most {MAX_REASON} characters")));
    }
    let answer = data.get("answer").and_then(Value::as_str);
    let round = round.map(|round| round.as_str().and_then(|round| round.parse().ok()));
    if round == Some(None) {
        return Err(problem::invalid_field("round", "is not a number; use the form on the page"));
    }
    let is_one = answer.map_or(link.answers.is_empty(), |answer| link.answers.iter().any(|one| one == answer));
    if !is_one {
        let detail = match link.answers.is_empty() {
            true => "must be left out, because the question has only one button".to_owned(),
            false => format!("must be one of the buttons: {}", link.answers.join(", ")),
        };
        return Err(problem::invalid_field("answer", detail));
    }
    Ok((data, round.flatten()))
}

/// The same answer for any wrong address, so that it says nothing about the order.
async fn find(submit: &Submit, (id, step, token): (&str, &str, &str)) -> Result<Found, Problem> {
    let none = || problem::no_such_link("token", "No question has this address.");
    let id = Id::parse(id).ok_or_else(none)?;
    let task = submit.engine.store.load(&id).await.map_err(|e| unavailable(&e))?.ok_or_else(none)?;
    if !is_token(token, task.secret.as_deref().unwrap_or_default(), step) {
        return Err(none());
    }
    let workflow = submit.engine.workflow(&task.workflow_hash).await.map_err(|e| unavailable(&e))?;
    let index = workflow.position(step).filter(|&index| workflow.steps[index].link().is_some()).ok_or_else(none)?;
    Ok(Found { task, workflow, index })
}

impl Found {
    /// How often the question was answered before, by events that its step took or, when it began to wait, did not
    /// take.
    fn round(&self) -> usize {
        let (_, name) = self.link();
        let is_over = |event: &&Arrival| match event.step {
            Some(step) => usize::from(step) == self.index,
            None => event.name == name && event.data.is_none(),
        };
        // Forms from before the step was put back are invalid.
        let rounds = usize::try_from(self.task.steps[self.index].rounds()).unwrap_or_default();
        let over = self.task.events.iter().filter(is_over).count() + rounds;
        match self.task.steps[self.index].state {
            State::Pending { .. } | State::Waiting { .. } => over,
            _ => over.saturating_sub(1),
        }
    }

    /// Until when the question can be answered, if its time runs. The record decides, as it does for the event.
    fn until(&self) -> Result<Option<String>, Problem> {
        let late = || Err(problem::event_late(None, "closed"));
        let (_, event) = self.link();
        if self.task.again.is_some() {
            return Err(problem::event_early(None, "early"));
        }
        if !matches!(self.task.phase, Phase::Forward | Phase::Error) {
            return late();
        }
        match &self.task.steps[self.index].state {
            // In a pause and in Error, time does not count.
            State::Waiting { .. } if self.task.phase == Phase::Error || self.task.paused_at.is_some() => Ok(None),
            State::Waiting { until, .. } => Ok(Some(until.strftime("%Y-%m-%d %H:%M UTC").to_string())),
            State::Pending { .. } if self.task.kept().any(|kept| kept.name == event) => late(),
            State::Pending { .. } if self.task.to_come(event, &self.workflow).next().is_none() => {
                Err(problem::event_early(None, "early"))
            }
            State::Pending { .. } => Ok(None),
            _ => late(),
        }
    }
}

/// What a person does about a refusal. Problem details are for programs.
fn refused(problem: &Problem) -> ApiGatewayV2httpResponse {
    let (title, what) = match problem.code {
        "no_such_link" => (
            "This link leads nowhere",
            "Open the link as you got it, whole and unchanged. If it still leads here, ask the sender for a new one.",
        ),
        "event_late" | "event_key_reused" => (
            "This question is closed",
            "It has been answered, its time is over, or the order has ended. Nothing was stored. If your answer matters, tell \
             the sender of the link.",
        ),
        "event_early" | "too_many_events" => {
            ("This question is not open yet", "Nothing was stored. Open the link again later.")
        }
        "event_refused" => (
            "This answer was not accepted",
            "Nothing was stored. Go back and give a reason, or choose another answer. If that is refused, too, ask the sender of \
             the link.",
        ),
        "unavailable" => ("Try again", "Nothing was stored, as far as we know. Load this page again in a moment."),
        "unreadable" => ("This does not work at the moment", "Nothing was stored. Tell the sender of the link."),
        _ => ("This form cannot be read", "Nothing was stored. Open the link again, and use the form on its page."),
    };
    // These are sentences for people, too.
    let more = matches!(problem.code, "invalid_field" | "too_large" | "unsupported_media_type");
    let field = problem.field.as_deref().map(|field| format!("{field} ")).unwrap_or_default();
    let more = if more {
        format!("<p class=\"small\">{}{}</p>", escape(&field), escape(&problem.detail))
    } else {
        String::new()
    };
    let mut page = html(i64::from(problem.status), title, &format!("<p>{what}</p>{more}"));
    if let Some(seconds) = problem.retry_after_s {
        page.headers.insert("retry-after", seconds.into());
    }
    page
}

fn html(status: i64, title: &str, rest: &str) -> ApiGatewayV2httpResponse {
    let title = escape(title);
    let page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></head><body><main><h1>{title}</h1>\
         {rest}</main></body></html>"
    );
    let headers = [
        ("content-security-policy", POLICY),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
        ("x-robots-tag", "noindex"),
        ("cache-control", "no-store"),
    ];
    answer(status, "text/html; charset=utf-8", Some(page), &headers)
}

fn escape(text: &str) -> String {
    // `&` first, because it is in all the names.
    let signs = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#39;")];
    signs.into_iter().fold(text.to_owned(), |text, (sign, name)| text.replace(sign, name))
}
