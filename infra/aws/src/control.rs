//! How agents and queues stand: one item, `control#agents`, with an attribute for each agent that an operator paused, each
//! one that a supervisor found strained, and each queue that a scheduler found too long.

use crate::item::{Item, corrupt, s};
use crate::state_store::{DynamoStore, unavailable};
use aws_sdk_dynamodb::types::AttributeValue;
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::agents::{Agents, Pause};
use shared::overload::Wait;
use shared::ports::Error;
use shared::strain::Strain;
use std::collections::BTreeMap;

const KEY: &str = "control#agents";
/// Before the agent's or queue's name, so that no name meets another attribute.
const PAUSED: &str = "agent#";
const STRAINED: &str = "strain#";
const WAIT: &str = "wait#";

impl DynamoStore {
    /// How agents and queues stand, by a consistent read.
    ///
    /// # Errors
    /// The table's.
    pub async fn read_agents(&self) -> Result<Agents, Error> {
        let key = Item::from([("pk".into(), s(KEY))]);
        let item = self.get(&self.state_table, key, KEY).await?.unwrap_or_default();
        Ok(Agents { paused: all(&item, PAUSED)?, strained: all(&item, STRAINED)?, waits: all(&item, WAIT)? })
    }

    /// Pauses the agent called `name`, or resumes it (`None`). Other agents' entries are not touched.
    ///
    /// # Errors
    /// The table's.
    pub async fn set_agent(&self, name: &str, pause: Option<&Pause>) -> Result<(), Error> {
        let update = self.client.update_item().table_name(&self.state_table).key("pk", s(KEY));
        let update = update.expression_attribute_names("#agent", format!("{PAUSED}{name}"));
        let update = match pause {
            Some(pause) => {
                update.update_expression("SET #agent = :pause").expression_attribute_values(":pause", json(pause))
            }
            None => update.update_expression("REMOVE #agent"),
        };
        update.send().await.map(drop).map_err(|e| unavailable(KEY, e))
    }

    pub(crate) async fn set_wait(&self, queue: &str, wait: &Wait) -> Result<(), Error> {
        let update = self.client.update_item().table_name(&self.state_table).key("pk", s(KEY));
        let update = update
            .update_expression("SET #wait = :wait")
            .expression_attribute_names("#wait", format!("{WAIT}{queue}"))
            .expression_attribute_values(":wait", json(wait));
        update.send().await.map(drop).map_err(|e| unavailable(KEY, e))
    }

    pub(crate) async fn replace_strain(
        &self,
        agent: &str,
        strain: &Strain,
        seen: Option<&Strain>,
    ) -> Result<bool, Error> {
        let update = self.client.update_item().table_name(&self.state_table).key("pk", s(KEY));
        let update = update
            .update_expression("SET #strain = :strain")
            .expression_attribute_names("#strain", format!("{STRAINED}{agent}"))
            .expression_attribute_values(":strain", json(strain));
        let update = match seen {
            None => update.condition_expression("attribute_not_exists(#strain)"),
            Some(seen) => {
                update.condition_expression("#strain = :seen").expression_attribute_values(":seen", json(seen))
            }
        };
        match update.send().await {
            Ok(_) => Ok(true),
            Err(error)
                if error.as_service_error().is_some_and(|e| {
                    e.is_conditional_check_failed_exception() || e.is_transaction_conflict_exception()
                }) =>
            {
                Ok(false)
            }
            Err(error) => Err(unavailable(KEY, error)),
        }
    }
}

/// The attributes with this prefix, by the rest of their names.
fn all<T: DeserializeOwned>(item: &Item, prefix: &str) -> Result<BTreeMap<String, T>, Error> {
    let found = item.iter().filter_map(|(attribute, value)| {
        let name = attribute.strip_prefix(prefix)?;
        let AttributeValue::S(json) = value else { return None };
        let read = serde_json::from_str(json).map(|value| (name.to_owned(), value));
        Some(read.map_err(|e| corrupt(KEY, format!("`{attribute}`: {e}"))))
    });
    found.collect()
}

fn json(value: &impl Serialize) -> AttributeValue {
    s(serde_json::to_string(value).expect("entries have only string keys"))
}
