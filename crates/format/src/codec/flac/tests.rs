use super::*;
use crate::codec::build;
use crate::codec::testing::compressors::{codec, decoded, encoded, hex, hostile_bytes, refused};
use crate::codec::testing::config;
use crate::metadata::ArrayMetadata;
use crate::pipeline::Pipeline;
use proptest::prelude::*;

const PLAIN: &str = r#"{"id": "flac", "dtype": "<i2"}"#;

fn bytes(samples: impl IntoIterator<Item = i16>) -> Vec<u8> {
    samples.into_iter().flat_map(i16::to_le_bytes).collect()
}

/// Returns files that flac_numcodecs 0.1.2 wrote with libFLAC 1.4.3, and their samples: two
/// channels of 18 samples each, and one.
fn written() -> [(&'static str, Vec<u8>); 2] {
    let pairs = [
        0, 3, 5, 9, -7, 100, 32767, -32768, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5,
    ];
    [
        (
            "664c6143000000220012001200003e00003e0bb802f000000012a5ef3487c87509628ea02eb23fc0511584000028
             200000007265666572656e6365206c6962464c414320312e342e3320323032333036323300000000fff86aa80011
             181000e9c00326b390aa7000c9ace428400d801600783540007ffd00040010004001000400b003c1aa0003ffe800
             2000800200080000eae8",
            bytes(pairs.iter().chain(&pairs).copied()),
        ),
        (
            "664c614300000022002800280000230000230bb800f000000028bc71f5158668a3b670a0b5109051bb5384000028
             200000007265666572656e6365206c6962464c414320312e342e3320323032333036323300000000fff86a080027
             d212000000fbbbb85f77770beeee17ddddc2fbbbb85f7770beeeee8bbc",
            bytes((0..40).map(|n| n * 3 % 17)),
        ),
    ]
}

#[test]
fn files_of_flac_numcodecs_are_decoded() {
    let flac = codec(PLAIN, 2);
    for (file, samples) in written() {
        assert_eq!(decoded(&*flac, &hex(file), samples.len()).unwrap(), samples);
        let more = [&hex(file)[..], b"TAG, as some players add it"].concat();
        assert_eq!(decoded(&*flac, &more, samples.len()).unwrap(), samples);
        assert!(decoded(&*flac, &hex(file), samples.len() - 1).is_err());
        hostile_bytes(&*flac, &hex(file), samples.len());
    }
}

/// Returns samples of which some frames hold noise, some a ramp, and some one number.
fn samples(len: usize) -> Vec<u8> {
    let mut state = 1u32;
    bytes((0..len as u32).map(|i| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match i / 5000 % 4 {
            0 => (state >> 16) as i16,
            1 => (f64::from(i) / 50.0)
                .sin()
                .mul_add(9000.0, f64::from(state >> 29)) as i16,
            2 => 77,
            _ => (i * 8) as i16,
        }
    }))
}

#[test]
fn samples_decode_again_at_any_level() {
    for parameters in [
        "",
        r#", "level": 0"#,
        r#", "level": 8, "blocksize": 16"#,
        r#", "level": 5, "sample_rate": 96000, "tmpdir": null"#,
        r#", "shape": [20011, 2], "blocksize": null"#,
        r#", "shape": [40022, 1]"#,
        r#", "shape": [2, 20011]"#,
    ] {
        let flac = codec(
            &format!(r#"{{"id": "flac", "dtype": "<i2"{parameters}}}"#),
            2,
        );
        let plain = samples(40_022);
        let file = encoded(&*flac, &plain);
        assert!(
            decoded(&*flac, &file, plain.len()).unwrap() == plain,
            "{parameters}"
        );
        let channels = if parameters.contains("[20011, 2]") {
            2
        } else {
            1
        };
        assert_eq!(file[20] >> 1 & 7, channels - 1, "{parameters}");
    }
    let flac = codec(PLAIN, 2);
    for len in 1..40 {
        let plain = samples(len);
        let file = encoded(&*flac, &plain);
        assert_eq!(decoded(&*flac, &file, plain.len()).unwrap(), plain);
    }
}

#[test]
fn only_16_bit_samples_are_accepted() {
    for dtype in ["<i4", ">i2", "<u2", "|i1", "<f4"] {
        refused(&format!(r#"{{"id": "flac", "dtype": "{dtype}"}}"#));
    }
    refused(r#"{"id": "flac"}"#);
    let flac = codec(PLAIN, 2);
    assert!(flac.encode(&[0; 3], &mut Vec::new()).is_err());
    let mut file = hex(written()[0].0);
    // 17 bits a sample
    file[21] = 0x00;
    file[20] |= 1;
    let e = decoded(&*flac, &file, 72).unwrap_err();
    assert!(e.0.contains("16 bits"), "{}", e.0);
    refused(r#"{"id": "flac", "dtype": "<i2", "sample_rate": 0}"#);
}

#[test]
fn a_document_leaves_type_and_shape_to_the_array() {
    let text = br#"{"zarr_format": 2, "shape": [100, 2], "chunks": [50, 2], "dtype": "<i2", "order": "C",
        "fill_value": 0, "compressor": {"id": "flac", "level": 5, "tmpdir": null}, "filters": null}"#;
    let meta = ArrayMetadata::parse(text).unwrap();
    let pipeline = Pipeline::new(&meta, 200).unwrap();
    let (mut stored, mut plain) = (Vec::new(), Vec::new());
    pipeline.encode(&samples(100), &mut stored).unwrap();
    assert_eq!(stored[20] >> 1 & 7, 1, "two channels");
    pipeline.decode(&stored, &mut plain).unwrap();
    assert_eq!(plain, samples(100));
}

/// The library's decoder panics on such a frame.
#[test]
fn more_partitions_than_samples_are_an_error() {
    let flac = codec(PLAIN, 2);
    let (file, samples) = &written()[1];
    let mut file = hex(file);
    // 2^15 partitions of residuals in place of 2^0
    assert_eq!(file[96], 0);
    file[96] = 0x3c;
    assert!(decoded(&*flac, &file, samples.len()).is_err());
}

/// Metadata may claim any length.
#[test]
fn metadata_of_any_length_are_skipped() {
    let flac = codec(PLAIN, 2);
    let (file, samples) = &written()[1];
    let file = hex(file);
    let picture = [&[6, 0, 1, 0][..], &[9; 256]].concat();
    let more = [&file[..HEAD], &picture, &file[HEAD..]].concat();
    assert_eq!(decoded(&*flac, &more, samples.len()).unwrap(), *samples);
    let mut endless = more.clone();
    endless[HEAD + 1] = 0xff;
    assert!(decoded(&*flac, &endless, samples.len()).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_samples_decode_to_the_same_bytes(
        plain in prop::collection::vec(any::<i16>(), 1..700),
        scale in 0..16u32,
        level in 0..9,
        columns in 1..4usize,
    ) {
        let rows = plain.len() / columns;
        prop_assume!(rows > 0);
        let plain = bytes(plain[..rows * columns].iter().map(|sample| sample >> scale));
        let text = format!(
            r#"{{"id": "flac", "dtype": "<i2", "level": {level}, "shape": [{rows}, {columns}]}}"#
        );
        let flac = build(&config(&text), 2).unwrap();
        let file = encoded(&*flac, &plain);
        prop_assert_eq!(decoded(&*flac, &file, plain.len()).unwrap(), plain);
    }
}
