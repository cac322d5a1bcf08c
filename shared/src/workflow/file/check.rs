//! Checks that need all steps: the marks of edges, and what expressions read.

use super::{Problem, RawStep, list, span_of};
use crate::expression::{Expression, Mapping, Reference, Template};
use crate::names::of_step;
use crate::schema::Schema;
use crate::step::{Direction, FailureKind};
use crate::workflow::edge::Edge;
use crate::workflow::http::IDEMPOTENCY_KEY;
use crate::workflow::wait::Wait;
use crate::workflow::{Step, Work, before};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::ops::Range;
use toml::Spanned;

/// What all expressions of a step can read, except those that keep an answer.
const ORDER: [&str; 7] = ["input", "config", "order", "now", "outputs", "ran", "errors"];

/// The output of a step with a list, unless its file says otherwise.
const OF_LIST: [&str; 5] = ["total", "done", "failed", "errors", "items"];

/// The first fault in the edges or the expressions of `steps`, which have no cycle.
pub(super) fn check(
    raw: &[Spanned<RawStep>],
    steps: &[Step],
    config: &Map<String, Value>,
    input: Option<&Schema>,
    has_deadline: bool,
    output: Option<(&Mapping, Range<usize>)>,
) -> Result<(), Problem> {
    let has_data = steps.iter().map(|step| step.call().unwrap_or(step)).flat_map(|step| {
        let undo = step.undo.as_ref().and_then(|undo| undo.http.as_ref());
        step.http.iter().chain(undo)
    });
    let mut has_data = has_data.map(|http| !http.query.is_empty() || !http.templates().all(Template::is_constant));
    let is_new = has_data.any(|is| is)
        || !config.is_empty()
        || has_deadline
        || output.is_some()
        || raw.iter().any(|step| uses_expressions(step.get_ref()));
    if is_new {
        one_name_each(raw)?;
    }
    if let Some(step) = raw.iter().skip(1).find(|step| is_new && step.get_ref().after.is_none()) {
        let name = &step.get_ref().name;
        let message = format!(
            "step `{}` does not say when it starts; add `after = [\"STEP\"]`, or `after = []` to start at once",
            name.get_ref()
        );
        return Err((name.span(), message));
    }
    keys(raw, steps)?;
    let mut graph = Graph { steps, input, known: vec![None; steps.len()] };
    for index in 0..steps.len() {
        graph.visit(index, raw)?;
    }
    for (index, raw) in raw.iter().enumerate() {
        graph.read(index, &steps[index], raw.get_ref(), config)?;
        if let Some(call) = steps[index].call() {
            graph.read(index, call, raw.get_ref(), config)?;
        }
    }
    output.map_or(Ok(()), |(output, at)| graph.returned(output, at, config))
}

/// A step's name in expressions has `_` for `-`.
fn one_name_each(raw: &[Spanned<RawStep>]) -> Result<(), Problem> {
    for (n, step) in raw.iter().enumerate() {
        let name = &step.get_ref().name;
        let is_same = |other: &&Spanned<RawStep>| of_step(other.get_ref().name.get_ref()) == of_step(name.get_ref());
        if let Some(other) = raw[..n].iter().find(is_same) {
            let message = format!(
                "steps `{}` and `{}` have the same name in expressions, where `-` is written `_`; rename one of them",
                other.get_ref().name.get_ref(),
                name.get_ref()
            );
            return Err((name.span(), message));
        }
    }
    Ok(())
}

/// No two calls may have the same idempotency key, or the service would repeat an answer.
fn keys(raw: &[Spanned<RawStep>], steps: &[Step]) -> Result<(), Problem> {
    let mut seen = BTreeSet::new();
    for (step, raw) in steps.iter().zip(raw) {
        let is_call = step.call().is_some();
        let step = step.call().unwrap_or(step);
        let undo = step.undo.as_ref().and_then(|undo| undo.http.as_ref());
        for http in step.http.iter().chain(undo) {
            let Some(key) = http.headers.get(IDEMPOTENCY_KEY) else { continue };
            let differs = |one: &Reference| matches!(one.path[0].as_str(), "item" | "index" | "order");
            let is_own = ["{order_id}", "uuid("].iter().any(|own| key.text().contains(own));
            if is_call && !is_own && !key.references().any(differs) {
                let message = format!(
                    "step `{}` sends the same {IDEMPOTENCY_KEY} `{}` for every item, so the service would repeat its \
                     answer to the first; write another one, for example `${{uuid('{}')}}`",
                    step.name,
                    key.text(),
                    step.name
                );
                return Err((raw.get_ref().name.span(), message));
            }
            if step.pages && !key.references().any(|one| one.path[0] == "page") {
                let message = format!(
                    "step `{}` sends the same {IDEMPOTENCY_KEY} `{}` for every page, so the service would repeat its \
                     answer to the first; write `{{step}}-${{page.number}}` into it, or leave the header out",
                    step.name,
                    key.text()
                );
                return Err((raw.get_ref().name.span(), message));
            }
            // The step's own undo.
            if !seen.insert(key.text().replace("{step}", &step.name)) {
                let message = format!(
                    "step `{}` sends the same {IDEMPOTENCY_KEY} `{}` as another call, whose answer the service would \
                     repeat; write another one, for example `${{uuid('{}')}}`",
                    step.name,
                    key.text(),
                    step.name
                );
                return Err((raw.get_ref().name.span(), message));
            }
        }
    }
    Ok(())
}

fn uses_expressions(raw: &RawStep) -> bool {
    let undo = raw.undo.as_ref().map(Spanned::get_ref);
    raw.value.is_some()
        || raw.each.is_some()
        || raw.lambda.is_some()
        || raw.aws.is_some()
        || raw.fail.is_some()
        || raw.workflow.is_some()
        || raw.wait.is_some()
        || raw.until.is_some()
        || raw.event.is_some()
        || raw.poll.is_some()
        || raw.pages.is_some()
        || raw.accept.is_some()
        || raw.when.is_some()
        || raw.with.is_some()
        || raw.output.is_some()
        || raw.catch.is_some()
        || undo.is_some_and(|undo| undo.with.is_some() || undo.lambda.is_some() || undo.aws.is_some())
        || raw.after.iter().flatten().any(|entry| Edge::split(entry.get_ref()).1 != Edge::Plain)
}

/// The key that says what is kept of an answer, and its place.
fn of_answer(raw: &RawStep) -> (&'static str, Option<Range<usize>>) {
    match &raw.pages {
        Some(pages) => ("pages", Some(pages.span())),
        None => ("output", span_of(&raw.output)),
    }
}

/// Checks that a step's calls differ by page, and that the first needs no cursor.
fn asks_for_pages(step: &Step, raw: &RawStep) -> Result<(), Problem> {
    let at = || raw.pages.as_ref().map_or_else(|| raw.name.span(), Spanned::span);
    let all = || step.work(Direction::Do).into_iter().flat_map(|work| work.references().collect::<Vec<_>>());
    let mut of_page = all().filter(|one| one.path[0] == "page");
    if let Some(bad) = of_page.find(|one| {
        let is_known = one.path.get(1).is_none_or(|field| ["number", "cursor"].contains(&field.as_str()));
        !is_known || one.path.get(1).is_some_and(|field| field == "cursor") && !one.copes()
    }) {
        let path = bad.path.join(".");
        let message = format!(
            "step `{}` reads `{path}`; the first page has no cursor, so write `page.?cursor` or `page.number`",
            step.name
        );
        return Err((at(), message));
    }
    if !all().any(|one| one.path[0] == "page") {
        let message = format!(
            "step `{}` asks for the same page again and again; put `${{page.?cursor}}` into its `with`, or into the `query` of its URL",
            step.name
        );
        return Err((at(), message));
    }
    Ok(())
}

/// What is known of a step before any order runs.
#[derive(Clone, Default)]
struct Known {
    /// The steps whose conditions can pass it over.
    conditions: BTreeSet<usize>,
    /// Steps that ran if its turn comes.
    before: BTreeSet<usize>,
    /// Those, and the steps that ran by its own condition if it runs.
    sure: BTreeSet<usize>,
}

struct Graph<'a> {
    steps: &'a [Step],
    /// The check of the input, if the file has its own.
    input: Option<&'a Schema>,
    known: Vec<Option<Known>>,
}

impl Graph<'_> {
    /// Whether the step itself may be settled without running. A `fail` step lets the order go on, or ends it.
    fn is_conditional(&self, index: usize) -> bool {
        let step = &self.steps[index];
        step.fail.is_none() && (step.when.is_some() || step.catch.is_some())
    }

    fn visit(&mut self, index: usize, raw: &[Spanned<RawStep>]) -> Result<Known, Problem> {
        if let Some(known) = &self.known[index] {
            return Ok(known.clone());
        }
        let step = &self.steps[index];
        let at = |before: usize| {
            let entries = raw[index].get_ref().after.iter().flatten();
            let mut named = entries.filter(|entry| Edge::split(entry.get_ref()).0 == self.steps[before].name);
            named.next().map_or_else(|| raw[index].get_ref().name.span(), Spanned::span)
        };
        let mut known = Known::default();
        let mut plain: Option<(usize, BTreeSet<usize>)> = None;
        for after in step.after.clone() {
            let (before, name) = (after.step, &self.steps[after.step].name);
            let is_conditional = self.is_conditional(before);
            if after.edge == Edge::Plain && is_conditional {
                let key = if self.steps[before].when.is_some() { "when" } else { "catch" };
                let message = format!(
                    "step `{}` comes after `{name}`, which has a `{key}`; write \"{name}!\" to go on only if it ran, \
                     or \"{name}?\" to go on in any case",
                    step.name
                );
                return Err((at(before), message));
            }
            let span = at(before);
            let of = self.visit(before, raw)?;
            match after.edge {
                Edge::Always => continue,
                Edge::Plain if !of.conditions.is_empty() => match &plain {
                    Some((other, conditions)) if *conditions != of.conditions => {
                        let message = format!(
                            "step `{}` comes after `{}` and `{name}`, which different conditions can pass over; mark \
                             each with `!` (go on only if it ran) or `?` (in any case)",
                            step.name, self.steps[*other].name
                        );
                        return Err((span, message));
                    }
                    Some(_) => {}
                    None => plain = Some((before, of.conditions.clone())),
                },
                Edge::Plain | Edge::IfRan => {}
            }
            known.conditions.extend(&of.conditions);
            if is_conditional {
                known.conditions.insert(before);
            }
            match self.steps[before].fail {
                // It let the order go on, so its condition was false.
                Some(_) => known.before.extend(&of.before),
                None => {
                    known.before.insert(before);
                    known.before.extend(&of.sure);
                }
            }
        }
        for before in before(self.steps, index) {
            let of = self.visit(before, raw)?;
            if of.conditions.is_empty() && !self.is_conditional(before) && self.steps[before].fail.is_none() {
                known.before.insert(before);
            }
        }
        known.sure.clone_from(&known.before);
        for name in step.when.iter().flat_map(|when| when.implies_ran()) {
            if let Some(ran) = self.position(name).filter(|ran| before(self.steps, index).contains(ran)) {
                known.sure.insert(ran);
                known.sure.extend(self.visit(ran, raw)?.sure);
            }
        }
        if let Some(words) = self.contradiction(index, &known.before) {
            let after = raw[index].get_ref().after.iter().flatten().last();
            return Err((after.map_or_else(|| raw[index].get_ref().name.span(), Spanned::span), words));
        }
        self.known[index] = Some(known.clone());
        Ok(known)
    }

    /// Why step `index` can never run: two necessary conditions exclude each other. `before` are the steps that must
    /// have run if its turn comes. A step that an operator skips counts as run.
    fn contradiction(&self, index: usize, before: &BTreeSet<usize>) -> Option<String> {
        let name = |one: usize| self.steps[one].name.as_str();
        let conditions: Vec<_> = before
            .iter()
            .copied()
            .chain([index])
            .filter_map(|one| Some((one, self.steps[one].when.as_ref()?)))
            .collect();
        let (one, other) = conditions.iter().find_map(|&(one, when)| {
            let not_run = before.iter().find(|&&ran| when.implies_not_run().contains(&of_step(name(ran))));
            let excluded = || conditions.iter().find(|(_, other)| when.excludes(other)).map(|(other, _)| other);
            Some((one, *not_run.or_else(excluded)?))
        })?;
        let step = name(index);
        Some(if one == other {
            format!("step `{step}` never runs: the `when` of `{}` contradicts itself; change it", name(one))
        } else if one == index || other == index {
            let ran = if one == index { other } else { one };
            format!(
                "step `{step}` never runs: its `when` is false whenever `{}` ran; change it, or come after that step with \
                 `?` and not with `!`",
                name(ran)
            )
        } else {
            format!(
                "step `{step}` never runs: `{}` and `{}` never both run; mark the steps in `after` with `?` to go on after \
                 either",
                name(one),
                name(other)
            )
        })
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.steps.iter().position(|step| of_step(&step.name) == name)
    }

    /// Checks what the expressions of step `index` read.
    fn read(&self, index: usize, step: &Step, raw: &RawStep, config: &Map<String, Value>) -> Result<(), Problem> {
        let is_call = self.steps[index].call().is_some_and(|call| std::ptr::eq(call, step));
        let known = self.known[index].clone().unwrap_or_default();
        let check = |what: &str,
                     at: Option<std::ops::Range<usize>>,
                     all: Vec<&Reference>,
                     more: &[&str],
                     ran: &BTreeSet<usize>| {
            let roots: Vec<&str> = match what {
                "output" | "poll" | "pages" | "accept" => more.to_vec(),
                "ask" => vec!["input", "config", "order"],
                // A separate order makes the call of an item.
                _ if is_call => {
                    let more = more.iter().copied().filter(|root| *root != "links");
                    ["item", "index", "input", "config", "order", "outputs"].into_iter().chain(more).collect()
                }
                _ => ORDER
                    .iter()
                    .copied()
                    .chain(more.iter().copied())
                    .filter(|root| !(what == "undo" && matches!(*root, "now" | "ran" | "errors")))
                    .collect(),
            };
            for one in all {
                if let Err(words) = self.check_among(&before(self.steps, index), one, &roots, ran, config) {
                    let at = at.clone().unwrap_or_else(|| raw.name.span());
                    return Err((at, format!("`{what}` of step `{}`: {words}", step.name)));
                }
            }
            Ok(())
        };
        let conditions = [("when", &step.when, &raw.when), ("catch", &step.catch, &raw.catch)];
        for (what, condition, at) in conditions {
            for kind in condition.iter().flat_map(Expression::failure_kinds) {
                let is_known = FailureKind::CAUGHT.iter().any(|known| known.name() == kind);
                if !is_known && !kind.is_empty() {
                    let at = at.as_ref().map_or_else(|| raw.name.span(), Spanned::span);
                    let all = FailureKind::CAUGHT.map(FailureKind::name);
                    let message = format!(
                        "`{what}` of step `{}`: no failure is of the kind `{kind}`; write one of {}",
                        step.name,
                        list(&all)
                    );
                    return Err((at, message));
                }
            }
        }
        if let Some(when) = &step.when {
            check("when", span_of(&raw.when), when.references().iter().collect(), &[], &known.before)?;
        }
        if let Some(catch) = &step.catch {
            check("catch", span_of(&raw.catch), catch.references().iter().collect(), &["error"], &known.sure)?;
        }
        if let Some(fail) = &step.fail {
            check("fail", span_of(&raw.fail), fail.references().collect(), &[], &known.sure)?;
        }
        if let Some(wait) = &step.wait {
            if let Wait::Event(event) = wait {
                let more: &[&str] = if event.people.is_some() { &["event", "by", "events"] } else { &["event"] };
                for (what, condition, at) in [("take", &event.take, &raw.take), ("failed", &event.failed, &raw.failed)]
                {
                    let all = condition.iter().flat_map(|condition| condition.references()).collect();
                    check(what, span_of(at), all, more, &known.sure)?;
                }
            } else {
                let at = span_of(&raw.wait).or(span_of(&raw.until));
                check(wait.key(), at, wait.references(), &[], &known.sure)?;
            }
        }
        let address: &[&str] = match (&step.accept, step.pages) {
            (Some(_), _) => &["callback", "links"],
            (None, true) => &["links", "page"],
            (None, false) => &["links"],
        };
        if step.pages {
            asks_for_pages(step, raw)?;
        }
        self.link(index, raw)?;
        if let Some(ask) = step.link().and_then(|(link, _)| link.ask.as_ref()) {
            let at = raw.link.as_ref().and_then(|link| span_of(&link.get_ref().ask));
            check("ask", at, ask.references().collect(), &[], &known.sure)?;
        }
        if let Some(value) = &step.value {
            check("value", span_of(&raw.value), value.references(), &[], &known.sure)?;
        }
        if let Some(each) = step.each() {
            check("each", span_of(&raw.each), each.list.references(), &[], &known.sure)?;
        }
        if let Some(with) = &step.with {
            let more = if step.each().is_some() { &["item", "index"] } else { address };
            check("with", span_of(&raw.with), with.references(), more, &known.sure)?;
        }
        let at = span_of(&raw.http);
        for text in step.http.iter().flat_map(|http| http.templates()) {
            check("http", at.clone(), text.references().collect(), address, &known.sure)?;
        }
        if let Some(keep) = step.kept() {
            let roots: &[&str] =
                if step.accept.is_some() { &["answer", "event"] } else { &["answer", "status", "header"] };
            let (what, at) = of_answer(raw);
            check(what, at, keep.references(), roots, &known.sure)?;
        }
        if step.accept.is_some() {
            let kept = step.kept().or(step.output.as_ref()).into_iter().flat_map(|kept| kept.references());
            if let Some(bare) = kept.into_iter().find(|one| !one.guarded) {
                let path = bare.path.join(".");
                let message = format!(
                    "`output` of step `{}`: `{path}` may be absent, because the service can finish at once, or report \
                     before it answers; write `first({path}, ...)`",
                    step.name
                );
                return Err((span_of(&raw.output).unwrap_or_else(|| raw.name.span()), message));
            }
            let is_handed = step.work(Direction::Do).is_some_and(|work| work.reads("callback"));
            if (step.http.is_some() || step.aws.is_some()) && step.with.is_some() && !is_handed {
                let message = format!(
                    "step `{}` does not hand out its address; put `${{callback}}` where the service reads it",
                    step.name
                );
                return Err((raw.accept.as_ref().map_or_else(|| raw.name.span(), Spanned::span), message));
            }
        }
        if let Some(when) = step.accept.as_ref().and_then(|accept| accept.when.as_ref()) {
            let at = span_of(&raw.accept);
            let roots = ["answer", "status", "header"];
            check("accept", at, when.references().iter().collect(), &roots, &known.sure)?;
        }
        if let Some(poll) = &step.poll {
            let roots: &[&str] =
                if step.http.is_some() || step.aws.is_some() { &["answer", "status", "header"] } else { &["answer"] };
            for condition in poll.look.conditions() {
                let at = span_of(&raw.poll);
                check("poll", at, condition.references().iter().collect(), roots, &known.sure)?;
            }
        }
        if let Some(output) = &step.output {
            let roots: &[&str] = match (&raw.event, &raw.people, &step.accept) {
                (Some(_), Some(_), _) => &["events"],
                (Some(_), None, _) => &["event"],
                (None, _, Some(_)) => &["answer", "event"],
                (None, _, None) => &["answer"],
            };
            let (what, at) = of_answer(raw);
            check(what, at, output.references(), roots, &known.sure)?;
        }
        if let Some(work) = step.work(Direction::Undo) {
            let at = span_of(&raw.undo);
            check("undo", at, work.references().collect(), &["output"], &known.sure)?;
        }
        if let Some(work) = step.reminder() {
            let at = span_of(&raw.remind);
            check("remind", at, work.references().collect(), address, &known.sure)?;
        }
        Ok(())
    }

    /// Checks what the workflow's `output` reads: all steps come before it, but may have been passed over.
    fn returned(&self, output: &Mapping, at: Range<usize>, config: &Map<String, Value>) -> Result<(), Problem> {
        let ran: BTreeSet<usize> = (0..self.steps.len())
            .filter(|&index| {
                let known = self.known[index].as_ref();
                !self.is_conditional(index) && known.is_some_and(|known| known.conditions.is_empty())
            })
            .collect();
        let all: Vec<usize> = (0..self.steps.len()).collect();
        for one in output.references() {
            let roots = ["input", "config", "order", "outputs", "ran", "errors"];
            self.check_among(&all, one, &roots, &ran, config)
                .map_err(|words| (at.clone(), format!("`output` of the workflow: {words}")))?;
        }
        Ok(())
    }

    /// Checks that the link of step `index` leads only to that step, and that somebody gets it.
    fn link(&self, index: usize, raw: &RawStep) -> Result<(), Problem> {
        let step = &self.steps[index];
        let Some((_, event)) = step.link() else { return Ok(()) };
        let at = || raw.link.as_ref().map_or_else(|| raw.name.span(), Spanned::span);
        let waits = |other: &&Step| other.name != step.name && other.event().is_some_and(|e| e.name == event);
        if let Some(other) = self.steps.iter().find(waits) {
            let message = format!(
                "the link of step `{}` would also reach `{}`, which waits for the same event `{event}`; give one of \
                 them an event with another name",
                step.name, other.name
            );
            return Err((at(), message));
        }
        let name = of_step(&step.name);
        let reads = |work: Work<'_>| work.references().any(|one| one.covers("links", &name));
        let given = |(other, spec): (usize, &Step)| {
            // A later step's turn comes when the question is closed.
            let is_in_time = !before(self.steps, other).contains(&index);
            is_in_time && (spec.work(Direction::Do).is_some_and(reads) || spec.reminder().is_some_and(reads))
        };
        if !self.steps.iter().enumerate().any(given) {
            let message = format!(
                "no step hands out the link of `{}` in time; put `${{links.{name}}}` into the `with` of a step that does not \
                 come after it, or of its `remind`",
                step.name
            );
            return Err((at(), message));
        }
        let event = step.event().expect("a link is of an event");
        let conditions = [&event.take, &event.failed].into_iter().flatten().flat_map(Expression::references);
        let read = conditions.chain(step.output.iter().flat_map(|output| output.references()));
        let mut bare = read.filter(|one| one.path[0] == "event" && !one.guarded);
        let wrong = bare.find_map(|one| match one.path.get(1).map(String::as_str) {
            Some("reason") => Some("`event.reason` is only there if the person gives one; write `first(event.reason, '')`"),
            Some("answer") if event.link.as_ref().is_some_and(|link| link.answers.is_empty()) => {
                Some("`event.answer` does not exist, because the link has no `answers`; add them, or write `first(event.answer, '')`")
            }
            _ => None,
        });
        wrong.map_or(Ok(()), |message| Err((at(), message.to_owned())))
    }

    /// The fields of a step's output, if the file says them.
    fn declared(&self, index: usize) -> Option<Vec<&str>> {
        let step = &self.steps[index];
        if step.each().is_some() && step.output.is_none() {
            return Some(OF_LIST.to_vec());
        }
        step.value.as_ref().or(step.output.as_ref()).or_else(|| step.kept()).and_then(|mapping| mapping.keys())
    }

    fn is_undeclared(&self, index: usize, field: Option<&String>) -> bool {
        field.is_some_and(|field| self.declared(index).is_some_and(|keys| !keys.contains(&field.as_str())))
    }

    /// Checks what comes after the steps `before`.
    fn check_among(
        &self,
        before: &[usize],
        reference: &Reference,
        roots: &[&str],
        ran: &BTreeSet<usize>,
        config: &Map<String, Value>,
    ) -> Result<(), String> {
        let path = reference.path.join(".");
        let root = reference.path[0].as_str();
        if !roots.contains(&root) {
            return Err(format!("`{path}` cannot be read here; what can be read is {}", list(roots)));
        }
        let Some(name) = reference.path.get(1) else { return Ok(()) };
        match root {
            "links" if self.position(name).is_none_or(|step| self.steps[step].link().is_none()) => Err(format!(
                "`{path}`: no step `{name}` has a `link`; add `link = {{}}` to a step that waits for an event"
            )),
            "input" if self.input.is_some_and(|schema| schema.excludes(&reference.path[1..])) => Err(format!(
                "`{path}` is never there, because the schema in `input` excludes it; add it to its `properties`"
            )),
            "config" if !config.contains_key(name) => {
                let names: Vec<&str> = config.keys().map(String::as_str).collect();
                let known =
                    if names.is_empty() { String::new() } else { format!("write one of {}, or ", list(&names)) };
                Err(format!("`{path}` is not in the workflow's `config`; {known}add `{name}` there"))
            }
            "outputs" | "ran" | "errors" => {
                let Some(step) = self.position(name).filter(|step| before.contains(step)) else {
                    let names: Vec<String> = before.iter().map(|&i| of_step(&self.steps[i].name)).collect();
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    return Err(match names.as_slice() {
                        [] => format!("`{path}`: no step comes before this one; add the step to `after`"),
                        names => format!(
                            "`{path}`: no step `{name}` comes before this one; write one of {}, or add it to `after`",
                            list(names)
                        ),
                    });
                };
                let of = &self.steps[step];
                match root {
                    "errors" if of.catch.is_none() => {
                        Err(format!("step `{}` has no `catch`, so `{path}` is always empty; add one there", of.name))
                    }
                    "outputs" if of.fail.is_some() => {
                        Err(format!("a `fail` step has no output, so `{path}` does not exist"))
                    }
                    "outputs" if of.wait.as_ref().is_some_and(|wait| wait.event().is_none()) => {
                        Err(format!("a step that waits has no output, so `{path}` does not exist"))
                    }
                    "outputs" if self.is_undeclared(step, reference.path.get(2)) => Err(format!(
                        "the output of step `{}` has no such field as `{path}`; write one of {}",
                        of.name,
                        list(&self.declared(step).unwrap_or_default())
                    )),
                    "outputs" if !reference.guarded && !ran.contains(&step) => Err(format!(
                        "`{path}` is read where `{}` may not have run; write `first({path}, ...)`, or \
                         `ran.{name} && ...`, or \"{}!\" in `after`",
                        of.name, of.name
                    )),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}
