//! Expressions: what a workflow file says about data, such as `input.amount > 1000`.
//!
//! The syntax is a subset of CEL's (the Common Expression Language). The meaning differs where a workflow needs it:
//! there is one kind of number, `has` and `first` accept paths that end early, and `&&` and `||` go from left to right.
//! The interpreter is our own. The crate `cel` takes 31 s of processor time to build and adds a megabyte to each
//! binary. It distinguishes signed from unsigned integers, so `count + 1` fails on JSON. And its debug build overflows
//! the stack at 13 brackets.
//!
//! An expression is parsed and checked once and then only evaluated. It cannot loop and reads no clock. Its size is
//! bounded when it is parsed, and its work when it runs. The caller checks which names are allowed at a place of the
//! file, by [`Expression::references`].

mod check;
mod function;
mod number;
mod run;
mod syntax;
mod template;
mod token;

pub(crate) use function::instant;
pub(crate) use number::Number;
pub use number::same;
pub use template::{Mapping, Part, Template};

use run::{Run, Stop};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Longest expression, in bytes.
pub const MAX_TEXT: usize = 500;
/// Most levels of brackets.
pub const MAX_BRACKETS: usize = 8;
/// Most operators.
pub const MAX_OPERATORS: usize = 40;
/// Most list items that macros and functions look at in one evaluation.
pub const MAX_ITEMS: usize = 10_000;
/// Most bytes of a result, about as in JSON: the limit of an output.
pub const MAX_RESULT: usize = 256 * 1024;
/// Most bytes that functions and comparisons read and build in one evaluation: a few passes over the largest output.
pub const MAX_WORK: usize = 4 * MAX_RESULT;

/// The names that an expression may begin with. `now` is a number: seconds since 1970, as `time(...)` gives.
pub const ROOTS: [&str; 20] = [
    "input", "config", "order", "now", "outputs", "ran", "errors", "item", "index", "answer", "status", "header",
    "event", "by", "events", "error", "output", "callback", "links", "page",
];

/// What is wrong, where, and what to write instead, as `Display`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// The byte in the text.
    pub at: usize,
    /// One sentence.
    pub message: String,
}

fn fault(at: usize, message: impl Into<String>) -> Fault {
    Fault { at, message: message.into() }
}

/// Why an evaluation has no result: one sentence that names the expression and the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Mistake(pub String);

/// The kinds of values; null has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// true or false
    Bool,
    /// Whole or not.
    Number,
    /// A string.
    Text,
    /// An array.
    List,
    /// An object.
    Table,
}

impl Kind {
    fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Null => None,
            Value::Bool(_) => Some(Self::Bool),
            Value::Number(_) => Some(Self::Number),
            Value::String(_) => Some(Self::Text),
            Value::Array(_) => Some(Self::List),
            Value::Object(_) => Some(Self::Table),
        }
    }

    pub(crate) fn name_of(value: &Value) -> String {
        Self::of(value).map_or("null".into(), |kind| kind.to_string())
    }

    fn any_of(kinds: &[Self]) -> String {
        let names: Vec<String> = kinds.iter().map(Self::to_string).collect();
        match names.split_last() {
            Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
            _ => names.concat(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bool => "true or false",
            Self::Number => "a number",
            Self::Text => "a string",
            Self::List => "a list",
            Self::Table => "a table",
        })
    }
}

/// A path that an expression reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Such as `["outputs", "create", "id"]`. It ends before a numeric or computed index.
    pub path: Vec<String>,
    /// The byte where it begins in the text that was parsed: an expression, or the template around it.
    pub at: usize,
    /// Whether the value may be missing: inside `has` or `first`, or, for `outputs.X`, where it is only evaluated if
    /// `ran.X` or a `has` on its output is true.
    pub guarded: bool,
    /// Whether a missing value is absent, and no mistake: it has a `.?`.
    pub optional: bool,
}

impl Reference {
    /// Whether a missing value is no mistake.
    #[must_use]
    pub fn copes(&self) -> bool {
        self.guarded || self.optional
    }

    /// Whether it reads the field `field` of `root`, or all of `root`.
    pub(crate) fn covers(&self, root: &str, field: &str) -> bool {
        self.path[0] == root && self.path.get(1).is_none_or(|one| one == field)
    }
}

/// A condition's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// Its result.
    pub holds: bool,
    /// The values of its parts, such as "`input.amount > 1000` is false: input.amount is 250"; at most 300 bytes.
    pub why: String,
}

/// The values of the names in one evaluation.
#[derive(Clone, Debug, Default)]
pub struct Names<'a> {
    all: Vec<(&'static str, Cow<'a, Value>)>,
}

impl<'a> Names<'a> {
    /// No names.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With `root`, one of [`ROOTS`]. `uuid(...)` reads `order.id`.
    #[must_use]
    pub fn with(mut self, root: &'static str, value: impl Into<Cow<'a, Value>>) -> Self {
        debug_assert!(ROOTS.contains(&root), "{root}");
        self.all.retain(|(name, _)| *name != root);
        self.all.push((root, value.into()));
        self
    }

    /// What `root` stands for.
    #[must_use]
    pub fn get(&self, root: &str) -> Option<&Value> {
        self.all.iter().find(|(name, _)| *name == root).map(|(_, value)| &**value)
    }
}

/// A parsed expression. Two are equal if their texts are.
#[derive(Clone)]
pub struct Expression(Arc<Parsed>);

struct Parsed {
    text: String,
    node: syntax::Node,
    known: check::Known,
}

impl Expression {
    /// Parses `text`, without `${` and `}`.
    ///
    /// # Errors
    /// What is wrong, where, and what to write instead.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        Self::read(text, false, 0).map(|(expression, _)| expression)
    }

    fn reread(text: &str) -> Result<Self, Fault> {
        Self::parse(text)
    }

    /// Parses a condition, which gives true or false.
    ///
    /// # Errors
    /// As [`Self::parse`]; and if the expression visibly gives something else.
    pub fn condition(text: &str) -> Result<Self, Fault> {
        let expression = Self::parse(text)?;
        let known = &expression.0.known;
        if known.is_optional {
            let message = format!(
                "`{text}` may be absent, and a condition is true or false; write `has({})`",
                text.replace(".?", ".")
            );
            return Err(fault(0, message));
        }
        match known.kind {
            None | Some(Kind::Bool) => Ok(expression),
            Some(kind) => Err(fault(
                0,
                format!("`{text}` is {kind}, and a condition is true or false; compare it with something"),
            )),
        }
    }

    /// Parses `text`: all of it or, in a template, up to the closing brace. `at` is its place there. The second result
    /// is where it ends.
    fn read(text: &str, is_template: bool, at: usize) -> Result<(Self, usize), Fault> {
        let shift = |f: Fault| fault(f.at + at, f.message);
        let (node, end) = syntax::parse(text, is_template).map_err(shift)?;
        let text = text[..end].to_owned();
        let known = check::check(&text, &node, at).map_err(shift)?;
        Ok((Self(Arc::new(Parsed { text, node, known })), end))
    }

    /// As it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The value.
    ///
    /// # Errors
    /// The sentence says why there is none.
    pub fn evaluate(&self, names: &Names<'_>) -> Result<Value, Mistake> {
        let absent = || Mistake(format!("`{}` is absent", self.text()));
        self.optional(names)?.ok_or_else(absent)
    }

    /// The value, or `None` if something behind a `.?` is absent.
    ///
    /// # Errors
    /// The sentence says why there is none.
    pub fn optional(&self, names: &Names<'_>) -> Result<Option<Value>, Mistake> {
        let run = Run::new(self.text(), names);
        match run.value(&self.0.node) {
            Ok(value) => run.result(value).map(Some).map_err(|why| run.mistake(&why)),
            Err(Stop::Absent) => Ok(None),
            Err(Stop::Mistake(why)) => Err(run.mistake(&why)),
        }
    }

    /// Whether the expression is true, and why.
    ///
    /// # Errors
    /// The sentence says why it is neither true nor false.
    pub fn test(&self, names: &Names<'_>) -> Result<Test, Mistake> {
        self.tested(names, &Run::new(self.text(), names), Value::Null)
    }

    /// [`Self::test`], where a missing or null value makes the condition false.
    ///
    /// # Errors
    /// The sentence says why it is neither true nor false.
    pub fn test_of_what_is_there(&self, names: &Names<'_>) -> Result<Test, Mistake> {
        self.tested(names, &Run::patient(self.text(), names), Value::Bool(false))
    }

    fn tested(&self, names: &Names<'_>, run: &Run<'_>, absent: Value) -> Result<Test, Mistake> {
        const MAX_WHY: usize = 300;
        let value = match run.value(&self.0.node) {
            Ok(value) if !value.is_null() => value.into_owned(),
            Ok(_) | Err(Stop::Absent) => absent,
            Err(Stop::Mistake(why)) => return Err(run.mistake(&why)),
        };
        let Value::Bool(holds) = value else {
            return Err(
                run.mistake(&format!("the result is {}, and a condition is true or false", Kind::name_of(&value)))
            );
        };
        let run = Run::new(self.text(), names);
        let mut parts = Vec::new();
        run::parts(&run, &self.0.node, true, &mut parts);
        let mut why = format!("`{}` is {holds}", crate::history::shorten(self.text().trim(), 150));
        for (n, part) in parts.iter().enumerate() {
            let joint = if n == 0 { ": " } else { ", " };
            if why.len() + joint.len() + part.len() <= MAX_WHY {
                why = why + joint + part;
            }
        }
        Ok(Test { holds, why })
    }

    /// All that it reads.
    #[must_use]
    pub fn references(&self) -> &[Reference] {
        &self.0.known.references
    }

    /// The kind of the result, if visible.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        self.0.known.kind
    }

    /// The steps, by their names in expressions, that ran if this condition is true: what depends on it may read their
    /// outputs.
    #[must_use]
    pub fn implies_ran(&self) -> &[String] {
        &self.0.known.ran
    }

    /// The steps, by their names in expressions, that cannot have run, or failed, if this condition is true.
    #[must_use]
    pub fn implies_not_run(&self) -> &[String] {
        &self.0.known.not_run
    }

    /// The texts that it compares `error.kind` and `errors.STEP.kind` with.
    #[must_use]
    pub fn failure_kinds(&self) -> &[String] {
        &self.0.known.failures
    }

    /// Whether this condition and `other` are visibly never both true, such as `input.x` and `!input.x`. False for
    /// conditions that read `now`, which changes.
    #[must_use]
    pub fn excludes(&self, other: &Self) -> bool {
        let is_fixed = |one: &Self| one.references().iter().all(|reference| reference.path[0] != "now");
        is_fixed(self) && is_fixed(other) && check::exclude(&self.0.node, &other.0.node)
    }
}

/// The names of all functions and macros, for documents and their tests.
pub fn functions() -> impl Iterator<Item = &'static str> {
    function::names()
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.text()).finish()
    }
}

/// Implements equality, hash and serialization by the text as it was written.
macro_rules! written {
    ($name:ident) => {
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.text() == other.text()
            }
        }
        impl Eq for $name {}
        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.text().hash(state);
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.text())
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <Cow<'_, str>>::deserialize(deserializer)?;
                Self::reread(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}
written!(Expression);
written!(Template);
