//! Detects whether a SQLite database has lost content: a mark beside it records what it contained.
//!
//! SQLite ends its log at the first frame with a wrong checksum and treats everything after it as never written: after
//! a kill, one flipped bit silently took 88 of 120 finished orders. A file that was deleted or emptied is a new one to
//! it. So each commit records how far the log has got (a copy of the head that SQLite keeps in its index of the log),
//! and a clean end records a hash of the database. Less than recorded is damage, and is reported before any write.
//!
//! | the program ended | what is checked |
//! |---|---|
//! | cleanly | the database is the one that was left |
//! | by a kill or a power failure | the log holds every recorded frame, by its checksums; SQLite's `quick_check` |
//!
//! If writes survive a kill but not a power failure, the log may be shorter than recorded after a system restart.
//! A mark's change of state is synced before the database changes, so a power failure leaves no mark of another end.
//!
//! Not detected: after a kill, a flipped bit in the text of a row that no checkpoint has touched since, or in an index, which
//! `quick_check` does not compare with its table. Whoever opens the database can.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rusqlite::{Connection, OpenFlags};

use crate::folder;

/// Larger databases are not read through at start and at the end: that takes about a second per gigabyte.
pub const READ_MAX_BYTES: u64 = 256 * 1024 * 1024;

/// A flipped bit looks the same as a write by a program without marks, so a person must tell them apart.
const CHANGED: &str =
    "it differs from what was last written; nothing is lost if an older version, which keeps no mark, has used it";
const MAGIC: &[u8; 8] = b"swmark\x001";
/// Magic, state and boot, head of the log, bytes and hash of the database, and a hash of all of these.
const BYTES: usize = 8 + 8 + 48 + 8 + 8 + 8;
/// Bytes of the head of SQLite's index of its log ("WAL-mode File Format", section 2.1); there are two copies.
pub const HEAD: usize = 48;

/// Why a database is not as it was left, in words for its user.
#[derive(Debug, thiserror::Error)]
pub enum Unsound {
    /// It has lost something.
    #[error("{0}")]
    Damaged(String),
    /// It cannot be opened, for a reason of the operating system.
    #[error("{0}")]
    Unusable(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// In use, or killed.
    Open = 1,
    /// About to be closed: SQLite may have moved the log into the database and deleted it.
    Closing = 2,
    /// Closed cleanly.
    Closed = 3,
}

struct Note {
    state: State,
    /// When the system started, if writes survive its processes' kills but not its own end; else zeros.
    boot: [u8; 7],
    head: [u8; HEAD],
    bytes: u64,
    hash: u64,
}

impl Note {
    fn encode(&self) -> [u8; BYTES] {
        let mut all = [0; BYTES];
        all[..8].copy_from_slice(MAGIC);
        all[8] = self.state as u8;
        all[9..16].copy_from_slice(&self.boot);
        all[16..64].copy_from_slice(&self.head);
        all[64..72].copy_from_slice(&self.bytes.to_le_bytes());
        all[72..80].copy_from_slice(&self.hash.to_le_bytes());
        let check = fnv(FNV, &all[..80]);
        all[80..].copy_from_slice(&check.to_le_bytes());
        all
    }

    fn decode(all: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(all.get(at..at + 8)?.try_into().ok()?));
        if all.len() != BYTES || &all[..8] != MAGIC || number(80)? != fnv(FNV, &all[..80]) {
            return None;
        }
        let state = [State::Open, State::Closing, State::Closed].into_iter().find(|state| *state as u8 == all[8])?;
        Some(Self {
            state,
            boot: all[9..16].try_into().ok()?,
            head: all[16..64].try_into().ok()?,
            bytes: number(64)?,
            hash: number(72)?,
        })
    }
}

/// Frames of the log, by its head.
#[must_use]
pub fn frames(head: &[u8; HEAD]) -> u32 {
    u32::from_ne_bytes(head[16..20].try_into().expect("four bytes"))
}

/// Bytes of a page, by the head of the log.
#[must_use]
pub fn page_bytes(head: &[u8; HEAD]) -> u32 {
    // The largest one does not fit into its field.
    match u16::from_ne_bytes(head[14..16].try_into().expect("two bytes")) {
        1 => 65_536,
        bytes => bytes.into(),
    }
}

/// Path of the mark of the database `db`. It does not begin with the database's name: deleting `queues.db*` does not
/// say that the database is meant to be empty.
#[must_use]
pub fn file_of(db: &Path) -> PathBuf {
    db.with_extension("mark")
}

/// A file that SQLite keeps beside `db`, such as its log at the `end` `-wal`.
#[must_use]
pub fn beside(db: &Path, end: &str) -> PathBuf {
    let mut name = db.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// Checks for damage, and changes nothing.
///
/// # Errors
/// [`Unsound`].
pub fn examine(db: &Path) -> Result<(), Unsound> {
    let unusable = |error: io::Error| Unsound::Unusable(error.to_string());
    let damaged = |why: &str| Err(Unsound::Damaged(why.into()));
    let mark = match std::fs::read(file_of(db)) {
        Ok(mark) => mark,
        // The database of an older version, or one restored without its mark.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unusable(error)),
    };
    match db.metadata() {
        Ok(found) if found.len() > 0 => {}
        Ok(_) => return damaged("it is empty, but it held data before"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return damaged("it is missing"),
        Err(error) => return Err(unusable(error)),
    }
    // Created, but the process or the machine ended, or the disk was full, before the first write to it.
    if mark.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    let Some(note) = Note::decode(&mark) else {
        return damaged("the mark of what it held cannot be read");
    };
    match note.state {
        State::Closed => {
            let is_read = note.bytes <= READ_MAX_BYTES;
            let found = if is_read { hash_of(db) } else { db.metadata().map(|found| (found.len(), note.hash)) };
            if found.map_err(unusable)? == (note.bytes, note.hash) { Ok(()) } else { damaged(CHANGED) }
        }
        State::Open | State::Closing if frames(&note.head) == 0 => Ok(()),
        // The system was restarted since, and these writes need not survive that.
        State::Open | State::Closing if note.boot != [0; 7] && note.boot != boot() => Ok(()),
        State::Open | State::Closing => {
            let log = beside(db, "-wal");
            let is_gone = log.metadata().map_or(0, |found| found.len()) == 0;
            if is_gone && note.state == State::Closing {
                Ok(())
            } else {
                log_holds(&log, &note).map_err(unusable)?.map_or(Ok(()), |why| damaged(&why))
            }
        }
    }
}

/// Why the log lacks frames that were recorded, if it does. "WAL-mode File Format", sections 1.2 to 1.4.
fn log_holds(log: &Path, note: &Note) -> io::Result<Option<String>> {
    let frames = frames(&note.head);
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
    let lost = |found: u32| {
        Some(format!(
            "only {found} of the {frames} pages in its log ({}) can be read; what was written after them would be lost",
            log.display()
        ))
    };
    let mut file = match File::open(log) {
        Ok(file) => io::BufReader::new(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Some(format!(
                "its log ({}) is missing; its {frames} pages are lost, unless another program has opened the database since",
                log.display()
            )));
        }
        Err(error) => return Err(error),
    };
    let mut head = [0; 32];
    let big_endian = match file.read_exact(&mut head) {
        Ok(()) => number(&head[..4]) & 1 == 1,
        Err(_) => return Ok(lost(0)),
    };
    let mut sums = checksum((0, 0), &head[..24], big_endian);
    if !is_sum(&head[24..], sums) {
        return Ok(lost(0));
    }
    if head[16..24] != note.head[32..40] {
        // The first salt rises by one each time the log restarts, once the database contains all of it.
        let later = number(&head[16..20]).wrapping_sub(number(&note.head[32..36]));
        return Ok(if (1..1000).contains(&later) { None } else { lost(0) });
    }
    let page = number(&head[8..12]) as usize;
    let mut frame = vec![0; 24 + page];
    for found in 0..frames {
        if file.read_exact(&mut frame).is_err() || frame[8..16] != head[16..24] {
            return Ok(lost(found));
        }
        sums = checksum(checksum(sums, &frame[..8], big_endian), &frame[24..], big_endian);
        if !is_sum(&frame[16..24], sums) {
            return Ok(lost(found));
        }
    }
    Ok(None)
}

fn checksum((mut a, mut b): (u32, u32), bytes: &[u8], big_endian: bool) -> (u32, u32) {
    let number = |word: &[u8]| {
        let word = word.try_into().expect("four bytes");
        if big_endian { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
    };
    for pair in bytes.chunks_exact(8) {
        a = a.wrapping_add(number(&pair[..4])).wrapping_add(b);
        b = b.wrapping_add(number(&pair[4..])).wrapping_add(a);
    }
    (a, b)
}

fn is_sum(stored: &[u8], (a, b): (u32, u32)) -> bool {
    stored[..4] == a.to_be_bytes() && stored[4..8] == b.to_be_bytes()
}

/// Checks for damage before anything is written: by the mark, then by SQLite.
///
/// # Errors
/// [`Unsound`].
pub fn check(db: &Path) -> Result<(), Unsound> {
    examine(db)?;
    if db.metadata().map_or(0, |found| found.len()) == 0 {
        return Ok(());
    }
    // SQLite takes the log in and deletes it, as after a clean end.
    closing(db).map_err(|error| Unsound::Unusable(error.to_string()))?;
    quick_check(db)
}

/// Whether the last process that had `db` open ended without closing it. Call this before [`check`].
#[must_use]
pub fn was_killed(db: &Path) -> bool {
    last_note(db).is_some_and(|note| note.state != State::Closed)
}

/// Whether the last process that had `db` open closed it, and left a mark. Call this before [`check`].
#[must_use]
pub fn was_closed(db: &Path) -> bool {
    last_note(db).is_some_and(|note| note.state == State::Closed)
}

/// `None` if there is no mark or it cannot be read, which [`examine`] reports.
fn last_note(db: &Path) -> Option<Note> {
    Note::decode(&std::fs::read(file_of(db)).ok()?)
}

fn closing(db: &Path) -> io::Result<()> {
    let Some(note) = last_note(db).filter(|note| note.state == State::Open) else { return Ok(()) };
    let mark = File::options().write(true).open(file_of(db))?;
    mark.write_all_at(&Note { state: State::Closing, ..note }.encode(), 0)?;
    mark.sync_data()
}

/// SQLite's `quick_check`, for files that are not too large for it.
///
/// # Errors
/// [`Unsound`].
pub fn quick_check(db: &Path) -> Result<(), Unsound> {
    // Writable, because a log left by a crash is taken in on opening.
    let connection = Connection::open_with_flags(db, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(|e| of_sqlite(&e))?;
    if db.metadata().map_or(0, |found| found.len()) > READ_MAX_BYTES {
        return connection
            .query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))
            .map_err(|error| of_sqlite(&error));
    }
    let verdict: String =
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(|error| of_sqlite(&error))?;
    let verdict = one_line(&verdict);
    if verdict == "ok" { Ok(()) } else { Err(Unsound::Damaged(verdict)) }
}

/// What an error of SQLite says about its database.
#[must_use]
pub fn of_sqlite(error: &rusqlite::Error) -> Unsound {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    let reason = one_line(&error.to_string());
    match error.sqlite_error_code() {
        Some(DatabaseCorrupt | NotADatabase) => Unsound::Damaged(reason),
        _ if matches!(error, rusqlite::Error::FromSqlConversionFailure(..)) => Unsound::Damaged(reason),
        _ => Unsound::Unusable(reason),
    }
}

/// A message on one line.
#[must_use]
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Continues with what is left of a damaged database: copies its files aside, and removes what SQLite cannot use.
/// Returns what was done, if anything.
///
/// # Errors
/// The operating system's.
pub fn accept_loss(db: &Path, now_s: u64) -> io::Result<Option<String>> {
    let why = match check(db) {
        Ok(()) => return Ok(None),
        Err(Unsound::Damaged(why)) => why,
        Err(Unsound::Unusable(why)) => return Err(io::Error::other(why)),
    };
    let mut kept = Vec::new();
    for end in ["", "-wal"] {
        let (from, to) = (beside(db, end), beside(db, &format!("{end}.damaged-{now_s}")));
        match std::fs::copy(&from, &to) {
            Ok(_) => {
                // A file of an older version may be readable by others, and so would its copy be.
                folder::keep_private(&to)?;
                kept.push(to.display().to_string());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    // The mark held the content found at that time; from now on the content is what SQLite reads.
    remove(&file_of(db))?;
    let is_usable = db.metadata().is_ok_and(|found| found.len() > 0) && quick_check(db).is_ok();
    if !is_usable {
        for end in ["", "-wal", "-shm"] {
            remove(&beside(db, end))?;
        }
    }
    let what = if is_usable { "the readable part of it is used" } else { "it starts empty" };
    let kept = if kept.is_empty() { String::new() } else { format!("; a copy is in {}", kept.join(" and ")) };
    Ok(Some(format!("{}: {why}; {what}{kept}", db.display())))
}

fn remove(file: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

const FNV: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a: detects every single wrong byte.
fn fnv(mut hash: u64, bytes: &[u8]) -> u64 {
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash
}

fn hash_of(db: &Path) -> io::Result<(u64, u64)> {
    let mut file = File::open(db)?;
    let (mut bytes, mut hash, mut part) = (0, FNV, vec![0; 64 * 1024]);
    loop {
        match file.read(&mut part)? {
            0 => return Ok((bytes, hash)),
            n => (bytes, hash) = (bytes + n as u64, fnv(hash, &part[..n])),
        }
    }
}

/// What a write answered with success survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The end of the process, such as `kill -9`, but not a power failure: no fsync before an answer. After a power
    /// failure, less than was recorded is no damage.
    Process,
    /// A power failure: fsync before an answer.
    #[default]
    Full,
}

/// Identifies this start of the system; zeros if the system does not say.
#[must_use]
pub fn boot() -> [u8; 7] {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hash = if id.is_empty() { 0 } else { fnv(FNV, &id) };
    hash.to_le_bytes()[..7].try_into().expect("seven of eight")
}

/// An open database with its mark: closes the database first, then records it as closed.
pub struct Marked<C> {
    database: Option<C>,
    mark: Option<Mark>,
}

impl<C> Marked<C> {
    /// A database that is kept in memory only.
    pub fn memory(database: C) -> Self {
        Self { database: Some(database), mark: None }
    }

    /// The database in the file `db`, just opened.
    ///
    /// # Errors
    /// The mark cannot be written.
    pub fn open(database: C, db: &Path, durability: Durability) -> io::Result<Self> {
        let file = folder::open(&file_of(db))?;
        let boot = match durability {
            Durability::Full => [0; 7],
            Durability::Process => boot(),
        };
        let mark = Mark { db: db.to_owned(), file, boot, index: OnceLock::new() };
        // Of the log's content from an earlier run, only what was recorded then is known: SQLite has now read it.
        mark.write(State::Open, &mark.head().unwrap_or([0; HEAD]), (0, 0))?;
        // Otherwise a power failure could leave the mark of the last clean end beside a changed database.
        mark.file.sync_all()?;
        Ok(Self { database: Some(database), mark: Some(mark) })
    }

    /// How far the log has got; record this with [`Marked::note`] once it is durable.
    pub fn head(&self) -> Option<[u8; HEAD]> {
        self.mark.as_ref()?.head()
    }

    /// Records how far the log has got. The operating system has the record afterwards, so it survives a kill. After a
    /// power failure the previous record may remain, which is never more than the log contains.
    pub fn note(&self, head: Option<[u8; HEAD]>) {
        if let (Some(mark), Some(head)) = (&self.mark, head)
            && let Err(error) = mark.write(State::Open, &head, (0, 0))
        {
            tracing::warn!("the mark of {} could not be written: {error}", mark.db.display());
        }
    }
}

impl<C> Deref for Marked<C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.database.as_ref().expect("it is there until it is dropped")
    }
}

impl<C> std::ops::DerefMut for Marked<C> {
    fn deref_mut(&mut self) -> &mut C {
        self.database.as_mut().expect("it is there until it is dropped")
    }
}

impl<C> Drop for Marked<C> {
    fn drop(&mut self) {
        let Some(mark) = self.mark.take() else { return };
        let Mark { db, file, index, .. } = &mark;
        let head = index.get().and_then(|index| read_head(index.as_ref()?)).unwrap_or([0; HEAD]);
        let closed = mark.write(State::Closing, &head, (0, 0)).and_then(|()| file.sync_data()).and_then(|()| {
            // The index stays open until then: closing a file of this process ends SQLite's locks on it (POSIX).
            drop(self.database.take());
            if beside(db, "-wal").exists() {
                return Ok(());
            }
            let bytes = db.metadata()?.len();
            let hashed = if bytes > READ_MAX_BYTES { (bytes, 0) } else { hash_of(db)? };
            mark.write(State::Closed, &[0; HEAD], hashed)
        });
        if let Err(error) = closed {
            tracing::warn!("the mark of {} could not be written: {error}", db.display());
        }
    }
}

struct Mark {
    db: PathBuf,
    file: File,
    boot: [u8; 7],
    /// SQLite's index of the log, opened once and kept open.
    index: OnceLock<Option<File>>,
}

impl Mark {
    fn head(&self) -> Option<[u8; HEAD]> {
        read_head(self.index.get_or_init(|| File::open(beside(&self.db, "-shm")).ok()).as_ref()?)
    }

    fn write(&self, state: State, head: &[u8; HEAD], (bytes, hash): (u64, u64)) -> io::Result<()> {
        self.file.write_all_at(&Note { state, boot: self.boot, head: *head, bytes, hash }.encode(), 0)
    }
}

/// Both copies are equal, or a write is in progress, which will record the head itself.
fn read_head(index: &File) -> Option<[u8; HEAD]> {
    let mut both = [0; 2 * HEAD];
    index.read_exact_at(&mut both, 0).ok()?;
    let is_settled = both[..HEAD] == both[HEAD..] && both[12] == 1;
    is_settled.then(|| both[..HEAD].try_into().expect("its length"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // A file that is not read through must at least have its length.
    #[test]
    fn a_large_database_that_was_cut_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("x.db");
        let bytes = READ_MAX_BYTES + 4096;
        let file = File::create(&db).unwrap();
        file.set_len(bytes).unwrap();
        let note = Note { state: State::Closed, boot: [0; 7], head: [0; HEAD], bytes, hash: 0 };
        std::fs::write(file_of(&db), note.encode()).unwrap();
        examine(&db).unwrap();
        file.set_len(bytes - 4096).unwrap();
        assert!(matches!(examine(&db), Err(Unsound::Damaged(_))));
    }
}
