//! Selects orders for a list or an action on many.

use crate::order::Id;
use crate::task::{ProcessState, Task};
use crate::time::Timestamp;
use crate::trouble::{kind, trouble, waits};
use crate::workflow::Workflow;
use serde::{Deserialize, Serialize};

/// Which orders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    /// In this state.
    pub state: Option<ProcessState>,
    /// Only paused ones.
    pub paused: bool,
    /// Only those [in which a step waits](Task::is_waiting).
    pub waiting: bool,
    /// Of this workflow.
    pub workflow: Option<String>,
    /// Of this tenant.
    pub tenant: Option<String>,
    /// Only the children of this order. Other lists by time leave children out.
    pub parent: Option<Id>,
    /// With this label.
    pub label: Option<String>,
    /// Whose submitter's reference begins with this.
    pub reference: Option<String>,
    /// Accepted at or after this time.
    pub from: Option<Timestamp>,
    /// Accepted before this time.
    pub to: Option<Timestamp>,
    /// With this agent in a step that is failing or has failed.
    pub agent: Option<String>,
    /// With this step failing or failed, or with `waiting` in its wait.
    pub step: Option<String>,
    /// With an error of the [same kind](kind) in such a step, or as the order's reason.
    pub error: Option<String>,
}

impl Filter {
    /// Whether the index of waiting orders has all matches.
    #[must_use]
    pub fn is_of_waits(&self) -> bool {
        self.waiting && self.parent.is_none()
    }

    /// Whether `task` matches, as far as its record says.
    #[must_use]
    pub fn fits(&self, task: &Task) -> bool {
        self.state.is_none_or(|state| task.process_state() == state)
            && (!self.paused || task.paused_at.is_some())
            && (!self.waiting || task.is_waiting())
            && self.workflow.as_ref().is_none_or(|name| task.workflow == *name)
            && self.tenant.as_ref().is_none_or(|tenant| task.tenant == *tenant)
            && self.parent.as_ref().is_none_or(|id| task.parent.as_ref().is_some_and(|parent| parent.id == *id))
            && self.label.as_ref().is_none_or(|label| task.labels.contains(label))
            && self.reference.as_ref().is_none_or(|start| task.reference.as_ref().is_some_and(|r| r.starts_with(start)))
            && self.from.is_none_or(|from| from <= task.created_at)
            && self.to.is_none_or(|to| task.created_at < to)
    }

    /// Whether a failing step matches or, with `waiting`, a waiting step.
    #[must_use]
    pub fn fits_steps(&self, task: &Task, workflow: &Workflow) -> bool {
        if self.step.is_none() && self.agent.is_none() && self.error.is_none() {
            return true;
        }
        if self.waiting {
            let is_meant = |one: &str| self.step.as_deref().is_some_and(|step| one == step);
            return self.agent.is_none()
                && self.error.is_none()
                && waits(task, workflow).iter().any(|w| is_meant(&w.step));
        }
        let wanted = self.error.as_deref().map(kind);
        let is_same = |error: Option<&String>| {
            wanted
                .as_ref()
                .is_none_or(|wanted| *wanted == error.or(task.reason.as_ref()).map_or(String::new(), |e| kind(e)))
        };
        let failing = trouble(task, workflow);
        if self.step.is_none() && self.agent.is_none() && failing.is_empty() {
            return is_same(None);
        }
        failing.iter().any(|one| {
            self.step.as_ref().is_none_or(|step| one.step == *step)
                && self.agent.as_ref().is_none_or(|agent| one.agent == *agent)
                && is_same(one.error.as_ref())
        })
    }
}
