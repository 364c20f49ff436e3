//! Ends listings that a server never ends.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};
use zarrfs_base::error::{Error, Result};

/// Maximum number of pages of a listing. A page has up to a thousand names.
const MAX_PAGES: usize = 100_000;

/// The progress of a listing, which reveals one that does not end. **Every loop over a server's
/// answers ends**, whatever the server answers: here by the number of pages and the time without
/// names, in `transport` by the timeout of a request.
#[derive(Default)]
pub(super) struct ListingProgress {
    /// Hashes of the page tokens so far. A repeated token leads in a circle.
    tokens: HashSet<u64>,
    /// Arrival of the first of the latest consecutive pages without names.
    empty_since: Option<Instant>,
}

impl ListingProgress {
    /// Records a page: the token of the next one, and whether it had names. Pages may lack names
    /// for no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// EIO if the listing does not seem to end.
    pub fn after(&mut self, next: Option<&str>, has_names: bool, timeout: Duration) -> Result<()> {
        let Some(token) = next else { return Ok(()) };
        let mut hasher = DefaultHasher::new();
        token.hash(&mut hasher);
        if !self.tokens.insert(hasher.finish()) {
            return Err(endless("a page leads back to an earlier one"));
        }
        if self.tokens.len() >= MAX_PAGES {
            return Err(endless(&format!("more than {MAX_PAGES} pages")));
        }
        if has_names {
            self.empty_since = None
        } else if self.empty_since.get_or_insert_with(Instant::now).elapsed() > timeout {
            return Err(endless(&format!("no names for {timeout:?}")));
        }
        Ok(())
    }
}

fn endless(why: &str) -> Error {
    Error::system(libc::EIO).context(format!("the server's listing does not end: {why}"))
}
