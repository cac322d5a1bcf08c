//! Reading JSON strictly, bounded in depth, and writing it.

use serde_json::{Value, json};
use shared::json::*;

fn nested(depth: usize) -> String {
    "[".repeat(depth) + &"]".repeat(depth)
}

#[test]
fn a_fault_is_named_with_its_place() {
    for (text, wanted) in [
        (r#"{"a": 1, "b": {"a": 1}, "c": [{"a": 1}, {"a": 1}]}"#, None),
        (r#"{"a": 1, "b": 2, "a": 3}"#, Some("`a` occurs twice; send each key once")),
        (r#"{"x": [1, {"a": {}, "\u0061": 3}]}"#, Some("`x[1].a` occurs twice; send each key once")),
        (r#"{"": {"é": 1, "é": 1}}"#, Some("`é` occurs twice; send each key once")),
        ("[1e300, 1.8446744073709552e19, 18446744073709551615, -9223372036854775808, \"99999999999999999999\"]", None),
        ("-0", None),
        (
            r#"{"a": [1e300, {"b": -9223372036854775809}]}"#,
            Some("`a[1].b` is -9223372036854775809, a whole number beyond 64 bits; send it as a string"),
        ),
        (
            "18446744073709551616",
            Some("the value is 18446744073709551616, a whole number beyond 64 bits; send it as a string"),
        ),
        (r#"{"a\": 99999999999999999999": 1e20}"#, None),
        ("{\"a\": 1} 2", Some("trailing characters at line 1 column 10")),
        ("", Some("EOF while parsing a value at line 1 column 0")),
        (r#"{"a": [0e999, 1e999]}"#, Some("`a[1]` is a number beyond what a double holds; send it as a string")),
        (
            r#"{"a": {"b": 1, "$serde_json::private::RawValue": "x"}}"#,
            Some("`a.$serde_json::private::RawValue` is a name that the JSON parser reserves; choose another one"),
        ),
        (r#"{"$serde_json::private": ["$serde_json::private::RawValue"]}"#, None),
        ("\"\\ud800\"", Some("unexpected end of hex escape at line 1 column 8")),
    ] {
        assert_eq!(check(text.as_bytes()).err().map(|e| e.to_string()).as_deref(), wanted, "{text}");
    }
    assert!(matches!(check(b"\"\xff\"").unwrap_err().fault, Fault::Syntax(_)));
}

#[test]
fn depth_is_bounded_for_others_and_wide_for_our_own() {
    for (depth, is_taken) in [(0, true), (MAX_DEPTH, true), (MAX_DEPTH + 1, false), (127, false), (128, false)] {
        let text = if depth == 0 { "7".to_owned() } else { nested(depth) };
        let read = read_value(text.as_bytes());
        assert_eq!(read.is_ok(), is_taken, "{depth}");
        assert!(read.err().is_none_or(|refused| refused.fault == Fault::Deep), "{depth}");
    }
    // Beyond serde_json's own limit, the error is the same, and names the field that has the value.
    let refused = check(format!("{{\"a\": {{\"b\": {}}}}}", nested(100_000)).as_bytes()).unwrap_err();
    assert_eq!((&refused.fault, refused.at.as_str()), (&Fault::Deep, "a"));
    assert!(is_deep(&json!({"a": serde_json::from_str::<Value>(&nested(MAX_DEPTH)).unwrap()})));
    for (levels, is_taken) in [(127, true), (128, true), (200, true), (201, false)] {
        assert_eq!(read_own::<Value>(&nested(levels)).is_ok(), is_taken, "{levels}");
    }
    // Brackets in a string do not count.
    let escaped = |levels| format!("[\"\\\"[\", \"{}\", {}]", "[".repeat(500), nested(levels));
    assert!(read_own::<Value>(&escaped(199)).is_ok() && read_own::<Value>(&escaped(200)).is_err());
    assert!(read_own::<Value>(&(nested(150) + "x")).is_err());
    assert!(read_own::<Value>(&"[".repeat(150)).is_err());
}

#[test]
fn what_is_written_holds_only_what_xml_has() {
    let all: String = (0..=0x2f).chain(0xd7f0..0xe010).chain(0xff00..0x1_0010).filter_map(char::from_u32).collect();
    let value = json!({ all.clone(): [all, "ＡＢ"] });
    let text = write(&value);
    let is_xml = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    assert!(text.chars().all(is_xml));
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
}
