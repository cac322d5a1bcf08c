//! Goal: acknowledged writes exist after any end of the process, and an unusable directory is reported in one line.
//! Method: reopen after a drop; kill a child process that reports each acknowledged send; damage files.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use aws_sdk_sqs::types::QueueAttributeName as Q;
use common::{bodies, eventbridge, on_disk, opened, queue, receive, receives, send, sqs};
use stepwarden_embedded::{Durability, Endpoints, OpenError, Options};

/// Variable of the child with the data directory.
const CHILD_DIR: &str = "STEPWARDEN_TEST_CHILD_DIR";

fn open(dir: &Path) -> Result<Endpoints, OpenError> {
    Endpoints::open(&Options { data_dir: Some(dir.into()), durability: Durability::Full })
}

#[tokio::test]
async fn messages_are_there_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let (url, id) = {
        let (_, sqs, url) = opened(on_disk(dir.path()), &[(Q::VisibilityTimeout, "600")]).await;
        for body in ["deleted", "in flight", "waiting"] {
            let message = sqs.send_message().queue_url(&url).message_body(body);
            let message = message.message_group_id("g").message_attributes("k", attribute("v"));
            message.send().await.unwrap();
        }
        sqs.send_message().queue_url(&url).message_body("later").delay_seconds(900).send().await.unwrap();
        let request = sqs.receive_message().queue_url(&url).max_number_of_messages(2);
        let got = request.send().await.unwrap().messages.unwrap();
        assert_eq!(bodies(&got), ["deleted", "in flight"]);
        // A message that was received and became visible again counts as received, also after reopening.
        let back = receive(&sqs, &url).await;
        assert_eq!(bodies(&back), ["waiting"]);
        let give = sqs.change_message_visibility().queue_url(&url).visibility_timeout(0);
        give.receipt_handle(back[0].receipt_handle().unwrap()).send().await.unwrap();
        let delete = sqs.delete_message().queue_url(&url);
        delete.receipt_handle(got[0].receipt_handle().unwrap()).send().await.unwrap();
        (url, got[1].message_id.clone())
    };
    let endpoints = on_disk(dir.path());
    let stat = &endpoints.queue_stats()[0];
    assert_eq!((stat.visible, stat.in_flight, stat.delayed), (2, 0, 1));
    let sqs = sqs(&endpoints);
    let got = receive(&sqs, &url).await;
    assert_eq!(bodies(&got), ["in flight", "waiting"]);
    assert_eq!(got[0].message_id, id);
    assert_eq!(got[0].message_attributes().unwrap()["k"], attribute("v"));
    let counts = (receives(&got[0]), receives(&got[1]));
    assert_eq!(counts, ("1", "2"), "a receive that the end cut short does not count, others do");
}

// A long log takes space, and a start after a kill reads it.
#[tokio::test]
async fn the_log_of_queues_stays_short() {
    let dir = tempfile::tempdir().unwrap();
    let (_, sqs, url) = opened(open(dir.path()).unwrap(), &[]).await;
    for _ in 0..40 {
        send(&sqs, &url, &"x".repeat(200_000)).await;
    }
    let bytes = dir.path().join("queues.db-wal").metadata().unwrap().len();
    assert!((1_000_000..4_000_000).contains(&bytes), "{bytes} bytes, of 8 MB");
}

fn attribute(value: &str) -> aws_sdk_sqs::types::MessageAttributeValue {
    let value = aws_sdk_sqs::types::MessageAttributeValue::builder().string_value(value);
    value.data_type("String").build().unwrap()
}

/// Commits run outside tokio's own threads. Its paused clock must not advance meanwhile; otherwise every timeout of a
/// test would pass at once.
#[tokio::test(start_paused = true)]
async fn paused_clock_stands_still_during_commits() {
    let dir = tempfile::tempdir().unwrap();
    let (endpoints, sqs, url) = opened(open(dir.path()).unwrap(), &[]).await;
    let started = tokio::time::Instant::now();
    let alarm = tokio::spawn(tokio::time::sleep(std::time::Duration::from_secs(5)));
    for n in 0..50 {
        send(&sqs, &url, &n.to_string()).await;
        common::dynamodb(&endpoints).list_tables().send().await.unwrap();
    }
    // A commit of messages waits for more of them.
    assert!(started.elapsed() < std::time::Duration::from_millis(200), "{:?}", started.elapsed());
    assert!(!alarm.is_finished());
}

// Receivers do not wait for the disk. What they do with a message before it is stored must hold in the file as well.
#[tokio::test(start_paused = true)]
async fn what_happens_to_a_message_before_it_is_stored_is_stored_too() {
    let dir = tempfile::tempdir().unwrap();
    let url = {
        let (_, sqs, url) = opened(open(dir.path()).unwrap(), &[(Q::VisibilityTimeout, "600")]).await;
        let busy = busy(dir.path());
        let both = async { tokio::join!(send(&sqs, &url, "deleted"), send(&sqs, &url, "received")) };
        let handle = async {
            let request = sqs.receive_message().queue_url(&url).max_number_of_messages(2).wait_time_seconds(20);
            let got = request.send().await.unwrap().messages.unwrap();
            assert_eq!(bodies(&got), ["deleted", "received"]);
            let stored = busy.query_row("SELECT count(*) FROM messages", [], |row| row.get(0));
            assert_eq!(stored, Ok(0));
            drop(busy);
            let [deleted, received] = &got[..] else { unreachable!("two") };
            let delete = sqs.delete_message().queue_url(&url);
            delete.receipt_handle(deleted.receipt_handle().unwrap()).send().await.unwrap();
            let give = sqs.change_message_visibility().queue_url(&url).visibility_timeout(0);
            give.receipt_handle(received.receipt_handle().unwrap()).send().await.unwrap();
        };
        tokio::join!(both, handle);
        url
    };
    let sqs = sqs(&on_disk(dir.path()));
    let got = receive(&sqs, &url).await;
    assert_eq!(bodies(&got), ["received"]);
    assert_eq!(receives(&got[0]), "2");
}

// What is sent while a purge is stored comes after it in the file.
#[tokio::test]
async fn a_message_sent_during_a_purge_stays_in_file_and_queue() {
    let dir = tempfile::tempdir().unwrap();
    {
        let (_, sqs, url) = opened(on_disk(dir.path()), &[]).await;
        send(&sqs, &url, "before").await;
        let purge = async { sqs.purge_queue().queue_url(&url).send().await.unwrap() };
        tokio::join!(biased; purge, send(&sqs, &url, "during"));
        let got = receive(&sqs, &url).await;
        assert_eq!(bodies(&got), ["during"]);
    }
    assert_eq!(on_disk(dir.path()).queue_stats()[0].visible, 1);
}

/// A caller that stops waiting neither loses nor hides a message: the message is in the queue and in the file, or in
/// neither.
#[tokio::test(flavor = "multi_thread")]
async fn abandoned_sends_leave_file_and_queue_alike() {
    let dir = tempfile::tempdir().unwrap();
    let visible = {
        let (endpoints, sqs, url) = opened(on_disk(dir.path()), &[]).await;
        for n in 0..200 {
            let send = sqs.send_message().queue_url(&url).message_body(n.to_string()).send();
            let patience = std::time::Duration::from_micros(n * 5);
            let _ = tokio::time::timeout(patience, send).await;
        }
        // Commits are in order: after this one, all are done.
        send(&sqs, &url, "last").await;
        endpoints.queue_stats()[0].visible
    };
    assert_eq!(on_disk(dir.path()).queue_stats()[0].visible, visible);
}

/// The child of the next test: sends until it is killed, and prints each acknowledged message.
#[tokio::test]
#[ignore = "run by killed_process_keeps_what_was_acknowledged"]
async fn child_that_sends_until_it_is_killed() {
    let Ok(dir) = std::env::var(CHILD_DIR) else {
        return;
    };
    let (_, sqs, url) = opened(on_disk(Path::new(&dir)), &[]).await;
    for n in 0_u64.. {
        send(&sqs, &url, &n.to_string()).await;
        println!("\nacknowledged {n}");
    }
}

#[tokio::test]
async fn killed_process_keeps_what_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_sends_until_it_is_killed", "--ignored", "--nocapture"])
        .env(CHILD_DIR, dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut acknowledged = 0_u64;
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in lines.by_ref() {
        if line.unwrap().starts_with("acknowledged ") {
            acknowledged += 1;
        }
        if acknowledged == 500 {
            child.kill().unwrap();
            break;
        }
    }
    // The lines that it printed before it was killed.
    acknowledged += lines.map_while(Result::ok).filter(|line| line.starts_with("acknowledged ")).count() as u64;
    child.wait().unwrap();
    assert!(acknowledged >= 500);

    let (_, sqs, url) = opened(on_disk(dir.path()), &[]).await;
    let mut found = std::collections::BTreeSet::new();
    loop {
        let got = receive(&sqs, &url).await;
        if got.is_empty() {
            break;
        }
        found.extend(bodies(&got).into_iter().map(|body| body.parse::<u64>().unwrap()));
    }
    let lost: Vec<_> = (0..acknowledged).filter(|n| !found.contains(n)).collect();
    assert!(lost.is_empty(), "lost {lost:?} of {acknowledged}");
}

/// If a process is killed again and again, that is not the fault of the messages that it was handling: on AWS the queue
/// does not stop, and only failed handling counts.
#[tokio::test]
async fn kills_make_no_dead_letters() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..10 {
        let (endpoints, sqs, url) = work(on_disk(dir.path())).await;
        if endpoints.queue_stats().iter().all(|stat| stat.visible == 0) {
            send(&sqs, &url, "healthy").await;
        }
        assert_eq!(bodies(&receive(&sqs, &url).await), ["healthy"]);
        // A later write also commits the lazy ones, as if the kill came a moment later.
        send(&sqs, &queue(&sqs, "other", &[]).await, "later").await;
        kill(dir.path(), (sqs, endpoints));
    }
}

/// Starts a process that is killed while it handles the received messages, and returns their bodies. Nothing has been
/// written since the receive, as if handling aborted at once.
async fn killed_over_its_messages(dir: &Path) -> Vec<String> {
    let (endpoints, sqs, url) = work(on_disk(dir)).await;
    let got = receive(&sqs, &url).await;
    kill(dir, (sqs, endpoints));
    bodies(&got).into_iter().map(str::to_owned).collect()
}

/// A message whose handling ends the process would do so forever. It becomes a dead letter, but after more receives
/// than a message whose handling fails.
#[tokio::test]
async fn a_message_that_ends_the_process_each_time_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    killed_over_its_messages(dir.path()).await;
    {
        let sqs = sqs(&on_disk(dir.path()));
        send(&sqs, &queue(&sqs, "work", &[]).await, "poison").await;
    }
    let mut ends = 0;
    while killed_over_its_messages(dir.path()).await == ["poison"] {
        ends += 1;
        assert!(ends < 50, "nothing stops it");
    }
    assert!((20..=22).contains(&ends), "{ends} ends of the process");
    let endpoints = on_disk(dir.path());
    // The kill came before the move was stored, so it is done again.
    let sqs = sqs(&endpoints);
    assert!(receive(&sqs, &queue(&sqs, "work", &[]).await).await.is_empty());
    let stat = |name: &str| endpoints.queue_stats().into_iter().find(|stat| stat.name == name).unwrap().visible;
    assert_eq!((stat("work"), stat("dead")), (0, 1));
}

/// Nothing is stored until this is dropped.
fn busy(dir: &Path) -> rusqlite::Connection {
    let busy = rusqlite::Connection::open(dir.join("queues.db")).unwrap();
    busy.execute_batch("BEGIN IMMEDIATE").unwrap();
    busy
}

/// Lets the first call store something only when all calls of the operation are in progress.
async fn release(busy: rusqlite::Connection, endpoints: &Endpoints, operation: &str, calls: u64) {
    while endpoints.counts().requests(operation) < calls {
        tokio::task::yield_now().await;
    }
    drop(busy);
}

// After a kill a receive waits for the disk, so its caller may be gone before it has the messages.
#[tokio::test]
async fn what_a_receive_took_is_visible_again_if_its_caller_stops_waiting() {
    let dir = tempfile::tempdir().unwrap();
    {
        let (endpoints, sqs, url) = work(on_disk(dir.path())).await;
        send(&sqs, &url, "first").await;
        send(&sqs, &url, "second").await;
        kill(dir.path(), (sqs, endpoints));
    }
    let (endpoints, sqs, url) = work(on_disk(dir.path())).await;
    let in_flight = || endpoints.queue_stats().iter().map(|stat| stat.in_flight).sum::<usize>();
    let busy = busy(dir.path());
    tokio::select! {
        biased;
        _ = receive(&sqs, &url) => panic!("nothing can be stored"),
        () = async { while in_flight() < 2 { tokio::task::yield_now().await } } => {}
    }
    drop(busy);
    assert_eq!(in_flight(), 0);
    assert_eq!(bodies(&receive(&sqs, &url).await), ["first", "second"]);
}

/// A message that a process has handled and survived is not the cause: earlier kills no longer count.
#[tokio::test]
async fn a_message_that_was_handled_once_to_its_end_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    killed_over_its_messages(dir.path()).await;
    {
        let sqs = sqs(&on_disk(dir.path()));
        send(&sqs, &queue(&sqs, "work", &[]).await, "healthy").await;
    }
    for _ in 0..3 {
        for _ in 0..15 {
            assert_eq!(killed_over_its_messages(dir.path()).await, ["healthy"]);
        }
        let (endpoints, sqs, url) = opened(on_disk(dir.path()), &[]).await;
        let got = receive(&sqs, &url).await;
        let give = sqs.change_message_visibility().queue_url(&url).visibility_timeout(0);
        give.receipt_handle(got[0].receipt_handle().unwrap()).send().await.unwrap();
        // A later write also commits the lazy ones; then the process is killed.
        send(&sqs, &queue(&sqs, "other", &[]).await, "later").await;
        kill(dir.path(), (sqs, endpoints));
    }
}

/// As `opened`, with a queue whose messages are dead letters after five receives.
async fn work(endpoints: Endpoints) -> (Endpoints, aws_sdk_sqs::Client, String) {
    queue(&sqs(&endpoints), "dead", &[]).await;
    let policy = r#"{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:dead","maxReceiveCount":5}"#;
    opened(endpoints, &[(Q::RedrivePolicy, policy), (Q::VisibilityTimeout, "600")]).await
}

/// Closes what is `open` in `dir`, and leaves the files that a kill at this moment would leave.
fn kill<T>(dir: &Path, open: T) {
    let copy = tempfile::tempdir().unwrap();
    copy_files(dir, copy.path());
    drop(open);
    copy_files(copy.path(), dir);
}

fn copy_files(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(to).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn one_line(error: &OpenError) -> String {
    let text = error.to_string();
    assert!(!text.contains('\n') && !text.contains("  "), "{text:?}");
    text
}

#[tokio::test]
async fn directory_in_use_says_by_whom() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path()).unwrap();
    let error = open(dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }));
    assert!(one_line(&error).contains(&std::process::id().to_string()), "{error}");
    drop(first);
    open(dir.path()).unwrap();
}

#[tokio::test]
async fn damaged_file_is_named() {
    for name in ["queues.db", "tables.db"] {
        let dir = tempfile::tempdir().unwrap();
        {
            let (_, sqs, url) = opened(on_disk(dir.path()), &[]).await;
            for _ in 0..50 {
                send(&sqs, &url, &"x".repeat(1000)).await;
            }
        }
        let file = dir.path().join(name);
        // Not a database at all, and one with pages overwritten.
        let sound = std::fs::read(&file).unwrap();
        let mut holed = sound.clone();
        holed[1024..3072].fill(0xa5);
        for content in [b"not a database, but long enough to be looked at".to_vec(), holed] {
            std::fs::write(&file, content).unwrap();
            let error = open(dir.path()).unwrap_err();
            assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
            assert!(one_line(&error).contains(name), "{error}");
        }
        std::fs::write(&file, sound).unwrap();
        open(dir.path()).unwrap();
    }
}

/// Changes the queues file as a bad disk would.
fn damage(dir: &Path, sql: &str) {
    let file = dir.join("queues.db");
    rusqlite::Connection::open(&file).unwrap().execute_batch(sql).unwrap();
    // Otherwise the mark would tell that the file is another one.
    let _ = std::fs::remove_file(stepwarden_guard::marks::file_of(&file));
}

// One record that cannot be read keeps neither its neighbours nor the system from starting, and it stays in the file:
// a person may still read it.
#[tokio::test]
async fn a_damaged_record_stays_where_it_is_and_takes_no_other_along() {
    let dir = tempfile::tempdir().unwrap();
    let put = |source: &str| {
        let entry = aws_sdk_eventbridge::types::PutEventsRequestEntry::builder().event_bus_name("good").source(source);
        entry.detail_type("x").detail(r#"{"id":1}"#).build()
    };
    let attributes = [(Q::VisibilityTimeout, "180"), (Q::MessageRetentionPeriod, "1209600")];
    {
        let endpoints = on_disk(dir.path());
        let (sqs, events) = (sqs(&endpoints), eventbridge(&endpoints));
        let url = queue(&sqs, "work", &attributes).await;
        for body in ["first", "body", "attributes", "id", "number"] {
            send(&sqs, &url, body).await;
        }
        for bus in ["bad", "good"] {
            events.create_event_bus().name(bus).send().await.unwrap();
        }
        for source in ["first", "second"] {
            events.put_events().entries(put(source)).send().await.unwrap();
        }
    }
    damage(
        dir.path(),
        "UPDATE messages SET body = CAST(x'ff' AS TEXT) WHERE body = 'body';
         UPDATE messages SET attributes = '{' WHERE body = 'attributes';
         UPDATE messages SET id = x'00' WHERE body = 'id';
         UPDATE messages SET sent_ms = 'x' WHERE body = 'number';
         UPDATE queues SET attributes = '{', modified_ms = 'x';
         UPDATE buses SET name = CAST(x'ff' AS TEXT) WHERE name = 'bad';
         UPDATE events SET event = '{' WHERE number = 2;",
    );
    {
        let endpoints = on_disk(dir.path());
        let (sqs, events) = (sqs(&endpoints), eventbridge(&endpoints));
        assert_eq!(endpoints.queue_stats()[0].visible, 1);
        // It is not known what was set, so whoever creates the queue says it again.
        let url = queue(&sqs, "work", &attributes).await;
        send(&sqs, &url, "new").await;
        assert_eq!(events.put_events().entries(put("new")).send().await.unwrap().failed_entry_count(), 0);
    }
    let endpoints = on_disk(dir.path());
    let sqs = sqs(&endpoints);
    let other = sqs.create_queue().queue_name("work").attributes(Q::VisibilityTimeout, "7").send().await;
    assert!(other.unwrap_err().into_service_error().is_queue_name_exists(), "the attributes are known again");
    assert_eq!(bodies(&receive(&sqs, &queue(&sqs, "work", &attributes).await).await), ["first", "new"]);
    let kept = endpoints.events().page(0, 9);
    let told: Vec<_> = kept.iter().map(|event| [&*event.bus, &*event.source, &*event.detail]).collect();
    assert_eq!(told, [["good", "first", r#"{"id":1}"#], ["good", "new", r#"{"id":1}"#]]);
    let file = rusqlite::Connection::open(dir.path().join("queues.db")).unwrap();
    let count = |table: &str| file.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0));
    assert_eq!((count("messages"), count("buses"), count("events")), (Ok(6), Ok(2), Ok(3)));
}

/// Changes the bytes of the queues file without SQLite, which would keep its index in step.
fn damage_bytes(dir: &Path, from: &[u8], to: &[u8]) {
    let file = dir.join("queues.db");
    let mut bytes = std::fs::read(&file).unwrap();
    let found: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(from)).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    bytes[found[0]..found[0] + to.len()].copy_from_slice(to);
    std::fs::write(&file, bytes).unwrap();
    let _ = std::fs::remove_file(stepwarden_guard::marks::file_of(&file));
}

// Its index still has the old name, so a queue of that name could not be stored.
#[tokio::test]
async fn a_damaged_name_of_a_queue_does_not_keep_the_queue_from_being_created() {
    let dir = tempfile::tempdir().unwrap();
    {
        let sqs = sqs(&on_disk(dir.path()));
        send(&sqs, &queue(&sqs, "work", &[]).await, "x").await;
    }
    damage_bytes(dir.path(), b"work{}", b"wosk{}");
    {
        let sqs = sqs(&on_disk(dir.path()));
        send(&sqs, &queue(&sqs, "work", &[]).await, "y").await;
    }
    let stats = on_disk(dir.path()).queue_stats();
    let stats: Vec<_> = stats.iter().map(|stat| (stat.name.as_str(), stat.visible)).collect();
    assert_eq!(stats, [("work", 1), ("wosk", 1)]);
}

// A put through it would replace another item.
#[tokio::test]
async fn a_damaged_index_of_a_table_is_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    let key = |n: usize| ("id", common::text(&format!("order-{n}")));
    let put = async |tables: &aws_sdk_dynamodb::Client, n: usize, note: &str| {
        let put = tables.put_item().table_name("tasks").item("id", key(n).1);
        put.item("note", common::text(note)).send().await.unwrap();
    };
    {
        let tables = common::tasks(&on_disk(dir.path())).await;
        for n in 10..50 {
            put(&tables, n, "as it was").await;
        }
    }
    let file = dir.path().join("tables.db");
    let mut bytes = std::fs::read(&file).unwrap();
    // In the index, the number of the row follows the key. A page may have a copy that it no longer uses.
    let (name, mut flipped) = (b"S:order-20", 0);
    for at in name.len()..bytes.len() {
        if bytes[at - name.len()..at] == *name && bytes[at] != b'{' {
            (bytes[at], flipped) = (bytes[at] ^ 4, flipped + 1);
        }
    }
    assert!(flipped > 0);
    std::fs::write(&file, bytes).unwrap();
    // As after a kill: a clean end leaves a hash of the file.
    std::fs::remove_file(stepwarden_guard::marks::file_of(&file)).unwrap();
    let tables = common::dynamodb(&on_disk(dir.path()));
    put(&tables, 20, "new").await;
    for n in 10..50 {
        let (name, value) = key(n);
        let found = tables.get_item().table_name("tasks").key(name, value.clone()).send().await.unwrap().item.unwrap();
        let note = if n == 20 { "new" } else { "as it was" };
        assert_eq!((&found["id"], &found["note"]), (&value, &common::text(note)));
    }
}

// The second of two would take the place of the first, with what was sent there.
#[tokio::test]
async fn of_two_creations_of_a_queue_at_once_the_second_finds_the_first() {
    let dir = tempfile::tempdir().unwrap();
    {
        let endpoints = on_disk(dir.path());
        let sqs = sqs(&endpoints);
        let create = |delay: &str| sqs.create_queue().queue_name("work").attributes(Q::DelaySeconds, delay).send();
        let first = async {
            let url = create("1").await.unwrap().queue_url.unwrap();
            send(&sqs, &url, "x").await;
        };
        let all_called = release(busy(dir.path()), &endpoints, "AmazonSQS.CreateQueue", 3);
        let (_, second, same, ()) = tokio::join!(biased; first, create("2"), create("1"), all_called);
        assert!(second.unwrap_err().into_service_error().is_queue_name_exists());
        same.unwrap();
        assert_eq!(endpoints.queue_stats()[0].delayed, 1);
    }
    assert_eq!(on_disk(dir.path()).queue_stats()[0].delayed, 1);
}

// Each of two at once sets what it names.
#[tokio::test]
async fn changes_of_a_queue_at_once_do_not_undo_each_other() {
    let dir = tempfile::tempdir().unwrap();
    {
        let (endpoints, sqs, url) = opened(on_disk(dir.path()), &[]).await;
        let set = |name: Q, value: &str| sqs.set_queue_attributes().queue_url(&url).attributes(name, value).send();
        let both_called = release(busy(dir.path()), &endpoints, "AmazonSQS.SetQueueAttributes", 2);
        let (one, other, ()) = tokio::join!(set(Q::DelaySeconds, "7"), set(Q::VisibilityTimeout, "8"), both_called);
        one.unwrap();
        other.unwrap();
        queue(&sqs, "work", &[(Q::DelaySeconds, "7"), (Q::VisibilityTimeout, "8")]).await;
    }
    queue(&sqs(&on_disk(dir.path())), "work", &[(Q::DelaySeconds, "7"), (Q::VisibilityTimeout, "8")]).await;
}

// A clock that ran ahead was corrected: what was sent before seems to come from the future.
#[tokio::test(start_paused = true)]
async fn a_clock_that_was_set_back_hides_no_message_for_longer_than_its_delay() {
    let dir = tempfile::tempdir().unwrap();
    {
        let (_, sqs, url) = opened(on_disk(dir.path()), &[]).await;
        send(&sqs, &url, "at once").await;
        sqs.send_message().queue_url(&url).message_body("later").delay_seconds(900).send().await.unwrap();
    }
    const DAY_MS: i64 = 86_400_000;
    damage(
        dir.path(),
        &format!("UPDATE messages SET sent_ms = sent_ms + {DAY_MS}, visible_ms = visible_ms + {DAY_MS}"),
    );
    let endpoints = on_disk(dir.path());
    let stat = || endpoints.queue_stats().remove(0);
    assert_eq!((stat().visible, stat().delayed), (1, 1));
    tokio::time::sleep(std::time::Duration::from_secs(900)).await;
    assert_eq!((stat().visible, stat().delayed), (2, 0));
    assert!(stat().oldest_age >= Some(std::time::Duration::from_secs(900)), "{:?}", stat());
}

/// After a kill, one flipped bit in the log would silently end it there: SQLite treats the rest as never written.
#[tokio::test]
async fn no_flipped_bit_in_a_log_loses_anything_in_silence() {
    let (live, dead) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let endpoints = open(live.path()).unwrap();
    let (sqs, tables) = (sqs(&endpoints), common::dynamodb(&endpoints));
    let url = queue(&sqs, "work", &[]).await;
    for n in 0..120 {
        send(&sqs, &url, &format!("{n} {}", "x".repeat(200))).await;
        tables.list_tables().send().await.unwrap();
    }
    copy_files(live.path(), dead.path());
    assert_eq!(open(dead.path()).unwrap().queue_stats()[0].visible, 120);
    let mut found = 0;
    for n in 0..20 {
        copy_files(live.path(), dead.path());
        let log = dead.path().join("queues.db-wal");
        let mut flipped = std::fs::read(&log).unwrap();
        // What follows is room for later commits.
        let written = flipped.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        let at = (2 * n + 1) * written / 40;
        flipped[at] ^= 1 << (n % 8);
        std::fs::write(&log, flipped).unwrap();
        match open(dead.path()) {
            Err(OpenError::Damaged { .. }) => found += 1,
            Err(other) => panic!("{other}"),
            Ok(endpoints) => {
                assert_eq!(endpoints.queue_stats()[0].visible, 120, "the bit at {at} lost messages in silence")
            }
        }
    }
    assert!(found > 10, "{found} of 20 were found");
    for name in ["queues.db", "tables.db"] {
        for wrong in ["deleted", "emptied"] {
            copy_files(live.path(), dead.path());
            let file = dead.path().join(name);
            if wrong == "deleted" {
                std::fs::remove_file(&file).unwrap()
            } else {
                std::fs::write(&file, "").unwrap()
            }
            let error = open(dead.path()).unwrap_err();
            assert!(matches!(error, OpenError::Damaged { .. }), "{name} {wrong}: {error}");
            assert!(one_line(&error).contains(name) && one_line(&error).contains("--accept-loss"), "{error}");
            assert_eq!(stepwarden_embedded::accept_loss(dead.path()).unwrap().len(), 1);
            open(dead.path()).unwrap();
        }
    }
}

#[tokio::test]
async fn file_of_a_newer_version_is_left_alone() {
    for (name, sql) in [
        ("queues.db", "PRAGMA user_version = 99"),
        ("tables.db", "UPDATE _config SET value = '99' WHERE key = 'schema_version'"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()).unwrap());
        let file = rusqlite::Connection::open(dir.path().join(name)).unwrap();
        file.execute_batch(sql).unwrap();
        drop(file);
        // A newer version would have left its own mark.
        std::fs::remove_file(stepwarden_guard::marks::file_of(&dir.path().join(name))).unwrap();
        let error = open(dir.path()).unwrap_err();
        assert!(matches!(error, OpenError::Newer { .. }), "{error:?}");
        assert!(one_line(&error).contains(name), "{error}");
    }
}

#[tokio::test]
async fn directory_that_cannot_be_made_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let error = open(&dir.path().join("file/data")).unwrap_err();
    assert!(matches!(error, OpenError::Directory { .. }), "{error:?}");
    assert!(one_line(&error).contains("file/data"));
}
