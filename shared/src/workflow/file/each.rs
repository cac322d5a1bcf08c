//! The `each` of a step that starts orders, or makes calls.

use super::{Problem, RawStep, RawWorkflow, mapped, span_of};
use crate::retry::Then;
use crate::time::SignedDuration;
use crate::workflow::child::Child;
use crate::workflow::each::{AT_ONCE, Each, MAX_AT_ONCE, MAX_BATCH, WHOLE};
use crate::workflow::{Step, Workflow};
use serde_json::{Map, Value};
use toml::Spanned;

/// The list of a step, if it has one.
pub(super) fn build(raw: &RawStep) -> Result<Option<Each>, Problem> {
    let keys =
        [("at_once", span_of(&raw.at_once)), ("batch", span_of(&raw.batch)), ("tolerate", span_of(&raw.tolerate))];
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
    let others =
        [raw.value.is_some(), raw.fail.is_some(), raw.wait.is_some(), raw.until.is_some(), raw.event.is_some()];
    let calls = [raw.agent.is_some(), raw.http.is_some(), raw.lambda.is_some(), raw.aws.is_some()];
    if raw.workflow.is_none() && !calls.contains(&true) && !others.contains(&true) {
        let message = "a step with `each` starts an order or makes a call for each item; add `workflow = \"NAME\"`, or \
                       one of `agent`, `http`, `lambda` and `aws`";
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
    if let (Some(_), None, Some(_), Some((_, Some(span)))) =
        (batch, &raw.with, &raw.workflow, keys.iter().find(|(key, _)| *key == "batch"))
    {
        let message = "with `batch`, `item` is a list, but an input is a table; write for example `with = { items = \
                       \"${item}\" }`";
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

/// The step that makes `call` per item. A separate order makes each call; its definition is part of the step's.
/// Properties of the whole list stay with the step.
pub(super) fn of_call(each: Each, call: Step, workflow: &RawWorkflow, config: &Map<String, Value>) -> Step {
    let reads_config = call.works().any(|work| work.reads("config"));
    let name = format!("{}.{}", workflow.name.get_ref(), call.name);
    let own = Step {
        after: Vec::new(),
        when: None,
        catch: None,
        // A failed item's order ends; its step decides what follows. An irreversible one waits for a person.
        on_failure: Then::Undo,
        ..call.clone()
    };
    let definition = Workflow {
        name: name.clone(),
        input: None,
        schema: None,
        on_failure: Then::Undo,
        strict_notices: false,
        tombstones: workflow.tombstones,
        // An item is kept as long as its parent.
        retention: None,
        deadline: None,
        config: if reads_config { config.clone() } else { Map::new() },
        output: None,
        of_item: true,
        steps: vec![own],
    };
    Step {
        child: Some(Child { workflow: name, each: Some(each), call: Some(Box::new(definition)) }),
        agent: String::new(),
        http: None,
        aws: None,
        with: None,
        output: None,
        remind: None,
        accept: None,
        poll: None,
        pages: false,
        heartbeat: None,
        timeout: SignedDuration::ZERO,
        late: None,
        irreversible: false,
        undo: None,
        ..call
    }
}
