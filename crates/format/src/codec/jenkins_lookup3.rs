//! Bob Jenkins' 32-bit hash, the checksum of the filter `jenkins_lookup3`. Source of the rules: the
//! published description of `hashlittle` in lookup3.

type HashState = [u32; 3];

/// Adds a block to the state.
fn absorb(state: &mut HashState, block: &[u8; 12]) {
    let (words, _) = block.as_chunks();
    for (s, &word) in state.iter_mut().zip(words) {
        *s = s.wrapping_add(u32::from_le_bytes(word));
    }
}

/// Returns `hashlittle` of `bytes` with the initial value `initval`.
pub fn hash(bytes: &[u8], initval: u32) -> u32 {
    let mut state = [0xdead_beef_u32
        .wrapping_add(bytes.len() as u32)
        .wrapping_add(initval); 3];
    let mut rest = bytes;
    // the last block, full or not, is mixed differently
    while let Some((block, after)) = rest
        .split_first_chunk()
        .filter(|(_, after)| !after.is_empty())
    {
        absorb(&mut state, block);
        mix(&mut state);
        rest = after;
    }
    if !rest.is_empty() {
        let mut block = [0; 12];
        block[..rest.len()].copy_from_slice(rest);
        absorb(&mut state, &block);
        finish(&mut state);
    }
    state[2]
}

fn mix(state: &mut HashState) {
    let [mut a, mut b, mut c] = *state;
    for (first, second, third) in [(4, 6, 8), (16, 19, 4)] {
        a = a.wrapping_sub(c) ^ c.rotate_left(first);
        c = c.wrapping_add(b);
        b = b.wrapping_sub(a) ^ a.rotate_left(second);
        a = a.wrapping_add(c);
        c = c.wrapping_sub(b) ^ b.rotate_left(third);
        b = b.wrapping_add(a);
    }
    *state = [a, b, c];
}

fn step(x: u32, y: u32, turn: u32) -> u32 {
    (x ^ y).wrapping_sub(y.rotate_left(turn))
}

fn finish(state: &mut HashState) {
    let [mut a, mut b, mut c] = *state;
    c = step(c, b, 14);
    a = step(a, c, 11);
    b = step(b, a, 25);
    c = step(c, b, 16);
    a = step(a, c, 4);
    b = step(b, a, 14);
    c = step(c, b, 24);
    *state = [a, b, c];
}

#[cfg(test)]
mod tests {
    use crate::codec::testing::{broken, check, refused};

    #[test]
    fn worked_examples() {
        let config = r#"{"id": "jenkins_lookup3"}"#;
        check(config, b"", &[0xef, 0xbe, 0xad, 0xde]);
        check(
            config,
            b"hello world, longer than 24 b",
            b"hello world, longer than 24 b\xe4\x03\x25\xa4",
        );
        check(
            r#"{"id": "jenkins_lookup3", "initval": 1, "prefix": null}"#,
            b"hello",
            b"hello\x9f\xa9\xee\xca",
        );
        broken(config, b"hello\0\0\0\0");
        broken(config, b"abc");
        refused(r#"{"id": "jenkins_lookup3", "initval": -1}"#);
        refused(r#"{"id": "jenkins_lookup3", "prefix": "ab"}"#);
    }
}
