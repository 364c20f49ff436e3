//! Random openings, truncations, writes and closes of `data.raw` by several descriptors against a
//! plain model of what a program believes.

use crate::fs::tests::geometry;
use crate::fs::tests::model::mount;
use crate::fs::tree::FLAT;
use crate::fs::{Fs, Seek};
use proptest::prelude::*;
use std::sync::Arc;
use zarrfs_base::error::Result;
use zarrfs_store::testing::FaultyStore;
use zarrfs_store::{Key, MemoryStore, Store};

/// An operation. Numbers between 0 and 1 are positions and lengths, as fractions of the size.
#[derive(Clone, Debug)]
enum Op {
    /// Opens the file, and truncates it.
    Open(bool),
    Write(usize, f64, f64),
    SetSize(usize, f64),
    Punch(usize, f64, f64),
    /// Reserves space, and with `false` makes the file longer.
    Allocate(usize, f64, f64, bool),
    Close(usize),
    Sync(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let at = || 0.0..1.0f64;
    prop_oneof![
        3 => any::<bool>().prop_map(Op::Open),
        8 => (0usize..3, at(), at()).prop_map(|(n, a, b)| Op::Write(n, a, b * b)),
        3 => (0usize..3, prop_oneof![at(), Just(0.0), Just(1.0)]).prop_map(|(n, a)| Op::SetSize(n, a)),
        1 => (0usize..3, at(), at()).prop_map(|(n, a, b)| Op::Punch(n, a, b)),
        1 => (0usize..3, at(), at(), any::<bool>()).prop_map(|(n, a, b, keeps)| Op::Allocate(n, a, b, keeps)),
        2 => (0usize..3).prop_map(Op::Close),
        1 => (0usize..3).prop_map(Op::Sync),
    ]
}

/// A file, its open descriptors, and what they should show.
struct Model {
    fs: Fs,
    inode: u64,
    open: Vec<u64>,
    bytes: Vec<u8>,
    /// The size of the truncated file, and the descriptors that have truncated it.
    truncated: Option<(usize, Vec<u64>)>,
    next: u8,
}

impl Model {
    fn new(store: &Arc<FaultyStore>, bytes: Vec<u8>) -> Model {
        let fs = mount(store, 1 << 20);
        let inode = fs
            .lookup(fs.lookup(1, "a").unwrap().inode, FLAT)
            .unwrap()
            .inode;
        Model {
            fs,
            inode,
            open: Vec::new(),
            bytes,
            truncated: None,
            next: 0,
        }
    }

    fn size(&self) -> usize {
        self.truncated
            .as_ref()
            .map_or(self.bytes.len(), |(end, _)| *end)
    }

    fn set_size(&mut self, handle: u64, size: usize) -> Result<()> {
        self.fs
            .change()
            .set_size(self.inode, size as u64, Some(handle))?;
        let before = self.size();
        if size < before {
            let mut owners = self
                .truncated
                .take()
                .map_or(Vec::new(), |(_, owners)| owners);
            owners.push(handle);
            self.truncated = Some((size, owners));
        } else {
            self.bytes[before..size].fill(0);
            self.reach(size);
        }
        Ok(())
    }

    fn reach(&mut self, to: usize) {
        if let Some((end, _)) = &mut self.truncated {
            *end = to.max(*end);
        }
        self.truncated = self
            .truncated
            .take()
            .filter(|(end, _)| *end < self.bytes.len());
    }

    fn apply(&mut self, op: &Op) -> Result<()> {
        let whole = self.bytes.len() as f64;
        let handle = |n: usize| self.open.get(n % self.open.len().max(1)).copied();
        match *op {
            Op::Open(truncates) => {
                let handle = self.fs.open(self.inode, true, false)?.handle;
                self.open.push(handle);
                if truncates {
                    self.set_size(handle, 0)?;
                }
            }
            Op::Write(n, at, len) => {
                let Some(handle) = handle(n) else {
                    return Ok(());
                };
                let at = (at * whole) as usize;
                let len = ((len * whole) as usize + 1).min(self.bytes.len() - at);
                self.next = self.next.wrapping_add(1).max(1);
                let data = vec![self.next; len];
                assert_eq!(self.fs.change().write(handle, at as u64, &data)?, len);
                let before = self.size().min(at);
                self.bytes[before..at].fill(0);
                self.bytes[at..at + len].copy_from_slice(&data);
                self.reach(at + len);
            }
            Op::SetSize(n, size) => {
                if let Some(handle) = handle(n) {
                    self.set_size(handle, (size * whole) as usize)?;
                }
            }
            Op::Punch(n, at, len) => {
                let Some(handle) = handle(n) else {
                    return Ok(());
                };
                let at = (at * whole) as usize;
                let len = (len * whole) as usize;
                self.fs.change().punch(handle, at as u64, len as u64)?;
                let end = (at + len).min(self.size());
                self.bytes[at.min(end)..end].fill(0);
            }
            Op::Allocate(n, at, len, keeps_size) => {
                let Some(handle) = handle(n) else {
                    return Ok(());
                };
                let at = (at * whole) as usize;
                let end = at + (len * whole) as usize + 1;
                let fs = self.fs.change();
                let done = fs.allocate(handle, at as u64, (end - at) as u64, keeps_size);
                drop(fs);
                let is_past_end = end > self.bytes.len();
                assert_eq!(
                    done.err().map(|e| e.errno()),
                    is_past_end.then_some(libc::EFBIG)
                );
                let before = self.size();
                if !keeps_size && !is_past_end && end > before {
                    self.bytes[before..end].fill(0);
                    self.reach(end);
                }
            }
            Op::Close(n) => {
                let Some(handle) = handle(n) else {
                    return Ok(());
                };
                self.fs.change().flush(handle)?;
                self.fs.change().release(handle);
                self.open.retain(|open| *open != handle);
                if let Some((_, owners)) = &mut self.truncated {
                    owners.retain(|owner| *owner != handle);
                }
                self.truncated = self
                    .truncated
                    .take()
                    .filter(|(_, owners)| !owners.is_empty());
            }
            Op::Sync(n) => {
                if let Some(handle) = handle(n) {
                    self.fs.change().fsync(handle)?;
                }
            }
        }
        Ok(())
    }

    fn check(&self) {
        let size = self.size();
        assert_eq!(self.fs.attributes(self.inode).unwrap().size, size as u64);
        let reader = self.fs.open(self.inode, false, false).unwrap().handle;
        for handle in self.open.iter().chain([&reader]) {
            let mut out = Vec::new();
            self.fs
                .read(*handle, 0, self.bytes.len(), &mut out)
                .unwrap();
            assert_eq!(out, self.bytes[..size]);
            let hole = self.fs.seek(*handle, 0, Seek::Hole).ok();
            assert!(
                hole.is_none_or(|hole| hole <= size as u64),
                "a hole behind the end"
            );
            assert!(
                self.fs.seek(*handle, size as u64, Seek::Data).is_err(),
                "data behind the end"
            );
        }
        self.fs.change().release(reader);
    }
}

/// Returns a store with an array of bytes `a`, all of them stored.
fn store(shape: &[u64], chunks: &[u64], fill: u8, is_sharded: bool) -> (Arc<FaultyStore>, Vec<u8>) {
    let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::default())));
    let twice: Vec<u64> = chunks.iter().map(|len| 2 * len).collect();
    let (name, text) = if is_sharded {
        let text = format!(
            r#"{{"zarr_format":3,"node_type":"array","shape":{shape:?},"data_type":"uint8","fill_value":{fill},
            "chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":{twice:?}}}}},
            "chunk_key_encoding":{{"name":"default"}},"codecs":[{{"name":"sharding_indexed","configuration":
            {{"chunk_shape":{chunks:?},"codecs":[{{"name":"bytes"}}],"index_codecs":[{{"name":"bytes",
            "configuration":{{"endian":"little"}}}}]}}}}]}}"#
        );
        ("a/zarr.json", text)
    } else {
        let text = format!(
            r#"{{"zarr_format":2,"shape":{shape:?},"chunks":{chunks:?},"dtype":"|u1","compressor":{{"id":"zlib",
            "level":1}},"fill_value":{fill},"order":"C","filters":null}}"#
        );
        ("a/.zarray", text)
    };
    store
        .put(&Key::normalize(name).unwrap(), text.as_bytes())
        .unwrap();
    let bytes = vec![77; shape.iter().product::<u64>() as usize];
    let mut model = Model::new(&store, bytes.clone());
    model.apply(&Op::Open(false)).unwrap();
    model.fs.change().write(model.open[0], 0, &bytes).unwrap();
    model.apply(&Op::Close(0)).unwrap();
    model.fs.change().store_all().unwrap();
    (store, bytes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_truncated_file_is_what_the_program_believes(
        (shape, chunks) in geometry(), fill in prop::sample::select(vec![0u8, 9]), is_sharded in any::<bool>(),
        ops in prop::collection::vec(op(), 1..30),
    ) {
        let (store, bytes) = store(&shape, &chunks, fill, is_sharded);
        let mut model = Model::new(&store, bytes);
        for op in &ops {
            model.apply(op).unwrap();
            model.check();
        }
        while !model.open.is_empty() {
            model.apply(&Op::Close(0)).unwrap();
        }
        model.check();
        model.fs.change().store_all().unwrap();
        let again = Model::new(&store, model.bytes.clone());
        again.check();
    }
}
