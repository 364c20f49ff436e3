//! The inverse of blosc's byte and bit shuffles: planes of bytes, or rows of bits, become items.
//! Layouts and the treatment of incomplete items are those of c-blosc 1.21. The code uses AVX2 if
//! the processor has it, which is tested at run time. The module does not know frames.

/// Number of items of a bit-shuffled block processed together: 64 bytes, one cache line, of each
/// row.
const TILE: usize = 512;

/// Reverses the byte shuffle: plane j of `src` holds byte j of every item. Bytes after the last
/// whole item are copied. Both slices have the same length.
pub fn unshuffle(typesize: usize, src: &[u8], dst: &mut [u8]) {
    let items = src.len() / typesize;
    let (whole, tail) = src.split_at(items * typesize);
    let (items_out, tail_out) = dst.split_at_mut(whole.len());
    tail_out.copy_from_slice(tail);
    if items > 0 {
        join(typesize, whole, items, items_out);
    }
}

/// Reverses the bit shuffle: row r of `src` holds bit r of every item. Blosc does not shuffle a
/// block unless the number of its items is a multiple of 8. Both slices have the same length.
pub fn bitunshuffle(typesize: usize, src: &[u8], dst: &mut [u8]) {
    let items = src.len() / typesize;
    if !items.is_multiple_of(8) {
        return dst.copy_from_slice(src);
    }
    let (whole, tail) = src.split_at(items * typesize);
    let (whole_out, tail_out) = dst.split_at_mut(whole.len());
    tail_out.copy_from_slice(tail);
    let row = items / 8;
    let mut small = [0; TILE * 16];
    let mut large = Vec::new();
    let tile = if typesize <= 16 {
        &mut small[..TILE * typesize]
    } else {
        large.resize(TILE * typesize, 0);
        &mut large[..]
    };
    for (n, out) in whole_out.chunks_mut(TILE * typesize).enumerate() {
        let at = n * TILE / 8;
        let width = out.len() / typesize / 8;
        for (rows, plane) in whole.chunks_exact(row * 8).zip(tile.chunks_exact_mut(TILE)) {
            gather_bits(&rows[at..], row, &mut plane[..width * 8]);
        }
        join(typesize, tile, TILE, out);
    }
}

/// Interleaves `planes`, which start every `stride` bytes, into the items in `out`.
fn join(typesize: usize, planes: &[u8], stride: usize, out: &mut [u8]) {
    if typesize == 1 {
        return out.copy_from_slice(&planes[..out.len()]);
    }
    #[cfg(target_arch = "x86_64")]
    let done = if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2; the function checks its bounds.
        unsafe { avx2::join(typesize, planes, stride, out) }
    } else {
        0
    };
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    let planes = &planes[done..];
    let out = &mut out[done * typesize..];
    match typesize {
        2 => join_fixed::<2>(planes, stride, out),
        4 => join_fixed::<4>(planes, stride, out),
        8 => join_fixed::<8>(planes, stride, out),
        _ => {
            for (i, item) in out.chunks_exact_mut(typesize).enumerate() {
                item.iter_mut()
                    .enumerate()
                    .for_each(|(j, byte)| *byte = planes[j * stride + i]);
            }
        }
    }
}

/// Does what [`join`] does, for an item size that the compiler knows.
fn join_fixed<const P: usize>(planes: &[u8], stride: usize, out: &mut [u8]) {
    let items = out.len() / P;
    if items == 0 {
        return;
    }
    let planes: [&[u8]; P] = std::array::from_fn(|j| &planes[j * stride..][..items]);
    for (i, item) in out.as_chunks_mut::<P>().0.iter_mut().enumerate() {
        *item = std::array::from_fn(|j| planes[j][i]);
    }
}

/// Interleaves the bits of 8 rows, which start every `row` bytes of `rows`, into one plane of
/// bytes. Each byte of a row makes 8 bytes of `plane`.
fn gather_bits(rows: &[u8], row: usize, plane: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    let done = if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2; the function checks its bounds.
        unsafe { avx2::gather_bits(rows, row, plane) }
    } else {
        0
    };
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    let mut at = done / 8;
    for bytes in plane[done..].chunks_mut(64) {
        let width = bytes.len() / 8;
        let mut words: [u64; 8] = std::array::from_fn(|r| {
            let mut word = [0; 8];
            word[..width].copy_from_slice(&rows[r * row + at..][..width]);
            u64::from_le_bytes(word)
        });
        transpose_bits(&mut words);
        for (g, eight) in bytes.chunks_exact_mut(8).enumerate() {
            eight
                .iter_mut()
                .zip(&words)
                .for_each(|(byte, word)| *byte = (word >> (8 * g)) as u8);
        }
        at += width;
    }
}

/// Transposes, for every g, the 8 x 8 bits in byte g of the words: bit k of word r becomes bit r of
/// word k.
fn transpose_bits(words: &mut [u64; 8]) {
    for (step, mask) in [
        (1, 0x5555_5555_5555_5555),
        (2, 0x3333_3333_3333_3333),
        (4, 0x0F0F_0F0F_0F0F_0F0F),
    ] {
        for low in (0..8).filter(|r| r & step == 0) {
            let swap = ((words[low] >> step) ^ words[low + step]) & mask;
            words[low + step] ^= swap;
            words[low] ^= swap << step;
        }
    }
}

/// AVX2 versions of `join` and `gather_bits`, for 32 bytes of each plane or row at a time. Both
/// interleave the bytes of P vectors by unpacking the vectors log2(P) times.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(bytes: &[u8]) -> __m256i {
        let bytes = &bytes[..32];
        // SAFETY: an unaligned load of 32 bytes of the slice.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store(bytes: &mut [u8], vector: __m256i) {
        let bytes = &mut bytes[..32];
        // SAFETY: an unaligned store to 32 bytes of the slice.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) }
    }

    /// Interleaves the bytes of P vectors, where P is 2, 4, 8 or 16, and stores the 32 items of P
    /// bytes.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn interleave<const P: usize>(mut v: [__m256i; P], out: &mut [u8]) {
        let mut width = 1;
        while width < P {
            let mut next = v;
            for k in 0..P / 2 {
                next[2 * k] = _mm256_unpacklo_epi8(v[k], v[k + P / 2]);
                next[2 * k + 1] = _mm256_unpackhi_epi8(v[k], v[k + P / 2]);
            }
            v = next;
            width *= 2;
        }
        // the low halves hold items 0 to 15, the high halves items 16 to 31
        let (low, high) = out[..32 * P].split_at_mut(16 * P);
        for k in 0..P / 2 {
            store(
                &mut low[32 * k..],
                _mm256_permute2x128_si256::<0x20>(v[2 * k], v[2 * k + 1]),
            );
            store(
                &mut high[32 * k..],
                _mm256_permute2x128_si256::<0x31>(v[2 * k], v[2 * k + 1]),
            );
        }
    }

    /// Loads 32 bytes from offset `at` of each of P planes.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn planes_at<const P: usize>(planes: &[u8], stride: usize, at: usize) -> [__m256i; P] {
        let mut v = [_mm256_setzero_si256(); P];
        for (j, vector) in v.iter_mut().enumerate() {
            *vector = load(&planes[j * stride + at..]);
        }
        v
    }

    /// Does what [`super::join`] does for as many items as fill vectors, and returns their number.
    #[target_feature(enable = "avx2")]
    pub fn join(typesize: usize, planes: &[u8], stride: usize, out: &mut [u8]) -> usize {
        match typesize {
            2 => join_fixed::<2>(planes, stride, out),
            4 => join_fixed::<4>(planes, stride, out),
            8 => join_fixed::<8>(planes, stride, out),
            16 => join_fixed::<16>(planes, stride, out),
            17.. => join_parts::<16>(typesize, planes, stride, out),
            9.. => join_parts::<8>(typesize, planes, stride, out),
            5.. => join_parts::<4>(typesize, planes, stride, out),
            _ => join_parts::<2>(typesize, planes, stride, out),
        }
    }

    #[target_feature(enable = "avx2")]
    fn join_fixed<const P: usize>(planes: &[u8], stride: usize, out: &mut [u8]) -> usize {
        let mut chunks = out.chunks_exact_mut(32 * P);
        let mut at = 0;
        for chunk in &mut chunks {
            interleave(planes_at::<P>(planes, stride, at), chunk);
            at += 32;
        }
        at
    }

    /// Joins items of any size, P planes at a time. The last P planes may overlap those before.
    #[target_feature(enable = "avx2")]
    fn join_parts<const P: usize>(
        typesize: usize,
        planes: &[u8],
        stride: usize,
        out: &mut [u8],
    ) -> usize {
        let mut part = [0; 512];
        let mut at = 0;
        for chunk in out.chunks_exact_mut(32 * typesize) {
            let mut first = 0;
            while first < typesize {
                let j = first.min(typesize - P);
                interleave(planes_at::<P>(&planes[j * stride..], stride, at), &mut part);
                for (item, bytes) in chunk
                    .chunks_exact_mut(typesize)
                    .zip(part.as_chunks::<P>().0)
                {
                    item[j..j + P].copy_from_slice(bytes);
                }
                first += P;
            }
            at += 32;
        }
        at
    }

    /// Does what [`super::gather_bits`] does for as many bytes of `plane` as fill vectors, and
    /// returns their number.
    #[target_feature(enable = "avx2")]
    pub fn gather_bits(rows: &[u8], row: usize, plane: &mut [u8]) -> usize {
        let mut at = 0;
        for chunk in plane.chunks_exact_mut(256) {
            let mut v = planes_at::<8>(rows, row, at);
            exchange::<1>(&mut v, _mm256_set1_epi8(0x55));
            exchange::<2>(&mut v, _mm256_set1_epi8(0x33));
            exchange::<4>(&mut v, _mm256_set1_epi8(0x0F));
            interleave(v, chunk);
            at += 32;
        }
        at * 8
    }

    /// Does one step of the bit transposition: of rows that are STEP apart, the first one's bits
    /// outside `mask` are swapped with the second one's bits inside it.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn exchange<const STEP: i32>(v: &mut [__m256i; 8], mask: __m256i) {
        let step = STEP as usize;
        for low in 0..8 {
            if low & step == 0 {
                let a = v[low];
                let b = v[low + step];
                let swap =
                    _mm256_and_si256(_mm256_xor_si256(_mm256_srli_epi64::<STEP>(a), b), mask);
                v[low + step] = _mm256_xor_si256(b, swap);
                v[low] = _mm256_xor_si256(a, _mm256_slli_epi64::<STEP>(swap));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len as u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect()
    }

    #[test]
    fn byte_unshuffle_matches_the_definition() {
        for typesize in (1..=40).chain([64, 100, 255]) {
            for items in [0, 1, 7, 31, 32, 33, 64, 100, 520] {
                let src = bytes(items * typesize + typesize / 2);
                let mut dst = vec![0; src.len()];
                unshuffle(typesize, &src, &mut dst);
                let whole = items * typesize;
                let plain: Vec<u8> = (0..whole)
                    .map(|k| src[k % typesize * items + k / typesize])
                    .collect();
                assert!(
                    dst[..whole] == plain && dst[whole..] == src[whole..],
                    "{typesize} {items}"
                );
            }
        }
    }

    #[test]
    fn bit_unshuffle_matches_the_definition() {
        for typesize in [1, 2, 3, 4, 7, 8, 12, 16, 17, 255] {
            for items in [0, 8, 16, 64, 72, 256, 504, 512, 520, 1032, 12] {
                let src = bytes(items * typesize + typesize / 2);
                let mut dst = vec![0; src.len()];
                bitunshuffle(typesize, &src, &mut dst);
                if items % 8 != 0 {
                    assert_eq!(dst, src);
                    continue;
                }
                let bit = |item: usize, r: usize| src[r * items / 8 + item / 8] >> (item % 8) & 1;
                let byte = |k: usize| {
                    (0..8)
                        .map(|b| bit(k / typesize, k % typesize * 8 + b) << b)
                        .sum::<u8>()
                };
                let whole = items * typesize;
                let plain: Vec<u8> = (0..whole).map(byte).collect();
                assert!(
                    dst[..whole] == plain && dst[whole..] == src[whole..],
                    "{typesize} {items}"
                );
            }
        }
    }

    #[test]
    fn vector_and_plain_code_agree() {
        let rows = bytes(8 * 40);
        let mut all = vec![0; 320];
        let mut plain = vec![0; 320];
        gather_bits(&rows, 40, &mut all);
        for (at, eight) in plain.chunks_exact_mut(8).enumerate() {
            gather_bits(&rows[at..], 40, eight);
        }
        assert_eq!(all, plain);
        let planes = bytes(1000);
        let mut plain = vec![0; 1000];
        join_fixed::<4>(&planes, 250, &mut plain);
        let mut all = vec![0; 1000];
        join(4, &planes, 250, &mut all);
        assert_eq!(all, plain);
    }
}
