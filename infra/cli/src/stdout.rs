//! Text for standard output. If the reader has gone, that is an error like any other, and ends the command; `println!`
//! would panic.

use anyhow::{Context, Result};
use shared::visible::{escape, is_hidden};
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Exit code of a command whose reader has gone, as after SIGPIPE.
pub const READER_GONE: u8 = 128 + 13;

/// Writes `text`. It may contain foreign text, so characters that would control a terminal are written as JSON escapes:
/// a program that reads JSON here gets the same values.
pub fn write(text: Arguments<'_>) -> Result<()> {
    let text = text.to_string();
    let shown = escape(&text, |c| is_hidden(c) && !matches!(c, '\n' | '\t'));
    std::io::stdout().write_all(shown.as_bytes()).context("writing to standard output")
}

/// Writes `text`, which may have colours; they are left out unless the output is a terminal, and if `NO_COLOR` is set.
pub fn styled(text: &str) -> Result<()> {
    // Foreign escape sequences are gone: `show::read` has replaced them.
    let shown = escape(text, |c| is_hidden(c) && !matches!(c, '\n' | '\t' | '\u{1b}'));
    anstream::stdout().write_all(shown.as_bytes()).context("writing to standard output")
}

/// Whether `error` says that the reader of standard output has gone.
pub fn is_reader_gone(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
}

/// Writes a line, or returns the error.
#[macro_export]
macro_rules! say {
    ($($line:tt)*) => {
        $crate::stdout::write(format_args!("{}\n", format_args!($($line)*)))?
    };
}
