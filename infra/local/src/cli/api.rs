//! The verbs that speak to a system, over its API.

use super::args::{Act, AgentAct, At, Command, Dlq, Get, Letters, List, Mend, One, Redrive, Submit, Watch};
use super::show::{self, Cell, age, items, table, text, time, when};
use super::{bulk, watch};
use crate::client::{Api, DATA, Error, segment};
use crate::stdout;
use anyhow::{Context, Result};
use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};
use shared::json;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::path::Path;
use std::process::ExitCode;

/// Longest error in a table, in characters; `get` shows all of it.
const SHORT: usize = 60;

/// Asks, and shows what is answered.
///
/// # Errors
/// No answer, a refusal, or a file that cannot be read.
pub async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Submit(submit) => return self::submit(submit).await,
        Command::Watch(Watch { id, until, at }) => return watch::run(&api(&at)?, &id, until.timeout, at.json).await,
        Command::Bulk(wanted) => return bulk::run(*wanted).await,
        Command::Get(get) => self::get(get).await?,
        Command::History(One { id, at }) => {
            let answer = api(&at)?.read(&format!("/orders/{}/history", segment(&id)?)).await?;
            print(&at, &answer, show::history)?;
        }
        Command::List(list) => self::list(list).await?,
        Command::Overview(at) => ask(&at, "/overview", overview).await?,
        Command::Agents(at) => ask(&at, "/agents", agents).await?,
        Command::Queues(at) => ask(&at, "/queues", queues).await?,
        Command::Leader(at) => ask(&at, "/leases", leases).await?,
        Command::Dlq(Dlq { letters: None, at }) => dead_letters(&at).await?,
        Command::Dlq(Dlq { letters: Some(Letters::Redrive(redrive)), .. }) => self::redrive(redrive).await?,
        Command::PauseAgent(act) => set_agent("pause", act).await?,
        Command::ResumeAgent(act) => set_agent("resume", act).await?,
        Command::Resubmit(act) => return self::act("resubmit", act).await,
        Command::Skip(act) => return self::act("skip", act).await,
        Command::MarkDone(act) => return self::act("mark-done", act).await,
        Command::RetryNow(act) => return self::act("retry-now", act).await,
        Command::Cancel(act) => return self::act("cancel", act).await,
        Command::Undo(act) => return self::act("undo", act).await,
        Command::Pause(act) => return self::act("pause", act).await,
        Command::Resume(act) => return self::act("resume", act).await,
        Command::Mend(mend) => self::mend(mend).await?,
        Command::Up(_)
        | Command::Demo(_)
        | Command::Bench(_)
        | Command::BenchAgent(_)
        | Command::Remotes(_)
        | Command::Simulate(_)
        | Command::Doctor(_)
        | Command::Completions(_) => unreachable!("these run here"),
    }
    Ok(ExitCode::SUCCESS)
}

/// The API that the arguments name.
///
/// # Errors
/// The HTTP client cannot be made.
pub(super) fn api(at: &At) -> Result<Api> {
    let data = Path::new(DATA);
    Api::new(&at.url(data), at.token.clone(), data)
}

/// The answer as it came for programs, else what `people` makes of it.
fn print(at: &At, answer: &Value, people: impl FnOnce(&Value) -> String) -> Result<()> {
    if at.json {
        crate::say!("{}", serde_json::to_string_pretty(answer).context("printing the answer")?);
        Ok(())
    } else {
        stdout::styled(&people(answer))
    }
}

async fn ask(at: &At, path: &str, people: impl FnOnce(&Value) -> String) -> Result<()> {
    print(at, &api(at)?.read(path).await?, people)
}

/// Who acts: as given, or whoever the system says this is. USER is missing in containers and under cron.
pub(super) fn who(by: Option<String>) -> Option<String> {
    let named = |name: &str| std::env::var(name).ok();
    let is_name = |text: &String| !text.trim().is_empty();
    let asked = || {
        let said = std::process::Command::new("id").arg("-un").output().ok().filter(|said| said.status.success())?;
        Some(String::from_utf8(said.stdout).ok()?.trim().to_owned())
    };
    by.or_else(|| named("USER").filter(is_name)).or_else(|| named("LOGNAME").filter(is_name)).or_else(asked)
}

async fn submit(submit: Submit) -> Result<ExitCode> {
    let Submit { file, workflow, reference, key, reply_queue, priority, wait, until, at } = submit;
    let input = object(&file, "the order")?;
    let mut body =
        json!({"workflow": workflow, "reference": reference, "reply_queue": reply_queue, "priority": priority});
    body.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
    body["input"] = input;
    let own = format!("cli-{}-{}", Timestamp::now().as_nanosecond(), std::process::id());
    let api = api(&at)?;
    let request = api.request(Method::POST, "/orders").header("idempotency-key", key.unwrap_or(own)).json(&body);
    let answer = api.ask(request).await?.body;
    let id = text(&answer, "order_id");
    if !wait {
        print(&at, &answer, |_| format!("{id}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !at.json {
        crate::say!("{id}");
    }
    watch::run(&api, &id, until.timeout, at.json).await
}

/// The JSON in a file with `what`.
fn object(file: &Path, what: &str) -> Result<Value, Error> {
    let wrong =
        |why: String| Error::File(format!("{}: {why}; name a file with {what} as one JSON object", file.display()));
    let text = read(file).map_err(|e| wrong(e.to_string()))?;
    // What the parser would change in silence is no more refused by the API: it sees what was parsed.
    json::check(text.as_bytes()).map_err(|refused| wrong(refused.to_string()))?;
    serde_json::from_str(&text).map_err(|e| wrong(format!("not JSON: {e}")))
}

fn read(file: &Path) -> std::io::Result<String> {
    if file == Path::new("-") {
        let mut all = String::new();
        return std::io::stdin().read_to_string(&mut all).map(|_| all);
    }
    std::fs::read_to_string(file)
}

async fn get(Get { id, full, raw, at }: Get) -> Result<()> {
    if raw {
        return self::raw(&id, &at).await;
    }
    let now = Timestamp::now();
    let path = format!("/{}/{}", if full { "details" } else { "orders" }, segment(&id)?);
    let answer = api(&at)?.read(&path).await?;
    print(&at, &answer, |answer| if full { details(answer, now) } else { show::order(answer, now) })
}

/// The record on standard output as it is, so that it can be kept in a file; what there is to say of it beside that.
async fn raw(id: &str, at: &At) -> Result<()> {
    let answer = api(at)?.read(&format!("/details/{}/record", segment(id)?)).await?;
    if at.json {
        return print(at, &answer, |_| String::new());
    }
    crate::say!("{}", answer["record"].as_str().unwrap_or_default());
    let beside = match text(&answer, "why") {
        why if why.is_empty() => "it can be read, so there is nothing to mend".to_owned(),
        why if why.contains(json::NEWER) => format!("it cannot be read: {why}"),
        why => {
            let seen = text(&answer, "seen");
            format!(
                "it cannot be read: {why}\nonce it is mended: stepwarden mend {id} FILE --seen {seen} --reason TEXT"
            )
        }
    };
    // `eprintln!` would panic where nobody reads it.
    let _ = writeln!(std::io::stderr(), "{beside}");
    Ok(())
}

async fn mend(Mend { id, file, seen, by, reason, at }: Mend) -> Result<()> {
    let record = object(&file, "the record")?;
    let body = json!({"by": who(by), "reason": reason, "seen": seen, "record": record});
    let answer = api(&at)?.post(&format!("/orders/{}/actions/mend", segment(&id)?), &body).await?;
    print(&at, &answer, |answer| {
        let was = if answer["outcome"] == "repeated" { "accepted before" } else { "accepted" };
        format!("mend: {was}, version {}; to see what comes of it: stepwarden watch {id}\n", text(answer, "version"))
    })
}

fn details(answer: &Value, now: Timestamp) -> String {
    let mut out = show::order(&answer["order"], now);
    let _ = write!(out, "\ninput\n  {}\n\npossible acts\n", answer["input"]);
    for act in items(answer, "acts") {
        let steps: Vec<&str> = items(act, "steps").filter_map(Value::as_str).collect();
        let detail = if steps.is_empty() { text(act, "why") } else { format!("--step {}", steps.join(" | ")) };
        let fits = if act["fits"] == true { "yes" } else { "no" };
        let _ = writeln!(out, "{}", format!("  {:<10} {fits:<3} {detail}", text(act, "act")).trim_end());
    }
    out.push('\n');
    out + &show::history(answer)
}

async fn list(List { filter, limit, cursor, at }: List) -> Result<()> {
    let api = api(&at)?;
    let request = api.request(Method::GET, "/orders").query(&filter).query(&[("cursor", cursor)]);
    let answer = api.ask(request.query(&[("limit", limit)])).await?.body;
    let now = Timestamp::now();
    print(&at, &answer, |answer| {
        let row = |order: &Value| -> [Cell; 7] {
            let trouble = &order["trouble"][0];
            let error = format!("{} {}", text(trouble, "step"), shortened(text(trouble, "error")));
            let [id, workflow, reference] = ["order_id", "workflow", "reference"].map(|name| text(order, name).into());
            let paused = if order["paused_at"].is_string() { " (paused)" } else { "" };
            let state = if paused.is_empty() {
                show::state(text(order, "state"))
            } else {
                format!("{}{paused}", text(order, "state")).into()
            };
            let created = format!("{}  {}", time(order, "created_at"), age(order, "created_at", now));
            [created.into(), id, state, workflow, reference, text(order, "failure_count").into(), error.trim().into()]
        };
        let rows: Vec<_> = items(answer, "orders").map(row).collect();
        let mut out = if rows.is_empty() {
            "no orders found\n".to_owned()
        } else {
            table(["created", "order", "state", "workflow", "reference", "failures", "trouble"], &rows)
        };
        out.push_str(&show::unreadable(answer));
        if let Some(cursor) = answer["next"].as_str() {
            let _ = writeln!(out, "more: --cursor {cursor}");
        }
        out
    })
}

fn shortened(text: String) -> String {
    if text.chars().count() <= SHORT {
        return text;
    }
    text.chars().take(SHORT - 1).chain(['…']).collect()
}

fn overview(answer: &Value) -> String {
    let now = Timestamp::now();
    let count =
        |group: &Value| format!("{}{}", text(group, "count"), if group["more"] == true { " or more" } else { "" });
    let mut out = format!("open orders  {}\n", count(&answer["open"]));
    if answer["oldest"].is_object() {
        let oldest = &answer["oldest"];
        let _ = writeln!(out, "oldest       {}  {}", text(oldest, "order_id"), when(oldest, "created_at", now));
    }
    for (title, name) in
        [("in Error, waiting for a person", "waiting"), ("paused", "paused"), ("being retried", "retrying")]
    {
        let group = &answer[name];
        let _ = writeln!(out, "\n{title}: {}", count(group));
        for why in items(group, "why") {
            let undo = if why["undo"] == true { " (its undo)" } else { "" };
            let step = format!("{} {}{undo}", text(why, "workflow"), text(why, "step"));
            let _ = writeln!(
                out,
                "  {:>5}  {}  {}, since {}, for example {}",
                text(why, "count"),
                step.trim(),
                text(why, "error"),
                when(why, "since", now),
                text(why, "order_id")
            );
        }
    }
    out.push_str(&show::unreadable(answer));
    let agents = |name: &str| answer[name].as_object().into_iter().flatten().collect::<Vec<_>>();
    for (name, pause) in agents("paused_agents") {
        let since = when(pause, "since", now);
        let _ =
            writeln!(out, "\nagent {name}: paused by {}, since {since}: {}", text(pause, "by"), text(pause, "reason"));
    }
    for (name, strain) in agents("strained_agents") {
        let _ = writeln!(out, "\nagent {name}: strained since {}", when(strain, "since", now));
    }
    for (name, breaker) in agents("breakers") {
        let (count, since) = (text(breaker, "count"), when(breaker, "since", now));
        let _ = writeln!(
            out,
            "\nagent {name}: an open breaker has held {count} back since {since}: {}",
            text(breaker, "error")
        );
    }
    out
}

fn agents(answer: &Value) -> String {
    let now = Timestamp::now();
    let mut rows: Vec<[Cell; 5]> = Vec::new();
    for agent in items(answer, "agents") {
        let mut state = Vec::new();
        if agent["paused"].is_object() {
            let paused = &agent["paused"];
            let (by, since) = (text(paused, "by"), age(paused, "since", now));
            state.push(format!("paused by {by}, {since}: {}", text(paused, "reason")));
        }
        if agent["strained"].is_object() {
            let strained = &agent["strained"];
            let (held, of) = (text(strained, "held"), text(strained, "looked_at"));
            let (since, stretch) = (age(strained, "since", now), text(strained, "stretch"));
            state.push(format!("strained, {since}: {held} of {of} orders held up, back-off multiplied by {stretch}"));
        }
        for (n, pool) in items(agent, "pools").enumerate() {
            let name = if n == 0 { text(agent, "name") } else { String::new() };
            let waits: Vec<_> =
                items(pool, "queues").map(|q| format!("{} {}", text(q, "name"), text(q, "waiting"))).collect();
            let state = if n == 0 { state.join("; ") } else { String::new() };
            rows.push([name, text(pool, "name"), text(pool, "dead"), waits.join(", "), state].map(Cell::from));
        }
    }
    table(["agent", "pool", "dead", "waiting", "state"], &rows)
}

fn queues(answer: &Value) -> String {
    let row = |queue: &Value| {
        ["name", "waiting", "in_flight", "delayed", "dead_letters"].map(|name| Cell::from(text(queue, name)))
    };
    let rows: Vec<_> = items(answer, "queues").map(row).collect();
    table(["queue", "waiting", "in flight", "delayed", "dead"], &rows)
}

fn leases(answer: &Value) -> String {
    let now = Timestamp::now();
    let row = |lease: &Value| {
        let holder = match text(lease, "holder") {
            nobody if nobody.is_empty() => "nobody".to_owned(),
            holder => holder,
        };
        [text(lease, "name"), holder, text(lease, "token"), when(lease, "expires", now)].map(Cell::from)
    };
    let rows: Vec<_> = items(answer, "leases").map(row).collect();
    if rows.is_empty() {
        return "no supervisor has led yet\n".into();
    }
    table(["lease", "leader", "token", "expires"], &rows)
}

/// The queues that messages can be moved back to, each with how many wait for that.
async fn dead_letters(at: &At) -> Result<()> {
    let answer = api(at)?.read("/queues").await?;
    let of = |queue: &Value| {
        let name = queue["name"].as_str()?;
        let waiting = if name == shared::queues::SET_ASIDE { &queue["waiting"] } else { &queue["dead_letters"] };
        waiting.as_u64().map(|count| json!({"name": name, "dead_letters": count}))
    };
    let all: Vec<Value> = items(&answer, "queues").filter_map(of).collect();
    print(at, &json!({"queues": all}), |answer| {
        let dead = items(answer, "queues").filter(|queue| queue["dead_letters"] != 0);
        let rows: Vec<[Cell; 2]> =
            dead.map(|queue| ["name", "dead_letters"].map(|name| Cell::from(text(queue, name)))).collect();
        if rows.is_empty() {
            return "no dead letters and no messages set aside\n".into();
        }
        table(["queue", "dead"], &rows) + "\nsee why: stepwarden dlq redrive QUEUE --dry-run --reason \"checking\"\n"
    })
}

async fn redrive(Redrive { queue, by, reason, limit, all, rate, dry_run, at }: Redrive) -> Result<()> {
    let mut body = json!({"by": who(by), "reason": reason, "dry_run": dry_run, "all": all});
    if !all {
        body["limit"] = json!(limit);
    }
    if let Some(rate) = rate {
        body["rate_per_s"] = json!(rate);
    }
    let answer = api(&at)?.post(&format!("/queues/{}/redrive", segment(&queue)?), &body).await?;
    print(&at, &answer, |answer| {
        let mut out = match (dry_run, answer["task_started"] == true) {
            (true, _) => format!("{} wait\n", text(answer, "waiting")),
            (_, true) => format!("{} waiting; an SQS task is moving them: stepwarden dlq\n", text(answer, "waiting")),
            _ => format!("{} waiting, {} moved\n", text(answer, "waiting"), text(answer, "moved")),
        };
        for left in items(answer, "left") {
            let _ = writeln!(out, "  {}  {}", text(left, "message_id"), text(left, "why"));
        }
        out
    })
}

async fn set_agent(verb: &str, AgentAct { agent, by, reason, at }: AgentAct) -> Result<()> {
    let body = json!({"by": who(by), "reason": reason});
    let answer = api(&at)?.post(&format!("/agents/{}/{verb}", segment(&agent)?), &body).await?;
    print(&at, &answer, |a| format!("{verb}: done, in effect within {} s\n", text(a, "within_s")))
}

async fn act(name: &str, act: Act) -> Result<ExitCode> {
    let Act { id, by, reason, step, input, output, if_version, wait, until, at } = act;
    let mut body = json!({"by": who(by), "reason": reason, "step": step, "input": input, "output": output});
    body["if_version"] = json!(if_version);
    // `null` is an output like any other, so what was not given is left out.
    body.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
    let api = api(&at)?;
    let answer = api.post(&format!("/orders/{}/actions/{name}", segment(&id)?), &body).await?;
    let said = |a: &Value| {
        let was = if a["outcome"] == "repeated" { "already accepted" } else { "accepted" };
        let version = a["version"].as_u64().map(|version| format!(", version {version}")).unwrap_or_default();
        // What is accepted is kept; what becomes of the order is another matter.
        let more = if wait { String::new() } else { format!("; follow it with: stepwarden watch {id}") };
        format!("{name}: {was}{version}{more}\n")
    };
    if !wait || !at.json {
        print(&at, &answer, said)?;
    }
    if !wait {
        return Ok(ExitCode::SUCCESS);
    }
    watch::run(&api, &id, until.timeout, at.json).await
}
