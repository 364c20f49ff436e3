use super::*;
use crate::codec::testing::{broken, config, decoded, encoded, refused};
use crate::metadata::ArrayMetadata;
use crate::pipeline::Pipeline;
use proptest::prelude::*;
use zarrfs_base::error::Kind;

fn pcodec(parameters: &str) -> String {
    format!(r#"{{"id": "pcodec", {parameters}}}"#)
}

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap())
        .collect()
}

/// Returns examples: the configuration, the numbers, and the files that numcodecs wrote with pcodec
/// 0.3.6 and 1.1.0.
fn examples() -> Vec<(String, Vec<u8>, [&'static str; 2])> {
    let numbers: Vec<u8> = [1i32, 2, 3, -4, 5]
        .iter()
        .flat_map(|n| n.to_le_bytes())
        .collect();
    let range: Vec<u8> = (0..6i64).flat_map(i64::to_le_bytes).collect();
    let floats = [0.5, -1.5, std::f64::consts::PI, 0.0]
        .iter()
        .flat_map(|n: &f64| n.to_le_bytes())
        .collect();
    let one_to_four: Vec<u8> = (0..5i32).flat_map(i32::to_le_bytes).collect();
    vec![
        (
            pcodec(r#""dtype": "<i4""#),
            numbers,
            [
                "70636f210242010303040000001000e0ffffff230065070900",
                "70636f2103004201040103040000001000e0ffffff230065070900",
            ],
        ),
        (
            pcodec(r#""dtype": "<f8", "mode_spec": "classic""#),
            floats,
            [
                "70636f21020201030603000010040000000000000000e0bfffffffffffff27801a2d4454fb21d9ffb57833030e9a1c4000",
                "70636f2103000201040106030000004200e0ffffffffffff000800000000000000002000000000000000f05f00182d4454fb2109c000d20000",
            ],
        ),
        (
            pcodec(r#""dtype": "<f2""#),
            vec![0, 0x3e, 0, 0x41],
            [
                "70636f21028103090100001002000000be000300",
                "70636f2103008104010901000000100000f05500000c00",
            ],
        ),
        (
            pcodec(r#""dtype": "<i8", "equal_pages_up_to": 2"#),
            range,
            [
                "70636f21028201030401000000100000000000000000000c00020401000000100010000000000000000c00020401000000100020000000000000000c000200",
                "70636f210300820104010401000000100000000000000000000c00020401000000100010000000000000000c00020401000000100020000000000000000c000200",
            ],
        ),
        (
            pcodec(r#""dtype": "<i4", "delta_spec": "try_lookback""#),
            one_to_four.clone(),
            [
                "70636f21024201030304000020034000200000000080004000000020000000008000",
                "70636f210300420104010304000020034000200000000080004000000020000000008000",
            ],
        ),
        (
            pcodec(r#""dtype": "<i4", "delta_encoding_order": 2"#),
            one_to_four,
            [
                "70636f210242010303040000100201000000004000000000800100000000",
                "70636f2103004201040103040000100201000000004000000000800100000000",
            ],
        ),
        (
            pcodec(r#""dtype": "<f4""#),
            vec![],
            ["70636f2102000300", "70636f21030000040100"],
        ),
    ]
}

#[test]
fn files_match_those_of_numcodecs() {
    for (text, plain, [old, new]) in examples() {
        assert_eq!(
            decoded(&text, &bytes_of(old), plain.len() + 3),
            plain,
            "{text}"
        );
        assert_eq!(decoded(&text, &bytes_of(new), plain.len()), plain, "{text}");
        assert_eq!(encoded(&text, &plain), bytes_of(new), "{text}");
    }
}

#[test]
fn times_are_integers() {
    let file = encoded(&pcodec(r#""dtype": "<M8[s]""#), &7i64.to_le_bytes());
    assert_eq!(
        decoded(&pcodec(r#""dtype": "<i8""#), &file, 8),
        7i64.to_le_bytes()
    );
}

#[test]
fn cut_and_changed_files_never_panic() {
    for (text, plain, files) in examples() {
        let codec = Pcodec::new(&config(&text)).unwrap();
        for file in files.map(bytes_of) {
            for len in 0..file.len() {
                assert!(
                    codec
                        .decode(&file[..len], &mut vec![0; plain.len()])
                        .is_err(),
                    "{text} cut at {len}"
                );
            }
            for (at, bit) in (0..file.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
                let mut changed = file.clone();
                changed[at] ^= 1 << bit;
                let _ = codec.decode(&changed, &mut vec![0; plain.len()]);
            }
        }
    }
}

#[test]
fn claims_are_checked_before_memory_is_allocated() {
    let text = pcodec(r#""dtype": "<i4""#);
    let header = bytes_of("70636f210300420104010304000000");
    let claims = |mode: u32| {
        let mut file = header[..header.len() - 1].to_vec();
        file.extend_from_slice(&mode.to_le_bytes());
        file.resize(file.len() + 60, 0);
        let reason = Pcodec::new(&config(&text))
            .unwrap()
            .decode(&file, &mut [0; 100])
            .unwrap_err()
            .0;
        assert!(reason.starts_with("pcodec: a "), "{reason}");
    };
    // mode 4 and 2^24 entries
    claims(4 | 1 << 28);
    // no mode, lookback, and a window of 2^24
    claims(2 << 4 | 23 << 8);
    // 2^24 numbers in a chunk
    let mut file = header;
    file[11..14].fill(0xff);
    broken(&text, &file);
}

/// Tests arrays of v2, whose `pcodec` has no dtype.
#[test]
fn the_pipeline_adds_the_dtype() {
    let pipeline = |dtype: &str, filters: &str| {
        let document = format!(
            r#"{{"zarr_format": 2, "shape": [5], "chunks": [5], "dtype": "{dtype}", "order": "C", "fill_value": 0,
                "filters": {filters}, "compressor": {{"id": "pcodec", "level": 8}}}}"#
        );
        let meta = ArrayMetadata::parse(document.as_bytes()).unwrap();
        Pipeline::new(&meta, 5 * meta.dtype.size())
    };
    let file = bytes_of("70636f2103004201040103040000001000e0ffffff230065070900");
    let mut decoded = Vec::new();
    pipeline("<i4", "null")
        .unwrap()
        .decode(&file, &mut decoded)
        .unwrap();
    assert_eq!(decoded, [1i32, 2, 3, -4, 5].map(i32::to_le_bytes).concat());
    let narrowed = r#"[{"id": "astype", "encode_dtype": "<i4", "decode_dtype": "<f8"}]"#;
    pipeline("<f8", narrowed)
        .unwrap()
        .decode(&file, &mut decoded)
        .unwrap();
    assert_eq!(
        decoded,
        [1f64, 2.0, 3.0, -4.0, 5.0].map(f64::to_le_bytes).concat()
    );
    assert!(pipeline("<i4", r#"[{"id": "shuffle"}]"#).is_err());
    assert!(pipeline(">i4", "null").is_err());
}

#[test]
fn numbers_of_another_type_are_damage() {
    let file = encoded(&pcodec(r#""dtype": "<i4""#), &[0; 8]);
    for other in ["<u4", "<f4", "<i8", "<i2"] {
        broken(&pcodec(&format!(r#""dtype": "{other}""#)), &file);
    }
    broken(&pcodec(r#""dtype": "<i4""#), b"");
    broken(&pcodec(r#""dtype": "<i4""#), b"pco?");
}

#[test]
fn bad_parameters_are_errors() {
    refused(r#"{"id": "pcodec"}"#);
    refused(&pcodec(r#""dtype": "<i4", "max_page_n": 1"#));
    for dtype in ["|u1", "|b1", ">i4", "<c8", "|S4", "<f16"] {
        let error = Pcodec::new(&config(&pcodec(&format!(r#""dtype": "{dtype}""#))))
            .err()
            .unwrap();
        assert_eq!(error.kind(), Kind::Unsupported, "{dtype}");
    }
    for parameters in [
        r#""level": 13"#,
        r#""level": -1"#,
        r#""mode_spec": "try""#,
        r#""delta_spec": "try_consecutive""#,
        r#""delta_spec": "none", "delta_encoding_order": 1"#,
        r#""delta_encoding_order": 8"#,
        r#""paging_spec": "exact""#,
        r#""equal_pages_up_to": 0"#,
    ] {
        let codec = Pcodec::new(&config(&pcodec(&format!(
            r#""dtype": "<i4", {parameters}"#
        ))))
        .unwrap();
        assert!(
            codec.encode(&[0; 8], &mut Vec::new()).is_err(),
            "{parameters}"
        );
        let file = bytes_of("70636f2103004201040103040000001000e0ffffff230065070900");
        assert_eq!(
            codec.decode(&file, &mut [0; 20]),
            Ok(20),
            "{parameters}: decoding needs no parameter"
        );
    }
    let codec = Pcodec::new(&config(&pcodec(r#""dtype": "<i4""#))).unwrap();
    assert!(codec.encode(&[0; 7], &mut Vec::new()).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn decoding_reverses_encoding(
        seed in prop::collection::vec(any::<u16>(), 1..20), count in 0usize..3000, page in 1usize..4000,
        dtype in prop::sample::select(vec!["<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<m8[s]"]),
        level in 0..=12, delta in prop::sample::select(vec!["auto", "none", "try_lookback"]),
    ) {
        let text = pcodec(&format!(
            r#""dtype": "{dtype}", "level": {level}, "delta_spec": "{delta}", "equal_pages_up_to": {page}"#
        ));
        let size = dtype[2..3].parse::<usize>().unwrap();
        let plain: Vec<u8> = (0..count * size).map(|i| ((usize::from(seed[i % seed.len()]) * i) >> 7) as u8).collect();
        let stored = encoded(&text, &plain);
        prop_assert_eq!(decoded(&text, &stored, plain.len()), plain);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        noise in prop::collection::vec(any::<u8>(), 0..300), kind in 1u8..10, count in 0u8..200, mode in 0u8..16,
        dtype in prop::sample::select(vec!["<i2", "<u4", "<i8", "<f2", "<f4", "<f8"]),
    ) {
        let kind = match dtype { "<u4" => 1, "<i4" => 3, "<i8" => 4, "<f4" => 5, "<f8" => 6, "<f2" => 9, _ => kind };
        let file = [b"pco!\x03\x00\x42\x01\x04\x01", &[kind, count, 0, 0, mode][..], &noise].concat();
        let codec = Pcodec::new(&config(&pcodec(&format!(r#""dtype": "{dtype}""#)))).unwrap();
        let _ = codec.decode(&file, &mut [0; 2000]);
    }
}
