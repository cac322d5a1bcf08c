//! The one kind of number: whole within 64 bits, or else a double.

use serde_json::Value;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// A number; 5 and 5.0 are the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    /// Within 64 bits, with or without a sign.
    Whole(i128),
    /// Not whole, or a double beyond 64 bits.
    Double(f64),
}
use Number::{Double, Whole};

/// Operators with two numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sum {
    Add,
    Subtract,
    Multiply,
    Divide,
    Rest,
}

const BEYOND: &str = "the number is beyond 64 bits";
/// -2^63 and 2^64.
const BOUNDS: (f64, f64) = (-9_223_372_036_854_775_808.0, 18_446_744_073_709_551_616.0);

impl Number {
    pub(crate) fn of(number: &serde_json::Number) -> Self {
        let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
        whole.map_or_else(|| Self::from(number.as_f64().unwrap_or(f64::MAX)), Whole)
    }

    /// As JSON, a whole one without a point.
    pub(super) fn value(self) -> Result<Value, String> {
        let value = match self {
            Whole(n) => i64::try_from(n).map(Value::from).or_else(|_| u64::try_from(n).map(Value::from)).ok(),
            Double(n) if (BOUNDS.0..BOUNDS.1).contains(&n) => serde_json::Number::from_f64(n).map(Value::Number),
            Double(_) => None,
        };
        value.ok_or_else(|| BEYOND.into())
    }

    pub(crate) fn double(self) -> f64 {
        match self {
            // Beyond 2^53 the nearest double.
            Whole(n) => n as f64,
            Double(n) => n,
        }
    }

    pub(crate) fn compare(self, other: Self) -> Ordering {
        match (self, other) {
            (Whole(a), Whole(b)) => a.cmp(&b),
            // Such a double is not whole, or beyond all whole ones: rounding cannot carry a whole number across.
            _ => self.double().total_cmp(&other.double()),
        }
    }

    pub(super) fn with(self, sum: Sum, other: Self) -> Result<Self, String> {
        if matches!(sum, Sum::Divide | Sum::Rest) && other.double() == 0.0 {
            return Err("it divides by zero".into());
        }
        if let (Whole(a), Whole(b)) = (self, other) {
            let whole = match sum {
                Sum::Add => Some(a + b),
                Sum::Subtract => Some(a - b),
                Sum::Multiply => Some(a.checked_mul(b).ok_or(BEYOND)?),
                Sum::Divide => (a % b == 0).then(|| a / b),
                Sum::Rest => Some(a % b),
            };
            if let Some(n) = whole {
                return if Whole(n).value().is_ok() { Ok(Whole(n)) } else { Err(BEYOND.into()) };
            }
        }
        let (a, b) = (self.double(), other.double());
        Ok(Self::from(match sum {
            Sum::Add => a + b,
            Sum::Subtract => a - b,
            Sum::Multiply => a * b,
            Sum::Divide => a / b,
            Sum::Rest => a % b,
        }))
    }
}

impl From<f64> for Number {
    fn from(n: f64) -> Self {
        if n.fract() == 0.0 && (BOUNDS.0..BOUNDS.1).contains(&n) { Whole(n as i128) } else { Double(n) }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Whole(n) => n.fmt(f),
            Double(n) => n.fmt(f),
        }
    }
}

/// Equal numbers hash to the same.
impl Hash for Number {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        match self {
            Whole(n) => n.hash(hasher),
            Double(n) => n.to_bits().hash(hasher),
        }
    }
}

/// Whether two values are equal as expressions see it: 5 is 5.0.
#[must_use]
pub fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => Number::of(one).compare(Number::of(other)).is_eq(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, one)| other.get(key).is_some_and(|other| same(one, other)))
        }
        (one, other) => one == other,
    }
}
