//! Runs a program as a Lambda function, or as a process that receives from SQS.

mod held;
#[cfg(feature = "serve")]
mod lambda;
mod post;
mod presence;
mod queues;

use crate::Agent;
use jiff::SignedDuration;
use std::collections::BTreeSet;

/// Why the program cannot serve its agents.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// There is nothing to serve.
    #[error("no agent was given")]
    NoAgent,
    /// Two agents have one name.
    #[error("two agents are called `{0}`; give each its own name")]
    TwoAgents(String),
    /// Two functions are for one step in one direction.
    #[error("agent `{agent}` has two functions for step `{step}`; remove one")]
    TwoFunctions {
        /// The agent.
        agent: String,
        /// The step.
        step: String,
    },
    /// A variable of the environment cannot be read.
    #[error("{name}=`{text}` is not {wanted}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// Its value.
        text: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// The operating system refuses a thread or a signal.
    #[error("cannot start: {0}")]
    Start(#[from] std::io::Error),
    /// The runtime of Lambda ended.
    #[cfg(feature = "serve")]
    #[error("the runtime of Lambda ended: {0}")]
    Lambda(String),
}

/// Where the system is, from environment variables.
struct Place {
    stack: String,
    skew: SignedDuration,
}

impl Place {
    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ServeError> {
        let given = |name: &str| lookup(name).filter(|text| !text.is_empty());
        let name = "CLOCK_SKEW_MS";
        let skew = given(name).map_or(Ok(1000), |text| match text.trim().parse::<u16>() {
            Ok(skew) if skew <= 60_000 => Ok(skew),
            Ok(_) | Err(_) => Err(ServeError::Variable { name, text, wanted: "a whole number from 0 to 60000" }),
        })?;
        let stack = given("STACK").unwrap_or_else(|| "stepwarden".into());
        Ok(Self { stack, skew: SignedDuration::from_millis(skew.into()) })
    }

    /// Name of the queue of an agent's requests.
    fn requests(&self, agent: &str) -> String {
        format!("{}-agent-{agent}", self.stack)
    }

    /// Name of the queue of replies.
    fn replies(&self) -> String {
        format!("{}-replies", self.stack)
    }
}

/// Serves these agents until the program is told to end (SIGTERM or SIGINT).
///
/// In Lambda (`AWS_LAMBDA_RUNTIME_API` is set) the program answers the batches of the event source. Unanswered messages
/// are redelivered, which needs `ReportBatchItemFailures`. Elsewhere it receives from each agent's queue. A request
/// leaves its queue only after its reply was sent or its first heartbeat was answered. When told to end, the program
/// takes no more requests, and has 4 s for those that it has. Then it drops unfinished ones and hands them back
/// (`deferred`), which counts no failed attempt.
///
/// | variable | what it is | default |
/// |---|---|---|
/// | `STACK` | name of the system's stack, with which its queues begin | `stepwarden` |
/// | `CLOCK_SKEW_MS` | how far apart two clocks may be, 0 to 60000 | 1000 |
/// | `AWS_ENDPOINT_URL`, region and credentials | as for every program that uses an AWS SDK | |
///
/// `stepwarden up` sets them for the agents of `stepwarden.toml`. Failures of the queue are logged with `tracing`, and the
/// program keeps trying; if there is no subscriber yet, one writes to standard error.
///
/// # Errors
/// The agents or the environment are wrong; then nothing was received. In Lambda also the end of the runtime.
pub fn serve<A: Into<Agent>>(agents: impl IntoIterator<Item = A>) -> Result<(), ServeError> {
    let place = Place::from_lookup(|name| std::env::var(name).ok())?;
    let post = post::client();
    let ready = |agent: A| agent.into().skew(place.skew).posts(post.clone());
    let agents = checked(agents.into_iter().map(ready).collect())?;
    let is_lambda = cfg!(feature = "serve") && std::env::var_os("AWS_LAMBDA_RUNTIME_API").is_some();
    let _ = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_max_level(tracing::Level::INFO)
        .try_init();
    let mut runtime = match is_lambda {
        true => tokio::runtime::Builder::new_current_thread(),
        false => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.enable_all().build()?;
    let served = runtime.block_on(async {
        let queues = queues::Queues::from_env(place).await;
        #[cfg(feature = "serve")]
        if is_lambda {
            return lambda::run(agents, queues).await;
        }
        queues::run(agents, queues).await
    });
    // Whatever still runs has had its time.
    runtime.shutdown_background();
    served
}

fn checked(agents: Vec<Agent>) -> Result<Vec<Agent>, ServeError> {
    let mut names = BTreeSet::new();
    for agent in &agents {
        if !names.insert(agent.name()) {
            return Err(ServeError::TwoAgents(agent.name().to_owned()));
        }
        if let Some(step) = &agent.twice {
            return Err(ServeError::TwoFunctions { agent: agent.name().to_owned(), step: step.clone() });
        }
    }
    if agents.is_empty() { Err(ServeError::NoAgent) } else { Ok(agents) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AgentError, Call};

    #[test]
    fn wrong_agents_are_refused_before_anything_is_received() {
        async fn nothing(_: Call<()>) -> Result<(), AgentError> {
            Ok(())
        }
        let refused = |agents: Vec<Agent>| checked(agents).map(|_| ()).unwrap_err().to_string();
        assert_eq!(refused(vec![]), "no agent was given");
        assert!(refused(vec![Agent::new("a"), Agent::new("a")]).contains("two agents are called `a`"));
        let twice = Agent::new("a").step("s", nothing).step("s", nothing);
        assert!(refused(vec![twice]).contains("two functions for step `s`"));
        assert!(checked(vec![Agent::new("a").step("s", nothing), Agent::new("b").step("s", nothing)]).is_ok());
    }

    #[test]
    fn the_environment_names_the_queues() {
        let place = |stack: &str, skew: &str| {
            let (stack, skew) = (stack.to_owned(), skew.to_owned());
            Place::from_lookup(move |name| Some(if name == "STACK" { stack.clone() } else { skew.clone() }))
        };
        let shop = place("shop", "250").unwrap();
        assert_eq!((shop.requests("stock"), shop.replies()), ("shop-agent-stock".into(), "shop-replies".into()));
        assert_eq!(shop.skew, SignedDuration::from_millis(250));
        let usual = place("", "").unwrap();
        assert_eq!((usual.replies().as_str(), usual.skew), ("stepwarden-replies", SignedDuration::from_secs(1)));
        for wrong in ["-1", "1s", "60001", "99999"] {
            assert!(place("", wrong).map(|_| ()).unwrap_err().to_string().contains("0 to 60000"), "{wrong}");
        }
    }
}
