//! The `pages` of a step.

use super::{Doer, Problem, RawStep, mapped, span_of};
use crate::expression::Mapping;
use crate::workflow::pages::{ITEMS, NEXT};
use serde::Deserialize;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPages {
    items: Spanned<String>,
    next: Spanned<String>,
}

/// What is kept of a page's answer, as the `output` of its step.
pub(super) fn build(spanned: &Spanned<RawPages>, raw: &RawStep, doer: &mut Doer) -> Result<Option<Mapping>, Problem> {
    let pages = spanned.get_ref();
    let others = [
        ("each", span_of(&raw.each), "work on its list in a step after it"),
        ("output", span_of(&raw.output), "say in `items` what is kept of each item"),
        ("accept", span_of(&raw.accept), "collect in a step after the one whose service reports later"),
        ("poll", span_of(&raw.poll), "poll in a step before it"),
        ("undo", span_of(&raw.undo), "it only reads, so there is nothing to undo"),
        ("irreversible", raw.irreversible.then(|| raw.name.span()), "it only reads, so there is nothing to undo"),
    ];
    if let Some((key, span, instead)) = others.into_iter().find_map(|(key, span, instead)| Some((key, span?, instead)))
    {
        return Err((span, format!("a step that collects `pages` takes no `{key}`; remove `{key}`: {instead}")));
    }
    if doer.http.as_ref().is_some_and(|http| http.output.is_some()) {
        let message =
            "a step that collects `pages` takes no `output` in its `http`; remove it: `items` says what is kept";
        return Err((spanned.span(), message.into()));
    }
    for (key, text) in [(ITEMS, &pages.items), (NEXT, &pages.next)] {
        if !text.get_ref().contains("${") {
            return Err((
                text.span(),
                format!("`{key}` of `pages` reads the answer; write for example `{key} = \"${{answer.{key}}}\"`"),
            ));
        }
    }
    let next = mapped::template(&pages.next, "pages.next")?;
    if let Some(bare) = next.references().find(|one| !one.copes()) {
        let (path, last) = (bare.path.join("."), bare.path.last().map_or("next", String::as_str));
        let message = format!(
            "`pages.next`: `{path}` may not be there on the last page; write `.?{last}`, not `.{last}`, as in `${{answer.?next}}`"
        );
        return Err((pages.next.span(), message));
    }
    let table = [(ITEMS, &pages.items), (NEXT, &pages.next)]
        .map(|(key, text)| (key.to_owned(), toml::Value::String(text.get_ref().clone())));
    let table = Spanned::new(spanned.span(), toml::Value::Table(table.into_iter().collect()));
    mapped::output(Some(&table), doer)
}
