//! Steps that start an order per item of a list.

use crate::expression::{Kind, Mapping, Mistake, Names};
use crate::items::MAX_ITEMS;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How many orders of a step are open at once, unless its file says otherwise.
pub const AT_ONCE: u16 = 10;
/// Most of them, as each look reads all their records.
pub const MAX_AT_ONCE: u16 = 100;
/// Most items that one order gets.
pub const MAX_BATCH: u16 = 1000;
/// 100 %, in hundredths of a percent.
pub const WHOLE: u16 = 10_000;

/// The list of a step, and how to work on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Each {
    /// Its items.
    pub list: Mapping,
    /// How many orders are open at once.
    pub at_once: u16,
    /// How many items each order gets, as a list; `None`: one, as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u16>,
    /// How many of the orders may fail, in hundredths of a percent.
    #[serde(default, skip_serializing_if = "crate::json::is_default")]
    pub tolerate: u16,
}

impl Each {
    /// How many of `total` orders may fail.
    #[must_use]
    pub fn tolerated(&self, total: usize) -> usize {
        total * usize::from(self.tolerate) / usize::from(WHOLE)
    }

    /// One order's part: an item, or several.
    ///
    /// # Errors
    /// It has no value, is no list, or is too long.
    pub(crate) fn items(&self, names: &Names<'_>) -> Result<Vec<Value>, Mistake> {
        let list = match self.list.evaluate(names)? {
            Value::Array(list) => list,
            other => return Err(Mistake(format!("`each` is {}, but has to be a list", Kind::name_of(&other)))),
        };
        if list.len() > MAX_ITEMS {
            let length = list.len();
            return Err(Mistake(format!(
                "`each` has {length} items, but the limit is {MAX_ITEMS}; submit an order for each part of the list"
            )));
        }
        Ok(match self.batch {
            None => list,
            Some(batch) => list.chunks(usize::from(batch.max(1))).map(|items| Value::Array(items.to_vec())).collect(),
        })
    }
}
