//! The operator as a Lambda function, behind API Gateway routes that only operators may call.

use aws_lambda_events::event::apigw::{ApiGatewayV2httpRequest, ApiGatewayV2httpResponse};
use edge::auth::Scopes;
use edge::workflows;
use lambda_runtime::{Error, LambdaEvent, run, service_fn};
use operator::charts::Source;
use operator::deployment::{self, layer};
use operator::{Operator, http};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use stepwarden_aws::config::{JOB_LEASE, lease_name, number};
use stepwarden_aws::{Clients, Config, engine, metrics, telemetry, traces, wall_clock};

/// API Gateway's request, or CloudFormation's, whose fields no caller can add to the first.
#[derive(Deserialize)]
#[serde(untagged)]
enum Event {
    Deployment(Box<deployment::Request>),
    Api(Box<ApiGatewayV2httpRequest>),
}

#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Api(Box<ApiGatewayV2httpResponse>),
    /// CloudFormation gets its answer at its URL.
    Deployment,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    telemetry::init();
    let config = Config::from_env()?;
    traces::init(&config.instance);
    let clients = Clients::from_env().await;
    let groups: u16 = number(|name: &str| std::env::var(name).ok(), "SUPERVISOR_GROUPS", 1, 1, 256)?;
    let leases = (0..groups).map(lease_name).chain([JOB_LEASE.to_owned()]).collect();
    let engine = Arc::new(engine(&config, &clients, wall_clock()));
    let scopes = Scopes::from_lookup(|name| std::env::var(name).ok())?;
    let is_active = std::env::var("ACTIVE").as_deref() != Ok("false");
    let agents: Vec<&str> = config.agents.iter().map(String::as_str).collect();
    // An operator who mends a bad deployment needs other routes.
    let deployed = workflows::deployed(&agents, &config.files).map_err(|error| error.to_string());
    if let Err(error) = &deployed {
        tracing::error!(error, "the deployment's workflows cannot be used");
    }
    let charts = Source::CloudWatch(Box::new(clients.clone()));
    let operator = Operator { scopes, deployed, charts, ..Operator::new(engine, &clients, &config, leases) };
    let (operator, clients, stack) = (&operator, &clients, config.stack());
    run(service_fn(move |event: LambdaEvent<Event>| async move {
        let deadline = event.context.deadline();
        let answer = match event.payload {
            Event::Api(request) => Ok(Answer::Api(Box::new(http::handler(operator, *request).await))),
            Event::Deployment(request) => {
                layer::handle(operator, clients, is_active, &request).await.map(|()| Answer::Deployment)
            }
        };
        metrics::flush(stack);
        traces::flush_before(deadline).await;
        answer.map_err(Error::from)
    }))
    .await
}
