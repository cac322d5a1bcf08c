//! The verbs of the command line that speak to a running system over its API.

use anyhow::{Context, Result, bail};
use reqwest::{Client, Method, RequestBuilder, StatusCode, Url};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// Longest wait for one answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Where `stepwarden up` keeps its data unless it is told otherwise.
pub const DATA: &str = ".stepwarden";

/// A system to speak to.
pub struct Api {
    http: Client,
    url: String,
    token: Option<String>,
    json: bool,
}

impl Api {
    /// The API below `url`; `json` prints answers as they come, for programs. Without a token, and if the API is on this
    /// machine, the one that `stepwarden up` keeps in this folder is taken.
    ///
    /// # Errors
    /// The HTTP client cannot be made.
    pub fn new(url: &str, token: Option<String>, json: bool) -> Result<Self> {
        let http = Client::builder().timeout(TIMEOUT);
        // A proxy is another machine: it would be told the token that is kept here, and call itself.
        let http = if is_here(url) { http.no_proxy() } else { http };
        let http = http.build().context("making the HTTP client")?;
        let token = token.filter(|token| !token.is_empty()).or_else(|| kept(url));
        Ok(Self { http, url: url.trim_end_matches('/').to_owned(), token, json })
    }

    /// Submits the order in a file, or on standard input for `-`.
    ///
    /// # Errors
    /// The file is no JSON object, the system does not answer, or it refuses the order.
    pub async fn submit(
        &self,
        file: &Path,
        workflow: &str,
        key: Option<&str>,
        reply_queue: Option<&str>,
        priority: &str,
    ) -> Result<()> {
        let input: Value =
            serde_json::from_str(&read(file)?).with_context(|| format!("{}: not one JSON object", file.display()))?;
        let mut body = json!({"workflow": workflow, "input": input, "priority": priority});
        if let Some(queue) = reply_queue {
            body["reply_queue"] = json!(queue);
        }
        let own = format!("cli-{}-{}", jiff::Timestamp::now().as_nanosecond(), std::process::id());
        let request = self.request(Method::POST, "/orders").header("idempotency-key", key.unwrap_or(&own)).json(&body);
        let answer = self.send(request).await?;
        self.print(&answer, |a| format!("{}\n", text(a, "order_id")))
    }

    /// Prints how an order stands.
    ///
    /// # Errors
    /// The system does not answer, or knows no such order.
    pub async fn get(&self, id: &str) -> Result<()> {
        let answer = self.send(self.request(Method::GET, &format!("/orders/{}", segment(id)?))).await?;
        self.print(&answer, status)
    }

    /// Prints what happened to an order.
    ///
    /// # Errors
    /// The system does not answer, or knows no such order.
    pub async fn history(&self, id: &str) -> Result<()> {
        let answer = self.send(self.request(Method::GET, &format!("/orders/{}/history", segment(id)?))).await?;
        self.print(&answer, |a| {
            let mut out = String::new();
            for entry in a["history"].as_array().into_iter().flatten() {
                let attempt = entry["attempt"].as_u64().map(|n| format!("#{n}")).unwrap_or_default();
                let columns =
                    [text(entry, "at"), text(entry, "event"), text(entry, "step"), attempt, text(entry, "detail")];
                let _ = writeln!(
                    out,
                    "{:<24}  {:<17} {:<14} {:<4} {}",
                    columns[0], columns[1], columns[2], columns[3], columns[4]
                );
            }
            out
        })
    }

    /// Prints a page of orders, newest first.
    ///
    /// # Errors
    /// The system does not answer, or refuses a filter.
    pub async fn list(&self, filters: &[(&str, String)]) -> Result<()> {
        let answer = self.send(self.request(Method::GET, "/orders").query(filters)).await?;
        self.print(&answer, |a| {
            let mut out = String::new();
            for order in a["orders"].as_array().into_iter().flatten() {
                let columns =
                    ["created_at", "order_id", "state", "workflow", "reference"].map(|name| text(order, name));
                let _ = writeln!(
                    out,
                    "{:<24}  {:<30} {:<11} {:<12} {}",
                    columns[0], columns[1], columns[2], columns[3], columns[4]
                );
            }
            if let Some(cursor) = a["next"].as_str() {
                let _ = writeln!(out, "more: --cursor {cursor}");
            }
            out
        })
    }

    /// Prints the agents: whether they are paused, and what waits in the queues of their pools, the most urgent first.
    ///
    /// # Errors
    /// The system does not answer.
    pub async fn agents(&self) -> Result<()> {
        let answer = self.send(self.request(Method::GET, "/agents")).await?;
        self.print(&answer, |a| {
            let mut out = String::new();
            for agent in a["agents"].as_array().into_iter().flatten() {
                let paused = agent["paused"]["by"].as_str().map(|by| format!(", paused by {by}")).unwrap_or_default();
                let _ = writeln!(out, "{}{paused}", text(agent, "name"));
                for pool in agent["pools"].as_array().into_iter().flatten() {
                    let _ = write!(out, "  {:<20} dead {}", text(pool, "name"), text(pool, "dead"));
                    for queue in pool["queues"].as_array().into_iter().flatten() {
                        let _ = write!(out, "  {} {}", text(queue, "name"), text(queue, "waiting"));
                    }
                    out.push('\n');
                }
            }
            out
        })
    }

    /// Does something to an order: resubmit, skip, mark-done, retry-now, cancel, undo, pause, resume.
    ///
    /// # Errors
    /// The system does not answer, or the act does not fit the order.
    pub async fn act(&self, action: &str, id: &str, body: &Value) -> Result<()> {
        let path = format!("/orders/{}/actions/{action}", segment(id)?);
        let answer = self.send(self.request(Method::POST, &path).json(body)).await?;
        self.print(&answer, |a| match a["version"].as_u64() {
            Some(version) => format!("{action}: done, version {version}\n"),
            None => format!("{action}: done\n"),
        })
    }

    /// Pauses or resumes an agent.
    ///
    /// # Errors
    /// The system does not answer, or knows no such agent.
    pub async fn set_agent(&self, verb: &str, agent: &str, by: &str, reason: &str) -> Result<()> {
        let path = format!("/agents/{}/{verb}", segment(agent)?);
        let request = self.request(Method::POST, &path).json(&json!({"by": by, "reason": reason}));
        let answer = self.send(request).await?;
        self.print(&answer, |a| format!("{verb}: done, within {} s\n", text(a, "within_s")))
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Value> {
        let answer = request.send().await.with_context(|| {
            format!(
                "no answer from {}; start the system with `stepwarden up`, or name another one with --url",
                self.url
            )
        })?;
        let status = answer.status();
        let body = answer.text().await.context("reading the answer")?;
        let value: Value = serde_json::from_str(&body).unwrap_or(Value::String(body));
        if status.is_success() {
            return Ok(value);
        }
        if status == StatusCode::UNAUTHORIZED {
            bail!(
                "401 {} asks for a token: give it with --token or in STEPWARDEN_TOKEN, or call from the folder in which \
                 `stepwarden up` keeps .stepwarden/token",
                self.url
            );
        }
        let field = value["field"].as_str().map(|f| format!("{f}: ")).unwrap_or_default();
        let detail = value["detail"].as_str().map_or_else(|| value.to_string(), str::to_owned);
        let code = value["code"].as_str().map(|c| format!(" ({c})")).unwrap_or_default();
        bail!("{} {field}{detail}{code}", status.as_u16())
    }

    fn print(&self, answer: &Value, people: impl FnOnce(&Value) -> String) -> Result<()> {
        if self.json {
            crate::say!("{}", serde_json::to_string_pretty(answer).context("printing the answer")?);
        } else {
            crate::say::write(format_args!("{}", people(answer)))?;
        }
        Ok(())
    }
}

/// The token of the local system that keeps its data in this folder. It is sent to no other machine.
fn kept(url: &str) -> Option<String> {
    let token =
        is_here(url).then(|| std::fs::read_to_string(Path::new(DATA).join(crate::access::FILE)).ok()).flatten()?;
    Some(token.trim().to_owned())
}

fn is_here(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| url.host_str().is_some_and(stepwarden_embedded::is_loopback))
}

fn read(file: &Path) -> Result<String> {
    if file == Path::new("-") {
        let mut all = String::new();
        std::io::stdin().read_to_string(&mut all).context("reading standard input")?;
        return Ok(all);
    }
    std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
}

/// An id or a name as one part of a path: neither has a character that means something there.
fn segment(id: &str) -> Result<&str> {
    let good = !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if good {
        Ok(id)
    } else {
        bail!("`{id}` is no order id, which looks like ord_ and 26 letters and digits, and no name")
    }
}

fn text(value: &Value, name: &str) -> String {
    match &value[name] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn status(order: &Value) -> String {
    let mut out = format!("{}  {}  {}\n", text(order, "order_id"), text(order, "workflow"), text(order, "state"));
    for (label, name) in
        [("reason", "reason"), ("reference", "reference"), ("created", "created_at"), ("changed", "updated_at")]
    {
        let value = text(order, name);
        if !value.is_empty() {
            let _ = writeln!(out, "  {label:<10} {value}");
        }
    }
    for step in order["steps"].as_array().into_iter().flatten() {
        let _ =
            write!(out, "  {:<14} {:<15} attempts {}", text(step, "name"), text(step, "state"), text(step, "attempts"));
        for (label, name) in
            [("complete by", "complete_by"), ("next attempt", "next_attempt_at"), ("last error:", "last_error")]
        {
            let value = text(step, name);
            if !value.is_empty() {
                let _ = write!(out, ", {label} {value}");
            }
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_system_on_this_machine_is_asked() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = axum::Router::new().route("/orders", axum::routing::get(|| async { "[]" }));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let api = Api::new(&url, Some("token".into()), true).unwrap();
        assert_eq!(api.send(api.request(Method::GET, "/orders")).await.unwrap(), json!([]));
    }

    // Security: the test above once more, where the environment names a proxy, which nobody runs.
    #[test]
    fn the_system_on_this_machine_is_asked_without_a_proxy() {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "client::tests::the_system_on_this_machine_is_asked"]);
        again.env("HTTP_PROXY", "http://127.0.0.1:9").env_remove("NO_PROXY").env_remove("no_proxy");
        let said = String::from_utf8(again.output().unwrap().stdout).unwrap();
        assert!(said.contains("1 passed"), "{said}");
    }
}
