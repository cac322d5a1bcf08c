//! The operator as a Lambda function, behind API Gateway routes that only operators may call.

use lambda_runtime::{Error, LambdaEvent, run, service_fn};
use operator::Operator;
use std::sync::Arc;
use stepwarden_aws::{Clients, Config, engine, telemetry, wall_clock};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    telemetry::init();
    let config = Config::from_env()?;
    let clients = Clients::from_env().await;
    let leases = std::env::var("LEASES").unwrap_or_else(|_| "supervisor-0".into());
    let leases = leases.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
    let engine = Arc::new(engine(&config, &clients, wall_clock()));
    let operator = Operator::new(engine, &clients, &config, leases);
    let operator = &operator;
    run(service_fn(move |event: LambdaEvent<_>| async move {
        Ok::<_, Error>(Box::pin(operator::http::handler(operator, event.payload)).await)
    }))
    .await
}
