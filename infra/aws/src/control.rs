//! The state of agents and queues: one item, `control#agents`, with an attribute for each agent that an operator
//! paused, each agent that a supervisor found strained, and each queue that a scheduler found too long.

use crate::item::{Item, s};
use crate::sdk_error::{CONDITION, CONFLICT, is_done, unavailable};
use crate::sent::Sent;
use crate::state_store::DynamoStore;
use aws_sdk_dynamodb::operation::update_item::UpdateItemInput;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemInputBuilder;
use aws_sdk_dynamodb::types::AttributeValue;
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::control::{Agents, Pause};
use shared::overload::Waits;
use shared::ports::Error;
use shared::strain::Strain;
use shared::time::Timestamp;
use std::collections::BTreeMap;

const KEY: &str = "control#agents";
/// Prefixes of agents' or queues' names, so that no name collides with another attribute.
const PAUSED: &str = "agent#";
const STRAINED: &str = "strain#";
const WAIT: &str = "wait#";

impl DynamoStore {
    /// The state of agents and queues, by a consistent read.
    ///
    /// # Errors
    /// The table failed.
    pub async fn read_agents(&self) -> Result<Agents, Error> {
        let item = self.record(KEY, KEY).await?.unwrap_or_default();
        let mut paused: BTreeMap<String, Pause> = all(&item, PAUSED);
        // Even an unreadable entry means that this agent is paused.
        for name in item.keys().filter_map(|attribute| attribute.strip_prefix(PAUSED)) {
            paused.entry(name.to_owned()).or_insert_with(|| Pause {
                by: "somebody".into(),
                reason: "its entry in control#agents cannot be read; resume the agent to remove the entry".into(),
                since: Timestamp::UNIX_EPOCH,
            });
        }
        Ok(Agents { paused, strained: all(&item, STRAINED), waits: all(&item, WAIT) })
    }

    /// Pauses the agent called `name`, or resumes it (`None`). Other agents' entries stay as they are.
    ///
    /// # Errors
    /// The table failed.
    pub async fn set_agent(&self, name: &str, pause: Option<&Pause>) -> Result<(), Error> {
        let update = match pause {
            Some(pause) => self.set_entry(PAUSED, name, pause),
            None => self.update_entry(PAUSED, name).update_expression("REMOVE #entry"),
        };
        update.sent(&self.client).await.map(drop).map_err(|e| unavailable(KEY, e))
    }

    pub(crate) async fn set_wait(&self, queue: &str, waits: &Waits) -> Result<(), Error> {
        self.set_entry(WAIT, queue, waits).sent(&self.client).await.map(drop).map_err(|e| unavailable(KEY, e))
    }

    pub(crate) async fn replace_strain(
        &self,
        agent: &str,
        strain: &Strain,
        seen: Option<&Strain>,
    ) -> Result<bool, Error> {
        let update = self.set_entry(STRAINED, agent, strain);
        let update = match seen {
            None => update.condition_expression("attribute_not_exists(#entry)"),
            Some(seen) => {
                update.condition_expression("#entry = :seen").expression_attribute_values(":seen", json(seen))
            }
        };
        is_done(KEY, update.sent(&self.client).await, &[CONDITION, CONFLICT])
    }

    fn update_entry(&self, prefix: &str, name: &str) -> UpdateItemInputBuilder {
        let update = UpdateItemInput::builder().table_name(&self.state_table).key("pk", s(KEY));
        update.expression_attribute_names("#entry", format!("{prefix}{name}"))
    }

    fn set_entry(&self, prefix: &str, name: &str, value: &impl Serialize) -> UpdateItemInputBuilder {
        let update = self.update_entry(prefix, name).update_expression("SET #entry = :entry");
        update.expression_attribute_values(":entry", json(value))
    }
}

/// The attributes with this prefix, by the rest of their names. An unreadable one is left out.
fn all<T: DeserializeOwned>(item: &Item, prefix: &str) -> BTreeMap<String, T> {
    let found = item.iter().filter_map(|(attribute, value)| {
        let name = attribute.strip_prefix(prefix)?;
        let AttributeValue::S(json) = value else { return None };
        match serde_json::from_str(json) {
            Ok(value) => Some((name.to_owned(), value)),
            Err(error) => {
                tracing::warn!(attribute, error = %error, "an entry of {KEY} cannot be read");
                None
            }
        }
    });
    found.collect()
}

pub(crate) fn json(value: &impl Serialize) -> AttributeValue {
    s(serde_json::to_string(value).expect("entries have only string keys"))
}
