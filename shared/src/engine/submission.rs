//! Writes new orders.

use super::Engine;
use crate::decision::{Decision, Event};
use crate::message::Effect;
use crate::order::Order;
use crate::outputs::Outputs;
use crate::ports::{Created, Error};
use crate::task::Task;
use crate::workflow::Workflow;
use std::sync::Arc;

impl Engine {
    /// Writes a new order and its task, in one transaction.
    ///
    /// # Errors
    /// The store failed. The order may or may not be stored; submit it again under its key to find out.
    pub async fn create(&self, order: &Order, task: &Task) -> Result<Created, Error> {
        let mut task = task.clone();
        task.stamp = self.stamp();
        task.expires = self.store.expires(&task, self.now()).await?;
        let created = self.store.create(order, &task).await?;
        if created == Created::New {
            self.saved(&Arc::new(task), None);
            self.remember_input(&order.id, &Arc::new(order.input.clone()));
        }
        Ok(created)
    }

    /// [`Self::create`] together with what a scheduler would save for the order's first Wake, as one save of two
    /// changes. Returns the requests to send. Without any, the new order needs its Wake: the decision sends something
    /// else, or does not fit.
    ///
    /// # Errors
    /// As above.
    pub async fn begin(
        &self,
        order: &Order,
        task: &Task,
        workflow: &Workflow,
    ) -> Result<(Created, Vec<Effect>), Error> {
        let mut task = task.clone();
        task.stamp = self.stamp();
        task.expires = self.store.expires(&task, self.now()).await?;
        if let Some((mut next, requests)) = self.first_claims(order, &task, workflow).await {
            next.stamp.clone_from(&task.stamp);
            match self.store.create(order, &next).await {
                Ok(Created::New) => {
                    self.remember_input(&order.id, &Arc::new(order.input.clone()));
                    self.saved(&Arc::new(task.clone()), None);
                    self.saved(&Arc::from(next), Some((&task, workflow)));
                    return Ok((Created::New, requests));
                }
                Ok(Created::Exists) => return Ok((Created::Exists, Vec::new())),
                // The record of what was computed may have no room. A scheduler stops such an order with an alert.
                Err(Error::TooLarge { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((self.create(order, &task).await?, Vec::new()))
    }

    /// The decision on the first Wake of a new `task`, if it only sends requests and nothing has to be stored or read
    /// for it.
    async fn first_claims(&self, order: &Order, task: &Task, workflow: &Workflow) -> Option<(Box<Task>, Vec<Effect>)> {
        // A decision that is not stored would use up a pool's probe.
        if self.pools.is_some() {
            return None;
        }
        // Without them, pauses are unknown.
        let agents = self.known_agents().await.ok()?;
        let outputs = Outputs::default();
        let turn = self.turn(workflow, &order.input, &agents, &outputs);
        let decision = self.schedule(task, &Event::Wake { seen: task.version, hops: 0 }, &turn);
        let Decision::Save { task: next, mut effects } = decision else { return None };
        if outputs.is_short() || !outputs.new_of(&next).is_empty() {
            return None;
        }
        for effect in &mut effects {
            let Effect::Request(request) = effect else { return None };
            if request.input.is_null() {
                request.input.clone_from(&order.input);
            }
        }
        (!effects.is_empty()).then_some((next, effects))
    }
}
