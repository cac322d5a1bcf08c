//! Where the items of a list stand, three bits for each in the record of the step that starts an order for each of them. So the longest list
//! takes five kilobytes of the record. Counts are made from these states, never kept beside them.

use crate::time::Timestamp;
use crate::workflow::Hash;
use jiff::fmt::serde::timestamp::millisecond;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Longest list.
pub const MAX_ITEMS: usize = 10_000;

/// Where one item of a list stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Item {
    /// Its order is still to be made.
    ToDo,
    /// Its order is there, or will be as soon as the record says so.
    Open,
    /// Its order is done.
    Done,
    /// Its order failed.
    Failed,
    /// It failed and will be tried again. An undo covers it.
    Again,
    /// Nothing is left of its order.
    Undone,
    /// A person has to decide about the undo of its order.
    Stuck,
    /// Its order was never made, because its input is not fit.
    Refused,
}

impl Item {
    /// All of them, in the order in which summaries show them.
    pub const ALL: [Self; 8] =
        [Self::ToDo, Self::Open, Self::Done, Self::Failed, Self::Again, Self::Undone, Self::Stuck, Self::Refused];

    /// The names used in the API.
    pub const NAMES: [&'static str; 6] = ["to_do", "open", "done", "failed", "undone", "stuck"];

    /// Its name in the API: what will be tried again is to do, and what was refused has failed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ToDo | Self::Again => "to_do",
            Self::Open => "open",
            Self::Done => "done",
            Self::Failed | Self::Refused => "failed",
            Self::Undone => "undone",
            Self::Stuck => "stuck",
        }
    }

    /// Whether it has an order, or may have one.
    #[must_use]
    pub fn is_begun(self) -> bool {
        match self {
            Self::ToDo | Self::Refused => false,
            Self::Open | Self::Done | Self::Failed | Self::Again | Self::Undone | Self::Stuck => true,
        }
    }

    /// Whether it counts against what the step tolerates.
    #[must_use]
    pub fn has_failed(self) -> bool {
        matches!(self, Self::Failed | Self::Refused)
    }

    fn bits(self) -> u8 {
        Self::ALL.iter().position(|one| *one == self).map_or(0, |n| n as u8)
    }
}

/// The items of a list, as a step works on them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Recorded", into = "Recorded")]
pub struct Items {
    /// Identity of the list.
    pub hash: Hash,
    /// Where each stands.
    states: Vec<Item>,
    /// Of items whose first order undid itself: the round in which the present one was made.
    made: BTreeMap<u32, u32>,
    /// Length of what the orders that are done returned, in bytes of JSON.
    pub bytes: usize,
    /// When one of them last began or ended (UTC, milliseconds).
    pub changed_at: Timestamp,
    /// The version of the task in which its next look was last arranged.
    pub looked_at: u64,
}

/// The same as it is recorded.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    #[serde(rename = "n")]
    total: usize,
    #[serde(rename = "h")]
    hash: Hash,
    /// Two states in each character, from the first on; what is not there is to do.
    #[serde(rename = "s", default, skip_serializing_if = "String::is_empty")]
    states: String,
    /// By round: six items in each character.
    #[serde(rename = "m", default, skip_serializing_if = "BTreeMap::is_empty")]
    made: BTreeMap<u32, String>,
    #[serde(rename = "b", default, skip_serializing_if = "is_zero")]
    bytes: usize,
    #[serde(rename = "at", with = "millisecond::required")]
    changed_at: Timestamp,
    #[serde(rename = "v", default, skip_serializing_if = "is_none")]
    looked_at: u64,
}

fn is_none(version: &u64) -> bool {
    *version == 0
}

fn is_zero(bytes: &usize) -> bool {
    *bytes == 0
}

/// The digits of six bits.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn write(sixes: impl Iterator<Item = u8>) -> String {
    let text: String = sixes.map(|six| char::from(DIGITS[usize::from(six & 63)])).collect();
    text.trim_end_matches('A').to_owned()
}

fn read(text: &str) -> Option<Vec<u8>> {
    let six = |byte: u8| DIGITS.iter().position(|digit| *digit == byte).map(|n| n as u8);
    text.bytes().map(six).collect()
}

impl From<Items> for Recorded {
    fn from(items: Items) -> Self {
        let two = |two: &[Item]| two.iter().rev().fold(0, |six, item| six << 3 | item.bits());
        let mut rounds: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for (&item, &round) in &items.made {
            let (place, bit) = (item as usize / 6, item % 6);
            let bits = rounds.entry(round).or_default();
            bits.resize(bits.len().max(place + 1), 0);
            bits[place] |= 1 << bit;
        }
        Self {
            total: items.states.len(),
            states: write(items.states.chunks(2).map(two)),
            made: rounds.into_iter().map(|(round, bits)| (round, write(bits.into_iter()))).collect(),
            hash: items.hash,
            bytes: items.bytes,
            changed_at: items.changed_at,
            looked_at: items.looked_at,
        }
    }
}

impl TryFrom<Recorded> for Items {
    type Error = &'static str;

    fn try_from(recorded: Recorded) -> Result<Self, &'static str> {
        let total = recorded.total;
        if total > MAX_ITEMS {
            return Err("`n` of a list is more than 10000");
        }
        let sixes = read(&recorded.states).ok_or("`s` of a list has a character that it cannot have")?;
        let both = sixes.iter().flat_map(|six| [six & 7, six >> 3]);
        let mut states: Vec<Item> = both.map(|bits| Item::ALL[usize::from(bits)]).collect();
        if states.iter().skip(total).any(|item| *item != Item::ToDo) {
            return Err("`s` of a list has more items than `n`");
        }
        states.resize(total, Item::ToDo);
        let mut made = BTreeMap::new();
        for (round, text) in &recorded.made {
            let sixes = read(text).ok_or("`m` of a list has a character that it cannot have")?;
            for (place, six) in sixes.iter().enumerate() {
                for item in (0..6).filter(|bit| six & 1 << bit != 0).map(|bit| place * 6 + bit) {
                    if item >= total || made.insert(item as u32, *round).is_some() || *round == 0 {
                        return Err("`m` of a list names an item twice, or one that it does not have");
                    }
                }
            }
        }
        let Recorded { hash, bytes, changed_at, looked_at, .. } = recorded;
        Ok(Self { hash, states, made, bytes, changed_at, looked_at })
    }
}

impl Items {
    /// A list of `total` items, of which none has begun.
    #[must_use]
    pub fn new(total: usize, hash: Hash, now: Timestamp) -> Self {
        Self { hash, states: vec![Item::ToDo; total], made: BTreeMap::new(), bytes: 0, changed_at: now, looked_at: 0 }
    }

    /// How many there are.
    #[must_use]
    pub fn total(&self) -> usize {
        self.states.len()
    }

    /// Where item `item` stands.
    #[must_use]
    pub fn get(&self, item: usize) -> Item {
        self.states.get(item).copied().unwrap_or(Item::ToDo)
    }

    /// Says where item `item` stands.
    pub fn set(&mut self, item: usize, state: Item) {
        if let Some(known) = self.states.get_mut(item) {
            *known = state;
        }
    }

    /// Those of which this is true, by position.
    pub fn all(&self, is: impl Fn(Item) -> bool) -> impl DoubleEndedIterator<Item = usize> {
        self.states.iter().enumerate().filter(move |(_, item)| is(**item)).map(|(n, _)| n)
    }

    /// How many of them there are.
    #[must_use]
    pub fn count(&self, is: impl Fn(Item) -> bool) -> usize {
        self.all(is).count()
    }

    /// The round in which the present order of item `item` was made, or will be.
    #[must_use]
    pub fn made(&self, item: usize) -> u32 {
        u32::try_from(item).ok().and_then(|item| self.made.get(&item)).copied().unwrap_or(0)
    }

    pub(crate) fn make(&mut self, item: usize, round: u32) {
        if let (Ok(item), 1..) = (u32::try_from(item), round) {
            self.made.insert(item, round);
        }
    }

    /// What failed is to be tried again.
    pub(crate) fn try_again(&mut self) {
        for item in &mut self.states {
            match item {
                Item::Failed => *item = Item::Again,
                Item::Refused => *item = Item::ToDo,
                Item::ToDo | Item::Open | Item::Done | Item::Again | Item::Undone | Item::Stuck => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(total: usize) -> Items {
        let mut items = Items::new(total, Hash::of(b"x"), Timestamp::UNIX_EPOCH);
        for item in 0..total {
            items.set(item, Item::ALL[item * 7 % 8]);
            if item % 5 == 3 {
                items.make(item, 1 + item as u32 % 2);
            }
        }
        items.looked_at = 7;
        items
    }

    #[test]
    fn what_is_written_is_read_and_short() {
        for total in [0, 1, 2, 3, 11, 1000, MAX_ITEMS] {
            let items = items(total);
            let text = serde_json::to_string(&items).unwrap();
            assert_eq!(serde_json::from_str::<Items>(&text).unwrap(), items, "{total}");
            assert!(text.len() <= 130 + total / 2 + total / 3, "{total}: {} bytes", text.len());
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let read = |text: &str| serde_json::from_str::<Items>(text).map_err(|e| e.to_string());
        let with = |rest: &str| read(&format!(r#"{{"h":"x","at":0,{rest}}}"#));
        assert!(with(r#""n":3,"s":"CB""#).is_ok());
        for (rest, why) in [
            (r#""n":10001"#, "more than 10000"),
            (r#""n":2,"s":"AB""#, "more items than `n`"),
            (r#""n":2,"s":"=""#, "character"),
            (r#""n":2,"m":{"1":"="}"#, "character"),
            (r#""n":2,"m":{"1":"E"}"#, "does not have"),
            (r#""n":2,"m":{"1":"B","2":"B"}"#, "twice"),
            (r#""n":2,"z":1"#, "unknown field"),
        ] {
            assert!(with(rest).unwrap_err().contains(why), "{rest}: {:?}", with(rest));
        }
    }
}
