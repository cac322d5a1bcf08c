//! How long a step waits: durations and times, in all units.

use serde_json::{Value, json};
use shared::expression::Mapping;
use shared::workflow::wait::*;

#[test]
fn durations_and_times_are_read_in_all_units() {
    let now = "2026-01-31T08:00:00Z".parse().unwrap();
    let wait = Wait::For(Mapping::Constant(Value::Null));
    let until = Wait::Until(Mapping::Constant(Value::Null));
    let ends = |wait: &Wait, value: Value| match wait.end_of(&value, now) {
        Ok(end) => end.to_string(),
        Err(why) => why,
    };
    for (value, end) in [
        (json!("250ms"), "2026-01-31T08:00:00.25Z"),
        (json!("90s"), "2026-01-31T08:01:30Z"),
        (json!("5m"), "2026-01-31T08:05:00Z"),
        (json!("1h 30m"), "2026-01-31T09:30:00Z"),
        (json!("2d"), "2026-02-02T08:00:00Z"),
        (json!("366d"), "2027-02-01T08:00:00Z"),
        (json!(1.5), "2026-01-31T08:00:01.5Z"),
        (json!(0), "2026-01-31T08:00:00Z"),
        (json!("-2s"), "\"-2s\" is negative; write a time from 0s to 366d"),
        (json!(-1), "-1 is negative; write a time from 0s to 366d"),
        (json!("367d"), "\"367d\" is more than 366 days away; write an earlier time"),
        (json!("soon"), "\"soon\" is not a duration; write for example \"90s\", \"2h\", \"3d\", or seconds"),
        (json!(null), "null is not a duration; write for example \"90s\", \"2h\", \"3d\", or seconds"),
    ] {
        assert_eq!(ends(&wait, value), end);
    }
    // Its spelling depends on the features of serde_json in this build.
    assert!(ends(&wait, json!(1e300)).contains("is not a duration"));
    for (value, end) in [
        (json!("2026-02-01T10:00:00+02:00"), "2026-02-01T08:00:00Z"),
        (json!(1769846400), "2026-01-31T08:00:00Z"),
        // A past time.
        (json!("2020-01-01T00:00:00Z"), "2020-01-01T00:00:00Z"),
        (json!("2030-01-01T00:00:00Z"), "\"2030-01-01T00:00:00Z\" is more than 366 days away; write an earlier time"),
    ] {
        assert_eq!(ends(&until, value), end);
    }
    for value in ["2026-02-01T10:00:00", "2026-02-01", "2d"] {
        assert!(ends(&until, value.into()).contains("is not a time; write it as in RFC 3339 with an offset"));
    }
}
