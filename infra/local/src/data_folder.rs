//! The files in the data directory by which a command finds the system that runs on this machine: its token and its URL.

use reqwest::Url;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The data directory unless another one is given.
pub const DATA: &str = ".stepwarden";
/// The random token.
pub const TOKEN_FILE: &str = "token";
/// The URL of the system, while it runs.
pub const URL_FILE: &str = "url";

/// Writes a file that only its owner may read: under another name, then renamed, so that a kill leaves no half-written
/// file.
pub fn write(path: &Path, text: &str) -> std::io::Result<()> {
    stepwarden_guard::folder::create(path.parent().unwrap_or(path))?;
    let aside = path.with_extension("new");
    let _ = std::fs::remove_file(&aside);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    std::fs::rename(&aside, path)
}

/// The token of the local system that keeps its data in this folder. `None` if `url` is on another machine.
pub fn kept_token(url: &str, data: &Path) -> Option<String> {
    let token = is_here(url).then(|| std::fs::read_to_string(data.join(TOKEN_FILE)).ok()).flatten()?;
    Some(token.trim().to_owned())
}

/// Whether `url` is on this machine.
pub fn is_here(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| url.host_str().is_some_and(stepwarden_guard::host::is_loopback))
}

/// Keeps `url` in `folder` for the verbs that speak to the system, until it is dropped.
pub fn keep_url(folder: &Path, url: &str) -> KeptUrl {
    let kept = KeptUrl { path: folder.join(URL_FILE), url: url.to_owned() };
    // The file is a convenience: without it, a person passes --url.
    if let Err(error) = write(&kept.path, url) {
        tracing::warn!("cannot keep the URL in {}: {error}", kept.path.display());
    }
    kept
}

/// A file with the URL of a system, removed when the system stops.
pub struct KeptUrl {
    path: PathBuf,
    url: String,
}

impl Drop for KeptUrl {
    fn drop(&mut self) {
        // Another system that was started here in the meantime may have written its own URL.
        if std::fs::read_to_string(&self.path).is_ok_and(|kept| kept.trim() == self.url) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The URL that a system keeps in `folder`, if it is on this machine. Otherwise the folder's author could name another
/// machine and would get the token in the environment.
pub fn kept_url(folder: &Path) -> Option<String> {
    let url = std::fs::read_to_string(folder.join(URL_FILE)).ok()?;
    Some(url.trim().to_owned()).filter(|url| is_here(url))
}

#[cfg(test)]
mod tests {
    use super::*;

    // The URL is removed with its system, and a file with the URL of another system or machine is not used.
    #[test]
    fn the_url_is_kept_while_its_system_runs() {
        let folder = tempfile::tempdir().unwrap();
        let first = keep_url(folder.path(), "http://127.0.0.1:8080");
        assert_eq!(kept_url(folder.path()).as_deref(), Some("http://127.0.0.1:8080"));
        let second = keep_url(folder.path(), "http://127.0.0.1:9090");
        drop(first);
        assert_eq!(kept_url(folder.path()).as_deref(), Some("http://127.0.0.1:9090"));
        drop(second);
        assert!(!folder.path().join(URL_FILE).exists());
        for other in ["https://evil.example", "http://127.0.0.1.evil.example", "no URL", ""] {
            std::fs::write(folder.path().join(URL_FILE), other).unwrap();
            assert_eq!(kept_url(folder.path()), None, "{other}");
        }
    }
}
