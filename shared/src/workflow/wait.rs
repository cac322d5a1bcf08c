//! Steps that wait: for a time, or for an event from outside.

use super::link::Link;
use crate::expression::{Expression, Mapping, Mistake, Names, Reference, instant};
use crate::time::{SignedDuration, Timestamp, plus};
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::fmt;

/// Longest time that a step may wait.
pub const MAX_WAIT: SignedDuration = SignedDuration::from_hours(24 * 366);

/// The wait of a step.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// For this long: a [duration](Time), or a number of seconds.
    For(Mapping),
    /// Until this time: RFC 3339 with an offset, or a number of seconds since 1970.
    Until(Mapping),
    /// Until somebody sends this event, for at most the step's timeout.
    Event(Awaited),
}

/// The event that a step waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Awaited {
    /// Its name.
    pub name: String,
    /// An event for which this is false is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take: Option<Expression>,
    /// An event that comes before the step waits is refused, not kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refuse_early: bool,
    /// How many people must send it, if they count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub people: Option<u8>,
    /// Whether operators are alerted once half of the time has passed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alert: bool,
    /// An event for which this is true is taken, and the step fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Expression>,
    /// What its link shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
}

/// Most people who must send one step's event.
pub const MAX_PEOPLE: u8 = 10;

impl Wait {
    /// When the wait of a step with this `timeout` ends if its turn came at `now`.
    ///
    /// # Errors
    /// There is no such time, or it is more than [`MAX_WAIT`] away.
    pub fn end(&self, names: &Names<'_>, now: Timestamp, timeout: SignedDuration) -> Result<Timestamp, Mistake> {
        let (Self::For(mapping) | Self::Until(mapping)) = self else { return Ok(plus(now, timeout)) };
        self.end_of(&mapping.evaluate(names)?, now).map_err(|why| Mistake(format!("`{}`: {why}", self.key())))
    }

    /// [`Wait::end`] for the value `value`.
    ///
    /// # Errors
    /// The second half of a sentence about `value`.
    pub fn end_of(&self, value: &Value, now: Timestamp) -> Result<Timestamp, String> {
        let seconds = || value.as_f64().map(|seconds| (seconds * 1000.0).round()).filter(|ms| ms.abs() < 1e17);
        let ms = || seconds().map(|ms| ms as i64);
        let (time, how) = match self {
            Self::For(_) => {
                let time = value.as_str().and_then(duration).or_else(|| ms().map(SignedDuration::from_millis));
                (
                    time.map(|time| plus(now, time)),
                    "not a duration; write for example \"90s\", \"2h\", \"3d\", or seconds",
                )
            }
            Self::Until(_) | Self::Event(_) => {
                let time = value.as_str().and_then(instant).or_else(|| Timestamp::from_millisecond(ms()?).ok());
                let how = "not a time; write it as in RFC 3339 with an offset, such as \"2026-01-31T08:00:00Z\", or as \
                           seconds since 1970";
                (time, how)
            }
        };
        let time = crate::time::millis(time.ok_or_else(|| format!("{value} is {how}"))?);
        let wait = now.duration_until(time);
        match self {
            Self::For(_) if wait.is_negative() => Err(format!("{value} is negative; write a time from 0s to 366d")),
            _ if wait > MAX_WAIT => Err(format!("{value} is more than 366 days away; write an earlier time")),
            Self::For(_) | Self::Until(_) | Self::Event(_) => Ok(time),
        }
    }

    /// Its key in a workflow file.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Self::For(_) => "wait",
            Self::Until(_) => "until",
            Self::Event(_) => "event",
        }
    }

    /// All that its expressions read.
    #[must_use]
    pub fn references(&self) -> Vec<&Reference> {
        match self {
            Self::For(mapping) | Self::Until(mapping) => mapping.references(),
            Self::Event(event) => {
                [&event.take, &event.failed].into_iter().flatten().flat_map(|e| e.references()).collect()
            }
        }
    }

    /// The event, if it waits for one.
    #[must_use]
    pub fn event(&self) -> Option<&Awaited> {
        match self {
            Self::Event(event) => Some(event),
            Self::For(_) | Self::Until(_) => None,
        }
    }

    /// What it waits for, in words.
    #[must_use]
    pub fn words(&self) -> String {
        let text = |mapping: &Mapping| match mapping {
            Mapping::Text(text) => text.text().to_owned(),
            other => format!("{}s", serde_json::to_string(other).unwrap_or_default()),
        };
        match self {
            Self::For(time) => format!("waits {}", text(time)),
            Self::Until(Mapping::Constant(seconds)) => format!("waits until {seconds}"),
            Self::Until(time) => format!("waits until {}", text(time)),
            Self::Event(event) => match event.people {
                Some(people @ 2..) => format!("waits for the event `{}` from {people} people", event.name),
                Some(_) => format!("waits for the event `{}` from a person", event.name),
                None => format!("waits for the event `{}`", event.name),
            },
        }
    }
}

/// A duration as workflow files write it, such as `"1h 30m"`, or a number of days of 24 hours, such as `"2d"`.
#[must_use]
pub fn duration(text: &str) -> Option<SignedDuration> {
    match text.trim().strip_suffix('d').map(|days| days.trim_end().parse::<u32>()) {
        Some(Ok(days)) => Some(SignedDuration::from_hours(24 * i64::from(days))),
        Some(Err(_)) | None => text.parse().ok(),
    }
}

/// A duration in a workflow file that may be given in days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub SignedDuration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text)
    }
}

struct Text;

impl Visitor<'_> for Text {
    type Value = Time;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Time, E> {
        duration(text).map(Time).ok_or_else(|| E::custom("this is not a duration"))
    }
}
