//! The SQLite file and its one thread: gathers the jobs that wait, commits them together, then answers them.
//!
//! A job's answer leaves only after its commit, so what was answered survives a kill. In `:memory:` the same
//! code runs without a file.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use stepwarden_guard::folder;
use stepwarden_guard::marks::{self, Marked, Survives, Unsound};
use tokio::sync::oneshot;

/// Name of the file in the directory given to `open`.
pub const FILE_NAME: &str = "remotes.db";

/// Jobs in one transaction at most: enough to share a commit, few enough that the first does not wait long.
const BATCH_MAX: usize = 512;

/// Jobs that may wait; past it a call is answered 503, as a busy service would.
const QUEUE_MAX: usize = 8_192;

/// How long to wait for another process, such as a killed predecessor, to let go of the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// What a commit outlives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A killed process (`synchronous=NORMAL`), not a power cut.
    #[default]
    Process,
    /// A power cut too (`synchronous=FULL`): a disk flush per commit.
    Power,
}

/// Why the file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory could not be made, or the thread not started.
    #[error("preparing `{path}`")]
    Prepare {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not what it was.
    #[error("`{path}` is damaged: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// SQLite refused the file.
    #[error("opening `{path}`")]
    Sqlite {
        /// The file, or `:memory:`.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
}

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// More than [`QUEUE_MAX`] jobs wait.
    #[error("too many calls wait for the database")]
    Busy,
    /// The job failed, and with it nothing of it was recorded.
    #[error("the database refused the call")]
    Sqlite(#[from] rusqlite::Error),
    /// The batch could not be committed: nothing of it was recorded.
    #[error("the database could not commit: {0}")]
    Commit(String),
    /// The database thread has ended.
    #[error("the database is closed")]
    Closed,
}

type Settle = Box<dyn FnOnce(Result<(), Error>) + Send>;
/// Run inside the batch's transaction; without a connection when none could be begun.
type Job = Box<dyn FnOnce(Option<&Connection>) -> Settle + Send>;

/// The handle to the thread. Dropping it ends the thread after the jobs that wait.
#[derive(Debug)]
pub(crate) struct Db {
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Db {
    /// Opens `dir/remotes.db`, or a database in memory.
    pub(crate) fn open(dir: Option<&Path>, durability: Durability) -> Result<Self, OpenError> {
        let file = match dir {
            Some(dir) => {
                folder::create(dir).map_err(|source| OpenError::Prepare { path: dir.to_owned(), source })?;
                let file = dir.join(FILE_NAME);
                marks::check(&file).map_err(|unsound| match unsound {
                    Unsound::Damaged(reason) => OpenError::Damaged { path: file.clone(), reason },
                    Unsound::Unusable(reason) => {
                        OpenError::Prepare { path: file.clone(), source: std::io::Error::other(reason) }
                    }
                })?;
                for end in ["-wal", "-shm"] {
                    let beside = dir.join(format!("{FILE_NAME}{end}"));
                    folder::keep_private(&beside)
                        .map_err(|source| OpenError::Prepare { path: beside.clone(), source })?;
                }
                drop(folder::open(&file).map_err(|source| OpenError::Prepare { path: file.clone(), source })?);
                file
            }
            None => PathBuf::from(":memory:"),
        };
        let conn = connect(&file, durability).map_err(|source| OpenError::Sqlite { path: file.clone(), source })?;
        let survives = match durability {
            Durability::Process => Survives::Kills,
            Durability::Power => Survives::Power,
        };
        let conn = match dir {
            Some(_) => Marked::open(conn, &file, survives)
                .map_err(|source| OpenError::Prepare { path: file.clone(), source })?,
            None => Marked::memory(conn),
        };
        let (jobs, waiting) = mpsc::sync_channel(QUEUE_MAX);
        let thread = std::thread::Builder::new()
            .name("remotes-db".to_owned())
            .spawn(move || work(&conn, &waiting))
            .map_err(|source| OpenError::Prepare { path: file, source })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Runs `work` in a transaction and returns its result after the commit. Carried out even when the
    /// returned future is dropped. Errors as [`Error`] says; nothing of it is recorded then.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let job = job(work, move |result| drop(reply.send(result)));
        match self.sender()?.try_send(job) {
            Ok(()) => answer.await.map_err(|_| Error::Closed)?,
            Err(TrySendError::Full(_)) => Err(Error::Busy),
            Err(TrySendError::Disconnected(_)) => Err(Error::Closed),
        }
    }

    /// As [`Db::run`], blocking the calling thread until then.
    pub(crate) fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answer) = mpsc::sync_channel(1);
        let job = job(work, move |result| drop(reply.send(result)));
        self.sender()?.send(job).map_err(|_| Error::Closed)?;
        answer.recv().map_err(|_| Error::Closed)?
    }

    fn sender(&self) -> Result<&SyncSender<Job>, Error> {
        self.jobs.as_ref().ok_or(Error::Closed)
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It can only have panicked, which its own thread has reported.
            let _ = thread.join();
        }
    }
}

fn connect(file: &Path, durability: Durability) -> rusqlite::Result<Connection> {
    let conn = Connection::open(file)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(64);
    conn.query_row("PRAGMA journal_mode=WAL", [], |_| Ok(()))?;
    conn.execute_batch(match durability {
        Durability::Process => "PRAGMA synchronous=NORMAL",
        Durability::Power => "PRAGMA synchronous=FULL",
    })?;
    conn.execute_batch(include_str!("schema.sql"))?;
    Ok(conn)
}

fn job<T: Send + 'static>(
    work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    reply: impl FnOnce(Result<T, Error>) + Send + 'static,
) -> Job {
    Box::new(move |conn| {
        let result = conn.map(|conn| in_savepoint(conn, work));
        Box::new(move |committed| {
            reply(committed.and_then(|()| match result {
                Some(result) => result.map_err(Error::from),
                None => Err(Error::Commit("no transaction was begun".to_owned())),
            }));
        })
    })
}

/// A job that fails half way leaves nothing in the batch it shares.
fn in_savepoint<T>(conn: &Connection, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let run = |sql: &str| conn.prepare_cached(sql)?.execute([]);
    run("SAVEPOINT job")?;
    match work(conn) {
        Ok(value) => run("RELEASE job").map(|_| value),
        Err(err) => {
            run("ROLLBACK TO job")?;
            run("RELEASE job")?;
            Err(err)
        }
    }
}

fn work(conn: &Marked<Connection>, waiting: &Receiver<Job>) {
    while let Ok(first) = waiting.recv() {
        let mut batch = vec![first];
        batch.extend(waiting.try_iter().take(BATCH_MAX - 1));
        let (settles, committed) = commit(conn, batch);
        conn.note(conn.head());
        for settle in settles {
            settle(match &committed {
                Ok(()) => Ok(()),
                Err(err) => Err(Error::Commit(err.to_string())),
            });
        }
    }
}

fn commit(conn: &Connection, batch: Vec<Job>) -> (Vec<Settle>, rusqlite::Result<()>) {
    if let Err(err) = conn.execute_batch("BEGIN IMMEDIATE") {
        return (batch.into_iter().map(|job| job(None)).collect(), Err(err));
    }
    let settles = batch.into_iter().map(|job| job(Some(conn))).collect();
    let committed = conn.execute_batch("COMMIT");
    if committed.is_err() && !conn.is_autocommit() {
        // Nothing can be done about a failing rollback: the next BEGIN fails and says so.
        let _ = conn.execute_batch("ROLLBACK");
    }
    (settles, committed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INSERT: &str = "INSERT INTO effects (service, order_id, key, reference, applied_at)
        VALUES ('payment', 'o', 'k', 'r', 0)";

    fn effects(conn: &Connection) -> i64 {
        conn.query_row("SELECT count(*) FROM effects", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn an_answer_leaves_after_its_commit() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(Some(dir.path()), Durability::Process).unwrap();
        let other = Connection::open(dir.path().join(FILE_NAME)).unwrap();
        for n in 1..=300 {
            db.run_blocking(|conn| conn.execute(INSERT, [])).unwrap();
            assert_eq!(effects(&other), n);
        }
    }

    #[test]
    fn a_failed_job_leaves_nothing_and_spares_its_batch() {
        let db = Db::open(None, Durability::Process).unwrap();
        // While the first job sleeps the others gather into one batch.
        let results: Vec<_> = std::thread::scope(|scope| {
            let db = &db;
            scope.spawn(move || {
                db.run_blocking(|_| {
                    std::thread::sleep(Duration::from_millis(50));
                    Ok(())
                })
            });
            std::thread::sleep(Duration::from_millis(10));
            let jobs: Vec<_> = (0..10)
                .map(|n| {
                    scope.spawn(move || {
                        db.run_blocking(move |conn| {
                            conn.execute(INSERT, [])?;
                            conn.execute(if n == 4 { "nonsense" } else { INSERT }, [])
                        })
                    })
                })
                .collect();
            jobs.into_iter().map(|job| job.join().unwrap()).collect()
        });
        let failed: Vec<_> = results.iter().map(Result::is_err).collect();
        assert_eq!(failed.iter().filter(|failed| **failed).count(), 1);
        assert!(matches!(results[4], Err(Error::Sqlite(_))), "{results:?}");
        assert_eq!(db.run_blocking(|conn| Ok(effects(conn))).unwrap(), 18);
    }

    #[test]
    fn a_file_that_cannot_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let err = Db::open(Some(&file.path().join("below")), Durability::Power).unwrap_err();
        assert!(err.to_string().contains("below"), "{err}");
    }
}
