//! Items of up to 8 bytes as integers, in either byte order, for codecs that work on bits. The
//! module does not know what the bits mean.

/// Returns the integer in `bytes`, which has at most 8 bytes.
#[inline(always)]
pub fn load(bytes: &[u8], is_big_endian: bool) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    if is_big_endian {
        word[..bytes.len()].reverse();
    }
    u64::from_le_bytes(word)
}

/// Writes the lowest bytes of `value` to `bytes`, which has at most 8 bytes.
#[inline(always)]
pub fn store(value: u64, bytes: &mut [u8], is_big_endian: bool) {
    bytes.copy_from_slice(&value.to_le_bytes()[..bytes.len()]);
    if is_big_endian {
        bytes.reverse();
    }
}

/// Runs `$body` with the constant `$N` standing for `$size`, which is 1, 2, 4 or 8.
macro_rules! with_size {
    ($size:expr, $N:ident => $body:expr) => {
        $crate::word::with_size!(@ $size, $N => $body; 1 2 4 8)
    };
    (@ $size:expr, $N:ident => $body:expr; $($known:literal)*) => {
        match $size {
            $($known => {
                const $N: usize = $known;
                $body
            })*
            _ => {}
        }
    };
}
pub(crate) use with_size;

/// Applies `step` to every item of `N` bytes.
#[inline(always)]
pub fn each<const N: usize>(bytes: &mut [u8], is_big_endian: bool, step: impl Fn(u64) -> u64) {
    for item in bytes.as_chunks_mut::<N>().0 {
        store(step(load(item, is_big_endian)), item, is_big_endian);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_byte_orders() {
        assert_eq!(
            (load(&[1, 2], false), load(&[1, 2], true), load(&[], true)),
            (0x201, 0x102, 0)
        );
        let mut bytes = [0, 1, 0, 255];
        each::<2>(&mut bytes, true, |n| n + 1);
        assert_eq!(bytes, [0, 2, 1, 0]);
        each::<4>(&mut bytes, false, |n| n - 1);
        assert_eq!(bytes, [255, 1, 1, 0]);
    }
}
