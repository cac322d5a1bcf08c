//! The `link` of a step that waits for an event.

use super::{Problem, RawStep, mapped};
use crate::workflow::link::Link;
use serde::Deserialize;
use toml::Spanned;

const MAX_ANSWERS: usize = 5;
/// An answer labels a button.
const MAX_ANSWER: usize = 40;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLink {
    pub(super) ask: Option<Spanned<String>>,
    answers: Option<Spanned<Vec<Spanned<String>>>>,
}

pub(super) fn build(spanned: &Spanned<RawLink>, step: &RawStep) -> Result<Link, Problem> {
    let raw = spanned.get_ref();
    if step.people.is_some() {
        let message = "a link says nothing about who uses it, and the step counts `people`; remove one of the two";
        return Err((spanned.span(), message.into()));
    }
    let mut answers: Vec<String> = Vec::new();
    if let Some(all) = &raw.answers {
        if !(1..=MAX_ANSWERS).contains(&all.get_ref().len()) {
            let message = format!("a link has 1 to {MAX_ANSWERS} `answers`; leave the key out for one button");
            return Err((all.span(), message));
        }
        for answer in all.get_ref() {
            let text = answer.get_ref();
            let is_short = (1..=MAX_ANSWER).contains(&text.chars().count());
            if !is_short || text.trim() != text || text.chars().any(char::is_control) {
                let message =
                    format!("an answer is a string of 1 to {MAX_ANSWER} characters; change `{}`", text.trim());
                return Err((answer.span(), message));
            }
            if answers.contains(text) {
                return Err((answer.span(), format!("`{text}` is among the answers twice; remove one of the two")));
            }
            answers.push(text.clone());
        }
    }
    let ask = raw.ask.as_ref().map(|ask| mapped::template(ask, "ask")).transpose()?;
    Ok(Link { ask, answers })
}
