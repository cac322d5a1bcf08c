//! The record of a list: short, and read as it was written.

use shared::items::*;
use shared::time::Timestamp;
use shared::workflow::Hash;

fn items(total: usize) -> Items {
    let mut items = once(total);
    for item in (0..total).filter(|item| item % 5 == 3) {
        items.make(item, 1 + item as u32 % 2);
    }
    items
}

/// No item was made again.
fn once(total: usize) -> Items {
    let mut items = Items::new(total, Hash::of(b"x"), Timestamp::UNIX_EPOCH);
    for item in 0..total {
        items.set(item, Item::ALL[item * 7 % 8]);
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

// A parent's record stays below 16 KB: the rest of it takes less than a kilobyte.
#[test]
fn rounds_take_little_room_however_they_share_the_items() {
    let mut seed = 7_u64;
    let mut draw = |most: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % most
    };
    let mut most = 0;
    for (rounds, one_in, limit) in
        [(1, 1, 7_000), (7, 1, 10_300), (40, 2, 15_400), (63, 1, 15_400), (1000, 30, 8_500), (1000, 1, 31_000)]
    {
        let mut items = once(MAX_ITEMS);
        for item in 0..MAX_ITEMS {
            if draw(one_in) == 0 {
                items.make(item, 1 + draw(rounds) as u32);
            }
        }
        let text = serde_json::to_string(&items).unwrap();
        assert_eq!(serde_json::from_str::<Items>(&text).unwrap(), items);
        println!("1 item in {one_in} made again in {rounds} rounds: {} bytes", text.len());
        assert!(text.len() < limit, "{rounds} {one_in}: {}", text.len());
        most = most.max(text.len());
    }
    // Each round makes all failed items again, and a tenth fails again.
    let mut items = once(MAX_ITEMS);
    (0..MAX_ITEMS).for_each(|item| items.make(item, if item % 10 > 0 { 1 } else { 500 }));
    assert!(serde_json::to_string(&items).unwrap().len() < 9_000);
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
        (r#""n":2,"r":[1],"m":"=""#, "character"),
        (r#""n":2,"r":[1],"m":"E""#, "does not have"),
        (r#""n":2,"r":[0],"m":"B""#, "does not have"),
        (r#""n":2,"r":[1,2],"m":"D""#, "does not have"),
        (r#""n":2,"g":{"1":"="}"#, "does not have"),
        (r#""n":2,"g":{"1":"C"}"#, "does not have"),
        (r#""n":2,"g":{"1":"g"}"#, "does not have"),
        (r#""n":2,"g":{"1":"AAA"}"#, "does not have"),
        (r#""n":2,"g":{"0":"A"}"#, "does not have"),
        (r#""n":2,"g":{"1":"A","2":"A"}"#, "twice"),
        (r#""n":2,"e":{"2":1}"#, "does not have"),
        (r#""n":2,"z":1"#, "unknown field"),
    ] {
        assert!(with(rest).unwrap_err().contains(why), "{rest}: {:?}", with(rest));
    }
}
