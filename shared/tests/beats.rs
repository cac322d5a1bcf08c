//! Heartbeats of long attempts, as tables.
//!
//! Method: as in `transitions.rs`.

use crate::language::bench;
use crate::support::*;
use serde_json::json;
use shared::decision::{Event, Kept, Progress, What};
use shared::message::{Outcome, Reply};
use shared::step::State;
use shared::task::Phase;
use shared::workflow::beat::{address, scope};

const STEPS: &str = r#"
a | after = []; heartbeat = "10s"; timeout = "60s"; undo = { agent = "x", heartbeat = "5s" }
b | after = ["a"]
"#;

fn beat(attempt: u32) -> Event {
    Event::Beat { step: "a".into(), attempt, progress: Progress::default() }
}

fn with_secret() -> Bench {
    let mut bench = bench(STEPS, json!({}));
    bench.task.secret = Some("s".into());
    bench
}

fn begun() -> Bench {
    let mut bench = with_secret();
    bench.wake(0);
    bench
}

/// CompleteBy of the first step, in milliseconds.
fn by(bench: &Bench) -> i64 {
    ms(bench.task.steps[0].claim().unwrap().1)
}

fn forward_by(bench: &Bench) -> i64 {
    ms(bench.task.forward_by.unwrap())
}

// L6: two heartbeats may be missed, and the request says where to send them.
#[test]
fn an_attempt_with_heartbeats_has_a_short_complete_by() {
    let mut bench = begun();
    let told = bench.request("a").heartbeat.clone().unwrap();
    assert_eq!((told.url, told.every_ms), (address("https://orders.example", &bench.task.id, "a", 1, "s"), 10_000));
    assert_eq!((by(&bench), forward_by(&bench), bench.request("a").complete_by), (20_000, 20_000, at(20_000)));
    assert!(bench.done("a").request("b").heartbeat.is_none());
    assert_eq!(bench.task.steps[0].heart, None);
}

// L6: the answer is the stored CompleteBy. The first heartbeat is written, and then one once a quarter of the time is over.
#[test]
fn a_heartbeat_moves_complete_by_and_nothing_else() {
    let mut bench = begun();
    let (seen, claimed_at, log) = (bench.task.version, bench.task.steps[0].claimed_at, bench.task.log.clone());
    bench.at(1_000).on(&beat(1)).is("Processing a=Processing#1 b=Pending", "");
    assert_eq!(by(&bench), 21_000);
    bench.at(5_999).on(&beat(1)).keeps(Kept::Alive, "");
    let progress = Progress { percent: Some(40), note: Some("4 of 10 files".into()) };
    bench.at(6_000).on(&Event::Beat { step: "a".into(), attempt: 1, progress });
    bench.is("Processing a=Processing#1 b=Pending", "");
    assert_eq!((by(&bench), forward_by(&bench)), (26_000, 26_000));
    let heart = bench.task.steps[0].heart.clone().unwrap();
    assert_eq!((heart.percent, heart.note.as_deref(), heart.at), (Some(40), Some("4 of 10 files"), Some(at(6_000))));
    // A request may be sent again only if it may be lost, and a person's view is as it was.
    assert_eq!((bench.task.steps[0].claimed_at, bench.task.log.clone()), (claimed_at, log));
    assert!(bench.task.is_as_seen(seen));
    bench.wake(seen).keeps(Kept::NothingReady, "");
    // What was said stays until something else is said.
    bench.at(25_000).on(&beat(1));
    assert_eq!(bench.task.steps[0].heart.as_ref().unwrap().percent, Some(40));
}

// "Never shorter": the clock of another instance may be behind.
#[test]
fn complete_by_never_moves_back_nor_beyond_the_timeout() {
    let mut bench = begun();
    for now in [12_000, 24_000, 36_000, 48_000] {
        bench.at(now).on(&beat(1));
    }
    assert_eq!(by(&bench), 60_000);
    bench.at(55_000).on(&beat(1));
    assert_eq!(by(&bench), 60_000);
    bench.at(60_000).on(&beat(1)).keeps(Kept::Late, "");
    bench.at(61_000).supervise().is("Pending a=Pending+1000#1f1 b=Pending", "wake+1000");
    assert_eq!(bench.task.steps[0].error.as_deref(), Some("no heartbeat and no answer in time"));
    assert_eq!(bench.task.steps[0].heart, None);
}

// L6: any spacing up to the heartbeat keeps the attempt, with the skew that an agent allows for.
#[test]
fn an_agent_that_keeps_to_the_time_keeps_its_attempt() {
    for spacing in [9_999, 9_800, 7_000, 5_001, 5_000, 4_999, 900] {
        let mut bench = begun();
        let (mut now, mut known) = (50, 20_000);
        while now < 39_000 {
            assert!(now + 1_000 < known, "every {spacing} ms: dropped before the heartbeat at {now}");
            bench.at(now).on(&beat(1));
            known = by(&bench);
            now += spacing;
        }
    }
}

// A sweep takes an order that has just changed for one whose Wake is on its way, and a heartbeat is no such change: a step beside the long
// one gets its turn although its Wake was lost.
#[test]
fn heartbeats_keep_no_other_step_waiting() {
    let steps = STEPS.replace("after = [\"a\"]", "after = []; retry = { max = 3, backoff = [\"30m\"] }");
    let mut bench = bench(&steps.replace("60s", "9h"), json!({}));
    bench.task.secret = Some("s".into());
    bench.wake(0);
    bench.answered("b", unavailable(None));
    let (changed, looked) = (bench.task.updated_at, at(1_860_000));
    for now in (0..=1_856_000).step_by(8_000) {
        bench.at(now).on(&beat(1));
        assert!(bench.effects.is_empty(), "a heartbeat starts nothing");
        assert!(bench.task.due.is_some_and(|due| due <= looked), "{:?} at {now} ms", bench.task.due);
    }
    assert_eq!(bench.task.updated_at, changed);
    bench.at(1_860_000).supervise().is("Processing a=Processing#1 b=Pending+-60000#1f1", "wake");
}

// Lists and `overview` say since when an order waits for a person: an attempt beside the failed step does not make it a new one. Neither is
// an alert that is owed ever sent later because of it.
#[test]
fn heartbeats_make_no_order_young() {
    let mut bench = bench(&STEPS.replace("after = [\"a\"]", "after = []; on_failure = \"error\""), json!({}));
    bench.task.secret = Some("s".into());
    bench.wake(0).at(1_000).failed("b");
    assert_eq!((bench.task.phase, bench.task.updated_at, bench.task.alert.is_some()), (Phase::Error, at(1_000), true));
    let due = bench.task.due;
    for now in (2_000..60_000).step_by(6_000) {
        bench.at(now).on(&beat(1));
        assert_eq!((bench.task.updated_at, bench.task.due), (at(1_000), due));
    }
    assert_eq!(by(&bench), 60_000);
}

// What a person writes in place of a record that cannot be read may have lost until when the agent may act. A heartbeat leaves
// `updated_at`, and its attempt may have days; but no save gave it more than two heartbeats, by any clock.
#[test]
fn an_undo_waits_for_heartbeats_that_a_text_has_forgotten() {
    for (mended, until) in [(30_000, 51_000), (45_000, 60_000)] {
        let mut bench = begun();
        for now in (9_000..=mended).step_by(9_000) {
            bench.at(now).on(&beat(1));
        }
        assert!(forward_by(&bench) <= until && bench.task.updated_at == at(0));
        bench.at(mended);
        let mut text = bench.task.clone();
        text.forward_by = None;
        let (task, _) = shared::mend::mend(&text, "acme", "ann", "r", &bench.turn("operator")).unwrap();
        assert_eq!(task.forward_by, Some(at(until)));
    }
}

// An undo that was answered may have been given more time after the last change that counts, by a clock that is ahead.
#[test]
fn a_migration_waits_for_an_undo_with_heartbeats() {
    use shared::migrate::Migration;
    let mut bench = begun();
    bench.on(&act(What::Cancel)).at(21_000).supervise();
    bench.woken().at(26_000).on(&beat(2));
    let of = |bench: &Bench| {
        Migration::of(&bench.task, &bench.workflow, secs(1), shared::workflow::Hash("h".repeat(64)), false).from
    };
    assert_eq!((by(&bench), of(&bench)), (36_000, Some(at(36_000))));
    bench.task.steps[0].state = State::Undone;
    assert_eq!(of(&bench), Some(at(21_000 + 10_000 + 1_000)));
}

// Another agent would do the long work beside the first.
#[test]
fn a_late_wake_sends_no_request_to_a_second_agent() {
    let mut bench = begun();
    bench.wake(0).keeps(Kept::NothingReady, "do a#1");
    bench.at(1_000).on(&beat(1));
    bench.wake(0).keeps(Kept::NothingReady, "");
}

// L6: a worker that died is found within two heartbeats, although its step may take much longer.
#[test]
fn a_silent_worker_is_found_after_two_heartbeats() {
    let mut bench = begun();
    bench.at(12_000).on(&beat(1));
    bench.at(21_000).supervise();
    assert_eq!(bench.expired, 0);
    bench.at(33_000).supervise().is("Pending a=Pending+1000#1f1 b=Pending", "wake+1000");
    // The next attempt has its own time, and the old worker has to stop.
    bench.at(34_000).woken();
    assert_eq!(by(&bench), 54_000);
    bench.at(45_000).on(&beat(1)).keeps(Kept::Stale, "");
    bench.on(&beat(2));
    assert_eq!(by(&bench), 65_000);
    for never in [0, 3] {
        bench.on(&beat(never)).keeps(Kept::Foreign, "");
    }
    bench.on(&Event::Beat { step: "b".into(), attempt: 1, progress: Progress::default() }).keeps(Kept::Foreign, "");
}

// "Heartbeats are refused once Undoing": so would be those of a long undo.
#[test]
fn a_cancel_stops_the_worker_and_an_undo_has_heartbeats_too() {
    let mut bench = begun();
    bench.at(12_000).on(&beat(1)).on(&act(What::Cancel));
    bench.at(23_000).on(&beat(1)).keeps(Kept::Stale, "");
    assert_eq!(forward_by(&bench), 32_000);
    bench.at(33_000).supervise();
    bench.woken().is("Undoing a=UndoProcessing#2f1 b=Pending", "undo a#2");
    assert_eq!(by(&bench), 43_000);
    assert_eq!(bench.request("a").heartbeat.as_ref().map(|told| told.every_ms), Some(5_000));
    bench.at(39_000).on(&beat(2));
    // The way forward does not count for an undo.
    assert_eq!((by(&bench), forward_by(&bench)), (49_000, 32_000));
}

// In Error an attempt beside the failed step goes on: its answer counts.
#[test]
fn an_attempt_goes_on_in_error_and_in_a_pause() {
    let mut bench = begun();
    bench.on(&act(What::Pause)).at(12_000).on(&beat(1));
    assert_eq!(by(&bench), 32_000);
    bench.on(&act(What::Resume)).at(24_000).on(&beat(1));
    assert!(matches!(bench.task.steps[0].state, State::Processing { .. }));
}

// An address is of one attempt, and is no address for a callback.
#[test]
fn a_token_is_of_one_attempt() {
    use shared::workflow::accept::is_token;
    let bench = with_secret();
    let token = |attempt| {
        let url = address("https://orders.example/", &bench.task.id, "a", attempt, "s");
        url.rsplit('/').next().unwrap().to_owned()
    };
    assert!(is_token(&token(1), "s", &scope("a", 1)));
    assert!(!is_token(&token(1), "s", &scope("a", 2)));
    assert!(!is_token(&token(1), "s", "a"));
    assert!(!is_token(&token(1), "", &scope("a", 1)));
}

// Without an address for its heartbeats a step cannot be done, and says what to set.
#[test]
fn a_deployment_without_an_address_says_so() {
    // A step is not begun either if its undo could not be done.
    for steps in [STEPS, "a | after = []; timeout = \"60s\"; undo = { agent = \"x\", heartbeat = \"5s\" }"] {
        let mut bench = bench(steps, json!({}));
        bench.public_url = "";
        bench.wake(0);
        assert!(bench.task.steps[0].error.as_deref().unwrap().contains("set PublicUrl"));
        assert_eq!(bench.task.steps[0].attempt, 0);
    }
}

// L6: a program that ends hands its long work back. That takes no attempt from the step, and the undo of what may be half done is owed.
#[test]
fn work_that_an_agent_hands_back_counts_no_failure() {
    let mut bench = with_secret();
    for n in 1..=5 {
        bench.at(n * 10_000).wake(2 * n.unsigned_abs() - 2);
        let error = "the agent was stopped before the work was done".to_owned();
        let reply = bench.told("a", Outcome::Deferred { error, retry_after_ms: 2000 });
        bench.on(&Event::Reply(Reply { unsure: true, ..reply }));
        bench.is(&format!("Pending a=Pending+2000#{n} b=Pending"), "wake+2000");
    }
    bench.cancel();
    bench.at(90_000).woken();
    assert!(matches!(bench.task.steps[0].state, State::UndoProcessing { .. }), "{:?}", bench.task.steps[0]);
    // Where the undo needs data, a later refusal does not say that nothing was done.
    let mut mapped = bench_of_mapped();
    let reply = mapped.wake(0).told("a", deferred(0));
    mapped.on(&Event::Reply(Reply { unsure: true, ..reply }));
    assert!(mapped.task.steps[0].unsure);
}

fn bench_of_mapped() -> Bench {
    let mut bench = bench(&STEPS.replace("heartbeat = \"5s\"", "with = { id = \"${output.id}\" }"), json!({}));
    bench.task.secret = Some("s".into());
    bench
}
