//! The agents as a Lambda function: one function for all of them, or one each with `AGENTS` set.

use agent::aws::Aws;
use agent::secrets::Secrets;
use agent::{Runtime, Settings, agents, breaker};
use lambda_runtime::{Error, LambdaEvent, run, service_fn};
use std::sync::Arc;
use stepwarden_aws::{Clients, Config, SqsMessenger, metrics, telemetry, traces, wall_clock};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    telemetry::init();
    let config = Config::from_env()?;
    traces::init(&config.instance);
    let clients = Clients::from_env().await;
    let messenger = SqsMessenger::new(&clients, &config);
    // Not set in a deployment without secrets.
    let id = std::env::var("HTTP_SECRETS").unwrap_or_default();
    let secrets = Arc::new(Secrets::manager(aws_sdk_secretsmanager::Client::new(&clients.sdk), id));
    let aws = Aws::new(&clients.sdk).apart_from(&config.queue_prefix, &config.event_bus);
    let means = agents::Means { secrets, aws: Arc::new(aws), hosts: config.files.hosts.clone() };
    let variable = |name: &str| std::env::var(format!("{}_URL", name.to_uppercase().replace('-', "_"))).ok();
    let url = |name: &str| variable(name).unwrap_or_default();
    let mut all = agents::all(url, &means);
    all.retain(|agent| config.agents.is_empty() || config.agents.iter().any(|name| name == agent.name()));
    let settings = Settings { skew: config.clock_skew, breaker: breaker::Settings::default() };
    let mut runtime = Runtime::new(all, settings, wall_clock());
    // A pool that has no URL calls its agent's service.
    let url_of_pool = |agent: &str, pool: &str| variable(pool).unwrap_or_else(|| url(agent));
    for (pool, agent) in agents::in_pools(&config.pools, url_of_pool, &means) {
        runtime = runtime.with_pool(&pool, agent);
    }
    let (runtime, messenger, stack) = (&runtime, &messenger, config.stack());
    run(service_fn(move |event: LambdaEvent<_>| async move {
        let deadline = event.context.deadline();
        let response = Box::pin(agent::handler(runtime, messenger, event.payload)).await;
        metrics::flush(stack);
        traces::flush_before(deadline).await;
        Ok::<_, Error>(response)
    }))
    .await
}
