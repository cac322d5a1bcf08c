//! A message as sent: its content, its limits and its digests.

use std::collections::BTreeMap;
use std::sync::Arc;

use aws_smithy_types::base64;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::error::Error;

/// AWS, "Amazon SQS message quotas": 1 MiB for a message, and for all messages of a batch.
pub(crate) const MESSAGE_MAX_BYTES: usize = 1024 * 1024;

/// AWS, "Amazon SQS message quotas".
const ATTRIBUTES_MAX: usize = 10;

/// AWS, "MessageGroupId": up to 128 characters.
const GROUP_MAX_CHARS: usize = 128;

pub(crate) type Attributes = BTreeMap<String, Attribute>;

/// One message attribute, in the JSON of requests and answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Attribute {
    /// `String`, `Number` or `Binary`, with an optional `.label`.
    #[serde(default)]
    pub data_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub string_value: Option<String>,
    /// Base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary_value: Option<String>,
}

/// What was sent; never changes.
#[derive(Debug)]
pub(crate) struct Content {
    /// Order of arrival in the whole store, and the key there.
    pub row: i64,
    pub id: Uuid,
    pub body: String,
    /// Hexadecimal.
    pub body_md5: String,
    pub attributes: Attributes,
    pub group: Option<Arc<str>>,
    pub trace: Option<String>,
    /// UTC, milliseconds.
    pub sent_ms: i64,
}

impl Content {
    /// `body` and `attributes` have been checked.
    pub fn stored(
        row: i64,
        id: Uuid,
        body: String,
        attributes: Attributes,
        group: Option<Arc<str>>,
        trace: Option<String>,
        sent_ms: i64,
    ) -> Self {
        let body_md5 = hex(md5::compute(&body));
        Self { row, id, body, body_md5, attributes, group, trace, sent_ms }
    }

    /// JSON for the store; `None` for no attributes.
    pub fn attributes_json(&self) -> Option<String> {
        if self.attributes.is_empty() {
            return None;
        }
        Some(serde_json::to_string(&self.attributes).expect("attributes have string keys only"))
    }
}

/// Bytes that count against the size limit: body, and names, types and values of attributes.
pub(crate) fn size_bytes(body: &str, attributes: &Attributes) -> usize {
    let attributes: usize = attributes
        .iter()
        .map(|(name, attribute)| {
            let binary = attribute.binary_value.as_deref().map_or(0, |text| text.len() / 4 * 3);
            let text = attribute.string_value.as_deref().map_or(0, str::len);
            name.len() + attribute.data_type.len() + binary + text
        })
        .sum();
    body.len() + attributes
}

/// Checks what AWS checks, apart from the size.
pub(crate) fn check_body(body: &str) -> Result<(), Error> {
    if body.is_empty() {
        return Err(Error::missing("MessageBody"));
    }
    match body.chars().find(|c| !allowed(*c)) {
        None => Ok(()),
        Some(c) => Err(Error::contents(format!(
            "Invalid characters found: U+{:04X}. Valid unicode characters are #x9 | #xA | #xD | \
             #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF",
            u32::from(c)
        ))),
    }
}

fn allowed(c: char) -> bool {
    !matches!(c, '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\u{fffe}' | '\u{ffff}')
}

pub(crate) fn check_group(group: &str) -> Result<(), Error> {
    let good = (1..=GROUP_MAX_CHARS).contains(&group.len()) && group.bytes().all(|b| b.is_ascii_graphic());
    if good {
        return Ok(());
    }
    Err(Error::parameter(
        "MessageGroupId",
        "it can only include alphanumeric and punctuation characters, 1 to 128 in length",
    ))
}

pub(crate) fn check_attributes(attributes: &Attributes) -> Result<(), Error> {
    if attributes.len() > ATTRIBUTES_MAX {
        return Err(Error::parameter(
            "MessageAttributes",
            format!("{} attributes, {ATTRIBUTES_MAX} are allowed", attributes.len()),
        ));
    }
    for (name, attribute) in attributes {
        check_name(name)?;
        check_value(name, attribute)?;
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), Error> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    let lower = name.to_ascii_lowercase();
    let good = (1..=256).contains(&name.len())
        && name.bytes().all(allowed)
        && !name.starts_with('.')
        && !name.ends_with('.')
        && !name.contains("..")
        && !lower.starts_with("aws.")
        && !lower.starts_with("amazon.");
    if good {
        return Ok(());
    }
    Err(Error::parameter("MessageAttributes", format!("the attribute name {name:?} is not allowed")))
}

fn check_value(name: &str, attribute: &Attribute) -> Result<(), Error> {
    let wrong = |reason: &str| Err(Error::parameter(&format!("MessageAttributes.{name}"), reason));
    let kind = attribute.data_type.split('.').next().unwrap_or_default();
    match (kind, &attribute.string_value, &attribute.binary_value) {
        ("String", Some(text), None) if !text.is_empty() => match check_body(text) {
            Ok(()) => Ok(()),
            Err(_) => wrong("it holds characters that are not allowed"),
        },
        ("Number", Some(text), None) if text.parse::<f64>().is_ok_and(f64::is_finite) => Ok(()),
        ("Binary", None, Some(text)) if base64::decode(text).is_ok_and(|b| !b.is_empty()) => Ok(()),
        ("String" | "Number" | "Binary", _, _) => wrong("the value must be one of the declared type, and not be empty"),
        _ => wrong("the type must be String, Number or Binary"),
    }
}

/// MD5 of attributes as AWS, "MD5OfMessageAttributes", builds it. `None` for no attributes.
pub(crate) fn attributes_md5<'a>(attributes: impl Iterator<Item = (&'a String, &'a Attribute)>) -> Option<String> {
    let mut encoded = Vec::new();
    // In the order of names, which is the order of the map.
    for (name, attribute) in attributes {
        let mut field = |bytes: &[u8]| {
            let length = u32::try_from(bytes.len()).expect("a message is at most 1 MiB");
            encoded.extend_from_slice(&length.to_be_bytes());
            encoded.extend_from_slice(bytes);
        };
        field(name.as_bytes());
        field(attribute.data_type.as_bytes());
        let (transport, value) = match (&attribute.string_value, &attribute.binary_value) {
            (_, Some(binary)) => (2, base64::decode(binary).unwrap_or_default()),
            (text, None) => (1, text.clone().unwrap_or_default().into_bytes()),
        };
        encoded.push(transport);
        let length = u32::try_from(value.len()).expect("a message is at most 1 MiB");
        encoded.extend_from_slice(&length.to_be_bytes());
        encoded.extend_from_slice(&value);
    }
    (!encoded.is_empty()).then(|| hex(md5::compute(encoded)))
}

fn hex(digest: md5::Digest) -> String {
    format!("{digest:x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_of_attributes_is_the_one_sqs_gives() {
        // From the AWS SDK for Java's MessageMD5ChecksumHandler, computed by hand: the encoding of
        // one attribute `k` of type String and value `v`.
        let attribute = Attribute { data_type: "String".into(), string_value: Some("v".into()), binary_value: None };
        let encoded = b"\0\0\0\x01k\0\0\0\x06String\x01\0\0\0\x01v";
        let attributes = Attributes::from([("k".to_owned(), attribute)]);
        assert_eq!(attributes_md5(attributes.iter()), Some(hex(md5::compute(encoded))));
        assert_eq!(attributes_md5(Attributes::new().iter()), None);
    }

    #[test]
    fn characters_xml_cannot_hold_are_refused() {
        for good in ["a", "\t\r\n", "ÄÖ", "\u{10000}", "\u{fffd}"] {
            assert_eq!(check_body(good), Ok(()));
        }
        for bad in ["\0", "a\u{b}", "\u{ffff}", "\u{1f}"] {
            assert_eq!(check_body(bad).unwrap_err().code, "InvalidMessageContents");
        }
        assert_eq!(check_body("").unwrap_err().code, "MissingParameter");
    }
}
