//! The record of an open file: the arrays that were written through it and are not stored yet.
//!
//! Invariant: if bytes that were written through a file are lost, every flush and fsync of the file
//! fails from then on, until its release. The close of a duplicate by a child process must not
//! swallow the error.

use crate::array::Array;
use std::sync::{Arc, Mutex, OnceLock};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;

/// The writes through one open file.
#[derive(Default)]
pub struct WriteRecord {
    /// Protects the list: the arrays written since everything was last stored, each with its count
    /// of losses before.
    written: Mutex<Vec<(Arc<Array>, u64)>>,
    lost: OnceLock<Error>,
}

impl WriteRecord {
    /// Records that the array was written through the file. `losses` is the array's count of losses
    /// before the write.
    pub fn add(&self, array: &Arc<Array>, losses: u64) {
        let mut written = lock(&self.written);
        if !written.iter().any(|(known, _)| Arc::ptr_eq(known, array)) {
            written.push((array.clone(), losses));
        }
    }

    /// Makes each flush and fsync of the file fail with `why`, because bytes are lost.
    pub fn lose(&self, why: Error) {
        let _ = self.lost.set(why);
    }

    /// Returns the result of a flush or fsync of the file, where `stored` is the result of storing.
    pub fn answer(&self, stored: Result<()>) -> Result<()> {
        let mut written = lock(&self.written);
        if let Some((array, _)) = written
            .iter()
            .find(|(array, before)| array.freshness().losses() > *before)
        {
            let why = "bytes that were written through this file are lost: .zarrfs/stats says why; write them again";
            let _ = self
                .lost
                .set(Error::stale().context(why).context(array.key()));
        }
        if stored.is_ok() {
            written.retain(|(array, _)| array.is_dirty());
        }
        self.lost.get().map_or(stored, |lost| Err(lost.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zarrfs_format::metadata::ArrayMetadata;
    use zarrfs_store::{Key, MemoryStore};

    fn array() -> Arc<Array> {
        let text = r#"{"zarr_format":2,"shape":[8],"chunks":[8],"dtype":"|u1","compressor":null,"fill_value":0,
            "order":"C","filters":null}"#;
        let metadata = ArrayMetadata::parse(text.as_bytes()).unwrap();
        Arc::new(
            Array::new(
                Key::root(),
                metadata,
                Arc::new(MemoryStore::default()),
                Arc::default(),
            )
            .unwrap(),
        )
    }

    #[test]
    fn each_flush_of_a_file_that_wrote_reports_a_loss() {
        let (array, [early, writer, other]) = (array(), [(); 3].map(|()| WriteRecord::default()));
        early.add(&array, array.freshness().losses());
        assert!(early.answer(Ok(())).is_ok(), "all is stored");
        writer.add(&array, array.freshness().losses());
        array.freshness().record_loss();
        array.freshness().add_dirty();
        other.add(&array, array.freshness().losses());
        for _ in 0..3 {
            assert_eq!(writer.answer(Ok(())).unwrap_err().errno(), libc::ESTALE);
            assert!(early.answer(Ok(())).is_ok() && other.answer(Ok(())).is_ok());
        }
        let full = Error::system(libc::ENOSPC);
        assert_eq!(other.answer(Err(full)).unwrap_err().errno(), libc::ENOSPC);
        array.freshness().record_loss();
        array.freshness().remove_dirty();
        assert_eq!(other.answer(Ok(())).unwrap_err().errno(), libc::ESTALE);
    }
}
