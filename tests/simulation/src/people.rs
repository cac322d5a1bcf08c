//! The people and programs around the system: clients that submit, people who interfere with orders and repair those
//! that stopped, and readers of notices and alerts.

use crate::dice::{Class, Draw};
use crate::history::Rule;
use crate::plan::{OrderPlan, Plan};
use crate::port::{BUS, alert_in, post};
use crate::queues::wait_ms;
use crate::script::Sending;
use crate::store::call;
use crate::world::{Busy, CALLBACK, Knock, REPLY_QUEUE, World, id_of, key_of, lock};
use serde_json::{Value, json};
use shared::again::Wish;
use shared::control::Pause;
use shared::decision::{Act, What};
use shared::expression::{Mapping, Reference};
use shared::message::{Cancel, Notice, Request, SetAside, ToScheduler};
use shared::operator::Outcome;
use shared::order::Id;
use shared::ports::StateStore;
use shared::queues;
use shared::registry::{self, Change};
use shared::step::{Direction, State, Step};
use shared::task::{Phase, Priority, ProcessState, Task};
use shared::workflow::Step as Spec;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use submit::problem::Problem;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

/// How long a client waits for an answer: the API's own limit.
const CLIENT_PATIENCE: Duration = Duration::from_secs(30);
/// Prefix of an unreadable message.
const POISON: &str = "poison";
/// How often a person repairs one stopped order.
pub(crate) const MENDED: usize = 3;

/// A client: submits until it gets an answer, always under the same key.
pub(crate) async fn submit_order(world: Arc<World>, order: OrderPlan) {
    let _busy = Busy::new(&world);
    sleep(order.at).await;
    let label = format!("o{}", order.number);
    let mut body = json!({
        "workflow": world.plan.workflow.name,
        "input": input(&world.plan, order.number),
        "reference": label,
        "priority": order.priority,
    });
    if order.has_queue {
        body["reply_queue"] = json!(REPLY_QUEUE);
    }
    if order.by_message {
        body["idempotency_key"] = json!(key_of(&order));
        let mut delays = vec![Duration::from_millis(1)];
        if let Some(mut draw) = world.fires(Class::Duplicate, &format!("submission {label}")) {
            delays.push(Duration::from_millis(draw.between(1, 20_000)));
        }
        world.queues.send(queues::SUBMISSIONS, &body.to_string(), &format!("submission {label}"), &delays);
        return;
    }
    for attempt in 0.. {
        let knock = |answer| Knock::Submit(key_of(&order), body.clone(), answer);
        match ask_submit(&world, &label, attempt, CLIENT_PATIENCE, knock).await {
            Some(Ok(id)) => {
                world.trace(format_args!("client of {label}: accepted"));
                if world.history().last(&id).is_none() {
                    world.wrong(Rule::Accepted, Some(id), "it was accepted but is not stored".into());
                }
                return;
            }
            Some(Err(problem)) if problem.status == 429 || problem.status >= 500 => {
                world.trace(format_args!("client of {label}: {} {}", problem.status, problem.code));
                let wait = problem.retry_after_s.map_or(1, u64::from);
                sleep(Duration::from_secs(wait.min(60))).await;
            }
            Some(Err(problem)) if problem.code == "unknown_workflow" && world.was_retired() => {
                world.trace(format_args!("client of {label}: the workflow is retired"));
                sleep(Duration::from_secs(1)).await;
            }
            Some(Err(problem)) => {
                world.wrong(
                    Rule::Accepted,
                    Some(id_of(&order)),
                    format!("refused: {} {}", problem.code, problem.detail),
                );
                return;
            }
            None => {
                world.trace(format_args!("client of {label}: no answer"));
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// What one of submit's two processes, which take turns, answers to a client. `None`: nothing, in its time.
pub(crate) async fn ask_submit<T>(
    world: &World,
    label: &str,
    attempt: u64,
    patience: Duration,
    knock: impl FnOnce(oneshot::Sender<T>) -> Knock,
) -> Option<T> {
    let (answer, answered) = oneshot::channel();
    let (out, back) = world.ways("client", label);
    wait_ms(out).await;
    world.knock(&format!("submit-{}", attempt % 2), knock(answer));
    let answer = timeout(patience, answered).await;
    wait_ms(back).await;
    answer.ok()?.ok()
}

/// An input that every built-in check accepts.
pub(crate) fn input(plan: &Plan, number: usize) -> Value {
    if let Some(script) = &plan.script {
        return script.input.clone();
    }
    if plan.workflow.steps.iter().any(|step| step.each().is_some()) {
        let mut input = json!({ "total_cents": 100 * number });
        // Short lists and long ones, and an empty one.
        let count = [3, 12, 0, 50, 1][number % 5];
        for step in &plan.workflow.steps {
            let with: Vec<&Reference> = step.with.iter().flat_map(Mapping::references).collect();
            let item = |n: usize| with.iter().fold(json!({}), |item, one| put(item, &one.path, "item", json!(n)));
            let list: Value = (0..count).map(item).collect();
            let lists = step.each().into_iter().flat_map(|each| each.list.references());
            input = lists.fold(input, |input, one| put(input, &one.path, "input", list.clone()));
        }
        return input;
    }
    if plan.workflow.input.as_deref() != Some("order") {
        return json!({ "total_cents": 100 * number });
    }
    json!({
        "order_ref": format!("S-{number}"),
        "placed_at": "2026-01-01T00:00:00Z",
        "customer": { "id": "C1", "company": null, "contact": null, "phone": null },
        "ship_to": {
            "name": "A. Reader", "address": "1 Main Street", "city": "Reims", "region": null, "postal_code": null,
            "country": "France"
        },
        "currency": "EUR",
        "lines": [{
            "sku": "A-1", "product": "Cheese", "quantity": 2, "unit_price_cents": 500, "discount_percent": 0,
            "amount_cents": 1000
        }],
        "freight_cents": 0,
        "total_cents": 1000
    })
}

/// `whole` with `value` where `path` leads, if it begins with `root`.
fn put(mut whole: Value, path: &[String], root: &str, value: Value) -> Value {
    if let [first, rest @ ..] = path
        && first == root
        && !rest.is_empty()
    {
        let pointer = rest.iter().fold(&mut whole, |inner, name| {
            if !inner.is_object() {
                *inner = json!({});
            }
            &mut inner[name.as_str()]
        });
        *pointer = value;
    }
    whole
}

/// Asks the operator function until it answers.
pub(crate) async fn operate<T>(world: &World, knock: impl Fn(oneshot::Sender<T>) -> Knock) -> T {
    loop {
        let (answer, answered) = oneshot::channel();
        world.knock("operator-0", knock(answer));
        match timeout(CLIENT_PATIENCE, answered).await {
            Ok(Ok(answer)) => return answer,
            _ => sleep(Duration::from_secs(1)).await,
        }
    }
}

fn act(what: &What, seen: Option<u64>) -> Act {
    Act { what: what.clone(), by: "somebody".into(), reason: "a test".into(), seen }
}

/// The names of all actions, for counting.
pub const ACTS: [&str; 14] = [
    "resubmit",
    "resubmit with another input",
    "skip",
    "mark done",
    "retry now",
    "cancel",
    "undo",
    "pause",
    "resume",
    "pause an agent",
    "in bulk",
    "change a workflow",
    "migrate",
    "run again",
];

fn name(what: &What) -> &'static str {
    match what {
        What::Resubmit { input: None, .. } => "resubmit",
        What::Resubmit { .. } | What::ResubmitItems { .. } => "resubmit with another input",
        What::Skip { .. } => "skip",
        What::MarkDone { .. } => "mark done",
        What::RetryNow { .. } => "retry now",
        What::Cancel => "cancel",
        What::Undo => "undo",
        What::Pause => "pause",
        What::Resume => "resume",
        What::Migrate { .. } => "migrate",
        What::RunAgain(_) => "run again",
    }
}

/// Asks for an action until its outcome is known.
async fn ask(world: &World, id: &Id, what: What, seen: Option<u64>) -> Outcome {
    let label = world.label(id).to_owned();
    loop {
        let mut all = operate(world, |answer| Knock::Act(vec![(id.clone(), act(&what, seen))], answer)).await;
        let outcome = all.pop().expect("one outcome for one action");
        world.trace(format_args!("somebody asks for {what:?} of {label}: {outcome:?}"));
        if let Ok(Outcome::Applied(_)) = outcome {
            world.count_act(name(&what));
        }
        match outcome {
            Ok(outcome) if outcome != Outcome::NotFound => return outcome,
            _ => sleep(Duration::from_secs(1)).await,
        }
    }
}

/// What people do to one order.
pub(crate) async fn meddle(world: Arc<World>, order: OrderPlan) {
    let _busy = Busy::new(&world);
    let (id, label) = (id_of(&order), format!("o{}", order.number));
    let most = world.plan.faults_end_ms();
    let mut acts = Vec::new();
    for class in [Class::Cancel, Class::UndoAsked, Class::RetryNow, Class::PauseOrder, Class::Migrate, Class::RunAgain]
    {
        if let Some(mut draw) = world.fires(class, &label) {
            acts.push((draw.between(0, most), class, draw));
        }
    }
    acts.sort_by_key(|(at, class, _)| (*at, *class));
    for (at, class, mut draw) in acts {
        wait_ms(at.saturating_sub(world.now_ms())).await;
        match class {
            Class::Cancel if draw.chance(0.5) => {
                let cancel = Cancel { task_id: id.clone(), by: "somebody".into(), reason: "a test".into() };
                let body = serde_json::to_string(&ToScheduler::Cancel(cancel)).expect("plain text");
                // A cancellation of an order that is not stored yet would be set aside.
                if world.history().last(&id).is_some() {
                    post(&world, queues::SCHEDULER, &format!("cancel {label}"), &body, Duration::ZERO);
                }
            }
            Class::Cancel => {
                ask(&world, &id, What::Cancel, None).await;
            }
            Class::UndoAsked => {
                ask(&world, &id, What::Undo, None).await;
            }
            Class::RetryNow => {
                // A person sees a wait and ends it.
                for _ in 0..draw.between(1, 100) {
                    if world.history().last(&id).is_some_and(|task| waits(task)) {
                        break;
                    }
                    wait_ms(200).await;
                }
                ask(&world, &id, What::RetryNow { step: None }, None).await;
            }
            Class::Migrate => migrate(&world, &id, &mut draw).await,
            Class::RunAgain => run_again(&world, &id, &mut draw).await,
            _ => {
                let ms = draw.between(100, 15_000);
                if matches!(ask(&world, &id, What::Pause, None).await, Outcome::Applied(_) | Outcome::Repeated(_)) {
                    wait_ms(ms).await;
                    ask(&world, &id, What::Resume, None).await;
                }
            }
        }
    }
}

/// Moves an order to another definition, as an operator does whose file is corrected. It may be replaced before it is done, or
/// withdrawn.
async fn migrate(world: &World, id: &Id, draw: &mut Draw) {
    let own = world.own_definitions();
    for (_, definition) in &own {
        while call!(&world.store, put_workflow(definition)).is_err() {
            sleep(Duration::from_secs(1)).await;
        }
    }
    for _ in 0..draw.between(1, 2) {
        let (to, resubmits) = (draw.pick(&own).0.clone(), draw.chance(0.3));
        ask(world, id, What::Migrate { to, resubmits }, None).await;
        wait_ms(draw.between(0, 2000)).await;
    }
}

/// Runs an order again from one of its steps, and from those without which it would be refused.
async fn run_again(world: &World, id: &Id, draw: &mut Draw) {
    let Some(task) = world.history().last(id).cloned() else { return };
    let has_begun = |step: &Step| step.is_tried() || !matches!(step.state, State::Pending { .. });
    let names =
        |all: Vec<usize>| all.into_iter().map(|n| world.plan.workflow.steps[n].name.clone()).collect::<Vec<_>>();
    // It may have been migrated to a definition with other steps.
    if task.steps.len() != world.plan.workflow.steps.len() {
        return;
    }
    let begun: Vec<usize> = (0..task.steps.len()).filter(|&n| has_begun(&task.steps[n])).collect();
    if begun.is_empty() {
        return;
    }
    let is_needed = |n: &usize| !task.steps[*n].is_settled();
    let mut from: Vec<usize> = begun.iter().copied().filter(is_needed).collect();
    from.push(*draw.pick(&begun));
    let wish = Wish { from: names(from), new_keys: false, without_undo: true };
    ask(world, id, What::RunAgain(wish), None).await;
}

/// Sends the events of one order: those of the script, or else each when its step waits for it, or at any time.
pub(crate) async fn send_events(world: Arc<World>, order: OrderPlan) {
    let (id, label) = (id_of(&order), format!("o{}", order.number));
    // A wait of months needs no look every second.
    let look = Duration::from_millis(100).max(world.plan.sweep_every / 20);
    if let Some(script) = &world.plan.script {
        for (number, event) in script.events.iter().enumerate() {
            match event.at {
                Some(at) => {
                    let begun = order.at + at;
                    wait_ms(u64::try_from(begun.as_millis()).unwrap_or(u64::MAX / 2).saturating_sub(world.now_ms()))
                        .await;
                }
                None if !is_waited_for(&world, &id, &event.name, look).await => return,
                None => {}
            }
            let answer = send_event(&world, &id, event).await.map_or_else(|problem| problem.code, |()| "accepted");
            lock(&world.answered).insert(number, answer.to_owned());
        }
        return;
    }
    let steps = world.plan.workflow.steps.iter();
    let awaited = steps.filter_map(|step| step.wait.as_ref()?.event());
    // One person more than a step needs: one of them comes too late.
    let names = awaited.flat_map(|event| std::iter::repeat_n(event, event.people.map_or(1, |n| usize::from(n) + 1)));
    let names: Vec<_> = names.map(|event| (event.name.clone(), event.people.is_some())).collect();
    let sends = names.into_iter().enumerate().map(|(number, (name, of_a_person))| {
        let (world, id, label) = (&world, &id, &label);
        let (key, data) = (format!("event-{number}"), json!({ "number": number }));
        let by = of_a_person.then(|| format!("p{number}"));
        let event = Sending { at: None, name, key, data, by };
        async move {
            let place = format!("{label} {}", event.key);
            match world.fires(Class::EventAtAnyTime, &place) {
                None if is_waited_for(world, id, &event.name, look).await => {}
                None => return,
                Some(mut draw) => match draw.chance(0.8) {
                    true => wait_ms(draw.between(0, world.plan.faults_end_ms())).await,
                    false => return,
                },
            }
            // It is sent again later if its step does not take it yet.
            for _ in 0..20 {
                match send_event(world, id, &event).await {
                    Err(problem) if problem.code == "event_early" => sleep(Duration::from_secs(5)).await,
                    Err(_) => return,
                    Ok(()) if world.fires(Class::Duplicate, &place).is_some() => {
                        // A person does not count twice under another key either.
                        if event.by.is_some() {
                            let again = Sending { key: format!("{}-again", event.key), ..event.clone() };
                            let _ = send_event(world, id, &again).await;
                        }
                    }
                    Ok(()) => return,
                }
            }
        }
    });
    futures::future::join_all(sends).await;
}

/// Waits until a step waits for this event; false if the order ends before.
pub(crate) async fn is_waited_for(world: &World, id: &Id, name: &str, look: Duration) -> bool {
    loop {
        let task = world.history().last(id).cloned();
        if let Some(task) = task {
            let workflow = world.definition(&task);
            let steps = task.steps.iter().zip(&workflow.steps);
            let mut waits = steps.filter(|(step, _)| matches!(step.state, State::Waiting { event: true, .. }));
            let is_its = |spec: &Spec| match name.strip_prefix(CALLBACK) {
                Some(step) => spec.name == step,
                None => spec.wait.as_ref().and_then(|w| w.event()).is_some_and(|e| e.name == name),
            };
            if waits.any(|(_, spec)| is_its(spec)) {
                return true;
            }
            if task.process_state().is_final() && task.process_state() != ProcessState::Error {
                return false;
            }
        }
        sleep(look).await;
    }
}

/// Sends an event until it is answered, always under the same key.
pub(crate) async fn send_event(world: &World, id: &Id, event: &Sending) -> Result<(), Problem> {
    let _busy = Busy::new(world);
    let label = format!("event {} {} of {}", event.name, event.key, world.label(id));
    // A person's event is known by the person.
    let by = event.by.as_ref().filter(|_| world.plan.workflow.counts_people(&event.name));
    let is_known = |task: &Arc<Task>| task.events.iter().any(|one| one.key == event.key && one.by.as_ref() == by);
    let is_stored =
        |task: &Arc<Task>| is_known(task) || by.is_some() && task.events.iter().any(|one| one.by.as_ref() == by);
    for attempt in 0.. {
        let knock = |answer| Knock::Event(id.clone(), event.clone(), answer);
        match ask_submit(world, &label, attempt, CLIENT_PATIENCE, knock).await {
            Some(Ok(())) => {
                world.trace(format_args!("{label}: accepted"));
                if !world.history().last(id).is_some_and(is_stored) {
                    world.wrong(Rule::Accepted, Some(id.clone()), format!("{label} was accepted but is not stored"));
                }
                return Ok(());
            }
            Some(Err(problem)) if problem.status < 500 && problem.code != "no_such_order" => {
                world.trace(format_args!("{label}: {}", problem.code));
                if attempt > 0 && world.history().last(id).is_some_and(is_known) {
                    world.wrong(Rule::Accepted, Some(id.clone()), format!("{label} is stored, and {}", problem.code));
                }
                return Err(problem);
            }
            Some(Err(_)) | None => {
                world.trace(format_args!("{label}: no answer"));
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
    unreachable!("it is sent until it is answered")
}

/// Whether a step of the task waits for its next attempt.
fn waits(task: &Task) -> bool {
    let is_wait = |state: &State| match state {
        State::Pending { not_before } | State::UndoPending { not_before } => not_before.is_some(),
        _ => false,
    };
    task.steps.iter().any(|step| is_wait(&step.state))
}

/// Repairs one order whenever it is in Error, a few times.
pub(crate) async fn mend(world: Arc<World>, order: OrderPlan, left: Arc<AtomicUsize>) {
    let (id, label) = (id_of(&order), format!("o{}", order.number));
    let ways = [Class::Resubmit, Class::ResubmitEdited, Class::Skip, Class::MarkDone];
    let ways: Vec<(Class, Draw)> =
        ways.into_iter().filter_map(|class| world.fires(class, &label).map(|draw| (class, draw))).collect();
    let Some((_, mut draw)) = ways.first().copied() else {
        left.store(0, Ordering::Relaxed);
        return;
    };
    // Orders that take weeks need no look every second.
    let seldom = u64::try_from(world.plan.sweep_every.as_millis()).unwrap_or_default() / 100;
    while left.load(Ordering::Relaxed) > 0 {
        wait_ms(draw.between(200, 3000).max(seldom)).await;
        let task = world.history().last(&id).cloned();
        let Some(task) = task.filter(|task| task.process_state() == ProcessState::Error) else { continue };
        let _busy = Busy::new(&world);
        let (way, _) = *draw.pick(&ways);
        if let Some(what) = way_out(&world, &task, way, left.load(Ordering::Relaxed)) {
            // Work by hand applies only to the order as the person saw it; to continue is right in any state.
            let is_by_hand = matches!(way, Class::Skip | Class::MarkDone);
            let seen = (is_by_hand || draw.chance(0.5)).then_some(task.version);
            ask(&world, &id, what, seen).await;
        }
        left.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The undo of a child goes on when a person says so. Once there are no faults any more, what still fails for lack of data
/// or has something irreversible is skipped. What else a child stopped for, its parent's resubmission brings.
pub(crate) async fn mend_children(world: Arc<World>) {
    if world.plan.children.is_empty() {
        return;
    }
    let mut asked: BTreeMap<Id, usize> = BTreeMap::new();
    loop {
        wait_ms(5000).await;
        let stopped: Vec<(Id, String, bool)> = {
            let history = world.history();
            let all = history.orders().filter(|task| task.parent.is_some() && task.phase == Phase::UndoError);
            let failed = |task: &Arc<Task>| {
                let spec = &world.definition(task).steps[task.failed().next()?];
                let may_lack_data = spec.work(Direction::Undo).is_some_and(|undo| !undo.is_constant());
                Some((task.id.clone(), spec.name.clone(), may_lack_data || spec.child.is_some()))
            };
            all.filter_map(failed).collect()
        };
        for (id, step, may_be_hopeless) in stopped {
            let _busy = Busy::new(&world);
            let times = asked.entry(id.clone()).or_insert(0);
            *times += usize::from(may_be_hopeless && world.now_ms() > world.plan.faults_end_ms());
            let is_hopeless = *times > MENDED;
            let what =
                if is_hopeless { What::Skip { step: Some(step) } } else { What::Resubmit { step: None, input: None } };
            ask(&world, &id, what, None).await;
        }
    }
}

/// What a person does about an order in Error: about its first failed step, or about all of them.
fn way_out(world: &World, task: &Task, way: Class, number: usize) -> Option<What> {
    let failed = task.failed().next()?;
    let name = &world.plan.workflow.steps[failed].name;
    let step = Some(name.clone());
    let is_undo = task.steps[failed].state == State::UndoFailed;
    match way {
        Class::ResubmitEdited => Some(What::Resubmit { step, input: Some(json!({ "edited": number })) }),
        Class::Skip => Some(What::Skip { step }),
        // No service did anything for the step: it is an order, waits or only computes.
        Class::MarkDone if world.plan.workflow.steps[failed].agent.is_empty() => {
            Some(What::MarkDone { step, output: json!({ "box": "b" }) })
        }
        Class::MarkDone => {
            let direction = if is_undo { Direction::Undo } else { Direction::Do };
            let key = task.steps[failed].rounds.as_ref().map_or(0, |rounds| rounds.key);
            let mut output = world.by_hand(&task.id, name, direction, key)?;
            // People record no long outputs.
            output.as_object_mut().map(|output| output.remove("rows"));
            Some(What::MarkDone { step, output })
        }
        _ => Some(What::Resubmit { step: None, input: None }),
    }
}

/// Acts on all orders at once, each at the version that the person saw.
pub(crate) async fn act_in_bulk(world: Arc<World>, ids: Vec<Id>) {
    let _busy = Busy::new(&world);
    let Some(mut draw) = world.fires(Class::Bulk, "all") else { return };
    wait_ms(draw.between(0, world.plan.faults_end_ms())).await;
    let what = draw
        .pick(&[
            What::Cancel,
            What::Undo,
            What::RetryNow { step: None },
            What::Resubmit { step: None, input: None },
            What::Skip { step: None },
            What::Pause,
        ])
        .clone();
    let seen: Vec<_> = {
        let history = world.history();
        ids.iter().filter_map(|id| history.last(id).cloned()).collect()
    };
    let acts = || seen.iter().map(|task| (task.id.clone(), act(&what, Some(task.version)))).collect();
    let outcomes = operate(&world, |answer| Knock::Act(acts(), answer)).await;
    world.trace(format_args!("somebody asks for {what:?} of all: {outcomes:?}"));
    if outcomes.iter().any(|outcome| matches!(outcome, Ok(Outcome::Applied(_)))) {
        world.count_act("in bulk");
    }
    if outcomes.len() != seen.len() {
        world.wrong(Rule::Accepted, None, format!("{} answers to {} actions", outcomes.len(), seen.len()));
    }
    if what == What::Pause {
        wait_ms(draw.between(100, 15_000)).await;
        for task in &seen {
            ask(&world, &task.id, What::Resume, None).await;
        }
    }
}

/// Changes what the workflow's name stands for, as operators do: what is put is activated, rolled back, and perhaps retired for a while.
/// Two people decide at the same time, each by what they saw.
pub(crate) async fn change_workflow(world: Arc<World>) {
    let _busy = Busy::new(&world);
    let Some(mut draw) = world.fires(Class::WorkflowChange, "all") else { return };
    // Of the workflow itself: those of its children stand behind other names.
    let own = world.own_definitions();
    for (_, definition) in &own[1..] {
        // Putting a definition again changes nothing.
        while call!(&world.store, put_workflow(definition)).is_err() {
            sleep(Duration::from_secs(1)).await;
        }
    }
    // An order by message is set aside if its workflow is retired, which is right and would end its story.
    let may_retire = world.plan.orders.iter().all(|order| !order.by_message);
    for _ in 0..draw.between(1, 4) {
        wait_ms(draw.between(0, world.plan.faults_end_ms() / 2)).await;
        let mut wish = || match draw.between(0, 5) {
            0 => Change::Rollback,
            1 if may_retire => Change::Retire,
            _ => Change::Activate(draw.pick(&own).0.clone()),
        };
        let (one, other) = (wish(), wish());
        let (soon, later) = (draw.between(0, 20), draw.between(0, 20));
        futures::future::join(change(&world, one, soon), change(&world, other, later)).await;
        if world.is_retired() {
            wait_ms(draw.between(100, 20_000)).await;
            change(&world, Change::Activate(own[1].0.clone()), 1).await;
        }
        world.count_act("change a workflow");
    }
}

/// One change, decided by what is read now and done a moment later; if somebody else was faster, decided anew.
async fn change(world: &World, change: Change, after_ms: u64) {
    let (name, deployed) = (&world.plan.workflow.name, world.plan.workflow.hash());
    loop {
        let Ok(seen) = world.store.pointers() else { continue };
        wait_ms(after_ms).await;
        let by = ("somebody".to_owned(), world.time());
        let Ok(mut next) = registry::change(&seen, name, Some(&deployed), &change, by) else { return };
        let before = seen.get(name).and_then(Option::as_ref);
        next.version = before.map_or(0, |pointer| pointer.version) + 1;
        match world.store.set_pointer(name, &next, before) {
            Ok(true) => {}
            Ok(false) | Err(_) => continue,
        }
        world.trace(format_args!("{name}: change {} by somebody: {change:?}", next.version));
        world.activated(&next);
        return;
    }
}

pub(crate) async fn pause_agent(world: Arc<World>, agent: String) {
    let _busy = Busy::new(&world);
    let Some(mut draw) = world.fires(Class::PauseAgent, &agent) else { return };
    wait_ms(draw.between(0, world.plan.faults_end_ms())).await;
    let pause = Pause { by: "somebody".into(), reason: "a test".into(), since: world.time() };
    for pause in [Some(pause), None] {
        let knock = |answer| Knock::SetAgent(agent.clone(), pause.clone(), answer);
        while operate(&world, knock).await.is_err() {
            sleep(Duration::from_secs(1)).await;
        }
        if pause.is_some() {
            world.count_act("pause an agent");
            wait_ms(draw.between(100, 20_000)).await;
        }
    }
}

/// A submitter, or a person who must act: reads a queue and records what it says.
pub(crate) async fn read(world: Arc<World>, queue: String) {
    loop {
        for message in world.queues.receive(&queue).await {
            world.trace(format_args!("{queue}: {}", message.label));
            if queue == BUS {
                if let Some(alert) = alert_in(&message.body) {
                    world.history().alert(&alert);
                }
            } else if let Ok(aside) = serde_json::from_str::<SetAside>(&message.body) {
                world.set_aside(&aside.body, &aside.reason);
            } else {
                let notice: Notice = serde_json::from_str(&message.body).expect("nothing else is sent there");
                world.history().notice(&notice);
            }
            if world.fires(Class::DeleteLost, &message.label).is_none() {
                world.queues.delete(&queue, &message);
            }
        }
    }
}

pub(crate) async fn poison(world: Arc<World>) {
    let mut all = vec![queues::SUBMISSIONS.to_owned(), queues::SCHEDULER.to_owned(), queues::REPLIES.to_owned()];
    all.extend(world.plan.workflow.agents().iter().map(|agent| queues::of_requests(agent, Priority::Normal, false)));
    for queue in all {
        if let Some(mut draw) = world.fires(Class::Poison, &queue) {
            let delay = Duration::from_millis(draw.between(0, 10_000));
            // Several at once are set aside together, with one request for their alerts.
            for n in 1..=draw.between(1, 4) {
                let body = format!("{POISON} {n} for {queue}");
                lock(&world.poison).insert(body.clone());
                world.queues.send(&queue, &body, &body, &[delay]);
            }
        }
    }
}

/// A service ends the work that it accepted, and reports so until it gets an answer.
pub(crate) async fn call_back(world: Arc<World>, request: Request, after: Duration) {
    sleep(after).await;
    let Ok(data) = world.serve(&request, false) else { return };
    let name = format!("{CALLBACK}{}", request.step);
    let report = Sending { at: None, name, key: format!("end-{}", request.step), data, by: None };
    let _ = send_event(&world, &request.task_id, &report).await;
}
