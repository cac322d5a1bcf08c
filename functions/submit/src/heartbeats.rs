//! Heartbeats: an agent reports that it still works on an attempt, and learns its deadline.

use crate::Submit;
use crate::data;
use crate::problem::{self, Problem};
use crate::submission::unavailable;
use aws_lambda_events::event::apigw::{ApiGatewayV2httpRequest, ApiGatewayV2httpResponse};
use edge::http::{body, check_media_type, json_answer};
use edge::query;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::decision::{Event, Kept, Progress};
use shared::engine::Handled;
use shared::order::Id;
use shared::task::{Phase, Task};
use shared::time::Timestamp;
use shared::workflow::accept::is_token;
use shared::workflow::beat::{MAX_NOTE, scope};

/// Longest body of a heartbeat, in bytes.
pub const MAX_BODY: usize = 1024;

/// The answer to a heartbeat that counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Alive {
    /// Time until which the agent may go on, unless a later heartbeat is answered (UTC, milliseconds).
    pub complete_by: Timestamp,
}

/// Takes the heartbeat of an attempt. Only an answer 200 moves CompleteBy. After 404 or 409 the agent stops at once,
/// and otherwise at the known CompleteBy.
pub(crate) async fn post(
    submit: &Submit,
    event: &ApiGatewayV2httpRequest,
    (id, step, attempt, token): (&str, &str, &str, &str),
) -> Result<ApiGatewayV2httpResponse, Problem> {
    query::read(event, &[])?;
    check_media_type(event)?;
    let order = Id::parse(id).ok_or_else(unknown)?;
    let number: u32 = attempt.parse().map_err(|_| unknown())?;
    let task = submit.engine.store.load(&order).await.map_err(|e| unavailable(&e))?.ok_or_else(unknown)?;
    let secret = task.secret.as_deref().unwrap_or_default();
    // No request ever had an address with `+1` or `01`.
    if attempt != number.to_string() || !is_token(token, secret, &scope(step, number)) {
        return Err(unknown());
    }
    let progress = progress(&body(event)?)?;
    Ok(json_answer(200, &submit.beat(&order, step, number, progress).await?, &[]))
}

impl Submit {
    /// Keeps this attempt at a step of the order `id` alive.
    ///
    /// # Errors
    /// A problem: the attempt is over, or a table did not answer, so nothing is known.
    pub async fn beat(&self, id: &Id, step: &str, attempt: u32, progress: Progress) -> Result<Alive, Problem> {
        let beat = Event::Beat { step: step.to_owned(), attempt, progress };
        let handled = self.engine.handle(vec![(id.clone(), beat)]).await.pop().expect("one answer for one event");
        let task = match handled.map_err(|e| unavailable(&e))? {
            Handled::Applied(task) | Handled::Kept(Kept::Alive, task) => task,
            Handled::Kept(_, task) => return Err(over(&task)),
            Handled::NoSuchTask => return Err(unknown()),
        };
        let workflow = self.engine.workflow(&task.workflow_hash).await.map_err(|e| unavailable(&e))?;
        let claim = workflow.position(step).and_then(|index| task.holds(index, attempt));
        // The answer is the stored time: the agent stops then, and an undo may soon begin.
        claim.map(|(_, complete_by)| Alive { complete_by }).ok_or_else(|| over(&task))
    }
}

/// The same answer for any wrong address, so that it says nothing about the order.
fn unknown() -> Problem {
    problem::no_such_heartbeat(
        "token",
        "no attempt has this address; use the address in the request, and stop the work if that is refused, too",
    )
}

fn over(task: &Task) -> Problem {
    let why = match task.phase {
        Phase::Undoing | Phase::Undone | Phase::UndoError => "the order is being undone, or the attempt is over",
        Phase::Forward | Phase::Processed | Phase::Error => {
            "the attempt is over: its CompleteBy has passed, it was answered, or another attempt began"
        }
    };
    problem::attempt_over(None, format!("stop the work: {why}"))
}

/// The progress in the body.
fn progress(body: &[u8]) -> Result<Progress, Problem> {
    let mut data = data::object(body, MAX_BODY, "the body", "send only `percent` and `note`")?;
    let fields = data.as_object_mut().expect("an object");
    let percent = match fields.remove("percent") {
        None | Some(Value::Null) => None,
        Some(percent) => {
            let number = percent.as_u64().and_then(|number| u8::try_from(number).ok()).filter(|number| *number <= 100);
            Some(number.ok_or_else(|| problem::invalid_field("percent", "must be a whole number from 0 to 100"))?)
        }
    };
    let note = match fields.remove("note") {
        None | Some(Value::Null) => None,
        Some(Value::String(note)) if note.len() <= MAX_NOTE => Some(note),
        Some(_) => return Err(problem::invalid_field("note", format!("must be a string of at most {MAX_NOTE} bytes"))),
    };
    match fields.keys().next() {
        Some(_) => {
            Err(problem::invalid_field("body", "has a field that is neither `percent` nor `note`; leave it out"))
        }
        None => Ok(Progress { percent, note }),
    }
}
