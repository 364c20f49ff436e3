//! The compressor `lzma`: the formats XZ, ALONE (.lzma) and RAW. Source of the rules: Python's
//! `lzma.compress` and `lzma.decompress`. One exception: XZ data with filters, which Python writes
//! but refuses to read, are decoded with the chain that the data state.
//! [`lzma_filters`](super::lzma_filters) has the filter chains.

use super::lzma_filters::{LzmaFilters, preset_dict};
use super::spec::is_plain;
use super::streams::{self, StreamError};
use super::{Codec, CodecConfig, CodecError, CodecResult, CodecSpec, Size, encode_only};
use liblzma::stream::{Action, Check, Error, LzmaOptions, Status, Stream};
use zarrfs_base::error::Result;
use zarrfs_base::json::Value;

/// What is known of the compressor.
pub const SPEC: CodecSpec = CodecSpec {
    id: "lzma",
    parameters: &["format", "check", "preset", "filters"],
    build: |config, _| Ok(Box::new(Lzma::new(config)?)),
    v3_names: &["numcodecs.lzma"],
    defaults: r#"{"preset": null, "format": 1, "check": -1, "filters": null}"#,
    accepts: |config, name, value| match (name, value) {
        ("filters", Value::Array(_)) => Ok(config.int("format", 1, 0, 3)? == 3),
        ("preset" | "filters", Value::Null) => Ok(true),
        ("preset", value) => Ok(value
            .as_u64()
            .is_some_and(|preset| preset <= u64::from(u32::MAX))),
        _ => Ok(is_plain(value)),
    },
    ..CodecSpec::BYTES
};

/// Minimum memory limit of a decoder in bytes. The strongest preset claims 65 MiB for data of any
/// size, but liblzma touches only the part that it fills. A limit of four times as much still
/// refuses headers that claim gigabytes.
const MIN_MEMORY_LIMIT: u64 = 256 << 20;

/// Minimum dictionary size of liblzma in bytes.
const MIN_DICT: u32 = 4096;

/// Maximum size of a dictionary of liblzma's encoder in bytes.
const MAX_DICT: usize = 3 << 29;

/// Size of a dictionary in bytes up to which an encoder's hash table has twice its size. Larger
/// ones have a table of their size.
const SMALL_DICT: usize = 32 << 20;

/// Memory in bytes that an encoder takes beside the memory for matches.
const ENCODER_BASE: usize = 5 << 20;

/// The default preset of liblzma.
const DEFAULT_PRESET: u32 = 6;

/// The container of the compressed data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LzmaFormat {
    Auto,
    Xz,
    Alone,
    Raw,
}

/// The compressor `{"id": "lzma", "format": 1, "check": -1, "preset": null, "filters": null}`.
pub struct Lzma {
    format: LzmaFormat,
    check: CodecResult<Option<Check>>,
    preset: CodecResult<Option<u32>>,
    filters: Option<LzmaFilters>,
}

impl Lzma {
    /// Creates the compressor from its parameters.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        let format = match config.int("format", 1, 0, 3)? {
            0 => LzmaFormat::Auto,
            1 => LzmaFormat::Xz,
            2 => LzmaFormat::Alone,
            _ => LzmaFormat::Raw,
        };
        let check = config.int("check", -1, -1, 10).and_then(|n| match n {
            -1 => Ok(None),
            0 => Ok(Some(Check::None)),
            1 => Ok(Some(Check::Crc32)),
            4 => Ok(Some(Check::Crc64)),
            10 => Ok(Some(Check::Sha256)),
            n => Err(config.invalid("check", &format!("is {n}, which is no check"))),
        });
        let preset = config.get("preset").map(|_| {
            config
                .int("preset", 0, 0, u32::MAX.into())
                .map(|n| n as u32)
        });
        let filters = config
            .get("filters")
            .map(LzmaFilters::parse)
            .transpose()
            .map_err(|why| config.invalid("filters", &why))?;
        if format == LzmaFormat::Raw && filters.is_none() {
            return Err(config.invalid("filters", "are missing, which format 3 needs"));
        }
        Ok(Lzma {
            format,
            check: encode_only(check),
            preset: encode_only(preset.transpose()),
            filters,
        })
    }

    /// Returns a decoder for at most `room` decoded bytes.
    fn decoder(&self, room: usize) -> std::result::Result<Stream, Error> {
        let limit = MIN_MEMORY_LIMIT.max(2 * room as u64);
        match (self.format, &self.filters) {
            (LzmaFormat::Raw, Some(chain)) => {
                // a larger dictionary would never be used
                let max_dict = u32::try_from(room).unwrap_or(u32::MAX).max(MIN_DICT);
                Stream::new_raw_decoder(&chain.build(max_dict)?)
            }
            (LzmaFormat::Raw, None) => Err(Error::Options),
            (LzmaFormat::Auto, _) => Stream::new_auto_decoder(limit, 0),
            (LzmaFormat::Xz, _) => Stream::new_stream_decoder(limit, 0),
            (LzmaFormat::Alone, _) => Stream::new_lzma_decoder(limit),
        }
    }

    /// Decodes one stream and returns the numbers of bytes read and written.
    fn decode_one(
        &self,
        encoded: &[u8],
        out: &mut [u8],
    ) -> std::result::Result<(usize, usize), StreamError> {
        let mut stream = self.decoder(out.len()).map_err(stream_error)?;
        streams::run(encoded, out, |input, room| {
            let status = stream.process(input, room, Action::Run);
            let is_end = status.map_err(stream_error)? == Status::StreamEnd;
            Ok((stream.total_in(), stream.total_out(), is_end))
        })
    }

    /// Returns the size in bytes of the dictionary with which values are encoded.
    fn dict_size(&self) -> usize {
        let preset = || self.preset.clone().ok().flatten();
        let dict = match &self.filters {
            Some(chain) => chain.dict_size(),
            None => preset_dict(preset().unwrap_or(DEFAULT_PRESET)),
        };
        dict as usize
    }

    /// Returns an encoder, or an error if the parameters contradict each other.
    fn encoder(&self) -> CodecResult<Stream> {
        let check = self.check.clone()?;
        let preset = self.preset.clone()?;
        if preset.is_some() && self.filters.is_some() {
            return contradiction("preset and filters exclude each other");
        }
        if self.format != LzmaFormat::Xz && !matches!(check, None | Some(Check::None)) {
            return contradiction("only format 1 has a check");
        }
        let preset = preset.unwrap_or(DEFAULT_PRESET);
        let stream = match (self.format, &self.filters) {
            (LzmaFormat::Auto, _) => return contradiction("format 0 only decodes"),
            (LzmaFormat::Xz, None) => {
                Stream::new_easy_encoder(preset, check.unwrap_or(Check::Crc64))
            }
            (LzmaFormat::Xz, Some(chain)) => chain
                .build(u32::MAX)
                .and_then(|f| Stream::new_stream_encoder(&f, check.unwrap_or(Check::Crc64))),
            (LzmaFormat::Alone, None) => {
                LzmaOptions::new_preset(preset).and_then(|o| Stream::new_lzma_encoder(&o))
            }
            (LzmaFormat::Alone, Some(chain)) => match chain.only_lzma1() {
                Some(options) => options
                    .build(u32::MAX)
                    .and_then(|o| Stream::new_lzma_encoder(&o)),
                None => return contradiction("format 2 takes one LZMA1 filter"),
            },
            (LzmaFormat::Raw, chain) => chain
                .as_ref()
                .ok_or(Error::Options)
                .and_then(|chain| chain.build(u32::MAX))
                .and_then(|f| Stream::new_raw_encoder(&f)),
        };
        stream.or_else(|e| contradiction(&e.to_string()))
    }
}

/// Returns the error of parameters that cannot encode.
fn contradiction<T>(why: &str) -> CodecResult<T> {
    Err(CodecError(format!("lzma: can't encode: {why}")))
}

/// Returns the stream error for an error of liblzma.
fn stream_error(e: Error) -> StreamError {
    StreamError::Invalid(match e {
        Error::MemLimit => "needs more memory than the limit",
        Error::Mem => "out of memory",
        Error::Options | Error::Program => "filters or options that liblzma doesn't support",
        Error::Format => "not of this format",
        _ => "damaged",
    })
}

impl Codec for Lzma {
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::AtMost(decoded.saturating_add(decoded / 4).saturating_add(4096))
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        let room = out.len();
        let done = match encoded {
            [] => Err(StreamError::CutShort),
            _ => streams::decode_all(encoded, out, |rest, room| self.decode_one(rest, room)),
        };
        done.map_err(|e| e.into_codec_error("lzma", encoded.len(), room))
    }

    /// The figures for each byte of the dictionary are those of liblzma's header `lzma12.h`. Of the
    /// memory for matches, a shorter chunk touches only its part, and of the hash table a page for
    /// each byte.
    fn encoder_memory(&self, decoded: usize) -> usize {
        let dict = self.dict_size().min(MAX_DICT);
        let table = dict.next_power_of_two();
        let table = if table <= SMALL_DICT {
            2 * table
        } else {
            table
        };
        let touched_table = table.min(decoded.saturating_mul(4096));
        let touched = touched_table.saturating_add(decoded.saturating_mul(19) / 2);
        let all = dict.saturating_mul(23) / 2;
        all.min(touched) + ENCODER_BASE
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        let mut stream = self.encoder()?;
        out.reserve(decoded.len() / 2 + 128);
        loop {
            let rest = &decoded[stream.total_in() as usize..];
            match stream.process_vec(rest, out, Action::Finish) {
                Ok(Status::StreamEnd) => return Ok(()),
                Ok(_) => out.reserve(decoded.len() / 4 + 1024),
                Err(e) => return Err(CodecError(format!("lzma: {e}"))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::codec::testing::compressors::*;

    const L1: u64 = 0x4000_0000_0000_0001;
    const TEXT: &[u8] = b"hello hello hello hello";

    /// The output of Python's lzma for TEXT with its defaults.
    const XZ: &str = "fd377a585a000004e6d6b4460200210116000000742fe5a3e00016000b5d00341949ee8de9560ab5e00000008943dbea0334e4d0\
                      00012717898290791fb6f37d010000000004595a";
    const ALONE: &str = "5d00008000ffffffffffffffff00341949ee8de9560bd5c5a3ffff78a40000";
    const RAW: &str = "e0001600105d00341949db7fd86e9ca5a46b821732b00000";
    const RAW1: &str = "00341949986f1052fd42fe0fffff841e0000";

    fn lzma(parameters: &str) -> Box<dyn crate::codec::Codec> {
        codec(&format!(r#"{{"id": "lzma"{parameters}}}"#), 1)
    }

    #[test]
    fn round_trips() {
        for parameters in [
            r#", "preset": 0"#,
            r#", "preset": 2147483649, "check": 10"#,
            r#", "check": 0, "preset": 1, "filters": null"#,
            r#", "format": 2, "preset": 1"#,
            r#", "format": 3, "filters": [{"id": 33, "preset": 0}]"#,
            r#", "format": 1, "filters": [{"id": 3, "dist": 4}, {"id": 33, "preset": 0}]"#,
            r#", "format": 3, "filters": [{"id": 3, "dist": 256}, {"id": 4}, {"id": 4611686018427387905, "preset": 0}]"#,
        ] {
            round_trip(&*lzma(parameters));
        }
    }

    #[test]
    fn streams_of_python_are_decoded() {
        let raw = r#", "format": 3, "filters": [{"id": 3, "dist": 4}, {"id": 33, "preset": 1}]"#;
        let raw1 = &format!(
            r#", "format": 3, "filters": [{{"id": {L1}, "dict_size": 65536, "lc": 0, "lp": 2}}]"#
        );
        for (parameters, bytes) in [
            ("", XZ),
            (r#", "format": 2"#, ALONE),
            (raw, RAW),
            (raw1, RAW1),
        ] {
            let codec = lzma(parameters);
            assert_eq!(encoded(&*codec, TEXT), hex(bytes), "{parameters}");
            assert_eq!(decoded(&*codec, &hex(bytes), 23).unwrap(), TEXT);
            assert_eq!(
                decoded(&*codec, &hex(bytes), 22).unwrap_err().0,
                "lzma: holds more than 22 bytes"
            );
            hostile(&*codec, &sample(60));
        }
        let auto = lzma(r#", "format": 0"#);
        assert_eq!(decoded(&*auto, &hex(XZ), 23).unwrap(), TEXT);
        assert_eq!(decoded(&*auto, &hex(ALONE), 23).unwrap(), TEXT);
        let mut out = Vec::new();
        assert_eq!(
            auto.encode(TEXT, &mut out).unwrap_err().0,
            "lzma: can't encode: format 0 only decodes"
        );
    }

    /// Compares all keys of an LZMA filter with the output of Python's lzma.
    #[test]
    fn every_option_of_a_filter_is_applied() {
        let chain = format!(
            r#", "filters": [{{"id": {L1}, "dict_size": 4096, "lc": 0, "lp": 2, "pb": 1, "mode": 1, "mf": 3,
                "nice_len": 10, "depth": 5}}]"#
        );
        let body = "000000404131348fc9dc86da3e10966fd9c6a7de55c27abd1922086e42b9e9402ee23344ff8033edfab1e5ad5d01cd83dffffe\
                    0fc000";
        let data = (0..40).collect::<Vec<u8>>().repeat(3);
        assert_eq!(
            encoded(&*lzma(&format!(r#", "format": 3{chain}"#)), &data),
            hex(body)
        );
        let alone = encoded(&*lzma(&format!(r#", "format": 2{chain}"#)), &data);
        assert_eq!(
            alone,
            [hex("3f00100000ffffffffffffffff"), hex(body)].concat()
        );
    }

    #[test]
    fn bytes_after_the_first_stream_are_decoded_or_ignored() {
        let xz = lzma("");
        let one = hex(XZ);
        let two = TEXT.repeat(2);
        assert_eq!(decoded(&*xz, &[&one[..], &one].concat(), 46).unwrap(), two);
        assert_eq!(
            decoded(&*xz, &[&one[..], &[0; 12], &one].concat(), 46).unwrap(),
            TEXT
        );
        assert_eq!(
            decoded(&*xz, &[&one[..], b"twelve bytes"].concat(), 23).unwrap(),
            TEXT
        );
        assert_eq!(
            decoded(&*xz, &[&one[..], &one[..11]].concat(), 23)
                .unwrap_err()
                .0,
            "lzma: cut short, 83 bytes"
        );
        assert!(decoded(&*xz, &[], 23).is_err());
    }

    #[test]
    fn huge_dictionaries_are_refused() {
        // ALONE with a dictionary of 1.5 GiB
        let mut bytes = hex(ALONE);
        bytes[1..5].copy_from_slice(&0x6000_0000u32.to_le_bytes());
        let e = decoded(&*lzma(r#", "format": 2"#), &bytes, 23).unwrap_err();
        assert_eq!(e.0, "lzma: needs more memory than the limit, 31 bytes");
        // RAW takes the size from the metadata, where it has no effect on decoding
        let raw = format!(
            r#", "format": 3, "filters": [{{"id": {L1}, "dict_size": 1610612736, "lc": 0, "lp": 2}}]"#
        );
        assert_eq!(decoded(&*lzma(&raw), &hex(RAW1), 23).unwrap(), TEXT);
        let bomb = encoded(&*lzma(""), &vec![0; 10 << 20]);
        assert_eq!(
            decoded(&*lzma(""), &bomb, 100).unwrap_err().0,
            "lzma: holds more than 100 bytes"
        );
    }

    #[test]
    fn invalid_parameters_are_refused_or_only_decode() {
        for bad in [
            r#""format": 4"#,
            r#""format": 3"#,
            r#""filters": []"#,
            r#""filters": {"id": 33}"#,
            r#""filters": [{"preset": 1}]"#,
            r#""filters": [{"id": 33, "dist": 1}]"#,
            r#""filters": [{"id": 3, "dist": 257}]"#,
            r#""filters": [{"id": 34}]"#,
            r#""filters": [{"id": 4}, {"id": 4}, {"id": 4}, {"id": 4}, {"id": 33}]"#,
        ] {
            refused(&format!(r#"{{"id": "lzma", {bad}}}"#));
        }
        only_decodes(r#"{"id": "lzma", "check": 2}"#);
        only_decodes(r#"{"id": "lzma", "preset": -1}"#);
        for unusable in [
            r#", "preset": 77"#,
            r#", "preset": 1, "filters": [{"id": 33}]"#,
            r#", "format": 2, "check": 4"#,
            r#", "format": 2, "filters": [{"id": 33}]"#,
            r#", "filters": [{"id": 33, "mode": 3}]"#,
        ] {
            assert!(
                lzma(unusable).encode(TEXT, &mut Vec::new()).is_err(),
                "{unusable}"
            );
        }
    }
}
