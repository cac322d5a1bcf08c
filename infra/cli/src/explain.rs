//! A workflow in words, and as a diagram.

use shared::retry::{Ladder, Then};
use shared::step::Direction;
use shared::workflow::edge::{After, Edge};
use shared::workflow::{Step, Work, Workflow};
use std::fmt::Write as _;

/// Each step, when it starts and what follows if it fails, and the ways in which an order can end.
pub fn words(workflow: &Workflow) -> String {
    let mut out = format!("workflow {}, {}\n", workflow.name, workflow.hash());
    if let Some(deadline) = workflow.deadline {
        let _ = writeln!(out, "the order fails if it takes longer than {deadline:#}");
    }
    if let Some(days) = workflow.retention {
        let _ = writeln!(out, "the record of an order is removed {days} days after it ended well");
    }
    for (number, &index) in in_order(workflow).iter().enumerate() {
        let step = &workflow.steps[index];
        let _ = writeln!(out, "\n{:>2}  {}: {}", number + 1, step.name, what(step));
        for line in lines(workflow, index) {
            let _ = writeln!(out, "    {line}");
        }
    }
    out + "\nAn order ends as\n" + &ends(workflow)
}

/// Positions of all steps, each behind those it waits for, otherwise as in the file.
fn in_order(workflow: &Workflow) -> Vec<usize> {
    let mut all: Vec<usize> = Vec::new();
    while let Some(next) = (0..workflow.steps.len()).find(|index| {
        !all.contains(index) && workflow.steps[*index].after.iter().all(|after| all.contains(&after.step))
    }) {
        all.push(next);
    }
    all
}

/// What a step is.
fn what(step: &Step) -> String {
    match (step.work(Direction::Do), &step.fail, &step.wait) {
        (Some(work), ..) => call(&work),
        (None, Some(reason), _) => format!("fails the order with \"{}\"", reason.text()),
        (None, None, Some(wait)) => wait.words(),
        (None, None, None) => match &step.child {
            Some(child) => match &child.each {
                Some(each) if let Some(work) = step.call().and_then(|call| call.work(Direction::Do)) => {
                    format!("for each item of a list, {} at once: {}", each.at_once, call(&work))
                }
                Some(each) => format!(
                    "starts an order of {} for each item of a list, {} at once, and waits for their end",
                    child.workflow, each.at_once
                ),
                None => format!("starts an order of {} and waits for its end", child.workflow),
            },
            None => "computes a value".into(),
        },
    }
}

fn call(work: &Work<'_>) -> String {
    match (work.http, work.aws) {
        (Some(http), _) => format!("{} {}", http.method, http.url.text()),
        (None, Some(aws)) => match &aws.function {
            Some(function) => format!("Lambda function {function}"),
            None => aws.action.clone(),
        },
        (None, None) => format!("agent {}", work.agent),
    }
}

fn lines(workflow: &Workflow, index: usize) -> Vec<String> {
    let step = &workflow.steps[index];
    let mut lines: Vec<String> = step.after.iter().map(|after| edge(workflow, *after)).collect();
    if lines.is_empty() {
        lines.push("starts at once".into());
    }
    if let Some(when) = &step.when {
        lines.push(match step.fail {
            Some(_) => format!("only if {}; otherwise the order continues", when.text()),
            None => format!("only if {}; otherwise it is passed over", when.text()),
        });
    }
    let Some(work) = step.work(Direction::Do) else {
        if let (Some(_), Some(catch)) = (&step.child, &step.catch) {
            let what = if step.each().is_some() { "too many of them fail" } else { "that order fails" };
            lines.push(format!("if {what}, the failure is caught if {}", catch.text()));
        }
        if let Some(each) = step.each() {
            let part = f64::from(each.tolerate) / 100.0;
            lines.push(format!("if more than {part}% of them fail, {}", after_failure(step.on_failure)));
            lines.extend(step.call().and_then(|call| call.work(Direction::Do)).map(|work| attempts(&work)));
            let undo = step.call().map(|call| call.work(Direction::Undo));
            lines.push(match undo {
                None => "undo: each of them is undone".into(),
                Some(None) => "there is no undo".into(),
                Some(Some(undo)) => format!("undo of each of them: {}; {}", call(&undo), attempts(&undo)),
            });
        } else if step.child.is_some() {
            lines.push(format!("if that order fails, {}", after_failure(step.on_failure)));
            lines.push("undo: that order is undone".into());
        }
        if step.fail.is_some() {
            lines.push(format!("then {}", after_failure(step.on_failure)));
        }
        return lines;
    };
    if step.pages {
        lines.push("repeated for each page of a list, until an answer names no next page".into());
    }
    lines.push(attempts(&work));
    if let Some(catch) = &step.catch {
        lines.push(format!("a failure is caught, and the order continues, if {}", catch.text()));
    }
    let failed = if step.catch.is_some() { "any other failure" } else { "a failure" };
    lines.push(match (step.irreversible, step.on_failure == step.retry.then) {
        (true, _) => format!("after {failed} the order stops for a person, because the step is irreversible"),
        (false, true) => format!("after {failed} {}", after_failure(step.on_failure)),
        (false, false) => format!(
            "after {failed} {} if the service refused, and {} if all attempts are spent",
            after_failure(step.on_failure),
            after_failure(step.retry.then)
        ),
    });
    lines.push(match step.work(Direction::Undo) {
        None => "there is no undo".into(),
        Some(undo) => format!("undo: {}; {}", call(&undo), attempts(&undo)),
    });
    lines
}

fn after_failure(then: Then) -> &'static str {
    match then {
        Then::Undo => "the order is undone",
        Then::Error => "the order stops for a person",
    }
}

fn attempts(work: &Work<'_>) -> String {
    let Ladder { max, backoff, long, .. } = work.retry;
    let one = if *max == 1 { "1 attempt".into() } else { format!("up to {max} attempts") };
    let mut text = format!("{one} of {:#} each", work.timeout);
    if let Some(every) = work.heartbeat {
        let _ = write!(text, " with a heartbeat every {every:#}");
    }
    if *max > 1 {
        let waits: Vec<String> = backoff.iter().map(|wait| format!("{wait:#}")).collect();
        let _ = write!(text, ", with waits of {}", waits.join(", "));
    }
    if let Some(long) = long {
        let _ = write!(text, ", then {} more, one every {:#}", long.times, long.every);
    }
    text
}

/// What an entry of `after` means.
fn edge(workflow: &Workflow, after: After) -> String {
    let before = &workflow.steps[after.step];
    let name = &before.name;
    match after.edge {
        Edge::IfRan => format!("after {name}, only if it ran"),
        Edge::Always => format!("after {name}, in any case"),
        Edge::Plain if before.fail.is_some() => format!("after {name}, if {name} let the order continue"),
        Edge::Plain if may_be_passed_over(workflow, after.step) => {
            format!("after {name}; if that is passed over, so is this step")
        }
        Edge::Plain => format!("after {name}"),
    }
}

fn may_be_passed_over(workflow: &Workflow, index: usize) -> bool {
    let step = &workflow.steps[index];
    (step.when.is_some() && step.fail.is_none())
        || step.after.iter().any(|after| match after.edge {
            Edge::Always => false,
            Edge::Plain => may_be_passed_over(workflow, after.step),
            Edge::IfRan => workflow.steps[after.step].catch.is_some() || may_be_passed_over(workflow, after.step),
        })
}

fn ends(workflow: &Workflow) -> String {
    let names = |is: &dyn Fn(&Step) -> bool| -> String {
        let all: Vec<&str> = workflow.steps.iter().filter(|step| is(step)).map(|step| step.name.as_str()).collect();
        all.join(", ")
    };
    let leads_to = |step: &Step, then: Then| match step.work(Direction::Do) {
        Some(_) if step.irreversible => then == Then::Error,
        Some(_) => step.on_failure == then || step.retry.then == then,
        None => (step.fail.is_some() || step.child.is_some()) && step.on_failure == then,
    };
    let (undoing, stopping) = (names(&|step| leads_to(step, Then::Undo)), names(&|step| leads_to(step, Then::Error)));
    let has_undo = |step: &Step| step.call().map_or(step.child.is_some(), |call| call.undo.is_some());
    let undone = names(&|step| step.undo.is_some() || has_undo(step));
    let mut out = String::from("  Processed  once every step has run, was passed over, or failed and was caught\n");
    if !undoing.is_empty() || workflow.deadline.is_some() {
        let of = if undoing.is_empty() { "the order to meet its deadline".into() } else { undoing };
        let _ = writeln!(
            out,
            "  Undone     after a failure of {of}, or if somebody cancels it; what is undone: {}",
            match undone.as_str() {
                "" => "nothing",
                names => names,
            }
        );
    }
    let mut reasons = Vec::new();
    if !stopping.is_empty() {
        reasons.push(format!("after a failure of {stopping}"));
    }
    if !undone.is_empty() {
        reasons.push(format!("if the undo of {undone} fails"));
    }
    if !reasons.is_empty() {
        let _ = writeln!(out, "  Error      {}; then a person decides", reasons.join(", or "));
    }
    out
}

/// The graph as a flowchart of Mermaid.
pub fn mermaid(workflow: &Workflow) -> String {
    let mut out = String::from("flowchart TD\n");
    for (index, step) in workflow.steps.iter().enumerate() {
        let mut label = format!("<b>{}</b><br/>{}", escaped(&step.name), escaped(&what(step)));
        if let Some(when) = &step.when {
            let _ = write!(label, "<br/>if {}", escaped(when.text()));
        }
        if let Some(catch) = &step.catch {
            let _ = write!(label, "<br/>catches {}", escaped(catch.text()));
        }
        let (open, close) = match (&step.fail, &step.when) {
            (Some(_), _) => ("{{", "}}"),
            (None, Some(_)) => ("([", "])"),
            (None, None) => ("[", "]"),
        };
        let _ = writeln!(out, "    s{index}{open}\"{label}\"{close}");
    }
    for (index, step) in workflow.steps.iter().enumerate() {
        for after in &step.after {
            let arrow = match after.edge {
                Edge::Plain => "-->",
                Edge::IfRan => "-->|if it ran|",
                Edge::Always => "-.->|in any case|",
            };
            let _ = writeln!(out, "    s{} {arrow} s{index}", after.step);
        }
    }
    out
}

/// A text inside a label: what Mermaid or HTML would read as their own is written by its code.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '"' | '#' | '<' | '>' | '&' | '`' | '\\' => {
                let _ = write!(out, "#{};", u32::from(c));
            }
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::workflow::file::{Known, parse};

    fn example(name: &str) -> Workflow {
        let path = format!("{}/../../examples/branches/workflows/{name}", env!("CARGO_MANIFEST_DIR"));
        let known = Known { agents: &["http", "mail"], inputs: &[] };
        parse(name, &std::fs::read_to_string(path).unwrap(), known).unwrap()
    }

    #[test]
    fn each_edge_condition_and_end_is_told() {
        let text = words(&example("customer.toml"));
        let (_, text) = text.split_once('\n').unwrap();
        let wanted = r#"
 1  create: POST https://crm.example/customers
    starts at once
    up to 3 attempts of 10s each, with waits of 1s, 5s
    a failure is caught, and the order continues, if error.status == 409 && first(error.answer.code, '') == 'Duplicate'
    after any other failure the order is undone
    undo: DELETE https://crm.example/customers/${output.id}; up to 3 attempts of 10s each, with waits of 1s, 5s

 2  look-up: GET https://crm.example/customers
    after create, in any case
    only if errors.create.status == 409; otherwise it is passed over
    up to 3 attempts of 10s each, with waits of 1s, 5s
    after a failure the order is undone
    there is no undo

 3  greet: POST https://mail.example/letters
    after create, in any case
    after look-up, in any case
    up to 3 attempts of 10s each, with waits of 1s, 5s
    after a failure the order is undone
    there is no undo

An order ends as
  Processed  once every step has run, was passed over, or failed and was caught
  Undone     after a failure of create, look-up, greet, or if somebody cancels it; what is undone: create
  Error      if the undo of create fails; then a person decides
"#;
        assert_eq!(text, wanted);
        let text = words(&example("payment.toml"));
        assert!(text.contains("fails the order with \"the payment is ${"), "{text}");
        assert!(text.contains("after refused, if refused let the order continue"), "{text}");
        assert!(text.contains("; otherwise the order continues\n    then the order is undone"), "{text}");
        let text = words(&example("claim.toml"));
        assert!(text.contains("after expert, only if it ran\n"), "{text}");
    }

    #[test]
    fn what_differs_from_the_usual_is_told() {
        let text = r#"
            name = "odd"
            on_failure = "error"
            [[step]]
            name = "last"
            after = ["between"]
            agent = "mail"
            timeout = "5s"
            irreversible = true
            [[step]]
            name = "first"
            after = []
            agent = "mail"
            when = "input.a == 1"
            timeout = "5s"
            retry = { max = 1, then = "undo", long = { every = "1h", times = 24 } }
            [[step]]
            name = "between"
            after = ["first!"]
            value = { a = 1 }
        "#;
        let workflow = parse("odd.toml", text, Known { agents: &["mail"], inputs: &[] }).unwrap();
        let text = words(&workflow);
        for part in [
            " 1  first: agent mail\n",
            " 2  between: computes a value\n",
            " 3  last: agent mail\n    after between; if that is passed over, so is this step\n",
            "    1 attempt of 5s each, then 24 more, one every 1h\n",
            "after a failure the order stops for a person if the service refused, and the order is undone if all attempts are spent",
            "after a failure the order stops for a person, because the step is irreversible",
            "  Undone     after a failure of first, or if somebody cancels it; what is undone: nothing\n",
            "  Error      after a failure of last, first; then a person decides\n",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn a_diagram_has_each_step_and_each_edge() {
        let text = mermaid(&example("claim.toml"));
        let wanted = r#"flowchart TD
    s0["<b>assess</b><br/>POST https://claims.example/assessments"]
    s1(["<b>expert</b><br/>POST https://experts.example/reports<br/>if outputs.assess.cents #62; 500000"])
    s2["<b>letter</b><br/>POST https://mail.example/letters"]
    s3["<b>pay</b><br/>POST https://pay.example/payments"]
    s0 --> s1
    s1 -->|if it ran| s2
    s1 -.->|in any case| s3
    s2 -.->|in any case| s3
"#;
        assert_eq!(text, wanted);
        assert_eq!(escaped("\"a\" <b>\n`#`"), "#34;a#34; #60;b#62; #96;#35;#96;");
    }
}
