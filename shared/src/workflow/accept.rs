//! Steps whose service accepts the work and reports its end later, to an address that it was handed.

use crate::expression::Expression;
use crate::order::Id;
use crate::time::SignedDuration;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Longest body of a callback, in bytes.
pub const MAX_CALLBACK: usize = 64 * 1024;
/// What an answer that only accepts looks like, unless the file says otherwise.
pub const USUAL: &str = "status == 202";

/// When a call is accepted, and how long its callback may take.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Accept {
    /// From the answer that accepts to the callback.
    pub within: SignedDuration,
    /// Which answers over HTTP or of AWS accept. `None` for another agent, which says so itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Expression>,
    /// Whether operators are alerted once half of the time has passed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alert: bool,
}

/// The address to which the service of `step` reports, below `base`. Whoever knows it may report, so it contains a token
/// that only an order's `secret` leads to. One that was handed out in an earlier `round` of the step leads nowhere.
#[must_use]
pub fn address(base: &str, id: &Id, step: &str, round: u32, secret: &str) -> String {
    format!("{}/callbacks/{id}/{step}/{}", base.trim_end_matches('/'), token(secret, &scope(step, round)))
}

/// What the token of a callback is for: a step in one of its rounds. No step has a name with a colon.
#[must_use]
pub fn scope(step: &str, round: u32) -> String {
    if round == 0 { step.to_owned() } else { format!("callback:{step}:{round}") }
}

/// 128 bits of SHA-256, in hexadecimal digits.
pub(super) fn token(secret: &str, step: &str) -> String {
    let digest = Sha256::digest(format!("{secret}:{step}"));
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Whether `given` is the token of this step. Takes the same time wherever it differs.
#[must_use]
pub fn is_token(given: &str, secret: &str, step: &str) -> bool {
    let own = token(secret, step);
    let differs = own.bytes().zip(given.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    !secret.is_empty() && given.len() == own.len() && differs == 0
}
