//! Checks of lengths that many codecs share. The module does not know what the bytes mean.

use super::{CodecError, CodecResult};

/// Returns the first `len` bytes of `out`, or an error if it is shorter.
pub(super) fn front(out: &mut [u8], len: usize) -> CodecResult<&mut [u8]> {
    let room = out.len();
    out.get_mut(..len).ok_or_else(|| {
        CodecError::new(format!(
            "decodes to {len} bytes, more than the {room} expected"
        ))
    })
}

/// Copies `bytes` to the front of `out` and returns their number.
pub(super) fn copy(bytes: &[u8], out: &mut [u8]) -> CodecResult<usize> {
    front(out, bytes.len())?.copy_from_slice(bytes);
    Ok(bytes.len())
}

/// Returns the number of items of `size` bytes in `bytes`. An incomplete item is an error, as for
/// NumPy's `view`.
pub(super) fn count(bytes: &[u8], size: usize) -> CodecResult<usize> {
    if size == 0 || !bytes.len().is_multiple_of(size) {
        return Err(CodecError::new(format!(
            "{} bytes are not whole items of {size}",
            bytes.len()
        )));
    }
    Ok(bytes.len() / size)
}

/// Returns `items * size`, or an error on overflow.
pub(super) fn total(items: usize, size: usize) -> CodecResult<usize> {
    items
        .checked_mul(size)
        .ok_or_else(|| CodecError::new(format!("{items} items of {size} bytes are too many")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_checked() {
        let mut out = [0; 3];
        assert_eq!(copy(b"ab", &mut out), Ok(2));
        assert_eq!(out, *b"ab\0");
        assert!(copy(b"abcd", &mut out).is_err());
        assert_eq!(count(&[0; 8], 4), Ok(2));
        assert!(count(&[0; 7], 4).is_err() && count(&[], 0).is_err());
        assert!(total(usize::MAX, 2).is_err());
    }
}
