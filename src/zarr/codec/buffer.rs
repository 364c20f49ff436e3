//! The few checks that every codec makes on lengths, so that each says them the same way. Codec traits and buffers of
//! bytes only: nothing here knows what the bytes mean.

use super::CodecError;

/// The first `len` bytes of `out`, or why they don't fit.
pub(super) fn front(out: &mut [u8], len: usize) -> Result<&mut [u8], CodecError> {
    let room = out.len();
    out.get_mut(..len).ok_or_else(|| CodecError::new(format!("decodes to {len} bytes, more than the {room} expected")))
}

/// Copies `bytes` to the front of `out` and returns how many they are.
pub(super) fn copy(bytes: &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
    front(out, bytes.len())?.copy_from_slice(bytes);
    Ok(bytes.len())
}

/// How many items of `size` bytes `bytes` holds; a part of one is an error, as it is for numpy's `view`.
pub(super) fn count(bytes: &[u8], size: usize) -> Result<usize, CodecError> {
    if size == 0 || !bytes.len().is_multiple_of(size) {
        return Err(CodecError::new(format!("{} bytes are not whole items of {size}", bytes.len())));
    }
    Ok(bytes.len() / size)
}

/// `items * size`, or why there are too many.
pub(super) fn total(items: usize, size: usize) -> Result<usize, CodecError> {
    items.checked_mul(size).ok_or_else(|| CodecError::new(format!("{items} items of {size} bytes are too many")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths() {
        let mut out = [0; 3];
        assert_eq!(copy(b"ab", &mut out), Ok(2));
        assert_eq!(out, *b"ab\0");
        assert!(copy(b"abcd", &mut out).is_err());
        assert_eq!(count(&[0; 8], 4), Ok(2));
        assert!(count(&[0; 7], 4).is_err() && count(&[], 0).is_err());
        assert!(total(usize::MAX, 2).is_err());
    }
}
