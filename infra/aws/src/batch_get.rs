//! Reads of many items in one request.

use crate::item::Item;
use crate::sdk_error::unavailable;
use crate::sent::Sent;
use crate::state_store::DynamoStore;
use aws_sdk_dynamodb::error::{DisplayErrorContext, ProvideErrorMetadata};
use aws_sdk_dynamodb::operation::batch_get_item::BatchGetItemInput;
use aws_sdk_dynamodb::operation::get_item::GetItemInput;
use aws_sdk_dynamodb::types::{AttributeValue, KeysAndAttributes};
use futures::future::join_all;
use shared::ports::Error;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

/// Maximum number of keys in one `BatchGetItem` of DynamoDB.
const BATCH: usize = 100;
/// Maximum number of consecutive requests without any answer from DynamoDB. Large items come in parts of 16 MB, or 1 MB
/// of a partition, and each part leaves less.
const ATTEMPTS: u32 = 5;

type Read = Result<Option<Item>, Error>;

/// Where items are read.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub table: &'a str,
    /// Whether reads see every completed write, at twice the price.
    pub is_consistent: bool,
}

impl<'a> Source<'a> {
    /// The table as the last write left it.
    pub fn consistent(table: &'a str) -> Self {
        Self { table, is_consistent: true }
    }
}

impl DynamoStore {
    /// The item under `key`; `what` names it in errors.
    pub(crate) async fn get(&self, from: Source<'_>, key: Item, what: &str) -> Read {
        let request = GetItemInput::builder().table_name(from.table).set_key(Some(key));
        let answer = request.consistent_read(from.is_consistent).sent(&self.client).await;
        Ok(answer.map_err(|e| unavailable(what, e))?.item)
    }

    /// The items under `keys`, as from [`Self::get_all`], of a table whose items never change. An eventually
    /// consistent read costs half, and can only miss an item that was just written; a missing item is read again.
    pub(crate) async fn get_written_once(
        &self,
        table: &str,
        keys: &[Item],
        what: impl Fn(usize) -> String,
    ) -> Vec<Read> {
        let mut answers = self.get_all(Source { table, is_consistent: false }, keys, &what).await;
        let missed: Vec<usize> = (0..keys.len()).filter(|n| matches!(answers[*n], Ok(None))).collect();
        let again: Vec<Item> = missed.iter().map(|n| keys[*n].clone()).collect();
        let again = self.get_all(Source::consistent(table), &again, |n| what(missed[n])).await;
        for (n, answer) in missed.into_iter().zip(again) {
            answers[n] = answer;
        }
        answers
    }

    /// The items under `keys`, which have the same attributes, in as few requests as DynamoDB allows. One answer per
    /// key, in order; a key may occur twice. An unreadable item fails alone. `what` names the n-th item in errors.
    pub(crate) async fn get_all(&self, from: Source<'_>, keys: &[Item], what: impl Fn(usize) -> String) -> Vec<Read> {
        let mut answers = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(BATCH) {
            let first = answers.len();
            let what = |n: usize| what(first + n);
            answers.extend(self.get_chunk(from, chunk, what).await);
        }
        answers
    }

    async fn get_chunk(&self, from: Source<'_>, keys: &[Item], what: impl Fn(usize) -> String) -> Vec<Read> {
        if let [key] = keys {
            return vec![self.get(from, key.clone(), &what(0)).await];
        }
        let attributes: BTreeSet<&str> = keys.iter().flat_map(|key| key.keys().map(String::as_str)).collect();
        let name = |item: &Item| name(&attributes, item);
        // DynamoDB refuses a request that has a key twice.
        let mut seen = HashSet::new();
        let mut left: Vec<Item> = keys.iter().filter(|key| seen.insert(name(key))).cloned().collect();
        let mut found = HashMap::new();
        let (mut idle, mut reason) = (0, "DynamoDB left it unprocessed on every attempt".to_owned());
        while !left.is_empty() && idle < ATTEMPTS {
            if idle > 0 {
                tokio::time::sleep(Duration::from_millis(20 << idle)).await;
            }
            let asked = std::mem::take(&mut left);
            let wanted = KeysAndAttributes::builder().set_keys(Some(asked.clone())).consistent_read(from.is_consistent);
            let wanted = wanted.build().expect("keys are set");
            let answer = match BatchGetItemInput::builder().request_items(from.table, wanted).sent(&self.client).await {
                Ok(answer) => answer,
                // Neither one key that DynamoDB refuses nor a role older than this program must fail all keys.
                Err(error) if matches!(error.code(), Some("ValidationException" | "AccessDeniedException")) => {
                    let one = |(n, key): (usize, &Item)| {
                        let (key, what) = (key.clone(), what(n));
                        async move { self.get(from, key, &what).await }
                    };
                    return join_all(keys.iter().enumerate().map(one)).await;
                }
                // A throttled key is finally read alone, and refused. Earlier answers count.
                Err(error) => {
                    (left, reason) = (asked, DisplayErrorContext(error).to_string());
                    break;
                }
            };
            for item in answer.responses.unwrap_or_default().remove(from.table).unwrap_or_default() {
                found.insert(name(&item), item);
            }
            left = answer
                .unprocessed_keys
                .unwrap_or_default()
                .remove(from.table)
                .map(|keys| keys.keys)
                .unwrap_or_default();
            idle = if left.len() < asked.len() { 0 } else { idle + 1 };
        }
        let left: HashSet<_> = left.iter().map(name).collect();
        let answer = |(n, key)| {
            let name = name(key);
            if left.contains(&name) {
                return Err(Error::Unavailable { what: what(n), source: reason.clone().into() });
            }
            Ok(found.get(&name).cloned())
        };
        keys.iter().enumerate().map(answer).collect()
    }
}

/// What distinguishes items: the values of their keys, in the order of their names. All our keys are strings.
fn name(attributes: &BTreeSet<&str>, item: &Item) -> Vec<String> {
    let text = |attribute: &&str| match item.get(*attribute) {
        Some(AttributeValue::S(text)) => text.clone(),
        _ => String::new(),
    };
    attributes.iter().map(text).collect()
}
