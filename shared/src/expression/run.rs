//! The evaluation: a walk over the tree that counts its work.
//!
//! Values are borrowed from the data where possible, so that a large output costs only what is taken from it.

use super::function::{Function, Macro};
use super::number::{Number, Sum};
use super::syntax::{Access, Form, Node, Operator, Step};
use super::{Kind, MAX_ITEMS, MAX_RESULT, MAX_WORK, Mistake, Names};
use crate::history::shorten;
use crate::json::{MAX_DEPTH, RESERVED};
use serde::Serialize;
use serde_json::Value;
use std::borrow::Cow;
use std::cell::Cell;
use std::cmp::Ordering;
use std::io;

/// Why there is no value.
pub(super) enum Stop {
    /// Something behind `.?` does not exist.
    Absent,
    /// What is wrong.
    Mistake(String),
}

impl From<String> for Stop {
    fn from(text: String) -> Self {
        Self::Mistake(text)
    }
}

type Found<'s> = Result<Cow<'s, Value>, Stop>;

/// The variable of a macro around a place.
struct Scope<'s> {
    name: &'s str,
    value: &'s Value,
    outer: Around<'s>,
}

/// The innermost.
type Around<'s> = Option<&'s Scope<'s>>;

/// A path's value, or where the path ends early.
type Reached<'s> = Result<Cow<'s, Value>, Gap<'s>>;

/// Where a path ends early.
struct Gap<'s> {
    /// The step that found nothing.
    step: usize,
    /// What it looked into; `None` if the root has no value.
    inside: Option<Cow<'s, Value>>,
}

/// One evaluation.
pub(super) struct Run<'s> {
    pub text: &'s str,
    pub names: &'s Names<'s>,
    items: Cell<usize>,
    work: Cell<usize>,
    /// A missing value is absent, as with `.?`.
    is_patient: bool,
}

impl<'s> Run<'s> {
    pub(super) fn new(text: &'s str, names: &'s Names<'s>) -> Self {
        Self { text, names, items: Cell::new(0), work: Cell::new(0), is_patient: false }
    }

    /// For an answer that may not be complete yet.
    pub(super) fn patient(text: &'s str, names: &'s Names<'s>) -> Self {
        Self { is_patient: true, ..Self::new(text, names) }
    }

    /// The value of `node`, which may be all of the expression or a part of it.
    pub(super) fn value<'a>(&'a self, node: &'a Node) -> Found<'a> {
        self.eval(node, None)
    }

    /// A mistake as a sentence that names the expression.
    pub(super) fn mistake(&self, what: &str) -> Mistake {
        let text = shorten(self.text.trim(), 100);
        Mistake(if what.starts_with(&format!("`{text}`")) { what.to_owned() } else { format!("`{text}`: {what}") })
    }

    fn eval<'a>(&'a self, node: &'a Node, scope: Around<'a>) -> Found<'a> {
        match &node.form {
            Form::Constant(value) => Ok(Cow::Borrowed(value)),
            Form::Name(_) => self.path(node, &[], scope),
            Form::Path(base, steps) => self.path(base, steps, scope),
            Form::Not(inner) => self.truth(inner, "!", scope).map(|truth| own(!truth)),
            Form::And(left, right) => Ok(own(self.truth(left, "&&", scope)? && self.truth(right, "&&", scope)?)),
            Form::Or(left, right) => match self.truth(left, "||", scope) {
                Ok(true) => Ok(own(true)),
                Ok(false) => self.truth(right, "||", scope).map(own),
                // The other side may do.
                Err(Stop::Absent) if self.is_patient && self.truth(right, "||", scope)? => Ok(own(true)),
                Err(stop) => Err(stop),
            },
            Form::Both(operator, left, right) => self.both(node, *operator, left, right, scope),
            Form::Choice(parts) => {
                let [condition, then, other] = &**parts;
                self.eval(if self.truth(condition, "?", scope)? { then } else { other }, scope)
            }
            Form::List(all) => self.list(all, scope),
            Form::Table(all) => self.table(all, scope),
            Form::Has(path) => Ok(own(self.reach(path, scope)?.is_ok_and(|value| !value.is_null()))),
            Form::First(all) => self.first(node, all, scope),
            Form::Call(function, arguments) => self.call(node, function, arguments, scope),
            Form::Each(each, range, variable, bodies) => self.each(*each, range, variable, bodies, scope),
        }
    }

    fn list<'a>(&'a self, all: &'a [Node], scope: Around<'a>) -> Found<'a> {
        let mut list = Vec::with_capacity(all.len());
        for item in all {
            match self.eval(item, scope) {
                Ok(value) => list.push(self.keep(value)?),
                Err(Stop::Absent) => {}
                Err(stop) => return Err(stop),
            }
        }
        Ok(own(list))
    }

    fn table<'a>(&'a self, all: &'a [(Node, Node)], scope: Around<'a>) -> Found<'a> {
        let mut table = serde_json::Map::new();
        for (key, value) in all {
            let name = self.eval(key, scope)?;
            let Value::String(name) = &*name else { return Err(self.wrong(key, &name, "{}", &[Kind::Text]).into()) };
            let value = match self.eval(value, scope) {
                Ok(value) => self.keep(value)?,
                Err(Stop::Absent) => continue,
                Err(stop) => return Err(stop),
            };
            self.spend(name.len())?;
            if name.starts_with(RESERVED) {
                return Err("a key is a name that the JSON parser reserves".to_owned().into());
            }
            if table.insert(name.clone(), value).is_some() {
                return Err(format!("the key `{}` occurs twice", shorten(name, 60)).into());
            }
        }
        Ok(own(table))
    }

    /// The value of a path, or of anything else.
    fn path<'a>(&'a self, base: &'a Node, steps: &'a [Step], scope: Around<'a>) -> Found<'a> {
        let gap = match self.follow(base, steps, scope)? {
            Ok(value) => return Ok(value),
            Err(gap) => gap,
        };
        let source = |to: usize| &self.text[base.from..to];
        if self.is_patient && gap.inside.as_ref().is_none_or(|inside| !inside.is_string() && !inside.is_number()) {
            return Err(Stop::Absent);
        }
        let Some(inside) = gap.inside else { return Err(format!("`{}` has no value here", source(base.to)).into()) };
        // Then the rest of the path is absent too.
        if matches!(steps[gap.step].what, Access::Optional(_)) && (inside.is_object() || inside.is_null()) {
            return Err(Stop::Absent);
        }
        let path = source(steps[gap.step].to);
        let before = source(gap.step.checked_sub(1).map_or(base.to, |n| steps[n].to));
        Err(match &*inside {
            Value::Object(_) => format!(
                "`{path}` does not exist; write `first({}, '')` if it may be absent",
                source(steps[steps.len() - 1].to)
            ),
            Value::Array(list) if matches!(steps[gap.step].what, Access::Index(_)) => {
                format!("`{path}` does not exist, because `{before}` has only {} items, counted from 0", list.len())
            }
            other => format!("`{path}` does not exist, because `{before}` is {}", Kind::name_of(other)),
        }
        .into())
    }

    /// Follows a path if `node` is one.
    fn reach<'a>(&'a self, node: &'a Node, scope: Around<'a>) -> Result<Reached<'a>, Stop> {
        match &node.form {
            Form::Name(_) => self.follow(node, &[], scope),
            Form::Path(base, steps) => self.follow(base, steps, scope),
            _ => self.eval(node, scope).map(Ok),
        }
    }

    fn follow<'a>(&'a self, base: &'a Node, steps: &'a [Step], scope: Around<'a>) -> Result<Reached<'a>, Stop> {
        let mut value = match &base.form {
            Form::Name(name) => match self.named(name, scope) {
                Some(value) => Cow::Borrowed(value),
                None => return Ok(Err(Gap { step: 0, inside: None })),
            },
            _ => self.eval(base, scope)?,
        };
        for (n, step) in steps.iter().enumerate() {
            let next = match &step.what {
                Access::Field(name) | Access::Optional(name) => field(&value, name),
                Access::Index(index) => {
                    let key = self.eval(index, scope)?;
                    match (&*key, &*value) {
                        (Value::String(name), _) => field(&value, name),
                        (Value::Number(n), Value::Array(_)) => item(&value, Number::of(n)),
                        (Value::Number(_), _) => None,
                        _ => return Err(self.wrong(index, &key, "[]", &[Kind::Number, Kind::Text]).into()),
                    }
                }
            };
            value = match next {
                Some(next) => next,
                None => return Ok(Err(Gap { step: n, inside: Some(value) })),
            };
        }
        Ok(Ok(value))
    }

    fn named<'a>(&'a self, name: &str, mut scope: Around<'a>) -> Option<&'a Value> {
        while let Some(one) = scope {
            if one.name == name {
                return Some(one.value);
            }
            scope = one.outer;
        }
        self.names.get(name)
    }

    fn first<'a>(&'a self, node: &'a Node, all: &'a [Node], scope: Around<'a>) -> Found<'a> {
        for one in all {
            let is_path = matches!(one.form, Form::Name(_) | Form::Path(..));
            if let Ok(value) = self.reach(one, scope)?
                && !(is_path && value.is_null())
            {
                return Ok(value);
            }
        }
        let source = &self.text[node.from..node.to];
        Err(format!(
            "none of the values in `{}` is there; write a value that is always there, such as `''`, as the last one",
            shorten(source, 120)
        )
        .into())
    }

    fn both<'a>(
        &'a self,
        node: &'a Node,
        operator: Operator,
        left: &'a Node,
        right: &'a Node,
        scope: Around<'a>,
    ) -> Found<'a> {
        let sign = operator.sign();
        let (a, b) = (self.eval(left, scope)?, self.eval(right, scope)?);
        let takes_null = matches!(operator, Operator::Equal | Operator::Unequal | Operator::In);
        if self.is_patient && !takes_null && (a.is_null() || b.is_null()) {
            return Err(Stop::Absent);
        }
        let order = || {
            self.alike((left, &a), (right, &b), sign, &[Kind::Number, Kind::Text])?;
            match (&*a, &*b) {
                (Value::Number(a), Value::Number(b)) => Ok(Number::of(a).compare(Number::of(b))),
                (a, b) => Ok::<_, String>(a.as_str().cmp(&b.as_str())),
            }
        };
        Ok(own(match operator {
            Operator::Equal => self.equal(&a, &b, MAX_DEPTH)?,
            Operator::Unequal => !self.equal(&a, &b, MAX_DEPTH)?,
            Operator::Less => order()? == Ordering::Less,
            Operator::AtMost => order()? != Ordering::Greater,
            Operator::More => order()? == Ordering::Greater,
            Operator::AtLeast => order()? != Ordering::Less,
            Operator::In => match (&*a, &*b) {
                (item, Value::Array(list)) => {
                    for one in list {
                        if self.equal(item, one, MAX_DEPTH)? {
                            return Ok(own(true));
                        }
                    }
                    false
                }
                (Value::String(key), Value::Object(table)) => table.contains_key(key),
                (_, Value::Object(_)) => return Err(self.wrong(left, &a, sign, &[Kind::Text]).into()),
                _ => return Err(self.wrong(right, &b, sign, &[Kind::List, Kind::Table]).into()),
            },
            Operator::Sum(sum) => {
                let all = [Kind::Number, Kind::Text, Kind::List];
                self.alike((left, &a), (right, &b), sign, if sum == Sum::Add { &all } else { &all[..1] })?;
                return match (a.into_owned(), b.into_owned()) {
                    (Value::Number(a), Value::Number(b)) => {
                        self.given(node, Number::of(&a).with(sum, Number::of(&b)).and_then(Number::value))
                    }
                    (Value::Array(mut all), Value::Array(more)) => {
                        all.extend(more);
                        Ok(own(all))
                    }
                    (a, b) => Ok(own([a.as_str().unwrap_or_default(), b.as_str().unwrap_or_default()].concat())),
                };
            }
        }))
    }

    fn call<'a>(&'a self, node: &'a Node, function: &Function, arguments: &'a [Node], scope: Around<'a>) -> Found<'a> {
        let mut values = Vec::with_capacity(arguments.len() + 1);
        for (argument, kinds) in arguments.iter().zip(function.takes) {
            let value = self.eval(argument, scope)?;
            if !kinds.is_empty() && !Kind::of(&value).is_some_and(|kind| kinds.contains(&kind)) {
                return Err(self.wrong(argument, &value, function.name, kinds).into());
            }
            match &*value {
                // Only the characters of a string are counted one by one.
                Value::String(text) if function.name == "size" => self.spend(text.len())?,
                _ if function.name == "size" => {}
                value => {
                    self.look(value.as_array().map_or(0, Vec::len))?;
                    self.spend(weigh(value, MAX_DEPTH)?)?;
                }
            }
            values.push(value);
        }
        if function.name == "uuid" {
            let id = self.names.get("order").and_then(|order| order.get("id")).filter(|id| id.is_string());
            values.insert(0, Cow::Borrowed(id.ok_or_else(|| "`order.id` has no value here".to_owned())?));
        }
        self.given(node, (function.code)(&values))
    }

    fn each<'a>(
        &'a self,
        each: Macro,
        range: &'a Node,
        variable: &'a str,
        bodies: &'a [Node],
        outer: Around<'a>,
    ) -> Found<'a> {
        let found = self.eval(range, outer)?;
        let items: Box<dyn Iterator<Item = Cow<'_, Value>>> = match &*found {
            Value::Array(list) => Box::new(list.iter().map(Cow::Borrowed)),
            Value::Object(table) => Box::new(table.keys().map(|key| own(key.as_str()))),
            _ => return Err(self.wrong(range, &found, each.name(), &[Kind::List, Kind::Table]).into()),
        };
        let (mut list, mut count) = (Vec::new(), 0);
        for value in items {
            self.look(1)?;
            let inner = Scope { name: variable, value: &value, outer };
            if each == Macro::Map {
                let [conditions @ .., body] = bodies else { break };
                let mut is_kept = true;
                for condition in conditions {
                    is_kept = self.truth(condition, each.name(), Some(&inner))?;
                }
                if is_kept {
                    list.push(self.keep(self.eval(body, Some(&inner))?)?);
                }
                continue;
            }
            let holds = self.truth(&bodies[0], each.name(), Some(&inner))?;
            count += usize::from(holds);
            match each {
                Macro::All if !holds => return Ok(own(false)),
                Macro::Exists if holds => return Ok(own(true)),
                Macro::Filter if holds => list.push(self.keep(Cow::Borrowed(&*value))?),
                Macro::All | Macro::Exists | Macro::ExistsOne | Macro::Filter | Macro::Map => {}
            }
        }
        Ok(match each {
            Macro::All => own(true),
            Macro::Exists => own(false),
            Macro::ExistsOne => own(count == 1),
            Macro::Filter | Macro::Map => own(list),
        })
    }

    fn truth<'a>(&'a self, node: &'a Node, what: &str, scope: Around<'a>) -> Result<bool, Stop> {
        let value = self.eval(node, scope)?;
        if self.is_patient && value.is_null() {
            return Err(Stop::Absent);
        }
        value.as_bool().ok_or_else(|| self.wrong(node, &value, what, &[Kind::Bool]).into())
    }

    fn given(&self, node: &Node, given: Result<Value, String>) -> Found<'static> {
        let value =
            given.map_err(|why| format!("`{}` has no result: {why}", shorten(&self.text[node.from..node.to], 100)))?;
        self.spend(weigh(&value, MAX_DEPTH)?)?;
        Ok(Cow::Owned(value))
    }

    /// Whether both are of one of the `kinds`. Counts what comparing texts and lists reads.
    fn alike(&self, a: (&Node, &Value), b: (&Node, &Value), sign: &str, kinds: &[Kind]) -> Result<(), String> {
        let kind = Kind::of(a.1).filter(|kind| kinds.contains(kind));
        let kind = kind.ok_or_else(|| self.wrong(a.0, a.1, sign, kinds))?;
        if Kind::of(b.1) != Some(kind) {
            return Err(self.wrong(b.0, b.1, sign, &[kind]));
        }
        self.spend(weigh(a.1, MAX_DEPTH)? + weigh(b.1, MAX_DEPTH)?)
    }

    fn wrong(&self, node: &Node, value: &Value, what: &str, kinds: &[Kind]) -> String {
        let source = shorten(&self.text[node.from..node.to], 100);
        format!("`{source}` is {}, and `{what}` takes {}", Kind::name_of(value), Kind::any_of(kinds))
    }

    /// Values of different kinds are never equal.
    fn equal(&self, a: &Value, b: &Value, depth: usize) -> Result<bool, String> {
        self.spend(1)?;
        let deeper = || depth.checked_sub(1).ok_or_else(deep);
        match (a, b) {
            (Value::Null, Value::Null) => Ok(true),
            (Value::Bool(a), Value::Bool(b)) => Ok(a == b),
            (Value::Number(a), Value::Number(b)) => Ok(Number::of(a).compare(Number::of(b)).is_eq()),
            (Value::String(a), Value::String(b)) => self.spend(a.len().min(b.len())).map(|()| a == b),
            (Value::Array(a), Value::Array(b)) => {
                let depth = deeper()?;
                for (one, other) in a.iter().zip(b) {
                    if !self.equal(one, other, depth)? {
                        return Ok(false);
                    }
                }
                Ok(a.len() == b.len())
            }
            (Value::Object(a), Value::Object(b)) => {
                let depth = deeper()?;
                for (key, one) in a {
                    self.spend(key.len())?;
                    let Some(other) = b.get(key) else { return Ok(false) };
                    if !self.equal(one, other, depth)? {
                        return Ok(false);
                    }
                }
                Ok(a.len() == b.len())
            }
            _ => Ok(false),
        }
    }

    /// Counts list items that are looked at.
    fn look(&self, items: usize) -> Result<(), String> {
        self.items.set(self.items.get().saturating_add(items));
        if self.items.get() <= MAX_ITEMS {
            return Ok(());
        }
        Err(format!("the expression looks at more than {MAX_ITEMS} list items; let an agent do this"))
    }

    /// Counts bytes that are read or built.
    fn spend(&self, bytes: usize) -> Result<(), String> {
        self.work.set(self.work.get().saturating_add(bytes));
        if self.work.get() <= MAX_WORK {
            return Ok(());
        }
        Err(format!("the expression reads and builds more than {} KiB; let an agent do this", MAX_WORK / 1024))
    }

    /// A value for a list or a table that is being built.
    fn keep(&self, value: Cow<'_, Value>) -> Result<Value, String> {
        self.spend(weigh(&value, MAX_DEPTH)?)?;
        Ok(value.into_owned())
    }

    /// The result of an evaluation.
    pub(super) fn result(&self, value: Cow<'_, Value>) -> Result<Value, String> {
        if weigh(&value, MAX_DEPTH)? > MAX_RESULT {
            return Err(too_large());
        }
        Ok(value.into_owned())
    }
}

/// Says that a result is too long.
pub(super) fn too_large() -> String {
    format!("the result has more than {} KiB; take only what is needed", MAX_RESULT / 1024)
}

/// Bytes of a value, about as many as in JSON, with its escapes. Beyond [`MAX_WORK`] the count ends.
pub(super) fn weigh(value: &Value, depth: usize) -> Result<usize, String> {
    let mut bytes: usize = 2;
    let mut add = |inner: &Value, key: usize| {
        if bytes <= MAX_WORK {
            bytes += key + 1 + weigh(inner, depth - 1)?;
        }
        Ok::<(), String>(())
    };
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => return Ok(5),
        Value::String(text) => return Ok(json_length(text)),
        Value::Array(_) | Value::Object(_) if depth == 0 => return Err(deep()),
        Value::Array(list) => list.iter().try_for_each(|one| add(one, 0))?,
        Value::Object(table) => table.iter().try_for_each(|(key, one)| add(one, json_length(key) + 1))?,
    }
    Ok(bytes)
}

/// Bytes of a string in a message: two for quotes, backslashes and short escapes such as `\n`; six for other control
/// characters, U+FFFE and U+FFFF.
pub(super) fn json_length(text: &str) -> usize {
    let bytes = text.bytes().map(|b| match b {
        b'"' | b'\\' | b'\x08' | b'\t' | b'\n' | b'\x0c' | b'\r' => 2,
        0..0x20 => 6,
        _ => 1,
    });
    let noncharacters =
        if text.as_bytes().contains(&0xef) { text.matches(['\u{fffe}', '\u{ffff}']).count() } else { 0 };
    2 + bytes.sum::<usize>() + 3 * noncharacters
}

fn deep() -> String {
    format!("a value is nested deeper than {MAX_DEPTH} levels of lists and tables")
}

fn own(value: impl Into<Value>) -> Cow<'static, Value> {
    Cow::Owned(value.into())
}

fn field<'a>(value: &Cow<'a, Value>, name: &str) -> Option<Cow<'a, Value>> {
    match value {
        Cow::Borrowed(value) => value.get(name).map(Cow::Borrowed),
        Cow::Owned(value) => value.get(name).cloned().map(Cow::Owned),
    }
}

fn item<'a>(value: &Cow<'a, Value>, n: Number) -> Option<Cow<'a, Value>> {
    let Number::Whole(n) = n else { return None };
    let n = usize::try_from(n).ok()?;
    match value {
        Cow::Borrowed(value) => value.get(n).map(Cow::Borrowed),
        Cow::Owned(value) => value.get(n).cloned().map(Cow::Owned),
    }
}

/// A value as part of a string: a string as it is, anything else as JSON, where whole numbers have no point.
pub(super) fn text_of(value: &Value) -> Result<String, String> {
    struct Plain;
    impl serde_json::ser::Formatter for Plain {
        fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, n: f64) -> io::Result<()> {
            match Number::from(n) {
                Number::Whole(n) => write!(writer, "{n}"),
                Number::Double(n) => serde_json::ser::CompactFormatter.write_f64(writer, n),
            }
        }
    }
    match value {
        Value::Null => Err("null cannot become a string; write `first(...)` around it, ending in a string".into()),
        Value::String(text) => Ok(text.clone()),
        value => {
            weigh(value, MAX_DEPTH)?;
            let mut text = Vec::new();
            let mut serializer = serde_json::Serializer::with_formatter(&mut text, Plain);
            value.serialize(&mut serializer).map_err(|e| e.to_string())?;
            String::from_utf8(text).map_err(|e| e.to_string())
        }
    }
}

/// Adds the values of those parts of a condition that were evaluated.
pub(super) fn parts<'a>(run: &'a Run<'_>, node: &'a Node, is_whole: bool, found: &mut Vec<String>) {
    match &node.form {
        Form::Constant(_) => {}
        Form::Not(inner) => parts(run, inner, false, found),
        Form::And(left, right) | Form::Or(left, right) => {
            parts(run, left, false, found);
            let is_and = matches!(node.form, Form::And(..));
            if run.truth(left, "", None).is_ok_and(|truth| truth == is_and) {
                parts(run, right, false, found);
            }
        }
        Form::Both(operator, left, right) if !matches!(operator, Operator::Sum(_)) => {
            parts(run, left, false, found);
            parts(run, right, false, found);
        }
        Form::Choice(all) => {
            parts(run, &all[0], false, found);
            if let Ok(truth) = run.truth(&all[0], "", None) {
                parts(run, &all[if truth { 1 } else { 2 }], false, found);
            }
        }
        Form::Each(_, range, ..) if is_whole => parts(run, range, false, found),
        Form::Call(_, arguments) if is_whole => arguments.iter().for_each(|one| parts(run, one, false, found)),
        Form::List(_) | Form::Table(_) => {}
        _ if is_whole => {}
        _ => {
            let Ok(value) = run.value(node) else { return };
            let value = match &*value {
                Value::Array(list) => format!("a list of {}", list.len()),
                Value::Object(_) => "a table".into(),
                Value::String(text) => Value::from(shorten(text, 40)).to_string(),
                value => value.to_string(),
            };
            let part = format!("{} is {value}", shorten(&run.text[node.from..node.to], 80));
            if !found.contains(&part) {
                found.push(part);
            }
        }
    }
}
