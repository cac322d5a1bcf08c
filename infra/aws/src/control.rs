//! What operators have paused: one item, `control#agents`, with an attribute for each paused agent. Schedulers and
//! supervisors only read it.

use crate::item::{Item, corrupt, s};
use crate::state_store::{DynamoStore, unavailable};
use aws_sdk_dynamodb::types::AttributeValue;
use shared::agents::{Agents, Pause};
use shared::ports::Error;

const KEY: &str = "control#agents";
/// Before the agent's name, so that no name meets another attribute.
const PREFIX: &str = "agent#";

impl DynamoStore {
    /// The agents that are paused, by a consistent read.
    ///
    /// # Errors
    /// The table's.
    pub async fn read_agents(&self) -> Result<Agents, Error> {
        let key = Item::from([("pk".into(), s(KEY))]);
        let item = self.get(&self.state_table, key, KEY).await?.unwrap_or_default();
        let paused = item.iter().filter_map(|(attribute, value)| {
            let name = attribute.strip_prefix(PREFIX)?;
            let AttributeValue::S(json) = value else { return None };
            let pause: Result<Pause, _> = serde_json::from_str(json);
            Some(pause.map(|pause| (name.to_owned(), pause)).map_err(|e| corrupt(KEY, format!("`{attribute}`: {e}"))))
        });
        Ok(Agents { paused: paused.collect::<Result<_, _>>()? })
    }

    /// Pauses the agent called `name`, or resumes it (`None`). Other agents' entries are not touched.
    ///
    /// # Errors
    /// The table's.
    pub async fn set_agent(&self, name: &str, pause: Option<&Pause>) -> Result<(), Error> {
        let update = self.client.update_item().table_name(&self.state_table).key("pk", s(KEY));
        let update = update.expression_attribute_names("#agent", format!("{PREFIX}{name}"));
        let update = match pause {
            Some(pause) => {
                let json = serde_json::to_string(pause).expect("a pause has only string keys");
                update.update_expression("SET #agent = :pause").expression_attribute_values(":pause", s(json))
            }
            None => update.update_expression("REMOVE #agent"),
        };
        update.send().await.map(drop).map_err(|e| unavailable(KEY, e))
    }
}
