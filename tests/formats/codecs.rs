//! Comparison of every codec with numcodecs: in both directions on random arrays that an installed
//! numcodecs encodes (`ZARRFS_TEST_PYTHON`), and on the fixtures of numcodecs (below
//! `ZARRFS_REFERENCE`). Random and damaged bytes must not cause a panic.

#[path = "../support/npy.rs"]
mod npy;

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use zarrfs_base::json;
use zarrfs_format::codec::{Codec, Size, build};
use zarrfs_format::dtype::{DType, DTypeKind};
use zarrfs_format::metadata::CodecConfig;

/// Codecs that lose information. Their fixtures are compared in encoded form, since they decode to
/// approximations.
const LOSSY: &[&str] = &["quantize", "fixedscaleoffset", "astype", "bitround"];

fn config(text: &str) -> CodecConfig {
    CodecConfig::parse(&json::parse(text.as_bytes()).unwrap()).unwrap()
}

fn encode(codec: &dyn Codec, decoded: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    codec.encode(decoded, &mut out).map_err(|e| e.0)?;
    match codec.encoded_size(decoded.len()) {
        Size::Exact(n) if n != out.len() => Err(format!(
            "{} bytes where exactly {n} were foretold",
            out.len()
        )),
        Size::AtMost(n) if n < out.len() => Err(format!(
            "{} bytes where at most {n} were foretold",
            out.len()
        )),
        _ => Ok(out),
    }
}

fn decode(codec: &dyn Codec, encoded: &[u8], room: usize) -> Result<Vec<u8>, String> {
    let mut out = vec![0xaa; room];
    let len = codec.decode(encoded, &mut out).map_err(|e| e.0)?;
    out.truncate(len);
    Ok(out)
}

/// The results of numcodecs for one array. A field is `None` if numcodecs raised an exception.
struct Case {
    config: String,
    exact: bool,
    itemsize: usize,
    plain: Option<Vec<u8>>,
    encoded: Option<Vec<u8>>,
    encoded_itemsize: Option<usize>,
    decoded: Option<Vec<u8>>,
}

fn field(from: &mut impl Read) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)
        .expect("the Python process ended early");
    let length = u32::from_le_bytes(length);
    (length != u32::MAX).then(|| {
        let mut bytes = vec![0; length as usize];
        from.read_exact(&mut bytes)
            .expect("the Python process ended early");
        bytes
    })
}

impl Case {
    fn read(from: &mut impl Read) -> Option<Case> {
        let text = |bytes: Option<Vec<u8>>| String::from_utf8(bytes.unwrap_or_default()).unwrap();
        let config = text(field(from));
        if config == "end" {
            return None;
        }
        Some(Case {
            config,
            exact: text(field(from)) == "exact",
            itemsize: text(field(from)).parse().unwrap(),
            plain: field(from),
            encoded: field(from),
            encoded_itemsize: text(field(from)).parse().ok(),
            decoded: field(from),
        })
    }

    /// Checks the encoding of `plain`. It must equal the encoding of numcodecs if the case is
    /// exact; otherwise it is left in `ours`, so that numcodecs can decode it.
    fn check_encode(&self, plain: &[u8], ours: &mut Option<Vec<u8>>) -> Result<(), String> {
        let codec = build(&config(&self.config), self.itemsize).map_err(|e| e.to_string());
        let got = codec.and_then(|codec| Ok((encode(&*codec, plain)?, codec.encoded_itemsize())));
        match (got, &self.encoded) {
            (Err(_), None) => Ok(()),
            // zarrfs refuses to encode values that numcodecs encodes but cannot decode
            (Err(_), Some(_)) if self.decoded.is_none() => Ok(()),
            (Err(why), Some(_)) => Err(why),
            (Ok(_), None) => Err("encodes what numcodecs refuses".into()),
            (Ok((_, size)), Some(_))
                if !plain.is_empty() && Some(size) != self.encoded_itemsize =>
            {
                Err(format!("item size {size}, not {:?}", self.encoded_itemsize))
            }
            (Ok((got, _)), Some(want)) if self.exact => self.difference("astype", got, want),
            (Ok((got, _)), Some(_)) => {
                *ours = Some(got);
                Ok(())
            }
        }
    }

    fn check_decode(&self, encoded: &[u8]) -> Result<(), String> {
        let codec = build(&config(&self.config), self.itemsize).map_err(|e| e.to_string());
        let room = self
            .decoded
            .as_ref()
            .map_or(encoded.len() * 16 + 1000, Vec::len);
        match (
            codec.and_then(|codec| decode(&*codec, encoded, room)),
            &self.decoded,
        ) {
            (Err(_), None) => Ok(()),
            (Err(why), Some(_)) => Err(why),
            (Ok(_), None) => Err("decodes what numcodecs refuses".into()),
            (Ok(got), Some(want)) => self.difference("dtype", got, want),
        }
    }

    /// Compares bytes with those of numcodecs. The parameter `name` of the codec states their
    /// dtype. Codecs that calculate may return any NaN, so all NaNs count as equal.
    fn difference(&self, name: &str, mut got: Vec<u8>, want: &[u8]) -> Result<(), String> {
        let mut want = want.to_vec();
        let config = config(&self.config);
        let dtype = config
            .dtype(name)
            .ok()
            .flatten()
            .or(config.dtype("dtype").ok().flatten());
        if let Some(dtype) =
            dtype.filter(|_| ["delta", "fixedscaleoffset"].contains(&config.id.as_str()))
        {
            unify_nans(&dtype, &mut got);
            unify_nans(&dtype, &mut want);
        }
        difference(&got, &want)
    }
}

fn unify_nans(dtype: &DType, items: &mut [u8]) {
    let size = match dtype.kind() {
        DTypeKind::Float => dtype.size(),
        DTypeKind::Complex => dtype.size() / 2,
        _ => return,
    };
    for item in items.chunks_exact_mut(size) {
        let mut bytes = [0; 8];
        bytes[..size].copy_from_slice(item);
        if dtype.is_big_endian() {
            bytes[..size].reverse();
        }
        let bits = u64::from_le_bytes(bytes);
        let infinity = [0x7c00, 0x7f80_0000, 0x7ff0_0000_0000_0000][size.ilog2() as usize - 1];
        if bits & !(1 << (8 * size - 1)) > infinity {
            item.fill(0xff);
        }
    }
}

fn difference(got: &[u8], want: &[u8]) -> Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("{} bytes, not {}", got.len(), want.len()));
    }
    match got.iter().zip(want).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => {
            let near = at / 16 * 16..(at / 16 * 16 + 16).min(got.len());
            Err(format!(
                "at byte {at} of {}: {:02x?}, not {:02x?}",
                got.len(),
                &got[near.clone()],
                &want[near]
            ))
        }
    }
}

/// Counts and failures of each codec.
#[derive(Default)]
struct Tally {
    counts: BTreeMap<String, [usize; 4]>,
    failures: Vec<String>,
}

impl Tally {
    /// Counts a result. `way` is 0 for decoding and 2 for encoding.
    fn count(&mut self, what: &str, way: usize, result: Result<(), String>) {
        let id = config(what).id;
        let counts = self.counts.entry(id).or_default();
        counts[way + 1] += 1;
        match result {
            Ok(()) => counts[way] += 1,
            Err(why) => self
                .failures
                .push(format!("{} {what}: {why}", ["decode", "", "encode"][way])),
        }
    }

    fn report(&self) {
        for (id, [decoded, to_decode, encoded, to_encode]) in &self.counts {
            // shown even if the test passes
            let _ = writeln!(
                std::io::stderr(),
                "{id:>17}: decoded equal {decoded:>5} of {to_decode:<5} encoded equal {encoded:>5} of {to_encode}"
            );
        }
        let shown: Vec<_> = self.failures.iter().take(40).map(String::as_str).collect();
        assert!(
            shown.is_empty(),
            "{} differ:\n{}",
            self.failures.len(),
            shown.join("\n")
        );
    }
}

fn put(to: &mut impl Write, bytes: &[u8]) {
    to.write_all(&(bytes.len() as u32).to_le_bytes())
        .and_then(|()| to.write_all(bytes))
        .unwrap();
}

#[test]
fn codecs_agree_with_numcodecs_on_random_arrays() {
    let Ok(python) = std::env::var("ZARRFS_TEST_PYTHON") else {
        println!("skipped: ZARRFS_TEST_PYTHON not set, run scripts/test");
        return;
    };
    let seed = std::env::var("ZARRFS_TEST_SEED").unwrap_or_else(|_| std::process::id().to_string());
    println!("ZARRFS_TEST_SEED={seed}");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/codecs.py");
    let mut child = Command::new(python)
        .args([script.as_os_str(), seed.as_ref()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts ZARRFS_TEST_PYTHON");
    let mut from = BufReader::with_capacity(1 << 20, child.stdout.take().unwrap());
    let mut tally = Tally::default();
    let mut sent = Vec::new();
    while let Some(case) = Case::read(&mut from) {
        if let Some(encoded) = &case.encoded {
            tally.count(&case.config, 0, case.check_decode(encoded));
        }
        let Some(plain) = &case.plain else { continue };
        let mut ours = None;
        let result = case.check_encode(plain, &mut ours);
        match ours {
            Some(encoded) => sent.push((case.config, encoded, case.decoded.unwrap_or_default())),
            None => tally.count(&case.config, 2, result),
        }
    }
    let configs: Vec<String> = sent.iter().map(|(config, ..)| config.clone()).collect();
    let mut to = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        for (config, encoded, expected) in sent {
            [config.as_bytes(), &encoded, &expected]
                .iter()
                .for_each(|bytes| put(&mut to, bytes));
        }
    });
    for config in configs {
        let answer = String::from_utf8(field(&mut from).unwrap()).unwrap();
        tally.count(
            &config,
            2,
            if answer == "ok" {
                Ok(())
            } else {
                Err(format!("numcodecs: {answer}"))
            },
        );
    }
    writer.join().unwrap();
    assert!(child.wait().unwrap().success());
    tally.report();
}

fn directories(of: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(of)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    found.retain(|p| p.is_dir());
    found.sort();
    found
}

/// Compares all arrays of a directory of fixtures under each of its codec configurations.
fn check_fixtures(directory: &Path, tally: &mut Tally) {
    for codec_directory in directories(directory) {
        let Ok(text) = std::fs::read_to_string(codec_directory.join("config.json")) else {
            check_fixtures(&codec_directory, tally);
            continue;
        };
        let id = config(&text).id;
        for entry in std::fs::read_dir(&codec_directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let Some(number) = name
                .strip_prefix("encoded.")
                .and_then(|n| n.strip_suffix(".dat"))
            else {
                continue;
            };
            let array = std::fs::read(directory.join(format!("array.{number}.npy"))).unwrap();
            let (itemsize, plain) = npy::read(&array);
            let encoded = std::fs::read(&path).unwrap();
            let codec = build(&config(&text), itemsize).unwrap();
            let place = |e: String| format!("{}: {e}", path.display());
            if LOSSY.contains(&id.as_str()) {
                let got = encode(&*codec, plain).and_then(|got| difference(&got, &encoded));
                tally.count(&text, 2, got.map_err(place));
            } else {
                let got =
                    decode(&*codec, &encoded, plain.len()).and_then(|got| difference(&got, plain));
                tally.count(&text, 0, got.map_err(place));
            }
        }
    }
}

#[test]
fn codecs_decode_the_fixtures_of_numcodecs() {
    let Ok(reference) = std::env::var("ZARRFS_REFERENCE") else {
        println!("skipped: ZARRFS_REFERENCE not set, run scripts/test");
        return;
    };
    let mut tally = Tally::default();
    check_fixtures(&Path::new(&reference).join("codecs-numcodecs"), &mut tally);
    assert!(!tally.counts.is_empty(), "no fixtures");
    tally.report();
}

const ANY: &[&str] = &[
    r#"{"id": "adler32"}"#,
    r#"{"id": "astype", "encode_dtype": ">f8", "decode_dtype": "<i2"}"#,
    r#"{"id": "astype", "encode_dtype": "<f2", "decode_dtype": ">c16"}"#,
    r#"{"id": "astype", "encode_dtype": ">i8", "decode_dtype": "<u4"}"#,
    r#"{"id": "base64"}"#,
    r#"{"id": "bitround", "keepbits": 3}"#,
    r#"{"id": "blosc"}"#,
    r#"{"id": "bz2"}"#,
    r#"{"id": "categorize", "labels": ["a", "bcd"], "dtype": ">U2", "astype": "<f4"}"#,
    r#"{"id": "categorize", "labels": ["a", "bcd"], "dtype": "<U2"}"#,
    r#"{"id": "crc32"}"#,
    r#"{"id": "crc32c"}"#,
    r#"{"id": "delta", "dtype": "<i4"}"#,
    r#"{"id": "delta", "dtype": ">u2", "astype": "|i1"}"#,
    r#"{"id": "delta", "dtype": "|i1", "astype": ">u4"}"#,
    r#"{"id": "delta", "dtype": "<f4", "astype": ">f8"}"#,
    r#"{"id": "fixedscaleoffset", "offset": 1, "scale": 0, "dtype": "<f4", "astype": "|u1"}"#,
    r#"{"id": "fixedscaleoffset", "offset": -7, "scale": 1e300, "dtype": "<i8", "astype": ">u8"}"#,
    r#"{"id": "flac", "dtype": "<i2"}"#,
    r#"{"id": "flac", "dtype": "<i2", "level": 0, "blocksize": 16}"#,
    r#"{"id": "fletcher32"}"#,
    r#"{"id": "gzip"}"#,
    r#"{"id": "imagecodecs_deflate", "raw": true}"#,
    r#"{"id": "imagecodecs_zstd"}"#,
    r#"{"id": "jenkins_lookup3"}"#,
    r#"{"id": "lz4"}"#,
    r#"{"id": "lzma"}"#,
    r#"{"id": "packbits"}"#,
    r#"{"id": "quantize", "digits": 40, "dtype": "<f2"}"#,
    r#"{"id": "shuffle", "elementsize": 9223372036854775807}"#,
    r#"{"id": "shuffle", "elementsize": 3}"#,
    r#"{"id": "shuffle"}"#,
    r#"{"id": "vlen-utf8"}"#,
    r#"{"id": "zfp", "mode": "reversible", "dtype": "<u4"}"#,
    r#"{"id": "zfp", "mode": "fixed_precision", "precision": 9, "dtype": "|u1"}"#,
    r#"{"id": "zfpy", "dtype": "<f4"}"#,
    r#"{"id": "zfpy", "mode": 2, "rate": 5, "dtype": "<i8"}"#,
    r#"{"id": "zlib"}"#,
    r#"{"id": "zstd"}"#,
];

fn codecs() -> impl Iterator<Item = Box<dyn Codec>> {
    let configs = ANY.iter().map(|text| config(text));
    configs.map(|config| build(&config, 4).unwrap())
}

#[test]
fn is_lossless_is_right_for_every_codec() {
    let lossy: Vec<&str> = ANY
        .iter()
        .copied()
        .filter(|text| !build(&config(text), 4).unwrap().is_lossless())
        .collect();
    let names = [
        "astype",
        "bitround",
        "categorize",
        "delta",
        "fixedscaleoffset",
        "packbits",
        "quantize",
        r#""mode": "fixed_precision""#,
        r#""rate""#,
    ];
    for name in names {
        assert!(lossy.iter().any(|text| text.contains(name)), "{name}");
    }
    assert!(
        lossy
            .iter()
            .all(|text| names.iter().any(|name| text.contains(name))),
        "{lossy:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn lossless_codecs_restore_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300), whole in any::<bool>()) {
        let bytes = &bytes[..if whole { bytes.len() / 4 * 4 } else { bytes.len() }];
        for codec in codecs().filter(|codec| codec.is_lossless()) {
            if let Ok(encoded) = encode(&*codec, bytes) {
                prop_assert_eq!(decode(&*codec, &encoded, bytes.len()).unwrap(), bytes);
            }
        }
    }

    #[test]
    fn decoding_random_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), room in 0usize..600) {
        for codec in codecs() {
            let _ = decode(&*codec, &bytes, room);
            let _ = encode(&*codec, &bytes);
        }
    }

    #[test]
    fn decoding_damaged_bytes_never_panics(
        items in prop::collection::vec(0u32..1000, 0..200),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
        room in 0usize..1000,
    ) {
        let plain: Vec<u8> = items.iter().flat_map(|i| i.to_le_bytes()).collect();
        for codec in codecs() {
            let Ok(mut encoded) = encode(&*codec, &plain) else { continue };
            for (at, value) in &damage {
                let length = encoded.len();
                if let Some(byte) = encoded.get_mut(at.index(length.max(1))) {
                    *byte = *value;
                }
            }
            let _ = decode(&*codec, &encoded, plain.len());
            let _ = decode(&*codec, &encoded[..cut.index(encoded.len() + 1)], room);
        }
    }
}
