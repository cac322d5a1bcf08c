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
    /// Folder of workflow files, for commands that use files of this machine [default: ./workflows, else built-in ones]
    #[arg(long, global = true, value_name = "DIR")]
    pub workflows: Option<PathBuf>,
}

/// The verbs.
#[derive(Subcommand)]
pub enum Command {
    /// Make a folder with a workflow, its agent (a program that does steps), test scenarios, and a template for AWS
    ///
    /// The folder's name becomes the name of the workflow. The folder's README.md says what to do next.
    #[command(after_help = "Examples:\n  stepwarden new shop")]
    New(New),
    /// Start the whole system in this process and keep it running
    ///
    /// Programs that call the API must send the token that this command prints. To choose the token, set
    /// STEPWARDEN_TOKEN.
    #[command(
        after_help = "Examples:\n  stepwarden up\n  stepwarden up --port 0     any free port; the first line of the output is the URL\n  stepwarden up --memory     keep the data in memory"
    )]
    Up(Up),
    /// Run many orders through a new system with injected faults, then check that no work was lost or done twice
    #[command(
        after_help = "Examples:\n  stepwarden demo\n  stepwarden demo my.jsonl --seed 7    your own orders, one JSON object per line"
    )]
    Demo(Demo),
    /// Measure throughput, latency, recovery time and memory use on this machine, in about a minute
    #[command(
        after_help = "Examples:\n  stepwarden bench\n  stepwarden bench --only single,throughput --memory --json\n  stepwarden bench --rates 100,500,900\n  stepwarden bench --only throughput --orders 100000 --backlog\n  stepwarden bench --only throughput --orders 100000 --backlog 1000    the same, 1000 at a time\n  stepwarden bench --duration 1h --rate 100    does memory stay constant?"
    )]
    Bench(Bench),
    /// Serve the steps of `bench`'s recovery runs; `bench` starts and kills it
    #[command(hide = true)]
    BenchAgent,
    /// Run a workflow many times with injected faults in virtual time, and check that every order ends well
    ///
    /// Waits take no real time. Each run has a seed, a number that decides its faults.
    #[command(
        after_help = "Examples:\n  stepwarden simulate workflows/order.toml\n  stepwarden simulate workflows/order.toml --seed 42    replay one seed with its trace\n  stepwarden simulate --replay order.json\n  stepwarden simulate workflows/order.toml --replay order.json    with a corrected file"
    )]
    Simulate(Simulate),
    /// Test workflows: run scenarios with scripted answers of services, then run them again with injected faults
    ///
    /// A scenario specifies what the services answer and how the order has to end. No service is called, no system
    /// needs to be running, and waits take no real time.
    #[command(
        after_help = "Examples:\n  stepwarden test\n  stepwarden test tests/order.toml --only declined\n  stepwarden test --faults 1000"
    )]
    Test(Test),
    /// Serve only the sample remote services, for a system that runs elsewhere
    #[command(after_help = "Examples:\n  stepwarden remotes --port 8082")]
    Remotes(Remotes),
    /// Check settings, API, token, clock, tables, queues and files, without changing anything
    ///
    /// Every line begins with ok, warn or FAIL; a line about a problem says what to do. By default, doctor checks a
    /// system that `stepwarden up` runs on this machine. If AWS_ENDPOINT_URL is set, doctor checks the emulator at that
    /// address instead. With --aws, it checks the deployment whose tables and queues are named in environment
    /// variables.
    #[command(
        after_help = "Examples:\n  stepwarden doctor\n  stepwarden doctor --aws --url https://API.execute-api.eu-west-1.amazonaws.com --token TOKEN"
    )]
    Doctor(Doctor),
    /// Serve a deployment's web console on this machine, signing every request with your AWS credentials
    ///
    /// Needed if callers of the deployment must sign their requests (IAM), because a browser cannot sign. The command
    /// runs until you press Ctrl-C. Only the link that it prints gives access.
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
    /// --state Waiting lists the orders that have a step whose whole wait is a minute or longer. The order whose last
    /// change was longest ago comes first.
    #[command(
        after_help = "Examples:\n  stepwarden list --state Error\n  stepwarden list --state Waiting --step trial-over    which orders wait in this step, and since when\n  stepwarden list --workflow order --from 2026-11-21T00:00:00Z --limit 10"
    )]
    List(List),
    /// Show which orders need a person, are paused or are being retried, and why; and in which steps orders wait
    #[command(after_help = "Examples:\n  stepwarden overview")]
    Overview(At),
    /// List agents with their pools of workers and waiting requests, and whether they are paused or strained
    ///
    /// An agent is strained if it holds up many orders. The list cannot show an agent's circuit breakers, because only
    /// the agent's own process knows their state. But `overview` shows the open breakers that hold orders back, and the
    /// history of each of these orders has a `deferred` entry.
    #[command(visible_alias = "breaker", after_help = "Examples:\n  stepwarden agents")]
    Agents(At),
    /// List queues and the number of messages in each
    #[command(after_help = "Examples:\n  stepwarden queues")]
    Queues(At),
    /// Register workflows with a running system: check, put, activate, roll back
    ///
    /// A definition is the content of a workflow file, and is identified by its hash. New orders get a newly activated
    /// definition within 5 s; open orders keep the definition that they were submitted with.
    #[command(subcommand)]
    Workflows(workflows::Workflows),
    /// Show which supervisor holds each lease, and until when
    ///
    /// Supervisors look for missed deadlines and run bulk jobs. This work is divided into parts; each part has a lease,
    /// and only the holder of the lease does that part.
    #[command(after_help = "Examples:\n  stepwarden leader")]
    Leader(At),
    /// List the queues with dead letters or set-aside messages; `dlq redrive` moves these messages back
    ///
    /// A dead letter is a message whose handling failed five times. A set-aside message is one that can never be
    /// handled.
    #[command(
        after_help = "Examples:\n  stepwarden dlq\n  stepwarden dlq redrive scheduler --dry-run --reason \"checking\"\n  stepwarden dlq redrive scheduler --limit 50 --reason \"the function is fixed\""
    )]
    Dlq(Dlq),
    /// Perform the same action on many orders at a limited rate, and print a line for each order
    ///
    /// Starts a job in the system and follows it. The job continues if this command ends; `jobs follow` follows it
    /// again. Select the orders by --ids or by at least one filter, such as --state. The exit code is 1 if the action
    /// failed for any order.
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
    /// Every failed step may use its full number of attempts once more; finished steps do not run again. If an undo
    /// failed, resubmit retries that undo and then undoes the rest of the order, which does not run forward again.
    /// Without --wait, the command only says whether the action was accepted, not how the order ends.
    #[command(
        after_help = "Examples:\n  stepwarden resubmit ORDER_ID --reason \"the bank is back\" --wait\n  stepwarden resubmit ORDER_ID --reason \"the bank is back\"\n  stepwarden resubmit ORDER_ID --step charge --input '{\"amount\": 5}' --reason \"the amount was wrong\"\n  stepwarden resubmit ORDER_ID --item '17={\"sku\": \"s4\"}' --reason \"the row was wrong\"\n  stepwarden resubmit ORDER_ID --to latest --reason \"the workflow file is corrected\""
    )]
    Resubmit(Act),
    /// Skip a failed step or a failed undo; or a step that is waiting, if --step names it
    #[command(after_help = "Examples:\n  stepwarden skip ORDER_ID --step check-fraud --reason \"checked by hand\"")]
    Skip(Act),
    /// Record that a failed step or a failed undo was done by hand
    #[command(
        after_help = "Examples:\n  stepwarden mark-done ORDER_ID --step charge --output '{\"receipt\": \"R-1\"}' --reason \"paid in cash\""
    )]
    MarkDone(Act),
    /// Start the next attempt now instead of at its scheduled time
    ///
    /// If --step names a step that waits until a certain time, that wait ends now.
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
    /// Replace an order's unreadable record (its stored state) with a corrected one
    ///
    /// First run `get --raw`: it prints the stored record, why the system cannot read it, and a mark to pass in --seen.
    /// The order continues from the corrected record. If the stored record has changed since you read it, or has become
    /// readable, `mend` changes nothing.
    #[command(
        after_help = "Examples:\n  stepwarden get ORDER_ID --raw > record.json    then correct the file\n  stepwarden mend ORDER_ID record.json --seen MARK --reason \"a damaged disk\""
    )]
    Mend(Mend),
    /// Continue an order under another definition of its workflow, for example a corrected one
    ///
    /// A step that completed, was skipped or passed over, or failed and was caught does not run again. A step that may
    /// have run does not lose its undo. A definition that would break these rules is refused, with the reason. While an
    /// agent works on a step, or may still begin to work on an earlier request, the migration waits, and no other step
    /// starts. A later migration replaces one that is still waiting.
    #[command(
        after_help = "Examples:\n  stepwarden migrate ORDER_ID --to latest --dry-run --reason \"looking\"\n  stepwarden migrate ORDER_ID --to latest --reason \"the new check\"\n  stepwarden resubmit ORDER_ID --to latest --reason \"the file is corrected\"    migrate and try again"
    )]
    Migrate(Migrate),
    /// Run a step of an order again, and all steps that come after it
    ///
    /// The order may already have ended. The effects of these steps are undone first, beginning with the last step. A
    /// step that was undone runs under a new idempotency key. A step that was not undone keeps its key, so its service
    /// does not repeat the work. Earlier replies, events and callbacks for these steps no longer count.
    #[command(
        after_help = "Examples:\n  stepwarden run-again ORDER_ID --from pack --dry-run --reason \"looking\"\n  stepwarden run-again ORDER_ID --from pack --reason \"the wrong box\""
    )]
    RunAgain(RunAgain),
    /// Print everything that is stored about an order, as JSON
    ///
    /// The output contains the order with all its outputs in full, its input, its history, its stored record, and its
    /// workflow definition. It contains personal data.
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
