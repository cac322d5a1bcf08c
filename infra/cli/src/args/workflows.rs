//! Arguments of `workflows`.

use super::{At, By};
use std::path::PathBuf;

/// What to do with workflows.
#[derive(clap::Subcommand)]
pub enum Workflows {
    /// List the workflows, each with the hash of the definition that its new orders get
    List(At),
    /// Show a workflow and its changes, or one of its definitions
    #[command(
        after_help = "Examples:\n  stepwarden workflows show order\n  stepwarden workflows show order HASH > order.toml"
    )]
    Show(Show),
    /// Check workflow files on this machine; no system needs to be running
    Check(Check),
    /// Explain in words what a workflow does: its steps, what they wait for, and how an order can end
    #[command(
        after_help = "Examples:\n  stepwarden workflows explain workflows/order.toml\n  stepwarden workflows explain order --mermaid    the active definition of the system, as a diagram"
    )]
    Explain(Explain),
    /// Send a workflow file to the system, which checks and stores it; with --activate, new orders get it
    ///
    /// Prints the hash of the new definition, and how it differs from the active one. Open orders keep their
    /// definition.
    #[command(
        after_help = "Examples:\n  stepwarden workflows put order.toml --reason \"longer timeout\"\n  stepwarden workflows put order.toml --activate --reason \"longer timeout\""
    )]
    Put(Put),
    /// Show how a workflow file differs from the active definition, which new orders get; changes nothing
    Diff(Diff),
    /// Give new orders of a workflow the definition with this hash
    Activate(Activate),
    /// Give new orders of a workflow the previously active definition
    Rollback(Change),
    /// Accept no more orders of a workflow; `rollback` reverses this
    Retire(Change),
}

/// A workflow or a definition.
#[derive(clap::Args)]
pub struct Show {
    /// Name of the workflow
    pub name: String,
    /// Hash of one of the workflow's definitions; prints only that definition
    pub hash: Option<String>,
    #[command(flatten)]
    pub at: At,
}

/// Files to check.
#[derive(clap::Args)]
pub struct Check {
    /// Workflow files
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Name of an agent that the files use and that is your own program; repeatable
    #[arg(long = "agent", value_name = "NAME")]
    pub agents: Vec<String>,
}

/// A workflow to explain.
#[derive(clap::Args)]
pub struct Explain {
    /// Workflow file, whose name ends in .toml, or the name of a workflow of the system
    pub workflow: String,
    /// Print a Mermaid diagram instead of words
    #[arg(long)]
    pub mermaid: bool,
    #[command(flatten)]
    pub at: At,
}

/// A file to send.
#[derive(clap::Args)]
pub struct Put {
    /// Workflow file; `-` reads standard input
    pub file: PathBuf,
    /// Give new orders this definition from now on
    #[arg(long)]
    pub activate: bool,
    #[command(flatten)]
    pub by: By,
    #[command(flatten)]
    pub at: At,
}

/// A file to compare.
#[derive(clap::Args)]
pub struct Diff {
    /// Workflow file; `-` reads standard input
    pub file: PathBuf,
    #[command(flatten)]
    pub at: At,
}

/// A definition to activate.
#[derive(clap::Args)]
pub struct Activate {
    /// Name of the workflow
    pub name: String,
    /// Hash of the definition, as `put` and `show` print it
    pub hash: String,
    #[command(flatten)]
    pub how: How,
}

/// A workflow to change.
#[derive(clap::Args)]
pub struct Change {
    /// Name of the workflow
    pub name: String,
    #[command(flatten)]
    pub how: How,
}

/// Who changes it, why, and on what condition.
#[derive(clap::Args)]
pub struct How {
    /// Fail if the workflow's last change no longer has this number, which `workflows show` prints
    ///
    /// By default, the command fails if the workflow changes while the command runs.
    #[arg(long, value_name = "N")]
    pub if_version: Option<u64>,
    #[command(flatten)]
    pub by: By,
    #[command(flatten)]
    pub at: At,
}
