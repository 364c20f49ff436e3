//! Properties that must hold for any input. The fuzz targets check them, and so does the test that replays their corpora.
//!
//! cargo fuzz run metadata -- -max_total_time=180 -dict=fuzz/json.dict -max_len=2048 -malloc_limit_mb=64
//! cargo fuzz run metadata3 -- -max_total_time=180 -dict=fuzz/json3.dict -max_len=2048 -malloc_limit_mb=64
//! cargo fuzz run shard_index -- -max_total_time=180 -max_len=512 -malloc_limit_mb=64
//! cargo fuzz run codecs -- -max_total_time=180 -dict=fuzz/json.dict -max_len=2048 -malloc_limit_mb=300
//!
//! The codecs target needs its higher malloc limit because liblzma may use up to 256 MiB. cargo-fuzz needs a
//! nightly toolchain, or RUSTC_BOOTSTRAP=1.

use zarrfs::util::json;
use zarrfs::zarr::codec::{Pipeline, build};
use zarrfs::zarr::grid::{ChunkId, Grid};
use zarrfs::zarr::metadata::v3::merge::{differs_v3, merged_v3};
use zarrfs::zarr::metadata::v3::node::{check_group_v3, member, node_type, rewrite, without_consolidated};
use zarrfs::zarr::metadata::v3::view::array_view;
use zarrfs::zarr::metadata::{ArrayMetadata, CodecConfig, Separator, ShardLevel, V1Order};
use zarrfs::zarr::shard::{IndexCodec, Shards};

/// Size in bytes up to which chunks are decoded.
const SMALL: usize = 1 << 16;

/// Parses any bytes as an array's metadata document, in every way in which zarrfs reads one.
pub fn metadata(document: &[u8]) {
    let readings = [
        ArrayMetadata::parse(document),
        ArrayMetadata::parse_v1(document, V1Order::Zarr1),
        ArrayMetadata::parse_v1(document, V1Order::Spec),
    ];
    for meta in readings.into_iter().flatten() {
        view(&meta);
        if let Some(grid) = grid(&meta) {
            pipeline(&meta, &grid);
        }
    }
}

/// Checks that the document that the mount shows as `.zarray` describes the same array.
fn view(meta: &ArrayMetadata) {
    let text = meta.decoded_view();
    let shown = ArrayMetadata::parse(text.as_bytes()).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(
        (&shown.shape, &shown.chunks, &shown.dtype, shown.order),
        (&meta.shape, &meta.chunks, &meta.dtype, meta.order)
    );
    // a missing fill value reads as zeros
    assert_eq!(shown.fill.as_deref().unwrap_or_default(), meta.fill.as_deref().unwrap_or_default());
    assert_eq!(shown.decoded_view(), text);
}

fn grid(meta: &ArrayMetadata) -> Option<Grid> {
    let grid = match Grid::new(&meta.shape, &meta.chunks, meta.dtype.size()) {
        Ok(grid) => grid,
        // the size of items of no bytes does not limit their number
        Err(_) if meta.dtype.size() == 0 => return None,
        Err(e) => panic!("{e}: {:?} {:?}", meta.shape, meta.chunks),
    };
    let ends = [0, grid.size() / 2, grid.size().saturating_sub(100)];
    for run in ends.into_iter().flat_map(|at| grid.runs(at..at.saturating_add(100)).take(100)) {
        assert!(run.chunk.0 < grid.chunk_count() && run.len > 0 && run.offset + run.len <= grid.chunk_size());
        assert!(grid.next_in_chunk(run.chunk, 0).is_some());
    }
    for id in [0, grid.chunk_count().saturating_sub(1)].into_iter().filter(|&id| id < grid.chunk_count()) {
        for separator in [Separator::Dot, Separator::Slash] {
            let key = grid.chunk_key(ChunkId(id), separator);
            assert_eq!(grid.parse_chunk_key(&key, separator), Some(ChunkId(id)), "{key}");
        }
    }
    Some(grid)
}

fn pipeline(meta: &ArrayMetadata, grid: &Grid) {
    let Ok(pipeline) = Pipeline::new(meta, grid.chunk_size()) else { return };
    if grid.chunk_size() > SMALL || meta.has_objects() {
        return;
    }
    let mut decoded = Vec::new();
    for stored in [&[][..], &[0; 16], b"\x78\x9c\x03\x00\x00\x00\x00\x01"] {
        if pipeline.decode(stored, &mut decoded).is_ok() {
            assert_eq!(decoded.len(), grid.chunk_size());
        }
    }
}

/// Parses any bytes as a `zarr.json`. What the mount shows of it, and makes of that if a user writes it back, is the same
/// array.
pub fn metadata3(document: &[u8]) {
    group3(document);
    let Ok(meta) = ArrayMetadata::parse_v3(document) else { return };
    let stored = json::parse_object(document).unwrap_or_else(|e| panic!("{e}"));
    let text = array_view(&stored, &meta);
    let shown = ArrayMetadata::parse_v3(text.as_bytes()).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!((&shown.shape, &shown.chunks, &shown.dtype), (&meta.shape, &meta.chunks, &meta.dtype), "{text}");
    assert_eq!(shown.fill, meta.fill, "{text}");
    assert!(shown.shards.is_empty() && shown.stated_filters().eq(meta.object_codec()), "{text}");
    let written = json::parse_object(text.as_bytes()).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(array_view(&written, &shown), text);
    assert_eq!(differs_v3(&stored, &meta, &written, &shown), None, "{text}");
    let merged = json::write(&json::Value::Object(merged_v3(&stored, &written, &meta, &shown)));
    let merged = ArrayMetadata::parse_v3(merged.as_bytes()).unwrap_or_else(|e| panic!("{e}: {merged}"));
    assert!(merged.encodes_like(&meta) && merged.shape == meta.shape && merged.fill == meta.fill, "{text}");
    meta.description();
    let Some(grid) = grid(&meta) else { return };
    pipeline(&meta, &grid);
    if let Ok(Some(shards)) = Shards::new(&meta) {
        homes(&meta, &grid, &shards);
    }
}

/// Checks that the document of a group, with and without consolidated metadata, is one.
fn group3(document: &[u8]) {
    let node = node_type(document).ok();
    if check_group_v3(document).is_err() {
        return;
    }
    let shown = without_consolidated(document).unwrap_or_else(|e| panic!("{e}"));
    let with = rewrite(&shown, "consolidated_metadata", Some(b"{}")).unwrap_or_else(|e| panic!("{e}"));
    for text in [&shown, &with] {
        let shown = text.escape_ascii();
        assert!(node_type(text).ok() == node && check_group_v3(text).is_ok(), "{shown}");
        assert_eq!(member(text, "attributes").ok(), member(document, "attributes").ok(), "{shown}");
    }
}

/// Checks that chunks are members of the shards that hold them.
fn homes(meta: &ArrayMetadata, grid: &Grid, shards: &Shards) {
    let count = grid.chunk_count();
    let ids = [0, count / 2, count.saturating_sub(1)].into_iter().filter(|&id| id < count);
    for id in ids {
        let indices = grid.indices(ChunkId(id));
        for level in 0..shards.levels() {
            let inner = meta.shards.get(level + 1).map_or(&meta.chunks, |inner| &inner.shape);
            let entries: u64 = meta.shards[level].shape.iter().zip(inner).map(|(shard, inner)| shard / inner).product();
            assert!((shards.slot(level, &indices) as u64) < entries);
        }
        let object = shards.shard(0, &indices).number;
        assert!(object < shards.objects().chunk_count());
        let mut members = shards.members(object, grid).map(|member| member.0).take(1000).peekable();
        assert!(members.peek().is_some_and(|first| *first <= id));
        assert!(members.is_sorted());
    }
}

/// Decodes any bytes as the index of a shard: each entry lies in the value, beside the index, or is an error. The first
/// byte tells the place and the codecs of the index, the second the number of entries, the others are the value.
pub fn shard_index(data: &[u8]) {
    let [how, entries, value @ ..] = data else { return };
    let (how, entries) = (*how, usize::from(*entries));
    let config = |text: &str| CodecConfig::parse(&json::parse(text.as_bytes()).unwrap_or_default()).ok();
    let turned = format!(r#"{{"id":"transpose","shape":[{entries},2],"order":[1,0]}}"#);
    let codecs = [(1, turned.as_str()), (2, r#"{"id":"shuffle","elementsize":8}"#), (4, r#"{"id":"crc32c"}"#)];
    let codecs = codecs.into_iter().filter(|(bit, _)| how & bit != 0).filter_map(|(_, text)| config(text));
    let level = ShardLevel {
        shape: Vec::new(),
        axes: Vec::new(),
        index_codecs: codecs.collect(),
        is_index_big_endian: how & 8 != 0,
        is_index_at_start: how & 16 != 0,
        around: Vec::new(),
    };
    let Ok(codec) = IndexCodec::new(&level, entries) else { return };
    let size = value.len() as u64;
    let Ok(place) = codec.place(size) else { return };
    assert!(place.start <= place.end && place.end <= size && place.end - place.start == codec.stored_size());
    let mut encoded = value[place.start as usize..place.end as usize].to_vec();
    // no fuzzer guesses a checksum
    if how & 4 != 0
        && how & 32 != 0
        && let Some((bytes, sum)) = encoded.split_last_chunk_mut::<4>()
    {
        *sum = crc32c::crc32c(bytes).to_le_bytes();
    }
    let Ok(index) = codec.decode(&encoded, size) else { return };
    for slot in 0..entries {
        if let Ok(Some(entry)) = index.get(slot) {
            assert!(entry.start < entry.end && entry.end <= size, "{entry:?} of {size}");
            assert!(entry.end <= place.start || entry.start >= place.end, "{entry:?} overlaps {place:?}");
        }
    }
    assert!(index.get(entries).is_err());
}

/// Decodes any bytes. The input is a codec's configuration, a line feed, and the encoded bytes.
pub fn codecs(data: &[u8]) {
    let Some(end) = data.iter().position(|&b| b == b'\n') else { return };
    let (line, stored) = (&data[..end], &data[end + 1..]);
    let Some(config) = json::parse(line).ok().and_then(|v| CodecConfig::parse(&v).ok()) else { return };
    for (itemsize, room) in [(1, 0), (1, 16), (4, 256), (8, 4096)] {
        let Ok(codec) = build(&config, itemsize) else { return };
        let mut out = vec![0; room];
        if let Ok(n) = codec.decode(stored, &mut out) {
            assert!(n <= room, "{n} bytes where {room} fit");
        }
    }
}
