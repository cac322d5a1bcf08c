//! The history of a run and what must be true of it, whatever went wrong. It serves simulations and every other run
//! that can report what was saved, what the remote services did, and which notices and alerts were sent.
//!
//! Each task is one register that is only replaced by conditional writes, so its saves must form one chain of versions.
//! Beside it is a ledger of remote effects, notices and alerts.

use crate::script::REMIND;
use serde::Serialize;
use shared::history::{Entry, Kind};
use shared::items::Item;
use shared::message::{AlertEvent, Notice, NoticeKind};
use shared::order::Id;
use shared::retry::Ladder;
use shared::step::{Direction, State, Step};
use shared::task::{Arrival, Phase, ProcessState, Task};
use shared::time::{SignedDuration, Timestamp, plus};
use shared::workflow::{Hash, Workflow};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The rules of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The saves of a task form one chain of versions from 0, each by a writer that had read the one before.
    OneChain,
    /// Every version that a process believes it saved, or reported to anyone, is in that chain.
    Observed,
    /// Attempts, tokens and times never decrease. What has ended stays ended unless a person acts.
    OnlyRises,
    /// No step fails more often than its policy allows.
    FailureCount,
    /// No step has an effect twice.
    AppliedOnce,
    /// A processed order has every effect.
    Processed,
    /// An undone order has no effect that can be undone.
    Undone,
    /// The submitter gets a notice of the order's end.
    Notice,
    /// An order that stopped has an alert.
    Alert,
    /// No undo begins while a forward call may still start, and none precedes the undo of what was built on it. The
    /// remote services would forgive both, because they remember an undo that came first.
    UndoOrder,
    /// An order ends.
    Ends,
    /// Every submission is answered, and an accepted one is stored.
    Accepted,
    /// No message becomes a dead letter or is set aside without need.
    NoneAside,
    /// An agent gets the input that is valid for its step: the order's, or the one that an operator set.
    Input,
    /// An order gets a definition that was active within the last seconds, and keeps it.
    Definition,
    /// What the messenger reports as sent was taken as meant; what it reports as failed was not acknowledged in full.
    Sent,
}

/// A rule that a run broke.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// The order, if it is about one.
    pub order: Option<Id>,
    /// What is wrong.
    pub words: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.order {
            Some(id) => write!(f, "{:?}: {id}: {}", self.rule, self.words),
            None => write!(f, "{:?}: {}", self.rule, self.words),
        }
    }
}

/// One effect of a step at a remote service.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Effect {
    key: String,
    applied: u64,
    undone: Option<u64>,
}

impl Effect {
    fn stands(&self) -> bool {
        self.undone.is_none()
    }
}

/// What the remote services did, by order and step, in sequence.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    all: BTreeMap<(Id, String), Vec<Effect>>,
    count: u64,
}

impl Effects {
    fn of_step(&mut self, order: &Id, step: &str) -> (&mut Vec<Effect>, u64) {
        self.count += 1;
        (self.all.entry((order.clone(), step.to_owned())).or_default(), self.count)
    }

    /// The service applied a key.
    pub fn applied(&mut self, order: &Id, step: &str, key: &str) {
        let (effects, applied) = self.of_step(order, step);
        effects.push(Effect { key: key.to_owned(), applied, undone: None });
    }

    /// The service took back what it had applied under this key.
    pub fn undone(&mut self, order: &Id, step: &str, key: &str) {
        let (effects, now) = self.of_step(order, step);
        if let Some(effect) = effects.iter_mut().find(|e| e.key == key && e.stands()) {
            effect.undone = Some(now);
        }
    }

    fn list(&self, order: &Id, step: &str) -> &[Effect] {
        self.all.get(&(order.clone(), step.to_owned())).map(Vec::as_slice).unwrap_or_default()
    }

    /// How often a step was applied, and how many of these effects remain.
    pub fn of(&self, order: &Id, step: &str) -> (usize, usize) {
        let effects = self.list(order, step);
        (effects.len(), effects.iter().filter(|e| e.stands()).count())
    }
}

/// One save as the store applied it.
#[derive(Clone, Debug)]
struct Save {
    task: Arc<Task>,
    seen: Option<u64>,
}

/// The events that the rules are checked against.
#[derive(Clone, Debug, Default)]
pub struct History {
    saves: BTreeMap<Id, Vec<Save>>,
    observed: BTreeMap<Id, BTreeSet<(u64, String)>>,
    /// The ledger of the remote services.
    pub effects: Effects,
    /// The highest token of a supervisor's lease that wrote an order.
    tokens: BTreeMap<Id, u64>,
    /// Orders that an older token wrote after a newer one: version, token, and the newer token.
    overruled: Vec<(Id, u64, u64, u64)>,
    notices: BTreeMap<Id, Vec<(u64, NoticeKind, ProcessState)>>,
    /// How often the queue refused a notice.
    refused: BTreeMap<(Id, u64), u32>,
    alerts: BTreeMap<Id, BTreeSet<u64>>,
    /// How far apart two clocks may be.
    skew: SignedDuration,
}

impl History {
    /// An empty history of processes whose clocks are at most `skew` apart.
    pub fn new(skew: SignedDuration) -> Self {
        Self { skew, ..Self::default() }
    }

    /// The store applied this save, whose writer had read version `seen`; `None` for the first one.
    pub fn stored(&mut self, task: &Task, seen: Option<u64>) {
        self.written(&task.id, task.version, task.lease_token);
        self.saves.entry(task.id.clone()).or_default().push(Save { task: Arc::new(task.clone()), seen });
    }

    /// The store wrote this version under this token of a supervisor's lease: a save, or only its due time.
    pub fn written(&mut self, id: &Id, version: u64, token: u64) {
        let newest = self.tokens.entry(id.clone()).or_default();
        if token < *newest {
            self.overruled.push((id.clone(), version, token, *newest));
        }
        *newest = token.max(*newest);
    }

    /// A process believes that it saved this (an engine's observer).
    pub fn observed(&mut self, task: &Task) {
        self.observed.entry(task.id.clone()).or_default().insert((task.version, task.stamp.clone()));
    }

    /// A notice reached its queue. One that is lost there counts as well: the system did its part, and only the order's
    /// state shows the end.
    pub fn notice(&mut self, notice: &Notice) {
        let all = self.notices.entry(notice.order_id.clone()).or_default();
        all.push((notice.seq, notice.kind, notice.state));
    }

    /// The queue of a notice refused it.
    pub fn notice_refused(&mut self, notice: &Notice) {
        *self.refused.entry((notice.order_id.clone(), notice.seq)).or_default() += 1;
    }

    /// An alert reached the bus. If it is lost there, the order must be listed among those that wait for a person.
    pub fn alert(&mut self, alert: &AlertEvent) {
        self.alerts.entry(alert.order_id.clone()).or_default().insert(alert.version);
    }

    /// The order as it was saved last.
    pub fn last(&self, id: &Id) -> Option<&Arc<Task>> {
        self.saves.get(id).and_then(|saves| saves.last()).map(|save| &save.task)
    }

    /// The order as it was saved each time.
    pub fn saved(&self, id: &Id) -> impl Iterator<Item = &Arc<Task>> {
        self.saves.get(id).into_iter().flatten().map(|save| &save.task)
    }

    /// All orders, each as it was saved last.
    pub fn orders(&self) -> impl Iterator<Item = &Arc<Task>> {
        self.saves.values().filter_map(|saves| saves.last()).map(|save| &save.task)
    }

    /// The first version of an order in a final state.
    pub fn first_end(&self, id: &Id) -> Option<&Arc<Task>> {
        self.saves.get(id)?.iter().map(|save| &save.task).find(|task| task.process_state().is_final())
    }

    /// All violations. `workflow` knows the definitions.
    pub fn check(&self, workflow: impl Fn(&Hash) -> Option<Arc<Workflow>>) -> Vec<Violation> {
        let mut found = Vec::new();
        for (id, saves) in &self.saves {
            let last = &saves.last().expect("there is a list only with the first save").task;
            let mut wrong = |rule, words: String| found.push(Violation { rule, order: Some(id.clone()), words });
            self.check_chain(id, saves, &mut wrong);
            let Some(workflow) = workflow(&last.workflow_hash) else {
                wrong(Rule::OneChain, format!("its workflow {} is not known", last.workflow_hash));
                continue;
            };
            for save in saves {
                check_failures(&save.task, &workflow, &mut wrong);
            }
            let left = settled_by_hand(saves, &[Kind::Skipped]);
            self.check_effects(last, &workflow, &left, &mut wrong);
            self.check_undo(saves, &workflow, &left, &mut wrong);
            self.check_told(saves, &mut wrong);
        }
        self.check_families(&workflow, &mut found);
        for (id, version) in self.told() {
            if self.last(id).is_none_or(|last| last.version < version) {
                let words = format!("version {version} was reported in a notice or an alert but never saved");
                found.push(Violation { rule: Rule::Observed, order: Some(id.clone()), words });
            }
        }
        for (id, version, token, newest) in &self.overruled {
            let words = format!("version {version} was written under token {token} after token {newest}");
            found.push(Violation { rule: Rule::OnlyRises, order: Some(id.clone()), words });
        }
        for (id, _) in self.effects.all.keys() {
            if !self.saves.contains_key(id) {
                let words = "an effect of an order that was never stored".into();
                found.push(Violation { rule: Rule::OneChain, order: Some(id.clone()), words });
            }
        }
        found
    }

    /// What must be true of an order and those that it started: it is done only with them, and undone only with them.
    fn check_families(&self, workflow: &impl Fn(&Hash) -> Option<Arc<Workflow>>, found: &mut Vec<Violation>) {
        for child in self.orders() {
            let Some(link) = &child.parent else { continue };
            let mut wrong = |rule, words: String| found.push(Violation { rule, order: Some(child.id.clone()), words });
            let Some(parent) = self.last(&link.id) else {
                wrong(Rule::OneChain, format!("its parent {} was never stored", link.id));
                continue;
            };
            let knows = |task: &&Arc<Task>| task.steps.iter().any(|step| step.kids.is_some());
            if self.saved(&link.id).find(knows).is_none() {
                wrong(Rule::OneChain, format!("its parent {} never recorded that it starts an order", link.id));
            }
            let by_hand = settled_by_hand(&self.saves[&link.id], &[Kind::Skipped, Kind::MarkedDone]);
            let step = workflow(&parent.workflow_hash).and_then(|workflow| workflow.position(&link.step));
            let is_left = step.is_some_and(|step| by_hand.contains(&step));
            if parent.phase == Phase::Undone && child.phase != Phase::Undone && !is_left {
                wrong(Rule::Undone, format!("its parent is Undone, and it is {:?}", child.phase));
            }
            let is_open = matches!(child.phase, Phase::Forward | Phase::Undoing);
            if parent.phase == Phase::Processed && is_open {
                wrong(Rule::Processed, format!("its parent is Processed, and it is {:?}", child.phase));
            }
        }
        for parent in self.orders().filter(|task| task.phase == Phase::Processed) {
            let kids = |step: &Step| match &step.kids {
                Some(kids) => kids.items.as_ref().map_or(1, |items| items.count(|item| item == Item::Done)),
                None => 0,
            };
            let is_done = |step: &&Step| step.state == State::Processed;
            let children = self.orders().filter(|task| task.parent.as_ref().is_some_and(|link| link.id == parent.id));
            let done = children.filter(|task| task.phase == Phase::Processed).count();
            let by_hand = parent.log.iter().any(|entry| entry.1 == Kind::MarkedDone);
            if done < parent.steps.iter().filter(is_done).map(kids).sum::<usize>() && !by_hand {
                let words = "it is Processed without the orders that it started".to_owned();
                found.push(Violation { rule: Rule::Processed, order: Some(parent.id.clone()), words });
            }
        }
    }

    /// The versions that notices and alerts reported.
    fn told(&self) -> impl Iterator<Item = (&Id, u64)> {
        let notices = self.notices.iter().filter_map(|(id, all)| Some((id, all.iter().map(|(seq, _, _)| *seq).max()?)));
        let alerts = self.alerts.iter().filter_map(|(id, all)| Some((id, *all.last()?)));
        notices.chain(alerts)
    }

    fn check_chain(&self, id: &Id, saves: &[Save], wrong: &mut impl FnMut(Rule, String)) {
        let mut last = None;
        for (n, save) in saves.iter().enumerate() {
            let (version, seen) = (save.task.version, save.seen);
            // A save contains one change or several, each with its own version.
            if seen != last || last.map_or(version > 1, |last| version <= last) {
                wrong(
                    Rule::OneChain,
                    format!("save number {n} is version {version}, by a writer that had read {seen:?}"),
                );
                return;
            }
            last = Some(version);
        }
        for pair in saves.windows(2) {
            check_pair(&pair[0].task, &pair[1].task, wrong);
        }
        for (version, stamp) in self.observed.get(id).into_iter().flatten() {
            // An order that is stored with its first claims was Pending in the same save.
            let stored = saves.iter().find(|save| save.task.version == (*version).max(saves[0].task.version));
            if stored.is_none_or(|save| save.task.stamp != *stamp) {
                wrong(Rule::Observed, format!("`{stamp}` believes that it saved version {version}"));
            }
        }
    }

    fn check_effects(
        &self,
        task: &Task,
        workflow: &Workflow,
        left: &BTreeSet<usize>,
        wrong: &mut impl FnMut(Rule, String),
    ) {
        for (n, (step, spec)) in task.steps.iter().zip(&workflow.steps).enumerate() {
            let (applied, standing) = self.effects.of(&task.id, &spec.name);
            let rounds = usize::try_from(step.rounds()).unwrap_or(usize::MAX);
            // Each page of a list is a request under a key of its own.
            if applied > 1 + rounds && !spec.pages {
                wrong(Rule::AppliedOnce, format!("`{}` was applied {applied} times", spec.name));
            }
            // Each has a key of its own, and the service does nothing twice under one.
            let (reminders, _) = self.effects.of(&task.id, &format!("{}{REMIND}", spec.name));
            let counted = step.reminded.as_ref().map_or(0, |reminded| reminded.sent);
            if reminders > usize::try_from(counted).unwrap_or(usize::MAX) {
                wrong(
                    Rule::AppliedOnce,
                    format!("{reminders} reminders of `{}` were sent, and {counted} counted", spec.name),
                );
            }
            let needs_none = step.state == State::PassedOver || spec.agent.is_empty();
            if needs_none && applied > 0 && rounds == 0 {
                wrong(Rule::Processed, format!("`{}` was applied, and it was passed over or calls nothing", spec.name));
            }
            match task.process_state() {
                ProcessState::Processed
                    if step.state == State::Processed
                        && standing != 1
                        && !needs_none
                        && !spec.pages
                        && !left.contains(&n) =>
                {
                    wrong(Rule::Processed, format!("`{}` is Processed with {standing} effects", spec.name));
                }
                ProcessState::Undone if spec.undo.is_some() && standing > 0 && !left.contains(&n) => {
                    wrong(Rule::Undone, format!("an effect of `{}` remains", spec.name));
                }
                ProcessState::Pending
                | ProcessState::Processing
                | ProcessState::Processed
                | ProcessState::Undoing
                | ProcessState::Undone
                | ProcessState::Error => {}
            }
        }
    }

    /// When the undo begins and in which order it runs: by the records, and by what the services did.
    fn check_undo(
        &self,
        saves: &[Save],
        workflow: &Workflow,
        left: &BTreeSet<usize>,
        wrong: &mut impl FnMut(Rule, String),
    ) {
        // The latest time at which any forward call may start.
        let mut latest = None;
        for (n, Save { task, .. }) in saves.iter().enumerate() {
            let is_begun = n > 0 && task.is_undo_begun() && !saves[n - 1].task.is_undo_begun();
            let waits_for = if workflow.tombstones {
                under_way(n.checked_sub(1).map(|n| &*saves[n].task), task, workflow)
            } else {
                latest
            };
            if let Some(from) =
                waits_for.map(|by| plus(by, self.skew)).filter(|from| is_begun && task.updated_at < *from)
            {
                let early = task.updated_at.duration_until(from);
                wrong(Rule::UndoOrder, format!("version {}: the undo begins {early:#} too early", task.version));
            }
            let acts = task.steps.iter().zip(&workflow.steps).filter(|(_, spec)| !spec.looks_safely());
            let forward = acts.filter_map(|(step, _)| step.claim());
            let forward = forward.filter(|(direction, _)| *direction == Direction::Do).map(|(_, by)| by);
            latest = latest.max(forward.max());
        }
        for (n, spec) in workflow.steps.iter().enumerate() {
            for later in dependents(workflow, n).filter(|later| workflow.steps[*later].undo.is_some()) {
                let name = &workflow.steps[later].name;
                for pair in saves.windows(2) {
                    let (before, after) = (&pair[0].task.steps, &pair[1].task.steps);
                    let is_claimed = after[n].attempt > before[n].attempt && after[n].is_undo_begun();
                    if is_claimed && after[later].may_have_run() && after[later].state != State::Undone {
                        let version = pair[1].task.version;
                        wrong(
                            Rule::UndoOrder,
                            format!("version {version}: the undo of `{}` runs before that of `{name}`", spec.name),
                        );
                    }
                }
                let id = &saves[0].task.id;
                let stands =
                    |effect: &Effect, at| effect.applied < at && effect.undone.is_none_or(|undone| undone > at);
                let taken_back = self.effects.list(id, &spec.name).iter().filter_map(|effect| effect.undone);
                for at in taken_back.filter(|_| !left.contains(&later)) {
                    if self.effects.list(id, name).iter().any(|effect| stands(effect, at)) {
                        wrong(Rule::UndoOrder, format!("`{}` was undone while `{name}` stood", spec.name));
                    }
                }
            }
        }
    }

    fn check_told(&self, saves: &[Save], wrong: &mut impl FnMut(Rule, String)) {
        let task = &saves.last().expect("there is a first save").task;
        if !task.process_state().is_final() {
            return;
        }
        if task.process_state() == ProcessState::Error
            && !self.alerts.get(&task.id).is_some_and(|all| all.contains(&task.turned_at))
        {
            wrong(Rule::Alert, format!("it stopped at version {} without an alert", task.turned_at));
        }
        if task.reply_queue.is_none() {
            return;
        }
        let told = self.notices.get(&task.id).map(Vec::as_slice).unwrap_or_default();
        if !told.iter().any(|(seq, kind, _)| *seq == 0 && *kind == NoticeKind::Received) {
            wrong(Rule::Notice, "no notice that it was received".into());
        }
        for (seq, kind, _) in told {
            if let Some((_, other, _)) = told.iter().find(|(s, k, _)| s == seq && k != kind) {
                wrong(Rule::Notice, format!("notice {seq} is both {kind:?} and {other:?}"));
                break;
            }
        }
        match told.iter().max_by_key(|(seq, _, _)| *seq) {
            Some((_, _, state)) if *state == task.process_state() => {}
            latest => wrong(
                Rule::Notice,
                format!(
                    "it ended {} at version {}, and the latest notice is {latest:?}",
                    task.process_state().name(),
                    task.turned_at
                ),
            ),
        }
        // Every turn to undo has a notice too, unless the queue refused it more than once: then the undo continues
        // without it, and its end has a notice.
        for save in saves {
            let (version, phase) = (save.task.turned_at, save.task.phase);
            let is_turn = save.seen.is_some_and(|seen| version > seen) && phase == Phase::Undoing;
            let is_told = told.iter().any(|(seq, kind, _)| *seq == version && *kind == NoticeKind::Failed);
            let is_refused = self.refused.get(&(task.id.clone(), version)).is_some_and(|times| *times > 1);
            if is_turn && !is_told && !is_refused {
                wrong(Rule::Notice, format!("it turned to undo at version {version} without a notice"));
            }
        }
    }
}

/// The steps that need step `index`, directly or indirectly.
fn dependents(workflow: &Workflow, index: usize) -> impl Iterator<Item = usize> {
    let mut needs = vec![false; workflow.steps.len()];
    needs[index] = true;
    // Usually a step stands after all that it needs; if not, a few more rounds find it.
    for _ in 0..workflow.steps.len() {
        for (n, step) in workflow.steps.iter().enumerate() {
            needs[n] |= step.after.iter().any(|after| needs[after.step]);
        }
    }
    (0..workflow.steps.len()).filter(move |n| *n != index && needs[*n])
}

/// The latest deadline of the forward attempts of `before` that no reply settled in `after`: if services keep
/// tombstones, an undo waits only for these.
fn under_way(before: Option<&Task>, after: &Task, workflow: &Workflow) -> Option<Timestamp> {
    let steps = before.into_iter().flat_map(|before| &before.steps).zip(&after.steps).zip(&workflow.steps);
    let acts = steps.filter(|(_, spec)| !spec.looks_safely()).map(|(steps, _)| steps);
    let open = acts.filter(|(_, step)| step.settled_at != after.version).map(|(before, _)| before);
    open.filter_map(|step| step.claim()).filter(|(direction, _)| *direction == Direction::Do).map(|(_, by)| by).max()
}

/// The steps whose undo a person settled by one of these acts. Effects of a skipped one may remain. The saves decide, not
/// the person's answer.
fn settled_by_hand(saves: &[Save], acts: &[Kind]) -> BTreeSet<usize> {
    let mut settled = BTreeSet::new();
    for pair in saves.windows(2) {
        let (before, after) = (&pair[0].task, &pair[1].task);
        let act = after.log.iter().rev().find(|entry| entry.1.is_act()).filter(|_| after.acted_at > before.version);
        let Some(Entry(_, _, Some(step), _, _)) = act.filter(|act| acts.contains(&act.1)) else { continue };
        let step = usize::from(*step);
        // A step that is to be done again is open at once.
        if before.steps[step].owes_undo() && !after.steps[step].owes_undo() {
            settled.insert(step);
        }
    }
    settled
}

/// The events that step `n` has, or had.
fn of_step(task: &Task, n: usize) -> impl Iterator<Item = &Arrival> {
    task.events.iter().filter(move |event| event.step.map(usize::from) == Some(n))
}

/// The values that may never decrease between two versions, and the states that are never left.
fn check_pair(before: &Task, after: &Task, wrong: &mut impl FnMut(Rule, String)) {
    let v = after.version;
    let is_wanted = before.migration.as_ref().is_some_and(|migration| migration.to == after.workflow_hash);
    if after.workflow_hash != before.workflow_hash {
        let may_start = before.forward_by.is_some_and(|by| after.updated_at < by);
        if !is_wanted {
            wrong(Rule::Definition, format!("version {v}: it continues under another definition"));
        } else if may_start || before.steps.iter().any(|step| step.claim().is_some()) {
            wrong(Rule::Definition, format!("version {v}: it is migrated while a request may start"));
        }
    }
    let claims = |(old, new): (&Step, &Step)| new.attempt > old.attempt;
    if before.migration.is_some() && after.migration.is_some() && before.steps.iter().zip(&after.steps).any(claims) {
        wrong(Rule::Definition, format!("version {v}: a step is claimed before the migration"));
    }
    if after.updated_at < before.updated_at {
        wrong(Rule::OnlyRises, format!("version {v} is older than the one before it"));
    }
    let put_back = |n: usize| before.steps[n].rounds() < after.steps[n].rounds();
    let is_put_back = before.steps.len() == after.steps.len() && (0..before.steps.len()).any(put_back);
    if is_put_back && before.again.is_none() && before.phase != Phase::Undone {
        wrong(Rule::OnlyRises, format!("version {v}: steps are put back, although no person asked for that"));
    }
    for (n, (old, new)) in before.steps.iter().zip(&after.steps).enumerate() {
        let put_back = is_put_back && put_back(n);
        if put_back
            && old.owes_undo()
            && after.acted_at <= before.version
            && old.claim().is_none()
            && old.kids.is_none()
        {
            wrong(Rule::OnlyRises, format!("version {v}: step {n} is put back before it is undone"));
        }
        if new.attempt < old.attempt || new.attempt > old.attempt + 1 {
            wrong(
                Rule::OnlyRises,
                format!("version {v}: step {n} goes from attempt {} to {}", old.attempt, new.attempt),
            );
        }
        if new.failures > old.failures + 1 || new.undo_failures > old.undo_failures + 1 {
            wrong(Rule::FailureCount, format!("version {v}: step {n} fails twice at once"));
        }
        let counts = new.failures > old.failures || new.undo_failures > old.undo_failures;
        // Of work that a service accepted, the callback may be missed.
        let is_accepted = matches!(old.state, State::Waiting { .. }) && old.attempt > 0;
        if counts && old.claim().is_none() && !is_accepted {
            wrong(Rule::FailureCount, format!("version {v}: step {n} fails while no agent has it"));
        }
        // A save can contain several changes, but not the answer to a request that is sent after it: a save is missing.
        if new.claimed_at > before.version && new.settled_at > new.claimed_at {
            wrong(
                Rule::OneChain,
                format!("version {v}: step {n} is claimed at {} and settled at {}", new.claimed_at, new.settled_at),
            );
        }
        let undoes = matches!(after.phase, Phase::Undoing | Phase::Undone | Phase::UndoError);
        if old.state == State::Processed && new.state != State::Processed && !undoes && !put_back {
            wrong(Rule::OnlyRises, format!("version {v}: step {n} is no longer Processed"));
        }
        if let State::Waiting { event: true, .. } = old.state
            && new.state == State::Processed
            // An agent may end what its service accepted by a reply.
            && old.attempt == 0
            && after.events.iter().all(|event| event.step.map(usize::from) != Some(n))
            && after.acted_at <= before.version
        {
            wrong(Rule::OnlyRises, format!("version {v}: the wait of step {n} ends without an event"));
        }
        if let State::Waiting { until, event: true } = old.state
            && matches!(new.state, State::Failed | State::Caught)
            && after.updated_at < until
            && after.acted_at <= before.version
            && of_step(after, n).count() == of_step(before, n).count()
        {
            wrong(Rule::OnlyRises, format!("version {v}: step {n} waits no longer for its event before its time"));
        }
        if let State::Waiting { until, event: false } = old.state
            && old.kids.is_none()
            && new.state == State::Processed
            && after.updated_at < until
            && after.acted_at <= before.version
        {
            wrong(Rule::OnlyRises, format!("version {v}: the wait of step {n} ends before its time"));
        }
        let is_settled = matches!(old.state, State::PassedOver | State::Caught);
        if is_settled && new.state != old.state && !undoes && !put_back {
            wrong(Rule::OnlyRises, format!("version {v}: step {n} is decided again"));
        }
        if old.state == State::Undone && new.state != State::Undone && !put_back {
            wrong(Rule::OnlyRises, format!("version {v}: step {n} is no longer Undone"));
        }
    }
    let stays = |(was, is): (&Arrival, &Arrival)| {
        let lets_go = is_put_back && is.step.is_none() && is.data.is_none();
        (&was.name, &was.key, &was.hash) == (&is.name, &is.key, &is.hash)
            && was.step.is_none_or(|n| is.step == Some(n) || lets_go && put_back(usize::from(n)))
    };
    if after.events.len() < before.events.len() || !before.events.iter().zip(&after.events).all(stays) {
        wrong(Rule::OnlyRises, format!("version {v}: an event that was accepted is forgotten"));
    }
    let drops = |(was, is): (&Arrival, &Arrival)| was.data.is_some() && is.data.is_none() && is.step.is_none();
    let could_take = |(step, old): (&Step, &Step)| {
        matches!(step.state, State::Pending { .. }) && matches!(old.state, State::Pending { .. })
    };
    let is_open = after.phase == Phase::Forward && after.steps.iter().zip(&before.steps).all(could_take);
    if is_open && !is_put_back && before.events.iter().zip(&after.events).any(drops) {
        wrong(Rule::OnlyRises, format!("version {v}: an event is dropped although its step is still to come"));
    }
    let taken: Vec<_> = after.events.iter().filter_map(|event| Some((event.step?, &event.by))).collect();
    // After a "no", a person may have had the question asked again.
    let asks_again = |entry: &Entry| matches!(entry.1, Kind::Resubmitted | Kind::MigrationAsked);
    if taken.iter().collect::<BTreeSet<_>>().len() < taken.len() && !after.log.iter().any(asks_again) {
        wrong(Rule::OnlyRises, format!("version {v}: a step takes two events, or two of one person"));
    }
    let is_late = before.deadline.is_some_and(|deadline| after.updated_at >= deadline);
    let of_deadline = after.reason.as_ref().is_some_and(|reason| reason.starts_with("the order's deadline"));
    if before.phase == Phase::Forward && after.phase != Phase::Forward && of_deadline && !is_late {
        wrong(Rule::OnlyRises, format!("version {v}: it fails before its deadline"));
    }
    let is_two = after.version > before.version + 1;
    let may_follow = match before.phase {
        // One save may turn an order to its undo and stop that.
        Phase::Forward => after.phase != Phase::UndoError || is_two,
        Phase::Processed => matches!(after.phase, Phase::Processed | Phase::Undoing | Phase::Undone),
        Phase::Undoing => matches!(after.phase, Phase::Undoing | Phase::Undone | Phase::UndoError),
        Phase::Undone => after.phase == Phase::Undone,
        Phase::Error => !matches!(after.phase, Phase::UndoError),
        Phase::UndoError => matches!(after.phase, Phase::UndoError | Phase::Undoing | Phase::Undone),
    };
    // Steps that had done nothing yet have no new round.
    let is_again = is_put_back || before.again.is_some();
    // One save of two changes may already stop or end it.
    let is_further = is_two && after.phase != Phase::UndoError;
    let goes_on = is_again && (after.phase == Phase::Forward || is_further);
    if !may_follow && !goes_on {
        wrong(Rule::OnlyRises, format!("version {v}: {:?} follows {:?}", after.phase, before.phase));
    }
}

fn check_failures(task: &Task, workflow: &Workflow, wrong: &mut impl FnMut(Rule, String)) {
    let most = |retry: &Ladder| retry.max.saturating_add(retry.long.map_or(0, |long| long.times));
    for (step, spec) in task.steps.iter().zip(&workflow.steps) {
        let undo = spec.undo.as_ref().map_or(0, |undo| most(&undo.retry));
        if step.failures > most(&spec.retry) || step.undo_failures > undo {
            let (n, m) = (step.failures, step.undo_failures);
            wrong(
                Rule::FailureCount,
                format!("version {}: `{}` failed {n} times and its undo {m} times", task.version, spec.name),
            );
        }
    }
}
