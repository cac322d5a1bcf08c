//! Folders and files that only their owner can read.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Makes `folder`, and those above it that are missing, for their owner alone. One that is there stays as it is: who made it
/// may have had reasons.
///
/// # Errors
/// The system's.
pub fn create(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Opens `file` for reading and writing, and makes it if it is missing; its owner alone may read it from then on.
///
/// # Errors
/// The system's.
pub fn open(file: &Path) -> io::Result<File> {
    keep_private(file)?;
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(file)
}

/// Makes `file` its owner's alone, if it is there. SQLite gives the files beside a database the mode of the database.
///
/// By its path: to close a file that SQLite has open in this process would end SQLite's locks on it (POSIX).
///
/// # Errors
/// The system's.
pub fn keep_private(file: &Path) -> io::Result<()> {
    let closed = match std::fs::metadata(file) {
        Ok(found) if found.permissions().mode() & 0o077 == 0 => Ok(()),
        Ok(_) => std::fs::set_permissions(file, Permissions::from_mode(0o600)),
        Err(error) => Err(error),
    };
    match closed {
        // Somebody else's file: whoever may use it has decided so.
        Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied].contains(&error.kind()) => Ok(()),
        closed => closed,
    }
}
