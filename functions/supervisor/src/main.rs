//! The supervisor as a Lambda function, started by an EventBridge schedule.

use lambda_runtime::{Error, LambdaEvent, run, service_fn};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use stepwarden_aws::config::number;
use stepwarden_aws::redrive::Redriver;
use stepwarden_aws::telemetry::Chain;
use stepwarden_aws::{Clients, Config, engine, metrics, telemetry, traces, wall_clock};
use supervisor::jobs::Worker;
use supervisor::{Places, Settings, Supervisor, Sweep, ages, dead_letters};
use tokio::time::Instant;

/// A dead supervisor is replaced after this time; a slow one renews its lease.
const LEASE_LIFE: Duration = Duration::from_secs(60);
/// Sweeps end within this time of an invocation's begin: before their leases expire and the next one begins.
const SWEEPS: Duration = Duration::from_secs(59);
/// Time for the last page of that, for giving the leases back, and for the ages of orders.
const LAST_PAGE: Duration = Duration::from_secs(10);
/// Time for the last chunk of jobs, and for what follows it.
const LAST_CHUNK: Duration = Duration::from_secs(3);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    telemetry::init();
    let config = Config::from_env()?;
    traces::init(&config.instance);
    let lookup = |name: &str| std::env::var(name).ok();
    // EventBridge starts it at most once a minute; meanwhile it sweeps again by itself. 0: one sweep.
    let every = Duration::from_millis(number(lookup, "SWEEP_EVERY_MS", 0, 0, 3_600_000)?);
    let sweep_for = Duration::from_millis(number(lookup, "SWEEP_FOR_MS", 50_000, 0, 900_000)?);
    let settings = Settings {
        groups: number(lookup, "SUPERVISOR_GROUPS", 1, 1, 256)?,
        lead_at_most: number(lookup, "SUPERVISOR_LEADS_AT_MOST", 256, 1, 256)?,
        strain_least: number(lookup, "STRAIN_LEAST", shared::strain::LEAST, 0, 1_000_000)?,
        ..Settings::new(config.shards, LEASE_LIFE)
    };
    let clients = Clients::from_env().await;
    let engine = engine(&config, &clients, wall_clock());
    let redriver = Redriver::new(&clients, &config);
    let (engine, redriver, stack) = (&engine, &redriver, config.stack());
    // Each invocation continues where the last sweep was cut short.
    let places = &Mutex::new(Places::new());
    run(service_fn(move |event: LambdaEvent<serde::de::IgnoredAny>| async move {
        let deadline = event.context.deadline();
        let left = deadline.duration_since(SystemTime::now()).unwrap_or_default();
        let jobs_until = (Instant::now() + left).checked_sub(LAST_CHUNK);
        let stop_at = Instant::now() + left.min(SWEEPS).saturating_sub(LAST_PAGE);
        let until = stop_at.min(Instant::now() + sweep_for);
        let places_of = || places.lock().unwrap_or_else(PoisonError::into_inner);
        let left = std::mem::take(&mut *places_of());
        let mut supervisor = Supervisor::new(engine, &*engine.store, settings);
        (supervisor.stop_at, supervisor.places) = (Some(stop_at), left);
        // Jobs occupy an invocation for as long as Lambda allows. Later invocations sweep beside it, without jobs.
        let worker = Worker::new(engine, LEASE_LIFE);
        let work = async {
            let worked = worker.work(jobs_until).await;
            worker.release().await;
            worked
        };
        let sweeps = async {
            let swept = Box::pin(supervisor.patrol(every, until)).await;
            *places_of() = supervisor.places;
            // Only the leader, because once is enough.
            if let Ok(Sweep { stood_by: false, .. }) = swept {
                let measured = Box::pin(ages::measure(engine, settings.shards));
                let (measured, waits, _) = tokio::join!(
                    measured,
                    Box::pin(ages::waits(&engine.store, engine.now())),
                    dead_letters::tell(redriver)
                );
                for error in [measured.err(), waits.err()].into_iter().flatten() {
                    tracing::warn!(error = %Chain(&error), "the ages of orders could not be measured");
                }
            }
            // Alarms need these, even during a long job.
            metrics::flush(stack);
            swept
        };
        let (swept, worked) = tokio::join!(Box::pin(sweeps), Box::pin(work));
        if let Err(error) = worked {
            tracing::warn!(error = %Chain(&error), "jobs could not be looked up; the supervisor tries again");
        }
        metrics::flush(stack);
        traces::flush_before(deadline).await;
        Ok::<_, Error>(swept?)
    }))
    .await
}
