//! When an agent is strained, and how its back-off is stretched, as tables.

use crate::support::secs;
use shared::strain::*;
use shared::time::{SignedDuration, Timestamp};

fn at(s: i64) -> Timestamp {
    Timestamp::from_second(s).unwrap()
}

fn strain(last: i64, stretch: u32) -> Strain {
    Strain { since: at(0), last: at(last), stretch, held: 10, looked_at: 20, alert_owed: false }
}

// J1: the boundary is exact: a fifth is not strained, more than a fifth is; and there is a least number.
#[test]
fn more_than_a_fifth_is_strained_and_a_fifth_is_not() {
    let table = [
        (10, 50, false),
        (10, 49, true),
        (11, 50, true),
        (9, 9, false),
        (10, 10, true),
        (200, 1000, false),
        (201, 1000, true),
        (0, 0, false),
        (u32::MAX, u32::MAX, true),
    ];
    for (held, looked_at, expected) in table {
        assert_eq!(is_strained(held, looked_at, LEAST), expected, "{held} of {looked_at}");
    }
    assert!(is_strained(3, 10, 3) && !is_strained(2, 9, 3), "the least number is a setting");
}

// J1: doubled with each strained window, bounded; sweeps within a window are one.
#[test]
fn the_stretch_doubles_by_the_window_up_to_its_bound() {
    let first = next(None, 12, 30, at(0)).unwrap();
    assert_eq!((first.stretch, first.since, first.alert_owed), (2, at(0), true));
    let sent = Strain { alert_owed: false, ..first };
    assert_eq!(next(Some(&sent), 25, 30, at(29)), None, "the same window");
    let mut known = sent;
    for (now, stretch) in [(30, 4), (60, 8), (90, 8), (400, 8)] {
        known = next(Some(&known), 25, 31, at(now)).unwrap();
        assert_eq!((known.stretch, known.since, known.last), (stretch, at(0), at(now)));
        assert_eq!((known.held, known.looked_at, known.alert_owed), (25, 31, false), "told once");
    }
}

// F2: one alert for an episode; the next episode begins after a quiet time, with a separate alert.
#[test]
fn an_episode_ends_after_a_quiet_time() {
    let known = strain(100, 8);
    assert!(known.is_on(at(699)) && !known.is_on(at(700)));
    let within = next(Some(&known), 10, 10, at(699)).unwrap();
    assert_eq!((within.since, within.stretch, within.alert_owed), (at(0), 8, false));
    let after = next(Some(&known), 10, 10, at(700)).unwrap();
    assert_eq!((after.since, after.stretch, after.alert_owed), (at(700), 2, true));
}

// F3: while the alert is owed it is one episode, however long the bus is away.
#[test]
fn an_episode_with_an_alert_owed_does_not_end() {
    let owed = Strain { alert_owed: true, ..strain(100, 8) };
    let later = next(Some(&owed), 10, 10, at(5000)).unwrap();
    assert_eq!((later.since, later.stretch, later.alert_owed), (at(0), 2, true));
}

// J1: a back-off is multiplied, up to a bound; one that is longer by itself is left alone.
#[test]
fn back_offs_are_stretched_up_to_a_bound_and_only_during_the_episode() {
    let table = [
        (secs(0), 8, secs(0)),
        (secs(1), 2, secs(2)),
        (secs(15), 8, secs(120)),
        (secs(60), 8, MAX_WAIT),
        (secs(600), 2, secs(600)),
        (SignedDuration::MAX, 8, SignedDuration::MAX),
    ];
    for (wait, stretch, expected) in table {
        assert_eq!(strain(0, stretch).stretch(wait, at(1)), expected, "{wait} x {stretch}");
        assert_eq!(strain(0, stretch).stretch(wait, at(600)), wait, "the episode is over");
    }
}
