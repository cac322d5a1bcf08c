//! The data directory: who may use it, and whether its files are sound.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use stepwarden_guard::folder;
use stepwarden_guard::marks::{self, Unsound};

/// Why the endpoints were not opened. Each message is one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be created, or not be written to.
    #[error("cannot use the data directory {}: {source}", dir.display())]
    Directory {
        /// The data directory.
        dir: PathBuf,
        /// The file system's error.
        source: std::io::Error,
    },

    /// Another process holds the lock.
    #[error(
        "the data directory {} is in use by another process{}: stop it, or choose another \
         directory",
        dir.display(),
        process.as_ref().map(|id| format!(" ({id})")).unwrap_or_default()
    )]
    InUse {
        /// The data directory.
        dir: PathBuf,
        /// As in `process 4711`, if it could be read.
        process: Option<String>,
    },

    /// SQLite finds the file inconsistent, or no database at all.
    #[error(
        "the database file {} is damaged ({reason}): restore it, with the files beside it, from a backup; or use \
         --accept-loss, which continues with what is left and keeps a copy",
        file.display()
    )]
    Damaged {
        /// The database file.
        file: PathBuf,
        /// What SQLite says.
        reason: String,
    },

    /// The file was written by a later version of this program.
    #[error("the database file {} was written by a newer version of this program ({reason})", file.display())]
    Newer {
        /// The database file.
        file: PathBuf,
        /// The version, if the file names it.
        reason: String,
    },

    /// Anything else: rights, a full disk.
    #[error("cannot open the database file {}: {reason}", file.display())]
    File {
        /// The database file.
        file: PathBuf,
        /// What SQLite says.
        reason: String,
    },
}

/// How long a directory may stay locked by endpoints that were just dropped and whose last commit is in progress.
const LAST_COMMIT: Duration = Duration::from_millis(500);

/// SQLite's page size for new files, in bytes. SQLite writes whole pages, and the five writes of an order of three
/// steps change some forty pages. With the usual 4096 bytes an order wrote 189 KB to the log; with 512 bytes it writes
/// 46 KB, at the same rate.
const PAGE_BYTES: i64 = 512;

/// Creates the directory if it does not exist, and locks it for this process until the returned file is dropped.
pub(crate) fn lock_directory(dir: &Path) -> Result<Arc<File>, OpenError> {
    let unusable = |source| OpenError::Directory { dir: dir.into(), source };
    let is_new = !dir.exists();
    folder::create(dir).map_err(unusable)?;
    // SQLite syncs the files in the directory, but not the directory's entry in its parent. Only Unix can open a
    // directory.
    if is_new && cfg!(unix) {
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(unusable)?;
    }
    let mut file = folder::open(&dir.join("lock")).map_err(unusable)?;
    let mut waited = Duration::ZERO;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if waited < LAST_COMMIT => {
                let pause = Duration::from_millis(20);
                std::thread::sleep(pause);
                waited += pause;
            }
            Err(TryLockError::WouldBlock) => {
                let mut process = String::new();
                let read = file.read_to_string(&mut process).is_ok();
                let process = process.trim().to_owned();
                let process = (read && !process.is_empty()).then_some(process);
                return Err(OpenError::InUse { dir: dir.into(), process });
            }
            Err(TryLockError::Error(source)) => return Err(unusable(source)),
        }
    }
    // For the message above; nothing depends on it.
    let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| write!(file, "process {}", std::process::id()));
    Ok(Arc::new(file))
}

/// Checks the file for damage before anything is written to it.
pub(crate) fn check(file: &Path) -> Result<(), OpenError> {
    marks::check(file).map_err(|unsound| unsound_file(file, unsound))
}

fn unsound_file(file: &Path, unsound: Unsound) -> OpenError {
    let file = file.into();
    match unsound {
        Unsound::Damaged(reason) => OpenError::Damaged { file, reason },
        Unsound::Unusable(reason) => OpenError::File { file, reason },
    }
}

/// Compares the rows of the tables with the indexes of their keys, which SQLite's `quick_check` leaves out, and writes the
/// indexes anew if they differ. Through a wrong index, a put would replace another item.
///
/// After a clean end the mark has vouched for every byte. A file that is not read through at start is not compared either.
pub(crate) fn mend_indexes(tables: &Path) -> Result<(), OpenError> {
    if tables.metadata().map_or(0, |found| found.len()) > marks::READ_MAX_BYTES {
        return Ok(());
    }
    let mend = || -> rusqlite::Result<()> {
        let connection = Connection::open(tables)?;
        let verdict: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        if verdict != "ok" {
            let (file, verdict) = (tables.display(), marks::one_line(&verdict));
            tracing::error!(
                "{file} is damaged: an index differs from its rows ({verdict}). It is written anew from them"
            );
            // Without a log: the mark knows the one before.
            connection.execute_batch("PRAGMA journal_mode = DELETE; REINDEX; PRAGMA journal_mode = WAL")?;
        }
        Ok(())
    };
    mend().map_err(|error| of_sqlite(tables, &error))
}

/// Creates the file if it does not exist, because its page size can be set only then. An existing file keeps its page
/// size.
pub(crate) fn create(file: &Path) -> Result<(), OpenError> {
    let private = |error: std::io::Error| OpenError::File { file: file.into(), reason: error.to_string() };
    if file.metadata().is_ok_and(|metadata| metadata.len() > 0) {
        // Files of an older version may be readable by others.
        let all = ["", "-wal", "-shm"].map(|end| marks::beside(file, end));
        return all.iter().try_for_each(|file| folder::keep_private(file)).map_err(private);
    }
    drop(folder::open(file).map_err(private)?);
    let create = || {
        let connection = Connection::open(file)?;
        connection.pragma_update(None, "page_size", PAGE_BYTES)?;
        connection.pragma_update(None, "journal_mode", "WAL")
    };
    create().map_err(|error| of_sqlite(file, &error))
}

pub(crate) fn of_sqlite(file: &Path, error: &rusqlite::Error) -> OpenError {
    unsound_file(file, marks::of_sqlite(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pragma(connection: &Connection, name: &str) -> i64 {
        connection.pragma_query_value(None, name, |row| row.get(0)).unwrap()
    }

    // They decide how much an order writes to disk, how often SQLite syncs, and how much it reads again.
    #[test]
    fn sqlite_has_its_settings_and_old_files_keep_their_page_size() {
        let dir = tempfile::tempdir().unwrap();
        let (new, old) = (dir.path().join("new.db"), dir.path().join("old.db"));
        Connection::open(&old).unwrap().execute_batch("PRAGMA page_size = 4096; CREATE TABLE t (a)").unwrap();
        for (file, bytes) in [(&new, PAGE_BYTES), (&old, 4096)] {
            create(file).unwrap();
            check(file).unwrap();
            let connection = Connection::open(file).unwrap();
            connection.execute_batch("CREATE TABLE IF NOT EXISTS u (a)").unwrap();
            assert_eq!(pragma(&connection, "page_size"), bytes);
        }
        let connection = Connection::open(new).unwrap();
        connection.execute_batch("CREATE TABLE v (a)").unwrap();
        let set = ["wal_autocheckpoint", "synchronous", "cache_size"].map(|name| pragma(&connection, name));
        assert_eq!(set, [16_000, 1, -8_000], "set in .cargo/config.toml");
    }
}
