//! Steps that wait for a time.

use crate::expression::{Mapping, Mistake, Names, Reference, instant};
use crate::time::{SignedDuration, Timestamp, plus};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

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
}

impl Wait {
    /// When the wait ends of a step whose turn came at `now`.
    ///
    /// # Errors
    /// There is no such time, or it is more than [`MAX_WAIT`] away.
    pub fn end(&self, names: &Names<'_>, now: Timestamp) -> Result<Timestamp, Mistake> {
        let (Self::For(mapping) | Self::Until(mapping)) = self;
        self.end_of(&mapping.evaluate(names)?, now).map_err(|why| Mistake(format!("`{}`: {why}", self.key())))
    }

    /// The same if the step waits for `value`.
    ///
    /// # Errors
    /// The second half of a sentence about `value`.
    pub fn end_of(&self, value: &Value, now: Timestamp) -> Result<Timestamp, String> {
        let seconds = || value.as_f64().map(|seconds| (seconds * 1000.0).round()).filter(|ms| ms.abs() < 1e17);
        let ms = || seconds().map(|ms| ms as i64);
        let (time, how) = match self {
            Self::For(_) => {
                let time = value.as_str().and_then(duration).or_else(|| ms().map(SignedDuration::from_millis));
                (time.map(|time| plus(now, time)), "no duration; write for example \"90s\", \"2h\", \"3d\", or seconds")
            }
            Self::Until(_) => {
                let time = value.as_str().and_then(instant).or_else(|| Timestamp::from_millisecond(ms()?).ok());
                let how = "no time; write it as in RFC 3339 with an offset, such as \"2026-01-31T08:00:00Z\", or as \
                           seconds since 1970";
                (time, how)
            }
        };
        let time = crate::time::millis(time.ok_or_else(|| format!("{value} is {how}"))?);
        let wait = now.duration_until(time);
        match self {
            Self::For(_) if wait.is_negative() => Err(format!("{value} is negative; write a time from 0s to 366d")),
            _ if wait > MAX_WAIT => Err(format!("{value} is more than 366 days away; write a nearer time")),
            Self::For(_) | Self::Until(_) => Ok(time),
        }
    }

    /// Its key in a workflow file.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Self::For(_) => "wait",
            Self::Until(_) => "until",
        }
    }

    /// All that its expressions read.
    #[must_use]
    pub fn references(&self) -> Vec<&Reference> {
        let (Self::For(mapping) | Self::Until(mapping)) = self;
        mapping.references()
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
        let text = String::deserialize(deserializer)?;
        duration(&text).map(Self).ok_or_else(|| serde::de::Error::custom("no duration"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn durations_and_times_are_read_in_all_units() {
        let now = "2026-01-31T08:00:00Z".parse().unwrap();
        let wait = Wait::For(Mapping::Constant(Value::Null));
        let until = Wait::Until(Mapping::Constant(Value::Null));
        let ends = |wait: &Wait, value: Value| match wait.end_of(&value, now) {
            Ok(end) => end.to_string(),
            Err(why) => why,
        };
        for (value, end) in [
            (json!("250ms"), "2026-01-31T08:00:00.25Z"),
            (json!("90s"), "2026-01-31T08:01:30Z"),
            (json!("5m"), "2026-01-31T08:05:00Z"),
            (json!("1h 30m"), "2026-01-31T09:30:00Z"),
            (json!("2d"), "2026-02-02T08:00:00Z"),
            (json!("366d"), "2027-02-01T08:00:00Z"),
            (json!(1.5), "2026-01-31T08:00:01.5Z"),
            (json!(0), "2026-01-31T08:00:00Z"),
            (json!("-2s"), "\"-2s\" is negative; write a time from 0s to 366d"),
            (json!(-1), "-1 is negative; write a time from 0s to 366d"),
            (json!("367d"), "\"367d\" is more than 366 days away; write a nearer time"),
            (json!("soon"), "\"soon\" is no duration; write for example \"90s\", \"2h\", \"3d\", or seconds"),
            (json!(null), "null is no duration; write for example \"90s\", \"2h\", \"3d\", or seconds"),
        ] {
            assert_eq!(ends(&wait, value), end);
        }
        // How it is written depends on the features of serde_json that the build switches on.
        assert!(ends(&wait, json!(1e300)).contains("is no duration"));
        for (value, end) in [
            (json!("2026-02-01T10:00:00+02:00"), "2026-02-01T08:00:00Z"),
            (json!(1769846400), "2026-01-31T08:00:00Z"),
            // Past is at once.
            (json!("2020-01-01T00:00:00Z"), "2020-01-01T00:00:00Z"),
            (json!("2030-01-01T00:00:00Z"), "\"2030-01-01T00:00:00Z\" is more than 366 days away; write a nearer time"),
        ] {
            assert_eq!(ends(&until, value), end);
        }
        for value in ["2026-02-01T10:00:00", "2026-02-01", "2d"] {
            assert!(ends(&until, value.into()).contains("is no time; write it as in RFC 3339 with an offset"));
        }
    }
}
