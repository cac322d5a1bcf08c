//! The processes of a run, and what each does in its lives: take orders, decide, work, sweep, serve operators.

use super::{CALLBACK, Knock, TENANT, World, lock};
use crate::Defect;
use crate::calls::SimulatedAgent;
use crate::dice::Class;
use crate::node::{Node, Role};
use crate::people;
use crate::port::{BUS, Faulty};
use crate::queues::wait_ms;
use crate::script::Sending;
use agent::{Agent, Runtime, breaker};
use aws_lambda_events::event::sqs::SqsEvent;
use futures::StreamExt;
use futures::future::{BoxFuture, join_all};
use futures::stream::FuturesUnordered;
use shared::queues;
use std::sync::Arc;
use stepwarden_aws::batch::Response;
use submit::Submit;
use supervisor::Supervisor;
use tokio::time::{Instant, sleep};

/// Runs a process and restarts it after each crash.
pub(crate) async fn live(world: Arc<World>, node: Arc<Node>) {
    loop {
        node.begin(&world);
        let body: BoxFuture<'_, ()> = match node.role {
            Role::Submit => Box::pin(take_orders(&world, &node)),
            Role::Scheduler => Box::pin(schedule(&world, &node)),
            Role::Agent => Box::pin(act(&world, &node)),
            Role::Supervisor => Box::pin(supervise(&world, &node)),
            Role::Operator => Box::pin(operate(&world, &node)),
        };
        node.live(&world, body).await;
        lock(&world.doors).remove(&node.name);
        let mut draw = world.dice.draw(&format!("{} is started again", node.name));
        wait_ms(draw.between(50, 3000)).await;
    }
}

/// Starts a process of each of these roles, and a reader of alerts; returns once they listen.
pub(crate) async fn live_one_each(world: &Arc<World>, roles: &[Role]) {
    for role in roles {
        tokio::spawn(live(Arc::clone(world), Arc::new(Node::new(*role, 0))));
    }
    tokio::spawn(people::read(Arc::clone(world), BUS.to_owned()));
    // A process listens from its first poll on.
    wait_ms(1).await;
}

/// Does what an event source mapping does: one batch after another.
async fn pump<'a>(
    world: &'a World,
    node: &'a Node,
    queue: &'a str,
    handler: impl Fn(SqsEvent) -> BoxFuture<'a, Response>,
) {
    loop {
        let messages = world.queues.receive(queue).await;
        let site = format!("handle {}", messages[0].label);
        node.touch(world, &site);
        let (out, back) = world.ways(&node.name, &site);
        wait_ms(out).await;
        if world.defect == Some(Defect::DeletesFirst) {
            messages.iter().for_each(|m| world.queues.delete(queue, m));
        }
        let all = messages.iter().map(|m| m.label.as_str()).collect::<Vec<_>>().join(", ");
        world.trace(format_args!("{} handles {all}", node.instance()));
        let response = handler(world.queues.event(queue, &messages)).await;
        wait_ms(back).await;
        for message in &messages {
            let failed = response.batch_item_failures.iter().any(|f| f.item_identifier == message.id.to_string());
            if !failed && world.fires(Class::DeleteLost, &message.label).is_none() {
                world.queues.delete(queue, message);
            }
        }
    }
}

async fn take_orders(world: &Arc<World>, node: &Arc<Node>) {
    let submit = Submit {
        engine: Arc::new(world.engine(node)),
        workflows: std::iter::once(&world.plan.workflow)
            .chain(&world.plan.children)
            .map(|one| (one.name.clone(), (**one).clone()))
            .collect(),
        reply_queues: world.config.reply_queues.clone(),
        shards: world.plan.shards,
        scopes: Default::default(),
        queue_tenant: TENANT.into(),
        begins: world.plan.begins.then(Default::default),
    };
    let mut door = world.door(node);
    let submit = &submit;
    let over_http = async {
        let mut under_way = FuturesUnordered::<BoxFuture<'_, ()>>::new();
        loop {
            let knock = tokio::select! {
                biased;
                Some(()) = under_way.next(), if !under_way.is_empty() => continue,
                Some(knock) = door.recv() => knock,
            };
            let work: BoxFuture<'_, ()> = match knock {
                Knock::Event(id, Sending { name, key, data, by, .. }, answer) => Box::pin(async move {
                    let sent = match name.strip_prefix(CALLBACK) {
                        Some(step) => submit.call_back(&id, step, &key, data).await,
                        None => submit.deliver(&id, &name, &key, data, by).await.map(drop),
                    };
                    let _ = answer.send(sent);
                }),
                Knock::Beat(id, step, attempt, progress, answer) => Box::pin(async move {
                    let _ = answer.send(submit.beat(&id, &step, attempt, progress).await);
                }),
                Knock::Submit(key, body, answer) => Box::pin(async move {
                    let accepted = match submit::submission::parse(body.to_string().as_bytes()) {
                        Ok(submission) => submit.accept(TENANT, &key, submission).await,
                        Err(problem) => Err(problem),
                    };
                    let _ = answer.send(accepted);
                }),
                Knock::Act(..) | Knock::SetAgent(..) => continue,
            };
            under_way.push(work);
        }
    };
    let by_message = pump(world, node, queues::SUBMISSIONS, |event| Box::pin(submit::queue_handler(submit, event)));
    let ((), ()) = futures::future::join(over_http, by_message).await;
}

async fn schedule(world: &Arc<World>, node: &Arc<Node>) {
    let engine = world.engine(node);
    let mut names = world.config.scheduler_queues();
    names.push(queues::REPLIES.into());
    let pumps =
        names.iter().map(|queue| pump(world, node, queue, |event| Box::pin(scheduler::handler(&engine, event))));
    join_all(pumps).await;
}

async fn act(world: &Arc<World>, node: &Arc<Node>) {
    let used = world.plan.agents();
    let own = agent::agents::NAMES.iter().copied().filter(|name| used.contains(name));
    let names = own.chain(used.iter().copied().filter(|name| !agent::agents::NAMES.contains(name)));
    let agents: Vec<Arc<dyn Agent>> =
        names.map(|name| Arc::new(SimulatedAgent::new(name, world, node)) as Arc<dyn Agent>).collect();
    let mut breaker = breaker::Settings::default();
    if world.plan.script.is_some() {
        // A breaker guards a service against many orders; one whose script says that it is down would never be called.
        breaker.failures = u32::MAX;
    }
    let settings = agent::Settings { skew: world.plan.skew, breaker };
    let mut pools = Vec::new();
    let mut runtime = Runtime::new(agents.clone(), settings, node.clock(world));
    for own in &agents {
        for pool in world.config.pools_of(own.name()) {
            if pool != own.name() {
                runtime = runtime.with_pool(pool, Arc::clone(own));
            }
            pools.push(pool.to_owned());
        }
    }
    let messenger = Faulty::new(world, node);
    let names: Vec<String> = pools.iter().flat_map(|pool| world.config.pool_queues(pool)).collect();
    let pumps = names
        .iter()
        .flat_map(|queue| [queue; 2])
        .map(|queue| pump(world, node, queue, |event| Box::pin(agent::handler(&runtime, &messenger, event))));
    join_all(pumps).await;
}

async fn supervise(world: &Arc<World>, node: &Arc<Node>) {
    if world.defect == Some(Defect::NoSweep) {
        return std::future::pending().await;
    }
    let engine = world.engine(node);
    let plan = &world.plan;
    let settings =
        supervisor::Settings { groups: plan.groups, ..supervisor::Settings::new(plan.shards, plan.lease_life) };
    let leases = Faulty::new(world, node);
    let mut supervisor = Supervisor::new(&engine, &leases, settings);
    loop {
        let mut draw = world.dice.draw(&format!("{} waits", node.name));
        sleep(plan.sweep_every.mul_f64(draw.between(70, 130) as f64 / 100.0)).await;
        let swept = match plan.patrols {
            true => supervisor.patrol(plan.sweep_every, Instant::now() + plan.sweep_every * 3).await,
            false => supervisor.sweep().await,
        };
        match swept {
            Ok(swept) if swept.looked_at > 0 => world.trace(format_args!(
                "{} swept {}: {} expired, {} failed",
                node.instance(),
                swept.looked_at,
                swept.expired,
                swept.failed
            )),
            Ok(_) => {}
            Err(error) => world.trace(format_args!("{} could not sweep: {error}", node.instance())),
        }
        if plan.patrols {
            supervisor = Supervisor::new(&engine, &leases, settings);
        }
    }
}

async fn operate(world: &Arc<World>, node: &Arc<Node>) {
    let (engine, store) = (world.engine(node), Faulty::new(world, node));
    let mut door = world.door(node);
    while let Some(knock) = door.recv().await {
        match knock {
            Knock::Act(acts, answer) => drop(answer.send(engine.act(acts).await)),
            Knock::SetAgent(name, pause, answer) => {
                let done = store.set_agent(&name, pause.as_ref()).await;
                engine.forget_agents();
                let _ = answer.send(done);
            }
            Knock::Submit(..) | Knock::Event(..) | Knock::Beat(..) => {}
        }
    }
}
