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
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_format::grid::{ChunkId, Grid};
use zarrfs_format::metadata::{ArrayMetadata, MAX_DOCUMENT};
use zarrfs_store::{Counted, Key, Version, get_counted};

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
        if self.freshness.is_replaced() {
            return Ok(());
        }
        let last = lock(&source.confirmed).asked;
        if batch && self.is_remote() && last.is_some_and(|last| last.elapsed() < MAX_AGE) {
            return Ok(());
        }
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
            let Some(stat) = self.store.stat(key).map_err(|e| e.context(key))? else {
                continue;
            };
            if lock(&source.confirmed).version == stat.version {
                return Ok(Document::Same);
            }
            let read = get_counted(&*self.store, key, MAX_DOCUMENT).map_err(|e| e.context(key))?;
            let Some(Counted { bytes, stat, .. }) = read else {
                continue;
            };
            // another program may be writing the document in place: written bytes wait until it can
            // be parsed
            let metadata = (source.parse)(&bytes).map_err(|e| e.context(key))?;
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
        let mut outside = bytes_inside(&self.grid, chunk);
        outside.remove_all(&bytes_inside(&kept, kept.chunk(&indices)));
        outside
    }

    /// Records that bytes of a chunk are lost, and returns the error for them.
    pub fn lost(&self, chunk: ChunkId, why: &str) -> Error {
        self.freshness.record_loss();
        let what = format!(
            "{why} meanwhile: what was written is lost; open the file again and write anew"
        );
        Error::stale().context(what).context(self.stored_key(chunk))
    }
}

/// Returns the bytes of a chunk that lie inside the array of `grid`.
fn bytes_inside(grid: &Grid, chunk: ChunkId) -> Ranges {
    grid.chunk_runs(chunk, 0..grid.size())
        .into_iter()
        .map(|(_, run)| run.offset..run.offset + run.len)
        .collect()
}

/// The document in the store, compared with the one that the array was read from.
enum Document {
    Same,
    Other(Version, Box<ArrayMetadata>),
    Gone,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use zarrfs_format::metadata::ZARRAY;
    use zarrfs_store::{MemoryStore, Store};

    fn document(shape: &str, dtype: &str) -> String {
        format!(
            r#"{{"zarr_format":2,"shape":{shape},"chunks":[2,3],"dtype":"{dtype}","compressor":null,"fill_value":0,
            "order":"C","filters":null}}"#
        )
    }

    fn array(store: &Arc<MemoryStore>) -> Array {
        let text = document("[5,7]", "|u1");
        let key = Key::root().join(ZARRAY);
        let version = store.put(&key, text.as_bytes()).unwrap();
        let metadata = ArrayMetadata::parse(text.as_bytes()).unwrap();
        let array = Array::new(Key::root(), metadata, store.clone(), Arc::default()).unwrap();
        array.with_source(Source::new(
            vec![key],
            Box::new(ArrayMetadata::parse),
            version,
        ))
    }

    #[test]
    fn a_document_that_says_the_same_confirms_the_array() {
        let store = Arc::new(MemoryStore::default());
        let array = array(&store);
        for text in [document("[5,7]", "|u1"), document("[5, 7]", "|u1")] {
            store
                .put(&Key::root().join(ZARRAY), text.as_bytes())
                .unwrap();
            array.confirm(false).unwrap();
            assert!(!array.freshness().is_replaced() && array.outside(ChunkId(8)).is_empty());
        }
    }

    #[test]
    fn a_document_of_another_array_or_none_ends_the_array() {
        let other = [
            Some(document("[5,7]", "<u2")),
            Some(document("[5,7]", "|u1").replace("[2,3]", "[3,2]")),
            None,
        ];
        for text in other {
            let store = Arc::new(MemoryStore::default());
            let array = array(&store);
            match &text {
                Some(text) => drop(
                    store
                        .put(&Key::root().join(ZARRAY), text.as_bytes())
                        .unwrap(),
                ),
                None => drop(store.delete(&Key::root().join(ZARRAY)).unwrap()),
            }
            array.confirm(false).unwrap();
            assert!(array.freshness().is_replaced(), "{text:?}");
        }
    }

    #[test]
    fn a_document_that_is_being_written_does_not_end_the_array() {
        let store = Arc::new(MemoryStore::default());
        let array = array(&store);
        let whole = document("[5,7]", "|u1").replace(r#""fill_value":0"#, r#""fill_value":0.0"#);
        for len in [0, whole.len() / 2] {
            store
                .put(&Key::root().join(ZARRAY), &whole.as_bytes()[..len])
                .unwrap();
            assert!(array.confirm(false).is_err() && !array.freshness().is_replaced());
        }
        store
            .put(&Key::root().join(ZARRAY), whole.as_bytes())
            .unwrap();
        array.confirm(false).unwrap();
        assert!(!array.freshness().is_replaced(), "another spelling");
    }

    #[test]
    fn chunks_that_another_program_appends_to_a_list_do_not_end_the_array() {
        let sharding = r#"{"name":"sharding_indexed","configuration":{"chunk_shape":[1],"codecs":["bytes"],
            "index_codecs":["bytes"]}}"#;
        let transpose = r#"{"name":"transpose","configuration":{"order":[0]}},"bytes","zstd""#;
        let document = |len: u64, lengths: &str, codecs: &str| {
            format!(
                r#"{{"zarr_format":3,"node_type":"array","shape":[{len}],"data_type":"uint8","fill_value":0,
                "chunk_grid":{{"name":"rectilinear","configuration":{{"kind":"inline","chunk_shapes":[{lengths}]}}}},
                "chunk_key_encoding":{{"name":"default"}},"codecs":[{codecs}]}}"#
            )
        };
        // the length and the lists of both, and whether the chunks of the smaller one are the same
        let cases = [
            (7, "[2,2,3]", 11, "[2,2,3,4]", true),
            (11, "[2,2,3,4]", 7, "[2,2,3]", true),
            (6, "[[2,3]]", 11, "[2,2,2,5]", true),
            (6, "2", 11, "[2,2,2,5]", true),
            (11, "[2,2,2,5]", 6, "2", true),
            (7, "[2,2,3]", 11, "[2,2,7]", false),
            (7, "[2,2,4]", 11, "[2,2,3,4]", false),
            (6, "2", 11, "3", false),
            (6, "2", 12, "[2,2,1,7]", false),
        ];
        for codecs in ["\"bytes\"", sharding, transpose] {
            for (len, lengths, other_len, other, is_same) in cases {
                let store = Arc::new(MemoryStore::default());
                let text = document(len, lengths, codecs);
                let key = Key::root().join("zarr.json");
                let version = store.put(&key, text.as_bytes()).unwrap();
                let metadata = ArrayMetadata::parse_v3(text.as_bytes()).unwrap();
                let array =
                    Array::new(Key::root(), metadata, store.clone(), Arc::default()).unwrap();
                let array = array.with_source(Source::new(
                    vec![key.clone()],
                    Box::new(ArrayMetadata::parse_v3),
                    version,
                ));
                store
                    .put(&key, document(other_len, other, codecs).as_bytes())
                    .unwrap();
                array.confirm(false).unwrap();
                assert_eq!(
                    array.freshness().is_replaced(),
                    !is_same,
                    "{codecs} {lengths} {other}"
                );
                let other_codecs = document(other_len, other, r#""bytes","gzip""#);
                let other_codecs = ArrayMetadata::parse_v3(other_codecs.as_bytes()).unwrap();
                assert!(
                    !array.metadata().is_resize_of(&other_codecs),
                    "{codecs} {lengths}"
                );
            }
        }
    }

    #[test]
    fn bytes_outside_a_smaller_shape_are_named() {
        let store = Arc::new(MemoryStore::default());
        let array = array(&store);
        // chunks of 2 x 3 items; the grid has 3 x 3 chunks
        store
            .put(
                &Key::root().join(ZARRAY),
                document("[3,9]", "|u1").as_bytes(),
            )
            .unwrap();
        array.confirm(false).unwrap();
        assert!(!array.freshness().is_replaced());
        assert!(array.outside(ChunkId(0)).is_empty());
        assert_eq!(
            array.outside(ChunkId(3)),
            Ranges::from(3..6),
            "row 3 of rows 2 and 3"
        );
        assert_eq!(
            array.outside(ChunkId(6)),
            Ranges::from(0..6),
            "rows 4 and 5 of a chunk that is no more"
        );
        store
            .put(
                &Key::root().join(ZARRAY),
                document("[9,9]", "|u1").as_bytes(),
            )
            .unwrap();
        array.confirm(false).unwrap();
        assert!(array.outside(ChunkId(6)).is_empty());
    }
}
