//! Errors that keep a command from starting and that the user can correct.

/// Why a command did not start. The user can correct these, so the exit code is 2.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The port is taken.
    #[error("port {0} is in use by another program; choose another port with --port, or 0 for any free port")]
    PortInUse(u16),
    /// The data directory is damaged, in use, or of a newer version; a pool or an agent is named wrongly; a secret is missing.
    #[error("{0}")]
    Data(String),
}
