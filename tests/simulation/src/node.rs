//! A process that can crash, freeze, and have a wrong clock.

use crate::dice::Class;
use crate::world::World;
use shared::engine::Clock;
use shared::time::{SignedDuration, Timestamp, plus};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// When the clocks of a run begin, unless its order began at another time: 2026-01-01T00:00:00Z.
pub(crate) const EPOCH_S: i64 = 1_767_225_600;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Submit,
    Scheduler,
    Agent,
    Supervisor,
    Operator,
}

#[derive(Default)]
struct Fate {
    dies_at: Option<Instant>,
    stands_still: Option<(Instant, Instant)>,
}

/// A process, over all its lives.
pub struct Node {
    pub role: Role,
    /// Its name, the same in all its lives.
    pub name: String,
    life: AtomicU32,
    offset_ms: Arc<AtomicI64>,
    fate: Mutex<Fate>,
}

impl Node {
    pub fn new(role: Role, number: usize) -> Self {
        let name = format!("{role:?}-{number}").to_lowercase();
        Self { role, name, life: AtomicU32::new(0), offset_ms: Arc::default(), fate: Mutex::default() }
    }

    /// Its name in this life; each life has a different one.
    pub fn instance(&self) -> String {
        format!("{}.{}", self.name, self.life.load(Ordering::Relaxed))
    }

    /// Begins a new life, with a new clock error.
    pub fn begin(&self, world: &World) {
        *self.fate.lock().unwrap_or_else(PoisonError::into_inner) = Fate::default();
        self.life.fetch_add(1, Ordering::Relaxed);
        let half = i64::try_from(world.plan.skew.as_millis() / 2).expect("a skew is short");
        let site = format!("{} {}", self.name, self.life.load(Ordering::Relaxed));
        let offset = world.fires(Class::ClockSkew, &site).map_or(0, |mut draw| {
            let span = u64::try_from(half).expect("a skew is positive") * 2;
            i64::try_from(draw.between(0, span)).expect("a skew is short") - half
        });
        self.offset_ms.store(offset, Ordering::Relaxed);
        world.trace(format_args!("{} begins, its clock is off by {offset} ms", self.instance()));
    }

    pub fn clock(&self, world: &World) -> Clock {
        let (epoch, began, offset) = (world.plan.epoch, world.began, Arc::clone(&self.offset_ms));
        Arc::new(move || time_at(epoch, began, offset.load(Ordering::Relaxed)))
    }

    /// The process is about to act at `site`, where a fault may be drawn for it: a crash or a freeze soon.
    pub fn touch(&self, world: &World, site: &str) {
        let near = |draw: &mut crate::dice::Draw| Instant::now() + Duration::from_millis(draw.between(0, 25));
        let site = format!("{} {site}", self.name);
        if let Some(mut draw) = world.fires(Class::Crash, &site) {
            let at = near(&mut draw);
            let mut fate = self.fate.lock().unwrap_or_else(PoisonError::into_inner);
            fate.dies_at = Some(fate.dies_at.map_or(at, |earlier| earlier.min(at)));
        }
        let (class, least) = match self.role {
            Role::Supervisor => (Class::PausedLeader, world.plan.lease_life),
            Role::Submit | Role::Scheduler | Role::Agent | Role::Operator => {
                (Class::PausedWorker, world.plan.longest_timeout)
            }
        };
        if let Some(mut draw) = world.fires(class, &site) {
            let from = near(&mut draw);
            let length = least.mul_f64(draw.between(100, 250) as f64 / 100.0) + world.plan.skew_std();
            self.fate.lock().unwrap_or_else(PoisonError::into_inner).stands_still.get_or_insert((from, from + length));
        }
    }

    /// Runs `body` until this life ends.
    pub fn live<'a, F: Future<Output = ()> + Send + 'a>(&'a self, world: &'a World, body: F) -> Mortal<'a, F> {
        Mortal { node: self, world, body: Box::pin(body), timer: None, is_still: false }
    }
}

/// The time on a clock that is off by this many milliseconds, and that showed `epoch` when the run began.
pub(crate) fn time_at(epoch: Timestamp, began: Instant, offset_ms: i64) -> Timestamp {
    let elapsed = SignedDuration::try_from(began.elapsed()).unwrap_or(SignedDuration::MAX);
    plus(plus(epoch, elapsed), SignedDuration::from_millis(offset_ms))
}

/// A life: ends when its body ends or the process dies, and stops while the process is frozen. Dropping it drops all
/// futures of the process, at any await.
pub struct Mortal<'a, F> {
    node: &'a Node,
    world: &'a World,
    body: Pin<Box<F>>,
    timer: Option<Pin<Box<Sleep>>>,
    is_still: bool,
}

impl<F: Future<Output = ()>> Mortal<'_, F> {
    /// Sets the time at which it must be polled again.
    fn wait_for(&mut self, at: Instant, context: &mut Context<'_>) -> Poll<()> {
        let mut timer = Box::pin(sleep_until(at));
        let polled = timer.as_mut().poll(context);
        self.timer = Some(timer);
        polled
    }

    /// When the process dies, and from when until when it is frozen, if either.
    fn fate(&self) -> (Option<Instant>, Option<(Instant, Instant)>) {
        let fate = self.node.fate.lock().unwrap_or_else(PoisonError::into_inner);
        (fate.dies_at, fate.stands_still)
    }
}

impl<F: Future<Output = ()>> Future for Mortal<'_, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let now = Instant::now();
            let (dies_at, still) = self.fate();
            if dies_at.is_some_and(|at| at <= now) {
                self.world.trace(format_args!("{} dies", self.node.instance()));
                return Poll::Ready(());
            }
            if let Some((_, until)) = still.filter(|(from, _)| *from <= now) {
                if now < until {
                    if !std::mem::replace(&mut self.is_still, true) {
                        let ms = (until - now).as_millis();
                        self.world.trace(format_args!("{} is frozen for {ms} ms", self.node.instance()));
                    }
                    let wake = dies_at.map_or(until, |at| at.min(until));
                    if self.wait_for(wake, context).is_pending() {
                        return Poll::Pending;
                    }
                    continue;
                }
                self.is_still = false;
                self.node.fate.lock().unwrap_or_else(PoisonError::into_inner).stands_still = None;
                self.world.trace(format_args!("{} continues", self.node.instance()));
            }
            if self.body.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            // Its own acts may have caused its death or a standstill.
            let (dies_at, still) = self.fate();
            let next = [dies_at, still.map(|(from, _)| from)].into_iter().flatten().min();
            match next {
                Some(at) => {
                    if self.wait_for(at, context).is_pending() {
                        return Poll::Pending;
                    }
                }
                None => {
                    self.timer = None;
                    return Poll::Pending;
                }
            }
        }
    }
}
