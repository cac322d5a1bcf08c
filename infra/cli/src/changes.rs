//! Notices that files below a folder change: by looking at them every now and then, which works on every file system.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// Time between two looks. A change is told when the next look finds nothing new.
const EVERY: Duration = Duration::from_millis(300);
/// A folder that keeps changing is told after this time.
const LONGEST: Duration = Duration::from_secs(5);
/// Files and folders beyond these are left out.
const MOST_FILES: usize = 2000;
const DEEPEST: usize = 8;
/// What programs write beside their sources.
const MADE: [&str; 5] = ["__pycache__", "target", "node_modules", "venv", "dist"];

/// Change time, length and number of each file.
type Stamps = BTreeMap<PathBuf, (i64, i64, u64, u64)>;

/// A folder, and what it was when that was last told.
pub struct Folder {
    path: PathBuf,
    told: Stamps,
    seen: Stamps,
    since: Option<Instant>,
}

impl Folder {
    /// The folder as it is now.
    pub fn new(path: PathBuf) -> Self {
        let told = look(&path);
        Self { path, seen: told.clone(), told, since: None }
    }

    /// Waits for a change, and returns a file that was changed, added or removed.
    pub async fn changed(&mut self) -> PathBuf {
        loop {
            tokio::time::sleep(EVERY).await;
            let path = self.path.clone();
            // An unreadable folder is an empty one.
            let now = tokio::task::spawn_blocking(move || look(&path)).await.unwrap_or_default();
            if let Some(file) = self.compare(now, Instant::now()) {
                return file;
            }
        }
    }

    fn compare(&mut self, now: Stamps, at: Instant) -> Option<PathBuf> {
        let is_quiet = now == self.seen;
        self.seen = now;
        let Some(file) = differs(&self.told, &self.seen).or_else(|| differs(&self.seen, &self.told)) else {
            self.since = None;
            return None;
        };
        if !is_quiet && at - *self.since.get_or_insert(at) < LONGEST {
            return None;
        }
        self.since = None;
        self.told.clone_from(&self.seen);
        Some(file)
    }
}

/// The first file of `one` that is not the same in `other`.
fn differs(one: &Stamps, other: &Stamps) -> Option<PathBuf> {
    one.iter().find(|(path, stamp)| other.get(*path) != Some(stamp)).map(|(path, _)| path.clone())
}

fn look(folder: &Path) -> Stamps {
    let mut stamps = Stamps::new();
    walk(folder, DEEPEST, &mut stamps);
    stamps
}

fn walk(folder: &Path, deep: usize, stamps: &mut Stamps) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // Hidden files are an editor's.
        if name.starts_with('.') || name.ends_with('~') || MADE.contains(&&*name) || stamps.len() >= MOST_FILES {
            continue;
        }
        // Through a link to a file, but not to a folder, which may be a circle.
        match (entry.file_type(), entry.path().metadata()) {
            (Ok(kind), _) if kind.is_dir() && deep > 0 => walk(&entry.path(), deep - 1, stamps),
            (_, Ok(file)) if file.is_file() => {
                stamps.insert(entry.path(), (file.ctime(), file.ctime_nsec(), file.len(), file.ino()));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamps(files: &[(&str, i64)]) -> Stamps {
        files.iter().map(|(path, time)| (PathBuf::from(path), (*time, 0, 0, 0))).collect()
    }

    // An editor or a checkout writes several files, or one in several steps: that is one change.
    #[tokio::test(start_paused = true)]
    async fn a_change_is_told_once_the_folder_is_quiet_and_a_busy_one_is_told_too() {
        let mut folder = Folder { path: PathBuf::new(), told: Stamps::new(), seen: Stamps::new(), since: None };
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        assert_eq!(folder.compare(stamps(&[("a", 1)]), at(0)), None);
        assert_eq!(folder.compare(stamps(&[("a", 1), ("b", 1)]), at(300)), None);
        assert_eq!(folder.compare(stamps(&[("a", 1), ("b", 1)]), at(600)), Some("a".into()));
        assert_eq!(folder.compare(stamps(&[("a", 1), ("b", 1)]), at(900)), None);
        // A file that was removed, and one that was changed and is as it was.
        assert_eq!(folder.compare(stamps(&[("a", 1)]), at(1200)), None);
        assert_eq!(folder.compare(stamps(&[("a", 1)]), at(1500)), Some("b".into()));
        assert_eq!(folder.compare(stamps(&[("a", 2)]), at(1800)), None);
        assert_eq!(folder.compare(stamps(&[("a", 1)]), at(2100)), None);
        assert_eq!(folder.compare(stamps(&[("a", 1)]), at(2400)), None);
        let busy = (0..40).filter(|n| folder.compare(stamps(&[("log", *n)]), at(3000 + 300 * *n as u64)).is_some());
        assert_eq!(busy.count(), 2, "12 s of changes");
    }

    #[test]
    fn what_is_watched_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        };
        for path in ["a.py", "lib/b.py", ".a.py.swp", "a.py~", "__pycache__/a.pyc", "own/target/debug/x", ".git/HEAD"] {
            write(path);
        }
        std::os::unix::fs::symlink(dir.path(), dir.path().join("lib/circle")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("zero.py")).unwrap();
        std::os::unix::fs::symlink("a.py", dir.path().join("link.py")).unwrap();
        let found = |folder: &Path| -> Vec<String> {
            let names = look(folder).into_keys();
            names.map(|path| path.strip_prefix(folder).unwrap().display().to_string()).collect()
        };
        assert_eq!(found(dir.path()), ["a.py", "lib/b.py", "link.py"]);
        (0..MOST_FILES).for_each(|n| write(&format!("many/{n}")));
        assert_eq!(look(dir.path()).len(), MOST_FILES);
        assert!(look(&dir.path().join("gone")).is_empty());
    }
}
