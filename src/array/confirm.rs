//! Checks whether the store still holds the metadata document that an array was read from. Another
//! program may replace, shrink or delete the array at any time.
//!
//! Invariant: no chunk is stored unless the document was examined after the flush began. A chunk
//! that is stored without a flush may rely on an examination that is at most [`MAX_AGE`] old. A
//! chunk that was encoded for one document never replaces a chunk of another array, and no byte
//! outside the shape reaches the store.

use super::{Array, Ranges};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::memory::lock;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::{ArrayMetadata, MAX_DOCUMENT};
use zarrfs_store::{Counted, Key, StoreExt, Version, get_counted};

/// Maximum age of a confirmation of a remote array while one flush stores many chunks: a request
/// for each chunk would double their number.
const MAX_AGE: Duration = Duration::from_secs(1);

/// A function that parses the bytes of a metadata document.
pub type ParseDocument = Box<dyn Fn(&[u8]) -> Result<ArrayMetadata> + Send + Sync>;

/// The metadata document that an array was read from.
pub struct Source {
    /// Keys under which the document may be stored, the usual one first.
    keys: Vec<Key>,
    parse: ParseDocument,
    /// Protects the result of the last confirmation.
    confirmed: Mutex<Confirmed>,
    /// Held while the store is asked: threads that store chunks of one array ask once. The time at
    /// which it failed last, and the error, which those get that have waited.
    failed: Mutex<Option<(Instant, Error)>>,
}

struct Confirmed {
    /// The latest version that describes the array.
    version: Version,
    /// Time at which the store was last asked.
    asked: Option<Instant>,
    /// The shape in the store, if it differs from the array's.
    shape: Option<Vec<u64>>,
}

impl Source {
    /// Returns the document of `version`, which is stored under one of `keys`.
    pub fn new(keys: Vec<Key>, parse: ParseDocument, version: Version) -> Self {
        Source {
            keys,
            parse,
            confirmed: Mutex::new(Confirmed {
                version,
                asked: None,
                shape: None,
            }),
            failed: Mutex::default(),
        }
    }
}

impl Array {
    /// Adds the document that the array was read from. Without one, [`Array::confirm`] does
    /// nothing.
    pub fn with_source(self, source: Source) -> Self {
        Array {
            source: Some(source),
            ..self
        }
    }

    /// Asks the store whether its document still describes this array. Afterwards
    /// [`Freshness::is_replaced`](super::Freshness::is_replaced) and [`Array::outside`] have the
    /// answer. With `batch`, a recent confirmation of a remote array suffices.
    ///
    /// # Errors
    ///
    /// Fails if the store does not answer, or if the document cannot be parsed now. Then nothing
    /// may be stored.
    pub fn confirm(&self, batch: bool) -> Result<()> {
        let Some(source) = &self.source else {
            return Ok(());
        };
        let begun = Instant::now();
        let mut failed = lock(&source.failed);
        let last = lock(&source.confirmed).asked;
        let is_recent = |last: Instant| batch && self.is_remote() && last.elapsed() < MAX_AGE;
        if self.freshness.is_replaced() || last.is_some_and(|last| last >= begun || is_recent(last))
        {
            return Ok(());
        }
        if let Some((_, e)) = failed.as_ref().filter(|(at, _)| *at >= begun) {
            return Err(e.clone());
        }
        let done = self.ask(source);
        *failed = done.clone().err().map(|e| (Instant::now(), e));
        done
    }

    fn ask(&self, source: &Source) -> Result<()> {
        let asked = Instant::now();
        match self.stored_document(source)? {
            Document::Same => lock(&source.confirmed).asked = Some(asked),
            Document::Other(version, metadata) if self.is_described_by(&metadata) => {
                let shape = (metadata.shape != self.metadata.shape).then_some(metadata.shape);
                if shape.is_some() {
                    self.freshness.supersede();
                }
                *lock(&source.confirmed) = Confirmed {
                    version,
                    asked: Some(asked),
                    shape,
                };
            }
            Document::Other(..) | Document::Gone => self.freshness.replace(),
        }
        Ok(())
    }

    fn stored_document(&self, source: &Source) -> Result<Document> {
        for key in &source.keys {
            self.store.forget(key);
            let Some(stat) = self.store.stat(key).context(key)? else {
                continue;
            };
            if lock(&source.confirmed).version == stat.version {
                return Ok(Document::Same);
            }
            let read = get_counted(&*self.store, key, MAX_DOCUMENT).context(key)?;
            let Some(Counted { bytes, stat, .. }) = read else {
                continue;
            };
            // another program may be writing the document in place: written bytes wait until it can
            // be parsed
            let metadata = (source.parse)(&bytes).context(key)?;
            return Ok(Document::Other(stat.version, Box::new(metadata)));
        }
        Ok(Document::Gone)
    }

    /// Returns whether `metadata` describes this array, except for the shape.
    fn is_described_by(&self, metadata: &ArrayMetadata) -> bool {
        self.metadata.is_resize_of(metadata)
            && metadata
                .separator
                .is_none_or(|separator| separator == self.separator())
    }

    /// Returns the bytes of a chunk, C layout, that belong to this array and, as of the last
    /// [`Array::confirm`], not to the array in the store, because another program has made it
    /// smaller. If the array in the store lacks the chunk, these are all its bytes, padding
    /// included.
    pub fn outside(&self, chunk: ChunkId) -> Ranges {
        let shape = self
            .source
            .as_ref()
            .and_then(|source| lock(&source.confirmed).shape.clone());
        let Some(shape) = shape else {
            return Ranges::default();
        };
        let smaller: Vec<u64> = shape
            .iter()
            .zip(&self.metadata.shape)
            .map(|(a, b)| *a.min(b))
            .collect();
        let kept = self.metadata.grid(&smaller).ok();
        let indices = self.grid.indices(chunk);
        let kept = kept.filter(|kept| {
            indices
                .iter()
                .zip(kept.counts())
                .all(|(index, count)| index < count)
        });
        let Some(kept) = kept else {
            return Ranges::from(0..self.grid.chunk_size(chunk));
        };
        let mut outside = Ranges::inside(&self.grid, chunk);
        outside.remove_all(&Ranges::inside(&kept, kept.chunk(&indices)));
        outside
    }
}

/// The document in the store, compared with the one that the array was read from.
enum Document {
    Same,
    Other(Version, Box<ArrayMetadata>),
    Gone,
}

#[cfg(test)]
mod tests;
