//! Why a call did not succeed, and what follows from that.

use jiff::SignedDuration;
use serde_json::Value;
use std::fmt;

/// Why a call to a remote service did not succeed.
///
/// `?` makes any [`std::error::Error`] a [`Transient`](Self::Transient), because an error that is not known to be
/// permanent is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentError {
    /// It may succeed later. The call is repeated within the attempt; then the attempt is given back as `unavailable`.
    Transient {
        /// What happened, in words. If it opens the breaker, orders of every tenant may show it.
        error: String,
        /// What the remote service said, for this order only.
        said: Option<String>,
        /// The status of its answer; `None` if there was none.
        status: Option<u16>,
        /// The wait that the remote service asked for (`Retry-After`).
        retry_after: Option<SignedDuration>,
        /// Whether the service itself is unwell, as after silence or overload. Only then does the breaker count it: an answer
        /// that concerns one order must not close the service to all.
        is_unwell: bool,
    },
    /// It cannot succeed. The step fails; the workflow decides the rest.
    Permanent {
        /// What happened, in words.
        error: String,
    },
    /// The remote service refused with a status. Like [`Permanent`](Self::Permanent), but the step's `catch` may read
    /// status and answer.
    Refused {
        /// What happened, in words.
        error: String,
        /// The status of its answer.
        status: u16,
        /// The body of its answer, if it was JSON; at most 1,024 bytes of it are kept.
        answer: Option<Value>,
    },
    /// The remote service did its work, but its answer is unusable. The step fails, is never caught, and is undone.
    Unusable {
        /// What happened, in words.
        error: String,
    },
    /// The service accepted the work and reports its end later, to [`Request::callback`](crate::Request::callback).
    Accepted {
        /// What the undo needs to know until then.
        output: Value,
    },
    /// The step polls, and the service's work is neither done nor failed.
    NotYet {
        /// What the service said, in words.
        why: String,
    },
    /// A heartbeat's answer says that the attempt is over. The function ends, and there is no reply.
    Stopped {
        /// Why, in words.
        why: String,
    },
    /// The remote service was not called, because something is missing on this side. The breaker does not count it: the
    /// service may be well.
    NotCalled {
        /// What happened, in words.
        error: String,
        /// Whether no later attempt can call it either.
        is_permanent: bool,
    },
}

impl AgentError {
    /// A permanent failure: trying again is useless.
    #[must_use]
    pub fn permanent(error: impl Into<String>) -> Self {
        Self::Permanent { error: error.into() }
    }

    /// A permanent failure with a status such as 409, and the service's answer if there is one, for the step's `catch`.
    #[must_use]
    pub fn refused(error: impl Into<String>, status: u16, answer: Option<Value>) -> Self {
        Self::Refused { error: error.into(), status, answer }
    }

    /// The service accepted the work and reports its end later. `output` is what the undo needs to know until then.
    #[must_use]
    pub fn accepted(output: Value) -> Self {
        Self::Accepted { output }
    }

    /// The service does not answer now. The next attempt begins after the wait that the step's `retry` sets.
    #[must_use]
    pub fn unavailable(error: impl Into<String>) -> Self {
        Self::Transient { error: error.into(), said: None, status: None, retry_after: None, is_unwell: true }
    }

    /// As [`unavailable`](Self::unavailable), and the service asked for at least this wait.
    #[must_use]
    pub fn retry_after(error: impl Into<String>, wait: SignedDuration) -> Self {
        Self::Transient { error: error.into(), said: None, status: None, retry_after: Some(wait), is_unwell: true }
    }
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = match self {
            Self::Accepted { .. } => "the service accepted the work",
            Self::Transient { error, .. }
            | Self::Permanent { error }
            | Self::Refused { error, .. }
            | Self::Unusable { error }
            | Self::NotYet { why: error }
            | Self::Stopped { why: error }
            | Self::NotCalled { error, .. } => error,
        };
        f.write_str(error)
    }
}

impl<E: std::error::Error> From<E> for AgentError {
    fn from(error: E) -> Self {
        let mut words = error.to_string();
        let mut cause = error.source();
        while let Some(next) = cause {
            words += &format!(": {next}");
            cause = next.source();
        }
        Self::unavailable(words)
    }
}
