//! A workflow's own check of an order's input: a subset of JSON Schema 2020-12.
//!
//! A schema is read once into a tree of this module's types, so checking an input cannot fail because of the schema.
//! Keywords outside the subset are refused when the schema is read, because an ignored check would let orders through
//! that its author meant to refuse. Everything is bounded by the size of schema and input: there is no regular
//! expression, `$ref` leads only to `$defs` of the same document and never in a circle, and `uniqueItems` compares
//! hashes.

use crate::expression::{Number, same};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use std::cmp::Ordering::{Greater, Less};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Longest schema, in bytes of JSON. It is part of the definition.
pub const MAX_BYTES: usize = 64 * 1024;
/// Deepest schema, references included.
pub const MAX_LEVELS: usize = 32;
/// Most faults reported of one input.
pub const MAX_FAULTS: usize = 5;
/// Most single checks of one input, because nested lists and alternatives multiply.
const MAX_CHECKS: usize = 1_000_000;
/// Dialect; others are refused.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// A part of an input that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// JSON Pointer (RFC 6901) to the part; empty for the whole input.
    pub at: String,
    /// What it must be, as the end of a sentence: `must be at least 1`.
    pub message: String,
}

/// A workflow file's check of an order's input. In a definition it is the schema as written.
#[derive(Clone, Debug)]
pub struct Input {
    json: Value,
    schema: Arc<Schema>,
}

impl Input {
    /// The check that `json` describes.
    ///
    /// # Errors
    /// Those of [`read`].
    pub fn new(json: Value) -> Result<Self, String> {
        Ok(Self { schema: Arc::new(read(&json)?), json })
    }

    /// What it checks.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        &self.schema
    }
}

impl PartialEq for Input {
    fn eq(&self, other: &Self) -> bool {
        self.json == other.json
    }
}

impl Eq for Input {}

impl Hash for Input {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.json.hash(state);
    }
}

impl Serialize for Input {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// A schema that was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schema {
    /// `false` fits nothing.
    never: bool,
    kinds: Vec<&'static str>,
    one_of_these: Option<Vec<Value>>,
    minimum: Option<Number>,
    maximum: Option<Number>,
    above: Option<Number>,
    below: Option<Number>,
    multiple_of: Option<Number>,
    length: (Option<u64>, Option<u64>),
    items_count: (Option<u64>, Option<u64>),
    keys_count: (Option<u64>, Option<u64>),
    unique: bool,
    format: Option<&'static str>,
    required: Vec<String>,
    properties: BTreeMap<String, Schema>,
    /// For keys that `properties` lacks.
    others: Option<Box<Schema>>,
    first_items: Vec<Schema>,
    items: Option<Box<Schema>>,
    all: Vec<Schema>,
    any: Vec<Schema>,
    one: Vec<Schema>,
    not: Option<Box<Schema>>,
    /// `if`, `then`, `else`.
    choice: Option<Box<[Schema; 3]>>,
}

const KINDS: [&str; 7] = ["null", "boolean", "object", "array", "number", "string", "integer"];
const FORMATS: [&str; 5] = ["date-time", "date", "uuid", "email", "uri"];
/// Keys that check nothing.
const NOTES: [&str; 11] = [
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
];

/// Reads the schema in `json`.
///
/// # Errors
/// Why `json` is not a schema: the JSON Pointer of the faulty part, and what to write instead.
pub fn read(json: &Value) -> Result<Schema, String> {
    let bytes = json.to_string().len();
    if bytes > MAX_BYTES {
        return Err(format!("the schema has {bytes} bytes; the limit is {MAX_BYTES}, so describe less of the input"));
    }
    let mut reader = Reader { root: json, under_way: Vec::new(), left: 10_000 };
    reader.read(json, "", 0)
}

struct Reader<'a> {
    root: &'a Value,
    /// References being followed.
    under_way: Vec<String>,
    /// How many more schemas may be read, because references multiply.
    left: usize,
}

impl<'a> Reader<'a> {
    fn read(&mut self, json: &'a Value, at: &str, level: usize) -> Result<Schema, String> {
        let wrong = |why: String| format!("`{}`: {why}", if at.is_empty() { "/" } else { at });
        self.left =
            self.left.checked_sub(1).ok_or_else(|| wrong("the schema is too large once `$ref` is followed".into()))?;
        if level > MAX_LEVELS {
            return Err(wrong(format!("it is nested deeper than {MAX_LEVELS} levels; write it flatter")));
        }
        let table = match json {
            Value::Bool(is) => return Ok(Schema { never: !is, ..Schema::default() }),
            Value::Object(table) => table,
            _ => return Err(wrong("a schema is an object, true or false".into())),
        };
        let mut schema = Schema::default();
        for (key, value) in table {
            let here = format!("{at}/{}", escaped(key));
            let wrong = |why: &str| Err(format!("`{here}`: {why}"));
            match key.as_str() {
                "$schema" if level == 0 && value.as_str().is_none_or(|text| text.trim_end_matches('#') != DIALECT) => {
                    return wrong(&format!(
                        "this is not the dialect \"{DIALECT}\"; write that one, or leave the line out"
                    ));
                }
                "$defs" if level == 0 => {
                    let Some(all) = value.as_object() else { return wrong("it must be an object of schemas") };
                    for (name, one) in all {
                        self.read(one, &format!("{here}/{}", escaped(name)), level + 1)?;
                    }
                }
                "$ref" => schema.all.push(self.follow(value, &here, level)?),
                "type" => {
                    let names: Vec<&Value> = value.as_array().map_or_else(|| vec![value], |all| all.iter().collect());
                    for name in names {
                        let Some(kind) = KINDS.into_iter().find(|kind| name == kind) else {
                            return wrong(&format!("{name} is not a type; write one of {}", KINDS.join(", ")));
                        };
                        schema.kinds.push(kind);
                    }
                    if schema.kinds.is_empty() {
                        return wrong("the list is empty, so nothing fits; write at least one type");
                    }
                }
                "enum" => match value.as_array().filter(|all| !all.is_empty()) {
                    Some(all) => schema.one_of_these = Some(all.clone()),
                    None => return wrong("it must be a list of at least one value"),
                },
                "const" => schema.one_of_these = Some(vec![value.clone()]),
                "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => {
                    let Value::Number(number) = value else { return wrong("it must be a number") };
                    let number = Number::of(number);
                    match key.as_str() {
                        "minimum" => schema.minimum = Some(number),
                        "maximum" => schema.maximum = Some(number),
                        "exclusiveMinimum" => schema.above = Some(number),
                        "exclusiveMaximum" => schema.below = Some(number),
                        _ if number.double() > 0.0 => schema.multiple_of = Some(number),
                        _ => return wrong("it must be above 0"),
                    }
                }
                "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                    let Some(count) = value.as_u64() else { return wrong("it must be a whole number of at least 0") };
                    *match key.as_str() {
                        "minLength" => &mut schema.length.0,
                        "maxLength" => &mut schema.length.1,
                        "minItems" => &mut schema.items_count.0,
                        "maxItems" => &mut schema.items_count.1,
                        "minProperties" => &mut schema.keys_count.0,
                        _ => &mut schema.keys_count.1,
                    } = Some(count);
                }
                "uniqueItems" => match value.as_bool() {
                    Some(is) => schema.unique = is,
                    None => return wrong("it must be true or false"),
                },
                "format" => match FORMATS.into_iter().find(|format| value == format) {
                    Some(format) => schema.format = Some(format),
                    None => return wrong(&format!("{value} is not checked here; write one of {}", FORMATS.join(", "))),
                },
                "required" => {
                    let names = value.as_array().map(|all| all.iter().filter_map(Value::as_str).map(str::to_owned));
                    match names
                        .map(Iterator::collect::<Vec<_>>)
                        .filter(|names| Some(names.len()) == value.as_array().map(Vec::len))
                    {
                        Some(names) => schema.required = names,
                        None => return wrong("it must be a list of names"),
                    }
                }
                "properties" => {
                    let Some(all) = value.as_object() else { return wrong("it must be an object of schemas") };
                    for (name, one) in all {
                        let read = self.read(one, &format!("{here}/{}", escaped(name)), level + 1)?;
                        schema.properties.insert(name.clone(), read);
                    }
                }
                "additionalProperties" => schema.others = Some(Box::new(self.read(value, &here, level + 1)?)),
                "items" => schema.items = Some(Box::new(self.read(value, &here, level + 1)?)),
                "not" => schema.not = Some(Box::new(self.read(value, &here, level + 1)?)),
                "prefixItems" | "allOf" | "anyOf" | "oneOf" => {
                    let Some(all) = value.as_array().filter(|all| !all.is_empty()) else {
                        return wrong("it must be a list of at least one schema");
                    };
                    for (n, one) in all.iter().enumerate() {
                        let read = self.read(one, &format!("{here}/{n}"), level + 1)?;
                        match key.as_str() {
                            "prefixItems" => schema.first_items.push(read),
                            "allOf" => schema.all.push(read),
                            "anyOf" => schema.any.push(read),
                            _ => schema.one.push(read),
                        }
                    }
                }
                "if" => {
                    let mut part = |name: &str| match table.get(name) {
                        Some(one) => self.read(one, &format!("{at}/{name}"), level + 1),
                        None => Ok(Schema::default()),
                    };
                    schema.choice = Some(Box::new([part("if")?, part("then")?, part("else")?]));
                }
                "then" | "else" if table.contains_key("if") => {}
                "then" | "else" => return wrong("it means nothing without `if`"),
                "pattern" | "patternProperties" => {
                    return wrong("regular expressions are not checked here; use `enum`, `format` or lengths");
                }
                note if NOTES.contains(&note) => {}
                other => {
                    return wrong(&format!("there is no keyword `{other}` here; docs/workflows.md lists all keywords"));
                }
            }
        }
        Ok(schema)
    }

    fn follow(&mut self, value: &'a Value, at: &str, level: usize) -> Result<Schema, String> {
        let inside = value.as_str().and_then(|text| text.strip_prefix('#'));
        let Some(pointer) = inside else {
            return Err(format!("`{at}`: {value} leads out of the document; write for example \"#/$defs/address\""));
        };
        let Some(target) = self.root.pointer(pointer) else {
            return Err(format!("`{at}`: {value} leads nowhere; add it below `$defs`"));
        };
        if self.under_way.iter().any(|other| other == pointer) {
            return Err(format!("`{at}`: {value} leads back to itself; a schema here cannot be recursive"));
        }
        self.under_way.push(pointer.to_owned());
        let read = self.read(target, pointer, level + 1);
        self.under_way.pop();
        read
    }
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

impl Schema {
    /// What is wrong with `input`: at most [`MAX_FAULTS`].
    #[must_use]
    pub fn faults(&self, input: &Value) -> Vec<Fault> {
        let mut check = Check { faults: Vec::new(), left: MAX_CHECKS };
        check.visit(self, input, "");
        if check.left == 0 && check.faults.is_empty() {
            check.add("", format!("is too large to be checked: it needs more than {MAX_CHECKS} checks"));
        }
        check.faults
    }

    /// Whether no fitting input has the field at `path`, because a table on the way excludes its key.
    #[must_use]
    pub fn excludes(&self, path: &[String]) -> bool {
        let Some((first, rest)) = path.split_first() else { return self.never };
        let here = match (self.properties.get(first), &self.others) {
            (Some(of), _) => of.excludes(rest),
            (None, Some(others)) => others.never || others.excludes(rest),
            (None, None) => false,
        };
        here || self.all.iter().any(|one| one.excludes(path))
            || !self.any.is_empty() && self.any.iter().all(|one| one.excludes(path))
            || !self.one.is_empty() && self.one.iter().all(|one| one.excludes(path))
    }
}

struct Check {
    faults: Vec<Fault>,
    left: usize,
}

impl Check {
    fn add(&mut self, at: &str, message: String) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(Fault { at: at.to_owned(), message });
        }
    }

    /// Whether `value` fits, without reasons.
    fn fits(&mut self, schema: &Schema, value: &Value) -> bool {
        let mut own = Check { faults: Vec::new(), left: self.left };
        own.visit(schema, value, "");
        self.left = own.left;
        own.faults.is_empty()
    }

    fn visit(&mut self, schema: &Schema, value: &Value, at: &str) {
        if self.left == 0 || self.faults.len() >= MAX_FAULTS {
            return;
        }
        self.left -= 1;
        if schema.never {
            return self.add(at, "must not be there".into());
        }
        if !schema.kinds.is_empty() && !schema.kinds.iter().any(|kind| is(value, kind)) {
            return self.add(
                at,
                format!("must be {}", schema.kinds.iter().map(|kind| named(kind)).collect::<Vec<_>>().join(" or ")),
            );
        }
        if let Some(all) = &schema.one_of_these
            && !all.iter().any(|one| same(one, value))
        {
            self.left = self.left.saturating_sub(all.len());
            let words: Vec<String> = all.iter().take(10).map(Value::to_string).collect();
            return self.add(at, format!("must be {}", words.join(" or ")));
        }
        match value {
            Value::Number(number) => self.number(schema, Number::of(number), at),
            Value::String(text) => self.text(schema, text, at),
            Value::Array(list) => self.list(schema, list, at),
            Value::Object(table) => self.table(schema, table, at),
            Value::Null | Value::Bool(_) => {}
        }
        schema.all.iter().for_each(|one| self.visit(one, value, at));
        if !schema.any.is_empty() && !schema.any.iter().any(|one| self.fits(one, value)) {
            self.add(at, format!("must fit one of {} alternatives", schema.any.len()));
        }
        if !schema.one.is_empty() {
            let count = schema.one.iter().filter(|one| self.fits(one, value)).count();
            if count != 1 {
                self.add(at, format!("must fit exactly one of {} alternatives, but fits {count}", schema.one.len()));
            }
        }
        if let Some(not) = &schema.not
            && self.fits(not, value)
        {
            self.add(at, "must not have this form".into());
        }
        if let Some(choice) = &schema.choice {
            let [condition, then, other] = &**choice;
            let next = if self.fits(condition, value) { then } else { other };
            self.visit(next, value, at);
        }
    }

    fn number(&mut self, schema: &Schema, number: Number, at: &str) {
        let is = |bound: &Number, order| number.compare(*bound) == order;
        let rules = [
            (schema.minimum.filter(|least| is(least, Less)), "at least"),
            (schema.maximum.filter(|most| is(most, Greater)), "at most"),
            (schema.above.filter(|bound| !is(bound, Greater)), "above"),
            (schema.below.filter(|bound| !is(bound, Less)), "below"),
        ];
        for (broken, words) in rules {
            if let Some(bound) = broken {
                self.add(at, format!("must be {words} {bound}"));
            }
        }
        if let Some(step) = schema.multiple_of.filter(|step| !is_multiple(number, *step)) {
            self.add(at, format!("must be a multiple of {step}"));
        }
    }

    fn text(&mut self, schema: &Schema, text: &str, at: &str) {
        if schema.length != (None, None) {
            self.count(schema.length, text.chars().count(), "character", at);
        }
        if let Some(format) = schema.format
            && !has_format(text, format)
        {
            let (words, example) = match format {
                "date-time" => ("a time", "2026-01-31T08:00:00Z"),
                "date" => ("a date", "2026-01-31"),
                "uuid" => ("a UUID", "3f2504e0-4f89-41d3-9a0c-0305e82c3301"),
                "email" => ("an email address", "ada@example.com"),
                _ => ("a URI", "https://example.com/a"),
            };
            self.add(at, format!("must be {words}, such as {example}"));
        }
    }

    fn count(&mut self, (least, most): (Option<u64>, Option<u64>), count: usize, what: &str, at: &str) {
        let count = count as u64;
        let s = |n: u64| if n == 1 { "" } else { "s" };
        if let Some(least) = least.filter(|least| count < *least) {
            self.add(at, format!("must have at least {least} {what}{}, but has {count}", s(least)));
        }
        if let Some(most) = most.filter(|most| count > *most) {
            self.add(at, format!("must have at most {most} {what}{}, but has {count}", s(most)));
        }
    }

    fn list(&mut self, schema: &Schema, list: &[Value], at: &str) {
        self.count(schema.items_count, list.len(), "item", at);
        if schema.unique {
            let mut seen: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
            for (n, item) in list.iter().enumerate() {
                let mut hasher = DefaultHasher::new();
                weigh(item, &mut hasher);
                let alike = seen.entry(hasher.finish()).or_default();
                if let Some(first) = alike.iter().find(|first| same(&list[**first], item)) {
                    let first = *first;
                    self.add(at, format!("must have no item twice, but items {first} and {n} are the same"));
                    break;
                }
                alike.push(n);
            }
        }
        for (n, item) in list.iter().enumerate() {
            let of = schema.first_items.get(n).or(schema.items.as_deref());
            if let Some(of) = of {
                self.visit(of, item, &format!("{at}/{n}"));
            }
        }
    }

    fn table(&mut self, schema: &Schema, table: &Map<String, Value>, at: &str) {
        self.count(schema.keys_count, table.len(), "field", at);
        for name in schema.required.iter().filter(|name| !table.contains_key(*name)) {
            self.add(&format!("{at}/{}", escaped(name)), "is required".into());
        }
        for (name, value) in table {
            let of = schema.properties.get(name).or(schema.others.as_deref());
            let Some(of) = of else { continue };
            let here = format!("{at}/{}", escaped(name));
            if of.never && !schema.properties.contains_key(name) {
                let known: Vec<&str> = schema.properties.keys().take(20).map(String::as_str).collect();
                self.add(
                    &here,
                    match known.as_slice() {
                        [] => "is not known: no fields are allowed here".into(),
                        known => format!("is not known; the fields are {}", known.join(", ")),
                    },
                );
            } else {
                self.visit(of, value, &here);
            }
        }
    }
}

/// Exact for whole numbers. Others are compared as decimal fractions: 0.3 is a multiple of 0.1, though the double nearest
/// to 0.1 is a little too large.
fn is_multiple(number: Number, of: Number) -> bool {
    if let (Number::Whole(number), Number::Whole(of)) = (number, of) {
        return number % of == 0;
    }
    let times = number.double() / of.double();
    (times - times.round()).abs() <= 4.0 * f64::EPSILON * times.abs()
}

fn is(value: &Value, kind: &str) -> bool {
    match (kind, value) {
        ("null", Value::Null) | ("boolean", Value::Bool(_)) | ("object", Value::Object(_)) => true,
        ("array", Value::Array(_)) | ("string", Value::String(_)) | ("number", Value::Number(_)) => true,
        // 5.0 is an integer (JSON Schema 2020-12, core, 6.3).
        ("integer", Value::Number(number)) => {
            number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        _ => false,
    }
}

fn named(kind: &str) -> &str {
    match kind {
        "null" => "null",
        "boolean" => "true or false",
        "object" => "an object",
        "array" => "a list",
        "number" => "a number",
        "string" => "a string",
        _ => "a whole number",
    }
}

/// Hashes equal values to the same.
fn weigh(value: &Value, hasher: &mut DefaultHasher) {
    match value {
        Value::Null => 0u8.hash(hasher),
        Value::Bool(is) => (1u8, is).hash(hasher),
        Value::Number(number) => (2u8, Number::of(number)).hash(hasher),
        Value::String(text) => (3u8, text).hash(hasher),
        Value::Array(all) => {
            (4u8, all.len()).hash(hasher);
            all.iter().for_each(|one| weigh(one, hasher));
        }
        Value::Object(table) => {
            (5u8, table.len()).hash(hasher);
            let sorted: BTreeMap<_, _> = table.iter().collect();
            for (key, one) in sorted {
                key.hash(hasher);
                weigh(one, hasher);
            }
        }
    }
}

fn has_format(text: &str, format: &str) -> bool {
    match format {
        "date-time" => {
            text.len() <= 40
                && text.contains(['T', 't'])
                && text.parse::<jiff::Timestamp>().is_ok()
                && !text.contains('[')
        }
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "uuid" => {
            text.len() == 36
                && text
                    .bytes()
                    .enumerate()
                    .all(|(n, b)| if [8, 13, 18, 23].contains(&n) { b == b'-' } else { b.is_ascii_hexdigit() })
        }
        "email" => text.split_once('@').is_some_and(|(user, host)| {
            !user.is_empty()
                && !host.is_empty()
                && !host.contains('@')
                && !text.contains(|c: char| c.is_whitespace() || c.is_control())
        }),
        _ => text.split_once(':').is_some_and(|(scheme, rest)| {
            scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
                && !rest.is_empty()
                && text.bytes().all(|b| b.is_ascii_graphic())
        }),
    }
}
