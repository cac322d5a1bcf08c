//! Steps whose service accepts the work and reports its end later, to an address from the request.

use crate::expression::Expression;
use crate::order::Id;
use crate::time::SignedDuration;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Longest body of a callback, in bytes.
pub const MAX_CALLBACK: usize = 64 * 1024;
/// Which answers only accept, unless the file says otherwise.
pub const USUAL: &str = "status == 202";

/// Which answers accept, and how long a callback may take.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Accept {
    /// From the accepting answer to the callback.
    pub within: SignedDuration,
    /// Which answers over HTTP or of AWS accept. `None` for other agents, who say so themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Expression>,
    /// Whether operators are alerted once half of the time has passed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alert: bool,
}

/// The address to which the service of `step` reports, below `base`. Whoever knows it may report, so it contains a
/// token made from the order's `secret`. An address from an earlier `round` of the step is invalid.
#[must_use]
pub fn address(base: &str, id: &Id, step: &str, round: u32, secret: &str) -> String {
    format!("{}/callbacks/{id}/{step}/{}", base.trim_end_matches('/'), token(secret, &scope(step, round)))
}

/// The scope of a callback's token: a step in one of its rounds. No step's name has a colon.
#[must_use]
pub fn scope(step: &str, round: u32) -> String {
    if round == 0 { step.to_owned() } else { format!("callback:{step}:{round}") }
}

/// 128 bits of SHA-256, in hexadecimal digits.
pub(super) fn token(secret: &str, step: &str) -> String {
    let digest = Sha256::digest(format!("{secret}:{step}"));
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Whether `given` is this step's token. Takes constant time.
#[must_use]
pub fn is_token(given: &str, secret: &str, step: &str) -> bool {
    let own = token(secret, step);
    let differs = own.bytes().zip(given.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    !secret.is_empty() && given.len() == own.len() && differs == 0
}
