//! Goal: every record and every message is read as it was written. Method: seeded random values of each, through JSON and
//! through the items of the tables; numbers with all their digits, texts that JSON and queues might spoil.
//!
//! `ROUNDS=n` draws n values of each kind; `SEED=n` draws other values.

use crate::env;
use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use shared::again::Again;
use shared::control::Pause;
use shared::history::{Entry, Kind};
use shared::items::Items;
use shared::message::*;
use shared::migrate::Migration;
use shared::order::{Id, Order};
use shared::outputs::Beside;
use shared::overload::{Wait, Waits};
use shared::retry::Calls;
use shared::step::{Direction, Failure, FailureKind, Heart, Kids, Pages, Reminded, Rounds, State, Step};
use shared::strain::Strain;
use shared::task::{Alert, Arrival, Parent, Phase, Priority, ProcessState, Task};
use shared::workflow::Hash;
use shared::workflow::aws::Aws;
use shared::workflow::file::{Known, parse};
use std::collections::BTreeMap;
use std::fmt::Debug;
use stepwarden_aws::item;

/// Draws values. All fields of a record are drawn, so that a field that is lost on the way is noticed.
struct Draw(Rng);

impl Draw {
    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.0.usize(..all.len())].clone()
    }

    fn maybe<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.0.bool().then(|| value(self))
    }

    fn many<T>(&mut self, value: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.0.usize(..4)).map(|_| value(self)).collect()
    }

    fn number(&mut self) -> u64 {
        let bits = self.0.u32(0..64);
        self.of(&[0, 1, u64::from(u32::MAX), u64::MAX, self.0.clone().u64(..) >> bits])
    }

    fn small(&mut self) -> u32 {
        self.number() as u32
    }

    /// A time, in the precision of every record.
    fn time(&mut self) -> Timestamp {
        Timestamp::from_millisecond(self.0.i64(-62_000_000_000_000..250_000_000_000_000)).unwrap()
    }

    fn text(&mut self) -> String {
        let parts = ["", "a", "Grüße", "\u{1F69A}", "\"", "\\", "\n", "\u{0}", "\u{2028}", "null", "#", "{}", " "];
        (0..self.0.usize(..6)).map(|_| self.of(&parts)).collect()
    }

    fn value(&mut self, depth: u32) -> Value {
        match self.0.u32(..if depth == 0 { 6 } else { 8 }) {
            0 => Value::Null,
            1 => json!(self.0.bool()),
            2 => json!(self.number()),
            3 => json!(-(self.number() as i64 / 2)),
            4 => json!(f64::from_bits(self.0.u64(..))),
            5 => json!(self.text()),
            6 => (0..self.0.usize(..4)).map(|_| self.value(depth - 1)).collect(),
            _ => (0..self.0.usize(..4)).map(|_| (self.text(), self.value(depth - 1))).collect(),
        }
    }

    /// An output or an input that exists: null means that there is none.
    fn content(&mut self) -> Value {
        json!({ "of": self.value(3) })
    }

    fn id(&mut self) -> Id {
        Id::derive(&self.text(), &self.text())
    }

    fn priority(&mut self) -> Priority {
        self.of(&[Priority::Low, Priority::Normal, Priority::High])
    }

    fn direction(&mut self) -> Direction {
        self.of(&[Direction::Do, Direction::Undo])
    }

    fn step(&mut self) -> Step {
        let not_before = self.maybe(Self::time);
        let (locked_by, complete_by) = (self.text(), self.time());
        let state = self.of(&[
            State::Pending { not_before },
            State::Processing { locked_by: locked_by.clone(), complete_by },
            State::Waiting { until: complete_by, event: true },
            State::Processed,
            State::Failed,
            State::Skipped,
            State::PassedOver,
            State::Caught,
            State::UndoPending { not_before },
            State::UndoProcessing { locked_by, complete_by },
            State::Undone,
            State::UndoFailed,
        ]);
        Step {
            state,
            attempt: self.small(),
            pool: self.maybe(Self::text),
            failures: self.small(),
            undo_failures: self.small(),
            extended: self.small(),
            claimed_at: self.number(),
            settled_at: self.number(),
            output: self.maybe(Self::content),
            beside: self.maybe(|draw| Beside { hash: Hash(draw.text()), bytes: draw.small() as usize }),
            error: self.maybe(Self::text),
            input: self.maybe(Self::content),
            failure: self.maybe(|dice| Failure {
                kind: dice.of(&[
                    FailureKind::Refused,
                    FailureKind::Spent,
                    FailureKind::Timeout,
                    FailureKind::Children,
                    FailureKind::Mistake,
                ]),
                status: 100 + dice.small() as u16 % 500,
                answer: dice.content(),
            }),
            unsure: self.of(&[true, false]),
            poll_until: self.maybe(Self::time),
            turn: self.maybe(Self::time),
            reminded: self.maybe(|draw| Reminded {
                sent: draw.small(),
                last: draw.small(),
                next: draw.maybe(Self::time),
                sent_at: draw.number(),
                complete_by: draw.maybe(Self::time),
            }),
            alert_at: self.maybe(Self::time),
            heart: self.maybe(|draw| Heart {
                until: draw.time(),
                at: draw.maybe(Self::time),
                percent: draw.maybe(|draw| draw.small() as u8),
                note: draw.maybe(Self::text),
            }),
            kids: self.maybe(|draw| Kids { round: draw.small(), made: draw.small(), items: draw.maybe(Self::items) }),
            rounds: self.maybe(|draw| Rounds {
                round: draw.small(),
                before: draw.small(),
                key: draw.small(),
                replaced: draw.many(|draw| Beside { hash: Hash(draw.text()), bytes: draw.0.usize(..) }),
            }),
            pages: self.maybe(|draw| Pages {
                taken: draw.small(),
                items: draw.small(),
                bytes: draw.small(),
                cursor: draw.maybe(Self::content),
                lists: draw.many(|draw| Beside { hash: Hash(draw.text()), bytes: draw.0.usize(..) }),
                tail: draw.many(Self::content),
            }),
        }
    }

    fn items(&mut self) -> Items {
        let total = self.small() as usize % 100;
        // Its states are read from text as its record writes them.
        let mut text = json!({"n": total, "h": self.text(), "b": self.small(), "at": 0});
        if total > 1 {
            text["s"] = json!(self.of(&["B", "K", "z", "7"]));
            text["g"] = json!({"2": self.of(&["A", "B", "AA"])});
            text["e"] = json!({"1": 2});
            text["i"] = json!({"2": {"h": self.text(), "b": self.small()}});
        }
        serde_json::from_value(text).expect("a list")
    }

    fn entry(&mut self) -> Entry {
        let kinds = [
            Kind::Claimed,
            Kind::Completed,
            Kind::Failed,
            Kind::Unavailable,
            Kind::Deferred,
            Kind::Expired,
            Kind::Extended,
            Kind::PassedOver,
            Kind::Waiting,
            Kind::Reminded,
            Kind::EventKept,
            Kind::EventCounted,
            Kind::EventUnused,
            Kind::Caught,
            Kind::UndoClaimed,
            Kind::Undone,
            Kind::UndoFailed,
            Kind::TaskUndoing,
            Kind::TaskProcessed,
            Kind::TaskUndone,
            Kind::TaskError,
            Kind::AlertSent,
            Kind::Cancelled,
            Kind::Resubmitted,
            Kind::Skipped,
            Kind::MarkedDone,
            Kind::RetriedNow,
            Kind::Erasing,
            Kind::Erased,
            Kind::MigrationAsked,
            Kind::Migrated,
            Kind::NotMigrated,
            Kind::RunAgain,
            Kind::PutBack,
            Kind::UndoAsked,
            Kind::Paused,
            Kind::Resumed,
        ];
        let index = self.maybe(|draw| draw.0.u16(..));
        Entry(self.0.i64(..), self.of(&kinds), index, self.small(), self.maybe(Self::text))
    }

    fn task(&mut self) -> Task {
        let due = self.maybe(Self::time);
        Task {
            id: self.id(),
            version: self.number(),
            stamp: self.text(),
            shard: self.0.u16(..768),
            due,
            lease_token: self.number(),
            created_at: self.time(),
            updated_at: self.time(),
            workflow: self.text(),
            workflow_hash: Hash(self.text()),
            phase: self.of(&[
                Phase::Forward,
                Phase::Undoing,
                Phase::Processed,
                Phase::Undone,
                Phase::Error,
                Phase::UndoError,
            ]),
            turned_at: self.number(),
            steps: self.many(Self::step),
            tenant: self.text(),
            reference: self.maybe(Self::text),
            labels: self.many(Self::text),
            reply_queue: self.maybe(Self::text),
            priority: self.priority(),
            forward_by: self.maybe(Self::time),
            deadline: self.maybe(Self::time),
            paused_at: self.maybe(Self::time),
            acted_at: self.number(),
            acted_on: self.number(),
            reason: self.maybe(Self::text),
            traceparent: self.maybe(Self::text),
            alert: self.maybe(|draw| Alert {
                version: draw.number(),
                step: draw.maybe(|draw| draw.0.u16(..)),
                reason: draw.text(),
            }),
            notice_owed: self.0.bool(),
            expires: self.0.bool(),
            retention: self.maybe(|draw| draw.small() as u16),
            books: self.maybe(|draw| (draw.number(), draw.number())),
            events: self.many(|draw| Arrival {
                name: draw.text(),
                key: draw.text(),
                hash: draw.text(),
                step: draw.maybe(|draw| draw.small() as u16),
                data: draw.maybe(Self::content),
                by: draw.maybe(Self::text),
            }),
            parent: self.maybe(|draw| Parent {
                id: draw.id(),
                step: draw.text(),
                item: draw.maybe(Self::small),
                round: draw.small(),
                paused: draw.0.bool(),
                released: draw.0.bool(),
            }),
            pins: self.many(|draw| (draw.text(), Hash(draw.text()))).into_iter().collect(),
            migration: self.maybe(|draw| Migration {
                to: Hash(draw.text()),
                resubmits: draw.0.bool(),
                from: draw.maybe(Self::time),
            }),
            again: self.maybe(|draw| Again { steps: draw.many(|draw| draw.small() as u16), new_keys: draw.0.bool() }),
            output: self.maybe(Self::content),
            secret: self.maybe(Self::text),
            log: self.many(Self::entry),
        }
    }

    fn order(&mut self) -> Order {
        Order {
            id: self.id(),
            tenant: self.text(),
            idempotency_key: self.text(),
            hash: self.text(),
            created_at: self.time(),
            input: self.value(4),
        }
    }

    fn outputs(&mut self) -> BTreeMap<String, Value> {
        self.many(|draw| (draw.text(), draw.value(2))).into_iter().collect()
    }

    fn signed(&mut self) -> Aws {
        Aws {
            action: self.text(),
            function: self.maybe(Self::text),
            envelope: self.0.bool(),
            keep: None,
            done: self.many(Self::text),
            transient: self.many(Self::text),
            permanent: self.many(Self::text),
        }
    }

    fn request(&mut self) -> Request {
        Request {
            task_id: self.id(),
            step: self.text(),
            agent: self.text(),
            pool: self.maybe(Self::text),
            http: None,
            call: None,
            held: None,
            aws: self.maybe(Self::signed),
            look: None,
            callback: self.maybe(Self::text),
            accept: None,
            heartbeat: self.maybe(|draw| Heartbeat { url: draw.text(), every_ms: draw.number() }),
            delay_ms: u64::from(self.small()),
            direction: self.direction(),
            attempt: self.small(),
            reminder: self.maybe(Self::small),
            idempotency_key: self.text(),
            complete_by: self.time(),
            calls: Calls {
                attempts: self.small(),
                base: SignedDuration::from_millis(self.0.i64(0..10_000_000)),
                cap: SignedDuration::from_millis(self.0.i64(0..10_000_000)),
            },
            tenant: self.text(),
            priority: self.priority(),
            input: self.value(4),
            outputs: self.outputs(),
            output: self.maybe(Self::content),
            undoes: self.maybe(Self::text),
            traceparent: self.maybe(Self::text),
        }
    }

    /// A message to a scheduler. Fields that only choose the queue are left out of the message, and so here.
    fn for_scheduler(&mut self) -> ToScheduler {
        let outcome = match self.0.u32(..6) {
            0 => Outcome::Done { output: self.value(4) },
            1 => Outcome::Failed { error: self.text() },
            2 => Outcome::Unavailable { error: self.text(), retry_after_ms: self.maybe(Self::number) },
            4 => Outcome::Accepted { output: self.value(4) },
            3 => Outcome::NotYet { why: self.text() },
            _ => Outcome::Deferred { error: self.text(), retry_after_ms: self.number() },
        };
        let task_id = self.id();
        match self.0.u32(..3) {
            0 => ToScheduler::Wake(Wake {
                task_id,
                seen: self.number(),
                hops: self.small(),
                hint: self.0.bool(),
                step: self.maybe(Self::text),
                traceparent: self.maybe(Self::text),
                tenant: String::new(),
                priority: Priority::Normal,
            }),
            1 => ToScheduler::Cancel(Cancel { task_id, by: self.text(), reason: self.text() }),
            _ => ToScheduler::Reply(Reply {
                queued_ms: self.maybe(Self::number),
                traceparent: self.maybe(Self::text),
                status: self.maybe(|dice| 100 + dice.small() as u16 % 500),
                answer: self.maybe(|dice| json!([dice.text()])),
                kind: self.maybe(|_| FailureKind::Mistake),
                ..Reply::new(task_id, &self.text(), self.small(), outcome)
            }),
        }
    }

    fn notice(&mut self) -> Notice {
        Notice {
            queue: String::new(),
            kind: self.of(&[
                NoticeKind::Received,
                NoticeKind::StepCompleted,
                NoticeKind::Completed,
                NoticeKind::Failed,
                NoticeKind::Undone,
                NoticeKind::AttentionNeeded,
            ]),
            order_id: self.id(),
            tenant: self.text(),
            workflow: self.text(),
            reference: self.maybe(Self::text),
            seq: self.number(),
            at: self.time(),
            state: self.of(&ProcessState::ALL),
            step: self.maybe(Self::text),
            reason: self.maybe(Self::text),
            undo_from: self.maybe(Self::time),
            traceparent: self.maybe(Self::text),
            history: self.many(|draw| HistoryEntry {
                at: draw.time(),
                event: draw.text(),
                step: draw.maybe(Self::text),
                attempt: draw.maybe(Self::small),
                detail: draw.maybe(Self::text),
            }),
        }
    }

    fn alert(&mut self) -> AlertEvent {
        AlertEvent {
            order_id: self.id(),
            workflow: self.text(),
            tenant: self.text(),
            step: self.maybe(Self::text),
            attempts: self.small(),
            reason: self.text(),
            last_error: self.maybe(Self::text),
            version: self.number(),
            resubmit: self.text(),
            runbook: self.text(),
        }
    }

    fn strain(&mut self) -> Strain {
        Strain {
            since: self.time(),
            last: self.time(),
            stretch: self.small(),
            held: self.small(),
            looked_at: self.small(),
            alert_owed: self.0.bool(),
        }
    }
}

/// Through JSON, as text and as a tree: the wire and the tests' own way.
fn through_json<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) {
    let json = serde_json::to_string(value).unwrap();
    assert_eq!(serde_json::from_str::<T>(&json).unwrap_or_else(|e| panic!("{e}: {json}")), *value, "{json}");
    let tree = serde_json::to_value(value).unwrap();
    assert_eq!(serde_json::from_value::<T>(tree).unwrap(), *value, "{json}");
}

#[test]
fn every_record_and_message_is_read_as_it_was_written() {
    let (seed, rounds) = (env("SEED", 1), env("ROUNDS", 3000));
    println!("SEED={seed}");
    let mut draw = Draw(Rng::with_seed(seed));
    for _ in 0..rounds {
        through_json(&draw.value(5));
        through_json(&draw.order());
        through_json(&draw.request());
        through_json(&draw.for_scheduler());
        through_json(&draw.notice());
        through_json(&draw.alert());
        through_json(&draw.strain());
        through_json(&draw.strain().event("payment"));
        through_json(&Pause { by: draw.text(), reason: draw.text(), since: draw.time() });
        through_json(&Waits::from([(draw.text(), Wait { ms: draw.0.i64(..), at: draw.time() })]));
        through_json(&SetAside {
            queue: draw.text(),
            message_id: draw.text(),
            reason: draw.text(),
            body: draw.text(),
            is_cut: draw.0.bool(),
        });

        let task = draw.task();
        let item = item::from_task(&task, SignedDuration::from_hours(24)).unwrap();
        assert_eq!(item::to_task(&item).unwrap(), task);
        let order = draw.order();
        let item = item::from_order(&order, 4).unwrap();
        assert_eq!(item::to_order(&item).unwrap(), order);
    }
}

// The definition of a stored order: every rule that a file can have.
#[test]
fn every_workflow_of_the_repository_is_read_as_it_was_written() {
    let folders = ["../../workflows", "../../tests/simulation/src/workflows"];
    let known = Known { agents: &["fraud", "http", "inventory", "noop", "payment", "shipping"], inputs: &["order"] };
    let mut count = 0;
    for folder in folders.map(|f| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(f)) {
        for file in std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()) {
            let text = std::fs::read_to_string(&file).unwrap();
            let workflow = parse(&file.display().to_string(), &text, known).unwrap();
            through_json(&workflow);
            let again: shared::workflow::Workflow =
                serde_json::from_str(&serde_json::to_string(&workflow).unwrap()).unwrap();
            assert_eq!(again.hash(), workflow.hash());
            count += 1;
        }
    }
    assert!(count >= 6, "{count} files");
}
