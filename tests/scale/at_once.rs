//! Goal: many waits that end in one instant end soon after it, and the sweeps before it stay paged. Method: the supervisor that looks
//! ahead, and as many schedulers as the template allows, on the tables and by the clock of `scale.rs`.

use super::*;
use futures::future::{join, join_all};

/// `SchedulerConcurrency` and the size of a batch, as in template.yaml.
const SCHEDULERS: usize = 20;
const BATCH: usize = 10;
/// When a message that was not handled is redelivered: the visibility timeout of the template.
const AGAIN: Duration = Duration::from_secs(180);

/// How late waits ended, and what it took.
struct Ended {
    last: Duration,
    /// Seconds of the longest sweep.
    longest: f64,
    sweeps: usize,
    failed: usize,
    bill: Bill,
    /// Orders of which a sweep wrote something.
    put_off: usize,
}

impl Synthetic {
    /// Another instance on the same tables, with a processor of its own.
    fn beside(&self) -> Arc<Self> {
        let (workflow, overdue, state) = (self.workflow.clone(), self.overdue.clone(), Arc::clone(&self.state));
        Arc::new(Self { workflow, overdue, state, busy: Mutex::new(self.begun), ..*self })
    }

    fn engine(self: &Arc<Self>, name: &str) -> Engine {
        let (begun, queue) = (self.begun, Queue(Arc::clone(&self.state)));
        let clock = Arc::new(move || plus(epoch(), SignedDuration::try_from(begun.elapsed()).unwrap()));
        Engine::new(Arc::clone(self) as _, Arc::new(queue), contract::settings(name, clock))
    }
}

/// Takes batches of Wakes until nothing waits any more. How many messages it gave back.
async fn schedule_all(store: Arc<Synthetic>, name: String) -> usize {
    let engine = store.engine(&name);
    let mut failed = 0;
    loop {
        let (batch, next) = {
            let mut state = store.state();
            let is_over = state.ended.len() == store.plan.overdue;
            let mail = state.mail.as_mut().expect("somebody takes it");
            let due: Vec<_> = mail.range(..=(Instant::now(), u64::MAX)).take(BATCH).map(|(at, _)| *at).collect();
            let batch: Vec<_> = due.into_iter().filter_map(|at| mail.remove_entry(&at)).collect();
            if batch.is_empty() && is_over {
                return failed;
            }
            (batch, mail.first_key_value().map(|((at, _), _)| *at))
        };
        if batch.is_empty() {
            let soon = Instant::now() + Duration::from_millis(100);
            sleep_until(next.map_or(soon, |at| at.min(soon))).await;
            continue;
        }
        let event = |wake: &Wake| (wake.task_id.clone(), Event::Wake { seen: wake.seen, hops: wake.hops });
        let answers = engine.handle(batch.iter().map(|(_, wake)| event(wake)).collect()).await;
        let back = batch.into_iter().zip(answers).filter(|(_, answer)| answer.is_err());
        let back: Vec<_> = back.map(|(((_, number), wake), _)| ((Instant::now() + AGAIN, number), wake)).collect();
        failed += back.len();
        store.state().mail.as_mut().expect("somebody takes it").extend(back);
    }
}

/// Sweeps once a minute until the instant, each time by a supervisor that forgot the last one if `is_cold`.
async fn run(plan: Plan, is_cold: bool) -> Ended {
    let ends = Duration::try_from(plan.ends.expect("waits")).unwrap();
    let store = Arc::new(Synthetic::new(plan));
    let (begun, state) = (store.begun, Arc::clone(&store.state));
    let schedulers = (0..SCHEDULERS).map(|n| schedule_all(store.beside(), format!("s{n}")));
    let mut engine = store.beside().engine("v");
    let sweeps = async {
        let (mut longest, mut sweeps, mut start) = (0.0_f64, 0, Instant::now());
        while start < begun + ends {
            let swept = {
                let mut supervisor = Supervisor::new(&engine, &*store, Settings::new(plan.shards, MINUTE));
                supervisor.stop_at = Some(start + FUNCTION_TIMEOUT - LAST_PAGE);
                let patrol = Box::pin(supervisor.patrol(Duration::ZERO, start));
                timeout(FUNCTION_TIMEOUT, patrol).await.expect("Lambda killed the function").unwrap()
            };
            assert_eq!((swept.expired, swept.failed, swept.stood_by), (0, 0, false));
            (longest, sweeps) = (longest.max(start.elapsed().as_secs_f64()), sweeps + 1);
            start += MINUTE;
            sleep_until(start.min(begun + ends)).await;
            if is_cold {
                engine = store.beside().engine("v");
            }
        }
        (longest, sweeps)
    };
    let ((longest, sweeps), failed) = join(sweeps, join_all(schedulers)).await;
    let state = state.lock().unwrap();
    let last = state.last.duration_since(plus(epoch(), SignedDuration::try_from(ends).unwrap()));
    let (last, failed) = (Duration::try_from(last).expect("never too early"), failed.iter().sum());
    Ended { last, longest, sweeps, failed, bill: state.bill.clone(), put_off: state.put_off.len() }
}

// L1, J1: ten thousand waits that end in one instant.
#[test]
fn waits_that_end_in_one_instant_end_within_seconds_of_it() {
    let orders = open() / 4;
    println!(
        "| waits | seconds after a sweep | memory | sweeps | the longest | Wakes | queries | put off | write units | throttled | given back | the last ends after |"
    );
    for (seconds, is_cold) in [(121, false), (150, false), (179, false), (150, true)] {
        let ends = Some(SignedDuration::from_secs(seconds));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let ended = runtime.block_on(run(Plan { open: orders, ends, ..usual(orders) }, is_cold));
        let Ended { last, longest, sweeps, failed, bill, put_off } = ended;
        let memory = if is_cold { "cold" } else { "warm" };
        println!(
            "| {orders} | {} | {memory} | {sweeps} | {longest:.1} s | {} | {} | {put_off} | {} | {} | {failed} | {last:.1?} |",
            seconds % 60,
            bill.wakes,
            bill.queries,
            bill.write_units,
            bill.throttled
        );
        // A warm supervisor sends each Wake once. One whose sweep sees the instant takes some for lost.
        assert!(bill.wakes as usize <= orders * if is_cold { 2 } else { 1 } + put_off, "{bill:?}");
        assert!(put_off == 0 || seconds % 60 < 30, "a sweep before the instant only reads: {put_off}");
        // The end of a wait is a write of the record and one of the list of what waits; a redelivered message may fail its condition. The lease is
        // read and written a few times a sweep.
        let most = 2 * bill.wakes as usize + 3 * put_off + 4 * sweeps;
        assert!(bill.write_units <= most as f64, "{bill:?}, at most {most}");
        assert_eq!(failed, 0);
        // Four partitions of a thousand writes a second, and the SDK's back-off.
        assert!(last.as_secs_f64() <= 2.0 + orders as f64 / 2000.0, "{last:?}");
    }
}
