//! Arithmetic with times, held at the ends of the calendar instead of overflowing.

use jiff::{SignedDuration, Timestamp};

/// `t + d`.
pub(crate) fn plus(t: Timestamp, d: SignedDuration) -> Timestamp {
    t.checked_add(d).unwrap_or(if d.is_negative() { Timestamp::MIN } else { Timestamp::MAX })
}

/// How long from `from` until `to`, zero if `to` has passed.
pub(crate) fn until(from: Timestamp, to: Timestamp) -> SignedDuration {
    from.duration_until(to).max(SignedDuration::ZERO)
}
