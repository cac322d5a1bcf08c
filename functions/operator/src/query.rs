//! The query string of an API Gateway event: every name must be one the route knows, so that a slip is not taken for
//! «everything».

use aws_lambda_events::event::apigw::ApiGatewayV2httpRequest;
use shared::task::ProcessState;
use shared::time::Timestamp;
use std::collections::BTreeMap;
use stepwarden_aws::problem::{Problem, invalid_field};

/// The parameters by name.
pub(crate) fn read(event: &ApiGatewayV2httpRequest, known: &[&str]) -> Result<BTreeMap<String, String>, Problem> {
    let mut all = BTreeMap::new();
    for pair in event.raw_query_string.as_deref().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decode(name)?, decode(value)?);
        if !known.contains(&name.as_str()) {
            let detail = format!("the route takes {}", known.join(", "));
            return Err(invalid_field(None, detail).at(name));
        }
        if all.insert(name.clone(), value).is_some() {
            return Err(invalid_field(None, "is given twice").at(name));
        }
    }
    all.retain(|_, value| !value.is_empty());
    Ok(all)
}

/// A state by its name, in any case; `paused` is one for this purpose.
pub(crate) fn state(text: &str) -> Result<(Option<ProcessState>, bool), Problem> {
    if text.eq_ignore_ascii_case("paused") {
        return Ok((None, true));
    }
    let found = ProcessState::ALL.into_iter().find(|state| state.name().eq_ignore_ascii_case(text));
    found.map(|state| (Some(state), false)).ok_or_else(|| {
        let names: Vec<_> = ProcessState::ALL.iter().map(|state| state.name()).collect();
        invalid_field("state", format!("must be one of {} or Paused", names.join(", ")))
    })
}

pub(crate) fn time(name: &'static str, text: &str) -> Result<Timestamp, Problem> {
    text.parse().map_err(|_| invalid_field(name, "must be a time like 2026-11-21T09:30:00Z"))
}

pub(crate) fn number(name: &'static str, text: &str, most: usize) -> Result<usize, Problem> {
    let number = text.parse().ok().filter(|n| (1..=most).contains(n));
    number.ok_or_else(|| invalid_field(name, format!("must be a whole number from 1 to {most}")))
}

fn decode(text: &str) -> Result<String, Problem> {
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
