//! Goal: faults happen as often as they should, and one can be left out without changing
//! the others. Method: many draws.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stepwarden_simulation::parts::Dice;
use stepwarden_simulation::{Allowed, Class, Fired};

fn dice(allowed: Allowed) -> Dice {
    Dice::new(7, BTreeMap::from([(Class::Delay, 0.3), (Class::Crash, 0.3)]), allowed)
}

#[test]
fn a_fault_left_out_leaves_the_others_where_they_are() {
    let all = dice(Allowed::All);
    for n in 0..100 {
        all.fires(Class::Delay, &format!("a{}", n % 3), n);
        all.fires(Class::Crash, "b", n);
    }
    let fired = all.fired();
    assert!(fired.len() > 20);
    let keys: BTreeSet<_> = fired.iter().skip(1).step_by(2).map(Fired::key).collect();
    let some = dice(Allowed::Only(Arc::new(keys.clone())));
    for n in 0..100 {
        some.fires(Class::Delay, &format!("a{}", n % 3), n);
        some.fires(Class::Crash, "b", n);
    }
    assert_eq!(some.fired().iter().map(Fired::key).collect::<BTreeSet<_>>(), keys);
}

#[test]
fn the_rate_is_the_share_and_nothing_happens_once_it_is_over() {
    let dice = dice(Allowed::All);
    let count = (0..10_000).filter(|n| dice.fires(Class::Delay, &n.to_string(), 0).is_some()).count();
    assert!((2_700..3_300).contains(&count), "{count}");
    dice.stop();
    assert!((0..1000).all(|n| dice.fires(Class::Delay, &n.to_string(), 0).is_none()));
}
