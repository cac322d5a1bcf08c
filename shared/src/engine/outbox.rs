//! Sends effects, with the order's input, in the sequence that later messages rely on.

use super::{Decided, Engine, Handled, NOTICE_FIRST_FOR};
use crate::decision::Event;
use crate::message::{Effect, NoticeKind};
use crate::order::Id;
use crate::ports::Error;
use crate::workflow::child::ToChild;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

impl Engine {
    pub(super) async fn send_all(&self, decided: Vec<Result<Decided, Error>>) -> Vec<Result<Handled, Error>> {
        let mut answers = Vec::with_capacity(decided.len());
        let mut inputs = self.inputs(&decided).await;
        let (mut effects, mut owners, mut told) = (Vec::new(), Vec::new(), HashSet::<Id>::new());
        for (owner, decided) in decided.into_iter().enumerate() {
            match decided {
                Ok(Decided { handled, effects: mut own }) => match add_inputs(&handled, &mut own, &mut inputs) {
                    Ok(()) => {
                        owners.extend(own.iter().map(|effect| (owner, is_turn(effect), follow_up(effect, &handled))));
                        if own.iter().any(is_turn)
                            && let Some(task) = handled.task()
                            && task.updated_at.duration_until(self.now()) < NOTICE_FIRST_FOR
                        {
                            told.insert(task.id.clone());
                        }
                        effects.append(&mut own);
                        answers.push(Ok(handled));
                    }
                    Err(error) => answers.push(Err(error)),
                },
                Err(error) => answers.push(Err(error)),
            }
        }
        // A Wake must not overtake the notice of its task's last turn: the task would move on, and nothing would show
        // that the notice is missing (simulation, seeds 16 and 1995). The next message about the task sends both again.
        // The Wake may belong to another message that was saved together with the notice's.
        let of =
            |answer: &Result<Handled, Error>| answer.as_ref().ok().and_then(Handled::task).map(|task| task.id.clone());
        let (later, first): (Vec<_>, Vec<_>) = effects.into_iter().zip(owners).partition(|(effect, (owner, ..))| {
            matches!(effect, Effect::Wake(..)) && of(&answers[*owner]).is_some_and(|id| told.contains(&id))
        });
        let (mut followers, mut untold) = (Vec::new(), HashMap::<Id, Error>::new());
        for round in [first, later] {
            for (_, (owner, ..)) in &round {
                if let Some(error) = of(&answers[*owner]).and_then(|id| untold.get(&id)) {
                    answers[*owner] = Err(error.again());
                }
            }
            let open = round.into_iter().filter(|(_, (owner, ..))| answers[*owner].is_ok());
            let (children, mut messages): (Vec<_>, Vec<_>) =
                open.partition(|(effect, _)| matches!(effect, Effect::Child(_)));
            let asks: Vec<&ToChild> = children.iter().filter_map(|(effect, _)| asked(effect)).collect();
            let told = self.tell_children(&asks).await;
            for ((_, (owner, ..)), told) in children.iter().zip(told) {
                match told {
                    Ok(own) => messages.extend(own.into_iter().map(|effect| (effect, (*owner, false, None)))),
                    Err(error) => answers[*owner] = Err(error),
                }
            }
            // Redelivery repeats this part of a release before the next.
            let brings_next = |effect: &Effect| matches!(effect, Effect::Wake(wake, _) if wake.is_release());
            let messages =
                messages.into_iter().filter(|(effect, (owner, ..))| answers[*owner].is_ok() || !brings_next(effect));
            let (now, owners): (Vec<_>, Vec<_>) = messages.unzip();
            if now.is_empty() {
                continue;
            }
            let sent = self.messenger.send(now).await;
            for ((owner, is_turn, follow_up), sent) in owners.into_iter().zip(sent) {
                match sent {
                    Ok(()) => followers.extend(of(&answers[owner]).zip(follow_up)),
                    Err(error) => {
                        if let (true, Some(id)) = (is_turn, of(&answers[owner])) {
                            untold.insert(id, error.again());
                        }
                        answers[owner] = Err(error);
                    }
                }
            }
        }
        // If this fails, they stay owed, and the next sweep sends them again.
        self.decide_all(&followers).await;
        answers
    }

    /// The inputs of the orders whose requests need them.
    async fn inputs(&self, decided: &[Result<Decided, Error>]) -> HashMap<Id, Result<Arc<Value>, Error>> {
        let needy = decided.iter().flatten().filter(|decided| decided.effects.iter().any(needs_input));
        self.inputs_of(needy.filter_map(|decided| decided.handled.task()).map(|task| &**task)).await
    }
}

fn asked(effect: &Effect) -> Option<&ToChild> {
    if let Effect::Child(ask) = effect { Some(ask) } else { None }
}

fn needs_input(effect: &Effect) -> bool {
    matches!(effect, Effect::Request(request) if request.input.is_null())
}

fn add_inputs(
    handled: &Handled,
    effects: &mut [Effect],
    inputs: &mut HashMap<Id, Result<Arc<Value>, Error>>,
) -> Result<(), Error> {
    let Some(task) = handled.task() else { return Ok(()) };
    for effect in effects {
        if let Effect::Request(request) = effect
            && request.input.is_null()
        {
            request.input = match inputs.get(&task.id) {
                Some(Ok(input)) => Value::clone(input),
                Some(Err(Error::Corrupt { what, why })) => {
                    return Err(Error::Corrupt { what: what.clone(), why: why.clone() });
                }
                // The first event of this order reports an outage in the store's words.
                Some(Err(_)) | None => {
                    return inputs.remove(&task.id).unwrap_or_else(|| Err(unread(&task.id))).map(drop);
                }
            };
        }
    }
    Ok(())
}

fn unread(id: &Id) -> Error {
    Error::Unavailable { what: format!("order {id}"), source: "its input could not be read".into() }
}

/// The event that marks an owed message as sent, to be handled after the send.
fn follow_up(effect: &Effect, handled: &Handled) -> Option<Event> {
    match effect {
        Effect::Alert(alert) => Some(Event::AlertSent { version: alert.version }),
        Effect::Notice(notice) => {
            let task = handled.task()?;
            (task.notice_owed && notice.seq >= task.turned_at).then_some(Event::NoticeSent { version: task.turned_at })
        }
        Effect::Request(_)
        | Effect::Wake(..)
        | Effect::Reply(_)
        | Effect::SetAside(_)
        | Effect::Strained(_)
        | Effect::Child(_) => None,
    }
}

/// Whether this notice cannot be re-sent once its task moves on. A step's result is in every later notice.
fn is_turn(effect: &Effect) -> bool {
    matches!(effect, Effect::Notice(notice) if notice.kind != NoticeKind::StepCompleted)
}
