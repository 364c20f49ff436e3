//! The end of a listing that a server never ends. It knows nothing of requests.

use crate::error::{Error, Result};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// Maximum number of pages of one listing: a server that invents names must end, too. A page has a thousand names.
const MAX_PAGES: usize = 100_000;

/// Ends a listing that the server never ends. **Every loop over a server's answers ends**, whatever the server answers:
/// here by the number of pages and the time without a name, in `transport` by the timeout of a request.
#[derive(Default)]
pub(super) struct Progress {
    /// Hashes of the tokens so far: one that comes again leads in a circle.
    tokens: HashSet<u64>,
    /// When the first of the latest pages came that had no names.
    barren_since: Option<Instant>,
}

impl Progress {
    /// Takes note of a page, of its token for the next page, and whether it had names. A server may answer pages without
    /// names, but for no longer than `timeout`.
    pub fn after(&mut self, next: Option<&str>, has_names: bool, timeout: Duration) -> Result<()> {
        let Some(token) = next else { return Ok(()) };
        let endless =
            |why: String| Err(Error::system(libc::EIO).context(format!("the server's listing has no end: {why}")));
        let mut hasher = DefaultHasher::new();
        token.hash(&mut hasher);
        if !self.tokens.insert(hasher.finish()) {
            return endless("a page leads back to one that came before".to_string());
        }
        if self.tokens.len() >= MAX_PAGES {
            return endless(format!("more than {MAX_PAGES} pages"));
        }
        match has_names {
            true => self.barren_since = None,
            false if self.barren_since.get_or_insert_with(Instant::now).elapsed() > timeout => {
                return endless(format!("pages without names for {timeout:?}"));
            }
            false => {}
        }
        Ok(())
    }
}
