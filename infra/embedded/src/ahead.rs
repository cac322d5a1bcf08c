//! Room for SQLite's log before it is written.
//!
//! When a file has grown, its fsync also writes the file system's journal: with ext4 some 20 KB and a second flush of
//! the disk for a commit of 3 KB. A log is only written over once it has reached its full length, so it is given zeros in
//! advance, in steps. SQLite's log ends at the first frame that is not valid, as zeros are not.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use stepwarden_guard::marks;

use crate::Durability;

/// Bytes of one step.
const STEP_BYTES: u64 = 512 * 1024;
/// Less room than this is too little: a group of commits writes some tens of kilobytes.
const LEAST_BYTES: u64 = 128 * 1024;
/// Frames of a full log of tables, as set in `.cargo/config.toml`.
pub(crate) const FRAMES: u64 = 16_000;
/// Bytes of the log before its frames, and of a frame before its page ("WAL-mode File Format", sections 1 and 2).
const HEAD_BYTES: u64 = 32;
const FRAME_HEAD_BYTES: u64 = 24;

/// A log that is made longer before it is full.
pub(crate) struct Ahead {
    log: File,
    /// How many frames it has when it is full.
    frames: u64,
    /// Bytes that it has at least. Asking for them at each commit would cost a write: Linux gives a file whose times were read
    /// an exact time at its next change, and then each sync writes the file's metadata too (`fs/inode.c`, multigrain timestamps).
    length: u64,
}

impl Ahead {
    /// The log in the file `log`. `None` if nothing is synced, or the file cannot be opened: then it grows with each commit.
    pub fn of(durability: Durability, log: &Path, frames: u64) -> Option<Self> {
        // Appending cannot overwrite anything, whatever else happens to the file.
        let open = || Some(Self { log: OpenOptions::new().append(true).open(log).ok()?, frames, length: 0 });
        match durability {
            Durability::Full => open(),
            Durability::Process => None,
        }
    }

    /// Makes room for what is written after `head`. The next sync makes it last. A disk that is full is SQLite's to
    /// report.
    pub fn reserve(&mut self, head: Option<[u8; marks::HEAD]>) {
        let Some(head) = head else { return };
        let frame = FRAME_HEAD_BYTES + u64::from(marks::page_bytes(&head));
        let used = HEAD_BYTES + u64::from(marks::frames(&head)) * frame;
        let full = HEAD_BYTES + self.frames * frame;
        if self.length >= full.min(used + LEAST_BYTES) {
            return;
        }
        let Ok(found) = self.log.metadata() else { return };
        self.length = found.len();
        if self.length < full.min(used + LEAST_BYTES) {
            let zeros = vec![0; STEP_BYTES.min(full - self.length) as usize];
            if self.log.write_all(&zeros).is_ok() {
                self.length += zeros.len() as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::Connection;
    use stepwarden_guard::marks::Marked;

    // The log is longer than what is in it, nothing is lost when it is read again after a kill, and it does not grow
    // without bound.
    #[test]
    fn what_is_in_a_log_with_room_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let (db, log) = (dir.path().join("a.db"), dir.path().join("a.db-wal"));
        let connection = Connection::open(&db).unwrap();
        connection.pragma_update(None, "page_size", 512).unwrap();
        connection.pragma_update(None, "journal_mode", "WAL").unwrap();
        connection.execute_batch("CREATE TABLE t (n INTEGER PRIMARY KEY, text)").unwrap();
        let marked = Marked::open(connection, &db, Durability::Full).unwrap();
        let mut ahead = Ahead::of(Durability::Full, &log, FRAMES).unwrap();
        let mut grown = 0;
        for n in 0..400 {
            marked.execute("INSERT INTO t VALUES (?1, ?2)", (n, "x".repeat(3000))).unwrap();
            let before = log.metadata().unwrap().len();
            ahead.reserve(marked.head());
            marked.note(marked.head());
            let after = log.metadata().unwrap().len();
            grown += u32::from(after > before);
            assert!(after >= HEAD_BYTES + u64::from(marks::frames(&marked.head().unwrap())) * 536 + LEAST_BYTES);
        }
        assert!((2..=8).contains(&grown), "{grown} steps");
        // As after a kill: the files as they are, without a clean end.
        let copy = dir.path().join("copy");
        std::fs::create_dir(&copy).unwrap();
        for name in ["a.db", "a.db-wal", "a.mark"] {
            std::fs::copy(dir.path().join(name), copy.join(name)).unwrap();
        }
        let db = copy.join("a.db");
        marks::check(&db).unwrap();
        let again = Connection::open(&db).unwrap();
        let found: (i64, i64) = again
            .query_row("SELECT count(*), sum(length(text)) FROM t", [], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap();
        assert_eq!(found, (400, 400 * 3000));
        // A full log is long enough.
        let mut full = marked.head().unwrap();
        full[16..20].copy_from_slice(&u32::MAX.to_ne_bytes());
        for _ in 0..100 {
            ahead.reserve(Some(full));
        }
        assert_eq!(log.metadata().unwrap().len(), HEAD_BYTES + FRAMES * 536);
    }
}
