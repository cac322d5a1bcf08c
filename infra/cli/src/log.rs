//! The log of a long-running program on standard error. Its reader may be slow, suspended or gone (`up 2>&1 | less`),
//! and no order waits for it.
//!
//! A thread writes waiting lines. Lines beyond its capacity are dropped, and counted in the log once it continues.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// Maximum number of waiting lines: a few seconds of a busy system, and a few megabytes.
const MOST: usize = 8192;
/// How long the last lines may take when the program ends.
const LAST_LINES: Duration = Duration::from_millis(500);

enum Item {
    Line(Vec<u8>),
    /// Answered when everything before it is written.
    End(SyncSender<()>),
}

/// A writer of whole lines that never waits.
#[derive(Clone)]
pub struct Log {
    lines: SyncSender<Item>,
    left_out: Arc<AtomicUsize>,
}

impl Log {
    /// Starts the thread, which writes to `out`.
    pub fn start(out: impl Write + Send + 'static) -> Self {
        let (lines, waiting) = sync_channel(MOST);
        let left_out = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&left_out);
        std::thread::Builder::new()
            .name("log".into())
            .spawn(move || work(out, &waiting, &counted))
            .expect("a thread can be started");
        Self { lines, left_out }
    }

    /// Waits until what was logged is written, for a moment at most.
    pub fn finish(&self) {
        let (written, end) = sync_channel(1);
        if self.lines.try_send(Item::End(written)).is_ok() {
            let _ = end.recv_timeout(LAST_LINES);
        }
    }
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self.lines.try_send(Item::Line(line.to_vec())) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.left_out.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What cannot be written is lost: there is nowhere to say so.
fn work(mut out: impl Write, waiting: &Receiver<Item>, left_out: &AtomicUsize) {
    for item in waiting {
        match item {
            Item::Line(line) => {
                let lost = left_out.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    let _ = writeln!(out, "{lost} log lines were dropped because the reader was too slow");
                }
                let _ = out.write_all(&line);
            }
            Item::End(written) => {
                let _ = out.flush();
                let _ = written.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, mpsc};

    /// A reader that has to be woken for each line.
    struct Sleeper(mpsc::Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl Write for Sleeper {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.lock().unwrap().write(line)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_left_out_and_counted_while_the_reader_sleeps() {
        let (wake, sleeps) = mpsc::channel();
        let written: Arc<Mutex<Vec<u8>>> = Arc::default();
        let mut log = Log::start(Sleeper(sleeps, Arc::clone(&written)));
        for n in 0..MOST + 100 {
            log.write_all(format!("line {n}\n").as_bytes()).unwrap();
        }
        log.finish();
        drop(wake);
        while !String::from_utf8_lossy(&written.lock().unwrap()).contains(&format!("line {}\n", MOST - 1)) {
            std::thread::yield_now();
        }
        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        let lost: usize = text
            .lines()
            .find_map(|line| line.strip_suffix(" log lines were dropped because the reader was too slow")?.parse().ok())
            .unwrap();
        let kept = (0..MOST + 100).filter(|n| text.contains(&format!("line {n}\n"))).count();
        assert_eq!(kept + lost, MOST + 100, "every line is written or counted");
    }
}
