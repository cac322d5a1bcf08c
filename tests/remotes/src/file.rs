//! The ledger: an append-only file with a line per change, which contains the complete rows that it changes.
//!
//! A line is passed to the operating system before its call is answered, so what was answered survives a kill; after a
//! power failure it may be missing. A mark beside the file records its length, which reveals a file that was deleted,
//! emptied or cut, and each line has a checksum. Memory holds only the place of each row's last line.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use stepwarden_guard::folder;
use stepwarden_guard::marks::{self, Unsound};

use crate::Service;
use crate::draw::{Direction, text_number};
use crate::rules::Row;

/// Name of the file in the directory given to `open`.
pub const FILE_NAME: &str = "remotes.log";
const MARK_NAME: &str = "remotes.log.mark";
const HEAD: &str = "stepwarden remotes 1\n";

/// Why the file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory or the file cannot be used.
    #[error("cannot use {}: {source}", path.display())]
    Prepare {
        /// The directory, or the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is damaged.
    #[error(
        "the file {} is damaged ({reason}): restore it, with the file beside it, from a backup; or use --accept-loss, \
         which continues with what is left and keeps a copy",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// All rows, in the order in which their keys first arrived.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The file; without one, the lines are in `held`.
    kept: Option<Kept>,
    held: Vec<u8>,
    end: u64,
    /// The last line of each row.
    lines: Vec<Place>,
    /// Positions in `lines`, by a number derived from the row's name.
    places: HashMap<u64, usize>,
    effects: u64,
}

#[derive(Debug)]
struct Kept {
    file: File,
    mark: File,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    at: u64,
    length: usize,
}

impl Ledger {
    pub(crate) fn open(dir: Option<&Path>) -> Result<Self, OpenError> {
        let mut ledger = Self::default();
        let Some(dir) = dir else { return Ok(ledger) };
        let path = dir.join(FILE_NAME);
        let prepare = |source| OpenError::Prepare { path: path.clone(), source };
        folder::create(dir).map_err(|source| OpenError::Prepare { path: dir.to_owned(), source })?;
        let end = read(dir, |place, rows| rows.iter().for_each(|row| ledger.note(place, row)));
        let end = end.map_err(|why| match why {
            Unsound::Damaged(reason) => OpenError::Damaged { path: path.clone(), reason },
            Unsound::Unusable(reason) => prepare(io::Error::other(reason)),
        })?;
        let file = folder::open(&path).map_err(prepare)?;
        file.try_lock().map_err(|_| prepare(io::Error::other("another process uses it")))?;
        // The last process was killed while writing this, so it was never answered.
        file.set_len(end).map_err(prepare)?;
        if end == 0 {
            file.write_all_at(HEAD.as_bytes(), 0).and_then(|()| file.sync_data()).map_err(prepare)?;
        }
        let mark = folder::open(&dir.join(MARK_NAME)).map_err(prepare)?;
        ledger.kept = Some(Kept { file, mark });
        ledger.end = end.max(HEAD.len() as u64);
        ledger.write_mark(marks::boot()).map_err(prepare)?;
        Ok(ledger)
    }

    pub(crate) fn get(&self, service: Service, direction: Direction, key: &str) -> io::Result<Option<Row>> {
        let Some(&place) = self.places.get(&name_number(service, direction, key)) else { return Ok(None) };
        self.read(place)
    }

    /// Records rows together.
    pub(crate) fn put(&mut self, rows: &[Row]) -> io::Result<()> {
        let line = line(rows);
        let place = Place { at: self.end, length: line.len() };
        self.append(&line)?;
        rows.iter().for_each(|row| self.note(place, row));
        Ok(())
    }

    /// Effects applied.
    pub(crate) fn effects(&self) -> u64 {
        self.effects
    }

    /// Up to `limit` matching rows with their numbers, starting after number `after`; numbers begin with 1.
    pub(crate) fn rows(
        &self,
        is_wanted: impl Fn(&Row) -> bool,
        after: usize,
        limit: usize,
    ) -> io::Result<Vec<(usize, Row)>> {
        let mut rows = Vec::new();
        for place in after..self.lines.len() {
            if rows.len() == limit {
                break;
            }
            rows.extend(self.read(place)?.filter(&is_wanted).map(|row| (place + 1, row)));
        }
        Ok(rows)
    }

    fn read(&self, place: usize) -> io::Result<Option<Row>> {
        let Place { at, length } = self.lines[place];
        let mut bytes = vec![0; length];
        match &self.kept {
            Some(kept) => kept.file.read_exact_at(&mut bytes, at)?,
            None => bytes.copy_from_slice(&self.held[at as usize..][..length]),
        }
        let rows = parse(&bytes).ok_or_else(|| io::Error::other("a line of the ledger cannot be read any more"))?;
        let is_it = |row: &Row| self.places.get(&name_of(row)) == Some(&place);
        Ok(rows.into_iter().find(is_it))
    }

    fn note(&mut self, place: Place, row: &Row) {
        let next = self.lines.len();
        let at = *self.places.entry(name_of(row)).or_insert(next);
        if at == next {
            self.lines.push(place)
        } else {
            self.lines[at] = place
        }
        self.effects = row.effects.iter().map(|effect| effect.number).fold(self.effects, u64::max);
    }

    fn append(&mut self, text: &str) -> io::Result<()> {
        match &self.kept {
            Some(kept) => {
                if let Err(error) = kept.file.write_all_at(text.as_bytes(), self.end) {
                    // On a full disk a part of it may be written.
                    kept.file.set_len(self.end)?;
                    return Err(error);
                }
            }
            None => self.held.extend_from_slice(text.as_bytes()),
        }
        self.end += text.len() as u64;
        self.write_mark(marks::boot())
    }

    /// Writes the length together with the system start that the file must outlive; zeros: any.
    fn write_mark(&self, boot: [u8; 7]) -> io::Result<()> {
        let Some(Kept { mark, .. }) = &self.kept else { return Ok(()) };
        let boot = boot.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
        mark.write_all_at(format!("{boot:014x} {:020}\n", self.end).as_bytes(), 0)
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        let synced = self.kept.as_ref().map_or(Ok(()), |kept| kept.file.sync_data());
        if let Err(error) = synced.and_then(|()| self.write_mark([0; 7])) {
            tracing::warn!("the ledger of the sample services could not be closed: {error}");
        }
    }
}

/// Checks the file in `dir` for damage, and changes nothing.
///
/// # Errors
/// [`Unsound`].
pub fn examine(dir: &Path) -> Result<(), Unsound> {
    read(dir, |_, _| {}).map(drop)
}

/// Reads the file line by line; returns where the complete lines end.
fn read(dir: &Path, mut each: impl FnMut(Place, &[Row])) -> Result<u64, Unsound> {
    let unusable = |error: io::Error| Unsound::Unusable(error.to_string());
    let damaged = |why: &str| Err(Unsound::Damaged(why.to_owned()));
    let mark = there(std::fs::read(dir.join(MARK_NAME))).map_err(unusable)?.unwrap_or_default();
    let Some((boot, marked)) = read_mark(&mark) else { return damaged("the mark of what it held cannot be read") };
    let Some(file) = there(File::open(dir.join(FILE_NAME))).map_err(unusable)? else {
        return if marked == 0 { Ok(0) } else { damaged("it is missing") };
    };
    // A power failure may have taken what was written since the system started.
    let needed = if boot == [0; 7] || boot == marks::boot() { marked } else { 0 };
    match file.metadata().map_err(unusable)?.len() {
        0 if marked > 0 => return damaged("it is empty, but it held data before"),
        found if found < needed => return damaged(&format!("only {found} of {needed} bytes are left")),
        _ => {}
    }
    let (mut lines, mut line, mut at) = (BufReader::new(file), Vec::new(), 0);
    loop {
        line.clear();
        if lines.read_until(b'\n', &mut line).map_err(unusable)? == 0 {
            return Ok(at);
        }
        let rows = if at == 0 { (line == HEAD.as_bytes()).then(Vec::new) } else { parse(&line) };
        let is_begun = !line.ends_with(b"\n") && (at > 0 || HEAD.as_bytes().starts_with(&line));
        match rows {
            Some(rows) => each(Place { at, length: line.len() }, &rows),
            None if is_begun && at >= needed => return Ok(at),
            None => return damaged(&format!("the line at byte {at} cannot be read")),
        }
        at += line.len() as u64;
    }
}

/// Continues with what is left of a damaged file in `dir`: copies the file aside, and drops lines that cannot be read.
/// Returns what was done, if anything. Errors if the file cannot be copied or changed.
pub fn accept_loss(dir: &Path) -> io::Result<Option<String>> {
    let why = match examine(dir) {
        Ok(()) => return Ok(None),
        Err(Unsound::Damaged(why)) => why,
        Err(Unsound::Unusable(why)) => return Err(io::Error::other(why)),
    };
    let path = dir.join(FILE_NAME);
    let aside = dir.join(format!("{FILE_NAME}.damaged-{}", Timestamp::now().as_second()));
    let held = there(std::fs::read(&path))?;
    let kept = match &held {
        Some(held) => {
            folder::open(&aside)?.write_all_at(held, 0)?;
            format!("; a copy is in {}", aside.display())
        }
        None => String::new(),
    };
    let mut whole = HEAD.as_bytes().to_vec();
    let lines = held.iter().flat_map(|held| held.split_inclusive(|byte| *byte == b'\n'));
    lines.filter(|line| parse(line).is_some()).for_each(|line| whole.extend_from_slice(line));
    let file = folder::open(&path)?;
    file.set_len(0)?;
    file.write_all_at(&whole, 0)?;
    file.sync_all()?;
    there(std::fs::remove_file(dir.join(MARK_NAME)))?;
    let what = if whole.len() > HEAD.len() { "the readable part of it is used" } else { "it starts empty" };
    Ok(Some(format!("{}: {why}; {what}{kept}", path.display())))
}

fn there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// The system start that the file must outlive (zeros: any), and the recorded length of the file.
fn read_mark(mark: &[u8]) -> Option<([u8; 7], u64)> {
    if mark.is_empty() {
        return Some(([0; 7], 0));
    }
    let (boot, bytes) = std::str::from_utf8(mark).ok()?.strip_suffix('\n')?.split_once(' ')?;
    let boot = u64::from_str_radix(boot, 16).ok()?.to_be_bytes();
    Some((boot[1..].try_into().ok()?, bytes.parse().ok()?))
}

/// A checksum, and the rows as JSON.
fn line(rows: &[Row]) -> String {
    let json = serde_json::to_string(rows).expect("text keys and plain values");
    format!("{:016x} {json}\n", text_number(&json))
}

fn parse(line: &[u8]) -> Option<Vec<Row>> {
    let (sum, json) = std::str::from_utf8(line).ok()?.strip_suffix('\n')?.split_once(' ')?;
    let is_whole = u64::from_str_radix(sum, 16) == Ok(text_number(json));
    serde_json::from_str(json).ok().filter(|_| is_whole)
}

fn name_of(row: &Row) -> u64 {
    name_number(row.service, row.direction, &row.key)
}

/// Stands for the name in memory: of ten million keys, two collide with a probability of one in 300,000.
fn name_number(service: Service, direction: Direction, key: &str) -> u64 {
    text_number(&format!("{service} {direction:?} {key}"))
}
