//! The supervisor as a Lambda function, started by an EventBridge schedule.

use lambda_runtime::{Error, LambdaEvent, run, service_fn};
use shared::time::SignedDuration;
use stepwarden_aws::{Clients, Config, engine, telemetry, wall_clock};
use supervisor::Settings;

/// Longer than any function may run, so that a slow sweep keeps its lease.
const LEASE_LIFE: SignedDuration = SignedDuration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    telemetry::init();
    let config = Config::from_env()?;
    let engine = engine(&config, &Clients::from_env().await, wall_clock());
    let engine = &engine;
    let settings = Settings { shards: config.shards, lease_life: LEASE_LIFE };
    run(service_fn(move |_: LambdaEvent<serde::de::IgnoredAny>| async move {
        Ok::<_, Error>(Box::pin(supervisor::handler(engine, settings)).await?)
    }))
    .await
}
