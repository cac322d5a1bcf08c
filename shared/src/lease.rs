//! A lease: one holder at a time, for a bounded time, with a fencing token that only rises.
//!
//! The one rule is [`Lease::take`]; a [`LeaseStore`] applies it under a conditional write. A lease only saves work: what is
//! done under it must be safe with no holder and with two, because clocks drift and processes pause.

use crate::ports::Error;
use crate::time::{SignedDuration, Timestamp, plus};
use std::future::Future;

/// The LEASE record, and the proof of holding one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// What is led.
    pub name: String,
    /// The instance that holds it; empty once released.
    pub holder: String,
    /// Rises with every change of hands; writes made under the lease carry it.
    pub token: u64,
    /// Until when it is held (UTC, milliseconds).
    pub expires: Timestamp,
}

impl Lease {
    /// The lease after `holder` took or renewed it, or `None` while another one holds it. `skew` is how far apart two
    /// clocks may be: a foreign lease is taken only after it has expired on the slowest of them.
    #[must_use]
    pub fn take(
        current: Option<&Self>,
        name: &str,
        holder: &str,
        now: Timestamp,
        life: SignedDuration,
        skew: SignedDuration,
    ) -> Option<Self> {
        let token = match current {
            None => 1,
            Some(lease) if lease.holder == holder && now < lease.expires => lease.token,
            Some(lease) if lease.holder.is_empty() || plus(lease.expires, skew) <= now => lease.token + 1,
            Some(_) => return None,
        };
        Some(Self { name: name.to_owned(), holder: holder.to_owned(), token, expires: plus(now, life) })
    }
}

/// Where leases are kept, on items used for nothing else.
pub trait LeaseStore: Send + Sync {
    /// Takes or renews the lease for `holder`; `None` while another one holds it or has just taken it.
    fn acquire(
        &self,
        name: &str,
        holder: &str,
        now: Timestamp,
        life: SignedDuration,
    ) -> impl Future<Output = Result<Option<Lease>, Error>> + Send;
    /// Gives it back early, if it is still the one held. The token stays.
    fn release(&self, lease: &Lease) -> impl Future<Output = Result<(), Error>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: SignedDuration = SignedDuration::from_secs(10);
    const SKEW: SignedDuration = SignedDuration::from_secs(1);

    fn at(s: i64) -> Timestamp {
        Timestamp::from_second(s).unwrap()
    }

    fn take(current: Option<&Lease>, holder: &str, now: i64) -> Option<Lease> {
        Lease::take(current, "sweep", holder, at(now), LIFE, SKEW)
    }

    // I1, I2: one holder, a bounded life, a token that rises with every change of hands.
    #[test]
    fn a_lease_changes_hands_only_after_its_life_and_the_token_rises() {
        let a = take(None, "a", 0).unwrap();
        assert_eq!((a.token, a.expires), (1, at(10)));
        assert_eq!(take(Some(&a), "b", 10), None);
        let renewed = take(Some(&a), "a", 5).unwrap();
        assert_eq!((renewed.token, renewed.expires), (1, at(15)));
        let b = take(Some(&renewed), "b", 16).unwrap();
        assert_eq!((b.token, b.holder.as_str()), (2, "b"));
        // One's own lease that ran out is a new one: somebody may have led in between.
        assert_eq!(take(Some(&b), "b", 26), None);
        assert_eq!(take(Some(&b), "b", 27).unwrap().token, 3);
        let released = Lease { holder: String::new(), ..b };
        assert_eq!(take(Some(&released), "c", 17).unwrap().token, 3);
    }
}
