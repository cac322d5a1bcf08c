//! What happened in a run, line by line, and a hash of it: runs with equal hashes are equal.

use std::fmt::{self, Write};

#[derive(Debug)]
pub struct Trace {
    pub hash: u64,
    line: String,
    pub lines: Option<Vec<String>>,
}

impl Trace {
    /// An empty trace; its lines can only be printed if it `keeps` them.
    pub fn new(keeps: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, line: String::new(), lines: keeps.then(Vec::new) }
    }

    /// Adds a line about this time, in milliseconds from the beginning of the run.
    pub fn add(&mut self, at_ms: u64, what: fmt::Arguments<'_>) {
        self.line.clear();
        write!(self.line, "{:>5}.{:03} {what}", at_ms / 1000, at_ms % 1000).expect("a string takes all");
        self.hash = self.line.bytes().fold(self.hash, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        if let Some(lines) = &mut self.lines {
            lines.push(self.line.clone());
        }
    }
}
