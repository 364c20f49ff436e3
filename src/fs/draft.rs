//! Files that can't be stored piece by piece, while they are written: metadata documents, chunks of objects, and plain
//! keys of a store whose values are no files. Such a draft is kept in memory, shared by all who have the file open for writing, and becomes the file as a whole when it is
//! closed. It knows neither what makes a document a good one nor who stores it.

use crate::error::{Error, Kind, Result};
use crate::fs::tree::Node;
use crate::store::{Key, Permissions};
use crate::util::memory::{self, Grant, lock};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::SystemTime;

/// A file that is being written.
pub struct Draft {
    /// The number under which the kernel knows the file, also when it gets another name.
    pub inode: u64,
    /// What the stored file grants that the draft is to replace.
    pub permissions: Option<Permissions>,
    limit: u64,
    /// Protects the name alone.
    node: Mutex<Node>,
    /// Protects the draft; held while it is stored, so that nothing is written meanwhile.
    state: Mutex<State>,
}

/// The text of a stored file and what the file grants.
pub type Stored = (Vec<u8>, Option<Permissions>);

/// The bytes of a draft, and what is known of them.
pub struct State {
    /// What the file is to hold.
    pub text: Vec<u8>,
    /// False as long as that is what it holds.
    pub changed: bool,
    /// When it was changed last.
    pub modified: SystemTime,
    /// Why it could not be stored, as it was then.
    pub refused: Option<Error>,
    fate: Fate,
    /// Counts the text.
    memory: Grant,
}

/// What has become of a draft's file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is the one of its name.
    Named,
    /// It was removed or replaced: who has it open goes on with it alone.
    Removed,
    /// Its content has become something else, which is not written through it.
    Taken,
}

/// The drafts of a file system. A draft is there as long as somebody has it open.
#[derive(Default)]
pub struct Drafts {
    /// Protects the map, by path.
    open: Mutex<HashMap<Key, Weak<Draft>>>,
}

impl Drafts {
    /// The draft of the file at `path`.
    pub fn get(&self, path: &Key) -> Option<Arc<Draft>> {
        lock(&self.open).get(path).and_then(Weak::upgrade)
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Draft>> {
        lock(&self.open).values().filter_map(Weak::upgrade).collect()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        lock(&self.open).values().all(|draft| draft.strong_count() == 0)
    }

    /// The draft of `node`, which the kernel knows by the number `inode`; begun, if nobody has begun one, with the text of
    /// the stored file and what it grants, or as a new file. It may have up to `limit` bytes.
    pub fn open(&self, node: &Node, inode: u64, stored: Option<Stored>, limit: u64) -> Result<Arc<Draft>> {
        let memory = memory::take(stored.as_ref().map_or(0, |(text, _)| text.capacity()))?;
        memory::check_available()?;
        let (mut open, path) = (lock(&self.open), node.path());
        if let Some(draft) = open.get(&path).and_then(Weak::upgrade) {
            return Ok(draft);
        }
        let changed = stored.is_none();
        let (text, permissions) = stored.unwrap_or_default();
        let modified = SystemTime::now();
        let state = State { text, changed, modified, refused: None, fate: Fate::Named, memory };
        let draft =
            Arc::new(Draft { inode, permissions, limit, node: Mutex::new(node.clone()), state: Mutex::new(state) });
        open.retain(|_, draft| draft.strong_count() > 0);
        open.insert(path, Arc::downgrade(&draft));
        Ok(draft)
    }

    /// Has the draft at `path` be the file's no more: it was removed, or became another. False if there was none.
    pub fn forget(&self, path: &Key) -> bool {
        self.end(path, Fate::Removed)
    }

    /// As [`Drafts::forget`], where the content has become something else: nothing can be written to it any more.
    pub fn take(&self, path: &Key) -> bool {
        self.end(path, Fate::Taken)
    }

    fn end(&self, path: &Key, fate: Fate) -> bool {
        let draft = lock(&self.open).remove(path).and_then(|draft| draft.upgrade());
        draft.is_some_and(|draft| {
            let mut state = draft.lock();
            (state.changed, state.fate) = (false, fate);
            true
        })
    }

    /// The draft of the file that was at `path` is that of `to` now, in place of the one that was there.
    pub fn renamed(&self, path: &Key, to: &Node) {
        self.forget(&to.path());
        let mut open = lock(&self.open);
        if let Some(draft) = open.remove(path) {
            if let Some(draft) = draft.upgrade() {
                *lock(&draft.node) = to.clone();
            }
            open.insert(to.path(), draft);
        }
    }

    /// As [`Drafts::forget`], of all at and below `path`.
    pub fn forget_below(&self, path: &Key) {
        let below: Vec<Key> = lock(&self.open).keys().filter(|k| k.relative_to(path).is_some()).cloned().collect();
        for path in below {
            self.forget(&path);
        }
    }
}

impl Draft {
    /// The file.
    pub fn node(&self) -> Node {
        lock(&self.node).clone()
    }

    /// The state, to be stored or looked at.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Reads up to `len` bytes at `offset`.
    pub fn read(&self, offset: u64, len: usize, out: &mut Vec<u8>) {
        let state = self.lock();
        let start = offset.min(state.text.len() as u64) as usize;
        out.clear();
        out.extend_from_slice(&state.text[start..state.text.len().min(start.saturating_add(len))]);
    }

    /// Writes all of `data` at `offset`; zeros come into a gap before it. EFBIG if that gets too large.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset.saturating_add(data.len() as u64);
        let mut state = self.lock();
        state.check_not_taken()?;
        if end > state.text.len() as u64 {
            self.resize(&mut state, end)?;
        }
        if !data.is_empty() {
            state.text[offset as usize..end as usize].copy_from_slice(data);
            state.touch();
        }
        Ok(())
    }

    /// Cuts it off, or adds zeros. EFBIG if that gets too large.
    pub fn set_size(&self, size: u64) -> Result<()> {
        let mut state = self.lock();
        state.check_not_taken()?;
        if size != state.text.len() as u64 {
            self.resize(&mut state, size)?;
            state.touch();
        }
        Ok(())
    }

    fn resize(&self, state: &mut State, size: u64) -> Result<()> {
        if size > self.limit {
            return Err(Error::system(libc::EFBIG).context(self.node().path()));
        }
        let more = (size as usize).saturating_sub(state.text.len());
        let uncounted = (size as usize).saturating_sub(state.memory.bytes());
        let before = state.memory.bytes();
        let counted = state.memory.grow(uncounted).and_then(|()| memory::check_available());
        counted.map_err(|e| {
            state.memory.shrink_to(before);
            let errno = if e.kind() == Kind::Damaged { libc::EFBIG } else { e.errno() };
            Error::new(Kind::System(errno), e.message()).context(self.node().path())
        })?;
        state.text.try_reserve(more).map_err(|_| Error::system(libc::ENOMEM))?;
        state.text.resize(size as usize, 0);
        Ok(())
    }
}

impl State {
    /// What was removed is not to be stored any more.
    fn touch(&mut self) {
        (self.changed, self.modified) = (self.fate == Fate::Named, SystemTime::now());
    }

    fn check_not_taken(&self) -> Result<()> {
        if self.fate == Fate::Taken { Err(Error::system(libc::ESTALE)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Node {
        Node::Value(Key::root().child("x").unwrap())
    }

    #[test]
    fn a_draft_is_written_anywhere_and_shared() {
        let drafts = Drafts::default();
        let draft = drafts.open(&node(), 2, Some((b"0123".to_vec(), None)), 10).unwrap();
        assert!(!draft.lock().changed);
        draft.write(2, b"ab").unwrap();
        draft.write(6, b"c").unwrap();
        let mut out = Vec::new();
        drafts.open(&node(), 2, None, 10).unwrap().read(1, 100, &mut out);
        assert_eq!((out.as_slice(), draft.lock().changed), (b"1ab\0\0c".as_slice(), true));
        draft.set_size(3).unwrap();
        draft.read(2, 1, &mut out);
        assert_eq!(out, b"a");
        draft.read(3, 1, &mut out);
        assert_eq!(out, b"");
    }

    #[test]
    fn a_draft_has_a_limit_and_an_end() {
        let drafts = Drafts::default();
        let draft = drafts.open(&node(), 2, None, 4).unwrap();
        assert!(draft.lock().changed, "a new file is one as it is");
        assert_eq!(draft.write(2, b"abc").unwrap_err().errno(), libc::EFBIG);
        assert_eq!(draft.write(u64::MAX, b"a").unwrap_err().errno(), libc::EFBIG);
        assert_eq!(draft.set_size(5).unwrap_err().errno(), libc::EFBIG);
        assert_eq!(draft.lock().text, b"");
        drafts.forget(&node().path());
        assert!(!draft.lock().changed && drafts.get(&node().path()).is_none());
        drop(drafts.open(&node(), 2, None, 4).unwrap());
        assert!(drafts.get(&node().path()).is_none());
    }

    #[test]
    fn a_draft_goes_with_its_file() {
        let (drafts, to) = (Drafts::default(), Node::Value(Key::root().child("y").unwrap()));
        let [draft, old] = [node(), to.clone()].map(|node| drafts.open(&node, 2, None, 4).unwrap());
        drafts.renamed(&node().path(), &to);
        assert!(drafts.get(&node().path()).is_none() && Arc::ptr_eq(&draft, &drafts.get(&to.path()).unwrap()));
        assert_eq!((draft.node(), draft.lock().changed), (to.clone(), true));
        // who has the one that was replaced open writes for himself
        old.write(0, b"1").unwrap();
        assert!(!old.lock().changed && old.lock().text == b"1");
        assert!(drafts.take(&to.path()) && !drafts.take(&to.path()));
        assert_eq!(draft.write(0, b"1").unwrap_err().errno(), libc::ESTALE);
        assert_eq!(draft.set_size(1).unwrap_err().errno(), libc::ESTALE);
    }
}
