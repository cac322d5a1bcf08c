//! Text for standard output. A reader that is gone is an error like any other, and ends the command; `println!` would panic.

use anyhow::{Context, Result};
use shared::visible::{escape, is_hidden};
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Exit code of a command whose reader is gone, as if by SIGPIPE.
pub const READER_GONE: u8 = 128 + 13;

/// Writes `text`. What others sent may be in it, so characters that would act on a terminal are written as their escapes in
/// JSON: a program that reads JSON here gets the same values.
pub fn write(text: Arguments<'_>) -> Result<()> {
    let text = text.to_string();
    let shown = escape(&text, |c| is_hidden(c) && !matches!(c, '\n' | '\t'));
    std::io::stdout().write_all(shown.as_bytes()).context("writing to standard output")
}

/// Writes `text`, which may have colours: they are left out where nobody would see them, or `NO_COLOR` is set.
pub fn styled(text: &str) -> Result<()> {
    // Escape sequences of others are gone: `show::text` has replaced them.
    let shown = escape(text, |c| is_hidden(c) && !matches!(c, '\n' | '\t' | '\u{1b}'));
    anstream::stdout().write_all(shown.as_bytes()).context("writing to standard output")
}

/// Whether `error` says that nobody reads standard output any more.
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
