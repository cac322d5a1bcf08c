//! An agent: a function for each step, typed input and output, and the answer to a request.

use crate::AgentError;
use crate::attempt::{Attempt, Deadline};
use crate::breaker::{self, Breaker};
use crate::heart::{Answered, Heart, Post};
use crate::message::{Answer, Direction, Outcome, Reply, Request};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::HashMap;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::time::Duration;

/// The work of a function once its input is read; `Err` answers an input of another form.
type Working = Pin<Box<dyn Future<Output = Result<Value, AgentError>> + Send>>;
type Function = Box<dyn Fn(&Begun<'_>, Duration) -> Result<Working, String> + Send + Sync>;

/// Requests that one program works on at a time, unless the agent says otherwise.
const AT_ONCE: usize = 10;
/// How long a handed-back step waits, in milliseconds. By then the program has ended, and the work with it.
const HANDED_BACK_MS: u64 = 2000;

/// One call of a function: its input, and what else it may need.
#[derive(Clone, Debug)]
pub struct Call<I> {
    /// What the step's `with` makes of the order, or the order's input if the step has no `with`.
    pub input: I,
    /// Pass it to your service with every call. It is the same for all attempts at this step in this direction, so the
    /// service does the work once.
    pub idempotency_key: String,
    /// Outputs of the steps before this one, by step name; [`output_of`](Self::output_of) reads one.
    pub outputs: std::collections::BTreeMap<String, Value>,
    /// How long the function may take. After this time it is dropped, and no reply is sent. With heartbeats it is only
    /// the time until the next one must be answered.
    pub time_left: Duration,
    /// The order's id.
    pub order_id: String,
    /// Name of the step.
    pub step: String,
    /// Number of this attempt; the first is 1.
    pub attempt: u32,
    /// After this time the attempt is over (UTC), unless heartbeats move it.
    pub complete_by: Timestamp,
    /// Tenant that owns the order.
    pub tenant: String,
    /// Priority of the order: `high`, `normal` or `low`.
    pub priority: String,
    /// The W3C trace context of the order, to pass to your service as the header `traceparent`.
    pub traceparent: Option<String>,
    heart: Option<Heart>,
}

impl<I> Call<I> {
    /// Reports that the work goes on. A function whose step has a `heartbeat` calls this at least that often. Calls in
    /// between, and calls for other steps, send nothing.
    ///
    /// # Errors
    /// [`AgentError::Stopped`]: the attempt is over, perhaps because the order was cancelled. Stop the work, and return it.
    pub async fn heartbeat(&self) -> Result<(), AgentError> {
        self.beat(None, None).await
    }

    /// [`heartbeat`](Self::heartbeat) with progress for people: 0 to 100 percent, and a sentence of at most 200 bytes.
    ///
    /// # Errors
    /// As for [`heartbeat`](Self::heartbeat).
    pub async fn progress(&self, percent: u8, note: &str) -> Result<(), AgentError> {
        self.beat(Some(percent.min(100)), Some(note)).await
    }

    async fn beat(&self, percent: Option<u8>, note: Option<&str>) -> Result<(), AgentError> {
        match &self.heart {
            Some(heart) => heart.beat(percent, note).await,
            None => Ok(()),
        }
    }

    /// The output of the step called `step`.
    ///
    /// # Errors
    /// [`AgentError::Permanent`] if it is missing, or is not a `T`.
    pub fn output_of<T: DeserializeOwned>(&self, step: &str) -> Result<T, AgentError> {
        let value = self.outputs.get(step);
        let value =
            value.ok_or_else(|| AgentError::permanent(format!("the request has no output of step `{step}`")))?;
        T::deserialize(value)
            .map_err(|e| AgentError::permanent(format!("the output of step `{step}` is not what the agent reads: {e}")))
    }
}

/// One call of a function that undoes a step. It must also succeed if the step was never done; a later call to do it
/// under the key in [`undoes`](Self::undoes) must then have no effect.
#[derive(Clone, Debug)]
pub struct Undo<I, O> {
    /// Input, key and deadline. The key is the undo's own.
    pub call: Call<I>,
    /// What the step returned; `None` if that is unknown, because no answer came.
    pub output: Option<O>,
    /// The idempotency key under which the step was done.
    pub undoes: String,
}

impl<I, O> Deref for Undo<I, O> {
    type Target = Call<I>;

    fn deref(&self) -> &Call<I> {
        &self.call
    }
}

/// An attempt in progress: its request and heartbeats.
pub(crate) struct Begun<'a> {
    request: &'a Request,
    complete_by: Deadline,
    heart: Option<Heart>,
}

impl Begun<'_> {
    /// When it is over; heartbeats move it.
    pub(crate) fn complete_by(&self) -> Deadline {
        self.complete_by.clone()
    }

    /// Waits until a heartbeat is answered, so that the record shows the work and the message is no longer needed.
    /// Forever without heartbeats.
    pub(crate) async fn known(&self) {
        match &self.heart {
            Some(heart) => heart.known().await,
            None => std::future::pending().await,
        }
    }

    /// The reply of an attempt that is dropped because the program ends. It counts no failure; how far the function
    /// came is unknown.
    pub(crate) fn handed_back(&self) -> Reply {
        let error = "the agent was stopped before the work was done".to_owned();
        let answer = Outcome::Deferred { error, retry_after_ms: HANDED_BACK_MS }.into();
        Reply::to(self.request, Answer { unsure: true, ..answer })
    }

    /// Keeps the attempt open for its reply. False if over.
    pub(crate) async fn stays(&self) -> bool {
        match &self.heart {
            Some(heart) => heart.beat(None, None).await.is_ok(),
            None => false,
        }
    }
}

/// A message that is no request. It stays queued until it becomes a dead letter, which raises an alarm.
#[derive(Debug, thiserror::Error)]
#[error("not a request: {0}")]
pub struct Unreadable(#[from] serde_json::Error);

/// An agent: a function per step that names it in a workflow file.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use stepwarden_agent::{Agent, AgentError, Call, Undo};
///
/// #[derive(Deserialize)]
/// struct Wanted {
///     item: String,
///     quantity: u32,
/// }
///
/// #[derive(Deserialize, Serialize)]
/// struct Reserved {
///     reservation: String,
/// }
///
/// async fn reserve(call: Call<Wanted>) -> Result<Reserved, AgentError> {
///     if call.input.quantity > 100 {
///         return Err(AgentError::refused(format!("there are only 100 of {}", call.input.item), 409, None));
///     }
///     Ok(Reserved { reservation: format!("R-{}", call.idempotency_key) })
/// }
///
/// async fn release(undo: Undo<Wanted, Reserved>) -> Result<(), AgentError> {
///     println!("released {}", undo.undoes);
///     Ok(())
/// }
///
/// let agent = Agent::new("stock").step("reserve", reserve).undo("reserve", release);
/// ```
pub struct Agent {
    name: String,
    functions: HashMap<(Direction, String), Function>,
    /// The first step with two functions.
    pub(crate) twice: Option<String>,
    breaker: Breaker,
    pub(crate) at_once: usize,
    skew: SignedDuration,
    post: Option<Post>,
}

impl Agent {
    /// An agent without functions, by the name that workflow files use: 1 to 40 lower-case letters, digits and `-`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            breaker: Breaker::new(&name, breaker::Settings::default()),
            name,
            functions: HashMap::new(),
            twice: None,
            at_once: AT_ONCE,
            skew: SignedDuration::from_secs(1),
            post: None,
        }
    }

    /// Does the step called `step` with this function.
    ///
    /// The input is read as `I`. If that fails, the failure is permanent, and the function is not called. The result is
    /// written as JSON for later steps and the undo: at most [`MAX_OUTPUT`](crate::attempt::MAX_OUTPUT) bytes, nested
    /// at most [`MAX_DEPTH`](crate::attempt::MAX_DEPTH) levels deep. A longer or deeper output, or one that is not
    /// JSON, fails the step, but the work counts as done. serde_json writes NaN and infinities as `null`.
    ///
    /// The future is dropped when its time is over, so work elsewhere must end by itself. A panic counts as
    /// [`AgentError::Transient`].
    #[must_use]
    pub fn step<I, O, F, Fut>(self, step: &str, function: F) -> Self
    where
        I: DeserializeOwned + Send + 'static,
        O: Serialize + 'static,
        F: Fn(Call<I>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, AgentError>> + Send + 'static,
    {
        self.with(Direction::Do, step, move |begun, time_left| Ok(boxed(function(call(begun, time_left)?))))
    }

    /// Undoes the step called `step` with this function. Input and output are read as for [`step`](Self::step).
    #[must_use]
    pub fn undo<I, O, F, Fut>(self, step: &str, function: F) -> Self
    where
        I: DeserializeOwned + Send + 'static,
        O: DeserializeOwned + Send + 'static,
        F: Fn(Undo<I, O>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), AgentError>> + Send + 'static,
    {
        self.with(Direction::Undo, step, move |begun, time_left| {
            let request = begun.request;
            let output = request.output.as_ref().filter(|output| !output.is_null()).map(O::deserialize).transpose();
            let output =
                output.map_err(|e| format!("the output of the step to undo is not what the agent reads: {e}"))?;
            let undoes = request.undoes.clone().unwrap_or_default();
            Ok(boxed(function(Undo { call: call(begun, time_left)?, output, undoes })))
        })
    }

    fn with(
        mut self,
        direction: Direction,
        step: &str,
        function: impl Fn(&Begun<'_>, Duration) -> Result<Working, String> + Send + Sync + 'static,
    ) -> Self {
        if self.functions.insert((direction, step.to_owned()), Box::new(function)).is_some() {
            self.twice.get_or_insert_with(|| step.to_owned());
        }
        self
    }

    /// Sets when the circuit breaker before the agent's service opens, and for how long. Meanwhile requests are given
    /// back untried. The default is 10 failures in a row, then 2 s, doubled up to 60 s.
    #[must_use]
    pub fn breaker(mut self, settings: breaker::Settings) -> Self {
        self.breaker = Breaker::new(&self.name, settings);
        self
    }

    /// How many requests the program works on at a time (10). In Lambda the batch size of the event source decides.
    #[must_use]
    pub fn at_once(mut self, requests: usize) -> Self {
        self.at_once = requests.max(1);
        self
    }

    /// How far apart two clocks may be (1 s): no call starts later than this before CompleteBy, and each call ends by
    /// then. [`serve`](crate::serve) reads it from `CLOCK_SKEW_MS`.
    #[must_use]
    pub fn skew(mut self, skew: SignedDuration) -> Self {
        self.skew = skew;
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The reply to the message in `body`, delivered `deliveries` times, as [`serve`](crate::serve) would send it.
    /// `None` if CompleteBy is over. For tests of an agent without queues.
    ///
    /// # Errors
    /// The message is no request.
    pub async fn answer(&self, body: &str, deliveries: u32) -> Result<Option<Reply>, Unreadable> {
        let request: Request = serde_json::from_str(body)?;
        Ok(match self.begin(&request).await {
            Some(begun) => self.reply(&begun, deliveries).await,
            None => None,
        })
    }

    /// Sets how to send heartbeats; default: none sent.
    pub(crate) fn posts(mut self, post: Post) -> Self {
        self.post = Some(post);
        self
    }

    /// Begins the attempt of a request. `None` if the answer to its first heartbeat says that it is over.
    pub(crate) async fn begin<'a>(&self, request: &'a Request) -> Option<Begun<'a>> {
        let complete_by = Deadline::from(request.complete_by);
        let heart = request.heartbeat.clone().zip(self.post.clone());
        let heart = heart.map(|(told, post)| Heart::new(told, complete_by.clone(), self.skew, post));
        if let Some(heart) = &heart
            && let Answered::Over(_) = heart.now(None, None).await
        {
            return None;
        }
        Some(Begun { request, complete_by, heart })
    }

    /// The reply to a request delivered `deliveries` times.
    pub(crate) async fn reply(&self, begun: &Begun<'_>, deliveries: u32) -> Option<Reply> {
        let request = begun.request;
        let clock = Timestamp::now;
        let attempt = Attempt {
            direction: request.direction,
            complete_by: begun.complete_by.clone(),
            skew: self.skew,
            calls: request.calls,
            clock: &clock,
            breaker: &self.breaker,
            remote: &self.name,
        };
        let mut answer = attempt.run(|time_left| self.call(begun, time_left)).await?;
        // An earlier delivery may have done what the service refuses now.
        if deliveries > 1 && matches!(answer.outcome, Outcome::Failed { .. } | Outcome::Deferred { .. }) {
            answer.unsure = true;
        }
        Some(Reply::to(request, answer))
    }

    async fn call(&self, begun: &Begun<'_>, time_left: Duration) -> Result<Value, AgentError> {
        let request = begun.request;
        let Some(function) = self.functions.get(&(request.direction, request.step.clone())) else {
            let todo = if request.direction == Direction::Do { "do" } else { "undo" };
            let error = format!("agent {} has no function to {todo} {}", self.name, request.step);
            // A version with one may come soon.
            return Err(AgentError::NotCalled { error, is_permanent: false });
        };
        let working = function(begun, time_left);
        let mut working = pin!(working.map_err(|error| AgentError::NotCalled { error, is_permanent: true })?);
        std::future::poll_fn(|context| {
            let polled = catch_unwind(AssertUnwindSafe(|| working.as_mut().poll(context)));
            polled.unwrap_or_else(|panic| {
                let words =
                    panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
                let error = format!("the agent panicked: {}", words.unwrap_or("no message"));
                std::task::Poll::Ready(Err(AgentError::unavailable(error)))
            })
        })
        .await
    }
}

fn call<I: DeserializeOwned>(begun: &Begun<'_>, time_left: Duration) -> Result<Call<I>, String> {
    let request = begun.request;
    let input = I::deserialize(&request.input)
        .map_err(|e| format!("the input of step `{}` is not what the agent reads: {e}", request.step))?;
    let request = request.clone();
    Ok(Call {
        input,
        idempotency_key: request.idempotency_key,
        outputs: request.outputs,
        time_left,
        order_id: request.task_id,
        step: request.step,
        attempt: request.attempt,
        complete_by: request.complete_by,
        tenant: request.tenant,
        priority: request.priority,
        traceparent: request.traceparent,
        heart: begun.heart.clone(),
    })
}

fn boxed<O: Serialize>(work: impl Future<Output = Result<O, AgentError>> + Send + 'static) -> Working {
    Box::pin(async {
        serde_json::to_value(work.await?)
            .map_err(|e| AgentError::Unusable { error: format!("the agent's output cannot be written as JSON: {e}") })
    })
}
