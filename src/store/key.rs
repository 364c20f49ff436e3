//! Checked key names. A key that could leave its store can't be spelled, so nobody else has to check.

use crate::error::{Error, Result};
use std::fmt;

/// Bytes of the longest path that is made a key: four times what Linux takes.
const MAX_PATH: usize = 16 << 10;

/// A key or prefix: names joined by `/`, none of them empty, `.`, `..`, or with a NUL inside. The root is the empty
/// key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(String);

impl Key {
    /// The empty key: the root of the store.
    pub fn root() -> Self {
        Key(String::new())
    }

    /// A logical path, normalised as the Zarr v2 spec says ("Logical storage paths"): backslashes become slashes,
    /// leading, trailing and doubled slashes go; `.` and `..` are refused.
    pub fn normalize(path: &str) -> Result<Self> {
        if path.len() > MAX_PATH {
            return Err(Error::invalid(format!("a path of {} bytes is longer than {MAX_PATH}", path.len())));
        }
        let path = path.replace('\\', "/");
        path.split('/').filter(|name| !name.is_empty()).try_fold(Key::root(), |key, name| key.child(name))
    }

    /// The key one level down.
    pub fn child(&self, name: &str) -> Result<Self> {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            return Err(Error::invalid(format!("{name:?} can't be a key name")));
        }
        Ok(self.join(name))
    }

    /// The key `path` levels down, where `path` is known to be made of good names: a chunk key or a metadata name.
    pub(crate) fn join(&self, path: &str) -> Self {
        if self.0.is_empty() { Key(path.to_string()) } else { Key(format!("{}/{path}", self.0)) }
    }

    /// The key that stands at `below` as seen from this one.
    pub fn join_key(&self, below: &Key) -> Self {
        if below.is_root() { self.clone() } else { self.join(&below.0) }
    }

    /// The key one level up; the root's is the root.
    pub fn parent(&self) -> Self {
        Key(self.0.rsplit_once('/').map_or(String::new(), |(parent, _)| parent.to_string()))
    }

    /// The last name; empty for the root.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// This key as seen from `ancestor`; None if it is not below it. The ancestor itself is the root.
    pub fn relative_to(&self, ancestor: &Key) -> Option<Self> {
        let rest = self.0.strip_prefix(&ancestor.0)?;
        match rest.strip_prefix('/') {
            Some(rest) => Some(Key(rest.to_string())),
            None => (rest.is_empty() || ancestor.is_root()).then(|| Key(rest.to_string())),
        }
    }

    /// What this key becomes when `from` gets the name `to`; None if it stands neither there nor below.
    pub fn moved(&self, from: &Key, to: &Key) -> Option<Self> {
        let rest = self.relative_to(from)?;
        Some(if rest.is_root() { to.clone() } else { to.join(rest.as_str()) })
    }

    /// The names joined by `/`; empty for the root.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True for the root of the store.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Key {
    /// A leading slash makes the root visible, and stands for the store. Control characters are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", escaped(&self.0))
    }
}

/// A name as people are shown it: in one line, its control characters escaped.
pub fn escaped(name: &str) -> String {
    name.escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalised_as_the_spec_says() {
        for (path, key) in [("foo/bar", "foo/bar"), ("/foo//bar/", "foo/bar"), ("foo\\bar", "foo/bar"), ("///", "")] {
            assert_eq!(Key::normalize(path).unwrap().as_str(), key);
        }
        for path in ["../x", "a/../b", "./a", "a/.", "a\0b"] {
            assert!(Key::normalize(path).is_err(), "{path:?}");
        }
        assert!(Key::root().child("a/b").is_err());
    }

    #[test]
    fn relatives() {
        let key = |k: &str| Key(k.to_string());
        assert_eq!((key("a/b\\c").parent(), key("a/b\\c").name()), (key("a"), "b\\c"));
        assert_eq!((key("a").parent(), key("").parent()), (key(""), key("")));
        assert_eq!(key("a/b").relative_to(&key("a")), Some(key("b")));
        assert_eq!(key("a/b").relative_to(&key("")), Some(key("a/b")));
        assert_eq!(key("a").relative_to(&key("a")), Some(key("")));
        assert_eq!(key("ab").relative_to(&key("a")), None);
        let moved = |k: &str| key(k).moved(&key("a/b"), &key("c"));
        assert_eq!((moved("a/b"), moved("a/b/d"), moved("a/bd")), (Some(key("c")), Some(key("c/d")), None));
    }
}
