//! Events from outside, for the steps of an order that wait for them.

use crate::Submit;
use crate::data;
use crate::http::{find, no_such_order};
use crate::problem::{self, Problem};
use crate::submission::unavailable;
use aws_lambda_events::event::apigw::{ApiGatewayV2httpRequest, ApiGatewayV2httpResponse};
use edge::auth;
use edge::http::{body, check_media_type, idempotency_key, json_answer, person};
use edge::query;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use shared::decision::{Declined, Event, Kept};
use shared::engine::Handled;
use shared::order::Id;
use shared::task::MAX_EVENT;
use shared::workflow::Workflow;
use shared::workflow::file::MAX_NAME;
use stepwarden_aws::metrics;

/// Words about data that is too long.
const WHAT: &str = "the event";
/// When to repeat an event sent while steps are undone to run again, in seconds.
const AGAIN_AFTER_S: u32 = 30;
const ADVICE: &str = "store large data elsewhere and send a reference to it";

/// The answer to an accepted event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventAccepted {
    /// The order.
    pub order_id: Id,
    /// The event's name.
    pub event: String,
    /// The person for whom it counts, if a step that waits for it counts people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Path of the order's status.
    pub status_url: String,
}

/// Gives the order `id` the event called `name`. A caller that lost the answer repeats the request.
pub(crate) async fn post(
    submit: &Submit,
    event: &ApiGatewayV2httpRequest,
    id: &str,
    name: &str,
) -> Result<ApiGatewayV2httpResponse, Problem> {
    auth::check(event, &submit.scopes.orders)?;
    query::read(event, &[])?;
    check_media_type(event)?;
    let data = data::object(&body(event)?, MAX_EVENT, WHAT, ADVICE)?;
    let key = event.headers.get("idempotency-key").map(|value| String::from_utf8_lossy(value.as_bytes()));
    let key = idempotency_key(key.as_deref(), "event")?;
    let (task, _) = find(submit, event, id).await?;
    // Who may only look up orders may not send events.
    if !auth::has_scope(event, &submit.scopes.operator) && submit.scopes.submits(event)? != task.tenant {
        return Err(no_such_order(id));
    }
    let by = submit.deliver(&task.id, name, key, data, person(event)?).await?;
    let status_url = format!("/orders/{}", task.id);
    let accepted = EventAccepted { order_id: task.id, event: name.to_owned(), by, status_url };
    Ok(json_answer(202, &accepted, &[("location", &accepted.status_url)]))
}

impl Submit {
    /// Gives an order an event, or recognises a repeated one. `by` is the person, if an authority vouches for that;
    /// returned if a step counts people.
    ///
    /// # Errors
    /// A problem. Then nothing was written, except possibly behind `unavailable`; repeat the request to find out.
    pub async fn deliver(
        &self,
        id: &Id,
        name: &str,
        key: &str,
        data: Value,
        by: Option<String>,
    ) -> Result<Option<String>, Problem> {
        let arrived = Event::Arrived { name: name.to_owned(), key: key.to_owned(), data, by: by.clone() };
        let handled = self.engine.handle(vec![(id.clone(), arrived)]).await.pop().expect("one answer for one event");
        match handled.map_err(|e| unavailable(&e))? {
            Handled::Applied(task) | Handled::Kept(Kept::Repeated, task) => {
                let workflow = self.engine.workflow(&task.workflow_hash).await.map_err(|e| unavailable(&e))?;
                Ok(by.filter(|_| workflow.counts_people(name)))
            }
            Handled::Kept(Kept::Declined(why), task) => {
                let workflow = self.engine.workflow(&task.workflow_hash).await.map_err(|e| unavailable(&e))?;
                metrics::EVENTS_REFUSED.add(&workflow.name);
                Err(refusal(why, &workflow, name))
            }
            Handled::Kept(..) | Handled::NoSuchTask => Err(no_such_order(&id.0)),
        }
    }
}

/// The data of an event that came in a message or a form, with whole numbers written out, if an order can keep it.
pub(crate) fn checked(data: Map<String, Value>) -> Result<Map<String, Value>, Problem> {
    data::checked(data, MAX_EVENT, WHAT, ADVICE)
}

fn refusal(why: Declined, workflow: &Workflow, name: &str) -> Problem {
    match why {
        Declined::Unknown => {
            let known: Vec<String> = workflow.events().into_iter().map(|name| format!("`{name}`")).collect();
            let name = shared::history::shorten(name, MAX_NAME);
            let known = if known.is_empty() { "no event".into() } else { known.join(", ") };
            let detail =
                format!("no step of the workflow `{}` waits for `{name}`; its steps wait for {known}", workflow.name);
            problem::no_such_event("event", detail)
        }
        Declined::NoPerson => problem::forbidden(None, why.to_string()),
        Declined::KeyReused | Declined::SamePerson => problem::event_key_reused("Idempotency-Key", why.to_string()),
        Declined::Early => problem::event_early(None, why.to_string()),
        // Unlike a step's turn, that comes soon by itself, so a redelivery helps.
        Declined::RunsAgain => problem::event_early(None, why.to_string()).retry_after(AGAIN_AFTER_S),
        Declined::Late => problem::event_late(None, why.to_string()),
        Declined::Full => problem::too_many_events(None, why.to_string()),
        Declined::NotTaken | Declined::Unfit | Declined::TooLong => problem::event_refused("body", why.to_string()),
    }
}
