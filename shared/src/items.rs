//! The states of a list's items, three bits each, in the record of the step that starts an order per item. So the
//! longest list takes five kilobytes of the record. Counts are derived from these states and never stored.

use crate::json::is_default;
use crate::outputs::Beside;
use crate::time::Timestamp;
use crate::workflow::Hash;
use jiff::fmt::serde::timestamp::millisecond;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Longest list.
pub const MAX_ITEMS: usize = 10_000;
/// Most items of a list with an input from a person.
pub const MAX_EDITED: usize = 100;
/// Most resubmissions of a list with such inputs.
pub const MAX_EDITS: usize = 20;

/// The state of one item of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Item {
    /// Its order is still to be made.
    ToDo,
    /// Its order exists, or is made once this is recorded.
    Open,
    /// Its order is done.
    Done,
    /// Its order failed.
    Failed,
    /// It failed and will be tried again. An undo covers it.
    Again,
    /// Its order was undone.
    Undone,
    /// A person has to decide about the undo of its order.
    Stuck,
    /// Its input is unfit, so its order was never made.
    Refused,
}

impl Item {
    /// All states, in the sequence of summaries.
    pub const ALL: [Self; 8] =
        [Self::ToDo, Self::Open, Self::Done, Self::Failed, Self::Again, Self::Undone, Self::Stuck, Self::Refused];

    /// The names used in the API.
    pub const NAMES: [&'static str; 6] = ["to_do", "open", "done", "failed", "undone", "stuck"];

    /// Its name in the API, where `Again` is to do and `Refused` has failed.
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

    /// Whether it may have an order.
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

    fn bits(self) -> usize {
        Self::ALL.iter().position(|one| *one == self).unwrap_or_default()
    }
}

/// The items of a list, as a step works on them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Recorded", into = "Recorded")]
pub struct Items {
    /// Identity of the list.
    pub hash: Hash,
    /// Each item's state.
    states: Vec<Item>,
    /// If an item's first order undid itself: the round in which the present one was made.
    made: BTreeMap<u32, u32>,
    /// For items with an input from a person: the first round that uses it.
    edited: BTreeMap<u32, u32>,
    /// By that round: a table beside the record of inputs by item. Replaced tables stay named here until the order is
    /// gone.
    pub inputs: BTreeMap<u32, Beside>,
    /// Length of the outputs of finished orders, in bytes of JSON.
    pub bytes: usize,
    /// When an item last began, ended or was asked for again (UTC, milliseconds).
    pub changed_at: Timestamp,
    /// The task's version that last arranged a look.
    pub looked_at: u64,
}

/// [`Items`] as recorded.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    #[serde(rename = "n")]
    total: usize,
    #[serde(rename = "h")]
    hash: Hash,
    /// Two states per character, from the first on; missing items are to do.
    #[serde(rename = "s", default, skip_serializing_if = "String::is_empty")]
    states: String,
    /// The rounds, except the first, in which items' present orders were made.
    #[serde(rename = "r", default, skip_serializing_if = "Vec::is_empty")]
    rounds: Vec<u32>,
    /// Per item, which of these rounds, from 1, or 0 for the first round: as few bits as possible, six per character.
    #[serde(rename = "m", default, skip_serializing_if = "String::is_empty")]
    made: String,
    /// Instead, where shorter: by round, the gap before each item.
    #[serde(rename = "g", default, skip_serializing_if = "BTreeMap::is_empty")]
    gaps: BTreeMap<u32, String>,
    #[serde(rename = "e", default, skip_serializing_if = "BTreeMap::is_empty")]
    edited: BTreeMap<u32, u32>,
    #[serde(rename = "i", default, skip_serializing_if = "BTreeMap::is_empty")]
    inputs: BTreeMap<u32, Beside>,
    #[serde(rename = "b", default, skip_serializing_if = "is_default")]
    bytes: usize,
    #[serde(rename = "at", with = "millisecond::required")]
    changed_at: Timestamp,
    #[serde(rename = "v", default, skip_serializing_if = "is_default")]
    looked_at: u64,
}

/// How many bits a state takes.
const STATE: usize = 3;

/// The digits of six bits.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Numbers of `width` bits each, from the first on, six bits per character. Zeros at the end are left out.
fn pack(numbers: impl Iterator<Item = usize>, width: usize) -> String {
    let (mut text, mut bits, mut held) = (String::new(), 0, 0);
    for number in numbers {
        bits |= number << held;
        held += width;
        while held >= 6 {
            text.push(char::from(DIGITS[bits & 63]));
            (bits, held) = (bits >> 6, held - 6);
        }
    }
    text.push(char::from(DIGITS[bits & 63]));
    text.truncate(text.trim_end_matches('A').len());
    text
}

/// The numbers, perhaps with zeros at the end.
fn unpack(text: &str, width: usize) -> Option<Vec<usize>> {
    let (mut numbers, mut bits, mut held) = (Vec::new(), 0, 0);
    for six in digits(text) {
        bits |= six? << held;
        held += 6;
        while held >= width {
            numbers.push(bits & ((1 << width) - 1));
            (bits, held) = (bits >> width, held - width);
        }
    }
    numbers.push(bits);
    Some(numbers)
}

fn digits(text: &str) -> impl Iterator<Item = Option<usize>> {
    text.bytes().map(|byte| DIGITS.iter().position(|digit| *digit == byte))
}

/// Rising positions as the gap before each. A character has five bits of the gap; the sixth says that more follow.
fn gaps(positions: impl Iterator<Item = usize>) -> String {
    let (mut text, mut next) = (String::new(), 0);
    for position in positions {
        let mut gap = position - next;
        next = position + 1;
        while gap >= 32 {
            text.push(char::from(DIGITS[gap & 31 | 32]));
            gap >>= 5;
        }
        text.push(char::from(DIGITS[gap]));
    }
    text
}

/// The positions again, all below `end`.
fn positions(text: &str, end: usize) -> Option<Vec<usize>> {
    let (mut all, mut next, mut gap, mut shift) = (Vec::new(), 0, 0, 0);
    for six in digits(text) {
        let six = six.filter(|_| shift <= 10)?;
        gap |= (six & 31) << shift;
        shift += 5;
        if six < 32 {
            let position = next + gap;
            all.push(position);
            (next, gap, shift) = (position + 1, 0, 0);
        }
    }
    (shift == 0 && next <= end).then_some(all)
}

/// How many bits a number up to `most` takes.
fn width(most: usize) -> usize {
    (usize::BITS - most.leading_zeros()).max(1) as usize
}

impl From<Items> for Recorded {
    fn from(items: Items) -> Self {
        let mut by_round: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (&item, &round) in &items.made {
            by_round.entry(round).or_default().push(item as usize);
        }
        let rounds: Vec<u32> = by_round.keys().copied().collect();
        let place = |item: u32| items.made.get(&item).map_or(0, |round| 1 + rounds.partition_point(|one| one < round));
        let made = pack((0..items.states.len() as u32).map(place), width(rounds.len()));
        let gaps: BTreeMap<u32, String> =
            by_round.into_iter().map(|(round, items)| (round, gaps(items.into_iter()))).collect();
        let are_shorter = gaps.values().map(String::len).sum::<usize>() < made.len();
        let (rounds, made, gaps) =
            if are_shorter { (Vec::new(), String::new(), gaps) } else { (rounds, made, BTreeMap::new()) };
        Self {
            total: items.states.len(),
            states: pack(items.states.iter().map(|item| item.bits()), STATE),
            rounds,
            made,
            gaps,
            hash: items.hash,
            edited: items.edited,
            inputs: items.inputs,
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
        let states = unpack(&recorded.states, STATE).ok_or("`s` of a list has a character that it cannot have")?;
        let mut states: Vec<Item> = states.into_iter().map(|bits| Item::ALL[bits]).collect();
        if states.iter().skip(total).any(|item| *item != Item::ToDo) {
            return Err("`s` of a list has more items than `n`");
        }
        states.resize(total, Item::ToDo);
        let places = unpack(&recorded.made, width(recorded.rounds.len()));
        let places = places.ok_or("`m` of a list has a character that it cannot have")?;
        let mut made = BTreeMap::new();
        for (item, place) in places.into_iter().enumerate().filter(|(_, place)| *place > 0) {
            match recorded.rounds.get(place - 1).filter(|round| item < total && **round > 0) {
                Some(round) => made.insert(item as u32, *round),
                None => return Err("`m` of a list names an item or a round that it does not have"),
            };
        }
        for (round, text) in &recorded.gaps {
            let items = positions(text, total).filter(|_| *round > 0);
            for item in items.ok_or("`g` of a list names an item or a round that it does not have")? {
                if made.insert(item as u32, *round).is_some() {
                    return Err("`g` of a list names an item twice");
                }
            }
        }
        let Recorded { hash, edited, inputs, bytes, changed_at, looked_at, .. } = recorded;
        if edited.len() > MAX_EDITED || edited.keys().any(|item| *item as usize >= total) {
            return Err("`e` of a list names more than 100 items, or one that it does not have");
        }
        Ok(Self { hash, states, made, edited, inputs, bytes, changed_at, looked_at })
    }
}

impl Items {
    /// A list of `total` items, none of them begun.
    #[must_use]
    pub fn new(total: usize, hash: Hash, now: Timestamp) -> Self {
        let (made, edited) = Default::default();
        let (inputs, bytes, looked_at) = Default::default();
        Self { hash, states: vec![Item::ToDo; total], made, edited, inputs, bytes, changed_at: now, looked_at }
    }

    /// Number of items.
    #[must_use]
    pub fn total(&self) -> usize {
        self.states.len()
    }

    /// The state of `item`.
    #[must_use]
    pub fn get(&self, item: usize) -> Item {
        self.states.get(item).copied().unwrap_or(Item::ToDo)
    }

    /// Sets the state of `item`.
    pub fn set(&mut self, item: usize, state: Item) {
        if let Some(known) = self.states.get_mut(item) {
            *known = state;
        }
    }

    /// The positions of items that `is` selects.
    pub fn all(&self, is: impl Fn(Item) -> bool) -> impl DoubleEndedIterator<Item = usize> {
        self.states.iter().enumerate().filter(move |(_, item)| is(**item)).map(|(n, _)| n)
    }

    /// How many `is` selects.
    #[must_use]
    pub fn count(&self, is: impl Fn(Item) -> bool) -> usize {
        self.all(is).count()
    }

    /// The round in which the present order of item `item` was made, or will be.
    #[must_use]
    pub fn made(&self, item: usize) -> u32 {
        u32::try_from(item).ok().and_then(|item| self.made.get(&item)).copied().unwrap_or(0)
    }

    /// Notes that the order of item `item` was made again in `round`.
    pub fn make(&mut self, item: usize, round: u32) {
        if let (Ok(item), 1..) = (u32::try_from(item), round) {
            self.made.insert(item, round);
        }
    }

    /// The first round in which item `item` has an input from a person.
    #[must_use]
    pub fn edited(&self, item: usize) -> Option<u32> {
        self.edited.get(&u32::try_from(item).ok()?).copied()
    }

    /// Where the input from a person for `item` is.
    #[must_use]
    pub fn given(&self, item: usize) -> Option<(u32, &Beside)> {
        let round = self.edited(item)?;
        Some((round, self.inputs.get(&round)?))
    }

    /// Gives these items, from this round on, the inputs beside the record. `None` if they would be too many.
    pub(crate) fn edit(&mut self, given: impl Iterator<Item = usize>, round: u32, inputs: Beside) -> Option<()> {
        self.edited.extend(given.filter_map(|item| Some((u32::try_from(item).ok()?, round))));
        self.inputs.insert(round, inputs);
        (self.edited.len() <= MAX_EDITED && self.inputs.len() <= MAX_EDITS).then_some(())
    }

    /// Failed items will be tried again.
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
