//! Goal: EventBridge as its official SDK sees it, and what readers see. Method: the SDK's
//! client against endpoints in memory.

mod common;

use aws_sdk_eventbridge::types::PutEventsRequestEntry;
use common::{eventbridge, memory};

fn entry(detail: &str) -> PutEventsRequestEntry {
    let entry = PutEventsRequestEntry::builder().source("stepwarden").detail_type("TaskProcessed");
    entry.detail(detail).build()
}

#[tokio::test]
async fn good_entries_are_kept_and_bad_ones_say_why() {
    let endpoints = memory();
    let client = eventbridge(&endpoints);
    let mut no_source = entry("{}");
    no_source.source = None;
    let mut nowhere = entry("{}");
    nowhere.event_bus_name = Some("none".into());
    let outcome = client
        .put_events()
        .entries(entry(r#"{"n":1}"#))
        .entries(entry("not JSON"))
        .entries(entry("[]"))
        .entries(no_source)
        .entries(nowhere)
        .entries(entry(r#"{"n":2}"#))
        .send()
        .await
        .unwrap();
    assert_eq!(outcome.failed_entry_count(), 4);
    let codes: Vec<_> = outcome.entries().iter().map(|entry| entry.error_code()).collect();
    let malformed = Some("MalformedDetail");
    let missing = Some("ResourceNotFoundException");
    assert_eq!(codes, [None, malformed, malformed, Some("InvalidArgument"), missing, None]);

    let kept = endpoints.events().page(0, 10);
    let details: Vec<_> = kept.iter().map(|event| event.detail.as_str()).collect();
    assert_eq!(details, [r#"{"n":1}"#, r#"{"n":2}"#]);
    assert_eq!(Some(kept[0].id.as_str()), outcome.entries()[0].event_id());
    assert_eq!(endpoints.events().page(kept[0].number, 10).len(), 1, "pages go on from a cursor");
}

#[tokio::test]
async fn requests_are_limited() {
    let client = eventbridge(&memory());
    let eleven = client.put_events().set_entries(Some(vec![entry("{}"); 11]));
    assert!(eleven.send().await.is_err());
    let large = format!(r#"{{"x":"{}"}}"#, "x".repeat(1024 * 1024));
    assert!(client.put_events().entries(entry(&large)).send().await.is_err());
}

#[tokio::test]
async fn newest_events_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let most = stepwarden_embedded::EVENTS_KEPT;
    {
        let endpoints = common::on_disk(dir.path());
        let client = eventbridge(&endpoints);
        for _ in 0..(most + 50) / 10 {
            let ten = client.put_events().set_entries(Some(vec![entry("{}"); 10]));
            ten.send().await.unwrap();
        }
        assert_eq!(endpoints.events().page(0, usize::MAX).len(), most);
    }
    let kept = common::on_disk(dir.path()).events().page(0, usize::MAX);
    assert_eq!((kept.len(), kept[0].number), (most, 51));
}

// Each start reads all that the file holds, so few events are kept if they are large, whichever of their texts is large.
#[tokio::test]
async fn fewer_events_are_kept_if_they_are_large() {
    let dir = tempfile::tempdir().unwrap();
    let endpoints = common::on_disk(dir.path());
    let client = eventbridge(&endpoints);
    let mut large = entry("{}");
    large.resources = Some(vec!["x".repeat(1_000_000)]);
    for _ in 0..72 {
        client.put_events().entries(large.clone()).send().await.unwrap();
    }
    let kept = endpoints.events().page(0, usize::MAX);
    assert!((60..=68).contains(&kept.len()), "{} MB are in memory", kept.len());
    assert_eq!(kept.last().unwrap().number, 72);
    let file = rusqlite::Connection::open(dir.path().join("queues.db")).unwrap();
    let stored: usize = file.query_row("SELECT count(*) FROM events", [], |row| row.get(0)).unwrap();
    assert!(stored <= kept.len() + 1, "{stored} MB are in the file");
}

// Otherwise a reader would miss events, and the file would lose those below a number that is too high.
#[tokio::test]
async fn the_number_of_an_event_is_the_key_of_its_row() {
    let dir = tempfile::tempdir().unwrap();
    {
        let client = eventbridge(&common::on_disk(dir.path()));
        for _ in 0..3 {
            client.put_events().entries(entry("{}")).send().await.unwrap();
        }
    }
    let file = dir.path().join("queues.db");
    let damage = r#"UPDATE events SET event = replace(event, '"number":2', '"number":6') WHERE number = 2"#;
    rusqlite::Connection::open(&file).unwrap().execute(damage, []).unwrap();
    let _ = std::fs::remove_file(stepwarden_guard::marks::file_of(&file));
    let numbers = common::on_disk(dir.path()).events().page(0, 9).iter().map(|event| event.number).collect::<Vec<_>>();
    assert_eq!(numbers, [1, 2, 3]);
}
