//! The rungs of the retry ladder.

use crate::support::secs;
use shared::retry::*;

// D6: the boundary is exact.
#[test]
fn failures_below_max_retry_and_at_max_do_not() {
    let ladder = Ladder { max: 3, backoff: vec![secs(1), secs(5)], long: None, then: Then::Undo };
    assert_eq!(ladder.after(1), Rung::Retry(secs(1)));
    assert_eq!(ladder.after(2), Rung::Retry(secs(5)));
    assert_eq!(ladder.after(3), Rung::Exhausted(Then::Undo));
    assert_eq!(ladder.after(4), Rung::Exhausted(Then::Undo));
}

// D6: a longer back-off past the threshold, bounded in number.
#[test]
fn long_back_off_follows_the_threshold_and_ends() {
    let long = Some(Long { every: secs(3600), times: 2 });
    let ladder = Ladder { max: 2, backoff: vec![secs(1)], long, then: Then::Error };
    assert_eq!(ladder.after(1), Rung::Retry(secs(1)));
    assert_eq!(ladder.after(2), Rung::Retry(secs(3600)));
    assert_eq!(ladder.after(3), Rung::Retry(secs(3600)));
    assert_eq!(ladder.after(4), Rung::Exhausted(Then::Error));
}
