//! Tests of every codec with parameters and item sizes at and beyond the limits of its library.
//! Many libraries are C, so a number passed on unchecked may end the test process with a signal.

use super::config;
use crate::codec::{CODECS, build};
use zarrfs_base::json::Value;

/// Returns numbers around the limits of 8, 16, 32 and 64 bits, and numbers whose lowest 32 bits are
/// small.
fn numbers() -> Vec<i64> {
    let powers = [0, 7, 8, 15, 16, 20, 31, 32, 33, 62].map(|bits| 1i64 << bits);
    let around = powers
        .iter()
        .flat_map(|n| [-n - 1, -n, 1 - n, n - 1, *n, n + 1]);
    around
        .chain([i64::MIN, i64::MAX, 1 << 31 | 1 << 32, 0x7e00_0000])
        .collect()
}

/// Configurations in which a parameter depends on others, with `N` in the place of the number.
const NUMBERS: [&str; 13] = [
    r#"{"id": "blosc", "typesize": N, "shuffle": 1}"#,
    r#"{"id": "blosc", "typesize": N, "shuffle": 2, "cname": "zstd"}"#,
    r#"{"id": "blosc", "blocksize": N, "cname": "blosclz"}"#,
    r#"{"id": "blosc", "blocksize": N, "shuffle": 2}"#,
    r#"{"id": "blosc", "clevel": N, "cname": "zlib"}"#,
    r#"{"id": "lzma", "format": 3, "filters": [{"id": 33, "dict_size": N}]}"#,
    r#"{"id": "lzma", "format": 3, "filters": [{"id": 33, "lc": N}]}"#,
    r#"{"id": "lzma", "format": 3, "filters": [{"id": 33, "pb": N, "nice_len": N, "depth": N}]}"#,
    r#"{"id": "lzma", "format": 3, "filters": [{"id": 3, "dist": N}, {"id": 33}]}"#,
    r#"{"id": "lzma", "format": 3, "filters": [{"id": 4, "start_offset": N}, {"id": 33}]}"#,
    r#"{"id": "lzma", "format": 2, "filters": [{"id": 4611686018427387905, "dict_size": N}]}"#,
    r#"{"id": "transpose", "shape": [2, N], "order": [1, 0]}"#,
    r#"{"id": "transpose", "shape": [2, 2], "order": [N, 0]}"#,
];

/// Configurations to try with different item sizes, besides each codec without parameters.
const ITEM_SIZES: [&str; 4] = [
    r#"{"id": "blosc", "shuffle": -1, "cname": "blosclz"}"#,
    r#"{"id": "blosc", "shuffle": 2, "cname": "zstd", "clevel": 9}"#,
    r#"{"id": "blosc", "clevel": 0}"#,
    r#"{"id": "bitround", "keepbits": 10}"#,
];

/// Returns each parameter of each codec, with `N` as its value and a type of items if the codec has
/// one.
fn single_parameters() -> Vec<String> {
    let mut texts = Vec::new();
    for spec in CODECS {
        for parameter in spec.parameters.iter().filter(|name| **name != "dtype") {
            let text = format!(r#"{{"id": "{}", "{parameter}": N"#, spec.id);
            if !spec.parameters.contains(&"dtype") {
                texts.push(text + "}");
                continue;
            }
            texts.extend(
                ["<i4", ">u4", "<f4"].map(|dtype| format!(r#"{text}, "dtype": "{dtype}"}}"#)),
            );
        }
    }
    texts
}

/// Encodes some bytes and checks that they decode to the same bytes, unless the codec refuses them.
fn try_codec(text: &str, itemsize: usize) {
    let config = config(text);
    let Ok(codec) = build(&config, itemsize) else {
        return;
    };
    for len in [0, 1, 16, 300, 5000] {
        // packbits preserves only booleans
        let data: Vec<u8> = (0..len).map(|i| (i % 7 == 0) as u8).collect();
        let mut encoded = Vec::new();
        if codec.encode(&data, &mut encoded).is_err() {
            continue;
        }
        assert!(
            encoded.len() <= codec.encoded_size(len).max(),
            "{text} {itemsize} {len}"
        );
        let mut decoded = vec![0xaa; len];
        let made = codec
            .decode(&encoded, &mut decoded)
            .unwrap_or_else(|e| panic!("{text} {itemsize} {len}: {}", e.0));
        let keeps = codec.is_lossless() || config.id == "packbits";
        assert!(
            made == len && (!keeps || decoded == data),
            "{text} {itemsize} {len}"
        );
    }
}

#[test]
fn any_parameter_is_used_or_refused() {
    for text in NUMBERS
        .map(str::to_string)
        .into_iter()
        .chain(single_parameters())
    {
        for n in numbers() {
            try_codec(&text.replace('N', &n.to_string()), 4);
        }
        for word in [Value::Null, true.into(), "1".into(), 1.5.into()] {
            try_codec(&text.replace('N', &word.to_string()), 4);
        }
    }
}

#[test]
fn any_item_size_is_used_or_refused() {
    let sizes = [
        0,
        1,
        2,
        3,
        127,
        128,
        255,
        256,
        65_536,
        i32::MAX as usize,
        1 << 31,
        1 << 32,
        usize::MAX,
    ];
    let plain = CODECS.map(|spec| format!(r#"{{"id": "{}"}}"#, spec.id));
    for text in ITEM_SIZES.map(str::to_string).into_iter().chain(plain) {
        for size in sizes {
            try_codec(&text, size);
        }
    }
}
