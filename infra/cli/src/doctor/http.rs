//! Checks over the API: whether it answers, what the token may do, and the state of the system.

use super::{Check, clock, fail, ok, warn};
use crate::client::{Api, Error};
use crate::show;
use jiff::Timestamp;
use operator::agents::All;
use operator::overview::Overview;
use operator::queues::{Leases, QueueRow, Queues};
use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use shared::visible::visible;

const START: &str = "is `stepwarden up` running? If it is elsewhere, set --url or STEPWARDEN_URL";
const TOKEN: &str =
    "pass it with --token or in STEPWARDEN_TOKEN; `stepwarden up` prints it and keeps it in .stepwarden/token";

/// The API's checks; the first that fails is the last one.
pub(super) async fn checks(api: &Api) -> Vec<Check> {
    let mut checks = Vec::new();
    match api.ask(api.request(Method::GET, "/openapi.json")).await {
        Ok(answer) => {
            let version = visible(answer.body["info"]["version"].as_str().unwrap_or_default());
            if !answer.body["openapi"].is_string() {
                return vec![fail("API", format!("another program answers at {}", api.url), START)];
            }
            let detail = format!("{} answers, version {version}", api.url);
            checks.push(match version == env!("CARGO_PKG_VERSION") {
                true => ok("API", detail),
                false => warn("API", detail, "use the `stepwarden` command of the same version"),
            });
            checks.extend(clock("the API's", &answer.headers, Timestamp::now()));
        }
        Err(Error::NoAnswer { url, cause }) => {
            return vec![fail("API", format!("no answer from {url}: {cause}"), START)];
        }
        Err(Error::Token { .. }) => {}
        Err(error) => return vec![fail("API", error.to_string(), START)],
    }
    let operator = api.read("/agents").await;
    // There is no such order, but only a token that may look up orders gets 404.
    let orders = api.read("/orders/doctor").await;
    let may = |result: &Result<Value, Error>| match result {
        Ok(_) => true,
        Err(Error::Refused(refusal)) => refusal.status == StatusCode::NOT_FOUND,
        Err(_) => false,
    };
    checks.push(match (&operator, may(&orders), may(&operator)) {
        (Err(Error::Token { why, .. }), ..) => fail(
            "token",
            format!("the API {why}"),
            if api.token.is_none() {
                TOKEN
            } else {
                "use a token from the output of `stepwarden up`, or from the file that its option --tokens names"
            },
        ),
        (_, true, true) => ok("token", "may submit and operate"),
        (_, true, false) => {
            warn("token", "may submit, but not operate", "operators' verbs need the scope stepwarden/operator")
        }
        (_, false, true) => warn("token", "may operate, but not submit", "`submit` needs the scope stepwarden/orders"),
        (Err(error), ..) => {
            fail("token", error.to_string(), "ask for the scopes stepwarden/orders and stepwarden/operator")
        }
        (Ok(_), ..) => fail("token", "may neither submit nor operate", "ask for a token with scopes"),
    });
    if let Ok(agents) = operator {
        checks.extend(show::read(&agents).into_iter().flat_map(paused));
        checks.extend(system(api).await);
    }
    checks
}

fn paused(All { agents }: All) -> Vec<Check> {
    let paused = agents.into_iter().filter_map(|agent| Some((agent.name, agent.paused?)));
    let check = |(name, pause): (String, operator::agents::Paused)| {
        let hint = format!("stepwarden resume-agent {name} --reason TEXT, once the reason no longer applies");
        warn("agent", format!("{name} is paused by {}: {}", pause.by, pause.reason), hint)
    };
    paused.map(check).collect()
}

async fn read<T: DeserializeOwned>(api: &Api, path: &str) -> Result<T, String> {
    let answer = api.read(path).await.map_err(|error| error.to_string())?;
    show::read(&answer).ok_or_else(|| format!("another version of the system answers {answer}"))
}

async fn system(api: &Api) -> Vec<Check> {
    let mut checks = Vec::new();
    checks.push(match read(api, "/leases").await {
        Ok(Leases { leases }) => match leases.into_iter().find_map(|lease| lease.holder) {
            Some(holder) => ok("supervisor", format!("led by {holder}")),
            None => warn(
                "supervisor",
                "no supervisor leads at the moment, which is normal between two sweeps",
                "check again with `stepwarden leader`; if there is still none, see Supervisor silent in \
                 docs/runbook.md",
            ),
        },
        Err(error) => fail("supervisor", error, "see the lines about tables below"),
    });
    checks.push(match read(api, "/queues").await {
        Ok(Queues { queues }) => match queues.iter().filter_map(QueueRow::to_redrive).sum() {
            0_u64 => ok("dead letters", "none"),
            n => warn("dead letters", format!("{n} messages"), "stepwarden dlq"),
        },
        Err(error) => fail("dead letters", error, "see the lines about queues below"),
    });
    checks.push(match read(api, "/overview").await {
        Ok(Overview { unreadable: all, .. }) if !all.is_empty() => {
            // Each with its reason, because that says what to do; `overview` has them all.
            let named: Vec<_> = all.iter().take(3).map(|one| format!("{}: {}", one.order_id, one.why)).collect();
            let more = all.len() - named.len();
            let more = if more == 0 { String::new() } else { format!("; and {more} more") };
            let what = format!("{} cannot be read, so they do not continue: {}{more}", all.len(), named.join("; "));
            fail("orders", what, "stepwarden get ORDER_ID --raw; see Record unreadable in docs/runbook.md")
        }
        Ok(Overview { waiting, open, .. }) => match waiting.count.count {
            0 => ok("orders", format!("{} open, none in Error", open.count)),
            n => warn("orders", format!("{n} in Error wait for a person"), "stepwarden overview"),
        },
        Err(error) => fail("orders", error, "see the lines about tables below"),
    });
    checks
}
