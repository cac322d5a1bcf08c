//! Steps that collect a list page by page: each answer has the items of one page and the cursor of the next.
//!
//! The step's mapping of its output makes an answer a table with [`ITEMS`] and [`NEXT`]. So the agent for URLs and AWS
//! reads pages like any answer, and sends on only the items and the cursor.

use crate::items::MAX_ITEMS;
use crate::outputs::MAX_BESIDE;
use serde_json::Value;

/// The key of the items of a page.
pub const ITEMS: &str = "items";
/// The key of the cursor of the next page. Without it, or if it is null or an empty text, the page is the last one.
pub const NEXT: &str = "next";
/// Most pages of a list.
pub const MAX_PAGES: u32 = 1000;
/// Longest cursor, in bytes of JSON.
pub const MAX_CURSOR: usize = 1024;
/// Longest part of a list in the record, in bytes of JSON. Beyond it, the part moves beside the record, so that there
/// are at most [`MAX_BESIDE`] / `MAX_TAIL` lists.
pub const MAX_TAIL: usize = 8 * 1024;

/// One page.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Page {
    pub(crate) items: Vec<Value>,
    pub(crate) next: Option<Value>,
}

impl Page {
    /// The page requested with the cursor `asked`, from the kept part of its answer.
    ///
    /// # Errors
    /// In words: it is no page, or leads to itself.
    pub(crate) fn read(kept: Value, asked: Option<&Value>) -> Result<Self, String> {
        let Value::Object(mut kept) = kept else {
            return Err("the answer has no `items`".into());
        };
        let items = match kept.remove(ITEMS) {
            Some(Value::Array(items)) => items,
            Some(Value::Null) | None => return Err("`items` of `pages` is null, but has to be a list".into()),
            Some(_) => return Err("`items` of `pages` is not a list".into()),
        };
        let next = kept.remove(NEXT).filter(|next| !next.is_null() && next.as_str() != Some(""));
        if let Some(next) = &next {
            let bytes = crate::json::length(next);
            if bytes > MAX_CURSOR {
                return Err(format!("`next` of `pages` has {bytes} bytes; the limit for a cursor is {MAX_CURSOR}"));
            }
            if crate::json::is_deep(next) {
                return Err(format!("`next` of `pages` {}", crate::json::Fault::Deep));
            }
            if asked == Some(next) {
                return Err(
                    "`next` of `pages` is the cursor with which this page was requested, so the list would never end"
                        .into(),
                );
            }
        }
        Ok(Self { items, next })
    }
}

/// Why a list of `items` items and `bytes` bytes on `pages` pages is too long, in words. `is_last`: no page follows.
pub(crate) fn too_long(items: usize, bytes: usize, pages: u32, is_last: bool) -> Option<String> {
    let part = "collect a part of it, or let an agent keep the list and return a reference";
    if items > MAX_ITEMS {
        return Some(format!("the pages have {items} items so far; the limit is {MAX_ITEMS}: {part}"));
    }
    if bytes > MAX_BESIDE {
        return Some(format!(
            "the items of the pages have {bytes} bytes so far; the limit is {MAX_BESIDE}: keep less of each, or {part}"
        ));
    }
    (pages >= MAX_PAGES && !is_last)
        .then(|| format!("the list has more than {MAX_PAGES} pages: ask for longer ones, or {part}"))
}
