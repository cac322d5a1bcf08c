//! Whole numbers in JSON, where 2 and 2.0 are the same, because some languages write either.

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use serde_json::Value;
use std::fmt;
use std::marker::PhantomData;

/// 2^53; beyond it, one floating-point number may mean several whole numbers.
const EXACT: f64 = 9_007_199_254_740_992.0;

struct Whole<T>(T);

impl<'de, T: TryFrom<i128>> Deserialize<'de> for Whole<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number<T>(PhantomData<T>);
        impl<T: TryFrom<i128>> Visitor<'_> for Number<T> {
            type Value = Whole<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of at least 0")
            }
            fn visit_u64<E: Error>(self, n: u64) -> Result<Whole<T>, E> {
                T::try_from(i128::from(n)).map(Whole).map_err(|_| E::custom(format!("{n} is too large")))
            }
            fn visit_i64<E: Error>(self, n: i64) -> Result<Whole<T>, E> {
                T::try_from(i128::from(n)).map(Whole).map_err(|_| match n {
                    ..0 => E::invalid_value(Unexpected::Signed(n), &self),
                    0.. => E::custom(format!("{n} is too large")),
                })
            }
            fn visit_f64<E: Error>(self, n: f64) -> Result<Whole<T>, E> {
                self.visit_i64(exact(n).ok_or_else(|| E::custom(format!("{n} is not a whole number")))?)
            }
        }
        deserializer.deserialize_any(Number(PhantomData))
    }
}

fn exact(n: f64) -> Option<i64> {
    #[allow(clippy::cast_possible_truncation)] // it is whole and below 2^53
    (n.fract() == 0.0 && n.abs() < EXACT).then_some(n as i64)
}

/// For `deserialize_with`.
///
/// # Errors
/// Not a whole number, or out of range for the type.
pub fn number<'de, D: Deserializer<'de>, T: TryFrom<i128>>(deserializer: D) -> Result<T, D::Error> {
    Whole::deserialize(deserializer).map(|Whole(n)| n)
}

/// For `deserialize_with`, beside `default`.
///
/// # Errors
/// Not a whole number, or out of range for the type.
pub fn optional<'de, D: Deserializer<'de>, T: TryFrom<i128>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Whole<T>>::deserialize(deserializer)?.map(|Whole(n)| n))
}

/// Writes every whole number in `value` without a fraction.
pub fn write(value: &mut Value) {
    match value {
        Value::Number(n) => {
            if let Some(whole) = n.as_f64().filter(|_| n.is_f64()).and_then(exact) {
                *value = whole.into();
            }
        }
        Value::Array(all) => all.iter_mut().for_each(write),
        Value::Object(all) => all.values_mut().for_each(write),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn two_and_two_point_nothing_are_one_number() {
        let read = |text: &str| optional::<_, u32>(&mut serde_json::Deserializer::from_str(text)).map_err(drop);
        for (text, wanted) in [
            ("2", Ok(Some(2))),
            ("2.0", Ok(Some(2))),
            ("2e1", Ok(Some(20))),
            ("-0.0", Ok(Some(0))),
            ("null", Ok(None)),
            ("2.5", Err(())),
            ("-1", Err(())),
            ("4294967296", Err(())),
            ("1e300", Err(())),
            ("\"2\"", Err(())),
        ] {
            assert_eq!(read(text), wanted, "{text}");
        }
        let mut value = json!({"a": [2.0, 2.5, -3.0, 1e300, u64::MAX], "b": {"c": 1.0}});
        write(&mut value);
        assert_eq!(value, json!({"a": [2, 2.5, -3, 1e300, u64::MAX], "b": {"c": 1}}));
    }
}
