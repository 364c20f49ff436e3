//! A decoder of BloscLZ, c-blosc's own LZ77 format (a descendant of FastLZ). Every read and write
//! is checked. The module does not know frames.

/// The largest distance that 13 bits can hold. It means that 16 more bits follow, which are added
/// to it.
const MAX_SHORT_DISTANCE: usize = 8191;

/// Decodes `src` into the front of `out` and returns the number of bytes written. Returns `None` if
/// `src` is damaged or cut short, or decodes to more than `out` holds.
pub fn decompress(src: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut input = EncodedInput { src, at: 1 };
    let mut made = 0;
    // the first instruction is always a run of literals
    let mut control = usize::from(*src.first()?) & 31;
    loop {
        if control < 32 {
            made = input.literals(control + 1, out, made)?;
            if input.at == src.len() {
                return Some(made);
            }
        } else {
            let (distance, len) = input.read_match(control)?;
            made = copy_match(out, made, distance, len)?;
        }
        control = input.byte()?;
    }
}

/// The encoded bytes and the position of the next one.
struct EncodedInput<'a> {
    src: &'a [u8],
    at: usize,
}

impl EncodedInput<'_> {
    #[inline]
    fn byte(&mut self) -> Option<usize> {
        let byte = *self.src.get(self.at)?;
        self.at += 1;
        Some(byte.into())
    }

    /// Copies `len` literals, at most 32. Where both slices allow it, copies 32 bytes, which is
    /// faster than a variable length.
    #[inline]
    fn literals(&mut self, len: usize, out: &mut [u8], made: usize) -> Option<usize> {
        let from = self.src.get(self.at..)?;
        let to = out.get_mut(made..)?;
        match (from.first_chunk::<32>(), to.first_chunk_mut::<32>()) {
            (Some(from), Some(to)) => *to = *from,
            _ => to.get_mut(..len)?.copy_from_slice(from.get(..len)?),
        }
        self.at += len;
        Some(made + len)
    }

    /// Reads the distance and length of a match whose first byte is `control`.
    #[inline]
    fn read_match(&mut self, control: usize) -> Option<(usize, usize)> {
        let mut len = (control >> 5) + 2;
        if control >> 5 == 7 {
            loop {
                let more = self.byte()?;
                len += more;
                if more != 255 {
                    break;
                }
            }
        }
        let mut distance = ((control & 31) << 8) + self.byte()?;
        if distance == MAX_SHORT_DISTANCE {
            distance += (self.byte()? << 8) + self.byte()?;
        }
        Some((distance + 1, len))
    }
}

/// Appends to the first `made` bytes of `out` a copy of `len` bytes that start `distance` bytes
/// before their end. Source and destination may overlap. Returns the new number of bytes.
#[inline]
fn copy_match(out: &mut [u8], made: usize, distance: usize, len: usize) -> Option<usize> {
    let from = made.checked_sub(distance)?;
    let end = made + len;
    if end > out.len() {
        return None;
    }
    if distance >= 16 && len <= 64 && end + 16 <= out.len() {
        let mut done = 0;
        while done < len {
            let bytes: [u8; 16] = *out[from + done..].first_chunk()?;
            *out[made + done..].first_chunk_mut()? = bytes;
            done += 16;
        }
    } else if distance == 1 {
        let byte = out[from];
        out[made..end].fill(byte);
    } else {
        // each copy doubles the bytes that the next one can use
        let mut done = 0;
        while done < len {
            let step = (distance + done).min(len - done);
            out.copy_within(from..from + step, made + done);
            done += step;
        }
    }
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(src: &[u8], room: usize) -> Option<Vec<u8>> {
        let mut out = vec![0; room];
        let n = decompress(src, &mut out)?;
        out.truncate(n);
        Some(out)
    }

    #[test]
    fn literals_and_matches_are_decoded() {
        assert_eq!(run(&[2, b'a', b'b', b'c'], 3), Some(b"abc".to_vec()));
        assert_eq!(
            run(&[0x22, b'a', b'b', b'c'], 3),
            Some(b"abc".to_vec()),
            "the first is a run whatever it says"
        );
        assert_eq!(
            run(&[2, b'a', b'b', b'c', 0x20, 2, 0, b'!'], 7),
            Some(b"abcabc!".to_vec())
        );
        assert_eq!(
            run(&[0, b'a', 0xE0, 3, 0, 0, b'!'], 14),
            Some(b"aaaaaaaaaaaaa!".to_vec())
        );
        assert_eq!(
            run(&[1, b'a', b'b', 0x80, 1, 0, b'!'], 9),
            Some(b"abababab!".to_vec())
        );
    }

    #[test]
    fn distances_beyond_13_bits_are_decoded() {
        let mut src = Vec::new();
        let plain: Vec<u8> = (0..9000u32).map(|i| (i * 7 % 251) as u8).collect();
        for run in plain.chunks(32) {
            src.push(run.len() as u8 - 1);
            src.extend(run);
        }
        src.extend([0x3F, 255, 0, 8, 0, b'!']);
        let want = [&plain[..], &plain[9000 - 8200..][..3], b"!"].concat();
        assert_eq!(run(&src, 9004), Some(want));
    }

    #[test]
    fn damaged_streams_are_refused() {
        for bad in [
            &[][..],
            &[0],
            &[5, 1, 2],
            &[0, 1, 0x20, 0],
            &[0, 1, 0x20, 1, 0, 1],
            &[0, 1, 0xE0, 255],
            &[0, 1, 0x20],
        ] {
            assert_eq!(run(bad, 100), None, "{bad:?}");
        }
        assert_eq!(
            run(&[0, b'a', 0xE0, 255, 255, 255, 255, 0, 0, 0, b'!'], 100),
            None
        );
        assert_eq!(run(&[2, 1, 2, 3], 2), None);
    }
}
