//! The whole system in this process: endpoints, functions, pumps, the supervisor's clock, remote services, the API.

use crate::access::{self, Access};
use crate::admission;
use crate::functions::{Functions, Targets};
use crate::http;
use crate::predecessor;
use crate::pump::{self, Source, UnderWay, Work};
use crate::queue::Queues;
use crate::queue_turns::Gate;
use crate::start_error::StartError;
use agent::agents::Means;
use agent::aws::{Aws, absent};
use agent::secrets::Secrets;
use anyhow::{Context, Result};
use aws_lambda_events::event::apigw::{ApiGatewayV2httpRequest, ApiGatewayV2httpResponse};
use axum::http::Method;
use edge::auth;
use edge::http::refuse;
use edge::problem::{self, Problem};
use edge::workflows::{self, Workflows};
use futures::FutureExt;
use futures::future::BoxFuture;
use operator::Operator;
use shared::engine::Observer;
use shared::pools::Layout;
use shared::time::SignedDuration;
use shared::workflow::USUAL_SKEW;
use shared::workflow::file::Settings;
use shared::workflow::http::AGENT as HTTP;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stepwarden_aws::config::{NO_POOL, apart, instance, queue};
use stepwarden_aws::telemetry::Chain;
use stepwarden_aws::{Clients, Config, Engine, ReplyQueues, SqsMessenger, observed_engine, schema, traces, wall_clock};
use stepwarden_embedded::{Durability, Endpoints};
use stepwarden_remotes::Remotes;
use submit::Submit;
use submit::submission::Begins;
use supervisor::Supervisor;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Prefix of all tables and queues of the local system.
pub const NAME_PREFIX: &str = "stepwarden-";
/// A message that is not deleted is redelivered this long after it was received.
pub const VISIBILITY_TIMEOUT_S: u32 = 180;
/// Clocks in one process do not differ; this leaves room for a slow poll.
pub const SKEW: SignedDuration = SignedDuration::from_millis(50);
/// How often the supervisor sweeps.
pub const SWEEP_EVERY: Duration = Duration::from_millis(250);
/// Life of the supervisor's lease, which is kept from one sweep to the next: after a kill there is no sweep for at most
/// this long.
pub const LEASE_LIFE: Duration = Duration::from_secs(2);
/// The same as in template.yaml.
const OVERLOAD_AGE: SignedDuration = SignedDuration::from_secs(30);
/// Concurrent submissions, and concurrent batches for each consumer whose messages only use the store. SQLite has one
/// writer, so more would only wait for it, and would hold up the supervisor's lease and sweep.
const STORE_CONCURRENCY: usize = 16;
/// Concurrent batches for each agent's pool. There are more, because its calls wait for a remote service.
const AGENT_CONCURRENCY: usize = 64;

/// Tasks and inputs kept in memory between messages.
pub const CACHE: usize = 20_000;

/// Path of the metrics, which only the local system serves.
const METRICS: &str = "/metrics";

/// Where tables, queues and the bus are.
#[derive(Clone, Debug)]
pub enum Backend {
    /// In this process; the data is in a directory or in memory.
    Embedded {
        /// `None` keeps everything in memory.
        data: Option<PathBuf>,
        /// What an answered write survives.
        durability: Durability,
    },
    /// An emulator that `AWS_ENDPOINT_URL` names: missing tables and queues are created.
    Emulator,
    /// What template.yaml deployed, named by the same environment variables as for the functions.
    Deployed,
}

/// How to start.
pub struct Options {
    /// Where tables, queues and the bus are.
    pub backend: Backend,
    /// Port of the API; 0 picks free ports. The endpoints and the remote services get the next two.
    pub port: u16,
    /// The workflows for which orders are accepted.
    pub workflows: Workflows,
    /// Registered reply queues, and whose orders may name them.
    pub reply_queues: ReplyQueues,
    /// Called for every save.
    pub observer: Option<Observer>,
    /// Maximum number of tasks and inputs kept in memory between messages.
    pub cache: usize,
    /// The agents with more than one pool; each pool has separate consumers.
    pub pools: Layout,
    /// URLs of remote services, by agent or pool, instead of the sample services.
    pub urls: BTreeMap<String, String>,
    /// Who may call the API.
    pub access: access::Options,
    /// Agents that other programs serve: they get queues, but no consumers here.
    pub external_agents: Vec<String>,
    /// What stands for Lambda functions here.
    pub functions: Targets,
    /// What workflow files were read with, and registered ones are.
    pub files: Settings,
    /// Whether new orders are stored with their first claims. If not, they wait for a Wake, as on AWS.
    pub begins: bool,
}

impl Options {
    /// A system on embedded endpoints at any free ports, for orders of these workflows, with everything else as usual.
    #[must_use]
    pub fn embedded(data: Option<PathBuf>, durability: Durability, workflows: Workflows) -> Self {
        Self {
            backend: Backend::Embedded { data, durability },
            port: 0,
            workflows,
            reply_queues: ReplyQueues::default(),
            observer: None,
            cache: CACHE,
            pools: Layout::new(),
            urls: BTreeMap::new(),
            access: access::Options::default(),
            external_agents: Vec::new(),
            functions: Targets::new(),
            files: Settings::default(),
            begins: true,
        }
    }
}

/// A running system.
pub struct System {
    /// Where the API listens.
    pub url: String,
    /// The first token of the API.
    pub token: String,
    /// Where the embedded endpoints listen, for the aws command line.
    pub aws_url: Option<String>,
    /// Where the sample remote services listen.
    pub remotes_url: String,
    /// The sample remote services.
    pub remotes: Remotes,
    /// The embedded endpoints, if they are the backend.
    pub endpoints: Option<Endpoints>,
    /// The engine all functions of this process share.
    pub engine: Arc<Engine>,
    /// The configuration.
    pub config: Config,
    live: Arc<Live>,
    here: Here,
    clients: Clients,
    agents: BTreeMap<String, watch::Sender<bool>>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl System {
    /// Starts everything and returns once it listens.
    ///
    /// # Errors
    /// [`StartError`] for errors that the user can correct; any other error with its causes.
    pub fn start(options: Options) -> BoxFuture<'static, Result<Self>> {
        // Boxed, because each caller would compile all tasks that are spawned here.
        Self::assemble(options).boxed()
    }

    async fn assemble(options: Options) -> Result<Self> {
        let listener = bind(options.port, 0).await?;
        let remotes_listener = bind(options.port, 2).await?;
        let (endpoints, clients) = open(&options.backend).await?;
        let mut config = configure(&options)?;
        check_names(&config)?;
        let secrets = Arc::new(Secrets::Here { folder: std::env::var_os("STEPWARDEN_SECRETS").map(PathBuf::from) });
        let aws = Aws::new(&clients.sdk);
        let here = Here {
            is_deployed: matches!(options.backend, Backend::Deployed),
            skew: config.clock_skew,
            secrets: Arc::clone(&secrets),
            functions: (!aws.is_reachable()).then(|| options.functions.keys().cloned().collect()),
        };
        here.check(&options.workflows).await?;
        let functions = Arc::new(Functions::new(options.functions));
        let hosts = config.files.hosts.clone();
        let means = Means { secrets, aws: Arc::new(aws.with_functions(functions)), hosts };
        // Only now, because until here another process may be using the data and the token.
        let (access, token) = Access::open(&options.access)?;
        if !matches!(options.backend, Backend::Deployed) {
            config.queue_prefix = schema::create(&clients, &config, NAME_PREFIX, VISIBILITY_TIMEOUT_S)
                .await
                .context("creating tables and queues")?;
        }

        if config.public_url.is_empty() {
            config.public_url = url_of(&listener)?;
        }
        traces::init(&config.instance);
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let ended = |mut stopped: watch::Receiver<bool>| async move {
            let _ = stopped.wait_for(|stop| *stop).await;
        };

        tasks.spawn(traces::run(ended(stopped.clone())));

        let mut aws_url = None;
        if let Some(endpoints) = endpoints.clone() {
            let (listener, ended) = (bind(options.port, 1).await?, ended(stopped.clone()));
            aws_url = Some(url_of(&listener)?);
            tasks.spawn(async move { log_end("the endpoints", endpoints.serve(listener, ended).await) });
        }

        let remotes = open_remotes(match &options.backend {
            Backend::Embedded { data, .. } => data.as_deref(),
            Backend::Emulator | Backend::Deployed => None,
        })?;
        let remotes_url = url_of(&remotes_listener)?;
        let (served, until) = (remotes.clone(), ended(stopped.clone()));
        tasks.spawn(async move { log_end("the remote services", served.serve(remotes_listener, until).await) });

        let engine = Arc::new(observed_engine(&config, &clients, wall_clock(), options.observer));
        if let Backend::Embedded { data: Some(data), .. } = &options.backend {
            let leases = [&*supervisor::lease_name(0), supervisor::jobs::LEASE];
            predecessor::succeed(data, &config.instance, &leases, &*engine.store).await?;
        }
        let begins = options.begins.then(Default::default);
        let live = watch::Sender::new(Arc::new(Doors::new(&engine, &clients, &config, options.workflows, begins)));
        let live = Arc::new(live);
        let elsewhere = |name: &str| options.urls.get(name).cloned();
        let runtime = agent_runtime(&config, elsewhere, &remotes_url, &means);
        let act = agent_handler(runtime, SqsMessenger::new(&clients, &config));
        let agents = start_pumps(&mut tasks, &config, &Queues::new(&clients), &engine, &live, &act, &stopped);
        tasks.spawn(sweep(Arc::clone(&engine), config.shards, stopped.clone()));
        tasks.spawn(work(Arc::clone(&engine), stopped.clone()));

        let url = url_of(&listener)?;
        let handler = admission::guard(route(&live), STORE_CONCURRENCY);
        let (access, ended) = (Arc::new(access), ended(stopped));
        tasks.spawn(async move { log_end("the API", http::serve(listener, handler, access, ended).await) });
        Ok(Self {
            url,
            token,
            aws_url,
            remotes_url,
            remotes,
            endpoints,
            engine,
            config,
            live,
            here,
            clients,
            agents,
            stop,
            tasks,
        })
    }

    /// Stops the consumer of an agent's pool, as if its process had died, or starts it again. The only pool of an agent
    /// has the agent's name.
    pub fn pause_agent(&self, name: &str, paused: bool) {
        if let Some(switch) = self.agents.get(name) {
            switch.send_replace(paused);
        }
    }

    /// Submission, for callers in this process.
    #[must_use]
    pub fn submit(&self) -> Arc<Submit> {
        Arc::clone(&self.live.borrow().submit)
    }

    /// What new orders get from now on. Open orders keep their definitions.
    ///
    /// # Errors
    /// One of the workflows could not run here; then nothing changes.
    pub async fn replace(&self, workflows: Workflows) -> Result<(), StartError> {
        self.here.check(&workflows).await?;
        let doors = Doors::new(&self.engine, &self.clients, &self.config, workflows, self.submit().begins.clone());
        self.live.send_replace(Arc::new(doors));
        Ok(())
    }

    /// Stops everything; batches in progress get a few seconds.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(8), all).await;
        traces::finish().await;
    }
}

/// The functions that know the workflows of the deployment.
struct Doors {
    submit: Arc<Submit>,
    operator: Operator,
}

impl Doors {
    fn new(
        engine: &Arc<Engine>,
        clients: &Clients,
        config: &Config,
        workflows: Workflows,
        begins: Option<Begins>,
    ) -> Self {
        let leases = vec![supervisor::lease_name(0), supervisor::jobs::LEASE.to_owned()];
        let operator = Operator::new(Arc::clone(engine), clients, config, leases);
        let operator = Operator { deployed: Ok(workflows.clone()), ..operator };
        let submit = Arc::new(Submit {
            engine: Arc::clone(&engine.engine),
            workflows,
            reply_queues: config.reply_queues.clone(),
            shards: config.shards,
            scopes: Default::default(),
            queue_tenant: shared::order::DEFAULT_TENANT.to_owned(),
            begins,
        });
        Self { submit, operator }
    }
}

/// These functions as of now: a deployment of changed workflow files replaces them.
type Live = watch::Sender<Arc<Doors>>;

/// The API's routes, divided between two functions as API Gateway does.
fn route(live: &Arc<Live>) -> admission::Handler {
    let live = Arc::clone(live);
    Arc::new(move |event| {
        let doors = Arc::clone(&live.borrow());
        async move {
            let Doors { submit, operator } = &*doors;
            if event.raw_path.as_deref() == Some(METRICS) {
                metrics(operator, &event).await.unwrap_or_else(|problem| refuse(&problem))
            } else if operator::http::takes(&event) {
                operator::http::handler(operator, event).await
            } else {
                submit::http::handler(submit, event).await
            }
        }
        .boxed()
    })
}

/// The metrics of this process for Prometheus, with the ages of the oldest orders measured now.
async fn metrics(operator: &Operator, event: &ApiGatewayV2httpRequest) -> Result<ApiGatewayV2httpResponse, Problem> {
    auth::check(event, &operator.scopes.operator)?;
    if event.request_context.http.method != Method::GET {
        return Err(problem::wrong_method("GET"));
    }
    let unavailable = |_| problem::unavailable(None, "the order store did not answer; try again").retry_after(2);
    supervisor::ages::measure(&operator.engine, operator.config.shards).await.map_err(unavailable)?;
    supervisor::ages::waits(&operator.engine.store, operator.engine.now()).await.map_err(unavailable)?;
    let text = stepwarden_aws::metrics::prometheus();
    Ok(edge::http::answer(200, "text/plain; version=0.0.4; charset=utf-8", Some(text), &[]))
}

async fn open(backend: &Backend) -> Result<(Option<Endpoints>, Clients)> {
    match backend {
        Backend::Embedded { data, durability } => {
            let options = stepwarden_embedded::Options { data_dir: data.clone(), durability: *durability };
            let opened =
                tokio::task::spawn_blocking(move || Endpoints::open(&options)).await.context("opening the data")?;
            let endpoints = opened.map_err(|e| StartError::Data(e.to_string()))?;
            let clients = Clients::in_process(endpoints.connector());
            Ok((Some(endpoints), clients))
        }
        Backend::Emulator | Backend::Deployed => Ok((None, Clients::from_env().await)),
    }
}

/// The sample remote services, with ledgers in `data` or in memory.
///
/// # Errors
/// [`StartError::Data`]: the directory or the file cannot be used.
pub fn open_remotes(data: Option<&Path>) -> Result<Remotes> {
    Ok(Remotes::open(data).map_err(|error| StartError::Data(error.to_string()))?)
}

/// The workflows in `folder`, or in `workflows/` here, or the built-in ones.
///
/// # Errors
/// The first file that is wrong, with its line and what to write instead.
pub fn read_workflows(folder: Option<&Path>, external_agents: &[String], settings: &Settings) -> Result<Workflows> {
    let agents: Vec<&str> =
        agent::agents::NAMES.into_iter().chain(external_agents.iter().map(String::as_str)).collect();
    let here = Path::new("workflows");
    let folder = folder.or_else(|| here.is_dir().then_some(here));
    let workflows = match folder {
        Some(folder) => workflows::in_folder(folder, &agents, settings)?,
        None => workflows::built_in(&agents, settings)?,
    };
    if let Some(name) = settings.config.keys().find(|name| !workflows.contains_key(*name)) {
        let known: Vec<&str> = workflows.keys().map(String::as_str).collect();
        let message = format!("--config: there is no workflow `{name}`; write one of {}", known.join(", "));
        return Err(StartError::Data(message).into());
    }
    Ok(workflows)
}

fn configure(options: &Options) -> Result<Config> {
    if matches!(options.backend, Backend::Deployed) {
        return Config::from_env().context("reading the deployment's settings from the environment");
    }
    let config = local_config(
        options.reply_queues.clone(),
        options.pools.clone(),
        options.external_agents.clone(),
        options.cache,
    );
    Ok(Config { files: options.files.clone(), ..config })
}

/// The configuration of a system that no template deployed; the prefix of its queues is not known yet.
#[must_use]
pub fn local_config(reply_queues: ReplyQueues, pools: Layout, external_agents: Vec<String>, cache: usize) -> Config {
    Config {
        orders_table: format!("{NAME_PREFIX}orders"),
        state_table: format!("{NAME_PREFIX}state"),
        queue_prefix: String::new(),
        event_bus: "default".into(),
        reply_queues,
        // An agent of the user's takes the place of a sample of the same name.
        agents: agent::agents::NAMES
            .into_iter()
            .filter(|name| !external_agents.iter().any(|own| own == name))
            .map(str::to_owned)
            .chain(external_agents.iter().cloned())
            .collect(),
        external_agents,
        pools,
        // Here an idle queue costs nothing.
        priority_classes: true,
        shards: 1,
        order_buckets: 1,
        clock_skew: SKEW,
        retention: SignedDuration::ZERO,
        cache,
        overload_age: OVERLOAD_AGE,
        files: Settings::default(),
        public_url: String::new(),
        instance: instance(),
    }
}

fn check_names(config: &Config) -> Result<(), StartError> {
    for (n, name) in config.agents.iter().enumerate() {
        if !queue::is_pool(name) {
            return Err(StartError::Data(format!("--external-agent: `{name}` {NO_POOL}")));
        }
        if config.agents[..n].contains(name) || (name == HTTP && config.external_agents.contains(name)) {
            return Err(StartError::Data(format!(
                "--external-agent: an agent named `{name}` already exists; give yours another name"
            )));
        }
    }
    apart(config.pools.clone(), &config.agents).map(drop).map_err(StartError::Data)
}

/// What a workflow needs in order to run here.
struct Here {
    is_deployed: bool,
    skew: SignedDuration,
    secrets: Arc<Secrets>,
    /// If nothing answers signed calls: the functions for which something stands here.
    functions: Option<Vec<String>>,
}

impl Here {
    /// Refuses workflows that could not run here, and warns about those that could not run on AWS.
    async fn check(&self, workflows: &Workflows) -> Result<(), StartError> {
        workflows::can_start(workflows, self.skew).map_err(|error| {
            let or = if self.is_deployed {
                ", or lower CLOCK_SKEW_MS here and ClockSkewMs of the stack if the clocks allow that"
            } else {
                ""
            };
            StartError::Data(format!("{error}: raise it{or}"))
        })?;
        if let (false, Err(error)) = (self.is_deployed, workflows::can_start(workflows, USUAL_SKEW)) {
            tracing::warn!("this would not start on AWS: {error}, unless ClockSkewMs is lowered there");
        }
        let missing = self.secrets.missing(workflows.values()).await.or_else(|| self.missing_call(workflows));
        missing.map_or(Ok(()), |missing| Err(StartError::Data(missing)))
    }

    /// The first signed call for which nothing stands here, in words.
    fn missing_call(&self, workflows: &Workflows) -> Option<String> {
        let functions = self.functions.as_ref()?;
        let all =
            workflows.values().flat_map(|workflow| workflow.calls_of_aws().map(move |call| (&workflow.name, call)));
        let is_here = |name: &str| functions.iter().any(|function| function == name);
        let mut missing = all.filter(|(_, (_, call))| !call.function_name().is_some_and(is_here));
        missing
            .next()
            .map(|(workflow, (step, call))| format!("step `{step}` of workflow `{workflow}`: {}", absent(call)))
    }
}

/// All agents of this process, each pool with a separate circuit breaker.
fn agent_runtime(
    config: &Config,
    elsewhere: impl Fn(&str) -> Option<String>,
    remotes_url: &str,
    means: &Means,
) -> agent::Runtime {
    let sample = |agent: &str| elsewhere(agent).unwrap_or_else(|| format!("{remotes_url}/{agent}"));
    let settings = agent::Settings { skew: config.clock_skew, breaker: agent::breaker::Settings::default() };
    let runtime = agent::Runtime::new(agent::agents::all(sample, means), settings, wall_clock());
    let url = |agent: &str, pool: &str| elsewhere(pool).unwrap_or_else(|| format!("{remotes_url}/{agent}"));
    let pools = agent::agents::in_pools(&config.pools, url, means);
    pools.into_iter().fold(runtime, |runtime, (pool, agent)| runtime.with_pool(&pool, agent))
}

fn start_pumps(
    tasks: &mut JoinSet<()>,
    config: &Config,
    queues: &Queues,
    engine: &Arc<Engine>,
    live: &Arc<Live>,
    act: &pump::Handler,
    stopped: &watch::Receiver<bool>,
) -> BTreeMap<String, watch::Sender<bool>> {
    let under_way = UnderWay::default();
    // One consumer of some queues, the most urgent first.
    let mut start = |names: Vec<String>, concurrency: usize, handler: pump::Handler| {
        let (switch, pause) = watch::channel(false);
        let gate = Gate::new(concurrency, names.len());
        for (class, name) in names.iter().enumerate() {
            // Normal new orders give way to urgent ones and to work in progress. Nothing gives way to low-priority
            // work.
            let is_new = [queue::SCHEDULER, queue::SUBMISSIONS].contains(&name.as_str());
            let work = if is_new { Work::New } else { Work::Begun };
            let under_way = if class > 1 { UnderWay::default() } else { under_way.clone() };
            let source = Source {
                queue: queues.at(config.queue_url(name)),
                gate: Arc::clone(&gate),
                class,
                work: work(under_way),
            };
            tasks.spawn(pump::run(source, Arc::clone(&handler), pause.clone(), stopped.clone()));
        }
        switch
    };

    let schedule: pump::Handler = {
        let engine = Arc::clone(engine);
        Arc::new(move |event| {
            let engine = Arc::clone(&engine);
            async move { scheduler::handler(&engine, event).await }.boxed()
        })
    };
    let live = Arc::clone(live);
    let accept = Arc::new(move |event| {
        let submit = Arc::clone(&live.borrow().submit);
        async move { submit::queue_handler(&submit, event).await }.boxed()
    });
    let mut switches = BTreeMap::from([
        (queue::SCHEDULER.to_owned(), start(config.scheduler_queues(), STORE_CONCURRENCY, Arc::clone(&schedule))),
        (queue::REPLIES.to_owned(), start(vec![queue::REPLIES.to_owned()], STORE_CONCURRENCY, schedule)),
        (queue::SUBMISSIONS.to_owned(), start(vec![queue::SUBMISSIONS.to_owned()], STORE_CONCURRENCY, accept)),
    ]);
    let own = config.agents.iter().filter(|agent| !config.external_agents.contains(agent));
    for pool in own.flat_map(|agent| config.pools_of(agent)) {
        switches.insert(pool.to_owned(), start(config.pool_queues(pool), AGENT_CONCURRENCY, Arc::clone(act)));
    }
    switches
}

/// The consumer of agents' requests in this process.
fn agent_handler(runtime: agent::Runtime, messenger: SqsMessenger) -> pump::Handler {
    let means = Arc::new((runtime, messenger));
    Arc::new(move |event| {
        let means = Arc::clone(&means);
        async move { agent::handler(&means.0, &means.1, event).await }.boxed()
    })
}

/// The supervisor's schedule.
async fn sweep(engine: Arc<Engine>, shards: u16, mut stopped: watch::Receiver<bool>) {
    let mut supervisor = Supervisor::new(&engine, &*engine.store, supervisor::Settings::new(shards, LEASE_LIFE));
    let mut tick = tokio::time::interval(SWEEP_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => break,
            _ = tick.tick() => {}
        }
        if let Err(error) = supervisor.sweep().await {
            tracing::error!(
                error = %Chain(&error),
                alarm = "no_sweep",
                "a sweep failed; the next one tries again"
            );
        }
    }
    supervisor.release().await;
}

/// Works on jobs.
async fn work(engine: Arc<Engine>, mut stopped: watch::Receiver<bool>) {
    let worker = supervisor::jobs::Worker::new(&engine, LEASE_LIFE);
    let mut tick = tokio::time::interval(supervisor::jobs::LOOK_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let worked = async {
            tick.tick().await;
            worker.work(None).await
        };
        tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => break,
            worked = worked => {
                if let Err(error) = worked {
                    tracing::warn!(error = %Chain(&error), "jobs could not be looked up; the supervisor tries again");
                }
            }
        }
    }
    worker.release().await;
}

/// A listener on loopback, `offset` ports after `port`; 0 picks a free port.
///
/// # Errors
/// [`StartError::PortInUse`], or the system's own.
pub async fn bind(port: u16, offset: u16) -> Result<TcpListener> {
    let no_room =
        || StartError::Data(format!("port {port} leaves no room for the next two ports; choose one up to 65533"));
    let wanted = if port == 0 { 0 } else { port.checked_add(offset).ok_or_else(no_room)? };
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, wanted));
    TcpListener::bind(address).await.map_err(|error| {
        if error.kind() == std::io::ErrorKind::AddrInUse {
            StartError::PortInUse(wanted).into()
        } else {
            anyhow::Error::new(error).context(format!("listening on {address}"))
        }
    })
}

/// Where a listener is reached.
///
/// # Errors
/// The operating system does not report the address.
pub fn url_of(listener: &TcpListener) -> Result<String> {
    Ok(format!("http://{}", listener.local_addr().context("reading a listener's address")?))
}

fn log_end(what: &str, result: std::io::Result<()>) {
    if let Err(error) = result {
        tracing::error!("{what} stopped: {error}");
    }
}
