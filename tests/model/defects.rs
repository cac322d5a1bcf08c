//! Seeded defects: the core with one fault in its input or its output.
//!
//! The first eleven are rules that an early draft of the protocol stated, and that proved wrong.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use shared::decision::{Act, Decision, Declined, Event, Kept, Turn, What};
use shared::message::{Effect, NoticeKind, Outcome};
use shared::step::{Direction, State};
use shared::supervisor::Verdict;
use shared::task::{Arrival, Phase, Task};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// 1: "a Wake whose version is already passed does nothing".
    PassedWakeDoesNothing,
    /// 2: "a claim needs the task unlocked".
    ClaimNeedsUnlockedTask,
    /// 3: "expire makes it Pending".
    ExpireMakesPending,
    /// 4: "advance looks only at the step".
    AdvanceLooksOnlyAtTheStep,
    /// 5: "resubmit resets the failed step": only one of two.
    ResubmitResetsOne,
    /// A step that failed before its first call holds up the end of the undo.
    FailureHoldsUpTheUndo,
    /// A step whose last attempt ends while the order is in Error is tried again once the order goes on.
    SpentInErrorIsTriedAgain,
    /// A failed undo that is resubmitted also resets a step that failed before its first call.
    ResubmitDoesAndUndoes,
    /// 5: the task is not entered into the due index again.
    ResubmitLeavesDueGone,
    /// 5: the attempts are counted from zero again.
    ResubmitRestartsAttempts,
    /// 6: "alert delivered clears the alert", whichever alert it was.
    AlertDeliveredClearsAny,
    /// 7: "re-send means requests".
    ResendMeansRequests,
    /// 8: "re-arm by the same formula".
    RearmBySameFormula,
    /// 9: "my own stamp means mine".
    OwnStampMeansMine,
    /// `due = CompleteBy` of the first claim, without the minimum.
    DueIsFirstCompleteBy,
    UndoDoesNotWait,
    /// The workflow says that services keep tombstones, and they do not.
    ServicesForget,
    UnknownIsNotUndone,
    UndoInAnyOrder,
    LateReplyCounts,
    StaleReplyCounts,
    ReplyResendsNothing,
    /// The Wake of a repeated submission names the version of the first claims, and so does not send their requests.
    RepeatedSubmissionIsTooLate,
    ExpiryCountsTwice,
    ExpiryIsNotCounted,
    OlderLeaderWrites,
    VersionStays,
    AlertIsNotDue,
    CancelLosesItsWake,
    SiblingStartsAfterFailure,
    NoticeHasTodaysNumber,
    LastNoticeHasAnOldNumber,
    /// The undo waits for the CompleteBy of the last claim, not for the latest CompleteBy.
    ForwardByIsTheLast,
    /// A late attempt gets more time, and the undo does not wait for it.
    ExtensionLeavesForwardBy,
    /// An undo waits for the direct dependents of its step, but not for the dependents of those.
    UndoWaitsForDirectDependents,
    /// Resuming a paused order does not re-send the notice of its turn.
    ResumeSendsNoNotice,
    /// An expired attempt ends the wait for an undo without the notice of the turn, which its queue may have refused.
    ExpirySendsNoNotice,
    /// The last reply ends the wait for an undo without the notice of the turn.
    ReplySendsNoNotice,
    /// A Wake that does not know of the turn to undo begins the undo.
    OlderWakeBeginsTheUndo,
    /// The engine sends a Wake although the notice beside it failed.
    WakeOvertakesNotice,
    /// The engine clears what was sent after a send that failed.
    ClearsAfterAFailure,
    /// After a save, the version that a person saw before still counts as the current one.
    EverySaveIsAsSeen,
    /// Clearing an alert counts as a change of the order.
    BookkeepingIsAChange,
    /// A step before that did not run counts as done, and no condition is asked.
    ConditionsAreForgotten,
    /// A caught failure leaves nothing to undo, although its outcome is unknown.
    CaughtIsNotUndone,
    /// A caught failure is resubmitted with what failed for good.
    CaughtIsTriedAgain,
    /// A supervisor settles the last step and leaves the end to a scheduler, which has nothing to claim.
    SupervisorLeavesTheEnd,
    /// An order that an expression turns to undo ends in the same save, because no undo is decided yet.
    FailingEndsWithoutUndo,
    /// The order's deadline does not bring it into the due index.
    DeadlineIsNotDue,
    /// A late order that is resubmitted keeps its deadline, and so fails at once.
    ResubmitKeepsDeadline,
    /// An order that is past its deadline is left to its steps.
    DeadlineIsForgotten,
    /// A scheduler starts steps of an order that is past its deadline.
    StartsPastTheDeadline,
    /// A step that was refused leaves nothing to undo, although an earlier attempt may have done its work.
    RefusalForgetsEarlierAttempts,
    /// The end of a wait does not bring its order into the due index.
    WaitIsNotDue,
    /// Any Wake ends a wait.
    WaitEndsEarly,
    /// A Wake begins a wait again.
    WaitBeginsAgain,
    /// A wait ends during a pause.
    WaitEndsInAPause,
    /// The reply that begins a wait sends no Wake for its end when it is repeated.
    WaitLosesItsWake,
    /// The sweep that looks ahead takes a wait for ended: its Wake is on its way.
    LookAheadIsTheLast,
    /// A claim does not ask whether its agent is paused.
    PausedAgentGetsWork,
    /// A sweep takes an order that waits for a paused agent out of the due index.
    WaitForAnAgentIsNotDue,
    /// "An action settles its event and leaves the rest to the Wake": nothing can be claimed, and nothing is due.
    EventLeavesTheEnd,
    /// The order that an event ends owes no notice, and nothing redelivers the event.
    EventOwesNoNotice,
    /// "Early events are kept, up to sixteen": two keys, one step, and one answered event is lost.
    KeptBeyondItsSteps,
    /// An early event is kept, and its step begins to wait without taking it.
    KeptIsNotTaken,
    /// "Late is now >= until": refused by one clock, and counted by another.
    LateByTheClock,
    /// "A wait runs out in Undoing", or in Error: the cancel is forgotten.
    WaitRunsOutInError,
    /// A wait for an event runs out during a pause.
    WaitRunsOutInAPause,
    /// A wait for an event runs out before its time and the skew have passed.
    WaitRunsOutEarly,
    /// The time of an event does not bring its order into the due index.
    EventIsNotDue,
    /// "An undo of a wait is nothing": a payment that was received is kept.
    TakenIsNotUndone,
    /// The same of an event that came before its step waited.
    KeptIsNotUndone,
    /// A key is remembered until its step is done, not for the whole order.
    KeyIsForgotten,
    /// A resubmitted order keeps the time of its event, and so fails at once.
    ResubmitKeepsTheWait,
    /// An event settles every step that waits for its name.
    TakenTwice,
    /// "One place per key": a person counts twice under two keys.
    PersonIsAKey,
    /// A known key gets the same answer, whoever chose it: the second of two people with one key is lost.
    KeyIsEverybodys,
    /// A step that needs two people is done by one.
    OnePersonIsEnough,
    /// What one of two people sent is not undone.
    FirstIsNotUndone,
    /// A save that is not about the event writes the record without what one of two people sent.
    SaveForgetsTheFirst,
    /// The time of the step begins again with each person.
    FirstBeginsTheTimeAgain,
    /// When the time is over, those who came are enough.
    TimeMakesOneEnough,
    /// The second one counts although the order was cancelled after the first.
    SecondCountsAfterACancel,
    /// A step that ran out is resubmitted, and who said yes has to say it again but gets the old answer.
    ResubmitForgetsTheFirst,
    /// A no counts like a yes.
    NoCountsAsYes,
    /// A reminder raises the step's attempt.
    ReminderIsAnAttempt,
    /// A reminder is a claim, so an undo waits for its time.
    ReminderMovesForwardBy,
    /// A reminder is sent, and counted after that.
    ReminderIsNotCounted,
    /// The next reminder does not bring its order into the due index.
    ReminderIsNotDue,
    /// A reply to a reminder settles the step that waits.
    ReminderReplyCounts,
    /// A Wake that comes again does not send the reminder that a crash lost.
    ReminderIsNotSentAgain,
    /// Reminders go out during a pause.
    RemindsInAPause,
    /// The number of reminders has no limit.
    RemindsForEver,
    /// A wait that is half over is marked as told, and nobody is.
    AlarmIsForgotten,
    /// Operators are told of a wait at each sweep.
    AlarmTwice,
    /// Operators are told before half of the time and the skew have passed.
    AlarmEarly,
    /// Operators are told during a pause.
    AlarmInAPause,
    /// Each look of a poll puts its reminder off.
    LookPutsTheReminderOff,
    /// A look that finds nothing takes the alert of its poll away.
    LookForgetsItsAlarm,
    /// "A poll's next look is a claim", which an undo waits for.
    LookHoldsUpTheUndo,
    /// The same of a call that may change something, and the undo does not wait for it.
    AskLeavesForwardBy,
    /// "`for` is checked when a look answers": looks that stay silent never end.
    SilentLooksNeverEnd,
    /// Every look begins the time of the poll again.
    LookBeginsThePollAgain,
    /// A look that finds nothing is an attempt that failed.
    LookIsAFailure,
    /// The next look is claimed although the order is paused.
    LookIsClaimedInAPause,
    /// The next look is sent at once.
    LookIsNotHeldBack,
    /// A step that polls and failed is resubmitted with the time that it had.
    ResubmitKeepsThePoll,
    /// The reply that claims the next look does not send it again when it is repeated.
    LookIsNotSentAgain,
    /// "A callback counts once an attempt said accepted": that answer may be lost.
    CallbackNeedsAccepted,
    /// "In Error a callback is refused": the resubmission asks a service that replays its 202.
    CallbackIsRefusedInError,
    /// The callback that was kept in Error is not taken by the resubmission.
    ResubmitForgetsTheCallback,
    /// An undo waits for the long deadline of accepted work.
    AcceptedHoldsUpTheUndo,
    /// A callback is missed although the order is paused.
    CallbackIsMissedInAPause,
    /// The deadline of accepted work does not bring its order into the due index.
    CallbackIsNotDue,
    /// Accepted work is nothing to undo.
    AcceptedIsNotUndone,
    /// The callback of the last step leaves the end to a Wake, which finds nothing to claim.
    CallbackLeavesTheEnd,
    /// A callback is not remembered.
    CallbackIsForgotten,
    /// A heartbeat is answered with a time that was not saved.
    BeatIsToldMore,
    /// A heartbeat leaves the time until which the agent may act.
    BeatLeavesForwardBy,
    /// A heartbeat of any attempt keeps the step alive.
    BeatOfAnyAttempt,
    /// No heartbeat counts in an undo, not even that of a long undo.
    BeatIsRefusedInAnUndo,
    /// In an undo the agents that work forward are kept alive, too.
    BeatHoldsUpTheUndo,
    /// Heartbeats keep an attempt alive for ever.
    BeatNeverEnds,
    /// A heartbeat is a change to who looked before.
    BeatIsAChange,
    /// Another look of a poll is a change to who looked before.
    LookIsAChange,
    /// A reminder is a change to who looked before.
    ReminderIsAChange,
    /// A heartbeat makes its order young, so a sweep takes its Wakes for sent a moment ago.
    BeatMakesItYoung,
    /// A heartbeat counts as a claim.
    BeatIsAClaim,
    /// A worker that stays silent is not missed.
    SilentWorkerIsNotMissed,
}

/// The scheduler's decision, with `defect`.
pub fn schedule(defect: Option<Defect>, task: &Task, event: &Event, turn: &Turn<'_>) -> Decision {
    let Some(defect) = defect else { return shared::scheduler::schedule(task, event, turn) };
    let deadline = task.deadline;
    let attempts: Vec<u32> = task.steps.iter().map(|s| s.attempt).collect();
    let (seen, mut task, mut event, mut turn) = (task, task.clone(), event.clone(), *turn);
    let workflow = turn.workflow.clone();
    let mut bent = workflow.clone();
    match (defect, &mut event) {
        (Defect::PassedWakeDoesNothing, Event::Wake { seen, .. }) if *seen < task.version => {
            return Decision::Keep { why: Kept::NothingReady, effects: Vec::new() };
        }
        (Defect::ClaimNeedsUnlockedTask, Event::Wake { .. }) if task.locked_by().is_some() => {
            return Decision::Keep { why: Kept::NothingReady, effects: Vec::new() };
        }
        (Defect::AlertDeliveredClearsAny, Event::AlertSent { version }) => {
            *version = task.alert.as_ref().map_or(*version, |a| a.version);
        }
        (Defect::UnknownIsNotUndone, Event::Wake { .. }) if task.phase == Phase::Undoing && !task.is_undo_begun() => {
            let unknown = |s: &State| matches!(s, State::Pending { .. } | State::Processing { .. });
            if task.undo_from(turn.workflow, turn.skew).is_none_or(|from| from <= turn.now) {
                for step in task.steps.iter_mut().filter(|s| unknown(&s.state)) {
                    (step.state, step.attempt) = (State::Pending { not_before: None }, 0);
                }
            }
        }
        (Defect::PausedAgentGetsWork, _) => turn.agents = &shared::control::ALL_RUN,
        (Defect::UndoDoesNotWait, _) => task.forward_by = None,
        (Defect::UndoInAnyOrder, _) if task.phase == Phase::Undoing => {
            bent.steps.iter_mut().for_each(|s| s.after.clear());
            turn.workflow = &bent;
        }
        (Defect::UndoWaitsForDirectDependents, _) if task.phase == Phase::Undoing => {
            // Dependencies on a step without an undo are ignored.
            let has_undo: Vec<bool> = bent.steps.iter().map(|step| step.undo.is_some()).collect();
            bent.steps.iter_mut().for_each(|step| step.after.retain(|after| has_undo[after.step]));
            turn.workflow = &bent;
        }
        (Defect::ConditionsAreForgotten, _) => {
            bent.steps.iter_mut().for_each(|step| step.when = None);
            turn.workflow = &bent;
        }
        (Defect::CaughtIsNotUndone, _) if waits_to_undo(&task) => {
            for step in task.steps.iter_mut().filter(|step| step.state == State::Caught) {
                step.state = State::Undone;
            }
        }
        (Defect::CaughtIsTriedAgain, _) if task.phase == Phase::Forward => {
            for step in task.steps.iter_mut().filter(|step| step.state == State::Caught) {
                step.state = State::Pending { not_before: None };
            }
        }
        (Defect::WaitEndsEarly, Event::Wake { .. }) => {
            for step in &mut task.steps {
                if let State::Waiting { until, event: false } = &mut step.state {
                    *until = turn.now;
                }
            }
        }
        (Defect::WaitBeginsAgain, Event::Wake { .. }) => {
            for step in task.steps.iter_mut().filter(|step| matches!(step.state, State::Waiting { .. })) {
                step.state = State::Pending { not_before: None };
            }
        }
        (Defect::WaitEndsInAPause, Event::Wake { .. }) if waits(&task) => task.paused_at = None,
        (Defect::LookBeginsThePollAgain, Event::Reply(_) | Event::Wake { .. }) => {
            task.steps.iter_mut().for_each(|step| step.poll_until = None);
        }
        (Defect::LookIsClaimedInAPause, Event::Reply(_)) => task.paused_at = None,
        (Defect::CallbackNeedsAccepted, Event::CalledBack { .. })
            if !matches!(task.steps[1].state, State::Waiting { .. }) && task.events.is_empty() =>
        {
            return Decision::Keep { why: Kept::Declined(Declined::Late), effects: Vec::new() };
        }
        (Defect::CallbackIsRefusedInError, Event::CalledBack { .. })
            if task.phase == Phase::Error && task.events.is_empty() =>
        {
            return Decision::Keep { why: Kept::Declined(Declined::Late), effects: Vec::new() };
        }
        (Defect::CallbackIsForgotten, Event::CalledBack { .. }) => task.events.clear(),
        (Defect::AcceptedIsNotUndone, Event::Wake { .. }) if waits_to_undo(&task) && waits(&task) => {
            task.steps[1].attempt = 0;
        }
        (Defect::BeatIsToldMore, Event::Beat { .. }) if task.steps[0].claim().is_some() => {
            return Decision::Keep { why: Kept::Alive, effects: Vec::new() };
        }
        (Defect::BeatOfAnyAttempt, Event::Beat { attempt, .. }) => *attempt = task.steps[0].attempt,
        (Defect::BeatIsRefusedInAnUndo, Event::Beat { .. }) if task.phase == Phase::Undoing => {
            return Decision::Keep { why: Kept::Stale, effects: Vec::new() };
        }
        (Defect::BeatHoldsUpTheUndo, Event::Beat { .. }) if waits_to_undo(&task) => task.phase = Phase::Forward,
        (Defect::BeatNeverEnds, Event::Beat { .. }) => {
            task.steps[0].heart.iter_mut().for_each(|heart| heart.until += SignedDuration::from_secs(9));
        }
        (Defect::LateByTheClock, Event::Arrived { .. }) if waited(&task).is_some_and(|until| until <= turn.now) => {
            return Decision::Keep { why: Kept::Declined(Declined::Late), effects: Vec::new() };
        }
        (Defect::KeyIsForgotten, Event::Arrived { .. }) => task.events.retain(|event| event.step.is_none()),
        (Defect::KeptIsNotTaken, Event::Reply(_) | Event::Wake { .. }) if task.phase == Phase::Forward => {
            task.events.clear();
        }
        (Defect::KeptIsNotUndone, Event::Wake { .. }) if task.phase == Phase::Undoing => {
            task.events.iter_mut().for_each(|event| event.data = None);
        }
        (Defect::TakenIsNotUndone, Event::Wake { .. }) if waits_to_undo(&task) => {
            let spec = workflow.steps.iter();
            let taken = task.steps.iter_mut().zip(spec).filter(|(_, spec)| spec.wait.is_some());
            taken.filter(|(step, _)| step.state == State::Processed).for_each(|(step, _)| step.state = State::Undone);
        }
        (Defect::PersonIsAKey, Event::Arrived { key, by: Some(by), .. }) => *by = key.clone(),
        (Defect::FirstIsNotUndone, Event::Wake { .. }) if waits_to_undo(&task) => {
            task.events.iter_mut().for_each(|event| event.data = None);
        }
        (Defect::SecondCountsAfterACancel, Event::Arrived { .. }) if waits_to_undo(&task) => {
            task.phase = Phase::Forward
        }
        (Defect::NoCountsAsYes, Event::Arrived { data, .. }) => *data = serde_json::json!({}),
        (Defect::RemindsInAPause, Event::Wake { .. }) => task.paused_at = None,
        (Defect::RemindsForEver, Event::Wake { .. }) => {
            for reminded in task.steps.iter_mut().filter_map(|step| step.reminded.as_mut()) {
                reminded.next = reminded.next.or(Some(turn.now));
            }
        }
        (Defect::ReminderReplyCounts, Event::Reply(reply)) if reply.attempt == 0 => {
            task.version += 1;
            for step in task.steps.iter_mut().filter(|step| matches!(step.state, State::Waiting { .. })) {
                step.state = State::Processed;
            }
            return Decision::Save { task: Box::new(task), effects: Vec::new() };
        }
        (Defect::RefusalForgetsEarlierAttempts, _) => task.steps.iter_mut().for_each(|step| step.unsure = false),
        (Defect::DeadlineIsNotDue, _) => task.deadline = None,
        (Defect::StartsPastTheDeadline, _) if deadline.is_some_and(|by| by + turn.skew <= turn.now) => {
            task.deadline = None;
        }
        (Defect::LateReplyCounts, Event::Reply(reply)) => {
            let by = workflow.position(&reply.step).and_then(|i| task.holds(i, reply.attempt));
            turn.now = by.map_or(turn.now, |(_, by)| turn.now.min(by - SignedDuration::from_millis(1)));
        }
        (Defect::StaleReplyCounts, Event::Reply(reply)) => {
            reply.attempt = workflow.position(&reply.step).map_or(0, |i| task.steps[i].attempt);
        }
        (Defect::SiblingStartsAfterFailure, Event::Reply(reply))
            if matches!(reply.outcome, Outcome::Done { .. })
                && task.phase == Phase::Undoing
                && !task.is_undo_begun() =>
        {
            task.phase = Phase::Forward;
        }
        _ => {}
    }
    if let (Defect::KeyIsEverybodys, Event::Arrived { key, .. }) = (defect, &event)
        && task.events.iter().any(|known| known.key == *key)
    {
        return Decision::Keep { why: Kept::Repeated, effects: Vec::new() };
    }
    let before = task.clone();
    let mut decision = shared::scheduler::schedule(&task, &event, &turn);
    if defect == Defect::KeptBeyondItsSteps
        && let (Event::Arrived { name, key, .. }, Decision::Keep { why: Kept::Declined(Declined::Early), .. }) =
            (&event, &decision)
    {
        task.version += 1;
        let (name, key) = (name.clone(), key.clone());
        let (hash, step, data, by) = (String::new(), None, Some(Value::Null), None);
        task.events.push(Arrival { name, key, hash, step, data, by });
        decision = Decision::Save { task: Box::new(task.clone()), effects: Vec::new() };
    }
    if defect == Defect::OlderWakeBeginsTheUndo
        && waits_to_undo(&task)
        && let (Event::Wake { hops, .. }, Decision::Keep { effects: told, .. }) = (&event, &decision)
    {
        // Like a Wake that knows of it, but with the notice that its own version asks for.
        let knowing = Event::Wake { seen: task.version, hops: *hops };
        let told: Vec<_> = told.iter().filter(|effect| matches!(effect, Effect::Notice(_))).cloned().collect();
        decision = match shared::scheduler::schedule(&task, &knowing, &turn) {
            Decision::Save { task, effects } => {
                Decision::Save { task, effects: told.into_iter().chain(effects).collect() }
            }
            kept @ Decision::Keep { .. } => kept,
        };
    }
    match (&mut decision, defect, &event) {
        (Decision::Keep { effects, .. }, Defect::ResendMeansRequests, _) => {
            effects.retain(|e| matches!(e, Effect::Request(_)));
        }
        (Decision::Keep { effects, .. }, Defect::ReplyResendsNothing, Event::Reply(_))
        | (Decision::Keep { effects, .. }, Defect::CancelLosesItsWake, Event::Cancel { .. }) => effects.clear(),
        (Decision::Keep { effects, .. }, Defect::WaitLosesItsWake, Event::Reply(_)) if waits(&before) => {
            effects.retain(|effect| !matches!(effect, Effect::Wake(..)));
        }
        (Decision::Save { task, .. }, Defect::LookHoldsUpTheUndo, Event::Reply(_)) => {
            task.forward_by = task.forward_by.max(task.complete_by());
        }
        (Decision::Save { task, .. }, Defect::AskLeavesForwardBy, Event::Wake { .. })
            if task.steps.iter().any(|step| step.poll_until.is_some()) =>
        {
            task.forward_by = before.forward_by;
        }
        (Decision::Save { task, .. }, Defect::LookIsAFailure, Event::Reply(reply))
            if matches!(reply.outcome, Outcome::NotYet { .. }) =>
        {
            task.steps[1].failures += 1;
        }
        (Decision::Save { task, .. }, Defect::LookIsClaimedInAPause, Event::Reply(_)) => {
            task.paused_at = seen.paused_at;
        }
        (Decision::Save { task, .. }, Defect::LookIsNotHeldBack, Event::Reply(_)) => {
            for step in task.steps.iter_mut().filter(|step| step.attempt > 1 && step.poll_until.is_some()) {
                if let State::Processing { complete_by, .. } = &mut step.state {
                    *complete_by = turn.now + SignedDuration::from_secs(1);
                }
            }
        }
        (Decision::Save { task, .. }, Defect::ResubmitKeepsThePoll, Event::Act(act)) if is_resubmit(act) => {
            task.steps[1].poll_until = before.steps[1].poll_until;
        }
        (Decision::Keep { effects, .. }, Defect::LookIsNotSentAgain, Event::Reply(_)) => {
            effects.retain(|effect| !matches!(effect, Effect::Request(request) if request.look.is_some()));
        }
        (Decision::Save { task, .. }, Defect::ResubmitForgetsTheCallback, Event::Act(act))
            if is_resubmit(act) && !task.events.is_empty() =>
        {
            task.steps[1].state = State::Pending { not_before: None };
        }
        (Decision::Save { task, .. }, Defect::AcceptedHoldsUpTheUndo, Event::Reply(reply))
            if matches!(reply.outcome, Outcome::Accepted { .. }) =>
        {
            task.forward_by = task.forward_by.max(waited(task));
        }
        (Decision::Save { task, .. }, Defect::CallbackIsNotDue, _) if waited(task).is_some() => {
            task.due = task.due.map(|due| due.max(turn.now + SignedDuration::from_secs(60)));
        }
        (Decision::Save { task, .. }, Defect::AcceptedIsNotUndone, Event::Wake { .. }) => {
            for (is, attempt) in task.steps.iter_mut().zip(attempts) {
                is.attempt = is.attempt.max(attempt);
            }
        }
        (Decision::Save { task, .. }, Defect::BeatLeavesForwardBy, Event::Beat { .. }) => {
            task.forward_by = before.forward_by;
        }
        (Decision::Save { task, .. }, Defect::BeatHoldsUpTheUndo, Event::Beat { .. }) if waits_to_undo(seen) => {
            task.phase = Phase::Undoing;
        }
        (Decision::Save { task, .. }, Defect::BeatNeverEnds, Event::Beat { .. }) => {
            task.steps[0].heart = seen.steps[0].heart.clone();
        }
        (Decision::Save { task, .. }, Defect::BeatIsAChange, Event::Beat { .. }) => task.books = None,
        (Decision::Save { task, .. }, Defect::BeatMakesItYoung, Event::Beat { .. }) => task.updated_at = turn.now,
        (Decision::Save { task, .. }, Defect::LookIsAChange, Event::Reply(_)) => task.books = None,
        (Decision::Save { task, .. }, Defect::ReminderIsAChange, Event::Wake { .. }) => task.books = None,
        (Decision::Save { task, .. }, Defect::BeatIsAClaim, Event::Beat { .. }) => {
            task.steps[0].claimed_at = task.version;
        }
        (Decision::Save { task, .. }, Defect::CallbackLeavesTheEnd, Event::CalledBack { .. })
            if task.phase == Phase::Processed =>
        {
            (task.phase, task.due, task.notice_owed) = (Phase::Forward, before.due, false);
        }
        (Decision::Save { task, .. }, Defect::EventLeavesTheEnd, Event::Arrived { .. })
            if task.phase == Phase::Processed =>
        {
            (task.phase, task.due, task.notice_owed) = (Phase::Forward, before.due, false);
        }
        (Decision::Save { task, .. }, Defect::EventOwesNoNotice, Event::Arrived { .. })
            if task.phase == Phase::Processed =>
        {
            (task.notice_owed, task.due) = (false, None);
        }
        (
            Decision::Save { task, .. },
            Defect::WaitRunsOutInAPause | Defect::CallbackIsMissedInAPause | Defect::AlarmInAPause,
            Event::Act(act),
        ) if act.what == What::Pause => {
            task.due = before.due;
        }
        (Decision::Save { task, .. }, Defect::EventIsNotDue, _) if waited(task).is_some() => {
            task.due = task.due.map(|due| due.max(turn.now + SignedDuration::from_secs(60)));
        }
        (Decision::Save { task, .. }, Defect::KeptIsNotTaken, _) if seen.events.len() > task.events.len() => {
            task.events.clone_from(&seen.events);
        }
        (Decision::Save { task, .. }, Defect::KeyIsForgotten, Event::Arrived { .. }) => {
            let taken = seen.events.iter().filter(|event| event.step.is_some()).cloned();
            task.events = taken.chain(task.events.drain(..)).collect();
        }
        (Decision::Save { task, .. }, Defect::TakenTwice, Event::Arrived { .. }) => {
            let other = task.steps.iter_mut().find(|step| matches!(step.state, State::Waiting { event: true, .. }));
            other.into_iter().for_each(|step| step.state = State::Processed);
        }
        (
            Decision::Save { task, .. },
            Defect::LookPutsTheReminderOff | Defect::LookForgetsItsAlarm,
            Event::Reply(_),
        ) if before.steps[1].poll_until.is_some() && task.steps[1].poll_until.is_some() => match defect {
            Defect::LookForgetsItsAlarm => task.steps[1].alert_at = None,
            _ => {
                task.steps[1].reminded.iter_mut().for_each(|it| it.next = Some(turn.now + SignedDuration::from_secs(2)))
            }
        },
        (Decision::Save { task, .. }, Defect::ReminderIsAnAttempt, _) if reminds(&before, task) => {
            task.steps[1].attempt += 1;
        }
        (Decision::Save { task, .. }, Defect::ReminderMovesForwardBy, _) if reminds(&before, task) => {
            task.forward_by = task.forward_by.max(Some(turn.now + SignedDuration::from_secs(2)));
        }
        (Decision::Save { task, .. }, Defect::ReminderIsNotCounted, _) if reminds(&before, task) => {
            task.steps[1].reminded.clone_from(&before.steps[1].reminded);
        }
        (Decision::Save { task, .. }, Defect::ReminderIsNotDue, _) if waited(task).is_some() => {
            task.due = task.next_deadline(turn.skew);
        }
        (Decision::Keep { effects, .. }, Defect::ReminderIsNotSentAgain, Event::Wake { .. }) => {
            effects.retain(|effect| !matches!(effect, Effect::Request(request) if request.reminder.is_some()));
        }
        (Decision::Save { task, .. }, Defect::OnePersonIsEnough, Event::Arrived { .. })
            if task.phase == Phase::Forward =>
        {
            let waiting = task.steps.iter_mut().filter(|step| matches!(step.state, State::Waiting { .. }));
            waiting.for_each(|step| step.state = State::Processed);
        }
        (Decision::Save { task, .. }, Defect::SaveForgetsTheFirst, Event::Act(_) | Event::Wake { .. })
            if task.phase == Phase::Forward =>
        {
            task.events.retain(|event| event.step.is_none() || event.data.is_none());
        }
        (Decision::Save { task, .. }, Defect::FirstBeginsTheTimeAgain, Event::Arrived { .. }) => {
            for step in &mut task.steps {
                if let State::Waiting { until, event: true } = &mut step.state {
                    *until = turn.now + SignedDuration::from_secs(2);
                }
            }
        }
        (Decision::Save { task, .. }, Defect::SecondCountsAfterACancel, Event::Arrived { .. })
            if waits_to_undo(seen) =>
        {
            (task.phase, task.turned_at, task.due) = (Phase::Undoing, seen.turned_at, seen.due);
        }
        (Decision::Save { task, .. }, Defect::ResubmitForgetsTheFirst, Event::Act(act)) if is_resubmit(act) => {
            task.events.iter_mut().filter(|event| event.step.is_some()).for_each(|event| event.data = None);
        }
        (Decision::Save { task, .. }, Defect::ResubmitKeepsTheWait, Event::Act(act)) if is_resubmit(act) => {
            for (was, is) in before.steps.iter().zip(&mut task.steps) {
                if let State::Waiting { event: true, .. } = was.state {
                    is.state = was.state.clone();
                }
            }
        }
        (Decision::Save { task, .. }, Defect::WaitIsNotDue, _) if waits(task) => {
            task.due = task.next_deadline(turn.skew);
        }
        (Decision::Keep { effects, .. }, Defect::NoticeHasTodaysNumber, _) => {
            for effect in effects {
                if let Effect::Notice(notice) = effect {
                    notice.seq = before.version;
                }
            }
        }
        (Decision::Save { task, .. }, Defect::AdvanceLooksOnlyAtTheStep, Event::Reply(_))
            if task.phase == Phase::Undoing && task.steps.iter().all(shared::step::Step::is_settled) =>
        {
            task.phase = Phase::Processed;
            task.due = None;
        }
        (Decision::Save { task, .. }, Defect::FailingEndsWithoutUndo, _)
            if before.phase == Phase::Forward && waits_to_undo(task) =>
        {
            task.phase = Phase::Undone;
            task.due = None;
        }
        (Decision::Save { effects, .. }, Defect::LastNoticeHasAnOldNumber, Event::Reply(_)) => {
            // The number of the first claim, which no notice has.
            for effect in effects {
                if let Effect::Notice(notice) = effect
                    && notice.kind == NoticeKind::Completed
                {
                    notice.seq = 1;
                }
            }
        }
        (Decision::Save { task, .. }, Defect::FailureHoldsUpTheUndo, Event::Act(_))
            if before.phase == Phase::UndoError && before.steps.iter().any(|step| step.state == State::Failed) =>
        {
            (task.phase, task.due) = (Phase::UndoError, None);
        }
        (Decision::Save { task, .. }, Defect::ResubmitDoesAndUndoes, Event::Act(act)) if is_resubmit(act) => {
            let failed = task.steps.iter_mut().filter(|step| step.state == State::Failed);
            failed.for_each(|step| step.state = State::Pending { not_before: None });
        }
        (Decision::Save { task, .. }, Defect::ResubmitResetsOne, Event::Act(act)) if is_resubmit(act) => {
            let failed = |s: &shared::step::Step| matches!(s.state, State::Failed | State::UndoFailed);
            if let Some(second) = before.steps.iter().enumerate().filter(|(_, s)| failed(s)).map(|(i, _)| i).nth(1) {
                task.steps[second].state = before.steps[second].state.clone();
            }
        }
        (Decision::Save { task, .. }, Defect::ResubmitLeavesDueGone, Event::Act(act)) if is_resubmit(act) => {
            task.due = before.due
        }
        (Decision::Save { task, .. }, Defect::ResubmitRestartsAttempts, Event::Act(act)) if is_resubmit(act) => {
            task.steps.iter_mut().for_each(|s| s.attempt = 0);
        }
        (Decision::Save { task, .. }, Defect::DeadlineIsNotDue | Defect::StartsPastTheDeadline, _) => {
            task.deadline = deadline;
        }
        (Decision::Save { task, .. }, Defect::ResubmitKeepsDeadline, Event::Act(act)) if is_resubmit(act) => {
            task.deadline = deadline;
        }
        (Decision::Save { task, .. }, Defect::DueIsFirstCompleteBy, _) => {
            let first = task.complete_by().map(|by| by + turn.skew);
            if before.version == 0 {
                task.due = first.or(task.due);
            } else if task.due.is_some() {
                task.due = before.due.or(task.due);
            }
        }
        (Decision::Save { task: next, .. }, Defect::UnknownIsNotUndone, Event::Wake { .. }) => {
            for (is, attempt) in next.steps.iter_mut().zip(attempts) {
                is.attempt = is.attempt.max(attempt);
            }
        }
        (Decision::Save { task, .. }, Defect::ForwardByIsTheLast, _) => {
            let claims =
                task.steps.iter().filter(|step| step.claimed_at == task.version).filter_map(|step| step.claim());
            let last = claims.filter(|(direction, _)| *direction == Direction::Do).map(|(_, by)| by).next_back();
            task.forward_by = last.or(task.forward_by);
        }
        (Decision::Save { effects, .. }, Defect::ResumeSendsNoNotice, Event::Act(act)) if act.what == What::Resume => {
            effects.retain(|effect| !matches!(effect, Effect::Notice(_)));
        }
        (Decision::Save { effects, .. }, Defect::ReplySendsNoNotice, Event::Reply(_)) if waits_to_undo(&before) => {
            effects.retain(|effect| !matches!(effect, Effect::Notice(notice) if notice.kind == NoticeKind::Failed));
        }
        (Decision::Save { task, .. }, Defect::VersionStays, Event::Reply(_)) => task.version = before.version,
        (Decision::Save { task, .. }, Defect::EverySaveIsAsSeen, _) => {
            task.books = Some((before.version, task.version));
        }
        (Decision::Save { task, .. }, Defect::BookkeepingIsAChange, Event::AlertSent { .. }) => task.books = None,
        (Decision::Save { task, .. }, Defect::AlertIsNotDue, _) if task.alert.is_some() => task.due = None,
        _ => {}
    }
    decision
}

/// The supervisor's verdict, with `defect`.
pub fn supervise(defect: Option<Defect>, task: &Task, token: u64, turn: &Turn<'_>) -> Verdict {
    let Some(defect) = defect else { return shared::supervisor::supervise(task, token, turn) };
    let mut seen = task.clone();
    if defect == Defect::OlderLeaderWrites {
        seen.lease_token = 0;
    }
    let is_over = seen.deadline.is_some_and(|by| by + turn.skew <= turn.now);
    if defect == Defect::DeadlineIsForgotten || defect == Defect::DeadlineIsNotDue && !is_over {
        seen.deadline = None;
    }
    let mut early = *turn;
    if defect == Defect::SilentLooksNeverEnd {
        seen.steps.iter_mut().for_each(|step| step.poll_until = None);
    }
    match defect {
        Defect::SilentWorkerIsNotMissed => {
            for step in seen.steps.iter_mut().filter(|step| step.heart.is_some()) {
                if let State::Processing { complete_by, .. } = &mut step.state {
                    *complete_by += SignedDuration::from_secs(60);
                }
            }
        }
        Defect::WaitRunsOutInError if task.phase == Phase::Error => seen.phase = Phase::Forward,
        Defect::WaitRunsOutInAPause | Defect::CallbackIsMissedInAPause => seen.paused_at = None,
        Defect::WaitRunsOutEarly if waited(task).is_some() => early.skew = SignedDuration::ZERO,
        Defect::AlarmEarly if waited(task).is_some_and(|until| until > turn.now) => early.skew = SignedDuration::ZERO,
        Defect::AlarmInAPause if waited(task).is_some_and(|until| until + turn.skew > turn.now) => {
            seen.paused_at = None
        }
        _ => {}
    }
    let mut verdict = shared::supervisor::supervise(&seen, token, &early);
    match (&mut verdict, defect) {
        (Verdict::Recover { task: next, .. }, Defect::SpentInErrorIsTriedAgain) if task.phase == Phase::Error => {
            for (was, is) in task.steps.iter().zip(&mut next.steps) {
                if was.claim().is_some() && is.state == State::Failed {
                    is.state = State::Pending { not_before: None };
                }
            }
        }
        (Verdict::Recover { task: next, .. }, Defect::ExpireMakesPending) => {
            for (was, is) in task.steps.iter().zip(&mut next.steps) {
                if was.claim().map(|c| c.0) == Some(Direction::Undo)
                    && let State::UndoPending { not_before } = is.state
                {
                    is.state = State::Pending { not_before };
                    next.phase = Phase::Forward;
                }
            }
        }
        (Verdict::Recover { task: next, .. }, Defect::AlarmIsForgotten) if next.phase == Phase::Forward => {
            next.alert = None;
        }
        (Verdict::Recover { task: next, .. }, Defect::TimeMakesOneEnough) => {
            for (n, step) in next.steps.iter_mut().enumerate().filter(|(_, step)| step.state == State::Failed) {
                if task.counted(n).next().is_some() {
                    step.state = State::Processed;
                }
            }
        }
        (Verdict::Recover { task: next, .. }, Defect::AlarmTwice) if next.phase == Phase::Forward => {
            for (was, is) in task.steps.iter().zip(&mut next.steps) {
                is.alert_at = was.alert_at;
            }
        }
        (Verdict::Recover { task: next, .. }, Defect::ExpiryCountsTwice | Defect::ExpiryIsNotCounted) => {
            for (was, is) in task.steps.iter().zip(&mut next.steps) {
                if is.failures > was.failures {
                    is.failures = if defect == Defect::ExpiryCountsTwice { is.failures + 1 } else { was.failures };
                }
            }
        }
        (Verdict::Recover { task: next, .. }, Defect::DeadlineIsForgotten | Defect::DeadlineIsNotDue) => {
            next.deadline = task.deadline;
        }
        (Verdict::Recover { task: next, .. }, Defect::SupervisorLeavesTheEnd) if next.phase == Phase::Processed => {
            (next.phase, next.due) = (Phase::Forward, None);
        }
        (Verdict::Recover { effects, .. }, Defect::ExpirySendsNoNotice) if waits_to_undo(task) => {
            effects.retain(|effect| !matches!(effect, Effect::Notice(_)));
        }
        (Verdict::Recover { task: next, .. }, Defect::ExtensionLeavesForwardBy) => next.forward_by = task.forward_by,
        (Verdict::Recover { task: next, .. }, Defect::AlertIsNotDue) if next.alert.is_some() => next.due = None,
        (Verdict::Rearm { due, effects }, Defect::LookAheadIsTheLast) if *due == task.due && !effects.is_empty() => {
            *due = None;
        }
        (Verdict::Rearm { due, .. }, Defect::WaitForAnAgentIsNotDue) if !turn.agents.paused.is_empty() => *due = None,
        (Verdict::Rearm { due, .. }, Defect::RearmBySameFormula) if due.is_some() => {
            *due = Some(same_formula(task, turn));
        }
        _ => {}
    }
    verdict
}

/// Whether a reminder was counted.
fn reminds(before: &Task, after: &Task) -> bool {
    let sent = |task: &Task| task.steps[1].reminded.as_ref().map_or(0, |reminded| reminded.sent);
    sent(after) > sent(before)
}

fn is_resubmit(act: &Act) -> bool {
    matches!(act.what, What::Resubmit { .. })
}

fn waits(task: &Task) -> bool {
    task.steps.iter().any(|step| matches!(step.state, State::Waiting { .. }))
}

/// Until when a step waits for an event.
fn waited(task: &Task) -> Option<Timestamp> {
    task.steps.iter().find_map(|step| match step.state {
        State::Waiting { until, event: true } => Some(until),
        _ => None,
    })
}

fn waits_to_undo(task: &Task) -> bool {
    task.phase == Phase::Undoing && !task.is_undo_begun()
}

fn same_formula(task: &Task, turn: &Turn<'_>) -> Timestamp {
    let soon = turn.now + shared::task::grace(turn.workflow);
    task.complete_by().map_or(soon, |by| by.min(soon)).max(turn.now)
}
