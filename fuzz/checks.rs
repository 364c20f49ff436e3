//! Properties that must hold for any input. The fuzz targets check them, and so does the test that replays their corpora.
//!
//! cargo fuzz run metadata -- -max_total_time=180 -dict=fuzz/json.dict -max_len=2048 -malloc_limit_mb=64
//! cargo fuzz run codecs -- -max_total_time=180 -dict=fuzz/json.dict -max_len=2048 -malloc_limit_mb=300
//!
//! The codecs target needs its higher malloc limit because liblzma may use up to 256 MiB. cargo-fuzz needs a
//! nightly toolchain, or RUSTC_BOOTSTRAP=1.

use zarrfs::util::json;
use zarrfs::zarr::codec::{Pipeline, build};
use zarrfs::zarr::grid::{ChunkId, Grid};
use zarrfs::zarr::metadata::{ArrayMetadata, CodecConfig, Separator, V1Order};

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
