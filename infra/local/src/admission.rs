//! Admission to the API: a limited number of concurrent submissions. A submission that waits too long for a place gets
//! 429 with `Retry-After`. Lambda's concurrency does this on AWS.
//!
//! Without a limit, submissions and orders in progress wait together for the one writer of the store, until calls time
//! out and are retried. Then nothing makes progress, and no message is old enough for the overload guard to notice.
//! This was seen at ten times the capacity of a slow store, over 256 connections.
//!
//! A free place goes to the tenant with the fewest submissions in progress, so no tenant waits behind all submissions
//! of another: in a single queue, 400 connections of one tenant left another 4 of 27.

use aws_lambda_events::event::apigw::{ApiGatewayV2httpRequest, ApiGatewayV2httpResponse};
use edge::auth::{TENANT_CLAIM, tenant};
use edge::http::refuse;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use submit::problem;
use tokio::sync::oneshot;
use tokio::task::JoinError;

/// A function behind the API.
pub type Handler = Arc<dyn Fn(ApiGatewayV2httpRequest) -> BoxFuture<'static, ApiGatewayV2httpResponse> + Send + Sync>;

/// Longest wait for a place: enough for a burst, and well below the time after which a call of the store is tried again.
const WAIT: Duration = Duration::from_millis(250);
/// Seconds after which a refused client should retry; random, so that not all retry at once.
const RETRY_AFTER_S: std::ops::RangeInclusive<u32> = 2..=5;

/// `handler` with at most `places` submissions in progress.
#[must_use]
pub fn guard(handler: Handler, places: usize) -> Handler {
    let door = Arc::new(Door(Mutex::new(State { free: places, turn: 0, tenants: BTreeMap::new() })));
    Arc::new(move |event| {
        let (handler, door) = (Arc::clone(&handler), Arc::clone(&door));
        async move {
            if !is_submission(&event) {
                return handler(event).await;
            }
            // A request without a tenant is refused by the handler.
            let tenant = tenant(&event, TENANT_CLAIM).unwrap_or_default().to_owned();
            let Ok(place) = tokio::time::timeout(WAIT, door.enter(tenant)).await else {
                let seconds = fastrand::u32(RETRY_AFTER_S);
                let detail = format!(
                    "too many submissions at once; nothing was written, so repeat the same request with the same key \
                     in {seconds} s"
                );
                return refuse(&problem::overloaded(None, detail).retry_after(seconds));
            };
            // A caller that goes away neither stops its submission between the order and its requests, nor frees the
            // place that the submission still needs.
            let handled = tokio::spawn(async move {
                let answer = handler(event).await;
                drop(place);
                answer
            });
            match handled.await.map_err(JoinError::try_into_panic) {
                Ok(answer) => answer,
                Err(Ok(panic)) => std::panic::resume_unwind(panic),
                // The process is ending, and nobody is left to hear an answer.
                Err(Err(_)) => std::future::pending().await,
            }
        }
        .boxed()
    })
}

fn is_submission(event: &ApiGatewayV2httpRequest) -> bool {
    let path = event.raw_path.as_deref().unwrap_or_default();
    event.request_context.http.method == "POST" && path.trim_matches('/') == "orders"
}

struct Door(Mutex<State>);

struct State {
    free: usize,
    /// Number of places given so far.
    turn: u64,
    /// The tenants with a submission in progress or waiting.
    tenants: BTreeMap<String, Tenant>,
}

#[derive(Default)]
struct Tenant {
    under_way: usize,
    /// `turn` when the tenant last got a place.
    turn: u64,
    waiting: VecDeque<oneshot::Sender<Place>>,
}

/// A place for one submission, given back when dropped.
struct Place(Option<(Arc<Door>, String)>);

impl Door {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place until it is the turn of `tenant`.
    async fn enter(self: &Arc<Self>, tenant: String) -> Place {
        let (give, given) = oneshot::channel();
        {
            let mut state = self.state();
            state.tenants.entry(tenant).or_default().waiting.push_back(give);
            self.give(&mut state);
        }
        given.await.expect("the door outlives those who wait at it")
    }

    /// Gives the free places to waiting tenants.
    fn give(self: &Arc<Self>, state: &mut State) {
        while state.free > 0 {
            // A request that stopped waiting has no turn.
            for tenant in state.tenants.values_mut() {
                while tenant.waiting.front().is_some_and(oneshot::Sender::is_closed) {
                    tenant.waiting.pop_front();
                }
            }
            state.tenants.retain(|_, tenant| tenant.under_way > 0 || !tenant.waiting.is_empty());
            let waiting = state.tenants.iter_mut().filter(|(_, tenant)| !tenant.waiting.is_empty());
            let Some((name, tenant)) = waiting.min_by_key(|(_, tenant)| (tenant.under_way, tenant.turn)) else {
                return;
            };
            let Some(give) = tenant.waiting.pop_front() else { return };
            match give.send(Place(Some((Arc::clone(self), name.clone())))) {
                Ok(()) => {
                    state.turn += 1;
                    (tenant.under_way, tenant.turn) = (tenant.under_way + 1, state.turn);
                    state.free -= 1;
                }
                // The request stopped waiting just now, so the place was never taken.
                Err(mut place) => place.0 = None,
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some((door, name)) = self.0.take() else { return };
        let mut state = door.state();
        state.free += 1;
        if let Some(tenant) = state.tenants.get_mut(&name) {
            tenant.under_way -= 1;
        }
        door.give(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::watch;

    fn event(method: &str, path: &str) -> ApiGatewayV2httpRequest {
        let mut event = ApiGatewayV2httpRequest::default();
        event.raw_path = Some(path.into());
        event.request_context.http.method = method.parse().unwrap();
        event
    }

    fn accepted() -> ApiGatewayV2httpResponse {
        let mut answer = ApiGatewayV2httpResponse::default();
        answer.status_code = 202;
        answer
    }

    fn of(tenant: &str) -> ApiGatewayV2httpRequest {
        let mut jwt = aws_lambda_events::event::apigw::ApiGatewayRequestAuthorizerJwtDescription::default();
        jwt.claims.insert(TENANT_CLAIM.into(), tenant.into());
        let mut authorizer = aws_lambda_events::event::apigw::ApiGatewayRequestAuthorizer::default();
        authorizer.jwt = Some(jwt);
        let mut event = event("POST", "/orders");
        event.request_context.authorizer = Some(authorizer);
        event
    }

    // 400 connections of one tenant, each with the next submission as soon as it is answered, keep no other tenant out.
    #[tokio::test(start_paused = true)]
    async fn a_flood_of_one_tenant_leaves_the_others_their_turn() {
        let slow: Handler = Arc::new(|_| {
            async {
                tokio::time::sleep(Duration::from_millis(40)).await;
                accepted()
            }
            .boxed()
        });
        let guarded = guard(slow, 16);
        let flood: Vec<_> = (0..400)
            .map(|_| {
                let guarded = Arc::clone(&guarded);
                tokio::spawn(async move {
                    loop {
                        guarded(of("flood")).await;
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut taken = 0;
        for _ in 0..27 {
            taken += usize::from(guarded(of("other")).await.status_code == 202);
        }
        assert_eq!(taken, 27);
        // The flood leaves no place occupied.
        flood.iter().for_each(tokio::task::JoinHandle::abort);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (at_once, begin) = ((0..16).map(|_| guarded(of("third"))), tokio::time::Instant::now());
        assert!(futures::future::join_all(at_once).await.iter().all(|answer| answer.status_code == 202));
        assert_eq!(begin.elapsed(), Duration::from_millis(40), "a tenant alone has all places");
    }

    // J1: with all places taken, the next submission is told when to retry, orders can still be looked up, and a place
    // that becomes free is taken.
    #[tokio::test(start_paused = true)]
    async fn who_finds_no_place_is_told_when_to_come_back() {
        let (store, answers) = watch::channel(false);
        let slow: Handler = Arc::new(move |event| {
            let mut answers = answers.clone();
            async move {
                if is_submission(&event) {
                    answers.wait_for(|answers| *answers).await.unwrap();
                }
                accepted()
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
