//! The arguments: every verb with its options, its help and its examples.

// A group of options that several verbs share describes its own fields; on the field that takes it in, clap shows no text.
#[allow(missing_docs)]
mod api;
#[allow(missing_docs)]
mod local;
#[allow(missing_docs)]
pub mod workflows;

pub use api::{
    Act, AgentAct, At, Bulk, By, Console, DEFAULT_URL, Dlq, Erase, Event, Filter, Get, JobVerb, JobWhy, Jobs, Letters,
    List, Mend, Migrate, One, Redrive, RunAgain, Submit, Wait, Watch,
};
pub use local::{Bench, Completions, Demo, Doctor, Kept, Lang, New, Part, Remotes, Setup, Simulate, Test, Up};

use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// What `stepwarden help` ends with. docs/cli.md has the same codes.
const AFTER: &str = "\
Examples:
  stepwarden                     run the demo
  stepwarden new shop            make a folder with a workflow of your own
  stepwarden up                  start the system and keep it running
  stepwarden doctor              check the system, and say what to do about problems
  stepwarden submit order.json --wait
  stepwarden overview            show which orders wait for a person

Exit codes:
  0  done; `watch` and `submit --wait`: the order is Processed
  1  failed: no answer, a refusal after which a retry may succeed, or a failed check
  2  wrong usage: a bad argument, file or token, or an unknown name
  3  `watch` and `submit --wait`: the order is Undone
  4  `watch` and `submit --wait`: the order is in Error
  5  `watch` and `submit --wait`: the order is still open after the timeout
  141  the program that read the output has exited

Colours appear on terminals only; NO_COLOR=1 turns them off.";

/// Runs multi-step business workflows reliably, on AWS Lambda, SQS and DynamoDB or on a laptop.
///
/// Without a command, it runs the demo.
#[derive(Parser)]
#[command(name = "stepwarden", version, about, after_help = AFTER)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Folder of workflow files [default: ./workflows if it exists, else the built-in workflows]
    #[arg(long, global = true, value_name = "DIR")]
    pub workflows: Option<PathBuf>,
}

/// The verbs.
#[derive(Subcommand)]
pub enum Command {
    /// Make a folder with a workflow, its agent, test scenarios, and a template for AWS
    ///
    /// The folder's name becomes the name of the workflow. The folder's README.md says what to do next.
    #[command(after_help = "Examples:\n  stepwarden new shop")]
    New(New),
    /// Start the whole system in this process and keep it running
    ///
    /// Callers need the token that this command prints. Set STEPWARDEN_TOKEN to use a token of your own.
    #[command(
        after_help = "Examples:\n  stepwarden up\n  stepwarden up --port 0     any free port; the first line of the output is the URL\n  stepwarden up --memory     keep the data in memory"
    )]
    Up(Up),
    /// Run many orders through a new system while injecting faults, then check every effect on the sample services
    #[command(
        after_help = "Examples:\n  stepwarden demo\n  stepwarden demo my.jsonl --seed 7    your own orders, one JSON object per line"
    )]
    Demo(Demo),
    /// Measure throughput, latency, recovery and memory on this machine, in about a minute
    #[command(
        after_help = "Examples:\n  stepwarden bench\n  stepwarden bench --only single,throughput --memory --json\n  stepwarden bench --rates 100,500,900\n  stepwarden bench --only throughput --orders 100000 --backlog\n  stepwarden bench --only throughput --orders 100000 --backlog 1000    the same, 1000 at a time\n  stepwarden bench --duration 1h --rate 100    does memory stay constant?"
    )]
    Bench(Bench),
    /// Serve the steps of `bench`'s recovery runs; `bench` starts and kills it
    #[command(hide = true)]
    BenchAgent,
    /// Run a workflow under faults in virtual time, and check that every order ends well
    #[command(
        after_help = "Examples:\n  stepwarden simulate workflows/order.toml\n  stepwarden simulate workflows/order.toml --seed 42    replay one seed with its trace\n  stepwarden simulate --replay order.json\n  stepwarden simulate workflows/order.toml --replay order.json    with a corrected file"
    )]
    Simulate(Simulate),
    /// Test workflows: play scenarios with scripted answers in virtual time, then again under faults
    ///
    /// A scenario specifies what the services answer and how the order has to end. No service is called, and no system
    /// needs to be running.
    #[command(
        after_help = "Examples:\n  stepwarden test\n  stepwarden test tests/order.toml --only declined\n  stepwarden test --faults 1000"
    )]
    Test(Test),
    /// Serve only the sample remote services, for a system that runs elsewhere
    #[command(after_help = "Examples:\n  stepwarden remotes --port 8082")]
    Remotes(Remotes),
    /// Check settings, API, token, clock, tables, queues and files; changes nothing
    ///
    /// Every line begins with ok, warn or FAIL; a line about a problem says what to do. By default, doctor checks a
    /// system that `stepwarden up` runs on this machine. If AWS_ENDPOINT_URL is set, doctor checks the emulator at that
    /// address. With --aws, it checks the deployment whose tables and queues are named in environment variables.
    #[command(
        after_help = "Examples:\n  stepwarden doctor\n  stepwarden doctor --aws --url https://API.execute-api.eu-west-1.amazonaws.com --token TOKEN"
    )]
    Doctor(Doctor),
    /// Serve a deployment's console on this machine, and sign its requests with your AWS credentials
    ///
    /// For a deployment whose callers must sign their requests (IAM), which a browser cannot do. The command runs until
    /// you press Ctrl-C. Only the link that it prints gives access.
    #[command(
        after_help = "Examples:\n  stepwarden console --stack shop\n  stepwarden console --stack shop --profile operator"
    )]
    Console(Console),
    /// Submit an order from a file or, with `-`, from standard input
    ///
    /// Prints the order's id. With --wait, it also follows the order to its end; the exit codes are those of `watch`.
    #[command(
        after_help = "Examples:\n  stepwarden submit order.json\n  head -1 tests/data/northwind-orders.jsonl | stepwarden submit - --wait\n  stepwarden submit order.json --key invoice-4711    run it twice: still one order"
    )]
    Submit(Submit),
    /// Follow an order until it ends
    ///
    /// Prints a line for each change. Exit code 0: Processed, 3: Undone, 4: Error, 5: still open after the timeout.
    #[command(
        after_help = "Examples:\n  stepwarden watch ORDER_ID\n  stepwarden watch ORDER_ID --timeout 30s && echo shipped\n  stepwarden watch ORDER_ID --json    the whole order after each change, one JSON object per line"
    )]
    Watch(Watch),
    /// Send an event to an order that waits for it, or will wait for it later
    ///
    /// Prints the order's id once the event is stored.
    #[command(
        after_help = "Examples:\n  stepwarden event ORDER_ID approved --data '{\"by\": \"ann\"}'\n  stepwarden event ORDER_ID paid --data '{\"amount\": 5}' --key payment-4711    run it twice: still one event"
    )]
    Event(Event),
    /// Show an order's current state
    #[command(
        visible_alias = "show",
        after_help = "Examples:\n  stepwarden get ORDER_ID\n  stepwarden get ORDER_ID --full    with the input, the history and the actions that are possible now\n  stepwarden get ORDER_ID --raw > record.json    the stored record, for `mend`"
    )]
    Get(Get),
    /// Show what happened to an order
    #[command(after_help = "Examples:\n  stepwarden history ORDER_ID")]
    History(One),
    /// List orders, newest first
    ///
    /// With --state Waiting, it lists the orders in which a step waits for a minute or longer, and begins with the
    /// order that has been unchanged for the longest time.
    #[command(
        after_help = "Examples:\n  stepwarden list --state Error\n  stepwarden list --state Waiting --step trial-over    which orders wait in this step, and since when\n  stepwarden list --workflow order --from 2026-11-21T00:00:00Z --limit 10"
    )]
    List(List),
    /// Show which orders wait for a person, which are being retried and why, and in which steps orders wait
    #[command(after_help = "Examples:\n  stepwarden overview")]
    Overview(At),
    /// List agents with their pools and waiting requests, and whether they are paused or strained
    ///
    /// An agent is strained if it holds up many orders. Only an agent's own process knows the state of its circuit
    /// breakers. The API shows their effects: strained agents, and a `deferred` entry in the history of each order that
    /// an open breaker held back.
    #[command(visible_alias = "breaker", after_help = "Examples:\n  stepwarden agents")]
    Agents(At),
    /// List queues and the number of messages in each
    #[command(after_help = "Examples:\n  stepwarden queues")]
    Queues(At),
    /// Register workflows with a running system: check, put, activate, roll back
    ///
    /// A definition is the content of a workflow file. New orders get a newly activated definition within 5 s; open
    /// orders keep the definition that they were submitted with.
    #[command(subcommand)]
    Workflows(workflows::Workflows),
    /// Show which supervisor holds each lease, and until when
    #[command(after_help = "Examples:\n  stepwarden leader")]
    Leader(At),
    /// List the queues with dead letters or set-aside messages; `dlq redrive` moves these messages back
    #[command(
        after_help = "Examples:\n  stepwarden dlq\n  stepwarden dlq redrive scheduler --dry-run --reason \"checking\"\n  stepwarden dlq redrive scheduler --limit 50 --reason \"the function is fixed\""
    )]
    Dlq(Dlq),
    /// Perform the same action on many orders at a limited rate, and print a line for each order
    ///
    /// Starts a job in the system and follows it. The job continues if this command ends; `jobs follow` follows it
    /// again. At least one filter or --ids is required. The exit code is 1 if the action failed for any order.
    #[command(
        after_help = "Examples:\n  stepwarden bulk resubmit --state Error --agent payment --reason \"the bank is back\" --dry-run\n  stepwarden bulk cancel --workflow order --to 2026-11-01T00:00:00Z --limit 500 --rate 50 --reason \"too old\""
    )]
    Bulk(Box<Bulk>),
    /// List bulk jobs, newest first; `jobs show`, `follow`, `results`, `pause`, `resume` and `abort` act on one job
    #[command(
        after_help = "Examples:\n  stepwarden jobs\n  stepwarden jobs follow JOB_ID\n  stepwarden jobs results JOB_ID --failed\n  stepwarden jobs pause JOB_ID --reason \"the bank asks for it\""
    )]
    Jobs(Jobs),
    /// Continue an order in Error from its failed steps
    ///
    /// Every failed step gets all its attempts again; finished steps do not run again. If an undo failed, resubmit
    /// retries that undo and then undoes the rest of the order; the order does not run forward again. The answer only
    /// says that the action was accepted; --wait shows the outcome.
    #[command(
        after_help = "Examples:\n  stepwarden resubmit ORDER_ID --reason \"the bank is back\" --wait\n  stepwarden resubmit ORDER_ID --reason \"the bank is back\"\n  stepwarden resubmit ORDER_ID --step charge --input '{\"amount\": 5}' --reason \"the amount was wrong\"\n  stepwarden resubmit ORDER_ID --item '17={\"sku\": \"s4\"}' --reason \"the row was wrong\"\n  stepwarden resubmit ORDER_ID --to latest --reason \"the workflow file is corrected\""
    )]
    Resubmit(Act),
    /// Skip a failed step or a failed undo; with --step, also a step that waits
    #[command(after_help = "Examples:\n  stepwarden skip ORDER_ID --step check-fraud --reason \"checked by hand\"")]
    Skip(Act),
    /// Record that a failed step or a failed undo was done by hand
    #[command(
        after_help = "Examples:\n  stepwarden mark-done ORDER_ID --step charge --output '{\"receipt\": \"R-1\"}' --reason \"paid in cash\""
    )]
    MarkDone(Act),
    /// Start the next attempt now instead of at its scheduled time
    ///
    /// With --step, it also ends the wait of a step that waits for a time.
    #[command(after_help = "Examples:\n  stepwarden retry-now ORDER_ID --reason \"the service is back\"")]
    RetryNow(Act),
    /// Stop an open order and undo its finished steps
    #[command(after_help = "Examples:\n  stepwarden cancel ORDER_ID --reason \"the customer asked for it\"")]
    Cancel(Act),
    /// Undo an order, even one that is Processed
    #[command(after_help = "Examples:\n  stepwarden undo ORDER_ID --reason \"goods returned\"")]
    Undo(Act),
    /// Start no more steps of an order until it is resumed
    #[command(after_help = "Examples:\n  stepwarden pause ORDER_ID --reason \"waiting for the customer\"")]
    Pause(Act),
    /// End the pause of an order
    #[command(after_help = "Examples:\n  stepwarden resume ORDER_ID --reason \"the customer answered\"")]
    Resume(Act),
    /// Replace an order's unreadable record with a corrected one
    ///
    /// The order continues from the new record. `get --raw` prints the stored record, the reason why it cannot be read,
    /// and the mark for --seen. Nothing changes if the stored record has changed since then, or has become readable.
    #[command(
        after_help = "Examples:\n  stepwarden get ORDER_ID --raw > record.json    then correct the file\n  stepwarden mend ORDER_ID record.json --seen MARK --reason \"a damaged disk\""
    )]
    Mend(Mend),
    /// Continue an order under another definition of its workflow
    ///
    /// No settled step (completed, skipped, passed over or caught) runs again, and no step that may have run loses its
    /// undo. A definition that would break these rules is refused, with the reason. While an agent works on a step, the
    /// migration waits, and no other step starts. The order migrates as soon as no earlier request to an agent can
    /// still start. A later migration replaces one that is still waiting.
    #[command(
        after_help = "Examples:\n  stepwarden migrate ORDER_ID --to latest --dry-run --reason \"looking\"\n  stepwarden migrate ORDER_ID --to latest --reason \"the new check\"\n  stepwarden resubmit ORDER_ID --to latest --reason \"the file is corrected\"    migrate and try again"
    )]
    Migrate(Migrate),
    /// Run a step of an order again, and all steps that come after it
    ///
    /// The order may already have ended. The effects of these steps are undone first, beginning with the last step. A
    /// step that was undone gets a new idempotency key. Any other step keeps its key, so its service does not repeat
    /// the work. Earlier replies, events and callbacks for these steps no longer count.
    #[command(
        after_help = "Examples:\n  stepwarden run-again ORDER_ID --from pack --dry-run --reason \"looking\"\n  stepwarden run-again ORDER_ID --from pack --reason \"the wrong box\""
    )]
    RunAgain(RunAgain),
    /// Print everything that is stored about an order, as JSON
    ///
    /// The output contains the order with its long outputs, its input, its history, its stored record, and the
    /// definition that it runs. It contains personal data.
    #[command(after_help = "Examples:\n  stepwarden export ORDER_ID > order.json")]
    Export(One),
    /// Erase the personal data in an order and in the orders that it started
    ///
    /// Removes the order's input, outputs, errors, events and reasons, and those of the orders that it started. Ids,
    /// states, attempts and times stay, and so does the record of who erased the order and why. The order must have
    /// ended. An erasure cannot be reversed, and an erased order cannot be undone.
    #[command(after_help = "Examples:\n  stepwarden erase ORDER_ID --reason \"request 17 of the customer\"")]
    Erase(Erase),
    /// Give an agent no more work until it is resumed
    #[command(after_help = "Examples:\n  stepwarden pause-agent payment --reason \"the bank is down until noon\"")]
    PauseAgent(AgentAct),
    /// End the pause of an agent
    #[command(after_help = "Examples:\n  stepwarden resume-agent payment --reason \"the bank is back\"")]
    ResumeAgent(AgentAct),
    /// Print a shell completion script
    #[command(
        after_help = "Examples:\n  stepwarden completions bash > ~/.local/share/bash-completion/completions/stepwarden\n  stepwarden completions zsh > ~/.zfunc/_stepwarden"
    )]
    Completions(Completions),
}

impl Command {
    /// The log level of this process, unless `RUST_LOG` sets another one.
    #[must_use]
    pub fn log_level(&self) -> &'static str {
        match self {
            Self::Up(_) => "info",
            // What it would log is in its trace, or what it looks for itself.
            Self::Simulate(_) | Self::Test(_) | Self::Doctor(_) => "off",
            _ => "error",
        }
    }
}
