//! What a run of the real binary left behind, read from outside its processes, and checked against the rules of every
//! history.
//!
//! A trigger in the file of the state table records the saves, in the transaction of each save, so no kill loses one
//! without the other. (A stream of the table would do the same, but the emulator reads all of it for each record.) The
//! effects come from the ledger of the remote services, the notices from the submitter's queue, and the alerts from the
//! events that the bus keeps. Everything is kept in a file, so a run of any length can be checked order by order.

use aws_sdk_dynamodb::types::AttributeValue;
use rusqlite::{Connection, params};
use serde_json::{Value, json};
use shared::history::Kind;
use shared::message::{AlertEvent, Notice};
use shared::order::Id;
use shared::task::Task;
use shared::time::Timestamp;
use shared::workflow::{Hash, Workflow};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use stepwarden_aws::item;
use stepwarden_aws::messenger::ORDER_ALERT;
use stepwarden_simulation::history::{History, Rule, Violation};

const STATE_TABLE: &str = "stepwarden-state";
const NOTICES: &str = "stepwarden-notices-default";
/// The largest page of `GET /ledger`.
const PAGE: usize = 1000;

const TABLES: &str = "
    CREATE TABLE accepted (order_id TEXT PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE saves (number INTEGER PRIMARY KEY, order_id TEXT NOT NULL, item TEXT NOT NULL);
    CREATE TABLE effects (order_id TEXT NOT NULL, service TEXT NOT NULL, key TEXT NOT NULL, stands INTEGER NOT NULL);
    CREATE TABLE notices (order_id TEXT NOT NULL, body TEXT NOT NULL);
    CREATE TABLE alerts (order_id TEXT NOT NULL, detail TEXT NOT NULL);
    -- What the state table holds at the end.
    CREATE TABLE tasks (order_id TEXT PRIMARY KEY, item TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE workflows (hash TEXT PRIMARY KEY, workflow TEXT NOT NULL) WITHOUT ROWID;
";

/// Created after all rows are inserted, which is faster.
const INDEXES: &str = "
    CREATE INDEX saves_by_order ON saves (order_id, number);
    CREATE INDEX effects_by_order ON effects (order_id);
    CREATE INDEX notices_by_order ON notices (order_id);
    CREATE INDEX alerts_by_order ON alerts (order_id);
";

/// The answer to one call of an AWS endpoint; `null` if it is empty.
pub async fn call(http: &reqwest::Client, aws_url: &str, target: &str, body: &Value) -> reqwest::Result<Value> {
    let post = http.post(aws_url).header("content-type", "application/x-amz-json-1.0").header("x-amz-target", target);
    let text = post.body(body.to_string()).send().await?.error_for_status()?.text().await?;
    Ok(serde_json::from_str(&text).unwrap_or_default())
}

/// From here on every write of an order's task is recorded, in the files of a running system.
pub fn keep_saves(data: &Path) {
    let db = Connection::open(data.join("tables.db")).unwrap();
    db.busy_timeout(Duration::from_secs(10)).unwrap();
    let keep = format!(
        "CREATE TABLE kept_saves (number INTEGER PRIMARY KEY, order_id TEXT NOT NULL, item TEXT NOT NULL);
         CREATE TRIGGER keep_saves AFTER INSERT ON \"{STATE_TABLE}\"
         WHEN json_extract(NEW.item_json, '$.pk.S') LIKE 'ord\\_%' ESCAPE '\\' BEGIN
             INSERT INTO kept_saves (order_id, item) VALUES (json_extract(NEW.item_json, '$.pk.S'), NEW.item_json);
         END;"
    );
    db.execute_batch(&keep).unwrap();
}

/// Messages in a queue: visible, in flight, or delayed.
pub async fn depth(http: &reqwest::Client, aws_url: &str, queue: &str) -> reqwest::Result<u64> {
    let all = json!({"QueueUrl": format!("{aws_url}/000000000000/{queue}"), "AttributeNames": ["All"]});
    let answer = call(http, aws_url, "AmazonSQS.GetQueueAttributes", &all).await?;
    let number = |name: &str| answer["Attributes"][name].as_str().unwrap().parse::<u64>().unwrap();
    Ok(["", "NotVisible", "Delayed"].iter().map(|part| number(&format!("ApproximateNumberOfMessages{part}"))).sum())
}

/// Messages that are still to be handled, and dead letters and messages set aside.
pub async fn waiting(http: &reqwest::Client, aws_url: &str) -> reqwest::Result<(u64, u64)> {
    let list = call(http, aws_url, "AmazonSQS.ListQueues", &json!({"QueueNamePrefix": "stepwarden-"})).await?;
    let (mut waiting, mut dead) = (0, 0);
    for url in list["QueueUrls"].as_array().unwrap().iter().filter_map(Value::as_str) {
        let queue = url.rsplit('/').next().unwrap();
        match queue {
            NOTICES => {}
            _ if queue.ends_with("-dead") || queue.ends_with("-set-aside") => {
                dead += depth(http, aws_url, queue).await?
            }
            _ => waiting += depth(http, aws_url, queue).await?,
        }
    }
    Ok((waiting, dead))
}

/// One order's times, from its saves.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub created: Timestamp,
    pub ended: Option<Timestamp>,
}

/// What a check found.
#[derive(Debug, Default)]
pub struct Checked {
    pub violations: Vec<Violation>,
    /// Orders by their last state.
    pub states: BTreeMap<&'static str, usize>,
    pub spans: Vec<Span>,
    /// Attempts that were given up because their CompleteBy passed.
    pub expired: usize,
    pub saves: usize,
    pub effects: usize,
    pub notices: usize,
    pub alerts: usize,
}

impl Checked {
    /// The orders and what they left behind, in words.
    pub fn words(&self) -> String {
        let Self { states, spans, saves, effects, notices, alerts, .. } = self;
        let orders = spans.len();
        format!("{orders} orders {states:?}, {saves} saves, {effects} effects, {notices} notices, {alerts} alerts")
    }

    /// Panics if a rule is broken; `how` says how to repeat the run.
    pub fn assert_clean(&self, how: &str) {
        let first: Vec<String> = self.violations.iter().take(20).map(ToString::to_string).collect();
        assert!(first.is_empty(), "{} violations; {how}\n{}", self.violations.len(), first.join("\n"));
    }
}

pub struct Record {
    db: Mutex<Connection>,
    path: PathBuf,
}

impl Record {
    pub fn create(path: PathBuf) -> Self {
        let db = Connection::open(&path).unwrap();
        // It need not outlive the test.
        db.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;").unwrap();
        db.execute_batch(TABLES).unwrap();
        Self { db: Mutex::new(db), path }
    }

    /// The same record in a separate file, changed by `sql`.
    pub fn doctored(&self, path: PathBuf, sql: &str) -> Self {
        std::fs::copy(&self.path, &path).unwrap();
        let db = Connection::open(&path).unwrap();
        db.execute_batch(sql).unwrap();
        assert!(db.total_changes() > 0, "it changes nothing: {sql}");
        Self { db: Mutex::new(db), path }
    }

    fn db(&self) -> MutexGuard<'_, Connection> {
        self.db.lock().unwrap()
    }

    /// Records a submission that was answered with 202.
    pub fn accepted(&self, id: &str) {
        self.db().execute("INSERT OR IGNORE INTO accepted VALUES (?1)", [id]).unwrap();
    }

    /// All orders that were accepted.
    pub fn ids(&self) -> Vec<String> {
        let db = self.db();
        rows(&db, "SELECT order_id FROM accepted", [])
    }

    /// Receives the notices in the submitter's queue, as a submitter does, and returns their number.
    pub async fn take_notices(&self, http: &reqwest::Client, aws_url: &str) -> reqwest::Result<usize> {
        let url = format!("{aws_url}/000000000000/{NOTICES}");
        let mut taken = 0;
        loop {
            let receive = json!({"QueueUrl": url, "MaxNumberOfMessages": 10});
            let answer = call(http, aws_url, "AmazonSQS.ReceiveMessage", &receive).await?;
            let messages = answer["Messages"].as_array().map(Vec::as_slice).unwrap_or_default();
            if messages.is_empty() {
                return Ok(taken);
            }
            for message in messages {
                let body = message["Body"].as_str().unwrap();
                let notice: Notice = serde_json::from_str(body).unwrap();
                let row = params![notice.order_id.0, body];
                self.db().execute("INSERT INTO notices VALUES (?1, ?2)", row).unwrap();
            }
            taken += messages.len();
            let entry =
                |(n, message): (usize, &Value)| json!({"Id": n.to_string(), "ReceiptHandle": message["ReceiptHandle"]});
            let entries: Vec<Value> = messages.iter().enumerate().map(entry).collect();
            let delete = json!({"QueueUrl": url, "Entries": entries});
            call(http, aws_url, "AmazonSQS.DeleteMessageBatch", &delete).await?;
        }
    }

    /// Reads the ledger of the remote services.
    pub async fn take_ledger(&self, http: &reqwest::Client, remotes_url: &str) {
        let mut cursor = String::new();
        loop {
            let url = format!("{remotes_url}/ledger?limit={PAGE}&cursor={cursor}");
            let page: Value = http.get(url).send().await.unwrap().json().await.unwrap();
            let mut db = self.db();
            let all = db.transaction().unwrap();
            for entry in page["entries"].as_array().unwrap().iter().filter(|entry| !entry["applied_at"].is_null()) {
                let text = |name: &str| entry[name].as_str().unwrap();
                let stands = entry["undone_at"].is_null();
                let row = params![text("order_id"), text("service"), text("key"), stands];
                all.execute("INSERT INTO effects VALUES (?1, ?2, ?3, ?4)", row).unwrap();
            }
            all.commit().unwrap();
            match page["next_cursor"].as_str() {
                Some(next) => next.clone_into(&mut cursor),
                None => return,
            }
        }
    }

    /// Reads the files of a system that has stopped.
    pub fn take_files(&self, data: &Path) {
        let db = self.db();
        for name in ["tables", "queues"] {
            let path = data.join(format!("{name}.db"));
            db.execute(&format!("ATTACH ?1 AS {name}"), [path.to_str().unwrap()]).unwrap();
        }
        let take = format!(
            "INSERT INTO saves SELECT number, order_id, item FROM tables.kept_saves;
             INSERT INTO tasks SELECT json_extract(item_json, '$.pk.S'), item_json FROM tables.\"{STATE_TABLE}\"
                 WHERE json_extract(item_json, '$.pk.S') LIKE 'ord\\_%' ESCAPE '\\';
             INSERT INTO workflows SELECT substr(json_extract(item_json, '$.pk.S'), 10),
                 json_extract(item_json, '$.workflow.S') FROM tables.\"{STATE_TABLE}\"
                 WHERE json_extract(item_json, '$.pk.S') LIKE 'workflow#%';
             INSERT INTO alerts SELECT json_extract(event, '$.detail') ->> '$.order_id', json_extract(event, '$.detail')
                 FROM queues.events WHERE json_extract(event, '$.detail_type') = '{ORDER_ALERT}';"
        );
        db.execute_batch(&take).unwrap();
        db.execute_batch("DETACH tables; DETACH queues;").unwrap();
        db.execute_batch(INDEXES).unwrap();
    }

    /// Returns everything that is wrong, and a summary.
    pub fn check(&self) -> Checked {
        let db = self.db();
        let mut workflows: HashMap<Hash, Arc<Workflow>> = HashMap::new();
        for json in rows(&db, "SELECT workflow FROM workflows", []) {
            let workflow: Workflow = serde_json::from_str(&json).unwrap();
            workflows.insert(workflow.hash(), Arc::new(workflow));
        }
        let all = "SELECT order_id FROM accepted UNION SELECT order_id FROM saves UNION SELECT order_id FROM effects
                   UNION SELECT order_id FROM notices UNION SELECT order_id FROM alerts UNION SELECT order_id FROM tasks";
        let mut all = db.prepare(all).unwrap();
        let mut checked = Checked::default();
        for id in all.query_map([], |row| row.get::<_, String>(0)).unwrap() {
            check_order(&db, &Id(id.unwrap()), &workflows, &mut checked);
        }
        checked
    }
}

fn check_order(db: &Connection, id: &Id, workflows: &HashMap<Hash, Arc<Workflow>>, checked: &mut Checked) {
    let mut history = History::default();
    let mut before: Option<Task> = None;
    for json in rows(db, "SELECT item FROM saves WHERE order_id = ?1 ORDER BY number", [&id.0]) {
        let task = task(&json);
        match &before {
            // Only the due time differs.
            Some(last) if last.version == task.version && last.stamp == task.stamp => {
                history.written(id, task.version, task.lease_token);
            }
            _ => {
                history.stored(&task, before.as_ref().map(|task| task.version));
                checked.saves += 1;
            }
        }
        before = Some(task);
    }
    let workflow = before.as_ref().and_then(|task| workflows.get(&task.workflow_hash));
    let mut effects = db.prepare_cached("SELECT service, key, stands FROM effects WHERE order_id = ?1").unwrap();
    let effects = effects.query_map([&id.0], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    for (service, key, stands) in effects.map(Result::<(String, String, bool), _>::unwrap) {
        // There is one step for each service, whatever the key says.
        let step = workflow.and_then(|workflow| workflow.steps.iter().find(|step| step.agent == service));
        let step = step.map_or(service.as_str(), |step| &step.name);
        history.effects.applied(id, step, &key);
        if !stands {
            history.effects.undone(id, step, &key);
        }
        checked.effects += 1;
    }
    for body in rows(db, "SELECT body FROM notices WHERE order_id = ?1", [&id.0]) {
        history.notice(&serde_json::from_str::<Notice>(&body).unwrap());
        checked.notices += 1;
    }
    for detail in rows(db, "SELECT detail FROM alerts WHERE order_id = ?1", [&id.0]) {
        history.alert(&serde_json::from_str::<AlertEvent>(&detail).unwrap());
        checked.alerts += 1;
    }
    checked.violations.extend(history.check(|hash| workflows.get(hash).cloned()));
    let mut wrong =
        |rule, words: &str| checked.violations.push(Violation { rule, order: Some(id.clone()), words: words.into() });
    let Some(last) = before else {
        wrong(Rule::Accepted, "it was accepted, or somebody was told of it, and it is not stored");
        return;
    };
    let kept = rows(db, "SELECT item FROM tasks WHERE order_id = ?1", [&id.0]).pop().map(|item| task(&item));
    if kept.is_none_or(|kept| (kept.version, kept.stamp) != (last.version, last.stamp.clone())) {
        wrong(Rule::OneChain, "the table does not hold what was saved last");
    }
    if !last.process_state().is_final() || last.due.is_some() {
        wrong(Rule::Ends, &format!("at the end it is {} and due {:?}", last.process_state().name(), last.due));
    }
    *checked.states.entry(last.process_state().name()).or_default() += 1;
    checked.expired += last.log.iter().filter(|entry| entry.1 == Kind::Expired).count();
    let ended = history.first_end(id).map(|task| task.updated_at);
    checked.spans.push(Span { created: last.created_at, ended });
}

/// The first column of all rows about an order.
fn rows(db: &Connection, sql: &str, of: impl rusqlite::Params) -> Vec<String> {
    let mut statement = db.prepare_cached(sql).unwrap();
    statement.query_map(of, |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// A task from the JSON of its item.
fn task(json: &str) -> Task {
    let attributes: HashMap<String, HashMap<String, String>> = serde_json::from_str(json).unwrap();
    let value = |attribute: HashMap<String, String>| {
        let (kind, value) = attribute.into_iter().next().unwrap();
        if kind == "N" { AttributeValue::N(value) } else { AttributeValue::S(value) }
    };
    item::to_task(&attributes.into_iter().map(|(name, attribute)| (name, value(attribute))).collect()).unwrap()
}
