//! Generates workflow files at random. They contain steps of all kinds, and combinations of keys that nobody chose.

use std::fmt::Write as _;
use stepwarden_simulation::parts::Draw;

/// Most steps of a file.
const STEPS: u64 = 6;
const AGENTS: [&str; 4] = ["inventory", "payment", "shipping", "fraud"];
const RETRY: [&str; 4] = [
    r#"{ max = 1, backoff = [] }"#,
    r#"{ max = 2, backoff = ["500ms"] }"#,
    r#"{ max = 3, backoff = ["500ms", "2s"], then = "error" }"#,
    r#"{ max = 2, backoff = ["1s"], long = { every = "8s", times = 1 }, then = "undo" }"#,
];
const DEFAULT: &str = r#"default = { timeout = "4s", retry = { max = 3, backoff = ["500ms", "2s"] }, calls = { attempts = 2, base = "50ms", cap = "500ms" } }"#;

/// A file, as it is written.
struct File {
    draw: Draw,
    text: String,
    steps: Vec<Step>,
}

/// What later steps have to know of a step.
struct Step {
    name: String,
    /// It has a `when` or a `catch`, so the order may go on without it.
    is_optional: bool,
    /// Its output has a `reference`.
    has_reference: bool,
}

/// The file with this number. It may break a rule that joins several of its lines; then it is refused.
pub fn workflow(number: u64) -> String {
    let mut file = File { draw: Draw::of(number, "workflow"), text: String::new(), steps: Vec::new() };
    file.line(&format!("name = \"made-{number}\""));
    file.maybe(0.35, "on_failure = \"error\"");
    let deadline = file.draw.between(5, 40);
    file.maybe(0.2, &format!("deadline = \"{deadline}s\""));
    file.maybe(0.15, "late = { extend = \"3s\", times = 2 }");
    file.maybe(0.15, "strict_notices = true");
    file.maybe(0.3, "tombstones = true");
    file.line(DEFAULT);
    for _ in 0..file.draw.between(2, STEPS) {
        file.step();
    }
    file.text
}

impl File {
    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{line}");
    }

    fn maybe(&mut self, chance: f64, line: &str) -> bool {
        let is_written = self.draw.chance(chance);
        if is_written {
            self.line(line);
        }
        is_written
    }

    fn one_of(&mut self, lines: &[&str]) {
        let line = *self.draw.pick(lines);
        self.line(line);
    }

    fn step(&mut self) {
        let name = format!("s{}", self.steps.len());
        self.line(&format!("\n[[step]]\nname = \"{name}\""));
        let (after, optional) = self.after();
        let kind = self.draw.between(0, 99);
        let is_fail = (60..70).contains(&kind);
        let has_when = self.when(if is_fail { 0.8 } else { 0.2 }, optional);
        let on_failure = *self.draw.pick(&["undo", "error"]);
        self.maybe(0.25, &format!("on_failure = \"{on_failure}\""));
        let (has_catch, has_reference) = match kind {
            0..60 => self.call(kind, &after),
            60..70 => {
                self.line("fail = \"not today, ${order.id}\"");
                (false, false)
            }
            70..76 => {
                let numbers = ["input.total_cents * 3", "100 / (input.total_cents - 300)", "input.no_such_field"];
                let number = *self.draw.pick(&numbers);
                self.line(&format!("value = {{ reference = \"${{{number}}}\" }}"));
                (false, true)
            }
            76..82 => {
                self.one_of(&["wait = \"3s\"", "until = \"${now + 5}\"", "wait = \"${200 - input.total_cents}\""]);
                (false, false)
            }
            82..96 => (self.event(), false),
            _ => (self.child(), false),
        };
        self.steps.push(Step { name, is_optional: has_when || has_catch, has_reference });
    }

    /// The steps before it: the names of those that have run and gave a reference, and of one that may not have run.
    fn after(&mut self) -> (Vec<String>, Option<String>) {
        let (mut entries, mut sure, mut optional) = (Vec::new(), Vec::new(), None);
        for (n, step) in self.steps.iter().enumerate() {
            let is_last = n + 1 == self.steps.len();
            if !self.draw.chance(if is_last { 0.7 } else { 0.3 }) {
                continue;
            }
            let mark = if step.is_optional { *self.draw.pick(&["!", "?", "?"]) } else { "" };
            entries.push(format!("\"{}{mark}\"", step.name));
            match mark {
                "?" => optional = Some(step.name.clone()),
                _ if step.has_reference => sure.push(step.name.clone()),
                _ => {}
            }
        }
        self.line(&format!("after = [{}]", entries.join(", ")));
        (sure, optional)
    }

    fn when(&mut self, chance: f64, optional: Option<String>) -> bool {
        let of_step = ["ran.X", "!ran.X", "errors.X.kind == 'refused'", "errors.X.kind != ''"];
        let of_input = ["input.total_cents > 200", "input.total_cents != 100", "input.no_such_field == 1"];
        let condition = match optional.filter(|_| self.draw.chance(0.7)) {
            Some(step) => self.draw.pick(&of_step).replace('X', &step),
            None => (*self.draw.pick(&of_input)).to_owned(),
        };
        self.maybe(chance, &format!("when = \"{condition}\""))
    }

    fn catch(&mut self, chance: f64, conditions: &[&str]) -> bool {
        let condition = *self.draw.pick(conditions);
        self.maybe(chance, &format!("catch = \"{condition}\""))
    }

    /// A call of an agent. Whether it has a `catch`, and whether its output has a reference.
    fn call(&mut self, kind: u64, before: &[String]) -> (bool, bool) {
        let (works_long, collects, polls) = (kind < 5, (5..9).contains(&kind), (9..15).contains(&kind));
        let (reports_later, has_list) = ((15..22).contains(&kind), (22..24).contains(&kind));
        let agent = *self.draw.pick(&AGENTS);
        self.line(&format!("agent = \"{agent}\""));
        let seconds = self.draw.between(2, 8);
        if works_long {
            self.line("timeout = \"12s\"\nheartbeat = \"2s\"");
        } else {
            self.maybe(0.3, &format!("timeout = \"{seconds}s\""));
        }
        if !polls {
            let retry = *self.draw.pick(&RETRY);
            self.maybe(0.6, &format!("retry = {retry}"));
        }
        if !works_long && !polls && !collects {
            self.maybe(0.1, "late = { extend = \"2s\", times = 1 }");
        }
        let seconds = self.draw.between(6, 30);
        if collects {
            self.line("with = { after = \"${page.?cursor}\" }\npages = { items = \"${answer.items}\", next = \"${answer.?next}\" }");
        } else if has_list {
            self.line("with = { line = \"${index}\" }");
            self.list();
        } else {
            self.with(before);
        }
        if polls {
            self.line(&format!("poll = {{ every = \"2s\", for = \"{seconds}s\", done = \"answer.reference != ''\" }}"));
        }
        if reports_later {
            self.line(&format!("accept = {{ within = \"{seconds}s\" }}"));
        }
        if polls || reports_later {
            self.maybe(0.3, "remind = { every = \"4s\", times = 2, agent = \"fraud\" }");
            self.maybe(0.3, "alert = true");
        }
        let answers = !collects && !reports_later && !has_list;
        let lacks =
            answers && self.maybe(0.1, "output = { reference = \"${answer.reference}\", none = \"${answer.none}\" }");
        let kinds = [
            "error.kind == 'refused'",
            "error.kind == 'spent'",
            "error.kind == 'timeout'",
            "true",
            "error.status == 409",
        ];
        let has_catch = self.catch(0.25, &kinds);
        if !collects && !self.maybe(0.12, "irreversible = true") {
            self.undo(works_long);
        }
        (has_catch, answers && !lacks)
    }

    /// Data that it always has, or not for each order, or from a step before.
    fn with(&mut self, before: &[String]) {
        match (self.draw.between(0, 5), before.first()) {
            (0, _) => self.line("with = { a = \"${order.id}\" }"),
            (1, _) => self.line("with = { b = \"${100 / (input.total_cents - 200)}\" }"),
            (2, Some(step)) => self.line(&format!("with = {{ c = \"${{outputs.{step}.reference}}\" }}")),
            _ => {}
        }
    }

    fn undo(&mut self, works_long: bool) {
        let with = *self.draw.pick(&[
            "",
            "",
            ", with = { order = \"${order.id}\" }",
            ", with = { it = \"${output.reference}\" }",
        ]);
        let beat = if works_long { ", heartbeat = \"3s\"" } else { "" };
        let (agent, max) = (*self.draw.pick(&AGENTS), self.draw.between(1, 6));
        let retry = format!("retry = {{ max = {max}, backoff = [\"1s\", \"3s\"] }}");
        self.maybe(0.65, &format!("undo = {{ agent = \"{agent}\"{with}{beat}, {retry} }}"));
    }

    fn list(&mut self) {
        let (at_once, tolerate) = (self.draw.between(1, 5), *self.draw.pick(&[0, 10, 50]));
        self.line(&format!("each = \"${{input.lines}}\"\nat_once = {at_once}\ntolerate = \"{tolerate}%\""));
    }

    /// A wait for an event. Whether it has a `catch`.
    fn event(&mut self) -> bool {
        let (event, seconds) = (self.draw.between(0, 1), self.draw.between(5, 40));
        self.line(&format!("event = \"e{event}\"\ntimeout = \"{seconds}s\""));
        if !self.maybe(0.3, "people = 2") && self.draw.chance(0.3) {
            let none = "output = { none = \"${event.none}\" }";
            self.one_of(&["failed = \"event.number > 0\"", "take = \"event.number > 0\"", none]);
        }
        self.maybe(0.15, "early = \"refuse\"");
        self.maybe(0.3, "remind = { every = \"6s\", times = 2, agent = \"fraud\" }");
        self.maybe(0.3, "alert = true");
        let retry = "retry = { max = 4, backoff = [\"1s\", \"3s\"] }";
        self.maybe(0.5, &format!("undo = {{ agent = \"payment\", timeout = \"4s\", {retry} }}"));
        self.catch(0.4, &["error.kind == 'timeout'", "error.kind == 'refused'", "true"])
    }

    /// Orders of another workflow. Whether it has a `catch`.
    fn child(&mut self) -> bool {
        if self.draw.chance(0.4) {
            self.list();
        }
        let workflow = *self.draw.pick(&["parcel", "parcel-by-hand"]);
        self.line(&format!("workflow = \"{workflow}\"\nwith = {{ of = \"${{order.id}}\" }}"));
        self.catch(0.4, &["error.kind == 'children'"])
    }
}
