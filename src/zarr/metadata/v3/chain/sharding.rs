//! `sharding_indexed`: a level of shards. Codecs before it in the chain move into the shard: a
//! transposition permutes the dimensions of index and chunks, and a filter of single items encodes
//! each chunk. Source of the rules: the Zarr v3 specification, "Sharding codec".

use super::{Chain, CodecKind, Extension, Input, MAX_LEVELS};
use super::{array_codecs, bytes_codecs, kind_of, parse_level, parse_list, unknown};
use crate::error::{Error, Result};
use crate::zarr::metadata::{CodecConfig, ShardLevel};

/// Maximum number of entries of an index, which take 64 MiB.
const MAX_ENTRIES: u64 = 1 << 22;

/// Codecs that encode each item by itself, so that they commute with the division into chunks.
const ELEMENTWISE: [&str; 6] = [
    "scale_offset",
    "cast_value",
    "bitround",
    "quantize",
    "fixedscaleoffset",
    "astype",
];

/// Adds the level of shards `codec` and the chain inside it to `chain`. `before` and `around` are
/// the codecs before and after it; `input` is its input.
pub(super) fn parse(
    codec: &Extension,
    before: &[CodecConfig],
    around: &[&Extension],
    input: Input,
    chain: &mut Chain,
) -> Result<()> {
    codec.allow_only(&["chunk_shape", "codecs", "index_codecs", "index_location"])?;
    if chain.shards.len() == MAX_LEVELS {
        return Err(Error::unsupported(format!(
            "codecs: more than {MAX_LEVELS} levels of shards"
        )));
    }
    let axes = input.axes.clone();
    let axes = axes.ok_or_else(|| {
        Error::unsupported("codecs: a reshape before \"sharding_indexed\" is not supported")
    })?;
    let inner = inner_shape(codec, &input.shape)?;
    let is_at_start = match codec.text("index_location", "end")? {
        "start" => true,
        "end" => false,
        _ => return Err(codec.invalid("index_location", "is neither \"start\" nor \"end\"")),
    };
    let counts = inner
        .iter()
        .zip(&input.shape)
        .map(|(inner, outer)| outer / inner)
        .collect();
    let (index_codecs, is_index_big_endian) = index_codecs(codec, counts)?;
    chain.shards.push(ShardLevel {
        shape: chain.chunks.clone(),
        edges: None,
        axes: axes.clone(),
        index_codecs,
        is_index_big_endian,
        is_index_at_start: is_at_start,
        around: around
            .iter()
            .map(|codec| bytes_codecs::parse(codec))
            .collect::<Result<_>>()?,
    });
    for (i, &axis) in axes.iter().enumerate() {
        chain.chunks[axis] = inner[i];
    }
    chain.filters.extend(moved_inside(before)?);
    let list = codec
        .get("codecs")
        .ok_or_else(|| codec.invalid("codecs", "is missing"))?;
    let list = parse_list(list, "codecs")?;
    let is_innermost = !list.iter().any(|codec| codec.name == "sharding_indexed");
    // decoded chunks have the array's order of dimensions, so the innermost chunks get a
    // transposition of their own
    let is_transposed = !axes.iter().copied().eq(0..axes.len());
    let own = (is_innermost && is_transposed)
        .then(|| array_codecs::transposition(&chain.chunks, &axes, input.is_variable));
    // the codec of objects, which the inner chain adds, stays in front
    let at = chain.filters.len() + usize::from(input.is_variable);
    parse_level(
        &list,
        Input {
            shape: inner,
            axes: Some(axes),
            ..input
        },
        chain,
    )?;
    if let Some(own) = own {
        chain.filters.insert(at.min(chain.filters.len()), own);
    }
    Ok(())
}

/// Returns the codecs before a shard, which encode its chunks instead. Transpositions are left out:
/// the axes of the level contain them.
fn moved_inside(before: &[CodecConfig]) -> Result<Vec<CodecConfig>> {
    let is_moved = |filter: &CodecConfig| {
        if ELEMENTWISE.contains(&filter.id.as_str()) {
            Ok(filter.clone())
        } else {
            let why = format!(
                "codecs: {:?} before \"sharding_indexed\" is not supported",
                filter.id
            );
            Err(Error::unsupported(why))
        }
    };
    before
        .iter()
        .filter(|filter| !filter.id.ends_with("transpose"))
        .map(is_moved)
        .collect()
}

/// Returns the shape of the chunks in a shard of shape `shape`.
fn inner_shape(codec: &Extension, shape: &[u64]) -> Result<Vec<u64>> {
    let inner = codec.lengths("chunk_shape")?;
    if inner.len() != shape.len() {
        return Err(codec.invalid(
            "chunk_shape",
            &format!("has {} dimensions, not {}", inner.len(), shape.len()),
        ));
    }
    let mut entries = 1u64;
    for (inner, outer) in inner.iter().zip(shape) {
        if *inner == 0 || outer % inner != 0 {
            return Err(codec.invalid(
                "chunk_shape",
                &format!("{inner} does not divide the shard's length {outer}"),
            ));
        }
        entries = entries.saturating_mul(outer / inner);
    }
    if entries > MAX_ENTRIES {
        let why = format!(
            "codecs: an index of {entries} chunks, more than the {MAX_ENTRIES} that are supported"
        );
        // more than 2^64 entries cannot be an index
        return Err(if entries == u64::MAX {
            Error::damaged(why)
        } else {
            Error::unsupported(why)
        });
    }
    Ok(inner)
}

/// Returns the codecs of the index, and whether its numbers are big-endian. `shape` is the number
/// of chunks along each dimension of the shard. The encoded size must be known: only codecs that
/// add a fixed number of bytes may follow `bytes`.
fn index_codecs(codec: &Extension, shape: Vec<u64>) -> Result<(Vec<CodecConfig>, bool)> {
    let list = codec
        .get("index_codecs")
        .ok_or_else(|| codec.invalid("index_codecs", "is missing"))?;
    let list = parse_list(list, "index_codecs")?;
    let mut codecs = list.iter().peekable();
    let is_unknown = |codec: &&Extension| kind_of(&codec.name).is_none();
    if let Some(codec) = list.iter().find(is_unknown) {
        return Err(unknown(codec).context("index_codecs"));
    }
    // each entry has two numbers, offset and length
    let mut input = Input::of_index([shape, vec![2]].concat());
    let mut index = Vec::new();
    while let Some(codec) = codecs.next_if(|codec| codec.name == "transpose") {
        index.extend(array_codecs::parse(codec, &mut input)?);
    }
    let bytes = codecs
        .next()
        .ok_or_else(|| codec.invalid("index_codecs", "has no \"bytes\""))?;
    match kind_of(&bytes.name) {
        _ if matches!(bytes.name.as_str(), "bytes" | "endian") => bytes.allow_only(&["endian"])?,
        Some(CodecKind::Bytes) => {
            return Err(codec.invalid(
                "index_codecs",
                &format!("has {:?} in the place of \"bytes\"", bytes.name),
            ));
        }
        _ => {
            return Err(Error::unsupported(format!(
                "index_codecs: {:?} is not supported",
                bytes.name
            )));
        }
    }
    let is_big_endian = super::is_big_endian(std::slice::from_ref(bytes), 0)?;
    for codec in codecs {
        index.push(fixed_size(codec)?);
    }
    Ok((index, is_big_endian))
}

/// Translates a codec of an index from bytes to bytes.
fn fixed_size(codec: &Extension) -> Result<CodecConfig> {
    match codec.name.trim_start_matches("numcodecs.") {
        "crc32c" | "crc32" | "adler32" | "fletcher32" | "jenkins_lookup3" | "shuffle" => {
            bytes_codecs::parse(codec)
        }
        _ => Err(Error::damaged(format!(
            "index_codecs: {:?} makes no fixed number of bytes",
            codec.name
        ))),
    }
}
