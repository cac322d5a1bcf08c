//! Moves a task to another definition.

use super::{Change, tell_before_undo};
use crate::decision::{Decision, Turn};
use crate::history::Kind;
use crate::migrate::moved;
use crate::task::{Phase, Task};
use crate::workflow::Workflow;

/// The save that moves `task` to the definition `new` that it waits for, or ends the wait because a rule forbids the
/// move by now. `turn` is that of the present definition, but with the input that `new` reads. No step is with an
/// agent, and no request can start ([`Task::migrates_at`]). The save claims nothing; a Wake does.
pub(crate) fn migrate(task: &Task, new: &Workflow, turn: &Turn<'_>) -> Decision {
    let resubmits = task.migration.as_ref().is_some_and(|migration| migration.resubmits);
    let next = match moved(task, turn.workflow, new, turn.now) {
        Ok(next) => next,
        Err(why) => return stay(task, &why.to_string(), turn),
    };
    let turn = Turn { workflow: new, ..*turn };
    let mut change = Change::begin(&next, &turn);
    let text = format!("from {} to {}", task.workflow_hash, next.workflow_hash);
    change.log(Kind::Migrated, None, Some(text));
    if resubmits && matches!(next.phase, Phase::Error | Phase::UndoError) {
        change.restart();
    }
    change.wake = true;
    change.end_what_is_done();
    tell_before_undo(&next, change.save(), &turn)
}

/// The save after which `task` no longer waits for another definition. `why` is the end of a sentence.
pub(crate) fn stay(task: &Task, why: &str, turn: &Turn<'_>) -> Decision {
    let mut change = Change::begin(task, turn);
    change.drop_migration(why);
    change.wake = true;
    change.end_what_is_done();
    tell_before_undo(task, change.save(), turn)
}

impl Change<'_> {
    /// Ends the task if no step is left to do or to undo. While it waits for another definition, which may have more
    /// steps, nothing ends it.
    pub(crate) fn end_what_is_done(&mut self) {
        if self.task.phase == Phase::Forward || self.task.is_undo_begun() {
            self.finish();
            self.owe_final_notice();
        }
    }

    /// The task stays under its definition.
    pub(super) fn drop_migration(&mut self, why: &str) {
        if let Some(migration) = self.task.migration.take() {
            let text = format!("not to {}: {why}", migration.to);
            self.log(Kind::NotMigrated, None, Some(text));
        }
    }
}
