//! Temporary files that killed processes have left in a store of directories. The store removes
//! those that it lists; a writable mount lists it once, in the background.

use std::sync::Arc;
use zarrfs_base::pool::start_thread;
use zarrfs_store::{EntryKind, Key, Store, StoreExt};

/// Maximum number of names that a mount lists: a tenth of a second on a local disk. In other
/// directories, files stay until a program lists these.
const MAX_NAMES: usize = 100_000;

/// Maximum size of the keys that wait to be listed, in bytes.
const MAX_WAITING: usize = 1 << 20;

/// Starts to list a store, unless it is on a server.
pub fn remove(store: Arc<dyn Store>) {
    if store.concurrency() == 1 {
        // without a thread the files stay
        let _ = start_thread("leftovers", move || list(store.as_ref()));
    }
}

fn list(store: &dyn Store) {
    let mut waiting = vec![Key::root()];
    let mut names = 0;
    let mut bytes = 0;
    while let Some(key) = waiting.pop() {
        bytes -= key.as_str().len();
        let entries = store.list(&key).into_iter().flatten().flatten();
        for entry in entries {
            names += 1;
            if names > MAX_NAMES {
                return;
            }
            if entry.kind == EntryKind::Prefix && bytes < MAX_WAITING {
                let below = key.join(&entry.name);
                bytes += below.as_str().len();
                waiting.push(below);
            }
        }
    }
}
