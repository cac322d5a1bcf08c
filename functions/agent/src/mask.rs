//! Keeps secrets out of what is recorded about an answer.

use serde_json::Value;
use std::cmp::Reverse;

/// Texts that a remote service may repeat and no record may contain.
#[derive(Default)]
pub(crate) struct Mask(Vec<String>);

impl Mask {
    pub(crate) fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        let mut secrets: Vec<_> = secrets.into_iter().filter(|secret| !secret.is_empty()).collect();
        // Longest first, because masking a shorter one inside would leave the rest.
        secrets.sort_unstable_by_key(|secret| Reverse(secret.len()));
        Self(secrets)
    }

    /// `text` with `***` for each secret. Call this before cutting the text, because a part of a secret is not found.
    pub(crate) fn text(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
    }

    /// `value` with every text masked, keys included. A number that contains a secret of digits becomes a text.
    pub(crate) fn value(&self, value: Value) -> Value {
        if self.0.is_empty() {
            return value;
        }
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(all) => Value::Array(all.into_iter().map(|one| self.value(one)).collect()),
            Value::Object(all) => {
                Value::Object(all.into_iter().map(|(name, one)| (self.text(&name), self.value(one))).collect())
            }
            Value::Number(number) => {
                let text = number.to_string();
                let masked = self.text(&text);
                if masked == text { Value::Number(number) } else { Value::String(masked) }
            }
            Value::Null | Value::Bool(_) => value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    // Security: in whatever order the secrets are given, and wherever they occur.
    #[test]
    fn no_part_of_a_secret_is_left() {
        for secrets in [["s3cret", "s3cret-more", ""], ["s3cret-more", "", "s3cret"]] {
            let mask = Mask::new(secrets.map(str::to_owned));
            assert_eq!(mask.text("a s3cret-more b s3cret"), "a *** b ***");
            let value = json!({"s3cret": ["of s3cret-more", 7, null], "else": {"x": "s3cret"}});
            assert_eq!(mask.value(value), json!({"***": ["of ***", 7, null], "else": {"x": "***"}}));
        }
        assert_eq!(Mask::default().value(json!({"a": "b"})), json!({"a": "b"}));
    }

    // Security: a service may return a secret of digits as a number.
    #[test]
    fn a_secret_of_digits_is_masked_in_numbers() {
        let mask = Mask::new(["48151623".to_owned()]);
        let value = json!({"pin": 48151623, "with": [48151623.5, -4815162342_i64], "other": 4815, "price": 1.5});
        assert_eq!(mask.value(value), json!({"pin": "***", "with": ["***.5", "-***42"], "other": 4815, "price": 1.5}));
    }
}
