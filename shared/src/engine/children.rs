//! What a parent asks of its children, done in the state store once the parent's record is saved. Each is one write, or none if it is so
//! already, so it may be asked for again by whoever finds that it may be lost.

use super::{Engine, Handled, contended};
use crate::decision::Event;
use crate::history::{Entry, Kind};
use crate::message::{Effect, Wake};
use crate::order::{Order, canonical_hash};
use crate::ports::{Created, Error, Messenger, StateStore};
use crate::task::{Phase, Submission, Task, shard_of};
use crate::time::SignedDuration;
use crate::workflow::child::{ToChild, Wish};
use serde_json::{Value, json};
use std::future::Future;
use std::pin::Pin;

impl<S: StateStore, M: Messenger> Engine<S, M> {
    /// Boxed, because a child may have children.
    pub(super) fn tell_child<'a>(
        &'a self,
        ask: &'a ToChild,
    ) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>> {
        Box::pin(async move {
            if let Wish::Begin(input) = &ask.wish {
                self.make_child(ask, input.clone(), Phase::Forward).await?;
                return Ok(());
            }
            // Twice: a child may be made between the read and the write that says that there is none.
            for _ in 0..2 {
                let event = Event::Asked { round: ask.parent.round, wish: ask.wish.clone() };
                let answer = self.handle(vec![(ask.id.clone(), event)]).await.pop();
                match answer.unwrap_or_else(|| Err(contended(&ask.id)))? {
                    Handled::NoSuchTask if ask.wish == Wish::Undo => {
                        if self.make_child(ask, json!({}), Phase::Undone).await? == Created::New {
                            return Ok(());
                        }
                    }
                    Handled::NoSuchTask | Handled::Applied(_) | Handled::Kept(..) => return Ok(()),
                }
            }
            Err(contended(&ask.id))
        })
    }

    /// Puts the child if it is absent. One that is Undone from the start keeps a late instance from making one that runs.
    async fn make_child(&self, ask: &ToChild, input: Value, phase: Phase) -> Result<Created, Error> {
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
            // An order that it starts may need one.
            secret: ask.secret.clone(),
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
        if created == Created::New && phase == Phase::Forward {
            // If it is lost, the due index brings the order on.
            let wake = Effect::Wake(Wake::new(&task, task.version, 0), SignedDuration::ZERO);
            self.messenger.send(vec![wake]).await.into_iter().collect::<Result<(), Error>>()?;
        }
        Ok(created)
    }
}
