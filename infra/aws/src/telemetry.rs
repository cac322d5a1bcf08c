//! Logs: JSON lines in Lambda, text for people elsewhere; the level comes from `RUST_LOG`, or is `info`.

use shared::visible;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use tracing_subscriber::EnvFilter;

/// Starts logging for this process, to standard error. A second call changes nothing.
pub fn init() {
    init_to("info", std::io::stderr);
}

/// Starts logging at `level`, unless `RUST_LOG` sets another one, to the writer that `writer` returns for each line.
pub fn init_to<W: Write + 'static>(level: &str, writer: impl Fn() -> W + Send + Sync + 'static) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let is_json = std::env::var_os("AWS_LAMBDA_RUNTIME_API").is_some();
    let wants_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let has_colours = !is_json && !wants_none && std::io::stderr().is_terminal();
    let writer = move || OneLine { to: writer(), has_colours };
    // Lines that cannot be written are lost. Else the subscriber would write to standard error, or panic.
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_target(false);
    let builder = builder.log_internal_errors(false).with_ansi(has_colours);
    let started = if is_json {
        builder.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init()
    } else {
        builder.try_init()
    };
    drop(started);
}

/// Keeps each line one line. Foreign text may contain line breaks, escape sequences and bidirectional controls, and the
/// subscriber replaces only some, in some fields. The escapes are JSON's, so JSON lines stay valid.
struct OneLine<W> {
    to: W,
    /// The subscriber's own escape sequences are let through.
    has_colours: bool,
}

/// The subscriber's styles: off, bold, faint, italic, and the eight colours. None of them hides anything.
fn is_colour(after_escape: &str) -> bool {
    let code = after_escape.strip_prefix('[').and_then(|rest| rest.split_once('m')).map(|(code, _)| code);
    code.is_some_and(|code| matches!(code.as_bytes(), [b'0'..=b'3'] | [b'3', b'0'..=b'7']))
}

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let Ok(text) = std::str::from_utf8(line) else { return self.to.write(line) };
        let (text, end) = text.strip_suffix('\n').map_or((text, ""), |text| (text, "\n"));
        let mut shown = String::with_capacity(line.len());
        for (n, part) in text.split('\u{1b}').enumerate() {
            if n > 0 {
                shown.push_str(if self.has_colours && is_colour(part) { "\u{1b}" } else { "\\u001b" });
            }
            shown.push_str(&visible::visible(part));
        }
        shown.push_str(end);
        // In one call, because two threads would mix their lines.
        self.to.write_all(shown.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Longest text from a message in a line of the log or an attribute of a span, in bytes.
pub const MAX_TEXT: usize = 128;

/// `text`, or its beginning if it is longer than [`MAX_TEXT`].
#[must_use]
pub fn brief(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_TEXT { text.into() } else { shared::history::shorten(text, MAX_TEXT).into() }
}

/// The trace of orders with this `traceparent`: 32 hexadecimal digits; `None` if it is missing or malformed.
#[must_use]
pub fn trace_id(traceparent: Option<&str>) -> Option<&str> {
    let text = traceparent?;
    shared::trace::traceparent(text)?;
    text.split('-').nth(1)
}

/// An error with its causes, one after another, for the log's `error`. As a value in JSON, an error would lose its
/// causes, and with them what DynamoDB or SQS said.
#[derive(Clone, Copy)]
pub struct Chain<'a>(pub &'a dyn Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(line)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn only_the_trace_of_a_good_traceparent_is_logged() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(trace_id(Some(good)), Some("0af7651916cd43dd8448eb211c80319c"));
        let long = format!("00-{}-b7ad6b7169203331-01", "a".repeat(100_000));
        for bad in [None, Some("00-text-of-anybody"), Some(&good[..54]), Some(&long)] {
            assert_eq!(trace_id(bad), None);
        }
    }

    #[test]
    fn a_text_of_a_message_is_bounded() {
        for short in ["", "reserve", &"ä".repeat(MAX_TEXT / 2)] {
            assert_eq!(brief(short), short);
        }
        let text = brief(&"ä".repeat(100)).into_owned();
        assert!((MAX_TEXT - 2..=MAX_TEXT).contains(&text.len()) && text.starts_with('ä'), "{text}");
    }

    // A line of the log is one line, whatever an order or a service sent.
    #[test]
    fn a_line_of_the_log_stays_one_line() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let sent = "a\n2026-11-22T12:00:00Z ERROR forged\r\u{1b}[2J\u{9b}2J\u{202e}\u{2028}z";
        for json in [false, true] {
            let to = Arc::clone(&log);
            let builder = tracing_subscriber::fmt()
                .with_writer(move || OneLine { to: Shared(Arc::clone(&to)), has_colours: false })
                .with_ansi(false);
            let subscriber: Box<dyn tracing::Subscriber + Send + Sync> =
                if json { Box::new(builder.json().finish()) } else { Box::new(builder.finish()) };
            tracing::subscriber::with_default(subscriber, || {
                let _span = tracing::error_span!("message", task.id = %sent).entered();
                tracing::warn!(queue = sent, error = %sent, debug = ?sent, "{sent}");
            });
            let written = String::from_utf8(std::mem::take(&mut *log.lock().unwrap())).unwrap();
            assert_eq!(written.matches('\n').count(), 1, "{written:?}");
            let line = written.trim_end_matches('\n');
            assert_eq!(line.chars().find(|c| visible::is_hidden(*c)), None, "{line:?}");
            if json {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_eq!((&line["fields"]["queue"], &line["span"]["task.id"]), (&sent.into(), &sent.into()));
            }
        }
    }

    #[test]
    fn of_escape_sequences_only_colours_are_let_through() {
        let mut out = Vec::new();
        let line =
            "\u{1b}[2mtime\u{1b}[0m \u{1b}[31mred\u{1b}[0m \u{1b}[8mhidden \u{1b}[2J \u{1b}]0;title\u{7} \u{1b}\n";
        OneLine { to: &mut out, has_colours: true }.write_all(line.as_bytes()).unwrap();
        let shown = "\u{1b}[2mtime\u{1b}[0m \u{1b}[31mred\u{1b}[0m \\u001b[8mhidden \\u001b[2J \\u001b]0;title\\u0007 \\u001b\n";
        assert_eq!(String::from_utf8(out).unwrap(), shown);
    }

    #[test]
    fn an_error_is_logged_with_its_causes() {
        let error = shared::ports::Error::Unavailable { what: "task 1".into(), source: "AccessDeniedException".into() };
        assert_eq!(Chain(&error).to_string(), "task 1 is unavailable: AccessDeniedException");
    }
}
