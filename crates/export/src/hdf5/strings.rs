//! Strings as HDF5 holds those of variable length: a sequence for each, and the heap with their
//! bytes. NetCDF-C 4.9.0 crashes when it reads strings of a fixed length. This module knows neither
//! headers nor where in the file the strings are.

use super::heap::{Heap, SEQUENCE};
use super::messages::TextEncoding;
use crate::describe::{StringEncoding, are_strings, visit_strings};
use crate::reader::ArrayNode;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory;
use zarrfs_format::dtype::DTypeKind;
use zarrfs_format::metadata::ArrayMetadata;

/// Maximum size in bytes of the strings of an array, with what HDF5 adds to each, and of its flat
/// bytes.
pub const MAX_BYTES: usize = 4 << 20;

/// The strings of an array in C order.
pub struct HeapStrings {
    /// The encoding of all of them.
    pub encoding: TextEncoding,
    /// A sequence for each, and then the heap, as they are at address 0.
    bytes: Vec<u8>,
    /// The size of the sequences in bytes.
    sequences: usize,
}

/// Returns whether an array has strings; single bytes are characters of netCDF.
pub fn has_strings(metadata: &ArrayMetadata) -> bool {
    let is_character = *metadata.dtype.kind() == DTypeKind::Bytes && metadata.dtype.size() == 1;
    are_strings(metadata) && !is_character
}

impl HeapStrings {
    /// Reads the strings of an array, which take at most `most` bytes, as their flat bytes do.
    ///
    /// # Errors
    ///
    /// They cannot be read, take more memory, or have bytes that a string of HDF5 cannot have.
    pub fn read(array: &ArrayNode, most: usize) -> Result<Self> {
        let too_large = || Error::unsupported(format!("its strings take more than {most} bytes"));
        let metadata = &array.metadata;
        if !metadata.has_objects() && array.size() > most as u64 {
            return Err(too_large());
        }
        let count = array.size() / metadata.dtype.size().max(1) as u64;
        let sequences = (count as usize).saturating_mul(SEQUENCE);
        if sequences > most {
            return Err(too_large());
        }
        let mut bytes = memory::zeroed(sequences)?;
        let mut heap = Heap::default();
        let mut is_ascii = *metadata.dtype.kind() == DTypeKind::Bytes
            || StringEncoding::of(metadata) == Some(StringEncoding::VlenBytes);
        visit_strings(array, &mut |number, string| {
            // programs in C take a zero for the end
            if string.contains(&0) || std::str::from_utf8(string).is_err() {
                return Err(Error::unsupported("its strings are no text"));
            }
            if sequences + heap.len() + string.len() > most {
                return Err(too_large());
            }
            is_ascii &= string.is_ascii();
            let sequence = heap.push(string).sequence(string.len(), sequences as u64);
            let place = bytes.get_mut(number * SEQUENCE..(number + 1) * SEQUENCE);
            place
                .ok_or_else(|| Error::damaged("a chunk has too many strings"))?
                .copy_from_slice(&sequence);
            Ok(())
        })?;
        bytes.extend(heap.into_bytes());
        let encoding = if is_ascii {
            TextEncoding::Ascii
        } else {
            TextEncoding::Utf8
        };
        Ok(HeapStrings {
            encoding,
            bytes,
            sequences,
        })
    }

    /// Returns the size of the sequences and the heap in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the size of the sequences in bytes.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// Returns the sequences and the heap as they are at an address of the file.
    pub fn at(mut self, address: u64) -> Vec<u8> {
        let (sequences, _) = self.bytes[..self.sequences].as_chunks_mut::<SEQUENCE>();
        for sequence in sequences {
            let (_, place) = sequence.split_at_mut(4);
            if let Some(place) = place.first_chunk_mut() {
                *place = (u64::from_le_bytes(*place) + address).to_le_bytes();
            }
        }
        self.bytes
    }
}
