//! Checks of tables and queues: can they be reached, and are they as template.yaml and `stepwarden up` create them?

use super::{Check, clock, fail, ok, warn};
use crate::call::{cause, http};
use aws_sdk_dynamodb::config::ProvideCredentials;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::types::{KeySchemaElement, KeyType, TimeToLiveStatus};
use aws_sdk_sqs::types::QueueAttributeName as Attribute;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use std::collections::HashMap;
use std::time::Duration;
use stepwarden_aws::config::queue;
use stepwarden_aws::schema::{MAX_RECEIVES, consumed};
use stepwarden_aws::state_store::{ATTENTION_INDEX, DUE_INDEX};
use stepwarden_aws::{Clients, Config};
use stepwarden_local::system::{NAME_PREFIX, VISIBILITY_TIMEOUT_S};

/// Queues that are checked concurrently.
const AT_ONCE: usize = 8;
/// The attribute of DynamoDB's time to live.
const TTL: &str = "ttl";

/// What to check.
pub(super) struct Place {
    pub clients: Clients,
    pub config: Config,
    /// URL of the endpoint; `None` for a deployment.
    pub url: Option<String>,
    /// The port of the endpoint in the process of `stepwarden up` was guessed; otherwise `AWS_ENDPOINT_URL` names the
    /// endpoint.
    pub is_guess: bool,
}

/// An error of a call.
struct Trouble {
    code: String,
    text: String,
}

impl Trouble {
    fn new<E, R>(error: &SdkError<E, R>) -> Self
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
        R: std::fmt::Debug + 'static,
    {
        let code = error.code().unwrap_or_default().to_owned();
        let text = error.message().map_or_else(|| cause(error), str::to_owned);
        Self { code, text }
    }

    fn is_missing(&self) -> bool {
        ["ResourceNotFound", "NonExistentQueue", "QueueDoesNotExist"].iter().any(|word| self.code.contains(word))
    }

    /// The endpoint was not reached, or did not understand the call, so the next call would fail in the same way.
    fn ends_all(&self) -> bool {
        !self.is_missing() && !self.code.contains("AccessDenied")
    }

    fn told(&self) -> String {
        if self.code.is_empty() { self.text.clone() } else { format!("{}: {}", self.code, self.text) }
    }

    fn hint(&self, place: &Place) -> String {
        let is = |words: &[&str]| words.iter().any(|word| self.code.contains(word));
        if self.is_missing() {
            return place.remake();
        }
        if is(&["UnrecognizedClient", "InvalidSignature", "ExpiredToken", "InvalidClientTokenId", "MissingAuth"]) {
            return "get new credentials, for example: eval \"$(aws configure export-credentials --format env)\""
                .into();
        }
        if is(&["AccessDenied"]) {
            return "allow these credentials to describe tables and read queue attributes, or use others".into();
        }
        match &place.url {
            None => "check the network, the region and AWS_ENDPOINT_URL".into(),
            Some(_) if place.is_guess => {
                "set AWS_ENDPOINT_URL to the AWS endpoints that `stepwarden up` printed".into()
            }
            Some(url) => format!("is the emulator at {url} running? AWS_ENDPOINT_URL names it"),
        }
    }
}

impl Place {
    /// What to do in a deployment, or elsewhere.
    fn either(&self, deployed: &'static str, elsewhere: &'static str) -> &'static str {
        if self.url.is_none() { deployed } else { elsewhere }
    }

    fn remake(&self) -> String {
        let deployed = "deploy template.yaml again, or correct the names in the environment";
        self.either(deployed, "restart `stepwarden up`: it creates what is missing").into()
    }

    fn full(&self, name: &str) -> String {
        if self.url.is_none() { self.config.queue_url(name) } else { format!("{NAME_PREFIX}{name}") }
    }
}

/// The checks of a place.
pub(super) async fn at(place: &Place) -> Vec<Check> {
    let mut checks = Vec::new();
    if !place.is_guess {
        checks.extend(settings(place).await);
        if checks.iter().any(|check| check.status == super::Verdict::Fail) {
            return checks;
        }
    }
    let call = place.clients.dynamodb.describe_table().table_name(&place.config.state_table).send().await;
    if let Err(trouble) = call.as_ref().map_err(Trouble::new)
        && trouble.ends_all()
    {
        checks.push(match &place.url {
            // The URL is only a guess: `up` may use other tables, queues or ports.
            Some(url) if place.is_guess => {
                let detail = format!("tables and queues were not checked: no answer at {url}: {}", trouble.told());
                warn("endpoint", detail, trouble.hint(place))
            }
            _ => fail("endpoint", trouble.told(), trouble.hint(place)),
        });
        return checks;
    }
    checks.push(ok("endpoint", format!("{} answers", place.url.as_deref().unwrap_or("DynamoDB"))));
    checks.push(orders_table(place).await);
    checks.push(state_table(place).await);
    checks.extend(queues(place).await);
    checks
}

/// Region, credentials and clock, on which signatures depend.
async fn settings(place: &Place) -> Vec<Check> {
    let mut checks = Vec::new();
    let sdk = &place.clients.sdk;
    let region = match sdk.region() {
        Some(region) => region.to_string(),
        None => {
            let hint = "set AWS_REGION, or a region in the profile";
            return vec![fail("region", "not set", hint)];
        }
    };
    checks.push(ok("region", region.clone()));
    let found = match sdk.credentials_provider() {
        Some(provider) => provider.provide_credentials().await.map_err(|error| cause(&error)),
        None => Err("no provider".into()),
    };
    match found {
        Ok(found) if found.expiry().is_some_and(|end| end < std::time::SystemTime::now()) => {
            checks.push(fail("credentials", "expired", "get new ones"));
        }
        Ok(found) => checks.push(ok("credentials", format!("access key {}", found.access_key_id()))),
        Err(why) => {
            let hint = place.either(
                "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                "emulators accept any: AWS_ACCESS_KEY_ID=any AWS_SECRET_ACCESS_KEY=any",
            );
            checks.push(fail("credentials", why, hint));
            return checks;
        }
    }
    let url = place.url.clone().unwrap_or_else(|| format!("https://dynamodb.{region}.amazonaws.com/"));
    let http = http().timeout(Duration::from_secs(5)).build();
    // The next check shows whether the endpoint can be reached.
    if let Ok(http) = http
        && let Ok(answer) = http.get(url).send().await
    {
        checks.extend(clock("the endpoint's", answer.headers(), Timestamp::now()));
    }
    checks
}

async fn orders_table(place: &Place) -> Check {
    let name = &place.config.orders_table;
    let check = format!("table {name}");
    match place.clients.dynamodb.describe_table().table_name(name).send().await {
        Ok(answer) => {
            let table = answer.table();
            let wrong = wrong_keys(table.map_or(&[], |table| table.key_schema()), "bucket", Some("sort"));
            verdict(&check, wrong, "keys", place)
        }
        Err(error) => refused(&check, &Trouble::new(&error), place),
    }
}

async fn state_table(place: &Place) -> Check {
    let name = &place.config.state_table;
    let check = format!("table {name}");
    let dynamodb = &place.clients.dynamodb;
    let answer = match dynamodb.describe_table().table_name(name).send().await {
        Ok(answer) => answer,
        Err(error) => return refused(&check, &Trouble::new(&error), place),
    };
    let table = answer.table();
    let mut wrong = wrong_keys(table.map_or(&[], |table| table.key_schema()), "pk", None);
    for (index, hash, range) in [(DUE_INDEX, "shard", "due"), (ATTENTION_INDEX, "attention", "updated_at")] {
        let all = table.map_or(&[][..], |table| table.global_secondary_indexes());
        let found = all.iter().find(|one| one.index_name() == Some(index));
        let why = match found {
            None => Some(format!("index {index} is missing")),
            Some(found) => wrong_keys(found.key_schema(), hash, Some(range)).map(|why| format!("index {index}: {why}")),
        };
        wrong = wrong.or(why);
    }
    if wrong.is_some() {
        return verdict(&check, wrong, "", place);
    }
    match dynamodb.describe_time_to_live().table_name(name).send().await {
        Ok(answer) => {
            let ttl = answer.time_to_live_description();
            let is_on = ttl.is_some_and(|ttl| {
                ttl.attribute_name() == Some(TTL)
                    && [Some(&TimeToLiveStatus::Enabled), Some(&TimeToLiveStatus::Enabling)]
                        .contains(&ttl.time_to_live_status())
            });
            if is_on {
                return verdict(&check, None, "keys, indexes and TTL", place);
            }
            let detail = format!("TTL on `{TTL}` is off, so no retention takes effect");
            warn(
                &check,
                detail,
                "enable it on the table; without it, RETENTION_DAYS and the `retention` of a workflow do nothing",
            )
        }
        Err(error) => refused(&check, &Trouble::new(&error), place),
    }
}

fn verdict(check: &str, wrong: Option<String>, good: &str, place: &Place) -> Check {
    match wrong {
        None => ok(check, format!("exists, with its {good}")),
        Some(why) => {
            let hint = place.either(
                "this is another table: correct the names in the environment",
                "another program or an older version created it: save its contents, delete it and restart `stepwarden up`",
            );
            fail(check, why, hint)
        }
    }
}

fn refused(check: &str, trouble: &Trouble, place: &Place) -> Check {
    let detail = if trouble.is_missing() { "is missing".to_owned() } else { trouble.told() };
    fail(check, detail, trouble.hint(place))
}

/// What is wrong with a table's or an index's keys.
fn wrong_keys(schema: &[KeySchemaElement], hash: &str, range: Option<&str>) -> Option<String> {
    let of = |kind: KeyType| schema.iter().find(|key| *key.key_type() == kind).map(KeySchemaElement::attribute_name);
    let found = (of(KeyType::Hash), of(KeyType::Range));
    let named = |name: Option<&str>| name.unwrap_or("none").to_owned();
    (found != (Some(hash), range)).then(|| {
        let (has, wants) = ([found.0, found.1].map(named), [Some(hash), range].map(named));
        format!("its keys are {}, but should be {}", has.join(" and "), wants.join(" and "))
    })
}

/// What a queue should be.
struct Wanted {
    name: String,
    /// Its dead-letter queue, if functions consume the queue.
    dead: Option<String>,
}

async fn queues(place: &Place) -> Vec<Check> {
    let mut all = Vec::new();
    for one in consumed(&place.config) {
        let dead = queue::dead(&one.of);
        if one.name == one.of {
            all.push(Wanted { name: dead.clone(), dead: None });
        }
        all.push(Wanted { name: one.name, dead: Some(dead) });
    }
    let more = place.config.reply_queues.names().map(queue::notices).chain([queue::SET_ASIDE.to_owned()]);
    all.extend(more.map(|name| Wanted { name, dead: None }));
    let count = all.len();
    let looks = stream::iter(all).map(|wanted| look(place, wanted)).buffered(AT_ONCE);
    let wrong: Vec<Check> = looks.filter_map(std::future::ready).collect().await;
    if wrong.is_empty() {
        return vec![ok("queues", format!("{count} exist, with dead letters after {MAX_RECEIVES} receives"))];
    }
    wrong
}

/// What is wrong with a queue.
async fn look(place: &Place, Wanted { name, dead }: Wanted) -> Option<Check> {
    let check = format!("queue {name}");
    let attributes = match attributes(place, &name).await {
        Ok(attributes) => attributes,
        Err(trouble) => return Some(refused(&check, &trouble, place)),
    };
    let dead = dead?;
    let policy: serde_json::Value =
        attributes.get(&Attribute::RedrivePolicy).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let target = policy["deadLetterTargetArn"].as_str().unwrap_or_default();
    let full = place.full(&dead);
    let full = full.rsplit('/').next().unwrap_or_default();
    if target.rsplit(':').next() != Some(full) {
        let detail = format!("its dead letters do not go to {full}");
        return Some(fail(
            &check,
            detail,
            "a message that kills its consumer is redelivered forever: set the queue's RedrivePolicy",
        ));
    }
    // SQS takes and gives it as a number and as text.
    let receives = policy["maxReceiveCount"].as_u64().or_else(|| policy["maxReceiveCount"].as_str()?.parse().ok());
    if receives != Some(MAX_RECEIVES.into()) {
        let detail = format!("maxReceiveCount is {}", receives.unwrap_or_default());
        return Some(warn(&check, detail, format!("set it to {MAX_RECEIVES} in its RedrivePolicy")));
    }
    let visibility = attributes.get(&Attribute::VisibilityTimeout).and_then(|text| text.parse::<u32>().ok());
    if visibility.is_none_or(|seconds| seconds < VISIBILITY_TIMEOUT_S) {
        let detail = format!("its visibility timeout is {} s", visibility.unwrap_or_default());
        let hint = format!(
            "set it to {VISIBILITY_TIMEOUT_S} s or more, or messages are redelivered while they are being handled"
        );
        return Some(warn(&check, detail, hint));
    }
    None
}

async fn attributes(place: &Place, name: &str) -> Result<HashMap<Attribute, String>, Trouble> {
    let sqs = &place.clients.sqs;
    let full = place.full(name);
    let url = if place.url.is_none() {
        full
    } else {
        let answer = sqs.get_queue_url().queue_name(full).send().await.map_err(|e| Trouble::new(&e))?;
        answer.queue_url.unwrap_or_default()
    };
    let wanted = vec![Attribute::RedrivePolicy, Attribute::VisibilityTimeout];
    let request = sqs.get_queue_attributes().queue_url(url).set_attribute_names(Some(wanted));
    Ok(request.send().await.map_err(|e| Trouble::new(&e))?.attributes.unwrap_or_default())
}
