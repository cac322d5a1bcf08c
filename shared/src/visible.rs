//! Makes foreign text safe to show on one line. A newline could forge a line of a log, an escape sequence drives a
//! terminal, and a bidirectional control misrepresents text (Unicode Technical Report 36, section 2).

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether `c` controls the display instead of being shown: control characters, line separators, bidirectional
/// controls, and the byte order mark.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// `text` with each hidden character as its escape in JSON, such as `\n` and `\u202e`.
#[must_use]
pub fn visible(text: &str) -> Cow<'_, str> {
    escape(text, is_hidden)
}

/// `text` with each character for which `hides` as its escape in JSON.
#[must_use]
pub fn escape(text: &str, hides: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&hides) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !hides(c) => out.push(c),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // All of them are in the basic plane, so four digits are enough.
            c => drop(write!(out, "\\u{:04x}", u32::from(c))),
        }
    }
    out.into()
}
