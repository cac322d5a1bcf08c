//! Which fault meets a call: a pure function of seed, service, direction, key and call number.
//!
//! Nothing else matters, so runs with the same seed meet the same faults however their calls interleave.

use serde::{Deserialize, Serialize};

use crate::counts::Fault;
use crate::rules::Call;

/// Forward or back. Each has its own keys, call numbers and draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Direction {
    Apply,
    Undo,
}

/// What happens to one call on its way, whatever the service decides about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disruption {
    pub(crate) fault: Fault,
    /// Of a lost answer: the connection is cut, or else there is no answer.
    pub(crate) is_cut: bool,
}

impl Disruption {
    /// Whether only its answer is disrupted.
    pub(crate) fn is_carried_out_at_once(self) -> bool {
        matches!(self.fault, Fault::LostAnswer | Fault::AfterDeadline)
    }
}

/// One transient failure in four is a 429.
const THROTTLED_SHARE: f64 = 0.25;

/// The disruption of call number `number` (from 1) with this key, if any.
pub(crate) fn disruption(call: &Call, number: u64) -> Option<Disruption> {
    let faults = call.settings();
    let transient = match call.direction() {
        Direction::Apply => faults.transient,
        Direction::Undo => faults.undo_transient,
    };
    let variant = unit(call, b"variant", number);
    let kinds = [
        (transient, if variant < THROTTLED_SHARE { Fault::Throttled } else { Fault::Unavailable }),
        (faults.slow, Fault::Slow),
        (faults.hang, Fault::Hang),
        (faults.lost_answer, Fault::LostAnswer),
        (faults.after_deadline, Fault::AfterDeadline),
    ];
    let drawn = unit(call, b"call", number);
    let mut upto = 0.0;
    for (rate, fault) in kinds {
        upto += rate;
        if drawn < upto {
            return Some(Disruption { fault, is_cut: variant < 0.5 });
        }
    }
    None
}

/// Whether this key fails permanently. The choice belongs to the key, whatever the call number.
pub(crate) fn key_fails(call: &Call) -> bool {
    let rate = match call.direction() {
        Direction::Apply => call.settings().permanent,
        Direction::Undo => call.settings().undo_fails,
    };
    unit(call, b"key", 0) < rate
}

/// A number from 0 (included) to 1 (excluded).
fn unit(call: &Call, purpose: &[u8], number: u64) -> f64 {
    let direction: &[u8] = match call.direction() {
        Direction::Apply => b"apply",
        Direction::Undo => b"undo",
    };
    let mut state = mix(call.faults.seed);
    for part in [call.service.name().as_bytes(), direction, call.key.as_bytes(), purpose] {
        state = absorb(state, part);
    }
    // 53 bits fill the mantissa of an f64.
    (mix(state ^ mix(number)) >> 11) as f64 / (1u64 << 53) as f64
}

/// A number derived from the text alone, for answers that differ by order.
pub(crate) fn text_number(text: &str) -> u64 {
    mix(absorb(0, text.as_bytes()))
}

fn absorb(state: u64, part: &[u8]) -> u64 {
    let mut state = mix(state ^ part.len() as u64);
    for chunk in part.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        state = mix(state ^ u64::from_le_bytes(word));
    }
    state
}

/// Vigna, splitmix64 (public domain): one step of the generator, used as a hash.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Action;
    use crate::{Faults, Service, ServiceFaults};
    use std::sync::Arc;

    fn calls(seed: u64, faults: &ServiceFaults) -> Vec<Call> {
        let faults = Arc::new(Faults { seed, services: [(Service::Payment, faults.clone())].into() });
        let call = |n| Call {
            service: Service::Payment,
            key: format!("order-{n}"),
            order_id: "o".into(),
            action: Action::Apply { input: ().into(), details: ().into() },
            faults: Arc::clone(&faults),
        };
        (0..10_000).map(call).collect()
    }

    #[test]
    fn rates_are_met_and_seeds_differ() {
        use Fault::*;
        let none = ServiceFaults::default;
        let faults =
            ServiceFaults { transient: 0.2, slow: 0.1, hang: 0.1, lost_answer: 0.1, after_deadline: 0.1, ..none() };
        let draws = |seed, faults: &ServiceFaults| -> Vec<Option<Fault>> {
            calls(seed, faults).iter().map(|call| Some(disruption(call, 1)?.fault)).collect()
        };
        let first = draws(1, &faults);
        assert_eq!(first, draws(1, &faults));
        assert_ne!(first, draws(2, &faults));
        let rates =
            [(Unavailable, 0.15), (Throttled, 0.05), (Slow, 0.1), (Hang, 0.1), (LostAnswer, 0.1), (AfterDeadline, 0.1)];
        for (fault, rate) in rates {
            let got = first.iter().filter(|got| **got == Some(fault)).count() as f64 / first.len() as f64;
            assert!((got - rate).abs() < 0.015, "{fault:?}: {got}, not {rate}");
        }
        let failing = calls(1, &ServiceFaults { permanent: 0.3, ..none() });
        assert!((2_800..3_200).contains(&failing.iter().filter(|call| key_fails(call)).count()));
        assert!(draws(3, &none()).iter().all(Option::is_none));
        assert!(draws(3, &ServiceFaults { hang: 1.0, ..none() }).iter().all(|drawn| *drawn == Some(Hang)));
    }
}
