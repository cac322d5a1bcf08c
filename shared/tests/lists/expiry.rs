//! How long the records of a list's orders are kept.

use super::{CHILD, PARENT, family_of, good, lines, stopping, without};
use crate::support::*;
use serde_json::json;
use shared::decision::Event;
use shared::items::Item;
use shared::message::Reply;
use shared::task::Phase;

// A record stays as long as that of its parent.
#[tokio::test]
async fn children_expire_after_their_parent() {
    let mut family = family_of(PARENT, CHILD, lines(230)).await;
    family.expires();
    family.after(5).await;
    assert_eq!(family.parent().phase, Phase::Processed);
    let released = |item: &usize| family.child_of(*item, 0).unwrap().parent.unwrap().released;
    assert_eq!((0..230).filter(released).count(), 230);
}

// The records of the first hundred are released; one of the next cannot be written. That message is redelivered.
#[tokio::test]
async fn a_release_goes_on_with_the_part_that_failed() {
    let mut family = family_of(PARENT, CHILD, lines(230)).await;
    family.expires();
    family.answers = Box::new(|request| match request.step.as_str() {
        "mail" => later(),
        _ => good(request),
    });
    family.after(3).await;
    assert_eq!(family.items().count(|item| item == Item::Done), 230);
    *family.store.unwritable.lock().unwrap() = Some(Family::id(150, 0));
    let reply = Reply::new(parent(), "mail", 1, done(json!(null)));
    family.handle(&parent(), Event::Reply(reply)).await;
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Processed);
    let released = |family: &Family| -> Vec<usize> {
        (0..230).filter(|item| family.child_of(*item, 0).unwrap().parent.unwrap().released).collect()
    };
    assert_eq!(released(&family), (0..200).filter(|item| *item != 150).collect::<Vec<_>>());
    *family.store.unwritable.lock().unwrap() = None;
    let again = Event::Hint { seen: family.parent().version, part: 2, step: None };
    family.handle(&parent(), again).await;
    family.play().await;
    assert_eq!(released(&family), (0..230).collect::<Vec<_>>());
}

// An order that took the place of another does not end the care for that one.
#[tokio::test]
async fn orders_of_earlier_rounds_expire_with_their_parent_too() {
    let mut family = family_of(&stopping(), CHILD, lines(2)).await;
    family.expires();
    family.answers = without(&[1]);
    family.after(30).await;
    for answers in [without(&[1]), Box::new(good)] {
        assert_eq!(family.parent().phase, Phase::Error);
        family.answers = answers;
        family.resubmit().await;
        family.after(60).await;
    }
    assert_eq!(family.parent().phase, Phase::Processed);
    let released = |place: &(usize, u32)| family.child_of(place.0, place.1).unwrap().parent.unwrap().released;
    let places: Vec<(usize, u32)> = family.phases().into_keys().collect();
    assert_eq!(places, [(0, 0), (1, 0), (1, 1), (1, 2)]);
    assert!(places.iter().all(released), "{places:?}");
}
