//! Tasks that go on under another definition: one save, before anything else is decided about the task.

use super::Engine;
use crate::change;
use crate::control::Agents;
use crate::decision::Decision;
use crate::message::Effect;
use crate::migrate::{Obstacle, Plan, moved, plan};
use crate::outputs::Outputs;
use crate::ports::{Error, Messenger, StateStore};
use crate::task::Task;
use crate::workflow::Hash;
use std::sync::Arc;

/// The task as it is stored, or `None` if it has to be read again; and what to send.
pub(super) type Migrated = (Option<Arc<Task>>, Vec<Effect>);

impl<S: StateStore, M: Messenger> Engine<S, M> {
    /// Puts `task` under the definition that it waits for, if it does and can go on there now. `None` if not.
    pub(super) async fn migrate(&self, task: &Arc<Task>, agents: &Agents) -> Result<Option<Migrated>, Error> {
        let Some(migration) = &task.migration else { return Ok(None) };
        if task.migrates_at(self.skew()).is_none_or(|from| from > self.now()) {
            return Ok(None);
        }
        let new = match self.workflow(&migration.to).await {
            Ok(new) => new,
            // It was there. The order stands still, and an operator can still withdraw the wish.
            Err(Error::Corrupt { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let old = self.workflow(&task.workflow_hash).await?;
        let input = self.input(task, &new).await?;
        let outputs = Outputs::default();
        let turn = self.turn(&old, &input, agents, &outputs);
        let mut decision = change::migrate(task, &new, &turn);
        while self.know_outputs(task, &outputs).await? {
            decision = change::migrate(task, &new, &turn);
        }
        let Decision::Save { task: next, effects } = decision else { return Ok(None) };
        // Observers compare the steps by position.
        let is_moved = next.workflow_hash == migration.to;
        let before = moved(task, &old, &new, turn.now).ok().filter(|_| is_moved);
        let seen = before.as_ref().unwrap_or(task);
        let workflow = if is_moved { &new } else { &old };
        match self.try_save(next, seen, workflow).await {
            Ok(Ok(saved)) => Ok(Some((Some(saved), effects))),
            Ok(Err(current)) => Ok(Some((current, Vec::new()))),
            // As above.
            Err(Error::TooLarge { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What it would mean for `task` to go on under the definition with the hash `to`, and the rule that forbids it, if one
    /// does. Nothing is saved or sent.
    ///
    /// # Errors
    /// The store's.
    pub async fn plan(&self, task: &Task, to: &Hash) -> Result<(Plan, Option<Obstacle>), Error> {
        let (old, new) = (self.workflow(&task.workflow_hash).await?, self.workflow(to).await?);
        Ok((plan(task, &old, &new), moved(task, &old, &new, self.now()).err()))
    }
}
