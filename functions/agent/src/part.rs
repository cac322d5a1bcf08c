//! The part of an answer that a step keeps. The rest is not part of the output, so it may be any JSON.

use serde::de::IgnoredAny;

/// Why there is no part to keep.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// The parser's words.
    #[error("the answer is not JSON: {0}")]
    Syntax(String),
    /// A key on the path is there twice.
    #[error("the answer cannot be stored: key `{0}` occurs twice; send each key once")]
    Twice(String),
}

/// The text of the value that `pointer` (RFC 6901) names in the JSON `text`, if there is one.
pub(crate) fn at<'a>(text: &'a [u8], pointer: &str) -> Result<Option<&'a [u8]>, Fault> {
    serde_json::from_slice::<IgnoredAny>(text).map_err(|e| Fault::Syntax(e.to_string()))?;
    let mut found = text.trim_ascii();
    for name in pointer.split('/').skip(1) {
        let name = name.replace("~1", "/").replace("~0", "~");
        let Some(value) = member(found, &name)? else { return Ok(None) };
        found = value;
    }
    Ok(Some(found))
}

/// The member or element called `name`. `text` is one JSON value.
fn member<'a>(text: &'a [u8], name: &str) -> Result<Option<&'a [u8]>, Fault> {
    let is_object = match text.first() {
        Some(b'{') => true,
        Some(b'[') => false,
        Some(_) | None => return Ok(None),
    };
    let (mut found, mut place) = (None, start(text, 1));
    for n in 0.. {
        if matches!(text[place], b'}' | b']') {
            break;
        }
        let is_it = if is_object {
            let key = &text[place..end(text, place)];
            place = start(text, place + key.len());
            serde_json::from_slice::<String>(key).is_ok_and(|key| key == name)
        } else {
            n.to_string() == name
        };
        let value = &text[place..end(text, place)];
        if is_it && found.replace(value).is_some() {
            return Err(Fault::Twice(name.to_owned()));
        }
        place = start(text, place + value.len());
    }
    Ok(found)
}

/// Where the next value, key or closing bracket begins.
fn start(text: &[u8], from: usize) -> usize {
    let is_between = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b',' | b':');
    text[from..].iter().position(|byte| !is_between(byte)).map_or(text.len(), |n| from + n)
}

/// Where the value that begins at `from` ends.
fn end(text: &[u8], from: usize) -> usize {
    let mut values = serde_json::Deserializer::from_slice(&text[from..]).into_iter::<IgnoredAny>();
    // The whole text was read before, so there is a value.
    let _ = values.next();
    from + values.byte_offset()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    // Finds in the text what serde_json finds in the parsed value.
    #[test]
    fn a_part_is_what_its_pointer_names() {
        let text = r#" { "a" : [ 1 , {"b\"}":"x]\\"}, -2.5e3,[],{}] ,"~/":true, "" : {"":null}, "é" :"\u00e9","a.b":[[[7]]] } "#;
        let value: Value = serde_json::from_str(text).unwrap();
        for pointer in [
            "",
            "/a",
            "/a/0",
            "/a/1",
            "/a/1/b\"}",
            "/a/2",
            "/a/3",
            "/a/4",
            "/a/5",
            "/a/00",
            "/a/+1",
            "/~0~1",
            "/",
            "//",
            "/é",
            "/a.b/0/0/0",
            "/a.b/0/0/0/0",
            "/b",
        ] {
            let found = at(text.as_bytes(), pointer).unwrap();
            let found: Option<Value> = found.map(|part| serde_json::from_slice(part).unwrap());
            assert_eq!(found.as_ref(), value.pointer(pointer), "{pointer}");
        }
        for (text, value) in [("7", "7"), (" \"a\" ", "\"a\""), ("[]", "[]"), ("null\n", "null")] {
            assert_eq!(at(text.as_bytes(), ""), Ok(Some(value.as_bytes())));
            assert_eq!(at(text.as_bytes(), "/0"), Ok(None));
        }
    }

    #[test]
    fn what_lies_beside_the_part_does_not_matter() {
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        let text = format!(r#"{{"x": [1e400, "\ud800", {deep}], "x": 99999999999999999999, "id": [5]}}"#);
        assert_eq!(at(text.as_bytes(), "/id/0"), Ok(Some(b"5".as_slice())));
        assert_eq!(at(text.as_bytes(), "/x"), Err(Fault::Twice("x".into())));
        assert_eq!(at(br#"{"id": 1, "\u0069d": 2}"#, "/id"), Err(Fault::Twice("id".into())));
        for wrong in ["{", "[1,]", "{\"a\":1} 2", "", "NaN"] {
            assert!(matches!(at(wrong.as_bytes(), "/a"), Err(Fault::Syntax(_))), "{wrong}");
        }
    }
}
