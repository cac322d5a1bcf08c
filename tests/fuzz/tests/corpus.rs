//! Goal: no input from outside makes a parser or a route panic, or grants more than it should. Method: every target over its
//! corpus, and over seeded mutations of it: bytes flipped, cut, doubled, and spliced from two inputs.
//!
//! `FUZZ=n` mutates each input n times; `SEED=n` chooses other mutations.

use crate::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use stepwarden_fuzz::TARGETS;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Tokens to insert: the limits of numbers, and opening and closing characters.
const TOKENS: [&str; 20] = [
    "null",
    "-1",
    "0",
    "1e999",
    "18446744073709551616",
    "9223372036854775807",
    "\"\"",
    "[]",
    "{}",
    "{",
    "}",
    "\"",
    "\\u0000",
    "\\ud800",
    "\n",
    "[[step]]\n",
    "\"0s\"",
    "\"-PT1S\"",
    "%00",
    "é",
];

fn mutate(rng: &mut fastrand::Rng, input: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..rng.usize(1..4) {
        let at = rng.usize(0..=bytes.len());
        let to = rng.usize(at..=bytes.len()).min(at + 40);
        match rng.u8(0..6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.u8(0..8),
            1 => drop(bytes.drain(at..to)),
            2 => {
                let part = bytes[at..to].to_vec();
                bytes.splice(at..at, part);
            }
            3 => drop(bytes.splice(at..to, TOKENS[rng.usize(0..TOKENS.len())].bytes())),
            4 => bytes.truncate(at),
            _ => {
                let from = rng.usize(0..=other.len());
                bytes.splice(at.., other[from..].iter().copied());
            }
        }
    }
    bytes
}

#[test]
fn no_input_causes_a_panic_or_is_granted_too_much() {
    let (seed, rounds) = (env("SEED", 1), env("FUZZ", 60));
    for (name, target) in TARGETS {
        let corpus = corpus(name);
        let taken = corpus.iter().filter(|input| target(input)).count();
        assert!(taken >= 2, "{name}: the corpus has {taken} inputs that are taken; mutations of the rest lead nowhere");
        let mut rng = fastrand::Rng::with_seed(seed);
        for input in &corpus {
            for _ in 0..rounds {
                let other = rng.usize(0..corpus.len());
                let mutant = mutate(&mut rng, input, &corpus[other]);
                if catch_unwind(AssertUnwindSafe(|| target(&mutant))).is_err() {
                    let file = std::env::temp_dir().join(format!("stepwarden-fuzz-{name}"));
                    std::fs::write(&file, &mutant).unwrap();
                    panic!("{name}, seed {seed}: {}\n{}", file.display(), String::from_utf8_lossy(&mutant));
                }
            }
        }
    }
}
