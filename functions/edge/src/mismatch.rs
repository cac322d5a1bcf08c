//! Says in words of JSON why a value is not what was expected. Serde says it in words of Rust.

/// The reason that `error` gives, a message of serde.
#[must_use]
pub fn in_words(error: &str) -> String {
    let (message, place) = match error.rfind(" at line ") {
        Some(at) => error.split_at(at),
        None => (error, ""),
    };
    // What the parser says of a number where it reads one of a few words.
    if message == "expected value" {
        return format!("must be a string{place}");
    }
    if let Some(field) = message.strip_prefix("missing field ") {
        return format!("{field} is missing{place}");
    }
    let found =
        ["invalid type: ", "invalid value: ", "unknown variant "].iter().find_map(|head| message.strip_prefix(head));
    let Some((found, expected)) = found.and_then(|rest| rest.rsplit_once(", expected ")) else {
        return error.to_owned();
    };
    format!("must be {}, not {}{place}", of_type(expected), of_value(found))
}

fn of_type(expected: &str) -> &str {
    match expected {
        "a map" => "an object",
        "a sequence" => "an array",
        "a boolean" => "true or false",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of at least 0",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        expected if expected.starts_with("struct ") => "an object",
        expected => expected,
    }
}

fn of_value(found: &str) -> String {
    let code = |found: &str| found.trim_matches('`').to_owned();
    match found {
        "map" => "an object".into(),
        "sequence" => "an array".into(),
        found => match found.split_once(' ') {
            Some(("integer", number)) => code(number),
            Some(("boolean", value)) => code(value),
            Some(("floating", rest)) => code(rest.strip_prefix("point ").unwrap_or(rest)),
            Some(("string", text)) => text.to_owned(),
            _ => found.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    #[allow(dead_code, reason = "they are only read")]
    enum Colour {
        Red,
        Green,
        Blue,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    #[allow(dead_code, reason = "they are only read")]
    struct All {
        text: String,
        count: u32,
        offset: i64,
        share: f64,
        is_new: bool,
        list: Vec<u8>,
        names: BTreeMap<String, u8>,
        colour: Option<Colour>,
        inner: Option<Box<All>>,
    }

    fn refused(value: &Value) -> String {
        in_words(&serde_json::from_value::<All>(value.clone()).unwrap_err().to_string())
    }

    #[test]
    fn a_wrong_type_is_named_as_json_names_it() {
        for (value, why) in [
            (json!({"text": 3}), "must be a string, not 3"),
            (json!({"text": null}), "must be a string, not null"),
            (json!({"count": -1}), "must be a whole number of at least 0, not -1"),
            (json!({"count": 1.5}), "must be a whole number of at least 0, not 1.5"),
            (json!({"count": u64::MAX}), "must be a whole number of at least 0, not 18446744073709551615"),
            (json!({"offset": "x"}), "must be a whole number, not \"x\""),
            (json!({"share": [1]}), "must be a number, not an array"),
            (json!({"is_new": {}}), "must be true or false, not an object"),
            (json!({"list": true}), "must be an array, not true"),
            (json!({"names": "a, expected b"}), "must be an object, not \"a, expected b\""),
            (json!({"inner": 3}), "must be an object, not 3"),
            (json!({"colour": "pink"}), "must be one of `red`, `green`, `blue`, not `pink`"),
        ] {
            assert_eq!(refused(&value), why, "{value}");
        }
    }

    #[test]
    fn the_place_in_the_text_stays_at_the_end() {
        let error = serde_json::from_str::<All>(r#"{"text": 3}"#).unwrap_err().to_string();
        assert_eq!(in_words(&error), "must be a string, not 3 at line 1 column 10");
    }

    #[test]
    fn what_is_plain_already_stays() {
        let unknown = refused(&json!({"size": 1}));
        assert!(unknown.starts_with("unknown field `size`, expected one of `text`, "), "{unknown}");
    }

    #[test]
    fn what_is_missing_or_no_word_is_said() {
        assert_eq!(in_words("missing field `input` at line 1 column 2"), "`input` is missing at line 1 column 2");
        let number = serde_json::from_str::<All>(r#"{"colour": -1}"#).unwrap_err().to_string();
        assert_eq!(in_words(&number), "must be a string at line 1 column 12");
    }
}
