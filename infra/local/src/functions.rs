//! What `lambda` steps call on this machine: URLs, and programs that get the event on their standard input.

use agent::AgentError;
use agent::aws::{Functions as Callable, Invocation, Invoked};
use agent::remote::{bytes, client, too_long};
use futures::FutureExt;
use futures::future::BoxFuture;
use reqwest::{Client, StatusCode, Url};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use shared::history::shorten;
use shared::workflow::aws::is_function;
use shared::workflow::http::{Meaning, is_unwell, usual};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::oneshot;

/// Longest output of a program, in bytes: that of an answer over HTTP.
const MAX_OUTPUT: u64 = agent::remote::MAX_ANSWER as u64;
/// What is kept of a failed program's error output, in bytes.
const MAX_SAID: u64 = 4096;

/// What stands for a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Gets the event as a POST.
    Url(String),
    /// A command for `sh`.
    Command(String),
}

/// By the function's name.
pub type Targets = BTreeMap<String, Target>;

/// Calls them.
pub struct Functions {
    targets: Targets,
    client: OnceLock<Client>,
}

/// Reads `NAME=URL` or `NAME=COMMAND`.
///
/// # Errors
/// What is wrong, in words.
pub fn target(text: &str) -> Result<(String, Target), String> {
    let Some((name, what)) = text.split_once('=').filter(|(_, what)| !what.trim().is_empty()) else {
        return Err("write NAME=URL or NAME=COMMAND".into());
    };
    if !is_function(name) || name.contains(':') {
        return Err(format!("`{name}` is not the name of a function; write its name alone, without account or alias"));
    }
    let is_url = what.starts_with("http://") || what.starts_with("https://");
    if is_url && Url::parse(what).is_err() {
        return Err(format!("`{what}` is not a URL"));
    }
    let target = if is_url { Target::Url(what.to_owned()) } else { Target::Command(what.to_owned()) };
    Ok((name.to_owned(), target))
}

impl Functions {
    /// Functions for which these stand.
    #[must_use]
    pub fn new(targets: Targets) -> Self {
        Self { targets, client: OnceLock::new() }
    }

    async fn post(&self, url: &str, call: Invocation<'_>) -> Result<Invoked, AgentError> {
        let asked = self.client.get_or_init(client).post(url).timeout(call.time_left);
        let asked = asked
            .header("content-type", "application/json")
            .header("idempotency-key", &call.request.idempotency_key)
            .header("complete-by", call.request.complete_by.to_string());
        let lost = |e: reqwest::Error| transient(format!("no answer: {}", e.without_url()), None);
        let answer = asked.body(call.payload.to_owned()).send().await.map_err(lost)?;
        let (status, failed) = (answer.status(), answer.headers().contains_key("x-amz-function-error"));
        let payload = bytes(answer).await?;
        match usual("POST", status.as_u16()) {
            Meaning::Done => Ok(Invoked { payload: payload.ok_or_else(too_long)?, failed }),
            Meaning::Transient => Err(transient(status.to_string(), Some(status))),
            Meaning::Permanent => {
                Err(AgentError::Refused { error: status.to_string(), status: status.as_u16(), answer: None })
            }
        }
    }
}

impl Callable for Functions {
    fn invoke<'a>(&'a self, call: Invocation<'a>) -> Option<BoxFuture<'a, Result<Invoked, AgentError>>> {
        Some(match self.targets.get(call.function)? {
            Target::Url(url) => self.post(url, call).boxed(),
            Target::Command(command) => run(command, call).boxed(),
        })
    }
}

fn transient(error: String, status: Option<StatusCode>) -> AgentError {
    let status = status.map(|status| status.as_u16());
    AgentError::Transient { error, said: None, status, retry_after: None, is_unwell: status.is_none_or(is_unwell) }
}

/// Ends the program, and what it started, if nothing waits for its answer any more.
struct Group {
    id: Pid,
    has_ended: Arc<AtomicBool>,
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.has_ended.load(Ordering::Acquire) {
            let _ = kill_process_group(self.id, Signal::KILL);
        }
    }
}

async fn run(command: &str, call: Invocation<'_>) -> Result<Invoked, AgentError> {
    let unstarted = |e: std::io::Error| AgentError::NotCalled {
        error: format!("the command for function `{}` cannot be started: {e}", call.function),
        is_permanent: false,
    };
    let mut started = Command::new("sh");
    started.arg("-c").arg(command).env("IDEMPOTENCY_KEY", &call.request.idempotency_key);
    started.env("COMPLETE_BY", call.request.complete_by.to_string());
    started.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let child = started.spawn().map_err(unstarted)?;
    let group = Group { id: Pid::from_child(&child), has_ended: Arc::default() };
    let (tell, told) = oneshot::channel();
    let (payload, has_ended) = (call.payload.to_owned(), Arc::clone(&group.has_ended));
    // A thread, not a task: one that waits for a program must not hold up the end of this process.
    std::thread::spawn(move || {
        let result = wait(child, payload);
        has_ended.store(true, Ordering::Release);
        let _ = tell.send(result);
    });
    let result = told.await.map_err(|_| transient("waiting for the command failed".into(), None))?;
    drop(group);
    result.map_err(|e| transient(format!("the program's output cannot be read: {e}"), None))?
}

/// Feeds the program, and reads what it writes until it ends.
fn wait(mut child: Child, payload: String) -> std::io::Result<Result<Invoked, AgentError>> {
    let (mut stdin, stderr) = (child.stdin.take(), child.stderr.take());
    // A program may end without having read its input.
    let fed = std::thread::spawn(move || stdin.as_mut().map(|stdin| stdin.write_all(payload.as_bytes())));
    let heard = std::thread::spawn(move || {
        let mut said = Vec::new();
        let mut stderr = stderr?;
        stderr.by_ref().take(MAX_SAID).read_to_end(&mut said).ok()?;
        std::io::copy(&mut stderr, &mut std::io::sink()).ok()?;
        Some(said)
    });
    let mut output = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(MAX_OUTPUT + 1).read_to_end(&mut output)?;
    }
    let is_long = output.len() as u64 > MAX_OUTPUT;
    if is_long {
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    }
    let status = child.wait()?;
    let _ = fed.join();
    if is_long {
        return Ok(Err(too_long()));
    }
    if status.success() {
        return Ok(Ok(Invoked { payload: output, failed: false }));
    }
    // It may say its error as a function does; else the end of what it wrote says most.
    let own = serde_json::from_slice::<Value>(&output).ok().filter(|value| value.get("errorType").is_some());
    let payload = own.unwrap_or_else(|| {
        let said = heard.join().ok().flatten().unwrap_or_default();
        let said = String::from_utf8_lossy(&said).into_owned();
        let line = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        let ended = match (status.code(), status.signal()) {
            (Some(code), _) => format!("Exit{code}"),
            (None, signal) => format!("Signal{}", signal.unwrap_or_default()),
        };
        json!({"errorType": ended, "errorMessage": shorten(line, 400)})
    });
    Ok(Ok(Invoked { payload: payload.to_string().into_bytes(), failed: true }))
}
