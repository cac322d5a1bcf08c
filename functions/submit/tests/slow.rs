//! Goal: an order gets no definition that was read long before it. Method: reads of the tables that take seconds by the clock.

use crate::world::{ONE, World};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stepwarden_embedded::{Call, FaultHook};

#[tokio::test]
async fn an_order_whose_definition_was_read_more_than_4_s_before_is_refused() {
    for (took, is_accepted) in [(4000, true), (4001, false)] {
        let world = World::new(ONE).await;
        // The first read is the one that says what is active.
        let (is_first, now) = (AtomicBool::new(true), Arc::clone(&world.now));
        let hook: FaultHook = Arc::new(move |call: &Call<'_>| {
            if call.operation == "GetItem" && is_first.swap(false, Ordering::Relaxed) {
                now.fetch_add(took, Ordering::Relaxed);
            }
            None
        });
        world.endpoints.set_fault_hook(Some(hook));
        let order = || world.order("default", "key-1", json!({"workflow": "one", "input": {}}));
        let answer = order().await;
        assert_eq!(answer.is_ok(), is_accepted, "{took} ms: {answer:?}");
        if let Err(problem) = answer {
            assert_eq!((problem.status, problem.code), (503, "unavailable"), "{problem:?}");
            assert_eq!(problem.retry_after_s, Some(2), "the header `Retry-After`");
            // Repeated, it is accepted.
            assert!(order().await.is_ok());
        }
    }
}
