//! Goal: what is stored keeps its form: a record is as short as it can be, and a task finds its part of the due index again
//! after an update of the program.

use crate::support::*;
use serde_json::{Value, json};
use shared::order::Id;
use shared::task::{MAX_SHARDS, MOVED, Priority, Task, URGENT, moved, shard_of};

fn record(task: &Task) -> Value {
    serde_json::to_value(task).unwrap()
}

// C5: every write carries the record, so what is at its beginning takes no byte in it.
#[test]
fn a_new_record_holds_nothing_that_is_as_at_the_beginning() {
    let bench = Bench::new(ONE);
    let mut new = record(&bench.task);
    new["wh"] = json!("a hash");
    let expected = json!({
        "log": [], "ph": "Forward", "ref": "r-1", "rq": "acme", "st": [{"state": "Pending"}], "tn": "acme", "wf": "one", "wh": "a hash"
    });
    assert_eq!(new, expected);
    let mut task = bench.task.clone();
    task.shard = 3;
    task.priority = Priority::High;
    task.turned_at = 2;
    task.notice_owed = true;
    task.steps[0].attempt = 1;
    task.steps[0].claimed_at = 1;
    let read: Task = serde_json::from_value(record(&task)).unwrap();
    assert_eq!(read.steps, task.steps);
    assert_eq!((read.shard, read.priority, read.turned_at, read.notice_owed), (3, Priority::High, 2, true));
}

// I3: the parts of the due index: those a submission chooses, those of urgent tasks, and those of tasks that have begun.
#[test]
fn a_task_keeps_its_part_of_the_due_index_for_ever() {
    let id = Id::derive("acme", "key-1");
    // 2,879,778,880 by the hash in `order.rs`; its last byte is 64.
    assert_eq!((shard_of(&id, 256, false), shard_of(&id, 100, false), shard_of(&id, 100, true)), (64, 80, 256 + 80));
    assert_eq!((shard_of(&id, 0, false), shard_of(&id, 1, false)), (0, 0), "one part at least");
    assert_eq!(shard_of(&id, 10_000, false), 64, "and no more than there are");
    assert_eq!((MAX_SHARDS, URGENT, MOVED), (256, 256, 512), "stored with every task");
    for (shard, part) in [(0, 512), (64, 576), (256, 512), (256 + 80, 592), (592, 592)] {
        assert_eq!(moved(shard), part, "{shard}");
    }
}
