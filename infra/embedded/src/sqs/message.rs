//! A message as sent: its limits and its digests.

use aws_smithy_types::base64;

use super::error::Error;
use crate::store::{Attribute, Attributes};

/// AWS, "Amazon SQS message quotas": 1 MiB for a message, and for all messages of a batch.
pub(crate) const MESSAGE_MAX_BYTES: usize = 1024 * 1024;

/// AWS, "Amazon SQS message quotas".
const ATTRIBUTES_MAX: usize = 10;

/// AWS, "Amazon SQS message attributes": longest name, and longest type with its label.
const ATTRIBUTE_NAME_MAX: usize = 256;

/// AWS, "Amazon SQS message attributes": digits of a `Number`, and the powers of ten it lies between.
const NUMBER_DIGITS_MAX: usize = 38;
const NUMBER_EXPONENTS: std::ops::RangeInclusive<i64> = -128..=126;

/// AWS, "MessageGroupId": up to 128 characters.
const GROUP_MAX_CHARS: usize = 128;

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
        check_value("MessageAttributes", name, attribute)?;
    }
    Ok(())
}

/// AWS, "MessageSystemAttributes": `AWSTraceHeader` and no other, of type `String`.
pub(crate) fn check_system_attributes(attributes: &Attributes) -> Result<(), Error> {
    for (name, attribute) in attributes {
        if name != "AWSTraceHeader" || attribute.data_type != "String" {
            return Err(Error::parameter(
                "MessageSystemAttributes",
                format!("{name:?} of type {:?}", attribute.data_type),
            ));
        }
        check_value("MessageSystemAttributes", name, attribute)?;
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), Error> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    let lower = name.to_ascii_lowercase();
    let good = (1..=ATTRIBUTE_NAME_MAX).contains(&name.len())
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

fn check_value(of: &str, name: &str, attribute: &Attribute) -> Result<(), Error> {
    let wrong = |reason: &str| Err(Error::parameter(&format!("{of}.{name}"), reason));
    let kind = attribute.data_type.split('.').next().unwrap_or_default();
    if attribute.data_type.len() > ATTRIBUTE_NAME_MAX || !attribute.data_type.chars().all(allowed) {
        return wrong("the type must be at most 256 characters, of those that a body takes");
    }
    match (kind, &attribute.string_value, &attribute.binary_value) {
        ("String", Some(text), None) if !text.is_empty() => match check_body(text) {
            Ok(()) => Ok(()),
            Err(_) => wrong("it holds characters that are not allowed"),
        },
        ("Number", Some(text), None) if is_number(text) => Ok(()),
        ("Binary", None, Some(text)) if base64::decode(text).is_ok_and(|b| !b.is_empty()) => Ok(()),
        ("String" | "Number" | "Binary", _, _) => wrong("the value must be one of the declared type, and not be empty"),
        _ => wrong("the type must be String, Number or Binary"),
    }
}

/// Whether `text` is a decimal number that SQS keeps: up to 38 digits, from 10^-128 to 10^126.
fn is_number(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (digits, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all = format!("{whole}{fraction}");
    let Ok(exponent) = exponent.parse::<i64>() else { return false };
    if all.is_empty() || !all.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    let significant = all.trim_start_matches('0');
    // The power of ten of the first digit that counts.
    let places = i64::try_from(significant.len()).unwrap_or(i64::MAX) - i64::try_from(fraction.len()).unwrap_or(0);
    significant.is_empty()
        || significant.trim_end_matches('0').len() <= NUMBER_DIGITS_MAX
            && NUMBER_EXPONENTS.contains(&exponent.saturating_add(places - 1))
}

/// MD5 of attributes as AWS, "MD5OfMessageAttributes", builds it. `None` for no attributes.
pub(crate) fn attributes_md5<'a>(attributes: impl Iterator<Item = (&'a String, &'a Attribute)>) -> Option<String> {
    let mut encoded = Vec::new();
    // In the order of names, which is the order of the map.
    for (name, attribute) in attributes {
        let field = |encoded: &mut Vec<u8>, bytes: &[u8]| {
            let length = u32::try_from(bytes.len()).expect("a message is at most 1 MiB");
            encoded.extend_from_slice(&length.to_be_bytes());
            encoded.extend_from_slice(bytes);
        };
        field(&mut encoded, name.as_bytes());
        field(&mut encoded, attribute.data_type.as_bytes());
        let (transport, value) = match (&attribute.string_value, &attribute.binary_value) {
            (_, Some(binary)) => (2, base64::decode(binary).unwrap_or_default()),
            (text, None) => (1, text.clone().unwrap_or_default().into_bytes()),
        };
        encoded.push(transport);
        field(&mut encoded, &value);
    }
    (!encoded.is_empty()).then(|| format!("{:x}", md5::compute(encoded)))
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
        assert_eq!(attributes_md5(attributes.iter()), Some(format!("{:x}", md5::compute(encoded))));
        assert_eq!(attributes_md5(Attributes::new().iter()), None);
    }

    #[test]
    fn characters_xml_cannot_hold_are_refused() {
        for good in ["a", "\t\r\n", "ÄÖ", "\u{10000}", "\u{fffd}"] {
            assert_eq!(check_body(good), Ok(()));
        }
        // AWS, "SendMessage": #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF, and no others.
        let edges = [0x9..=0xa, 0xd..=0xd, 0x20..=0xd7ff, 0xe000..=0xfffd, 0x10000..=0x0010_ffff];
        for c in (0..0x1_0100).chain(0x10_ff00..0x11_0000).filter_map(char::from_u32) {
            let answer = check_body(&format!("a{c}"));
            let is_allowed = edges.iter().any(|range| range.contains(&u32::from(c)));
            assert_eq!(
                answer.as_ref().err().map(|e| e.code),
                (!is_allowed).then_some("InvalidMessageContents"),
                "{c:?}"
            );
        }
        assert_eq!(check_body("").unwrap_err().code, "MissingParameter");
    }

    // AWS, "Amazon SQS message attributes".
    #[test]
    fn attributes_are_held_to_what_is_written_of_them() {
        let text = |kind: &str, value: &str| Attribute {
            data_type: kind.into(),
            string_value: Some(value.into()),
            binary_value: None,
        };
        let check =
            |name: &str, attribute: Attribute| check_attributes(&Attributes::from([(name.to_owned(), attribute)]));
        let long = format!("String.{}", "x".repeat(249));
        let goods = [
            ("a", "String", "\u{10ffff}"),
            ("a.b-c_d", "String.label", "x"),
            ("a", long.as_str(), "x"),
            ("a", "Number", "-1.5e126"),
            ("a", "Number.int", "00012345678901234567890123456789012345678.000"),
            ("a", "Number", "0.0"),
        ];
        for (name, kind, value) in goods {
            assert_eq!(check(name, text(kind, value)), Ok(()), "{name} {kind} {value}");
        }
        let longer = format!("{long}x");
        let bads = [
            ("AWS.a", "String", "x"),
            ("a..b", "String", "x"),
            ("a", "String", ""),
            ("a", "String", "\u{ffff}"),
            ("a", "String.\u{fffe}", "x"),
            ("a", longer.as_str(), "x"),
            ("a", "string", "x"),
            ("a", "Number", "1e127"),
            ("a", "Number", "1e-129"),
            ("a", "Number", "123456789012345678901234567890123456789"),
            ("a", "Number", "inf"),
            ("a", "Number", "0x1"),
            ("a", "Number", "."),
        ];
        for (name, kind, value) in bads {
            assert_eq!(
                check(name, text(kind, value)).unwrap_err().code,
                "InvalidParameterValue",
                "{name} {kind} {value}"
            );
        }
        let system = |name: &str, kind: &str, value: &str| {
            check_system_attributes(&Attributes::from([(name.to_owned(), text(kind, value))]))
        };
        assert_eq!(system("AWSTraceHeader", "String", "Root=1-5759e988-bd862e3fe1be46a994272793"), Ok(()));
        for (name, kind, value) in
            [("Other", "String", "x"), ("AWSTraceHeader", "Number", "1"), ("AWSTraceHeader", "String", "")]
        {
            assert_eq!(system(name, kind, value).unwrap_err().code, "InvalidParameterValue", "{name} {kind}");
        }
    }
}
