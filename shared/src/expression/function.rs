//! The functions: one row each, with its arguments, result and code.
//!
//! Calls are checked against the row when they are parsed and when they run, so the code need not check its arguments.

use super::number::{Number, Sum};
use super::run::{text_of, too_large};
use super::{Kind, MAX_ITEMS, MAX_RESULT};
use crate::json;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fmt;

/// A function's result, or why it has none.
type Given = Result<Value, String>;

/// How a function is written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Written {
    /// `text(a)`
    Before,
    /// `a.trim()`
    Behind,
    /// `size(a)` and `a.size()`
    Either,
}

/// One row of the table.
pub(super) struct Function {
    pub name: &'static str,
    written: Written,
    /// The kinds of each argument, a method's receiver first; an empty list is any kind.
    pub takes: &'static [&'static [Kind]],
    /// How many may be left out at the end.
    optional: usize,
    pub gives: Option<Kind>,
    pub code: fn(&[Cow<'_, Value>]) -> Given,
}

impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

const ANY: &[Kind] = &[];
const TEXT: &[Kind] = &[Kind::Text];
const NUMBER: &[Kind] = &[Kind::Number];
const LIST: &[Kind] = &[Kind::List];
const FEW: &[Kind] = &[Kind::Text, Kind::Number];
const MANY: &[Kind] = &[Kind::Text, Kind::List, Kind::Table];

const fn row(
    name: &'static str,
    written: Written,
    takes: &'static [&'static [Kind]],
    gives: Option<Kind>,
    code: fn(&[Cow<'_, Value>]) -> Given,
) -> Function {
    Function { name, written, takes, optional: 0, gives, code }
}

use Written::{Before, Behind, Either};
static FUNCTIONS: [Function; 20] = [
    row("text", Before, &[ANY], Some(Kind::Text), |a| text_of(&a[0]).map(Value::String)),
    row("string", Before, &[ANY], Some(Kind::Text), |a| text_of(&a[0]).map(Value::String)),
    row("from_json", Before, &[TEXT], None, |a| {
        json::read_value(text(&a[0]).as_bytes()).map_err(|e| format!("the string cannot be read as JSON: {e}"))
    }),
    row("cut", Before, &[TEXT, NUMBER], Some(Kind::Text), |a| {
        let most = place(&a[1])?;
        Ok(text(&a[0]).chars().take(most).collect::<String>().into())
    }),
    row("round", Before, &[NUMBER], Some(Kind::Number), |a| whole(&a[0], f64::round)),
    row("int", Before, &[FEW], Some(Kind::Number), |a| match &*a[0] {
        Value::String(text) => match text.parse() {
            Ok(n) => Number::Whole(n).value(),
            Err(_) => Err("the string is not a whole number".into()),
        },
        value => whole(value, f64::trunc),
    }),
    row("double", Before, &[FEW], Some(Kind::Number), |a| match &*a[0] {
        Value::String(text) => match serde_json::from_str(text) {
            Ok(n) => Number::of(&n).value(),
            Err(_) => Err("the string is not a number".into()),
        },
        value => Ok(value.clone()),
    }),
    row("sum", Before, &[LIST], Some(Kind::Number), |a| {
        let mut sum = Number::Whole(0);
        for (n, item) in list(&a[0]).iter().enumerate() {
            let Value::Number(item) = item else {
                return Err(format!("item {n} is {}, not a number", Kind::name_of(item)));
            };
            sum = sum.with(Sum::Add, Number::of(item))?;
        }
        sum.value()
    }),
    row("time", Before, &[TEXT], Some(Kind::Number), |a| time(text(&a[0]))),
    // The order's id comes first; the evaluator puts it there.
    row("uuid", Before, &[TEXT], Some(Kind::Text), |a| Ok(uuid(text(&a[0]), text(&a[1])).into())),
    row("size", Either, &[MANY], Some(Kind::Number), |a| {
        Ok(match &*a[0] {
            Value::String(text) => text.chars().count(),
            Value::Array(list) => list.len(),
            Value::Object(table) => table.len(),
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
        .into())
    }),
    row("contains", Behind, &[TEXT, TEXT], Some(Kind::Bool), |a| Ok(text(&a[0]).contains(text(&a[1])).into())),
    row("startsWith", Behind, &[TEXT, TEXT], Some(Kind::Bool), |a| Ok(text(&a[0]).starts_with(text(&a[1])).into())),
    row("endsWith", Behind, &[TEXT, TEXT], Some(Kind::Bool), |a| Ok(text(&a[0]).ends_with(text(&a[1])).into())),
    row("split", Behind, &[TEXT, TEXT], Some(Kind::List), |a| split(text(&a[0]), text(&a[1]))),
    Function {
        optional: 1,
        ..row("join", Behind, &[LIST, TEXT], Some(Kind::Text), |a| {
            let items = list(&a[0]).iter().enumerate();
            let texts = items.map(|(n, item)| text_of(item).map_err(|why| format!("item {n}: {why}")));
            let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
            let by = a.get(1).map_or("", |by| text(by));
            if by.len().saturating_mul(texts.len()) > MAX_RESULT {
                return Err(too_large());
            }
            Ok(texts.join(by).into())
        })
    },
    Function {
        optional: 1,
        ..row("substring", Behind, &[TEXT, NUMBER, NUMBER], Some(Kind::Text), |a| {
            let from = place(&a[1])?;
            let to = a.get(2).map_or(Ok(usize::MAX), |to| place(to))?;
            Ok(text(&a[0]).chars().take(to).skip(from).collect::<String>().into())
        })
    },
    row("trim", Behind, &[TEXT], Some(Kind::Text), |a| Ok(text(&a[0]).trim().into())),
    row("lowerAscii", Behind, &[TEXT], Some(Kind::Text), |a| Ok(text(&a[0]).to_ascii_lowercase().into())),
    row("upperAscii", Behind, &[TEXT], Some(Kind::Text), |a| Ok(text(&a[0]).to_ascii_uppercase().into())),
];

/// A function that evaluates an expression for each item of a list, or each key of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Macro {
    All,
    Exists,
    ExistsOne,
    Filter,
    Map,
}

impl Macro {
    const ALL: [Self; 5] = [Self::All, Self::Exists, Self::ExistsOne, Self::Filter, Self::Map];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Exists => "exists",
            Self::ExistsOne => "exists_one",
            Self::Filter => "filter",
            Self::Map => "map",
        }
    }

    pub(super) fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.name() == name)
    }

    pub(super) fn example(self) -> String {
        match self {
            Self::Map => "map(x, x.sku)".into(),
            _ => format!("{}(x, x.amount > 0)", self.name()),
        }
    }
}

/// The names of all functions and macros.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ["has", "first"].into_iter().chain(FUNCTIONS.iter().map(|f| f.name)).chain(Macro::ALL.map(Macro::name))
}

/// The function called `name`, or why the call is refused. `count` counts arguments and receiver.
pub(super) fn find(name: &str, is_method: bool, count: usize) -> Result<&'static Function, String> {
    let Some(function) = FUNCTIONS.iter().find(|f| f.name == name) else {
        return Err(match name {
            "has" | "first" => format!("`{name}` is written before its paths; write `{name}(input.note)`"),
            _ if Macro::find(name).is_some() => {
                format!("`{name}` is written after a list; write `list.{name}(x, ...)`")
            }
            _ => format!("there is no function `{name}`; write one of {}", names().collect::<Vec<_>>().join(", ")),
        });
    };
    let written_so = if is_method { Before } else { Behind };
    let is_fit = (function.takes.len() - function.optional..=function.takes.len()).contains(&count);
    if function.written != written_so && is_fit {
        return Ok(function);
    }
    let mut usage = vec!["a", "b", "c"];
    usage.truncate(function.takes.len());
    let usage = match function.written {
        Before | Either => format!("{name}({})", usage.join(", ")),
        Behind => format!("a.{name}({})", usage[1..].join(", ")),
    };
    Err(format!("`{name}` is not written like this; write `{usage}`"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value) -> Number {
    value.as_number().map_or(Number::Whole(0), Number::of)
}

/// A number of characters.
fn place(value: &Value) -> Result<usize, String> {
    match number(value) {
        Number::Whole(n) => usize::try_from(n).map_err(|_| "a number of characters is below zero".into()),
        Number::Double(_) => Err("a number of characters is not whole".into()),
    }
}

/// A number without decimals. Doubles beyond 64 bits have none.
fn whole(value: &Value, by: fn(f64) -> f64) -> Given {
    match number(value) {
        Number::Double(n) => Number::from(by(n)).value().or_else(|_| Ok(value.clone())),
        whole @ Number::Whole(_) => whole.value(),
    }
}

fn split(text: &str, by: &str) -> Given {
    let all: Vec<Value> = if by.is_empty() {
        text.chars().take(MAX_ITEMS + 1).map(|c| c.to_string().into()).collect()
    } else {
        text.split(by).take(MAX_ITEMS + 1).map(Into::into).collect()
    };
    if all.len() > MAX_ITEMS { Err(format!("the list has more than {MAX_ITEMS} items")) } else { Ok(all.into()) }
}

/// Seconds since 1970, with up to three decimals.
fn time(text: &str) -> Given {
    let time =
        instant(text).ok_or("the string is not an RFC 3339 time with an offset, such as 2026-01-31T08:00:00Z")?;
    Number::Whole(time.as_millisecond().into()).with(Sum::Divide, Number::Whole(1000))?.value()
}

/// A time as in RFC 3339 with an offset.
pub(crate) fn instant(text: &str) -> Option<jiff::Timestamp> {
    let bytes = text.as_bytes();
    let is_zoned = text.ends_with(['Z', 'z'])
        || matches!(bytes, [.., b'+' | b'-', h1, h2, b':', m1, m2] if [h1, h2, m1, m2].iter().all(|b| b.is_ascii_digit()));
    let is_shaped =
        [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')].iter().all(|(at, sign)| bytes.get(*at) == Some(sign));
    let is_joined = matches!(bytes.get(10), Some(b'T' | b't'));
    if is_zoned && is_shaped && is_joined { text.parse().ok() } else { None }
}

/// A UUID of version 8 (RFC 9562) from SHA-256, determined by the order and the name, and unique to them.
fn uuid(order: &str, name: &str) -> String {
    let hash = Sha256::new().chain_update(order).chain_update([0]).chain_update(name).finalize();
    let mut bytes: [u8; 16] = std::array::from_fn(|n| hash[n]);
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
