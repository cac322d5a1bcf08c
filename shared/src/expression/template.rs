//! Texts with expressions in them, and trees of such texts.

use super::run::{json_length, text_of, too_large, weigh};
use super::{Expression, Fault, MAX_RESULT, Mistake, Names, ROOTS, Reference, fault};
use crate::json::{self, MAX_DEPTH, RESERVED};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A text with `${...}` in it. Two are equal if their texts are.
#[derive(Clone, Debug)]
pub struct Template(Arc<Parsed>);

#[derive(Debug)]
struct Parsed {
    text: String,
    parts: Vec<Part>,
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A text that stays as it is.
    Literal(String),
    /// What was written in `${...}`.
    Expression(Expression),
}

impl Template {
    /// Parses a string in which `${...}` is an expression and `$${` a literal `${`.
    ///
    /// # Errors
    /// What is wrong, where, and what to write instead. Faults are faulty expressions, and other languages' braces
    /// around a known name, such as `{{ input.x }}`.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        Self::scan(text, true)
    }

    /// Parses a stored template. Braces are not refused, because a [`Self::literal`] may have any. And a `$` before
    /// `{order_id}`, from before there were expressions, stays a `$`.
    pub(super) fn reread(text: &str) -> Result<Self, Fault> {
        Self::scan(text, false)
    }

    /// A text in which nothing is an expression.
    #[must_use]
    pub fn literal(text: &str) -> Self {
        let parts = if text.is_empty() { Vec::new() } else { vec![Part::Literal(text.to_owned())] };
        Self(Arc::new(Parsed { text: text.replace("${", "$${"), parts }))
    }

    fn scan(text: &str, is_new: bool) -> Result<Self, Fault> {
        let (mut parts, mut literal, mut at) = (Vec::new(), String::new(), 0);
        while at < text.len() {
            let rest = &text[at..];
            if rest.starts_with("$${") {
                literal.push_str("${");
                at += "$${".len();
            } else if let Some(inner) = rest.strip_prefix("${").filter(|inner| is_new || !is_placeholder(inner)) {
                let start = at + "${".len();
                let (expression, length) = Expression::read(inner, true, start)?;
                if !literal.is_empty() {
                    parts.push(Part::Literal(std::mem::take(&mut literal)));
                }
                parts.push(Part::Expression(expression));
                at = start + length + "}".len();
            } else {
                if is_new && rest.starts_with('{') {
                    foreign(rest, at)?;
                }
                let length = rest.chars().next().map_or(1, char::len_utf8);
                // Everything up to the next character that can mean something.
                let end = rest[length..].find(['$', '{']).map_or(rest.len(), |n| length + n);
                literal.push_str(&rest[..end]);
                at += end;
            }
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        Ok(Self(Arc::new(Parsed { text: text.to_owned(), parts })))
    }

    /// Its literal parts, joined. Everything if constant.
    #[must_use]
    pub fn literal_text(&self) -> String {
        let literal = |part: &Part| match part {
            Part::Literal(text) => text.clone(),
            Part::Expression(_) => String::new(),
        };
        self.parts().iter().map(literal).collect()
    }

    /// As it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// Whether there is no expression in it.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.parts().iter().all(|part| matches!(part, Part::Literal(_)))
    }

    /// Literals and expressions in turn; for an empty text none.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.0.parts
    }

    /// All that its expressions read.
    pub fn references(&self) -> impl Iterator<Item = &Reference> {
        self.parts().iter().flat_map(|part| match part {
            Part::Literal(_) => &[],
            Part::Expression(expression) => expression.references(),
        })
    }

    /// The value: that of a single `${...}`, or else the parts as one text. `None` if that single expression is an
    /// absent `.?`.
    ///
    /// # Errors
    /// The sentence says why there is none.
    pub fn evaluate(&self, names: &Names<'_>) -> Result<Option<Value>, Mistake> {
        match self.parts() {
            [Part::Expression(expression)] => expression.optional(names),
            _ => self.text_of(names).map(|text| Some(text.into())),
        }
    }

    /// The parts as one text: numbers, lists and tables as in JSON.
    ///
    /// # Errors
    /// The sentence says why there is none, such as that a value is null or absent.
    pub fn text_of(&self, names: &Names<'_>) -> Result<String, Mistake> {
        let mut whole = String::new();
        for part in self.parts() {
            match part {
                Part::Literal(text) => whole.push_str(text),
                Part::Expression(expression) => {
                    let text = text_of(&expression.evaluate(names)?);
                    whole.push_str(&text.map_err(|why| Mistake(format!("`{}`: {why}", expression.text())))?);
                }
            }
            if whole.len() > MAX_RESULT {
                return Err(Mistake(too_large()));
            }
        }
        Ok(whole)
    }
}

/// Whether `inner`, inside braces, is a placeholder of a URL or a header, not an expression.
fn is_placeholder(inner: &str) -> bool {
    ["order_id}", "step}", "secret:"].iter().any(|known| inner.starts_with(known))
}

/// Refuses other languages' braces around a known name. `rest` begins with a brace.
fn foreign(rest: &str, at: usize) -> Result<(), Fault> {
    let is_double = rest.starts_with("{{");
    let inner = rest[if is_double { 2 } else { 1 }..].trim_start();
    let name = inner.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
    let is_path = inner[name.len()..].starts_with(['.', '[']);
    if !ROOTS.contains(&name) || !(is_path || is_double) {
        return Ok(());
    }
    let inside = inner.split(['}', '\n']).next().unwrap_or_default().trim();
    let inside = crate::history::shorten(inside, 60);
    let written = if is_double { "{{" } else { "{" };
    Err(fault(at, format!("`{written}` before `{name}` would stay a string; write `${{{inside}}}`")))
}

/// A JSON tree whose strings are templates. Written and read as that JSON.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Mapping {
    /// null, true, false or a number.
    Constant(Value),
    /// A text.
    Text(Template),
    /// An array.
    List(Vec<Mapping>),
    /// An object.
    Table(BTreeMap<String, Mapping>),
}

impl Mapping {
    /// The keys, if this is a table.
    #[must_use]
    pub fn keys(&self) -> Option<Vec<&str>> {
        match self {
            Self::Table(table) => Some(table.keys().map(String::as_str).collect()),
            Self::Constant(_) | Self::Text(_) | Self::List(_) => None,
        }
    }

    /// Parses every string of `value`. Keys stay as they are.
    ///
    /// # Errors
    /// The first fault. Its message names the path in the tree; its place is one in that string.
    pub fn from_json(value: &Value) -> Result<Self, Fault> {
        if json::is_deep(value) {
            let message = format!("the value is nested deeper than {MAX_DEPTH} levels; write it flatter");
            return Err(fault(0, message));
        }
        Self::read(value, "", Template::parse)
    }

    fn read(value: &Value, path: &str, parse: fn(&str) -> Result<Template, Fault>) -> Result<Self, Fault> {
        let place = |f: Fault| if path.is_empty() { f } else { fault(f.at, format!("`{path}`: {}", f.message)) };
        Ok(match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => Self::Constant(value.clone()),
            Value::String(text) => Self::Text(parse(text).map_err(place)?),
            Value::Array(all) => {
                let read = |(n, one)| Self::read(one, &format!("{path}[{n}]"), parse);
                Self::List(all.iter().enumerate().map(read).collect::<Result<_, _>>()?)
            }
            Value::Object(all) => {
                let mut table = BTreeMap::new();
                for (key, one) in all {
                    if key.starts_with(RESERVED) {
                        let message = format!("`{key}` is a name that the JSON parser reserves; choose another one");
                        return Err(place(fault(0, message)));
                    }
                    if key.contains("${") {
                        let message = format!(
                            "the key `{key}` holds `${{`, but keys are not computed; write the table as one expression, `${{{{...}}}}`"
                        );
                        return Err(place(fault(0, message)));
                    }
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    table.insert(key.clone(), Self::read(one, &path, parse)?);
                }
                Self::Table(table)
            }
        })
    }

    /// The tree with values in place of the templates. An absent `.?` leaves out its key or its list item; alone it
    /// gives null.
    ///
    /// # Errors
    /// The sentence says why there is none.
    pub fn evaluate(&self, names: &Names<'_>) -> Result<Value, Mistake> {
        let mut left = MAX_RESULT;
        let value = self.build(names, &mut left)?.unwrap_or(Value::Null);
        if json::is_deep(&value) {
            return Err(Mistake(format!("the result is nested deeper than {MAX_DEPTH} levels of lists and tables")));
        }
        Ok(value)
    }

    /// `left`: bytes that the result may still have.
    fn build(&self, names: &Names<'_>, left: &mut usize) -> Result<Option<Value>, Mistake> {
        Ok(Some(match self {
            Self::Constant(value) => {
                take(left, 5)?;
                value.clone()
            }
            Self::Text(template) => {
                let Some(value) = template.evaluate(names)? else { return Ok(None) };
                take(left, weigh(&value, MAX_DEPTH).map_err(Mistake)?)?;
                value
            }
            Self::List(all) => {
                let mut list = Vec::with_capacity(all.len());
                for one in all {
                    list.extend(one.build(names, left)?);
                }
                list.into()
            }
            Self::Table(all) => {
                let mut table = serde_json::Map::new();
                for (key, one) in all {
                    if let Some(value) = one.build(names, left)? {
                        take(left, json_length(key) + 1)?;
                        table.insert(key.clone(), value);
                    }
                }
                table.into()
            }
        }))
    }

    /// All that its expressions read.
    #[must_use]
    pub fn references(&self) -> Vec<&Reference> {
        match self {
            Self::Constant(_) => Vec::new(),
            Self::Text(template) => template.references().collect(),
            Self::List(all) => all.iter().flat_map(Self::references).collect(),
            Self::Table(all) => all.values().flat_map(Self::references).collect(),
        }
    }

    /// Number of its expressions.
    #[must_use]
    pub fn expressions(&self) -> usize {
        match self {
            Self::Constant(_) => 0,
            Self::Text(template) => template.parts().iter().filter(|part| matches!(part, Part::Expression(_))).count(),
            Self::List(all) => all.iter().map(Self::expressions).sum(),
            Self::Table(all) => all.values().map(Self::expressions).sum(),
        }
    }

    /// Whether there is no expression in it.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.expressions() == 0
    }
}

fn take(left: &mut usize, bytes: usize) -> Result<(), Mistake> {
    *left = left.checked_sub(bytes).ok_or_else(|| Mistake(too_large()))?;
    Ok(())
}

impl Serialize for Mapping {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Constant(value) => value.serialize(serializer),
            Self::Text(template) => template.serialize(serializer),
            Self::List(all) => all.serialize(serializer),
            Self::Table(all) => all.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Mapping {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::read(&Value::deserialize(deserializer)?, "", Template::reread).map_err(serde::de::Error::custom)
    }
}
