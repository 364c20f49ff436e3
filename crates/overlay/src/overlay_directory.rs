//! The directory of an overlay: `overlay.json` describes it, `store` holds the values and records,
//! and `lock` is locked while a mount or a command uses the overlay.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::json::{self, Value, json};
use zarrfs_store::{DirectoryStore, Key, Readable, Replaces, Store, StoreExt, ValuePiece};

const DESCRIPTION: &str = "overlay.json";
const VALUES: &str = "store";
const LOCK: &str = "lock";

/// Maximum size of the description in bytes.
const MAX_DESCRIPTION: u64 = 64 << 10;

/// The number of the format that this version writes and reads.
const FORMAT: u64 = 1;

/// The directory of an overlay.
pub struct OverlayDirectory {
    path: PathBuf,
    store: String,
    /// Closing the file releases the lock.
    _lock: Option<File>,
}

impl OverlayDirectory {
    /// Opens and locks the overlay of `store`, a location without secrets, in the directory at
    /// `path`. Creates a missing directory, which only its owner can access, and an overlay in an
    /// empty one.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if the directory holds anything else, EBUSY if the overlay is in use.
    pub fn open_or_create(path: &Path, store: &str) -> Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|e| Error::from(e).context(path.display()))?;
        let directory = DirectoryStore::open(path)?;
        create_if_missing(&directory, store).context(path.display())?;
        Self::open_of(path, store)
    }

    /// Opens and locks the existing overlay of `store` in the directory at `path`.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if the directory holds no overlay or one of another store, EBUSY if the
    /// overlay is in use.
    pub fn open_of(path: &Path, store: &str) -> Result<Self> {
        let opened = Self::open(path, true)?;
        if opened.store != store {
            let why = format!(
                "an overlay of {}, not of {store}; name another directory",
                opened.store
            );
            return Err(Error::invalid(why).context(path.display()));
        }
        Ok(opened)
    }

    /// Opens an existing overlay, and locks it if `locks`.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if the directory holds no overlay, EBUSY if the overlay is in use.
    pub fn open(path: &Path, locks: bool) -> Result<Self> {
        let directory = DirectoryStore::open(path)?;
        Self::open_in(&directory, path, locks).context(path.display())
    }

    fn open_in(directory: &DirectoryStore, path: &Path, locks: bool) -> Result<Self> {
        let store = describe(directory)?
            .ok_or_else(|| Error::invalid("not an overlay: it has no overlay.json"))?;
        let lock = if locks { Some(lock(directory)?) } else { None };
        Ok(OverlayDirectory {
            path: path.to_path_buf(),
            store,
            _lock: lock,
        })
    }

    /// Returns the location of the store below, without secrets.
    pub fn store(&self) -> &str {
        &self.store
    }

    /// Opens the store with the values and records.
    pub fn values(&self) -> Result<DirectoryStore> {
        let path = self.values_path();
        make_directory(&path).context(path.display())?;
        DirectoryStore::open(&path)
    }

    /// Returns the path of the values, in whose file system unnamed files are created.
    pub(super) fn values_path(&self) -> PathBuf {
        self.path.join(VALUES)
    }

    /// Removes the overlay, and its directory if nothing else is in it. An interrupted removal can
    /// be repeated.
    pub fn remove(self) -> Result<()> {
        self.remove_files()
            .map_err(|e| Error::from(e).context(self.path.display()))
    }

    fn remove_files(&self) -> std::io::Result<()> {
        std::fs::remove_dir_all(self.values_path()).or_else(ignore_missing)?;
        for name in [DESCRIPTION, LOCK] {
            std::fs::remove_file(self.path.join(name)).or_else(ignore_missing)?;
        }
        match std::fs::remove_dir(&self.path) {
            // other files, or the root of a file system
            Err(e)
                if ![libc::ENOTEMPTY, libc::EBUSY, libc::EACCES]
                    .contains(&e.raw_os_error().unwrap_or(0)) =>
            {
                Err(e)
            }
            _ => Ok(()),
        }
    }
}

fn ignore_missing(e: std::io::Error) -> std::io::Result<()> {
    match e.kind() {
        ErrorKind::NotFound => Ok(()),
        _ => Err(e),
    }
}

/// Creates a directory unless it exists. A link to one is refused.
fn make_directory(path: &Path) -> Result<()> {
    match DirBuilder::new().create(path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e.into()),
        _ => {}
    }
    if std::fs::symlink_metadata(path)?.is_dir() {
        Ok(())
    } else {
        Err(Error::invalid("not a directory, as it is in an overlay"))
    }
}

/// Returns the store below that `overlay.json` names, or `None` if there is no such file.
fn describe(directory: &DirectoryStore) -> Result<Option<String>> {
    let mut text = Vec::new();
    let found = directory.get(&Key::root().join(DESCRIPTION), MAX_DESCRIPTION, &mut text);
    if found.context(DESCRIPTION)?.is_none() {
        return Ok(None);
    }
    let value = json::parse(&text).unwrap_or_default();
    let format = value.get("zarrfs_overlay").and_then(Value::as_u64);
    let store = value.get("store").and_then(Value::as_str);
    match (format, store) {
        (Some(FORMAT), Some(store)) => Ok(Some(store.to_string())),
        (Some(FORMAT), None) | (None, _) => {
            let why = format!("{DESCRIPTION} is damaged: it describes no overlay");
            Err(Error::invalid(why))
        }
        (Some(other), _) => {
            let why = format!(
                "an overlay of format {other}, and this version of zarrfs reads {FORMAT}; use a later one"
            );
            Err(Error::invalid(why))
        }
    }
}

/// Creates an overlay unless the directory holds one.
fn create_if_missing(directory: &DirectoryStore, store: &str) -> Result<()> {
    match describe(directory)? {
        Some(_) => Ok(()),
        None => create(directory, store),
    }
}

/// Creates an overlay in an empty directory, or in one with the lock of a removed overlay.
fn create(directory: &DirectoryStore, store: &str) -> Result<()> {
    for entry in directory.list(&Key::root())? {
        if entry?.name != LOCK {
            return Err(Error::invalid(
                "neither empty nor an overlay; name a new directory",
            ));
        }
    }
    let text = json::write(&json!({"zarrfs_overlay": FORMAT, "store": store})) + "\n";
    // another mount may create it meanwhile; the lock decides
    directory.put_pieces(
        &Key::root().join(DESCRIPTION),
        &[ValuePiece::Bytes(text.as_bytes())],
        Replaces::Nothing,
    )?;
    directory.sync()
}

fn lock(directory: &DirectoryStore) -> Result<File> {
    let file = directory
        .writable_file(&Key::root().join(LOCK), true, false)
        .context(LOCK)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => {
            let why = "this overlay is in use by another mount or command; unmount it, or wait";
            Err(Error::new(Kind::System(libc::EBUSY), why))
        }
        Err(e) => Err(Error::from(e).context(LOCK)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn refused(path: &Path) -> String {
        OverlayDirectory::open_or_create(path, "/s")
            .map(drop)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_directory_is_created_reopened_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let made = OverlayDirectory::open_or_create(&path, "/s").unwrap();
        made.values()
            .unwrap()
            .put(&Key::root().join("x/y"), b"1")
            .unwrap();
        assert!(refused(&path).contains("in use by another mount"));
        assert_eq!(OverlayDirectory::open(&path, false).unwrap().store(), "/s");
        drop(made);
        let other = OverlayDirectory::open_or_create(&path, "/t")
            .map(drop)
            .unwrap_err();
        assert!(
            other
                .message()
                .ends_with("an overlay of /s, not of /t; name another directory"),
            "{other}"
        );
        OverlayDirectory::open(&path, true)
            .unwrap()
            .remove()
            .unwrap();
        assert!(!path.exists() && path.parent().unwrap().exists());
    }

    #[test]
    fn other_directories_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert!(OverlayDirectory::open(path, false).is_err());
        fs::write(path.join("x"), "").unwrap();
        assert!(refused(path).ends_with("neither empty nor an overlay; name a new directory"));
        let long = " ".repeat(MAX_DESCRIPTION as usize + 1);
        for text in [
            "",
            "{",
            "{}",
            "{\"zarrfs_overlay\": 1}",
            "{\"zarrfs_overlay\": \"1\", \"store\": \"/s\"}",
            &long,
        ] {
            fs::write(path.join(DESCRIPTION), text).unwrap();
            let said = refused(path);
            assert!(said.contains("overlay.json"), "{said}");
        }
        fs::write(
            path.join(DESCRIPTION),
            "{\"zarrfs_overlay\": 7, \"store\": \"/s\"}",
        )
        .unwrap();
        assert!(refused(path).contains("format 7"));
        fs::remove_file(path.join(DESCRIPTION)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", path.join(DESCRIPTION)).unwrap();
        assert!(refused(path).contains("leads out"));
    }

    #[test]
    fn the_directory_of_values_is_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let made = OverlayDirectory::open_or_create(folder.path(), "/s").unwrap();
        std::os::unix::fs::symlink("/tmp", folder.path().join(VALUES)).unwrap();
        assert!(
            made.values()
                .map(drop)
                .unwrap_err()
                .message()
                .contains("not a directory")
        );
        // a removed overlay may leave its lock
        drop(made);
        fs::remove_file(folder.path().join(VALUES)).unwrap();
        fs::remove_file(folder.path().join(DESCRIPTION)).unwrap();
        OverlayDirectory::open_or_create(folder.path(), "/t").unwrap();
    }
}
