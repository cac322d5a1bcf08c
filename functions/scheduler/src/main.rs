//! The scheduler as a Lambda function.

use lambda_runtime::{Error, LambdaEvent, run, service_fn};
use stepwarden_aws::{Clients, Config, engine, metrics, telemetry, traces, wall_clock};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    telemetry::init();
    let config = Config::from_env()?;
    traces::init(&config.instance);
    let engine = engine(&config, &Clients::from_env().await, wall_clock());
    let (engine, stack) = (&engine, config.stack());
    run(service_fn(move |event: LambdaEvent<_>| async move {
        let deadline = event.context.deadline();
        let response = Box::pin(scheduler::handler(engine, event.payload)).await;
        metrics::flush(stack);
        traces::flush_before(deadline).await;
        Ok::<_, Error>(response)
    }))
    .await
}
