//! A queue's attributes: what may be set, within which bounds, and the defaults.

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::Error;
use super::message::MESSAGE_MAX_BYTES;

/// The attributes as set, and the parsed values of those that have an effect here.
#[derive(Debug, Clone)]
pub(crate) struct QueueAttributes {
    set: BTreeMap<String, String>,
    pub visibility_timeout_s: i64,
    pub delay_s: i64,
    pub retention_s: i64,
    pub message_max_bytes: usize,
    pub receive_wait_s: i64,
    pub redrive: Option<Redrive>,
}

/// AWS, "RedrivePolicy".
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Redrive {
    /// A message received this often goes to the dead-letter queue instead of being received again.
    pub receives_max: u32,
    /// ARN.
    pub target: String,
}

/// Name, smallest, largest and default value. AWS, "SetQueueAttributes".
const NUMBERS: [(&str, i64, i64, i64); 5] = [
    ("VisibilityTimeout", 0, super::VISIBILITY_MAX_S, 30),
    ("DelaySeconds", 0, super::DELAY_MAX_S, 0),
    ("MessageRetentionPeriod", 60, 1_209_600, 345_600),
    ("MaximumMessageSize", 1024, MESSAGE_MAX_BYTES as i64, MESSAGE_MAX_BYTES as i64),
    ("ReceiveMessageWaitTimeSeconds", 0, super::WAIT_MAX_S, 0),
];

/// Kept and answered, without effect here.
const WITHOUT_EFFECT: [&str; 5] =
    ["Policy", "RedriveAllowPolicy", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled"];

const FIFO: [&str; 4] = ["FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"];

impl QueueAttributes {
    /// Checks and parses. An empty value resets an attribute to its default.
    pub fn parse(mut set: BTreeMap<String, String>) -> Result<Self, Error> {
        set.retain(|_, value| !value.is_empty());
        for name in set.keys() {
            if FIFO.contains(&name.as_str()) {
                return Err(Error::unsupported("FIFO queues are not offered by this endpoint."));
            }
            if !is_known(name) {
                return Err(Error::attribute_name(name));
            }
        }
        let number = |index: usize| {
            let (name, min, max, default) = NUMBERS[index];
            let Some(text) = set.get(name) else {
                return Ok(default);
            };
            match text.parse() {
                Ok(value) if (min..=max).contains(&value) => Ok(value),
                _ => Err(Error::attribute_value(name, &format!("it must be {min} to {max}."))),
            }
        };
        Ok(Self {
            visibility_timeout_s: number(0)?,
            delay_s: number(1)?,
            retention_s: number(2)?,
            message_max_bytes: usize::try_from(number(3)?).expect("checked to be positive"),
            receive_wait_s: number(4)?,
            redrive: set.get("RedrivePolicy").map(|text| Redrive::parse(text)).transpose()?,
            set,
        })
    }

    /// The defaults, except that no message expires that might not.
    pub fn unknown() -> Self {
        let (name, _, longest, _) = NUMBERS[2];
        Self::parse(BTreeMap::from([(name.into(), longest.to_string())])).expect("it is the largest value")
    }

    /// These attributes with `changes`.
    pub fn changed(&self, changes: BTreeMap<String, String>) -> Result<Self, Error> {
        let mut set = self.set.clone();
        set.extend(changes);
        Self::parse(set)
    }

    /// JSON object for the store.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&self.set).expect("attributes have string keys only")
    }

    /// All of them with the values in effect.
    pub fn in_effect(&self) -> BTreeMap<String, String> {
        let mut all = self.set.clone();
        for (name, .., default) in NUMBERS {
            all.entry(name.into()).or_insert_with(|| default.to_string());
        }
        all
    }

    /// The first attribute of `asked` that has another value here.
    pub fn first_difference(&self, asked: &Self) -> Option<String> {
        let here = self.in_effect();
        let differs = |name: &str, value: &String| match name {
            "RedrivePolicy" => self.redrive != asked.redrive,
            _ => here.get(name) != Some(value),
        };
        asked.set.iter().find(|(name, value)| differs(name, value)).map(|(name, _)| name.clone())
    }
}

/// Whether the attribute can be set on a standard queue.
pub(crate) fn is_known(name: &str) -> bool {
    NUMBERS.iter().any(|(number, ..)| *number == name) || WITHOUT_EFFECT.contains(&name) || name == "RedrivePolicy"
}

impl Redrive {
    fn parse(text: &str) -> Result<Self, Error> {
        let policy: Value = serde_json::from_str(text).unwrap_or_default();
        let receives_max = match &policy["maxReceiveCount"] {
            // Consoles and templates write the count either way.
            Value::String(text) => Some(text.parse().unwrap_or(0)),
            count => count.as_u64().and_then(|count| u32::try_from(count).ok()),
        };
        let wrong = |reason: &str| Err(Error::attribute_value("RedrivePolicy", reason));
        match (policy["deadLetterTargetArn"].as_str(), receives_max) {
            (Some(target), Some(receives_max @ 1..=1000)) => Ok(Self { receives_max, target: target.into() }),
            (Some(_), Some(_)) => wrong("maxReceiveCount must be 1 to 1000."),
            _ => wrong("it must be a JSON object with deadLetterTargetArn and maxReceiveCount."),
        }
    }
}
