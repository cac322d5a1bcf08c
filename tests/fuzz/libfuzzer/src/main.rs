//! libFuzzer over one target, named by `TARGET`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use stepwarden_fuzz::{TARGETS, Target};

static CHOSEN: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("TARGET").unwrap_or_default();
    let names = TARGETS.map(|(name, _)| name).join(", ");
    TARGETS.into_iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("TARGET is one of {names}"))
});

fuzz_target!(|bytes: &[u8]| {
    CHOSEN.1(bytes);
});
