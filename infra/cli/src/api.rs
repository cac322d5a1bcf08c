//! The verbs that call a system's API.

use crate::args::{
    Act, AgentAct, At, Command, Dlq, Erase, Event, Get, Letters, List, Mend, Migrate, One, Redrive, RunAgain, Submit,
    Watch,
};
use crate::client::{Error, segment};
use crate::local::code;
use crate::show::{self, Cell, from_now, table, time, when};
use crate::stdout;
use crate::{bulk, watch};
use anyhow::{Context, Result};
use jiff::Timestamp;
use operator::details::Details;
use operator::erase::Erased;
use operator::items::{Page, Row as Item};
use operator::list::{Row, Rows, Wait};
use operator::mend::Record;
use operator::migrate::Report;
use operator::overview::{Count, Overview, WaitsAt};
use operator::queues::{LeaseRow, Leases, QueueRow, Queues};
use operator::{act, again, agents};
use reqwest::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use shared::json;
use shared::view::Status;
use shared::workflow::http::encoded;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::path::Path;
use std::process::ExitCode;
use stepwarden_aws::redrive::Moved;
use submit::events::EventAccepted;
use submit::http::{Accepted, History};

/// Longest error in a table, in characters; `get` shows all of it.
const SHORT: usize = 60;

/// Runs a verb and prints the answer.
pub async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Submit(submit) => return self::submit(submit).await,
        Command::Event(event) => self::event(event).await?,
        Command::Watch(Watch { id, until, at }) => {
            return watch::run(&at.api().await?, &id, until.timeout, at.json).await;
        }
        Command::Bulk(wanted) => return bulk::run(*wanted).await,
        Command::Jobs(wanted) => return bulk::jobs(wanted).await,
        Command::Get(get) => self::get(get).await?,
        Command::History(One { id, at }) => {
            let path = format!("/orders/{}/history", segment(&id)?);
            ask(&at, &path, |History { history, .. }| show::history(&history)).await?;
        }
        Command::List(list) => self::list(list).await?,
        Command::Overview(at) => ask(&at, "/overview", overview).await?,
        Command::Agents(at) => ask(&at, "/agents", agents).await?,
        Command::Queues(at) => ask(&at, "/queues", queues).await?,
        Command::Workflows(command) => return crate::workflows::run(command).await,
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
        Command::Migrate(migrate) => return self::migrate(migrate).await,
        Command::RunAgain(again) => return run_again(again).await,
        Command::Export(one) => self::export(one).await?,
        Command::Erase(Erase { id, by, at }) => {
            let path = format!("/orders/{}/erasure", segment(&id)?);
            let answer = at.api().await?.post(&path, &by.body(Value::Null)).await?;
            print(&at, &answer, |Erased { erased_at, detail, .. }| {
                format!("erased {}, {detail}\n", when(erased_at, Timestamp::now()))
            })?;
        }
        Command::New(_)
        | Command::Up(_)
        | Command::Console(_)
        | Command::Demo(_)
        | Command::Bench(_)
        | Command::BenchAgent
        | Command::Remotes(_)
        | Command::Simulate(_)
        | Command::Test(_)
        | Command::Doctor(_)
        | Command::Completions(_) => unreachable!("these run here"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the answer as `people` formats it, or as it came if a program asked for it or another version of the system
/// sent it.
pub fn print<T: DeserializeOwned>(at: &At, answer: &Value, people: impl FnOnce(T) -> String) -> Result<()> {
    match show::read(answer).filter(|_| !at.json) {
        Some(known) => stdout::styled(&people(known)),
        None => {
            crate::say!("{}", serde_json::to_string_pretty(answer).context("printing the answer")?);
            Ok(())
        }
    }
}

/// Prints the answer of a route.
pub async fn ask<T: DeserializeOwned>(at: &At, path: &str, people: impl FnOnce(T) -> String) -> Result<()> {
    print(at, &at.api().await?.read(path).await?, people)
}

async fn submit(submit: Submit) -> Result<ExitCode> {
    let Submit { file, workflow, reference, label, key, reply_queue, priority, wait, until, at } = submit;
    let input = object(&file, "the order")?;
    let mut body =
        json!({"workflow": workflow, "reference": reference, "reply_queue": reply_queue, "priority": priority});
    body.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
    body["input"] = input;
    if !label.is_empty() {
        body["labels"] = json!(label);
    }
    let api = at.api().await?;
    let key = key.unwrap_or_else(new_key);
    let request = api.request(Method::POST, "/orders").header("idempotency-key", key).json(&body);
    let answer = api.ask(request).await?.body;
    if !wait || !at.json {
        print(&at, &answer, |Accepted { order_id, .. }| format!("{order_id}\n"))?;
    }
    if !wait {
        return Ok(ExitCode::SUCCESS);
    }
    let Accepted { order_id, .. } = show::read(&answer).context("the answer contains no order id to follow")?;
    watch::run(&api, &order_id.0, until.timeout, at.json).await
}

pub fn new_key() -> String {
    format!("cli-{}-{}", Timestamp::now().as_nanosecond(), std::process::id())
}

async fn event(Event { id, name, data, key, by, at }: Event) -> Result<()> {
    let (api, path) = (at.api().await?, format!("/orders/{}/events/{}", segment(&id)?, segment(&name)?));
    let key = key.unwrap_or_else(new_key);
    let request = api.request(Method::POST, &path).header("idempotency-key", key);
    let request =
        by.into_iter().fold(request, |request, by| request.header(stepwarden_local::access::BY, encoded(&by)));
    let answer = api.ask(request.json(&data.unwrap_or_else(|| json!({})))).await?.body;
    print(&at, &answer, |EventAccepted { order_id, .. }| format!("{order_id}\n"))
}

/// The JSON in a file with `what`.
fn object(file: &Path, what: &str) -> Result<Value, Error> {
    let wrong =
        |why: String| Error::File(format!("{}: {why}; name a file that has {what} as one JSON object", file.display()));
    let text = read(file).map_err(|e| wrong(e.to_string()))?;
    // Checked here, because the parser would silently change such text and the API would see only the result.
    json::check(text.as_bytes()).map_err(|refused| wrong(refused.to_string()))?;
    serde_json::from_str(&text).map_err(|e| wrong(format!("not JSON: {e}")))
}

pub fn read(file: &Path) -> std::io::Result<String> {
    if file == Path::new("-") {
        let mut all = String::new();
        return std::io::stdin().read_to_string(&mut all).map(|_| all);
    }
    std::fs::read_to_string(file)
}

async fn get(Get { id, full, raw, output, items, step, cursor, at }: Get) -> Result<()> {
    if raw {
        return self::raw(&id, &at).await;
    }
    if let Some(state) = items {
        return self::items(&id, &state, step, cursor, &at).await;
    }
    if let Some(step) = output {
        return self::output(&id, &step, &at).await;
    }
    let path = format!("/{}/{}", if full { "details" } else { "orders" }, segment(&id)?);
    let answer = at.api().await?.read(&path).await?;
    if full {
        return print(&at, &answer, |known| details(&known, &answer["input"]));
    }
    print(&at, &answer, |order| show::order(&order, Timestamp::now()))
}

/// Prints a page of the items of a step's list.
async fn items(id: &str, state: &str, step: Option<String>, cursor: Option<usize>, at: &At) -> Result<()> {
    let api = at.api().await?;
    let step = match step {
        Some(step) => step,
        None => {
            let answer = api.read(&format!("/orders/{}", segment(id)?)).await?;
            let order: Status =
                show::read(&answer).context("the answer is not an order; update the `stepwarden` command")?;
            let mut lists = order.steps.into_iter().filter(|step| step.items.is_some()).map(|step| step.name);
            let first = lists.next().context("no step of the order has started a list of items yet")?;
            let others: Vec<String> = lists.collect();
            if !others.is_empty() {
                anyhow::bail!("several steps have lists; write `--step` and one of {first}, {}", others.join(", "));
            }
            first
        }
    };
    let path = format!("/details/{}/items/{}", segment(id)?, segment(&step)?);
    let state = (state != "all").then_some(state);
    let request = api.request(Method::GET, &path).query(&[("state", state)]).query(&[("cursor", cursor)]);
    print(at, &api.ask(request).await?.body, |Page { items, next, .. }: Page| {
        let row = |item: &Item| -> [Cell; 4] {
            [
                item.index.to_string().into(),
                show::state(item.state.to_string()),
                item.order_id.as_ref().map_or("", |id| &id.0).into(),
                item.error.as_deref().unwrap_or_default().into(),
            ]
        };
        let rows: Vec<_> = items.iter().map(row).collect();
        show::page("no items found", ["item", "state", "order", "error"], &rows, "", next)
    })
}

/// Prints what the step called `name` returned.
async fn output(id: &str, name: &str, at: &At) -> Result<()> {
    let answer = at.api().await?.read(&format!("/orders/{}?output={}", segment(id)?, segment(name)?)).await?;
    let order: Status = show::read(&answer).context("the answer is not an order; update the `stepwarden` command")?;
    let Some(step) = order.steps.iter().find(|step| step.name == name) else {
        let names: Vec<&str> = order.steps.iter().map(|step| step.name.as_str()).collect();
        anyhow::bail!("the order has no step `{name}`; write one of {}", names.join(", "));
    };
    let output =
        step.output.as_ref().with_context(|| format!("step `{name}` has no output; its state is {}", step.state))?;
    crate::say!("{output:#}\n");
    Ok(())
}

/// Prints the record on standard output as it is, so that it can be kept in a file, and everything else on standard
/// error.
async fn raw(id: &str, at: &At) -> Result<()> {
    let answer = at.api().await?.read(&format!("/details/{}/record", segment(id)?)).await?;
    let Some(Record { why, seen, .. }) = show::read(&answer).filter(|_| !at.json) else {
        return print(at, &answer, |_: Record| String::new());
    };
    crate::say!("{}", answer["record"].as_str().unwrap_or_default());
    let beside = match why {
        None => "the record can be read, so there is nothing to mend".to_owned(),
        Some(why) if why.contains(json::NEWER) => format!("the record cannot be read: {why}"),
        Some(why) => format!(
            "the record cannot be read: {why}\n\
             to replace it with a corrected record: stepwarden mend {id} FILE --seen {seen} --reason TEXT"
        ),
    };
    // `eprintln!` would panic without a reader.
    let _ = writeln!(std::io::stderr(), "{beside}");
    Ok(())
}

async fn mend(Mend { id, file, seen, by, at }: Mend) -> Result<()> {
    let record = object(&file, "the record")?;
    let body = by.body(json!({"seen": seen, "record": record}));
    let answer = at.api().await?.post(&format!("/orders/{}/actions/mend", segment(&id)?), &body).await?;
    print(&at, &answer, |act::Done { outcome, version, .. }| {
        let was = if outcome == "repeated" { "accepted before" } else { "accepted" };
        format!("mend: {was}, version {version}; follow the order with: stepwarden watch {id}\n")
    })
}

/// How often an order is read that changes between two answers.
const READS: usize = 5;

/// Prints everything that is kept of an order.
async fn export(One { id, at }: One) -> Result<()> {
    let (api, id) = (at.api().await?, segment(&id)?);
    for _ in 0..READS {
        let mut all = api.read(&format!("/details/{id}")).await?;
        let Record { record, columns, .. } = show::read(&api.read(&format!("/details/{id}/record")).await?)
            .context("the answer is not a record; update the `stepwarden` command")?;
        let order: Status =
            show::read(&all["order"]).context("the answer is not an order; update the `stepwarden` command")?;
        let long = order.steps.iter().enumerate().filter(|(_, step)| step.output_bytes.is_some());
        let mut is_same = columns.get("version") == Some(&order.version.to_string());
        for (n, step) in long {
            let answer = api.read(&format!("/orders/{id}?output={}", segment(&step.name)?)).await?;
            is_same &= answer["version"] == order.version;
            all["order"]["steps"][n]["output"] = answer["steps"][n]["output"].clone();
        }
        if !is_same {
            continue;
        }
        let definition =
            api.read(&format!("/workflows/{}/{}", segment(&order.workflow)?, segment(&order.workflow_hash)?)).await?;
        let record = serde_json::from_str(&record).unwrap_or(Value::String(record));
        // Those of the orders that it may start.
        let mut definitions = serde_json::Map::new();
        for (name, hash) in record["df"].as_object().into_iter().flatten() {
            let path = format!("/workflows/{}/{}", segment(name)?, segment(hash.as_str().unwrap_or_default())?);
            definitions.insert(name.clone(), api.read(&path).await?["definition"].clone());
        }
        let export = json!({
            "format": 1,
            "order": all["order"],
            "input": all["input"],
            "history": all["history"],
            "record": record,
            "columns": columns,
            "definition": definition["definition"],
            "definitions": definitions,
        });
        crate::say!("{export:#}");
        return Ok(());
    }
    anyhow::bail!("the order keeps changing while it is being read; pause it, or export it once it has ended")
}

/// `input` is printed as it came, because JSON has its own escapes.
fn details(Details { order, history, acts, .. }: &Details, input: &Value) -> String {
    let mut out = show::order(order, Timestamp::now());
    let _ = write!(out, "\ninput\n  {input}\n\npossible actions\n");
    for act in acts {
        let steps = format!("--step {}", act.steps.join(" | "));
        let detail = if act.steps.is_empty() { act.why.as_deref().unwrap_or_default() } else { &steps };
        let fits = if act.fits { "yes" } else { "no" };
        let _ = writeln!(out, "{}", format!("  {:<10} {fits:<3} {detail}", act.act).trim_end());
    }
    out.push('\n');
    out + &show::history(history)
}

async fn list(List { filter, limit, cursor, at }: List) -> Result<()> {
    let api = at.api().await?;
    let request = api.request(Method::GET, "/orders").query(&filter).query(&[("cursor", cursor)]);
    let answer = api.ask(request.query(&[("limit", limit)])).await?.body;
    let now = Timestamp::now();
    print(&at, &answer, |Rows { orders, unreadable, next }| {
        let row = |order: &Row| -> [Cell; 7] {
            let trouble = order.trouble.first();
            let wait = |Wait { step, wait, since, until }: &Wait| {
                format!("{step} {wait}, since {}, until {}", when(*since, now), when(*until, now))
            };
            let trouble =
                trouble.map(|one| format!("{} {}", one.step, shortened(one.error.as_deref().unwrap_or_default())));
            let trouble = trouble.or_else(|| order.waits.first().map(wait));
            let state = match order.paused_at {
                None => show::state(order.state.name().to_owned()),
                Some(_) => format!("{} (paused)", order.state.name()).into(),
            };
            let reference =
                format!("{} {}", order.reference.as_deref().unwrap_or_default(), show::labels(&order.labels));
            [
                format!("{}  {}", time(order.created_at), from_now(order.created_at, now)).into(),
                order.order_id.0.as_str().into(),
                state,
                order.workflow.as_str().into(),
                reference.trim().into(),
                order.failure_count.to_string().into(),
                trouble.unwrap_or_default().trim().into(),
            ]
        };
        let rows: Vec<_> = orders.iter().map(row).collect();
        let header = ["created", "order", "state", "workflow", "reference", "failures", "trouble or wait"];
        show::page("no orders found", header, &rows, &show::unreadable(&unreadable), next)
    })
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= SHORT {
        return text.to_owned();
    }
    text.chars().take(SHORT - 1).chain(['…']).collect()
}

fn overview(answer: Overview) -> String {
    let now = Timestamp::now();
    let number = |Count { count, more }: Count| format!("{count}{}", if more { " or more" } else { "" });
    let mut out = format!("open orders  {}\n", number(answer.open));
    if let Some(oldest) = answer.oldest {
        let _ = writeln!(out, "oldest       {}  {}", oldest.order_id, when(oldest.created_at, now));
    }
    for (title, group) in [
        ("in Error, waiting for a person", answer.waiting),
        ("paused", answer.paused),
        ("being retried", answer.retrying),
    ] {
        let _ = writeln!(out, "\n{title}: {}", number(group.count));
        for why in group.why {
            let undo = if why.undo { " (its undo)" } else { "" };
            let step = format!("{} {}{undo}", why.workflow, why.step.unwrap_or_default());
            let error = why.error.map_or_else(String::new, |error| format!("{error}, "));
            let (step, since) = (step.trim(), when(why.since, now));
            let _ = writeln!(out, "  {:>5}  {step}  {error}since {since}, for example {}", why.count, why.order_id);
        }
    }
    let _ = writeln!(out, "\nwaiting in a step: {}", number(answer.waits.count));
    for WaitsAt { workflow, step, wait, count, since, order_id, until } in answer.waits.steps {
        let (since, until) = (when(since, now), when(until, now));
        let _ = writeln!(out, "  {count:>5}  {workflow} {step}  {wait}");
        let _ = writeln!(out, "         longest wait: {order_id}, since {since}; next wait to end: {until}");
    }
    out.push_str(&show::unreadable(&answer.unreadable));
    for (name, pause) in answer.paused_agents {
        let since = when(pause.since, now);
        let _ = writeln!(out, "\nagent {name}: paused by {}, since {since}: {}", pause.by, pause.reason);
    }
    for (name, strain) in answer.strained_agents {
        let _ = writeln!(out, "\nagent {name}: strained since {}", when(strain.since, now));
    }
    for (name, breaker) in answer.breakers {
        let (count, since, error) = (breaker.count, when(breaker.since, now), breaker.error.unwrap_or_default());
        let _ = writeln!(out, "\nagent {name}: orders held back by its open breaker since {since}: {count}; {error}");
    }
    out
}

/// A number that SQS may not have reported.
fn count(number: Option<u64>) -> String {
    number.map(|n| n.to_string()).unwrap_or_default()
}

fn agents(agents::All { agents }: agents::All) -> String {
    let now = Timestamp::now();
    let mut rows: Vec<[Cell; 5]> = Vec::new();
    for agent in agents {
        let paused = agent.paused.map(|paused| {
            let since = from_now(paused.since, now);
            format!("paused by {}, {since}: {}", paused.by, paused.reason)
        });
        let strained = agent.strained.map(|strained| {
            let agents::Strained { held, looked_at, stretch, .. } = strained;
            let since = from_now(strained.since, now);
            format!("became strained {since}: {held} of {looked_at} orders held up, back-off multiplied by {stretch}")
        });
        let mut state = Some([paused, strained].into_iter().flatten().collect::<Vec<_>>().join("; "));
        let mut name = Some(agent.name);
        for pool in agent.pools {
            let waits: Vec<_> = pool.queues.iter().map(|q| format!("{} {}", q.name, count(q.waiting))).collect();
            let [name, state] = [&mut name, &mut state].map(|once| once.take().unwrap_or_default());
            rows.push([name, pool.name, count(pool.dead), waits.join(", "), state].map(Cell::from));
        }
    }
    table(["agent", "pool", "dead", "waiting", "state"], &rows)
}

fn queues(Queues { queues }: Queues) -> String {
    let row = |queue: &QueueRow| {
        let known = queue.counts;
        let counts = [known.map(|c| c.waiting), known.map(|c| c.in_flight), known.map(|c| c.delayed)].map(count);
        let [waiting, in_flight, delayed] = counts;
        [queue.name.clone(), waiting, in_flight, delayed, count(queue.dead_letters)].map(Cell::from)
    };
    let rows: Vec<_> = queues.iter().map(row).collect();
    table(["queue", "waiting", "in flight", "delayed", "dead"], &rows)
}

fn leases(Leases { leases }: Leases) -> String {
    let now = Timestamp::now();
    let row = |lease: LeaseRow| {
        let holder = lease.holder.unwrap_or_else(|| "none".to_owned());
        [lease.name, holder, lease.token.to_string(), when(lease.expires, now)].map(Cell::from)
    };
    let rows: Vec<_> = leases.into_iter().map(row).collect();
    if rows.is_empty() {
        return "no supervisor has led yet\n".into();
    }
    table(["lease", "leader", "token", "expires"], &rows)
}

/// The queues to which messages can be moved back, each with the number of these messages.
async fn dead_letters(at: &At) -> Result<()> {
    let answer = at.api().await?.read("/queues").await?;
    let known = show::read(&answer).map(|Queues { queues }| {
        let of = |queue: &QueueRow| Some(json!({"name": queue.name, "dead_letters": queue.to_redrive()?}));
        json!({"queues": queues.iter().filter_map(of).collect::<Vec<_>>()})
    });
    print(at, &known.unwrap_or(answer), |Queues { queues }| {
        let dead = queues.into_iter().filter(|queue| queue.dead_letters != Some(0));
        let rows: Vec<_> = dead.map(|queue| [queue.name, count(queue.dead_letters)].map(Cell::from)).collect();
        if rows.is_empty() {
            return "no dead letters and no messages set aside\n".into();
        }
        table(["queue", "dead"], &rows) + "\nsee why: stepwarden dlq redrive QUEUE --dry-run --reason \"checking\"\n"
    })
}

async fn redrive(Redrive { queue, by, limit, all, rate, dry_run, at }: Redrive) -> Result<()> {
    let limit = (!all).then_some(limit);
    let body = by.body(json!({"dry_run": dry_run, "all": all, "limit": limit, "rate_per_s": rate}));
    let answer = at.api().await?.post(&format!("/queues/{}/redrive", segment(&queue)?), &body).await?;
    print(&at, &answer, |Moved { waiting, moved, task_started, left }| {
        let mut out = match (dry_run, task_started) {
            (true, _) => format!("{waiting} messages are waiting\n"),
            (_, true) => format!("{waiting} waiting; an SQS task is moving them, see: stepwarden dlq\n"),
            _ => format!("{waiting} waiting, {moved} moved\n"),
        };
        for left in left {
            let _ = writeln!(out, "  {}  {}", left.message_id, left.why);
        }
        out
    })
}

async fn set_agent(verb: &str, AgentAct { agent, by, at }: AgentAct) -> Result<()> {
    let path = format!("/agents/{}/{verb}", segment(&agent)?);
    let answer = at.api().await?.post(&path, &by.body(json!({}))).await?;
    print(&at, &answer, |set: agents::Set| format!("{verb}: done, in effect within {} s\n", set.within_s))
}

async fn act(name: &str, act: Act) -> Result<ExitCode> {
    let Act { id, by, step, input, items, output, to, if_version, wait, until, at } = act;
    if let Some((twice, _)) =
        (1..items.len()).map(|n| &items[n]).find(|one| items.iter().filter(|all| all.0 == one.0).count() > 1)
    {
        anyhow::bail!("`--item` names item {twice} twice; give each item one input");
    }
    let items = (!items.is_empty()).then(|| items.into_iter().collect::<serde_json::Map<_, _>>());
    let (path, more) = match to {
        Some(_) if name != "resubmit" => anyhow::bail!("`{name}` takes no `--to`; write `migrate` or `resubmit`"),
        Some(to) => (operator::migrate::NAME, json!({"to": to, "resubmit": true, "if_version": if_version})),
        None => {
            let more =
                json!({"step": step, "input": input, "items": items, "output": output, "if_version": if_version});
            (name, more)
        }
    };
    let api = at.api().await?;
    let answer = api.post(&format!("/orders/{}/actions/{path}", segment(&id)?), &by.body(more)).await?;
    let said = |Acted { outcome, version }| {
        let was = match &*outcome {
            "repeated" => "already accepted",
            "waits" => "accepted, takes effect as soon as no agent works on a step",
            _ => "accepted",
        };
        // An accepted act is recorded, but how the order ends is not known yet.
        let more = if wait { String::new() } else { format!("; follow it with: stepwarden watch {id}") };
        format!("{name}: {was}, version {version}{more}\n")
    };
    if !wait || !at.json {
        print(&at, &answer, said)?;
    }
    if !wait {
        return Ok(ExitCode::SUCCESS);
    }
    watch::run(&api, &id, until.timeout, at.json).await
}

/// What `act` prints of an answer.
#[derive(serde::Deserialize)]
struct Acted {
    outcome: String,
    version: u64,
}

async fn migrate(Migrate { id, to, dry_run, by, if_version, at }: Migrate) -> Result<ExitCode> {
    let body = by.body(json!({"to": to, "dry_run": dry_run, "if_version": if_version}));
    change(&at, &id, operator::migrate::NAME, &body, migration).await
}

async fn run_again(wish: RunAgain) -> Result<ExitCode> {
    let RunAgain { id, from, new_keys, without_undo, dry_run, by, if_version, at } = wish;
    let wish = json!({"from": from, "new_keys": new_keys, "without_undo": without_undo, "dry_run": dry_run, "if_version": if_version});
    change(&at, &id, again::NAME, &by.body(wish), ran_again).await
}

/// The exit code is 1 if a dry run finds that it is not allowed.
async fn change<T: DeserializeOwned>(
    at: &At,
    id: &str,
    name: &str,
    body: &Value,
    people: impl FnOnce(T) -> String,
) -> Result<ExitCode> {
    let path = format!("/orders/{}/actions/{name}", segment(id)?);
    let answer = at.api().await?.post(&path, body).await?;
    print(at, &answer, people)?;
    Ok(code(answer["outcome"] != "not_allowed"))
}

fn ran_again(report: again::Report) -> String {
    let again::Report { outcome, why, waits_until, plan, .. } = &report;
    let mut out = match &**outcome {
        "applied" => "recorded; `stepwarden get` shows the order's progress\n".to_owned(),
        "repeated" => "already recorded\n".into(),
        "would_apply" => "possible\n".into(),
        _ => "not allowed\n".into(),
    };
    if let Some(why) = why {
        let _ = writeln!(out, "  {why}");
    }
    if let Some(time) = waits_until {
        let _ = writeln!(
            out,
            "  an agent may still begin to work on an earlier request until {}; the undo begins after that",
            when(*time, Timestamp::now())
        );
    }
    for (title, steps) in [
        ("undone first, in this sequence", &plan.undone_first),
        ("not undone, because they have no undo", &plan.stays),
        ("done again", &plan.again),
        ("with a new idempotency key", &plan.new_keys),
        ("with the old key, so the service does not do the work again", &plan.old_keys),
        ("starting another order instead of the earlier one", &plan.new_orders),
    ] {
        if !steps.is_empty() {
            let _ = writeln!(out, "  {title}: {}", steps.join(", "));
        }
    }
    out
}

fn migration(report: Report) -> String {
    let Report { outcome, from, to, why, waits_until, plan, .. } = &report;
    let said = match &**outcome {
        "applied" => "done",
        "waits" => "recorded; the order migrates once no agent works on it or can still begin to",
        "repeated" if waits_until.is_some() => "already recorded",
        "repeated" => "already done",
        "would_apply" => "possible now",
        "would_wait" => "possible once no agent works on the order or can still begin to",
        _ => "not allowed",
    };
    let mut out = match &**outcome {
        _ if from != to => format!("migrate from {from} to {to}: {said}\n"),
        "would_apply" => format!("the order already has definition {to}; a waiting migration would be withdrawn\n"),
        _ => format!("the order keeps definition {to}; no migration is waiting any more\n"),
    };
    if let Some(why) = why {
        let _ = writeln!(out, "  {why}");
    }
    if let Some(time) = waits_until {
        let _ = writeln!(out, "  waits until {}", when(*time, Timestamp::now()));
    }
    for (title, steps) in [
        ("tried again", &plan.again),
        ("added", &plan.added),
        ("left out", &plan.left_out),
        ("changed", &plan.changed),
        ("undone differently", &plan.undone_differently),
    ] {
        if !steps.is_empty() {
            let _ = writeln!(out, "  {title}: {}", steps.join(", "));
        }
    }
    for doubt in &plan.doubts {
        let _ = writeln!(out, "  {doubt}");
    }
    out
}
