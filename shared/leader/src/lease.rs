//! A lease: one holder at a time, for a bounded time, with a fencing token that only rises.
//!
//! The one rule is [`Lease::take`]; a [`LeaseStore`] applies it with a conditional write. A lease only saves work. Work
//! under it must be safe with no holder and with two, because clocks drift and processes pause.

use jiff::{SignedDuration, Timestamp};
use std::future::Future;

/// Why a lease store failed: it could not be reached, or its record cannot be read.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The LEASE record, and the proof of holding one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Name of the lease.
    pub name: String,
    /// The instance that holds it; empty once released.
    pub holder: String,
    /// Rises with every new tenure; writes made under the lease carry it.
    pub token: u64,
    /// When it expires (UTC, milliseconds).
    pub expires: Timestamp,
}

impl Lease {
    /// The lease after `holder` took or renewed it, or `None` while another holds it. `skew` is how far apart two
    /// clocks may be: another's lease is taken only once it has expired on the slowest.
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
            Some(lease) if lease.is_free() || plus(lease.expires, skew) <= now => lease.token + 1,
            Some(_) => return None,
        };
        Some(Self { name: name.to_owned(), holder: holder.to_owned(), token, expires: end(now, life) })
    }

    /// The lease after `holder` took it, whatever times the record has. For a contender that saw no renewal for a full
    /// life on its own clock.
    #[must_use]
    pub fn succeed(current: Option<&Self>, name: &str, holder: &str, now: Timestamp, life: SignedDuration) -> Self {
        let token = current.map_or(1, |lease| lease.token + 1);
        Self { name: name.to_owned(), holder: holder.to_owned(), token, expires: end(now, life) }
    }

    /// The lease after its holder renewed it. The record always changes, even if the clock stops, so that watchers see
    /// that its holder lives.
    #[must_use]
    pub fn renewed(&self, now: Timestamp, life: SignedDuration) -> Self {
        let expires = end(now, life);
        let expires = if expires == self.expires { plus(expires, SignedDuration::from_millis(1)) } else { expires };
        Self { expires, ..self.clone() }
    }

    /// The lease after its holder gave it back.
    #[must_use]
    pub fn released(&self) -> Self {
        Self { holder: String::new(), ..self.clone() }
    }

    /// Whether it has no holder, whatever the time.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.holder.is_empty()
    }

    /// Whether holder and token are the same, whatever the expiry.
    #[must_use]
    pub fn is_same_tenure(&self, other: &Self) -> bool {
        (self.holder.as_str(), self.token) == (other.holder.as_str(), other.token)
    }
}

/// When a lease taken now ends, in the record's milliseconds. So a holder with a finer clock recognises its lease, and
/// every renewal changes the record (contract suite, a clock of nanoseconds over DynamoDB).
fn end(now: Timestamp, life: SignedDuration) -> Timestamp {
    millis(plus(now, life))
}

/// `t` cut to whole milliseconds, the precision of the record.
pub(crate) fn millis(t: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(t.as_millisecond()).unwrap_or(t)
}

/// `t + d`, held at the ends of the calendar instead of overflowing.
fn plus(t: Timestamp, d: SignedDuration) -> Timestamp {
    t.saturating_add(d).expect("a duration of fixed length")
}

/// A store of leases, on items used for nothing else: a register that is read and conditionally replaced. This protocol
/// is the same for every store.
pub trait LeaseStore: Send + Sync {
    /// The record as the last write left it (a consistent read).
    fn read(&self, name: &str) -> impl Future<Output = Result<Option<Lease>, Error>> + Send;

    /// Replaces `seen` (`None`: no record) with `lease`, if exactly that is still stored. `false` if not, or if this
    /// write's answer was lost and the client retried it; only a read can tell.
    fn replace(&self, lease: &Lease, seen: Option<&Lease>) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Takes the lease for `holder`; `None` while another holds it or has just taken it. See [`Lease::take`].
    fn acquire(
        &self,
        name: &str,
        holder: &str,
        now: Timestamp,
        life: SignedDuration,
        skew: SignedDuration,
    ) -> impl Future<Output = Result<Option<Lease>, Error>> + Send {
        async move {
            let current = self.read(name).await?;
            match Lease::take(current.as_ref(), name, holder, now, life, skew) {
                Some(lease) => self.put(lease, current.as_ref()).await,
                None => Ok(None),
            }
        }
    }

    /// Replaces `seen` with `lease`; `None` if another contender was faster.
    fn put(&self, lease: Lease, seen: Option<&Lease>) -> impl Future<Output = Result<Option<Lease>, Error>> + Send {
        async move {
            if self.replace(&lease, seen).await? {
                return Ok(Some(lease));
            }
            Ok(self.read(&lease.name).await?.filter(|stored| *stored == lease))
        }
    }

    /// Extends the lease. `None` if it is no longer held: another contender took it, or it was released.
    fn renew(
        &self,
        lease: &Lease,
        now: Timestamp,
        life: SignedDuration,
    ) -> impl Future<Output = Result<Option<Lease>, Error>> + Send {
        async move {
            let mut seen = lease.clone();
            // The second round is for our own renewal with a lost answer.
            for _ in 0..2 {
                let next = seen.renewed(now, life);
                if self.replace(&next, Some(&seen)).await? {
                    return Ok(Some(next));
                }
                match self.read(&lease.name).await? {
                    Some(stored) if stored == next => return Ok(Some(next)),
                    Some(stored) if stored.is_same_tenure(lease) => seen = stored,
                    Some(_) | None => return Ok(None),
                }
            }
            Err(format!("lease {}: its record keeps changing", lease.name).into())
        }
    }

    /// Gives it back early, if it is still held. The token stays.
    fn release(&self, lease: &Lease) -> impl Future<Output = Result<(), Error>> + Send {
        async move {
            if self.replace(&lease.released(), Some(lease)).await? {
                return Ok(());
            }
            // A renewal with a lost answer may have changed the record.
            match self.read(&lease.name).await? {
                Some(stored) if stored.is_same_tenure(lease) => {
                    self.replace(&stored.released(), Some(&stored)).await.map(drop)
                }
                Some(_) | None => Ok(()),
            }
        }
    }
}

impl<T: LeaseStore> LeaseStore for std::sync::Arc<T> {
    async fn read(&self, name: &str) -> Result<Option<Lease>, Error> {
        (**self).read(name).await
    }
    async fn replace(&self, lease: &Lease, seen: Option<&Lease>) -> Result<bool, Error> {
        (**self).replace(lease, seen).await
    }
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
        // Retaking an expired lease is a new tenure: another may have led in between.
        assert_eq!(take(Some(&b), "b", 26), None);
        assert_eq!(take(Some(&b), "b", 27).unwrap().token, 3);
        assert_eq!(take(Some(&b.released()), "c", 17).unwrap().token, 3);
    }

    // I2: a renewal keeps holder and token, and always changes the record.
    #[test]
    fn a_renewal_under_a_clock_that_stands_still_changes_the_record() {
        let a = take(None, "a", 0).unwrap();
        assert_eq!(a.renewed(at(4), LIFE).expires, at(14));
        let again = a.renewed(at(0), LIFE);
        assert_ne!(again, a);
        assert!(again.is_same_tenure(&a));
        assert_eq!(Lease::succeed(Some(&again), "sweep", "b", at(1), LIFE).token, 2);
        assert_eq!(Lease::succeed(None, "sweep", "b", at(1), LIFE).token, 1);
    }
}
