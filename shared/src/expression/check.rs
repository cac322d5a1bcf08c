//! What is known before an expression runs: kinds, names and what it reads.

use super::function::Macro;
use super::number::Sum;
use super::syntax::{Access, Form, Node, Operator, Step};
use super::{Fault, Kind, ROOTS, Reference, fault};
use crate::history::shorten;
use serde_json::Value;

/// Fields of an order. `reference` may be null.
const ORDER: [&str; 5] = ["id", "reference", "tenant", "created_at", "parent"];

/// What is known of a part of an expression.
struct Seen {
    kind: Option<Kind>,
    /// A `.?` lets it be absent.
    is_optional: bool,
}

impl From<Option<Kind>> for Seen {
    fn from(kind: Option<Kind>) -> Self {
        Self { kind, is_optional: false }
    }
}

/// All that is known of an expression.
pub(super) struct Known {
    pub references: Vec<Reference>,
    pub kind: Option<Kind>,
    pub is_optional: bool,
    /// Steps that ran if the expression is true.
    pub ran: Vec<String>,
    /// Steps that did not run, or failed, if it is true.
    pub not_run: Vec<String>,
    /// The texts that `error.kind` and `errors.STEP.kind` are compared with.
    pub failures: Vec<String>,
}

/// Checks `node`, which was parsed from `text`; `base` is added to the places of the references.
pub(super) fn check(text: &str, node: &Node, base: usize) -> Result<Known, Fault> {
    let mut check =
        Check { text, base, variables: Vec::new(), ran: Vec::new(), references: Vec::new(), failures: Vec::new() };
    let seen = check.visit(node)?;
    let (ran, not_run) = (implied(node, true, step_that_ran), implied(node, true, step_not_run));
    let Check { references, failures, .. } = check;
    Ok(Known { references, kind: seen.kind, is_optional: seen.is_optional, ran, not_run, failures })
}

struct Check<'t> {
    text: &'t str,
    base: usize,
    /// Of enclosing macros.
    variables: Vec<&'t str>,
    /// Steps that ran if this place is evaluated.
    ran: Vec<String>,
    references: Vec<Reference>,
    failures: Vec<String>,
}

impl<'t> Check<'t> {
    fn visit(&mut self, node: &'t Node) -> Result<Seen, Fault> {
        Ok(match &node.form {
            Form::Constant(value) => Kind::of(value).into(),
            Form::Name(_) | Form::Path(..) => self.path(node, false)?,
            Form::Not(inner) => {
                self.need(inner, "!", &[Kind::Bool])?;
                Some(Kind::Bool).into()
            }
            Form::And(left, right) | Form::Or(left, right) => {
                let is_and = matches!(node.form, Form::And(..));
                let sign = if is_and { "&&" } else { "||" };
                self.need(left, sign, &[Kind::Bool])?;
                self.under(implied(left, is_and, step_that_ran), |check| check.need(right, sign, &[Kind::Bool]))?;
                Some(Kind::Bool).into()
            }
            Form::Both(operator, left, right) => self.both(*operator, left, right)?.into(),
            Form::Choice(parts) => {
                let [condition, then, other] = &**parts;
                self.need(condition, "?", &[Kind::Bool])?;
                let then = self.under(implied(condition, true, step_that_ran), |check| check.visit(then))?;
                let other = self.under(implied(condition, false, step_that_ran), |check| check.visit(other))?;
                let kind = then.kind.filter(|kind| other.kind == Some(*kind));
                Seen { kind, is_optional: then.is_optional || other.is_optional }
            }
            Form::List(all) => {
                for item in all {
                    self.visit(item)?;
                }
                Some(Kind::List).into()
            }
            Form::Table(all) => {
                for (key, value) in all {
                    self.key(key)?;
                    self.visit(value)?;
                }
                Some(Kind::Table).into()
            }
            Form::Has(path) => {
                self.shelter(path, "`has` takes a path; write for example `has(input.note)`")?;
                Some(Kind::Bool).into()
            }
            Form::First(all) => self.first(all)?.into(),
            Form::Call(function, arguments) => {
                for (argument, kinds) in arguments.iter().zip(function.takes) {
                    self.need(argument, function.name, kinds)?;
                }
                if function.name == "uuid" {
                    let path = vec!["order".into(), "id".into()];
                    self.references.push(Reference {
                        path,
                        at: self.base + node.from,
                        guarded: false,
                        optional: false,
                    });
                }
                function.gives.into()
            }
            Form::Each(each, range, variable, bodies) => self.each(*each, range, variable, bodies)?.into(),
        })
    }

    fn first(&mut self, all: &'t [Node]) -> Result<Option<Kind>, Fault> {
        let (last, paths) = all.split_last().expect("the parser refuses `first()`");
        let usage = "`first` takes paths before its last value; write this one last, or leave it out";
        let kinds: Vec<_> = paths.iter().map(|one| self.shelter(one, usage)).collect::<Result<_, _>>()?;
        let last = if is_path(last) { self.path(last, true)? } else { self.visit(last)? };
        Ok(last.kind.filter(|kind| kinds.iter().all(|other| *other == Some(*kind))))
    }

    /// A path that may end early, inside `has` or `first`.
    fn shelter(&mut self, node: &'t Node, usage: &str) -> Result<Option<Kind>, Fault> {
        if is_path(node) { Ok(self.path(node, true)?.kind) } else { Err(fault(node.from, usage)) }
    }

    fn key(&mut self, key: &'t Node) -> Result<(), Fault> {
        if let Form::Name(name) = &key.form
            && !self.variables.contains(&name.as_str())
        {
            return Err(fault(key.from, format!("the key `{name}` has no quotes; write `'{name}'`")));
        }
        self.need(key, "{}", &[Kind::Text]).map(|_| ())
    }

    fn each(
        &mut self,
        each: Macro,
        range: &'t Node,
        variable: &'t str,
        bodies: &'t [Node],
    ) -> Result<Option<Kind>, Fault> {
        self.need(range, each.name(), &[Kind::List, Kind::Table])?;
        // Definitions older than pages may have a variable of this name.
        let is_root = ROOTS.contains(&variable) && variable != "page";
        if is_root || self.variables.contains(&variable) {
            let message = format!("`{variable}` already has a meaning here; choose another name, such as `x`");
            return Err(fault(range.to, message));
        }
        self.variables.push(variable);
        for (n, body) in bodies.iter().enumerate() {
            if each == Macro::Map && n + 1 == bodies.len() {
                self.solid(body)?;
            } else {
                self.need(body, each.name(), &[Kind::Bool])?;
            }
        }
        self.variables.pop();
        Ok(Some(match each {
            Macro::All | Macro::Exists | Macro::ExistsOne => Kind::Bool,
            Macro::Filter | Macro::Map => Kind::List,
        }))
    }

    /// `is_sheltered`: its value may be absent. Its base and indices, evaluated first, may not.
    fn path(&mut self, whole: &'t Node, is_sheltered: bool) -> Result<Seen, Fault> {
        let (base, steps) = match &whole.form {
            Form::Path(base, steps) => (&**base, &steps[..]),
            _ => (whole, &[][..]),
        };
        // The path while its parts are fixed.
        let mut path = Vec::new();
        let mut kind = match &base.form {
            Form::Name(name) if self.variables.contains(&name.as_str()) => None,
            Form::Name(name) => {
                path.push(name.clone());
                self.root(base, name)?
            }
            _ => self.solid(base)?,
        };
        let (mut is_fixed, mut is_optional) = (!path.is_empty(), false);
        let mut before = base.to;
        for step in steps {
            let wanted: &[Kind] = match &step.what {
                Access::Field(name) | Access::Optional(name) => {
                    path.extend(is_fixed.then(|| name.clone()));
                    is_optional |= matches!(step.what, Access::Optional(_));
                    &[Kind::Table]
                }
                Access::Index(index) => {
                    is_fixed = false;
                    match self.need(index, "[]", &[Kind::Number, Kind::Text])? {
                        Some(Kind::Number) => &[Kind::List],
                        Some(_) => &[Kind::Table],
                        None => &[Kind::List, Kind::Table],
                    }
                }
            };
            if let Some(found) = kind.filter(|kind| !wanted.contains(kind)) {
                return Err(self.no_part(found, base.from, before, step.to));
            }
            kind = if is_fixed { kind_of(&path) } else { None };
            before = step.to;
        }
        if !path.is_empty() {
            let guarded =
                is_sheltered || (path[0] == "outputs" && path.get(1).is_some_and(|step| self.ran.contains(step)));
            let names: Vec<&str> = path.iter().map(String::as_str).collect();
            self.known(&names, steps.is_empty(), base)?;
            self.references.push(Reference { path, at: self.base + whole.from, guarded, optional: is_optional });
        }
        Ok(Seen { kind, is_optional })
    }

    fn root(&self, base: &Node, name: &String) -> Result<Option<Kind>, Fault> {
        if ROOTS.contains(&name.as_str()) {
            return Ok(kind_of(std::slice::from_ref(name)));
        }
        let message = if self.text[..base.from].ends_with('-') {
            format!(
                "`{name}` is not a name; in the name of a step, write `_` for each `-`; if the name of a field contains `-`, write `[\"...-{name}\"]`"
            )
        } else {
            let roots = ROOTS.join(", ");
            format!(
                "`{name}` is not a name here; write one of {roots}, a string in quotes, or `outputs.STEP` for what a step returned"
            )
        };
        Err(fault(base.from, message))
    }

    /// Refuses paths to unknown steps or fields of an order.
    fn known(&self, path: &[&str], is_root: bool, base: &Node) -> Result<(), Fault> {
        let message = match path {
            [root @ ("outputs" | "ran" | "errors")] => {
                format!("`{root}` needs the name of a step; write `{root}.STEP`, with `_` for each `-` in the name")
            }
            ["order"] if is_root => return Ok(()),
            ["order", field, ..] if ORDER.contains(field) => return Ok(()),
            ["order", ..] => format!("an order has no such field; write one of order.{}", ORDER.join(", order.")),
            _ => return Ok(()),
        };
        Err(fault(base.from, message))
    }

    /// Says that the text up to `before` lacks the part up to `to`.
    fn no_part(&self, found: Kind, from: usize, before: usize, to: usize) -> Fault {
        let (source, part) = (&self.text[from..before], &self.text[before..to]);
        fault(before, format!("`{source}` is {found}, so it has no `{part}`; write `{source}` alone"))
    }

    fn both(&mut self, operator: Operator, left: &'t Node, right: &'t Node) -> Result<Option<Kind>, Fault> {
        let sign = operator.sign();
        match operator {
            Operator::Equal | Operator::Unequal => {
                let (a, b) = (self.solid(left)?, self.solid(right)?);
                self.equal((left, a), (right, b), "so they are never equal")?;
                self.failures.extend(failure_kind(left, right).map(|(_, kind)| kind.to_owned()));
            }
            Operator::In => {
                let item = self.solid(left)?;
                self.need(right, sign, &[Kind::List, Kind::Table])?;
                if let Form::List(all) = &right.form {
                    for one in all {
                        self.equal((left, item), (one, constant_kind(one)), "so they are never equal")?;
                        self.failures.extend(failure_kind(left, one).map(|(_, kind)| kind.to_owned()));
                    }
                }
            }
            Operator::Less | Operator::AtMost | Operator::More | Operator::AtLeast => {
                let wanted = &[Kind::Number, Kind::Text];
                let (a, b) = (self.need(left, sign, wanted)?, self.need(right, sign, wanted)?);
                self.equal((left, a), (right, b), &format!("so `{sign}` cannot compare them"))?;
            }
            Operator::Sum(sum) => {
                let wanted: &[Kind] =
                    if sum == Sum::Add { &[Kind::Number, Kind::Text, Kind::List] } else { &[Kind::Number] };
                let (a, b) = (self.need(left, sign, wanted)?, self.need(right, sign, wanted)?);
                self.joined((left, a), (right, b))?;
                return Ok(if sum == Sum::Add { a.or(b) } else { Some(Kind::Number) });
            }
        }
        Ok(Some(Kind::Bool))
    }

    /// Refuses to compare different kinds; `so` says what follows from them.
    fn equal(
        &self,
        (a, a_kind): (&Node, Option<Kind>),
        (b, b_kind): (&Node, Option<Kind>),
        so: &str,
    ) -> Result<(), Fault> {
        let is_null = |node: &Node| matches!(node.form, Form::Constant(Value::Null));
        let advice = |constant: &Node, wanted: Kind| match &constant.form {
            Form::Constant(Value::String(text)) if wanted == Kind::Number && text.parse::<f64>().is_ok() => {
                format!("`{text}`")
            }
            Form::Constant(Value::Number(number)) if wanted == Kind::Text => format!("`'{number}'`"),
            _ => match wanted {
                Kind::Bool => "`true` or `false`".into(),
                wanted => wanted.to_string(),
            },
        };
        let message = match (a_kind, b_kind) {
            (Some(one), Some(other)) if one != other => {
                let (constant, wanted) = if matches!(a.form, Form::Constant(_)) { (a, other) } else { (b, one) };
                let (left, right) = (self.source(a), self.source(b));
                format!("`{left}` is {one} and `{right}` is {other}, {so}; compare with {}", advice(constant, wanted))
            }
            (Some(kind), None) if is_null(b) => {
                format!("`{}` is {kind}, never null; compare with {}", self.source(a), advice(b, kind))
            }
            (None, Some(kind)) if is_null(a) => {
                format!("`{}` is {kind}, never null; compare with {}", self.source(b), advice(a, kind))
            }
            _ => return Ok(()),
        };
        Err(fault(a.from, message))
    }

    /// Refuses to add different kinds.
    fn joined(&self, (left, a): (&Node, Option<Kind>), (right, b): (&Node, Option<Kind>)) -> Result<(), Fault> {
        let (Some(a), Some(b)) = (a, b) else { return Ok(()) };
        if a == b {
            return Ok(());
        }
        let is_list = [a, b].contains(&Kind::List);
        let advice = if is_list { "put both in lists" } else { "write `text(...)` around the number" };
        let (one, other) = (self.source(left), self.source(right));
        Err(fault(left.from, format!("`{one}` is {a} and `{other}` is {b}, so `+` cannot join them; {advice}")))
    }

    /// Requires a value that is not optional and, if known, is of one of the `kinds` (empty: any).
    fn need(&mut self, node: &'t Node, what: &str, kinds: &[Kind]) -> Result<Option<Kind>, Fault> {
        let kind = self.solid(node)?;
        let is_null = matches!(node.form, Form::Constant(Value::Null));
        let is_fit = kinds.is_empty() || !is_null && kind.is_none_or(|kind| kinds.contains(&kind));
        if is_fit { Ok(kind) } else { Err(self.unfit(node, kind, what, kinds)) }
    }

    fn unfit(&self, node: &Node, kind: Option<Kind>, what: &str, kinds: &[Kind]) -> Fault {
        let found = kind.map_or("null".into(), |kind| kind.to_string());
        let source = self.source(node);
        let wanted = Kind::any_of(kinds);
        let advice = match (kind, kinds) {
            (Some(Kind::Number), [Kind::Bool]) => format!("compare it, such as `{source} != 0`"),
            (Some(Kind::Text), [Kind::Bool]) => format!("compare it, such as `{source} != ''`"),
            (Some(Kind::List | Kind::Table), [Kind::Bool]) => format!("write `size({source}) > 0`"),
            (Some(Kind::Number), _) if what == "time" => format!("write `{source}` alone if it is in seconds"),
            (Some(Kind::Number), [Kind::Text]) => format!("write `text({source})`"),
            (Some(Kind::Text), [Kind::Number]) => format!("write `double({source})`"),
            _ => format!("write {wanted} instead"),
        };
        fault(node.from, format!("`{source}` is {found}, and `{what}` takes {wanted}; {advice}"))
    }

    /// No optional value.
    fn solid(&mut self, node: &'t Node) -> Result<Option<Kind>, Fault> {
        let seen = self.visit(node)?;
        if seen.is_optional { Err(self.absent(node)) } else { Ok(seen.kind) }
    }

    fn absent(&self, node: &Node) -> Fault {
        let source = self.source(node);
        let path =
            if is_path(node) { format!("first({}, '')", source.replace(".?", ".")) } else { "first(...)".into() };
        let message = format!(
            "`{source}` may be absent, and only a whole `${{...}}`, a list or a table can leave out an absent value; write `{path}` here"
        );
        fault(node.from, message)
    }

    /// Visits something that is only evaluated if these steps ran.
    fn under<T>(&mut self, ran: Vec<String>, visit: impl FnOnce(&mut Self) -> Result<T, Fault>) -> Result<T, Fault> {
        let before = self.ran.len();
        self.ran.extend(ran);
        let seen = visit(self);
        self.ran.truncate(before);
        seen
    }

    fn source(&self, node: &Node) -> String {
        shorten(&self.text[node.from..node.to], 100)
    }
}

fn is_path(node: &Node) -> bool {
    matches!(node.form, Form::Name(_) | Form::Path(..))
}

/// The kind of a path from a root, if every workflow has the same.
fn kind_of(path: &[String]) -> Option<Kind> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    match path[..] {
        ["now" | "index" | "status"] | ["error", "status"] | ["errors", _, "status"] => Some(Kind::Number),
        ["error", "kind"] | ["errors", _, "kind"] | ["order", "id" | "tenant" | "created_at"] | ["header", _] => {
            Some(Kind::Text)
        }
        ["ran", _] => Some(Kind::Bool),
        ["config" | "order" | "outputs" | "ran" | "errors" | "error" | "header"] | ["errors", _] => Some(Kind::Table),
        _ => None,
    }
}

fn constant_kind(node: &Node) -> Option<Kind> {
    match &node.form {
        Form::Constant(value) => Kind::of(value),
        _ => None,
    }
}

/// The steps for which `fact` holds if `node` is `truth`.
fn implied(node: &Node, truth: bool, fact: fn(&Node, bool) -> Vec<String>) -> Vec<String> {
    match &node.form {
        Form::Not(inner) => implied(inner, !truth, fact),
        Form::And(left, right) | Form::Or(left, right) => {
            let (mut one, other) = (implied(left, truth, fact), implied(right, truth, fact));
            // Both sides of a true `&&` are true, but perhaps only one of a true `||`. False is the reverse.
            if matches!(node.form, Form::And(..)) == truth {
                one.extend(other);
            } else {
                one.retain(|step| other.contains(step));
            }
            one
        }
        _ => fact(node, truth),
    }
}

fn step_that_ran(node: &Node, truth: bool) -> Vec<String> {
    match &node.form {
        Form::Path(base, steps) if truth => named(base, steps, "ran"),
        Form::Has(path) if truth => match &path.form {
            Form::Path(base, steps) => named(base, steps, "outputs"),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// A failed step has not run.
fn step_not_run(node: &Node, truth: bool) -> Vec<String> {
    match &node.form {
        Form::Path(base, steps) if !truth => named(base, steps, "ran"),
        Form::Both(operator @ (Operator::Equal | Operator::Unequal), left, right) => {
            let Some((Form::Path(base, steps), kind)) = failure_kind(left, right) else { return Vec::new() };
            let is_equal = (*operator == Operator::Equal) == truth;
            if is_equal == kind.is_empty() { Vec::new() } else { named(base, steps, "errors") }
        }
        _ => Vec::new(),
    }
}

/// The path and the text, if a failure's kind is compared with a constant.
fn failure_kind<'n>(left: &'n Node, right: &'n Node) -> Option<(&'n Form, &'n str)> {
    let (path, constant) = if is_path(left) { (left, right) } else { (right, left) };
    let (Form::Path(base, steps), Form::Constant(Value::String(text))) = (&path.form, &constant.form) else {
        return None;
    };
    let Form::Name(root) = &base.form else { return None };
    let is_kind = |step: &Step| matches!(&step.what, Access::Field(field) if field == "kind");
    let is_whole = matches!((root.as_str(), steps.len()), ("error", 1) | ("errors", 2));
    (is_whole && steps.last().is_some_and(is_kind)).then_some((&path.form, text))
}

/// Whether the forms of two conditions show that they are never both true of the same values.
pub(super) fn exclude(one: &Node, other: &Node) -> bool {
    match (&one.form, &other.form) {
        (Form::Not(inner), _) if **inner == *other => true,
        (_, Form::Not(inner)) if **inner == *one => true,
        (Form::And(left, right), _) => exclude(left, other) || exclude(right, other),
        (_, Form::And(left, right)) => exclude(one, left) || exclude(one, right),
        (Form::Both(a, left, right), Form::Both(b, other_left, other_right)) if left == other_left => {
            match (&right.form, &other_right.form) {
                (Form::Constant(x), Form::Constant(y)) if x != y => (*a, *b) == (Operator::Equal, Operator::Equal),
                (x, y) => x == y && a.opposite() == Some(*b),
            }
        }
        _ => false,
    }
}

/// The step in a path such as `ran.STEP`.
fn named(base: &Node, steps: &[Step], root: &str) -> Vec<String> {
    match (&base.form, steps.first().map(|step| &step.what)) {
        (Form::Name(name), Some(Access::Field(step) | Access::Optional(step))) if name == root => vec![step.clone()],
        _ => Vec::new(),
    }
}
