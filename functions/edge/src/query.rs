//! The query string of an API Gateway event. The route must know every name, so that a typing error does not mean
//! "everything".

use crate::problem::{Problem, invalid_field};
use aws_lambda_events::event::apigw::ApiGatewayV2httpRequest;
use std::collections::BTreeMap;

/// The parameters by name. A parameter without a value counts as absent.
///
/// # Errors
/// A name that is not among `known` or occurs twice, or text that is not percent-encoded UTF-8.
pub fn read(event: &ApiGatewayV2httpRequest, known: &[&str]) -> Result<BTreeMap<String, String>, Problem> {
    let mut all = BTreeMap::new();
    for pair in event.raw_query_string.as_deref().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decode(name)?, decode(value)?);
        if !known.contains(&name.as_str()) {
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            let detail = format!("is not a query parameter of this route; its query parameters: {known}");
            return Err(invalid_field(None, detail).at(name));
        }
        if all.insert(name.clone(), value).is_some() {
            return Err(invalid_field(None, "is given twice").at(name));
        }
    }
    all.retain(|_, value| !value.is_empty());
    Ok(all)
}

/// A whole number from `least` to `most`.
///
/// # Errors
/// Not a whole number in range.
pub fn number(name: &'static str, text: &str, least: usize, most: usize) -> Result<usize, Problem> {
    let number = text.parse().ok().filter(|n| (least..=most).contains(n));
    number.ok_or_else(|| invalid_field(name, format!("must be a whole number from {least} to {most}")))
}

/// A percent-encoded text, decoded.
///
/// # Errors
/// It is not percent-encoded, or not UTF-8.
pub fn decode(text: &str) -> Result<String, Problem> {
    let wrong = || invalid_field("query", "is not percent-encoded UTF-8");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16)).ok_or_else(wrong);
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high * 16 + low).expect("two hexadecimal digits")
            }
            other => other,
        });
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}
