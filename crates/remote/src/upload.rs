//! Uploads of values in parts, which the server assembles: for values that do not fit into memory.

use super::ServedStore;
use super::cloud::{Bucket, failed, version_of_put};
use object_store::{MultipartUpload, PutMultipartOptions};
use std::os::unix::fs::FileExt;
use zarrfs_base::error::Result;
use zarrfs_base::memory;
use zarrfs_store::{Key, Replaces, ValuePiece, Version};

/// Size in bytes of all parts but the last. Servers take 10,000 parts of at least 5 MiB.
const PART: usize = 16 << 20;

impl Bucket {
    /// Puts a value of `pieces`. Servers accept no condition for such a put, so this function
    /// compares the current value with `replaces` before the new one replaces it.
    pub async fn put_in_parts(
        &self,
        key: &Key,
        pieces: &[ValuePiece<'_>],
        replaces: Replaces<'_>,
    ) -> Result<Option<Version>> {
        let path = self.path(key)?;
        // for a part that is being assembled, and one that is being sent
        let _memory = memory::take(2 * PART)?;
        let options = PutMultipartOptions::default();
        let begun = self.client.put_multipart_opts(&path, options).await;
        let mut upload = begun.map_err(failed)?;
        let put = self.upload(key, pieces, replaces, &mut *upload).await;
        if !matches!(put, Ok(Some(_))) {
            // otherwise the server keeps the parts
            let _ = upload.abort().await;
        }
        put
    }

    async fn upload(
        &self,
        key: &Key,
        pieces: &[ValuePiece<'_>],
        replaces: Replaces<'_>,
        upload: &mut dyn MultipartUpload,
    ) -> Result<Option<Version>> {
        // a vector that grows would take up to twice the memory that was granted
        let mut part = Vec::with_capacity(PART);
        for piece in pieces {
            let mut at = 0;
            while at < piece.size() {
                let len =
                    (PART - part.len()).min(usize::try_from(piece.size() - at).unwrap_or(PART));
                if !self
                    .append(key, piece, at, len, replaces, &mut part)
                    .await?
                {
                    return Ok(None);
                }
                at += len as u64;
                if part.len() == PART {
                    let full = std::mem::replace(&mut part, Vec::with_capacity(PART));
                    upload.put_part(full.into()).await.map_err(failed)?;
                }
            }
        }
        if !part.is_empty() {
            upload.put_part(part.into()).await.map_err(failed)?;
        }
        if !self.satisfies(key, replaces).await? {
            return Ok(None);
        }
        version_of_put(upload.complete().await).map(Some)
    }

    /// Appends `len` bytes of a piece, from its byte `at` on. Returns false if the old value was
    /// replaced.
    async fn append(
        &self,
        key: &Key,
        piece: &ValuePiece<'_>,
        at: u64,
        len: usize,
        replaces: Replaces<'_>,
        part: &mut Vec<u8>,
    ) -> Result<bool> {
        match piece {
            ValuePiece::Bytes(bytes) => {
                part.extend_from_slice(&bytes[at as usize..at as usize + len])
            }
            ValuePiece::File(file, range) => {
                let start = part.len();
                part.resize(start + len, 0);
                file.read_exact_at(&mut part[start..], range.start + at)?;
            }
            ValuePiece::Old(range) => {
                let start = range.start + at;
                let mut bytes = Vec::new();
                let found = self
                    .get_range(key, start..start + len as u64, &mut bytes)
                    .await?;
                match found {
                    Some(stat)
                        if replaces == Replaces::Version(&stat.version) && bytes.len() == len =>
                    {
                        part.extend_from_slice(&bytes);
                    }
                    _ => return Ok(false),
                }
            }
        }
        Ok(true)
    }

    /// Returns whether the value satisfies a condition now.
    async fn satisfies(&self, key: &Key, replaces: Replaces<'_>) -> Result<bool> {
        let found = self.stat(key).await?.map(|stat| stat.version);
        Ok(match replaces {
            Replaces::Anything => true,
            Replaces::Nothing => found.is_none(),
            Replaces::Version(version) => found.as_ref() == Some(version),
        })
    }
}
