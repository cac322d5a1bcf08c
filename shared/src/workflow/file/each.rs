//! The `each` of a step that starts orders.

use super::{Problem, RawStep, mapped};
use crate::workflow::each::{AT_ONCE, Each, MAX_AT_ONCE, MAX_BATCH, WHOLE};
use toml::Spanned;

/// The list of a step, if it has one.
pub(super) fn build(raw: &RawStep) -> Result<Option<Each>, Problem> {
    let keys = [
        ("at_once", raw.at_once.as_ref().map(Spanned::span)),
        ("batch", raw.batch.as_ref().map(Spanned::span)),
        ("tolerate", raw.tolerate.as_ref().map(Spanned::span)),
    ];
    let Some(list) = &raw.each else {
        return match keys.into_iter().find_map(|(key, span)| Some((key, span?))) {
            Some((key, span)) => {
                let message =
                    format!("`{key}` is for a step with a list; add `each = \"${{input.LIST}}\"`, or remove `{key}`");
                Err((span, message))
            }
            None => Ok(None),
        };
    };
    if raw.workflow.is_none() {
        let message = "a step with `each` starts an order for each item; add `workflow = \"NAME\"`";
        return Err((list.span(), message.into()));
    }
    match list.get_ref() {
        toml::Value::String(text) if text.contains("${") => {}
        toml::Value::Array(_) => {}
        _ => {
            let message = "`each` takes a list; write for example `each = \"${input.lines}\"`";
            return Err((list.span(), message.into()));
        }
    }
    let number = |raw: Option<&Spanned<u32>>, key: &str, most: u16| match raw {
        None => Ok(None),
        Some(raw) => match u16::try_from(*raw.get_ref()) {
            Ok(number @ 1..) if number <= most => Ok(Some(number)),
            _ => Err((raw.span(), format!("`{key}` cannot be {}; write a number from 1 to {most}", raw.get_ref()))),
        },
    };
    let batch = number(raw.batch.as_ref(), "batch", MAX_BATCH)?;
    if let (Some(_), None, Some((_, Some(span)))) = (batch, &raw.with, keys.iter().find(|(key, _)| *key == "batch")) {
        let message = "with `batch`, `item` is a list, and an input is a table; write for example \
                       `with = { items = \"${item}\" }`";
        return Err((span.clone(), message.into()));
    }
    Ok(Some(Each {
        list: mapped::mapping(list, "each")?,
        at_once: number(raw.at_once.as_ref(), "at_once", MAX_AT_ONCE)?.unwrap_or(AT_ONCE),
        batch,
        tolerate: raw.tolerate.as_ref().map_or(Ok(0), tolerate)?,
    }))
}

/// A part of the whole such as "3%" or "0.5%", in hundredths of a percent.
fn tolerate(raw: &Spanned<String>) -> Result<u16, Problem> {
    let text = raw.get_ref();
    let number = |text: &str| {
        let (whole, rest) = text.strip_suffix('%')?.split_once('.').unwrap_or((text.strip_suffix('%')?, ""));
        let are_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || whole.len() > 3 || rest.len() > 2 || !are_digits(whole) || !are_digits(rest) {
            return None;
        }
        format!("{whole}{rest:0<2}").parse::<u16>().ok().filter(|part| *part <= WHOLE)
    };
    number(text).filter(|_| !text.ends_with(".%")).ok_or_else(|| {
        (raw.span(), format!("`tolerate` cannot be `{text}`; write a part of the list from \"0%\" to \"100%\""))
    })
}
