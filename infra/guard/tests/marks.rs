//! Goal: all damage to a database is reported, and no sound database is called damaged. Method: a database with its
//! mark, its files copied at some moment as a kill would leave them, and then bits flipped, files cut, emptied and
//! deleted.

use rusqlite::Connection;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use stepwarden_guard::marks::{Durability, Marked, Unsound, accept_loss, beside, check, examine, file_of, was_killed};

fn rows(db: &Path) -> i64 {
    Connection::open(db).unwrap().query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap_or(0)
}

/// A folder as a kill after `count` commits leaves it.
fn killed(count: i64) -> (tempfile::TempDir, PathBuf) {
    killed_on(count, Durability::Full)
}

fn killed_on(count: i64, durability: Durability) -> (tempfile::TempDir, PathBuf) {
    let (live, dead) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let db = live.path().join("x.db");
    let connection = Connection::open(&db).unwrap();
    connection.execute_batch("PRAGMA page_size = 512; PRAGMA journal_mode = WAL; CREATE TABLE t (a)").unwrap();
    let marked = Marked::open(connection, &db, durability).unwrap();
    for n in 0..count {
        marked.execute("INSERT INTO t VALUES (?1)", [format!("{n} {}", "x".repeat(300))]).unwrap();
        marked.note(marked.head());
    }
    for name in ["x.db", "x.db-wal", "x.mark"] {
        std::fs::copy(live.path().join(name), dead.path().join(name)).unwrap();
    }
    let db = dead.path().join("x.db");
    (dead, db)
}

#[test]
fn what_a_kill_left_is_sound() {
    for count in [0, 1, 120] {
        let (_dir, db) = killed(count);
        // A kill between the check and the opening is no damage either.
        check(&db).unwrap();
        check(&db).unwrap();
        assert_eq!(rows(&db), count);
    }
}

// Flipping each bit of a log of 120 commits would take thousands of runs; these bits are spread over the whole log.
#[test]
fn no_flipped_bit_in_the_log_loses_a_row_in_silence() {
    let (dir, db) = killed(120);
    let log = beside(&db, "-wal");
    let sound = std::fs::read(&log).unwrap();
    let mut found = 0;
    for n in 0..300 {
        let at = n * sound.len() / 300;
        let mut flipped = sound.clone();
        flipped[at] ^= 1 << (n % 8);
        std::fs::write(&log, flipped).unwrap();
        match examine(&db) {
            Ok(()) => {
                let copy = dir.path().join("copy.db");
                std::fs::copy(&db, &copy).unwrap();
                std::fs::copy(&log, beside(&copy, "-wal")).unwrap();
                let _ = std::fs::remove_file(beside(&copy, "-shm"));
                assert_eq!(rows(&copy), 120, "the bit at {at} lost rows, and nobody said so");
            }
            Err(Unsound::Damaged(_)) => found += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(found > 250, "{found} of 300 were found");
}

#[test]
fn a_file_that_is_gone_or_empty_or_short_is_named() {
    let wrong = |change: &dyn Fn(&Path)| {
        let (_dir, db) = killed(120);
        change(&db);
        match examine(&db) {
            Err(Unsound::Damaged(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    assert!(wrong(&|db| std::fs::remove_file(db).unwrap()).contains("missing"));
    assert!(wrong(&|db| std::fs::write(db, "").unwrap()).contains("empty"));
    assert!(wrong(&|db| std::fs::remove_file(beside(db, "-wal")).unwrap()).contains("missing"));
    assert!(wrong(&|db| std::fs::write(beside(db, "-wal"), "").unwrap()).contains("only 0 of"));
    assert!(
        wrong(&|db| {
            let log = File::options().write(true).open(beside(db, "-wal")).unwrap();
            log.set_len(log.metadata().unwrap().len() / 2).unwrap();
        })
        .contains("can be read")
    );
    assert!(wrong(&|db| std::fs::write(file_of(db), "x").unwrap()).contains("mark"));
}

// A kill, a power failure or a full disk between the creation of the mark and the first write to it.
#[test]
fn an_empty_mark_accuses_nobody() {
    for empty in [vec![], vec![0; 88]] {
        let (_dir, db) = killed(120);
        std::fs::write(file_of(&db), &empty).unwrap();
        check(&db).unwrap();
        assert_eq!(rows(&db), 120);
        // There was a database before there was a mark.
        std::fs::remove_file(&db).unwrap();
        assert!(matches!(check(&db), Err(Unsound::Damaged(_))));
    }
}

#[test]
fn a_mark_knows_whether_the_last_end_was_clean() {
    let (_dir, db) = killed(3);
    assert!(was_killed(&db));
    check(&db).unwrap();
    assert!(was_killed(&db), "also after a start that came no further");
    drop(Marked::open(Connection::open(&db).unwrap(), &db, Durability::Full).unwrap());
    assert!(!was_killed(&db) && !was_killed(&db.with_extension("none")));
}

#[test]
fn after_a_clean_end_every_bit_counts() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("x.db");
    let open = || {
        let connection = Connection::open(&db).unwrap();
        connection.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE IF NOT EXISTS t (a)").unwrap();
        Marked::open(connection, &db, Durability::Full).unwrap()
    };
    for n in 0..3 {
        check(&db).unwrap();
        let marked = open();
        marked.execute("INSERT INTO t VALUES (?1)", ["y".repeat(5000)]).unwrap();
        marked.note(marked.head());
        drop(marked);
        assert_eq!(rows(&db), n + 1);
    }
    let sound = std::fs::read(&db).unwrap();
    for n in 0..50 {
        let mut flipped = sound.clone();
        flipped[n * sound.len() / 50] ^= 1 << (n % 8);
        std::fs::write(&db, flipped).unwrap();
        assert!(matches!(examine(&db), Err(Unsound::Damaged(_))), "{n}");
    }
    std::fs::remove_file(&db).unwrap();
    assert!(matches!(check(&db), Err(Unsound::Damaged(_))));
}

// The log restarts when the database contains all of it: frames that were recorded before are not missed.
#[test]
fn a_log_that_began_anew_is_no_loss() {
    let live = tempfile::tempdir().unwrap();
    let db = live.path().join("x.db");
    let connection = Connection::open(&db).unwrap();
    connection.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (a)").unwrap();
    let marked = Marked::open(connection, &db, Durability::Full).unwrap();
    let insert = || marked.execute("INSERT INTO t VALUES (?1)", ["z".repeat(300)]).unwrap();
    for n in 0..200 {
        insert();
        marked.note(marked.head());
        if n % 50 == 49 {
            marked.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap();
            // The next commit is written, but the process is killed before it is recorded.
            insert();
        }
        let dead = tempfile::tempdir().unwrap();
        for name in ["x.db", "x.db-wal", "x.mark"] {
            std::fs::copy(live.path().join(name), dead.path().join(name)).unwrap();
        }
        examine(&dead.path().join("x.db")).unwrap();
    }
}

#[test]
fn there_is_a_way_on() {
    let (dir, db) = killed(120);
    assert!(accept_loss(&db, 7).unwrap().is_none(), "what is sound is left alone");
    let (dir2, db2) = killed(120);
    let log = beside(&db2, "-wal");
    let mut flipped = std::fs::read(&log).unwrap();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    std::fs::write(&log, &flipped).unwrap();
    std::fs::set_permissions(&log, std::fs::Permissions::from_mode(0o644)).unwrap();
    let done = accept_loss(&db2, 7).unwrap().unwrap();
    assert!(done.contains("the readable part of it is used") && done.contains("damaged-7"), "{done}");
    assert_eq!(std::fs::read(dir2.path().join("x.db-wal.damaged-7")).unwrap(), flipped);
    let mode = std::fs::metadata(dir2.path().join("x.db-wal.damaged-7")).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
    check(&db2).unwrap();
    assert!((1..120).contains(&rows(&db2)));
    std::fs::write(&db, "not a database, but long enough to be looked at").unwrap();
    assert!(accept_loss(&db, 8).unwrap().unwrap().contains("starts empty"));
    assert!(!db.exists() && dir.path().join("x.db.damaged-8").exists());
    check(&db).unwrap();
}

// After a power failure a log may be shorter than recorded if only kills must be survived and the machine restarted.
#[test]
#[cfg(target_os = "linux")]
fn a_power_failure_is_no_damage_where_writes_survive_kills_alone() {
    for (durability, is_damaged) in [(Durability::Process, false), (Durability::Full, true)] {
        let (_dir, db) = killed_on(120, durability);
        let log = File::options().write(true).open(beside(&db, "-wal")).unwrap();
        log.set_len(log.metadata().unwrap().len() / 2).unwrap();
        assert!(matches!(examine(&db), Err(Unsound::Damaged(_))), "the machine is still up");
        if durability == Durability::Process {
            // The mark as an earlier start of the machine would have recorded it: the boot, and the hash of everything
            // before it.
            let mut mark = std::fs::read(file_of(&db)).unwrap();
            mark[9] ^= 1;
            let hash = mark[..80]
                .iter()
                .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
            mark[80..].copy_from_slice(&hash.to_le_bytes());
            std::fs::write(file_of(&db), mark).unwrap();
        }
        assert_eq!(examine(&db).is_err(), is_damaged);
    }
}
