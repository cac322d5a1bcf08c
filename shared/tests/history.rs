//! What an entry of the history looks like, and that the history is bounded.

use shared::history::*;

#[test]
fn an_entry_is_a_short_array() {
    let entry = Entry(120, Kind::Claimed, Some(0), 1, None);
    let json = serde_json::to_string(&entry).unwrap();
    assert_eq!(json, r#"[120,"c",0,1,null]"#);
    assert_eq!(serde_json::from_str::<Entry>(&json).unwrap(), entry);
}

#[test]
fn the_log_is_bounded_and_keeps_its_beginning_and_its_end() {
    let mut log = Vec::new();
    for n in 0..1000 {
        push(&mut log, Entry(n, Kind::Expired, None, 0, Some("é".repeat(400))));
    }
    assert_eq!(log.len(), MAX_ENTRIES);
    assert_eq!(log[KEPT_FROM_THE_START - 1].0, 19);
    assert_eq!(log[MAX_ENTRIES - 1].0, 999);
    assert!(log[0].4.as_ref().unwrap().len() <= MAX_TEXT);
}
