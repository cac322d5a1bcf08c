//! Moves tasks to another definition, in one save, before anything else is decided about the task.

use super::Engine;
use crate::change;
use crate::control::Agents;
use crate::decision::Decision;
use crate::message::Effect;
use crate::migrate::{Obstacle, Plan, moved, plan};
use crate::outputs::Outputs;
use crate::ports::Error;
use crate::task::Task;
use crate::workflow::{Hash, Workflow};
use std::sync::Arc;

/// The stored task, or `None` if it has to be read again; and what to send.
pub(super) type Migrated = (Option<Arc<Task>>, Vec<Effect>);

impl Engine {
    /// Moves `task` to the definition that it waits for, if it can move now. `None` if nothing was done.
    pub(super) async fn migrate(&self, task: &Arc<Task>, agents: &Agents) -> Result<Option<Migrated>, Error> {
        let Some(migration) = &task.migration else { return Ok(None) };
        if task.migrates_at(self.skew()).is_none_or(|from| from > self.now()) {
            return Ok(None);
        }
        let old = self.workflow(&task.workflow_hash).await?;
        let new = match self.workflow(&migration.to).await {
            Ok(new) => new,
            // Damaged, or of a newer version. That must not stop the order.
            Err(Error::Corrupt { why, .. }) => {
                return self.stay(task, &old, agents, &format!("the definition cannot be read: {why}")).await;
            }
            Err(error) => return Err(error),
        };
        let input = self.input(task, if new.reads_input() { &new } else { &old }).await?;
        let outputs = Outputs::default();
        let turn = self.turn(&old, &input, agents, &outputs);
        let mut decision = change::migrate(task, &new, &turn);
        while self.know_outputs(task, &outputs).await? {
            decision = change::migrate(task, &new, &turn);
        }
        let Decision::Save { task: next, effects } = decision else { return Ok(None) };
        // Observers compare steps by position.
        let is_moved = next.workflow_hash == migration.to;
        let before = moved(task, &old, &new, turn.now).ok().filter(|_| is_moved);
        let seen = before.as_ref().unwrap_or(task);
        let workflow = if is_moved { &new } else { &old };
        match self.try_save(next, seen, workflow).await {
            Ok(Ok(saved)) => Ok(Some((Some(saved), effects))),
            Ok(Err(current)) => Ok(Some((current, Vec::new()))),
            Err(Error::TooLarge { bytes, limit, .. }) if is_moved => {
                let why = format!("the order's record would have {bytes} bytes, but the limit is {limit}");
                self.stay(task, &old, agents, &why).await
            }
            Err(error) => Err(error),
        }
    }

    /// Keeps `task` under its definition `old`, with `why` in its history.
    async fn stay(
        &self,
        task: &Arc<Task>,
        old: &Workflow,
        agents: &Agents,
        why: &str,
    ) -> Result<Option<Migrated>, Error> {
        let (input, outputs) = (self.input(task, old).await?, Outputs::default());
        let turn = self.turn(old, &input, agents, &outputs);
        let mut decision = change::stay(task, why, &turn);
        while self.know_outputs(task, &outputs).await? {
            decision = change::stay(task, why, &turn);
        }
        let Decision::Save { task: next, effects } = decision else { return Ok(None) };
        Ok(Some(match self.try_save(next, task, old).await? {
            Ok(saved) => (Some(saved), effects),
            Err(current) => (current, Vec::new()),
        }))
    }

    /// What moving `task` to the definition with the hash `to` would mean, and the rule that forbids it, if any.
    /// Nothing is saved or sent.
    ///
    /// # Errors
    /// The store's.
    pub async fn plan(&self, task: &Task, to: &Hash) -> Result<(Plan, Option<Obstacle>), Error> {
        let (old, new) = (self.workflow(&task.workflow_hash).await?, self.workflow(to).await?);
        Ok((plan(task, &old, &new), moved(task, &old, &new, self.now()).err()))
    }
}
