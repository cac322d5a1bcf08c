//! What keeps a command from starting and the user can correct.

/// Why it did not start, for the exit code: these are the user's to mend.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The port is taken.
    #[error("port {0} is in use by another program; choose another port with --port, or 0 for any free port")]
    PortInUse(u16),
    /// The data directory is damaged, in use, or of a newer version; a pool or an agent is named wrongly; a secret is missing.
    #[error("{0}")]
    Data(String),
}
