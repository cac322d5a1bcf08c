//! Folders and files that only their owner can read.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Creates `folder` and its missing parents for their owner alone. An existing folder keeps its mode.
///
/// # Errors
/// The operating system's.
pub fn create(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Opens `file` for reading and writing, and creates it if it is missing; from then on only its owner may read it.
///
/// # Errors
/// The operating system's.
pub fn open(file: &Path) -> io::Result<File> {
    keep_private(file)?;
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(file)
}

/// Restricts `file` to its owner, if it exists. SQLite gives the files beside a database the mode of the database.
///
/// By path, because closing a file that SQLite has open in this process would end SQLite's locks on it (POSIX).
///
/// # Errors
/// The operating system's.
pub fn keep_private(file: &Path) -> io::Result<()> {
    let closed = match std::fs::metadata(file) {
        Ok(found) if found.permissions().mode() & 0o077 == 0 => Ok(()),
        Ok(_) => std::fs::set_permissions(file, Permissions::from_mode(0o600)),
        Err(error) => Err(error),
    };
    match closed {
        // The file of another user, who has decided who may use it.
        Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied].contains(&error.kind()) => Ok(()),
        closed => closed,
    }
}
