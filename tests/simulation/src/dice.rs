//! What goes wrong and when: every decision is a hash of the seed, the place, and how often that place was reached.
//!
//! Decisions share no stream of random numbers, so one fault can be left out without moving the others. That makes a
//! failing run small: [`crate::shrink`] tries the same seed with fewer of its faults.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

macro_rules! classes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $rate:literal;)*) => {
        /// The classes of faults, and of what people do at bad moments.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Class { $($(#[$doc])* $name,)* }

        impl Class {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name in reports and keys.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The usual share of decisions at which it happens, from 0 to 1.
            pub fn usual_rate(self) -> f64 {
                match self { $(Self::$name => $rate,)* }
            }
        }
    };
}

classes! {
    /// A process dies: all its futures are dropped, and its memory is gone. What it had sent is still on its way.
    Crash = "crash", 0.004;
    /// A supervisor is frozen for longer than the life of its lease, then continues.
    PausedLeader = "paused-leader", 0.01;
    /// Another process is frozen for longer than a step may take.
    PausedWorker = "paused-worker", 0.004;
    /// A process's clock is wrong, within the skew.
    ClockSkew = "clock-skew", 0.7;
    /// The store does nothing and answers with an error.
    StoreError = "store-error", 0.02;
    /// The store throttles a call.
    StoreThrottle = "store-throttle", 0.02;
    /// The store has written, but its answer is lost; the caller gets an error, or retries as the SDK does.
    StoreLost = "store-answer-lost", 0.02;
    /// A call takes seconds to reach the store.
    StoreSlow = "store-slow", 0.01;
    /// A submission collides with another transaction.
    TransactionConflict = "transaction-conflict", 0.2;
    /// The due index answers with its contents of some seconds ago.
    IndexLag = "index-lag", 0.2;
    /// A request to a queue fails as a whole, and nothing was sent.
    SendError = "send-error", 0.02;
    /// A request to a queue is done, and its answer is lost.
    SendLost = "send-answer-lost", 0.02;
    /// Some messages of a request are refused, and the others are taken.
    PartialBatch = "partial-batch", 0.03;
    /// A message was taken by the queue and is never delivered.
    LostMessage = "lost-message", 0.03;
    /// A message is delivered twice.
    Duplicate = "duplicate", 0.05;
    /// A message is overtaken by later ones.
    Reorder = "reorder", 0.05;
    /// A message takes long: up to several timeouts of a step.
    Delay = "delay", 0.03;
    /// A handled message could not be deleted and is redelivered.
    DeleteLost = "delete-lost", 0.03;
    /// The submitter's queue refuses a notice.
    NoticeRefused = "notice-refused", 0.08;
    /// A notice was taken by its queue and never reaches the submitter.
    NoticeLost = "notice-lost", 0.05;
    /// A notice takes long, and later ones overtake it.
    NoticeLate = "notice-late", 0.08;
    /// A notice is delivered twice.
    NoticeDoubled = "notice-doubled", 0.08;
    /// The event bus refuses an alert.
    AlertRefused = "alert-refused", 0.2;
    /// An alert was taken by the bus and never reaches the person who must act.
    AlertLost = "alert-lost", 0.1;
    /// An alert takes long.
    AlertLate = "alert-late", 0.2;
    /// An alert is delivered twice.
    AlertDoubled = "alert-doubled", 0.2;
    /// A remote service is slow.
    RemoteSlow = "remote-slow", 0.05;
    /// A remote service never answers.
    RemoteHang = "remote-hang", 0.03;
    /// A remote service does nothing and answers with a failure.
    RemoteTransient = "remote-transient", 0.1;
    /// A remote service refuses a step permanently.
    RemotePermanent = "remote-permanent", 0.08;
    /// A remote service has done the work but reports a failure.
    RemoteLying = "remote-lying", 0.05;
    /// A call reaches its remote service only after the deadline.
    RemoteLate = "remote-late", 0.06;
    /// A remote service has done the work and answers after the deadline.
    RemoteLateAnswer = "remote-late-answer", 0.02;
    /// A remote service is down for a while.
    RemoteOutage = "remote-outage", 0.15;
    /// The undo of a step fails for a while.
    UndoFails = "undo-fails", 0.25;
    /// The undo of a step is refused once, apparently permanently.
    UndoRefused = "undo-refused", 0.1;
    // From here on: what people do, and what the workload is.
    /// Somebody cancels an order.
    Cancel = "cancel", 0.15;
    /// Somebody resubmits an order as soon as it is in Error.
    Resubmit = "resubmit", 0.5;
    /// Somebody pauses an order and resumes it later.
    PauseOrder = "pause-order", 0.05;
    /// Somebody undoes an order, whatever its state.
    UndoAsked = "undo-asked", 0.05;
    /// Somebody ends the waits of an order early.
    RetryNow = "retry-now", 0.1;
    /// Somebody resubmits an order that is in Error with another input for the failed step.
    ResubmitEdited = "resubmit-edited", 0.2;
    /// Somebody skips a failed step, or a failed undo, of an order in Error.
    Skip = "skip", 0.3;
    /// Somebody does a failed step, or a failed undo, of an order in Error by hand and marks it done.
    MarkDone = "mark-done", 0.3;
    /// An event is sent too early, too late, or never, and not when its step waits for it.
    EventAtAnyTime = "event-at-any-time", 0.4;
    /// A service only accepts the work of a step, and reports its end later.
    Accepted = "accepted", 0.6;
    /// A look of a step that polls finds nothing yet.
    NotYet = "not-yet", 0.5;
    /// Somebody pauses an agent and resumes it later.
    PauseAgent = "pause-agent", 0.05;
    /// Somebody acts on all orders at once, each at the version they saw.
    Bulk = "bulk", 0.1;
    /// Every queue gets unreadable messages.
    Poison = "poison", 0.1;
    /// There are more orders than one.
    MoreOrders = "more-orders", 0.6;
    /// People change what the workflow's name stands for while orders come in, two of them at once.
    WorkflowChange = "workflow-change", 0.25;
    /// Somebody migrates an order to another definition while it runs, and perhaps to yet another one soon after.
    Migrate = "migrate", 0.1;
    /// Somebody runs an order again from a step, also one that has ended.
    RunAgain = "run-again", 0.15;
}

impl Class {
    /// Whether it is a person's action or a part of the workload rather than a fault of the platform.
    pub fn is_act(self) -> bool {
        self >= Self::Cancel
    }
}

impl Serialize for Class {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A fault that happened, with its class and its place. `Display` prints its key: the same in every run of a seed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Fired {
    /// Its class.
    pub class: Class,
    /// The place, and after `#` how often it had been reached before.
    pub site: String,
    /// When, in milliseconds from the beginning of the run.
    pub at_ms: u64,
}

impl Fired {
    /// Its key.
    pub fn key(&self) -> String {
        format!("{}@{}", self.class, self.site)
    }
}

/// Numbers for one decision, drawn from its own hash.
#[derive(Clone, Copy, Debug)]
pub struct Draw(u64);

impl Draw {
    /// The draw of a seed and a name.
    pub fn of(seed: u64, name: &str) -> Self {
        Self(mix(hash(name.as_bytes()) ^ mix(seed)))
    }

    /// A number of 64 bits.
    pub fn number(&mut self) -> u64 {
        self.0 = mix(self.0);
        self.0
    }

    /// A number in `least..=most`.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.number() % (most.saturating_sub(least) + 1)
    }

    /// True with this probability.
    pub fn chance(&mut self, share: f64) -> bool {
        unit(self.number()) < share
    }

    /// One of these items.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[usize::try_from(self.between(0, all.len() as u64 - 1)).expect("an index")]
    }
}

/// FNV-1a, 64 bits.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// The finisher of SplitMix64.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn unit(x: u64) -> f64 {
    (x >> 11) as f64 / (1u64 << 53) as f64
}

/// Which faults may happen.
#[derive(Clone, Debug, Default)]
pub enum Allowed {
    /// All faults that the seed draws.
    #[default]
    All,
    /// Only those with these keys.
    Only(Arc<BTreeSet<String>>),
}

impl Allowed {
    /// None at all.
    pub fn none() -> Self {
        Self::Only(Arc::default())
    }

    fn has(&self, key: impl FnOnce() -> String) -> bool {
        match self {
            Self::All => true,
            Self::Only(keys) => !keys.is_empty() && keys.contains(&key()),
        }
    }
}

#[derive(Default)]
struct State {
    reached: HashMap<(Class, u64), u32>,
    passed: HashMap<u64, u64>,
    fired: Vec<Fired>,
    are_over: bool,
}

/// The dice of one run.
pub struct Dice {
    seed: u64,
    rates: BTreeMap<Class, f64>,
    allowed: Allowed,
    state: Mutex<State>,
}

impl Dice {
    /// Dice that draw each class at its rate in `rates`; a class without a rate never happens.
    pub fn new(seed: u64, rates: BTreeMap<Class, f64>, allowed: Allowed) -> Self {
        Self { seed, rates, allowed, state: Mutex::default() }
    }

    /// Whether the fault happens here and now; if so, the numbers to draw its details from.
    pub fn fires(&self, class: Class, site: &str, at_ms: u64) -> Option<Draw> {
        let rate = *self.rates.get(&class)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let place = hash(site.as_bytes());
        let reached = state.reached.entry((class, place)).or_default();
        let n = *reached;
        *reached += 1;
        if state.are_over {
            return None;
        }
        let mut draw = Draw(mix(place ^ mix(self.seed ^ mix(u64::from(n) << 8 | class as u64))));
        if !draw.chance(rate) {
            return None;
        }
        let fired = Fired { class, site: format!("{site}#{n}"), at_ms };
        if !self.allowed.has(|| fired.key()) {
            return None;
        }
        state.fired.push(fired);
        Some(draw)
    }

    /// Numbers for an event that always happens here; they differ each time.
    pub fn draw(&self, site: &str) -> Draw {
        let place = hash(site.as_bytes());
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let n = state.passed.entry(place).or_default();
        *n += 1;
        Draw(mix(place ^ mix(self.seed ^ mix(*n))))
    }

    /// From now on nothing goes wrong.
    pub fn stop(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).are_over = true;
    }

    /// What has happened so far, in order.
    pub fn fired(&self) -> Vec<Fired> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).fired.clone()
    }
}
