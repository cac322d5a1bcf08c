//! Goal: SQS as its official SDK sees it. Method: the SDK's client against endpoints in memory,
//! under a paused clock, so that delays and timeouts pass at once and exactly.

mod common;

use std::time::Duration;

use aws_sdk_sqs::error::ProvideErrorMetadata;
use aws_sdk_sqs::operation::receive_message::builders::ReceiveMessageFluentBuilder;
use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{
    DeleteMessageBatchRequestEntry, MessageAttributeValue, QueueAttributeName as Q, SendMessageBatchRequestEntry,
};
use common::{bodies, memory, opened, queue, receive, receives, send, sqs};
use tokio::time::Instant;

fn entry(id: &str, body: &str) -> SendMessageBatchRequestEntry {
    SendMessageBatchRequestEntry::builder().id(id).message_body(body).build().unwrap()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn received_message_comes_again_until_it_is_deleted() {
    let (_, sqs, url) = opened(memory(), &[(Q::VisibilityTimeout, "30")]).await;
    send(&sqs, &url, "one").await;

    let first = receive(&sqs, &url).await;
    assert_eq!(bodies(&first), ["one"]);
    tokio::time::advance(seconds(29)).await;
    assert!(receive(&sqs, &url).await.is_empty());
    tokio::time::advance(seconds(1)).await;
    let second = receive(&sqs, &url).await;
    assert_eq!(bodies(&second), ["one"]);
    assert_eq!((receives(&first[0]), receives(&second[0])), ("1", "2"));

    // The first receipt is stale: it is accepted, but has no effect.
    let delete = |message: &aws_sdk_sqs::types::Message| {
        sqs.delete_message().queue_url(&url).receipt_handle(message.receipt_handle.as_deref().unwrap()).send()
    };
    delete(&first[0]).await.unwrap();
    tokio::time::advance(seconds(30)).await;
    let third = receive(&sqs, &url).await;
    assert_eq!(third.len(), 1);
    delete(&third[0]).await.unwrap();
    tokio::time::advance(seconds(31)).await;
    assert!(receive(&sqs, &url).await.is_empty());
}

// AWS, "Amazon SQS visibility timeout": at most 12 hours from the receive, which no renewal resets. The message of the
// error is the one that users of SQS report.
#[tokio::test(start_paused = true)]
async fn a_message_is_hidden_for_at_most_twelve_hours_from_its_receive() {
    let (endpoints, sqs, url) = opened(memory(), &[(Q::VisibilityTimeout, "43200")]).await;
    send(&sqs, &url, "x").await;
    let first = receive(&sqs, &url).await;
    let change = async |handle: &str, visible_s: i32| {
        let change = sqs.change_message_visibility().queue_url(&url).receipt_handle(handle);
        change.visibility_timeout(visible_s).send().await.map_err(|error| error.into_service_error())
    };
    let handle = first[0].receipt_handle().unwrap();
    change(handle, 43_200).await.unwrap();
    tokio::time::advance(seconds(43_000)).await;
    change(handle, 200).await.unwrap();
    let refused = change(handle, 201).await.unwrap_err();
    assert_eq!(refused.code(), Some("InvalidParameterValue"));
    let why = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]";
    assert!(refused.message().unwrap().ends_with(why), "{refused:?}");
    tokio::time::advance(seconds(199)).await;
    assert_eq!(endpoints.queue_stats()[0].in_flight, 1, "a refusal changes nothing");
    tokio::time::advance(seconds(1)).await;
    // Each receive has its own twelve hours.
    let again = receive(&sqs, &url).await;
    change(again[0].receipt_handle().unwrap(), 43_200).await.unwrap();
}

// AWS, "How do I resolve the ReceiptHandleIsInvalid error": the handle is not valid for this queue.
#[tokio::test(start_paused = true)]
async fn a_receipt_handle_is_refused_by_every_other_queue() {
    let endpoints = memory();
    let sqs = sqs(&endpoints);
    let (url, other) = (queue(&sqs, "work", &[]).await, queue(&sqs, "other", &[]).await);
    send(&sqs, &url, "x").await;
    let got = receive(&sqs, &url).await;
    let handle = got[0].receipt_handle().unwrap();
    let refused = sqs.delete_message().queue_url(&other).receipt_handle(handle).send().await;
    assert!(refused.unwrap_err().into_service_error().is_receipt_handle_is_invalid());
    let change = sqs.change_message_visibility().queue_url(&other).receipt_handle(handle).visibility_timeout(0);
    assert!(change.send().await.unwrap_err().into_service_error().is_receipt_handle_is_invalid());
    sqs.delete_message().queue_url(&url).receipt_handle(handle).send().await.unwrap();
    assert!(endpoints.queue_stats().iter().all(|stat| stat.oldest_age.is_none()), "it is deleted");
}

/// How many messages a receive gets, and after how many seconds.
async fn timed(request: ReceiveMessageFluentBuilder) -> (usize, u64) {
    let started = Instant::now();
    let messages = request.send().await.unwrap().messages.unwrap_or_default();
    (messages.len(), started.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn long_poll_ends_with_a_send_a_delay_or_a_timeout() {
    let (_, sqs, url) = opened(memory(), &[]).await;
    let request = || sqs.receive_message().queue_url(&url).wait_time_seconds(20);
    let poll = |visible_s: i32| timed(request().visibility_timeout(visible_s));
    assert_eq!(poll(30).await, (0, 20), "an empty queue");

    let (got, ()) = tokio::join!(poll(5), async {
        tokio::time::sleep(seconds(3)).await;
        send(&sqs, &url, "woken").await;
    });
    assert_eq!(got, (1, 3), "a message sent while waiting");
    assert_eq!(poll(30).await, (1, 5), "the end of its visibility timeout");

    sqs.purge_queue().queue_url(&url).send().await.unwrap();
    sqs.send_message().queue_url(&url).message_body("late").delay_seconds(7).send().await.unwrap();
    assert_eq!(poll(30).await, (1, 7), "the end of a delay");

    // Two receivers wait; each gets one of the messages.
    let (one, two, ()) = tokio::join!(poll(30), poll(30), async {
        tokio::time::sleep(seconds(1)).await;
        send(&sqs, &url, "a").await;
        send(&sqs, &url, "b").await;
    });
    assert_eq!([one, two], [(1, 1), (1, 1)]);
}

#[tokio::test(start_paused = true)]
async fn waiting_receivers_learn_of_a_nearer_end() {
    let (_, sqs, url) = opened(memory(), &[]).await;
    let request = || sqs.receive_message().queue_url(&url).wait_time_seconds(20);
    send(&sqs, &url, "one").await;
    let held = receive(&sqs, &url).await;
    let handle = held[0].receipt_handle.as_deref().unwrap();
    // Both wait while the message is in flight for 30 s. Then its timeout is shortened, and the receiver that was woken
    // stops waiting before the new timeout ends.
    let short = request().wait_time_seconds(3);
    let (gave_up, got, ()) = tokio::join!(timed(short), timed(request()), async {
        tokio::time::sleep(seconds(1)).await;
        let change = sqs.change_message_visibility().queue_url(&url).receipt_handle(handle);
        change.visibility_timeout(8).send().await.unwrap();
    });
    assert_eq!((gave_up, got), ((0, 3), (1, 9)));
}

#[tokio::test(start_paused = true)]
async fn poison_message_goes_to_the_dead_letters_and_back() {
    use aws_sdk_sqs::types::MessageSystemAttributeName as A;
    let sqs = sqs(&memory());
    let dead_url = queue(&sqs, "dead", &[]).await;
    let arn = "arn:aws:sqs:us-east-1:000000000000:dead";
    let policy = format!(r#"{{"deadLetterTargetArn":"{arn}","maxReceiveCount":2}}"#);
    let url = queue(&sqs, "work", &[(Q::RedrivePolicy, &policy), (Q::VisibilityTimeout, "1")]).await;
    send(&sqs, &url, "poison").await;
    let mut id = None;
    for _ in 0..2 {
        id = receive(&sqs, &url).await[0].message_id.clone();
        tokio::time::advance(seconds(1)).await;
    }
    assert!(receive(&sqs, &url).await.is_empty());
    let dead = receive(&sqs, &dead_url).await;
    assert_eq!(dead[0].message_id, id, "it keeps its id");
    assert_eq!(receives(&dead[0]), "3", "and its receive count");
    assert!(dead[0].attributes().unwrap()[&A::DeadLetterQueueSourceArn].ends_with(":work"));

    tokio::time::advance(seconds(30)).await;
    let work = "arn:aws:sqs:us-east-1:000000000000:work";
    let no_target = sqs.start_message_move_task().source_arn(arn).send().await.unwrap_err();
    assert!(no_target.into_service_error().is_unsupported_operation());
    sqs.start_message_move_task().source_arn(arn).destination_arn(work).send().await.unwrap();
    let back = sqs.receive_message().queue_url(&url).wait_time_seconds(5);
    let back = back.message_system_attribute_names("All".into()).send().await.unwrap();
    let back = back.messages.unwrap();
    assert_eq!(bodies(&back), ["poison"]);
    assert_ne!(back[0].message_id, id, "a redriven message is a new one");
    assert_eq!(receives(&back[0]), "1");

    let refused = sqs.start_message_move_task().source_arn(work).destination_arn(arn).send().await.unwrap_err();
    assert!(refused.into_service_error().message().unwrap().contains("Dead Letter Queue"));
}

// The list of operations is frozen, and a caller of another operation gets this list.
#[tokio::test]
async fn an_operation_that_is_not_on_the_list_is_refused_in_words() {
    let refused = sqs(&memory()).list_queue_tags().queue_url("work").send().await.unwrap_err().into_service_error();
    assert!(refused.is_unsupported_operation());
    let told = refused.message().unwrap();
    assert!(told.contains("ListQueueTags is not offered") && told.contains("SendMessage"), "{told}");
}

// A task that moves dead letters keeps a reference to its target, which may be deleted while it runs.
#[tokio::test(start_paused = true)]
async fn no_dead_letter_is_lost_when_the_target_of_its_move_is_deleted() {
    let dir = tempfile::tempdir().unwrap();
    for endpoints in [memory(), common::on_disk(dir.path())] {
        let sqs = sqs(&endpoints);
        let dead_url = queue(&sqs, "dead", &[]).await;
        let arn = |name: &str| format!("arn:aws:sqs:us-east-1:000000000000:{name}");
        let policy = format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":2}}"#, arn("dead"));
        queue(&sqs, "work", &[(Q::RedrivePolicy, &policy)]).await;
        let target_url = queue(&sqs, "target", &[]).await;
        for n in 0..20 {
            send(&sqs, &dead_url, &n.to_string()).await;
        }
        let start = || {
            let start = sqs.start_message_move_task().source_arn(arn("dead")).destination_arn(arn("target"));
            start.max_number_of_messages_per_second(10).send()
        };
        start().await.unwrap();
        assert!(start().await.unwrap_err().into_service_error().message().unwrap().contains("already a task running"));
        tokio::time::sleep(Duration::from_millis(550)).await;
        let moved = endpoints.queue_stats().iter().find(|stat| stat.name == "target").unwrap().visible;
        assert!((1..20).contains(&moved), "{moved} moved");
        sqs.delete_queue().queue_url(&target_url).send().await.unwrap();
        tokio::time::sleep(seconds(30)).await;
        let left = endpoints.queue_stats().iter().find(|stat| stat.name == "dead").unwrap().visible;
        assert_eq!(left, 20 - moved, "what was not moved before is in the dead-letter queue");
        queue(&sqs, "target", &[]).await;
        start().await.expect("the task has ended");
    }
}

#[tokio::test(start_paused = true)]
async fn bad_entry_fails_alone() {
    let (endpoints, sqs, url) = opened(memory(), &[]).await;
    let batch = sqs.send_message_batch().queue_url(&url);
    let outcome = batch
        .entries(entry("good", "one"))
        .entries(entry("bad", "\u{b}"))
        .entries(
            SendMessageBatchRequestEntry::builder().id("late").message_body("x").delay_seconds(901).build().unwrap(),
        )
        .send()
        .await
        .unwrap();
    assert_eq!(outcome.successful().len(), 1);
    let failed: Vec<_> = outcome.failed().iter().map(|f| (f.id(), f.code())).collect();
    assert_eq!(failed, [("bad", "InvalidMessageContents"), ("late", "InvalidParameterValue")]);

    let got = receive(&sqs, &url).await;
    assert_eq!(bodies(&got), ["one"]);
    let delete = |id: &str, handle: &str| {
        DeleteMessageBatchRequestEntry::builder().id(id).receipt_handle(handle).build().unwrap()
    };
    let outcome = sqs
        .delete_message_batch()
        .queue_url(&url)
        .entries(delete("good", got[0].receipt_handle.as_deref().unwrap()))
        .entries(delete("bad", "nonsense"))
        .send()
        .await
        .unwrap();
    assert_eq!(outcome.successful()[0].id(), "good");
    assert_eq!(outcome.failed()[0].code(), "ReceiptHandleIsInvalid");
    assert_eq!(endpoints.queue_stats()[0].oldest_age, None, "it is deleted");
    let counts = endpoints.counts();
    assert_eq!(counts.messages_sent, 1);
    assert_eq!(counts.requests("AmazonSQS.SendMessageBatch"), 1);
}

#[tokio::test(start_paused = true)]
async fn sizes_and_batches_are_limited() {
    let (_, sqs, url) = opened(memory(), &[]).await;
    const MIB: usize = 1024 * 1024;
    send(&sqs, &url, &"x".repeat(MIB)).await;
    let large = sqs.send_message().queue_url(&url).message_body("x".repeat(MIB + 1));
    let error = large.send().await.unwrap_err().into_service_error();
    assert_eq!(error.code(), Some("InvalidParameterValue"));

    let refused = async |entries: Vec<_>| {
        let batch = sqs.send_message_batch().queue_url(&url).set_entries(Some(entries));
        batch.send().await.unwrap_err().into_service_error()
    };
    let half = "x".repeat(MIB / 2 + 1);
    assert!(refused(vec![entry("a", &half), entry("b", &half)]).await.is_batch_request_too_long());
    assert!(refused(vec![entry("a", "1"), entry("a", "2")]).await.is_batch_entry_ids_not_distinct());
    let eleven = (0..11).map(|n| entry(&n.to_string(), "x")).collect();
    assert!(refused(eleven).await.is_too_many_entries_in_batch_request());
    assert!(refused(vec![]).await.is_empty_batch_request());
    assert!(refused(vec![entry("not an id", "x")]).await.is_invalid_batch_entry_id());
}

#[tokio::test(start_paused = true)]
async fn small_group_does_not_wait_for_a_large_one() {
    let (_, sqs, url) = opened(memory(), &[]).await;
    for n in 0..50 {
        let message = sqs.send_message().queue_url(&url).message_body(format!("noisy {n}"));
        message.message_group_id("noisy").send().await.unwrap();
    }
    let message = sqs.send_message().queue_url(&url).message_body("quiet");
    message.message_group_id("quiet").send().await.unwrap();
    let got = receive(&sqs, &url).await;
    assert!(bodies(&got)[..2].contains(&"quiet"), "{:?}", bodies(&got));
}

#[tokio::test(start_paused = true)]
async fn attributes_arrive_and_have_the_digest_sqs_gives() {
    let (_, sqs, url) = opened(memory(), &[]).await;
    let text = |value: &str| MessageAttributeValue::builder().data_type("String").string_value(value).build().unwrap();
    let binary =
        MessageAttributeValue::builder().data_type("Binary.raw").binary_value(Blob::new([0, 1, 2])).build().unwrap();
    let sent = sqs
        .send_message()
        .queue_url(&url)
        .message_body("This is a test message")
        .message_attributes("b", binary.clone())
        .message_attributes("a", text("ä"))
        .send()
        .await
        .unwrap();
    assert_eq!(sent.md5_of_message_body(), Some("fafb00f5732ab283681e124bf8747ed1"));
    let got = &receive(&sqs, &url).await[0];
    assert_eq!(got.message_attributes().unwrap()["b"], binary);
    assert_eq!(got.md5_of_message_attributes(), sent.md5_of_message_attributes());
    assert!(sent.md5_of_message_attributes().is_some());
}

#[tokio::test(start_paused = true)]
async fn queues_are_created_once_and_described() {
    let (endpoints, sqs, url) = opened(memory(), &[(Q::DelaySeconds, "5")]).await;
    assert_eq!(url, "http://localhost:8000/000000000000/work");
    assert_eq!(queue(&sqs, "work", &[(Q::DelaySeconds, "5")]).await, url);
    let other = sqs.create_queue().queue_name("work").attributes(Q::DelaySeconds, "6");
    assert!(other.send().await.unwrap_err().into_service_error().is_queue_name_exists());
    let fifo = sqs.create_queue().queue_name("work.fifo").send().await.unwrap_err();
    assert!(fifo.into_service_error().is_unsupported_operation());
    let missing = sqs.get_queue_url().queue_name("none").send().await.unwrap_err();
    assert!(missing.into_service_error().is_queue_does_not_exist());

    send(&sqs, &url, "delayed").await;
    tokio::time::advance(seconds(5)).await;
    send(&sqs, &url, "delayed").await;
    receive(&sqs, &url).await;
    sqs.send_message().queue_url(&url).message_body("now").delay_seconds(0).send().await.unwrap();
    let attributes = sqs.get_queue_attributes().queue_url(&url).attribute_names(Q::All);
    let attributes = attributes.send().await.unwrap().attributes.unwrap();
    assert_eq!(attributes[&Q::ApproximateNumberOfMessages], "1");
    assert_eq!(attributes[&Q::ApproximateNumberOfMessagesNotVisible], "1");
    assert_eq!(attributes[&Q::ApproximateNumberOfMessagesDelayed], "1");
    assert_eq!(attributes[&Q::VisibilityTimeout], "30");
    let stat = &endpoints.queue_stats()[0];
    assert_eq!((stat.visible, stat.in_flight, stat.delayed), (1, 1, 1));
    assert_eq!(stat.oldest_age, Some(seconds(5)));

    let set = sqs.set_queue_attributes().queue_url(&url);
    set.attributes(Q::MessageRetentionPeriod, "60").send().await.unwrap();
    tokio::time::advance(seconds(61)).await;
    assert_eq!(endpoints.queue_stats()[0].oldest_age, None, "kept no longer than asked");

    for n in 0..5 {
        queue(&sqs, &format!("page-{n}"), &[]).await;
    }
    let pages = sqs.list_queues().queue_name_prefix("page-").max_results(2);
    let pages = pages.into_paginator().items().send().collect::<Result<Vec<_>, _>>().await;
    assert_eq!(pages.unwrap().len(), 5);
    sqs.delete_queue().queue_url(&url).send().await.unwrap();
    let gone = sqs.send_message().queue_url(&url).message_body("x").send().await.unwrap_err();
    assert!(gone.into_service_error().is_queue_does_not_exist());
}
