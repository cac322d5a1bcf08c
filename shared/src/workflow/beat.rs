//! Heartbeats: a working agent reports, and gets more time.

use super::{Step, Work};
use crate::order::Id;
use crate::time::SignedDuration;
use crate::workflow::accept::token;

/// Longest sentence about the progress of a step, in bytes.
pub const MAX_NOTE: usize = 200;

/// How long an attempt has after a heartbeat: one may be late or lost.
#[must_use]
pub fn window(every: SignedDuration) -> SignedDuration {
    every + every
}

impl Work<'_> {
    /// From the claim to the first CompleteBy.
    #[must_use]
    pub fn window(&self) -> SignedDuration {
        self.heartbeat.map_or(self.timeout, |every| window(every).min(self.timeout))
    }
}

impl Step {
    /// Whether an agent for this step, or for its undo, sends heartbeats.
    #[must_use]
    pub fn has_heartbeat(&self) -> bool {
        self.works().any(|work| work.heartbeat.is_some())
    }
}

/// The address of the heartbeats of this attempt at `step`, below `base`. It ends with the attempt.
#[must_use]
pub fn address(base: &str, id: &Id, step: &str, attempt: u32, secret: &str) -> String {
    let token = token(secret, &scope(step, attempt));
    format!("{}/heartbeats/{id}/{step}/{attempt}/{token}", base.trim_end_matches('/'))
}

/// The scope of such an address's token. No step has such a name.
#[must_use]
pub fn scope(step: &str, attempt: u32) -> String {
    format!("heartbeat:{step}:{attempt}")
}
