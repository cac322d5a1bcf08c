//! Steps that collect a list page by page.
//!
//! The save that takes a page's answer also claims the next page. The record has that page's number and cursor. So
//! whatever is lost or repeated, only the page in flight is asked for again, under the same key. An answer to an
//! earlier page belongs to an earlier attempt, which no longer holds the step.

use super::Change;
use crate::expression::Mistake;
use crate::names::names;
use crate::outputs::{MAX_ALL_BESIDE, MAX_COUNT_BESIDE, is_full};
use crate::step::{Direction, Pages, State};
use crate::workflow::pages::{MAX_TAIL, Page, too_long};
use serde_json::Value;
use std::borrow::Cow;

impl Change<'_> {
    /// Takes the page that step `index` asked for. The step is done if it was the last one.
    ///
    /// # Errors
    /// The answer is no page, or the list becomes too long. The items so far stay as they were.
    pub(crate) fn take_page(&mut self, index: usize, answer: Value) -> Result<(), Mistake> {
        let kept = match &self.turn.workflow.steps[index].output {
            None => answer,
            Some(output) => {
                let names = names(&self.task, index, Direction::Do, self.turn).with("answer", Cow::Owned(answer));
                output.evaluate(&names)?
            }
        };
        let before = self.task.steps[index].pages.clone();
        let taken = self.add_page(index, kept);
        if taken.is_err() {
            let step = &mut self.task.steps[index];
            (step.pages, step.output, step.beside) = (before, None, None);
        }
        taken
    }

    fn add_page(&mut self, index: usize, kept: Value) -> Result<(), Mistake> {
        let mut pages = self.task.steps[index].pages.take().unwrap_or_default();
        let page = Page::read(kept, pages.cursor.as_ref()).map_err(Mistake)?;
        let is_last = page.next.is_none();
        pages.cursor = page.next;
        pages.taken += 1;
        self.append(&mut pages, page.items)?;
        let (items, bytes) = (pages.items as usize, pages.bytes as usize + 2);
        if let Some(why) = too_long(items, bytes, pages.taken, is_last) {
            return Err(Mistake(why));
        }
        if is_last {
            let list = self.whole(&mut pages)?;
            self.keep(index, Value::Array(list), "the list of all pages")?;
        }
        self.task.steps[index].pages = Some(pages);
        if is_full(&self.task) {
            return Err(Mistake(format!(
                "an order keeps at most {MAX_COUNT_BESIDE} long outputs and pages, with {MAX_ALL_BESIDE} bytes \
                 together, and these pages leave no room for the outputs of other steps: keep less of each item, or \
                 collect in a separate order"
            )));
        }
        if is_last {
            self.complete(index, Direction::Do);
            return Ok(());
        }
        let version = self.task.version;
        let step = &mut self.task.steps[index];
        step.state = State::Pending { not_before: None };
        step.settled_at = version;
        // Each page has the whole ladder.
        step.failures = 0;
        step.error = None;
        step.failure = None;
        self.wake = true;
        Ok(())
    }

    /// Adds a page's items to those in the record, or moves all these beside it once they are long together.
    fn append(&self, pages: &mut Pages, items: Vec<Value>) -> Result<(), Mistake> {
        if items.is_empty() {
            return Ok(());
        }
        if items.iter().any(crate::json::is_deep) {
            return Err(Mistake(format!("an item of a page {}", crate::json::Fault::Deep)));
        }
        let more = inner_length(&items) + usize::from(pages.items > 0);
        pages.items = pages.items.saturating_add(u32::try_from(items.len()).unwrap_or(u32::MAX));
        pages.bytes = pages.bytes.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        pages.tail.extend(items);
        if inner_length(&pages.tail) > MAX_TAIL {
            let list = Value::Array(std::mem::take(&mut pages.tail));
            let bytes = pages.bytes as usize;
            let beside = self.turn.outputs.keep_beside(list);
            pages.lists.push(beside.ok_or_else(|| Mistake(crate::outputs::too_long("the list of all pages", bytes)))?);
        }
        Ok(())
    }

    /// The items of all pages. What is still in the record goes into the step's output.
    fn whole(&self, pages: &mut Pages) -> Result<Vec<Value>, Mistake> {
        let mut all = Vec::with_capacity(pages.items as usize);
        for list in &pages.lists {
            // A list that has to be read first repeats this decision.
            if let Some(Value::Array(items)) = self.turn.outputs.at(list) {
                all.extend(items);
            }
        }
        self.turn.outputs.loss()?;
        all.append(&mut pages.tail);
        Ok(all)
    }
}

/// Bytes of these items in a JSON list, without brackets.
fn inner_length(items: &[Value]) -> usize {
    items.iter().map(crate::json::length).sum::<usize>() + items.len().saturating_sub(1)
}
