//! Asks children for what their parent wants, in the state store, once its record is saved. Each ask is one write, or
//! none if it is fulfilled already. So whoever finds that an ask may be lost can repeat it.

use super::{Engine, Handled, contended};
use crate::decision::Event;
use crate::history::{Entry, Kind};
use crate::message::{Effect, Wake};
use crate::order::{Id, Order, canonical_hash};
use crate::ports::{Created, Error};
use crate::task::{Phase, Submission, Task, shard_of};
use crate::time::SignedDuration;
use crate::workflow::child::{ToChild, Wish};
use futures::future::join_all;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;

/// How many children are asked at once, because a list may have thousands.
const AT_ONCE: usize = 50;

/// The result of asking a child, with effects to send.
type Told = Result<Vec<Effect>, Error>;

/// A child made after this time is late: its parent may have been paused meanwhile, and the message about that is gone.
const LATE: SignedDuration = SignedDuration::from_mins(1);

impl Engine {
    /// Asks children; one answer each. Returns the Wakes of new children for the caller to send together, because one
    /// request per Wake would cost more than the children. Boxed, because a child may have children.
    pub(super) fn tell_children<'a>(
        &'a self,
        asks: &'a [&'a ToChild],
    ) -> Pin<Box<dyn Future<Output = Vec<Told>> + Send + 'a>> {
        Box::pin(async move {
            let mut told = Vec::with_capacity(asks.len());
            for some in asks.chunks(AT_ONCE) {
                told.extend(self.tell_some(some).await);
            }
            told
        })
    }

    async fn tell_some(&self, asks: &[&ToChild]) -> Vec<Told> {
        let begin = |ask: &'_ ToChild| matches!(ask.wish, Wish::Begin(_));
        let made = join_all(asks.iter().map(|ask| async {
            match &ask.wish {
                Wish::Begin(input) => Some(self.make_child(ask, input.clone(), Phase::Forward).await),
                _ => None,
            }
        }));
        let mut told: Vec<Told> = made
            .await
            .into_iter()
            .map(|made| made.map_or_else(|| Ok(Vec::new()), |made| made.map(|(_, wake)| wake)))
            .collect();
        self.pause_late(asks, &mut told).await;
        let mut open: Vec<usize> = (0..asks.len()).filter(|n| !begin(asks[*n])).collect();
        // Twice, because a child may be made between the read and the write that needs it absent.
        for _ in 0..2 {
            if open.is_empty() {
                break;
            }
            let event = |n: &usize| {
                let ask = asks[*n];
                (ask.id.clone(), Event::Asked { round: ask.parent.round, wish: ask.wish.clone() })
            };
            let answers = self.handle(open.iter().map(event).collect()).await;
            let mut absent = Vec::new();
            for (n, answer) in std::mem::take(&mut open).into_iter().zip(answers) {
                match answer {
                    Ok(Handled::NoSuchTask) if asks[n].wish == Wish::Undo => absent.push(n),
                    Ok(Handled::NoSuchTask | Handled::Applied(_) | Handled::Kept(..)) => {}
                    Err(error) => told[n] = Err(error),
                }
            }
            let put = join_all(absent.iter().map(|n| self.make_child(asks[*n], json!({}), Phase::Undone))).await;
            for (n, put) in absent.into_iter().zip(put) {
                match put {
                    Ok((Created::New, _)) => {}
                    Ok(_) => open.push(n),
                    Err(error) => told[n] = Err(error),
                }
            }
        }
        open.into_iter().for_each(|n| told[n] = Err(contended(&asks[n].id)));
        told
    }

    /// Pauses late children of a paused parent: the pause did not find them, and is not repeated.
    async fn pause_late(&self, asks: &[&ToChild], told: &mut [Told]) {
        let now = self.now();
        let is_late = |ask: &ToChild| matches!(ask.wish, Wish::Begin(_)) && ask.at.duration_until(now) >= LATE;
        let late: Vec<usize> = (0..asks.len()).filter(|n| told[*n].is_ok() && is_late(asks[*n])).collect();
        let mut parents: BTreeMap<&Id, bool> = BTreeMap::new();
        let mut pauses = Vec::new();
        for n in late {
            let id = &asks[n].parent.id;
            let is_paused = match parents.get(id) {
                Some(is_paused) => *is_paused,
                None => match self.store.load(id).await {
                    Ok(parent) => parent.is_some_and(|parent| parent.paused_at.is_some()),
                    Err(error) => {
                        told[n] = Err(error);
                        continue;
                    }
                },
            };
            parents.insert(id, is_paused);
            if is_paused {
                pauses.push(n);
            }
        }
        if pauses.is_empty() {
            return;
        }
        let event = |n: &usize| {
            let ask = asks[*n];
            (ask.id.clone(), Event::Asked { round: ask.parent.round, wish: Wish::Pause })
        };
        let answers = self.handle(pauses.iter().map(event).collect()).await;
        for (n, answer) in pauses.into_iter().zip(answers) {
            if let Err(error) = answer {
                told[n] = Err(error);
            }
        }
    }

    /// Creates the child if it is absent, and returns the Wake of a new one. An Undone child keeps a late instance from
    /// making a running one.
    async fn make_child(&self, ask: &ToChild, input: Value, phase: Phase) -> Result<(Created, Vec<Effect>), Error> {
        let workflow = self.workflow(&ask.workflow).await?;
        let now = self.now();
        let new = Submission {
            id: ask.id.clone(),
            tenant: ask.tenant.clone(),
            reference: ask.reference.clone(),
            reply_queue: None,
            priority: ask.priority,
            shard: shard_of(
                &ask.id,
                self.config.shards,
                self.has_classes() && ask.priority == crate::task::Priority::High,
            ),
        };
        let mut task = Task {
            parent: Some(ask.parent.clone()),
            pins: ask.pins.clone(),
            traceparent: ask.traceparent.clone(),
            // Its own children may need one.
            secret: ask.secret.clone(),
            retention: ask.retention,
            ..Task::new(new, &workflow, now)
        };
        if phase == Phase::Undone {
            task.phase = phase;
            task.due = None;
            task.reason = Some("the order that was to start it was undone before it began".into());
            task.log.push(Entry(0, Kind::TaskUndone, None, 0, None));
        }
        let order = Order {
            id: ask.id.clone(),
            tenant: ask.tenant.clone(),
            idempotency_key: ask.key.clone(),
            hash: canonical_hash(&json!([workflow.name, input])),
            created_at: now,
            input,
        };
        let created = self.create(&order, &task).await?;
        // The due index covers a lost Wake.
        let wake = (created == Created::New && phase == Phase::Forward)
            .then(|| Effect::Wake(Wake::new(&task, task.version, 0), SignedDuration::ZERO));
        Ok((created, wake.into_iter().collect()))
    }
}
