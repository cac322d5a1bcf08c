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
  stepwarden overview            show what waits for a person

Exit codes:
  0  done; `watch` and `submit --wait`: the order is Processed
  1  failed: no answer, a refusal after which a retry may succeed, or a failed check
  2  wrong usage: a bad argument, file or token, or an unknown name
  3  `watch` and `submit --wait`: the order is Undone
  4  `watch` and `submit --wait`: the order is in Error
  5  `watch` and `submit --wait`: the order is still open after the timeout
  141  the reader of the output has gone

Colours appear on terminals only; NO_COLOR=1 turns them off.";

/// Runs multi-step business work reliably: a scheduler, agents and a supervisor over SQS and DynamoDB.
///
/// Without a command it runs the demo.
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
    /// Make a folder with a workflow, its agent in Python, scenarios, and a template for AWS
    ///
    /// The folder's name becomes the name of the workflow. README.md in it says what to do next.
    #[command(after_help = "Examples:\n  stepwarden new shop")]
    New(New),
    /// Start the whole system in this process and keep it running
    ///
    /// Callers need the token that this command prints. Set STEPWARDEN_TOKEN to use another token.
    #[command(
        after_help = "Examples:\n  stepwarden up\n  stepwarden up --port 0     any free port; the first line of the output is the URL\n  stepwarden up --memory     keep the data in memory"
    )]
    Up(Up),
    /// Run many orders through a new system while faults are injected, then check every effect
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
    /// Play scenarios of workflows with scripted answers in virtual time, then under faults
    ///
    /// A scenario specifies what the services answer and how the order has to end. No service is called, and no system
    /// needs to be running.
    #[command(
        after_help = "Examples:\n  stepwarden test\n  stepwarden test tests/order.toml --only declined\n  stepwarden test --faults 1000"
    )]
    Test(Test),
    /// Serve the sample remote services alone, for a system that runs elsewhere
    #[command(after_help = "Examples:\n  stepwarden remotes --port 8082")]
    Remotes(Remotes),
    /// Check settings, API, token, clock, tables, queues and files; changes nothing
    ///
    /// Every line begins with ok, warn or FAIL; for each problem it says what to do. By default, doctor checks the
    /// embedded endpoints of a local system. With AWS_ENDPOINT_URL, it checks the emulator at that address. With --aws,
    /// it checks the deployment that the environment names.
    #[command(
        after_help = "Examples:\n  stepwarden doctor\n  stepwarden doctor --aws --url https://API.execute-api.eu-west-1.amazonaws.com --token TOKEN"
    )]
    Doctor(Doctor),
    /// Serve, on this machine, the console of a deployment whose callers sign their requests
    ///
    /// A browser cannot sign requests for IAM. This command signs them with your AWS credentials and passes them on,
    /// until you press Ctrl-C. Only the link that it prints gives access.
    #[command(
        after_help = "Examples:\n  stepwarden console --stack shop\n  stepwarden console --stack shop --profile operator"
    )]
    Console(Console),
    /// Submit an order from a file, or from standard input for `-`
    ///
    /// Prints the order's id. With --wait it then follows the order, with the exit codes of `watch`.
    #[command(
        after_help = "Examples:\n  stepwarden submit order.json\n  head -1 tests/data/northwind-orders.jsonl | stepwarden submit - --wait\n  stepwarden submit order.json --key invoice-4711    repeat it: still one order"
    )]
    Submit(Submit),
    /// Follow an order until it ends
    ///
    /// Prints a line for each change. Exit code 0: Processed, 3: Undone, 4: Error, 5: still open after the timeout.
    #[command(
        after_help = "Examples:\n  stepwarden watch ORDER_ID\n  stepwarden watch ORDER_ID --timeout 30s && echo shipped\n  stepwarden watch ORDER_ID --json    one JSON object per line: the order's current state"
    )]
    Watch(Watch),
    /// Send an event to an order that waits for it or will do so later
    ///
    /// Prints the order's id once the event is stored.
    #[command(
        after_help = "Examples:\n  stepwarden event ORDER_ID approved --data '{\"by\": \"ann\"}'\n  stepwarden event ORDER_ID paid --data '{\"amount\": 5}' --key payment-4711    repeat it: still one event"
    )]
    Event(Event),
    /// Show an order's current state
    #[command(
        visible_alias = "show",
        after_help = "Examples:\n  stepwarden get ORDER_ID\n  stepwarden get ORDER_ID --full    with input, history and the actions that are possible now\n  stepwarden get ORDER_ID --raw > record.json    the stored record, to mend it"
    )]
    Get(Get),
    /// Show what happened to an order
    #[command(after_help = "Examples:\n  stepwarden history ORDER_ID")]
    History(One),
    /// List orders, newest first
    ///
    /// With --state Waiting it lists the orders in which a step has waited for a minute or longer, starting with the
    /// order that has been unchanged for the longest time.
    #[command(
        after_help = "Examples:\n  stepwarden list --state Error\n  stepwarden list --state Waiting --step trial-over    who waits there, and since when\n  stepwarden list --workflow order --from 2026-11-21T00:00:00Z --limit 10"
    )]
    List(List),
    /// Show what waits for a person, what is being retried and why, and in which steps orders wait and since when
    #[command(after_help = "Examples:\n  stepwarden overview")]
    Overview(At),
    /// List agents: whether they are paused or strained, and what waits in their pools
    ///
    /// The state of a circuit breaker is known only to its agent's process. The API shows its effects: strained agents, and a
    /// `deferred` entry in the history of each order that an open breaker held back.
    #[command(visible_alias = "breaker", after_help = "Examples:\n  stepwarden agents")]
    Agents(At),
    /// List queues and what is in them
    #[command(after_help = "Examples:\n  stepwarden queues")]
    Queues(At),
    /// Register workflows with a running system: check, put, activate, roll back
    ///
    /// A new definition is active within 5 s. Orders keep the definition that they were submitted with.
    #[command(subcommand)]
    Workflows(workflows::Workflows),
    /// Show the leading supervisor
    #[command(after_help = "Examples:\n  stepwarden leader")]
    Leader(At),
    /// List dead letters and messages set aside, by queue; `dlq redrive` moves them back
    #[command(
        after_help = "Examples:\n  stepwarden dlq\n  stepwarden dlq redrive scheduler --dry-run --reason \"checking\"\n  stepwarden dlq redrive scheduler --limit 50 --reason \"the function is fixed\""
    )]
    Dlq(Dlq),
    /// Perform one action on many orders at a limited rate, and print a line for each
    ///
    /// Starts a job in the system and follows it. The job continues if this command ends; `jobs follow` follows it
    /// again. At least one filter or --ids is required. The exit code is 1 if the action failed for any order.
    #[command(
        after_help = "Examples:\n  stepwarden bulk resubmit --state Error --agent payment --reason \"the bank is back\" --dry-run\n  stepwarden bulk cancel --workflow order --to 2026-11-01T00:00:00Z --limit 500 --rate 50 --reason \"too old\""
    )]
    Bulk(Box<Bulk>),
    /// List jobs, newest first; `jobs show`, `follow`, `results`, `pause`, `resume` and `abort` act on one job
    #[command(
        after_help = "Examples:\n  stepwarden jobs\n  stepwarden jobs follow JOB_ID\n  stepwarden jobs results JOB_ID --failed\n  stepwarden jobs pause JOB_ID --reason \"the bank asks for it\""
    )]
    Jobs(Jobs),
    /// Continue an order in Error from its failed steps
    ///
    /// Every failed step gets all its attempts again; finished steps stay finished. If an undo failed, resubmit retries that
    /// undo and continues to undo the order; the order never continues forward. The answer only says that the action was
    /// accepted; --wait shows the outcome.
    #[command(
        after_help = "Examples:\n  stepwarden resubmit ORDER_ID --reason \"the bank is back\" --wait\n  stepwarden resubmit ORDER_ID --reason \"the bank is back\"\n  stepwarden resubmit ORDER_ID --step charge --input '{\"amount\": 5}' --reason \"the amount was wrong\"\n  stepwarden resubmit ORDER_ID --item '17={\"sku\": \"s4\"}' --reason \"the row was wrong\"\n  stepwarden resubmit ORDER_ID --to latest --reason \"the workflow file is corrected\""
    )]
    Resubmit(Act),
    /// Skip a failed step, a failed undo, or the wait of the step that --step names
    #[command(after_help = "Examples:\n  stepwarden skip ORDER_ID --step check-fraud --reason \"checked by hand\"")]
    Skip(Act),
    /// Record that a failed step or a failed undo was done by hand
    #[command(
        after_help = "Examples:\n  stepwarden mark-done ORDER_ID --step charge --output '{\"receipt\": \"R-1\"}' --reason \"paid in cash\""
    )]
    MarkDone(Act),
    /// Start the next attempt now instead of waiting for it
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
    /// Replace a record that cannot be read with a corrected one
    ///
    /// The order continues from the new record. `get --raw` prints the stored record, why it cannot be read, and the
    /// mark for --seen. Nothing changes if somebody else has written the stored record since, or if it has become readable.
    #[command(
        after_help = "Examples:\n  stepwarden get ORDER_ID --raw > record.json    then correct the file\n  stepwarden mend ORDER_ID record.json --seen MARK --reason \"a damaged disk\""
    )]
    Mend(Mend),
    /// Continue an order under another definition of its workflow
    ///
    /// No settled step runs again, and what was done can still be undone. A definition that would break this rule is
    /// refused, with the reason. While a step is with an agent, the migration is only recorded, and no other step
    /// starts. The order is migrated as soon as no request to an agent can start any more. A later migration replaces
    /// one that is still waiting.
    #[command(
        after_help = "Examples:\n  stepwarden migrate ORDER_ID --to latest --dry-run --reason \"looking\"\n  stepwarden migrate ORDER_ID --to latest --reason \"the new check\"\n  stepwarden resubmit ORDER_ID --to latest --reason \"the file is corrected\"    migrate and try again"
    )]
    Migrate(Migrate),
    /// Run a step of an order again, and all steps that come after it
    ///
    /// The order may already have ended. What these steps did is undone first, beginning with the last step. A step
    /// that was undone gets a new idempotency key. Any other step keeps its key, so that its service does nothing
    /// twice. Earlier replies, events and callbacks for these steps no longer count.
    #[command(
        after_help = "Examples:\n  stepwarden run-again ORDER_ID --from pack --dry-run --reason \"looking\"\n  stepwarden run-again ORDER_ID --from pack --reason \"the wrong box\""
    )]
    RunAgain(RunAgain),
    /// Print everything that is kept about an order, as JSON
    ///
    /// The output contains the order with its long outputs, its input, its history, its stored record, and the
    /// definition that it runs. It contains personal data.
    #[command(after_help = "Examples:\n  stepwarden export ORDER_ID > order.json")]
    Export(One),
    /// Erase what an order says about people
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
