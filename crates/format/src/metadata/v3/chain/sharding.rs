//! `sharding_indexed`: a level of shards. Codecs before it in the chain move into the shard: a
//! transposition permutes the dimensions of index and chunks, and a filter of single items encodes
//! each chunk. Source of the rules: the Zarr v3 specification, "Sharding codec".

use super::{Chain, MAX_LEVELS, kind_of, parse_level, parse_list, translate, unknown};
use crate::codec::{ArrayInput, CodecConfig, CodecKind};
use crate::codec::{build, spec_of, transposition};
use crate::extension::Extension;
use crate::metadata::ShardLevel;
use zarrfs_base::error::{Error, Result};

/// Maximum number of entries of an index, which take 64 MiB.
const MAX_ENTRIES: u64 = 1 << 22;

/// Adds the level of shards `codec` and the chain inside it to `chain`. `before` and `around` are
/// the codecs before and after it; `input` is its input.
pub(super) fn parse(
    codec: &Extension,
    before: &[CodecConfig],
    around: &[&Extension],
    mut input: ArrayInput,
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
    let mut of_shard = Vec::new();
    for codec in around {
        of_shard.extend(translate(codec, &mut input)?);
    }
    chain.shards.push(ShardLevel {
        shape: chain.chunks.clone(),
        edges: None,
        axes: axes.clone(),
        index_codecs,
        is_index_big_endian,
        is_index_at_start: is_at_start,
        around: of_shard,
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
        .then(|| transposition(&chain.chunks, &axes, input.is_variable));
    // the codec of objects, which the inner chain adds, stays in front
    let at = chain.filters.len() + usize::from(input.is_variable);
    parse_level(
        &list,
        ArrayInput {
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
    let moved = before
        .iter()
        .filter(|filter| !filter.id.ends_with("transpose"));
    let moved: Vec<CodecConfig> = moved.cloned().collect();
    match moved
        .iter()
        .find(|filter| spec_of(&filter.id).is_none_or(|spec| !spec.is_elementwise))
    {
        None => Ok(moved),
        Some(filter) => Err(Error::unsupported(format!(
            "codecs: {:?} before \"sharding_indexed\" is not supported",
            filter.id
        ))),
    }
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
    if let Some(codec) = list.iter().find(|codec| kind_of(codec).is_none()) {
        return Err(unknown(codec).context("index_codecs"));
    }
    // each entry has two numbers, offset and length
    let shape = [shape, vec![2]].concat();
    let mut input = ArrayInput {
        element: Some("<u8".to_string()),
        itemsize: 8,
        is_big_endian: false,
        is_variable: false,
        axes: Some((0..shape.len()).collect()),
        shape,
    };
    let mut index = Vec::new();
    let mut codecs = list.iter().peekable();
    while let Some(codec) = codecs.next_if(|codec| codec.name == "transpose") {
        index.extend(translate(codec, &mut input)?);
    }
    let bytes = codecs
        .next()
        .ok_or_else(|| codec.invalid("index_codecs", "has no \"bytes\""))?;
    match kind_of(bytes) {
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
        index.extend(fixed_size(codec, &mut input)?);
    }
    Ok((index, is_big_endian))
}

/// Translates a codec of an index from bytes to bytes.
fn fixed_size(codec: &Extension, input: &mut ArrayInput) -> Result<Option<CodecConfig>> {
    let bad = || {
        Error::damaged(format!(
            "index_codecs: {:?} makes no fixed number of bytes",
            codec.name
        ))
    };
    if kind_of(codec) != Some(CodecKind::Bytes) {
        return Err(bad());
    }
    let config = translate(codec, input)?;
    // a codec that cannot be built has an error of its own
    let has_fixed_size = config
        .iter()
        .all(|config| build(config, 1).map_or(true, |codec| codec.encoded_size(64).is_exact()));
    if has_fixed_size {
        Ok(config)
    } else {
        Err(bad())
    }
}
