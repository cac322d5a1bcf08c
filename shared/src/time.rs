//! Times and durations, as everywhere in Stepwarden: UTC, whole milliseconds.

pub use jiff::{SignedDuration, Timestamp};

/// `t` cut to whole milliseconds, the precision in which every time is stored and sent.
#[must_use]
pub fn millis(t: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(t.as_millisecond()).unwrap_or(t)
}

/// `t + d`, held at the ends of the calendar instead of overflowing.
#[must_use]
pub fn plus(t: Timestamp, d: SignedDuration) -> Timestamp {
    t.checked_add(d).unwrap_or(if d.is_negative() { Timestamp::MIN } else { Timestamp::MAX })
}

/// How long from `from` until `to`, zero if `to` has passed.
#[must_use]
pub fn until(from: Timestamp, to: Timestamp) -> SignedDuration {
    from.duration_until(to).max(SignedDuration::ZERO)
}
