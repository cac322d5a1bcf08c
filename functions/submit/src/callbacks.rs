//! Callbacks: a service's reports about accepted work, at the address that it was handed.

use crate::Submit;
use crate::data;
use crate::problem::{self, Problem};
use crate::submission::{MAX_TEXT, unavailable};
use aws_lambda_events::event::apigw::{ApiGatewayV2httpRequest, ApiGatewayV2httpResponse};
use edge::http::{body, check_media_type, json_answer};
use edge::query;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::decision::{Declined, Event, Kept};
use shared::engine::Handled;
use shared::order::{Id, canonical_hash};
use shared::workflow::accept::{MAX_CALLBACK, is_token, scope};
use stepwarden_aws::metrics;

/// The answer to a callback that is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CallbackAccepted {
    /// The order.
    pub order_id: Id,
    /// The step whose work it ends.
    pub step: String,
}

/// Takes a service's report about a step. The service needs only the address. A repeated report gets the same answer.
pub(crate) async fn post(
    submit: &Submit,
    event: &ApiGatewayV2httpRequest,
    (id, step, token): (&str, &str, &str),
) -> Result<ApiGatewayV2httpResponse, Problem> {
    query::read(event, &[])?;
    check_media_type(event)?;
    let order = Id::parse(id).ok_or_else(unknown)?;
    let task = submit.engine.store.load(&order).await.map_err(|e| unavailable(&e))?.ok_or_else(unknown)?;
    let secret = task.secret.as_deref().unwrap_or_default();
    let handed_out = |round: u32| is_token(token, secret, &scope(step, round));
    if !handed_out(0) || task.steps.iter().any(|step| step.rounds.is_some()) {
        let workflow = submit.engine.workflow(&task.workflow_hash).await.map_err(|e| unavailable(&e))?;
        let now = workflow.position(step).map(|index| task.steps[index].rounds()).ok_or_else(unknown)?;
        if !handed_out(now) {
            // This may be a repeated report of a step that has been done again since.
            return Err(if (0..now).any(handed_out) { refusal(Declined::Late) } else { unknown() });
        }
    }
    let data = data::object(
        &body(event)?,
        MAX_CALLBACK,
        "the body",
        "store large data elsewhere and report a reference to it",
    )?;
    let given = event.headers.get("idempotency-key").and_then(|value| value.to_str().ok()).map(str::trim);
    let key = match given.filter(|key| !key.is_empty() && key.len() <= MAX_TEXT) {
        Some(key) => key.to_owned(),
        // The data: most services send no key.
        None => canonical_hash(&data),
    };
    submit.call_back(&order, step, &key, data).await?;
    let accepted = CallbackAccepted { order_id: order, step: step.to_owned() };
    Ok(json_answer(202, &accepted, &[]))
}

impl Submit {
    /// Records a service's report about a step of the order `id`, or recognises a repeated one.
    ///
    /// # Errors
    /// A problem. Then nothing was written, except possibly behind `unavailable`; repeat the request to find out.
    pub async fn call_back(&self, id: &Id, step: &str, key: &str, data: Value) -> Result<(), Problem> {
        let called = Event::CalledBack { step: step.to_owned(), key: key.to_owned(), data };
        let handled = self.engine.handle(vec![(id.clone(), called)]).await.pop().expect("one answer for one event");
        match handled.map_err(|e| unavailable(&e))? {
            Handled::Applied(_) | Handled::Kept(Kept::Repeated, _) => Ok(()),
            Handled::Kept(Kept::Declined(why), task) => {
                metrics::EVENTS_REFUSED.add(&task.workflow);
                Err(refusal(why))
            }
            Handled::Kept(..) | Handled::NoSuchTask => Err(unknown()),
        }
    }
}

/// The same answer for any wrong address, so that it says nothing about the order.
fn unknown() -> Problem {
    problem::no_such_callback(
        "token",
        "no step of an order has this address; use it exactly as you received it, with the whole token",
    )
}

fn refusal(why: Declined) -> Problem {
    match why {
        Declined::Unfit | Declined::NotTaken | Declined::NoPerson | Declined::SamePerson => {
            let detail = "`output` of the step has no value for this body; send the fields that it reads";
            problem::event_refused("body", detail)
        }
        Declined::TooLong => problem::event_refused("body", why.to_string()),
        Declined::KeyReused => problem::event_key_reused("Idempotency-Key", why.to_string()),
        Declined::Unknown => unknown(),
        Declined::Early | Declined::RunsAgain => problem::event_late(
            None,
            "the order has not called the service yet; send the callback again after that call",
        ),
        Declined::Late | Declined::Full => {
            let detail = "stop, because the step no longer waits for this callback: it already has one, ended in \
                another way or ran again, or the order has ended or is being undone";
            problem::event_late(None, detail)
        }
    }
}
