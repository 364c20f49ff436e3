//! Keys: checked names. A key that leaves its store cannot be constructed, so no other module has
//! to check for one.

use crate::error::{Error, Result};
use std::fmt;

/// Maximum length of a path that becomes a key, in bytes: four times `PATH_MAX` of Linux.
const MAX_PATH: usize = 16 << 10;

/// Maximum number of names in a group or array's key.
pub const MAX_DEPTH: usize = 256;

/// A key or prefix: names joined by `/`, none of which is empty, `.` or `..` or contains a NUL. The
/// root is the empty key.
///
/// ```
/// use zarrfs_base::key::Key;
///
/// let key = Key::normalize("/group//array/")?;
/// assert_eq!(key.as_str(), "group/array");
/// assert_eq!(key.child(".zarray")?.parent(), key);
/// assert!(Key::normalize("../outside").is_err());
/// # Ok::<(), zarrfs_base::error::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(String);

impl Key {
    /// Maximum number of names in a key that a document or an archive lists: those of an array
    /// [`MAX_DEPTH`] levels deep, and of a chunk in it.
    pub const MAX_LEVELS: usize = MAX_DEPTH + 64;

    /// Returns whether a path is short enough for a key that a document or an archive lists.
    pub fn is_short(path: &str) -> bool {
        path.len() <= MAX_PATH && path.split('/').nth(Self::MAX_LEVELS).is_none()
    }

    /// Returns the number of names.
    pub fn depth(&self) -> usize {
        if self.is_root() {
            0
        } else {
            self.0.split('/').count()
        }
    }

    /// Returns the empty key: the root of the store.
    pub fn root() -> Self {
        Key(String::new())
    }

    /// Normalizes a logical path as section "Logical storage paths" of the Zarr v2 specification
    /// says: backslashes become slashes, and leading, trailing and repeated slashes are removed.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](crate::error::Kind::Invalid) if a name is `.` or `..` or contains a
    /// NUL, or if the path is too long.
    pub fn normalize(path: &str) -> Result<Self> {
        if path.len() > MAX_PATH {
            return Err(Error::invalid(format!(
                "a path of {} bytes is longer than {MAX_PATH}",
                path.len()
            )));
        }
        let path = path.replace('\\', "/");
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(Key::root(), |key, name| key.child(name))
    }

    /// Returns the key of `name`, one level below this key.
    pub fn child(&self, name: &str) -> Result<Self> {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            return Err(Error::invalid(format!("{name:?} can't be a key name")));
        }
        Ok(self.join(name))
    }

    /// Appends a path whose names are known to be valid: a chunk key or the name of a metadata
    /// document.
    pub fn join(&self, path: &str) -> Self {
        if self.0.is_empty() {
            Key(path.to_string())
        } else {
            Key([self.0.as_str(), "/", path].concat())
        }
    }

    /// Resolves `below` relative to this key.
    pub fn join_key(&self, below: &Key) -> Self {
        if below.is_root() {
            self.clone()
        } else {
            self.join(&below.0)
        }
    }

    /// Returns the key one level up. The parent of the root is the root.
    pub fn parent(&self) -> Self {
        Key(self
            .0
            .rsplit_once('/')
            .map_or(String::new(), |(parent, _)| parent.to_string()))
    }

    /// Returns the last name, which is empty for the root.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// Returns this key relative to `ancestor`, or `None` if it is not at or below `ancestor`.
    pub fn relative_to(&self, ancestor: &Key) -> Option<Self> {
        let rest = self.0.strip_prefix(&ancestor.0)?;
        match rest.strip_prefix('/') {
            Some(rest) => Some(Key(rest.to_string())),
            None => (rest.is_empty() || ancestor.is_root()).then(|| Key(rest.to_string())),
        }
    }

    /// Returns the key after a rename of `from` to `to`, or `None` if the rename does not affect
    /// it.
    pub fn moved(&self, from: &Key, to: &Key) -> Option<Self> {
        let rest = self.relative_to(from)?;
        Some(if rest.is_root() {
            to.clone()
        } else {
            to.join(rest.as_str())
        })
    }

    /// Returns the names joined by `/`, which is empty for the root.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether this is the root of the store.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Key {
    /// Writes the key with a leading slash, which makes the root visible, and with escaped control
    /// characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", escaped(&self.0))
    }
}

/// Escapes the control characters of a name, so that it can be shown on one line.
pub fn escaped(name: &str) -> String {
    name.escape_debug()
        .to_string()
        .replace("\\'", "'")
        .replace("\\\"", "\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalized_as_the_specification_says() {
        for (path, key) in [
            ("foo/bar", "foo/bar"),
            ("/foo//bar/", "foo/bar"),
            ("foo\\bar", "foo/bar"),
            ("///", ""),
        ] {
            assert_eq!(Key::normalize(path).unwrap().as_str(), key);
        }
        for path in ["../x", "a/../b", "./a", "a/.", "a\0b"] {
            assert!(Key::normalize(path).is_err(), "{path:?}");
        }
        assert!(Key::root().child("a/b").is_err());
    }

    #[test]
    fn a_key_is_relative_only_to_its_ancestors() {
        let key = |k: &str| Key(k.to_string());
        assert_eq!(
            (key("a/b\\c").parent(), key("a/b\\c").name()),
            (key("a"), "b\\c")
        );
        assert_eq!((key("a").parent(), key("").parent()), (key(""), key("")));
        assert_eq!(key("a/b").relative_to(&key("a")), Some(key("b")));
        assert_eq!(key("a/b").relative_to(&key("")), Some(key("a/b")));
        assert_eq!(key("a").relative_to(&key("a")), Some(key("")));
        assert_eq!(key("ab").relative_to(&key("a")), None);
        let moved = |k: &str| key(k).moved(&key("a/b"), &key("c"));
        assert_eq!(
            (moved("a/b"), moved("a/b/d"), moved("a/bd")),
            (Some(key("c")), Some(key("c/d")), None)
        );
    }
}
