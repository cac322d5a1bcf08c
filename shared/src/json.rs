//! JSON at the edges: input from outside is read strictly, and output is written so that every service accepts it.
//!
//! A parser that follows RFC 8259 may keep either of two equal keys and may round a number, so it may accept something
//! else than was sent. And it may fail to read a value again that was stored deeper in a record. [`check`] refuses all
//! three. [`read_own`] reads what this program wrote, without a check.

use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserializer, Serialize};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;

/// Maximum number of levels of arrays and objects in an input or an output. Requests and records hold it up to three
/// levels deeper, which is below the 64 levels that parsers of other languages read by default, and far below the 127
/// of serde_json.
pub const MAX_DEPTH: usize = 50;
/// Maximum number of levels read in this program's own text. Versions before [`MAX_DEPTH`] accepted whatever serde_json
/// read, and stored it deeper.
const MAX_OWN_DEPTH: usize = 200;
/// Prefix of the keys that serde_json reserves for its features `raw_value` and `arbitrary_precision`, which any crate
/// in the build can switch on.
pub(crate) const RESERVED: &str = "$serde_json::private::";

/// Why a text is refused. `Display` is a sentence for its sender, without the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not JSON, or more than one value: the parser's words, with line and column.
    #[error("{0}")]
    Syntax(String),
    /// More levels than every parser reads.
    #[error("is nested too deep: the limit is {MAX_DEPTH} levels of arrays and objects")]
    Deep,
    /// An object has a key twice, and parsers differ in which value they keep.
    #[error("occurs twice; send each key once")]
    Twice,
    /// A whole number beyond 64 bits would lose its last digits.
    #[error("is {0}, a whole number beyond 64 bits; send it as a string")]
    Number(String),
    /// No double is that large.
    #[error("is a number beyond what a double holds; send it as a string")]
    Range,
    /// A key that serde_json reserves: it would read a value that was not sent, or fail to read what it wrote.
    #[error("is a name that the JSON parser reserves; choose another one")]
    Reserved,
}

/// A [`Fault`] and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What is wrong.
    pub fault: Fault,
    /// Where, such as `input.lines[2].sku`; empty for the whole value.
    pub at: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.fault, self.at.as_str()) {
            (Fault::Syntax(_), _) => write!(f, "{}", self.fault),
            (_, "") => write!(f, "the value {}", self.fault),
            (_, at) => write!(f, "`{at}` {}", self.fault),
        }
    }
}

/// Checks that `text` is one JSON value that means the same to every parser. Only the parser's own depth limit applies;
/// [`is_deep`] checks ours.
///
/// # Errors
/// The first fault and its place.
pub fn check(text: &[u8]) -> Result<(), Refused> {
    let mut found = Found { keys: Vec::new(), large: 0, wrong: None, fault: None, at: Vec::new() };
    found.walk(text)?;
    // Only the text shows whether so large a float was written as a whole number.
    let Some((nth, number)) = (found.large > 0).then(|| integer_beyond(text)).flatten() else { return Ok(()) };
    let mut found = Found { keys: Vec::new(), large: 0, wrong: Some((nth, number)), fault: None, at: Vec::new() };
    found.walk(text)
}

/// The value in `text`, checked.
///
/// # Errors
/// As [`check`]; and [`Fault::Deep`] beyond [`MAX_DEPTH`].
pub fn read_value(text: &[u8]) -> Result<Value, Refused> {
    check(text)?;
    let whole = |fault| Refused { fault, at: String::new() };
    let value = serde_json::from_slice(text).map_err(|e| whole(syntax(&e)))?;
    if is_deep(&value) { Err(whole(Fault::Deep)) } else { Ok(value) }
}

/// Length of `value` in bytes of JSON.
pub(crate) fn length(value: &impl Serialize) -> usize {
    serde_json::to_string(value).map_or(usize::MAX, |json| json.len())
}

/// Whether `value` has more than `most` bytes of JSON, or is nested too deep.
pub(crate) fn exceeds(value: &Value, most: usize) -> bool {
    length(value) > most || is_deep(value)
}

/// Whether `value` is what a reader takes for an absent field, so that JSON need not have it.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Whether `value` is nested deeper than [`MAX_DEPTH`].
#[must_use]
pub fn is_deep(value: &Value) -> bool {
    fn deeper(value: &Value, left: usize) -> bool {
        match value {
            Value::Array(all) => left == 0 || all.iter().any(|one| deeper(one, left - 1)),
            Value::Object(all) => left == 0 || all.values().any(|one| deeper(one, left - 1)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        }
    }
    deeper(value, MAX_DEPTH)
}

/// Reads what any version of this program wrote. Unlike serde_json alone, it also reads what an earlier version stored
/// too deep for serde_json.
///
/// # Errors
/// The text does not parse as a `T`.
pub fn read_own<T: DeserializeOwned>(text: &str) -> Result<T, serde_json::Error> {
    serde_json::from_str(text).or_else(|error| {
        if !is_limit(&error) || depth(text.as_bytes()) > MAX_OWN_DEPTH {
            return Err(error);
        }
        let mut deserializer = serde_json::Deserializer::from_str(text);
        deserializer.disable_recursion_limit();
        let value = T::deserialize(&mut deserializer)?;
        deserializer.end().map(|()| value)
    })
}

/// Why a record with something unknown to this version is refused. The advice comes first, because long texts are cut
/// at the end.
pub const NEWER: &str = "a newer version wrote it; deploy that version again (docs/deploy.md#roll-back)";
/// Why a record that no version wrote is refused.
pub const DAMAGED: &str = "it is damaged (docs/runbook.md#record-unreadable)";

/// Why a record of this program could not be read, and what to do. An unknown name comes from a newer version, because
/// fields and names are only ever added; anything else is damage. `place` says where in the record.
#[must_use]
pub fn why_unread(error: &serde_json::Error, place: &str) -> String {
    let text = error.to_string();
    // A list of known names is no help.
    let unknown = text.strip_prefix("unknown ").and_then(|rest| rest.split(", expected").next());
    match unknown.filter(|_| error.is_data()) {
        Some(name) => format!("{NEWER}: {place}: unknown {name}"),
        None => format!("{DAMAGED}: {place}: {text}"),
    }
}

/// `message` as JSON that SQS accepts. SQS allows the characters of XML 1.0 (AWS, "SendMessage"). serde_json escapes
/// control characters; otherwise XML lacks only U+FFFE and U+FFFF.
///
/// # Panics
/// If a map in it has keys that are not strings.
#[must_use]
pub fn write(message: &impl Serialize) -> String {
    let text = serde_json::to_string(message).expect("messages have only string keys");
    // In UTF-8, both begin with this rare byte.
    if !text.as_bytes().contains(&0xef) || !text.contains(['\u{fffe}', '\u{ffff}']) {
        return text;
    }
    // JSON is ASCII outside strings, so both are inside strings.
    text.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff")
}

fn syntax(error: &serde_json::Error) -> Fault {
    match error {
        _ if is_limit(error) => Fault::Deep,
        _ if is_said(error, "number out of range") => Fault::Range,
        _ => Fault::Syntax(error.to_string()),
    }
}

fn is_limit(error: &serde_json::Error) -> bool {
    is_said(error, "recursion limit exceeded")
}

/// serde_json gives no other way to tell; tests pin its words.
fn is_said(error: &serde_json::Error, words: &str) -> bool {
    error.is_syntax() && error.to_string().starts_with(words)
}

/// Walks over a value without keeping it.
struct Found<'de> {
    /// Keys of all open objects, outermost first.
    keys: Vec<Cow<'de, str>>,
    /// Number of floats so far that are too large for 64 bits.
    large: usize,
    /// Which of these was written as a whole number, and its text.
    wrong: Option<(usize, String)>,
    fault: Option<Fault>,
    /// Where the fault is, innermost part first.
    at: Vec<Part>,
}

enum Part {
    Key(String),
    Index(usize),
}

impl<'de> Found<'de> {
    fn walk(&mut self, text: &'de [u8]) -> Result<(), Refused> {
        let mut deserializer = serde_json::Deserializer::from_slice(text);
        let walked = Walk(self).deserialize(&mut deserializer).and_then(|()| deserializer.end());
        walked.map_err(|error| {
            let fault = self.fault.take().unwrap_or_else(|| syntax(&error));
            // The place where reading ended is useless for a value nested too deep: name only the outermost part.
            let depth = if fault == Fault::Deep { 1 } else { usize::MAX };
            Refused { at: self.place(depth), fault }
        })
    }

    fn place(&self, depth: usize) -> String {
        self.at.iter().rev().take(depth).fold(String::new(), |at, part| match part {
            Part::Key(key) if at.is_empty() => key.clone(),
            Part::Key(key) => format!("{at}.{key}"),
            Part::Index(n) => format!("{at}[{n}]"),
        })
    }
}

struct Walk<'a, 'de>(&'a mut Found<'de>);

impl<'de> DeserializeSeed<'de> for Walk<'_, 'de> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<(), E> {
        if is_large(number) {
            if let Some((nth, text)) = &self.0.wrong
                && *nth == self.0.large
            {
                self.0.fault = Some(Fault::Number(text.clone()));
                return Err(E::custom("a number beyond 64 bits"));
            }
            self.0.large += 1;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<(), A::Error> {
        let found = self.0;
        for n in 0.. {
            match all.next_element_seed(Walk(found)) {
                Ok(Some(())) => {}
                Ok(None) => break,
                Err(error) => {
                    found.at.push(Part::Index(n));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<(), A::Error> {
        let found = self.0;
        let first = found.keys.len();
        while let Some(key) = all.next_key_seed(Key)? {
            if key.starts_with(RESERVED) {
                found.at.push(Part::Key(key.into_owned()));
                found.fault = Some(Fault::Reserved);
                return Err(A::Error::custom("a reserved key"));
            }
            found.keys.push(key);
            let own = found.keys.len() - 1;
            if let Err(error) = all.next_value_seed(Walk(found)) {
                found.at.push(Part::Key(found.keys[own].clone().into_owned()));
                return Err(error);
            }
        }
        let keys = &mut found.keys[first..];
        keys.sort_unstable();
        if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            found.at.push(Part::Key(pair[0].clone().into_owned()));
            found.fault = Some(Fault::Twice);
            return Err(A::Error::custom("a duplicate key"));
        }
        found.keys.truncate(first);
        Ok(())
    }
}

/// A key, borrowed if possible.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }
    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(key))
    }
    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}

/// Whether the parser may have read this float from a whole number beyond 64 bits.
fn is_large(number: f64) -> bool {
    /// 2^63.
    const BEYOND: f64 = 9_223_372_036_854_775_808.0;
    number.abs() >= BEYOND
}

/// The first whole number beyond 64 bits in `text`, which is JSON, and how many floats that large precede it.
fn integer_beyond(text: &[u8]) -> Option<(usize, String)> {
    let (mut nth, mut at) = (0, 0);
    while at < text.len() {
        match text[at] {
            b'"' => at = after_string(text, at),
            b'-' | b'0'..=b'9' => {
                let is_part = |b: &u8| b.is_ascii_digit() || b"+-.eE".contains(b);
                let end = text[at..].iter().position(|b| !is_part(b)).map_or(text.len(), |length| at + length);
                let token = std::str::from_utf8(&text[at..end]).expect("ASCII");
                let fits = token.parse::<u64>().is_ok() || token.parse::<i64>().is_ok();
                if !fits && token.parse().is_ok_and(is_large) {
                    if !token.contains(['.', 'e', 'E']) {
                        return Some((nth, crate::history::shorten(token, 60)));
                    }
                    nth += 1;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    None
}

/// How deep `text`, which need not be JSON, is nested.
fn depth(text: &[u8]) -> usize {
    let (mut deepest, mut depth, mut at) = (0, 0_usize, 0);
    while at < text.len() {
        match text[at] {
            b'"' => {
                at = after_string(text, at);
                continue;
            }
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    deepest
}

/// The place after the string that begins at `at`.
fn after_string(text: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while at < text.len() {
        match text[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}
