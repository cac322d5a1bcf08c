//! The door of the API: a bounded number of submissions is under way at once, and who waits too long for a place is told to
//! come back. Lambda's concurrency does this on AWS.
//!
//! Without it any number of them waits in front of the one writer of the store, together with all orders under way, until
//! calls run out of time and are tried again: then nothing gets on, and no message is old enough for the overload guard to
//! see (ten times the capacity of a slow store, over 256 connections).

use crate::http::Handler;
use aws_lambda_events::event::apigw::ApiGatewayV2httpRequest;
use futures::FutureExt;
use std::sync::Arc;
use std::time::Duration;
use stepwarden_aws::http::refuse;
use submit::problem;
use tokio::sync::Semaphore;

/// Longest wait for a place: enough for a burst, and well below the time after which a call of the store is tried again.
const WAIT: Duration = Duration::from_millis(250);
/// Who is refused comes back after so many seconds; spread, or all would come at once.
const RETRY_AFTER_S: std::ops::RangeInclusive<u32> = 2..=5;

/// `handler` with at most so many submissions under way.
#[must_use]
pub fn guard(handler: Handler, places: usize) -> Handler {
    let places = Arc::new(Semaphore::new(places));
    Arc::new(move |event| {
        let (handler, places) = (Arc::clone(&handler), Arc::clone(&places));
        async move {
            if !is_submission(&event) {
                return handler(event).await;
            }
            let Ok(place) = tokio::time::timeout(WAIT, places.acquire()).await else {
                let seconds = fastrand::u32(RETRY_AFTER_S);
                let detail = format!(
                    "too many orders are being submitted; nothing was written, so send the same request with the same \
                     key again in {seconds} s"
                );
                return refuse(&problem::overloaded(None, detail).retry_after(seconds));
            };
            let answer = handler(event).await;
            drop(place);
            answer
        }
        .boxed()
    })
}

fn is_submission(event: &ApiGatewayV2httpRequest) -> bool {
    let path = event.raw_path.as_deref().unwrap_or_default();
    event.request_context.http.method == "POST" && path.trim_matches('/') == "orders"
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_lambda_events::event::apigw::ApiGatewayV2httpResponse;
    use tokio::sync::watch;

    fn event(method: &str, path: &str) -> ApiGatewayV2httpRequest {
        let mut event = ApiGatewayV2httpRequest::default();
        event.raw_path = Some(path.into());
        event.request_context.http.method = method.parse().unwrap();
        event
    }

    // J1: with all places taken the next submission is told when to come back; looking at orders goes on; and a place that
    // becomes free is taken.
    #[tokio::test(start_paused = true)]
    async fn who_finds_no_place_is_told_when_to_come_back() {
        let (store, answers) = watch::channel(false);
        let slow: Handler = Arc::new(move |event| {
            let mut answers = answers.clone();
            async move {
                if is_submission(&event) {
                    answers.wait_for(|answers| *answers).await.unwrap();
                }
                let mut answer = ApiGatewayV2httpResponse::default();
                answer.status_code = 202;
                answer
            }
            .boxed()
        });
        let guarded = guard(slow, 2);
        let under_way = [0, 1].map(|_| tokio::spawn(guarded(event("POST", "/orders"))));
        tokio::task::yield_now().await;
        let refused = guarded(event("POST", "/orders/")).await;
        assert_eq!(refused.status_code, 429);
        let after: u32 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!(RETRY_AFTER_S.contains(&after), "{after}");
        for (method, path) in [("GET", "/orders"), ("POST", "/orders/ord_1/cancel")] {
            assert_eq!(guarded(event(method, path)).await.status_code, 202, "{method} {path}");
        }
        let waits = tokio::spawn(guarded(event("POST", "/orders")));
        tokio::time::sleep(WAIT / 2).await;
        store.send_replace(true);
        for answered in under_way.into_iter().chain([waits]) {
            assert_eq!(answered.await.unwrap().status_code, 202);
        }
    }
}
