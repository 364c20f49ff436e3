//! Changes of the array's shape, through the mount and by another writer.

use super::*;
use crate::array::Array;
use crate::array::hierarchy::{MetadataFile, StoredNode};
use crate::fs::resize::Added;
use zarrfs_base::json::{self, Value};

/// Maximum number of items, so that an array stays small.
const MAX_ITEMS: u64 = 4000;

impl Model {
    /// Changes the length of a dimension. Without `is_foreign` the mount does, with its flat file
    /// or its document.
    pub(super) fn resize(&mut self, dimension: f64, factor: f64, is_foreign: bool) -> Result<()> {
        let old = self.meta.shape.clone();
        let d = (dimension * old.len() as f64) as usize;
        // as for other changes by another writer, which must not race with write-backs
        if old.is_empty() || is_foreign && self.bound < 1 << 20 {
            return Ok(());
        }
        let mut new = old.clone();
        new[d] = 1 + (factor * (2 * old[d] + 1) as f64) as u64;
        if new.iter().product::<u64>() > MAX_ITEMS {
            return Ok(());
        }
        self.heal();
        // padding that was written to chunk files would become part of the array
        if !is_foreign || new[d] > old[d] {
            self.fs.change().flush(self.handle)?;
            self.dirty.fill(false);
        }
        let by_size = d == 0 && ((factor * 1000.0) as u64).is_multiple_of(2);
        let is_lost = if is_foreign {
            self.resize_elsewhere(&new)?
        } else {
            self.resize_here(&new, by_size)?;
            false
        };
        let again = open(&self.fs, FLAT, true)?;
        self.fs
            .change()
            .release(std::mem::replace(&mut self.handle, again));
        self.take_shape(&new, !is_foreign && !by_size)?;
        if is_lost {
            // chunks of which nothing was written inside the new shape were never stored
            for id in 0..self.there.len() {
                let name = self.grid.chunk_key(ChunkId(id as u64), Separator::Dot);
                match open(&self.fs, &name, false) {
                    Ok(handle) => self.fs.change().release(handle),
                    Err(_) => self.there[id] = false,
                }
            }
        }
        Ok(())
    }

    /// Returns whether bytes that were written here are lost.
    fn resize_elsewhere(&self, new: &[u64]) -> Result<bool> {
        let is_lost = self
            .dirty
            .iter()
            .zip(self.positions(new))
            .any(|(dirty, place)| *dirty && place.is_none());
        let other = Hierarchy::new(self.memory.clone(), V1Order::Zarr1, Arc::default());
        let Some(StoredNode::Array(array)) = other.find(&Key::normalize("a")?)? else {
            panic!("the array is gone")
        };
        other.resize(&array, new)?;
        match self.fs.change().flush(self.handle) {
            // bytes outside are lost, and no others
            Err(e) if e.errno() == libc::ESTALE && is_lost => Ok(true),
            done => done.map(|()| is_lost),
        }
    }

    fn resize_here(&self, new: &[u64], by_size: bool) -> Result<()> {
        let key = Key::normalize("a")?;
        if by_size {
            return self.fs.change().writer.truncate(
                &key,
                new.iter().product::<u64>() * self.meta.dtype.size() as u64,
                Added::FillValue,
            );
        }
        if self.meta.zarr_format == 2 {
            let mut document = self.document("a/.zarray");
            document["shape"] = new.to_vec().into();
            self.fs.change().put_document(
                &key,
                MetadataFile::Array,
                json::write(&document).as_bytes(),
            )?;
            return self.remove_outside(new);
        }
        let view = self
            .fs
            .tree
            .hierarchy()
            .shown_zarr_json(&key)?
            .map(|view| json::parse(&view.text));
        let mut view = view.transpose()?.unwrap_or_default();
        view["shape"] = new.to_vec().into();
        // as zarr-python does, one chunk for all that is missing
        let shapes = view["chunk_grid"]["configuration"]
            .get_mut("chunk_shapes")
            .and_then(Value::as_array_mut);
        for ((axis, edges), len) in shapes
            .into_iter()
            .flatten()
            .zip(self.meta.chunk_edges().iter())
            .zip(new)
        {
            if let Some(list) = axis.as_array_mut().filter(|_| edges.capacity() < *len) {
                list.push((len - edges.capacity()).into());
            }
        }
        self.fs
            .change()
            .put_document(&key, MetadataFile::Zarr, json::write(&view).as_bytes())?;
        self.remove_outside(new)
    }

    /// Removes the chunks outside a new shape, as zarr-python does after it has written it.
    fn remove_outside(&self, new: &[u64]) -> Result<()> {
        if self.meta.edges.is_some() || self.meta.shards.iter().any(|level| level.edges.is_some()) {
            return Ok(());
        }
        let array = self.fs.lookup(1, "a")?.inode;
        let grid = self.meta.grid(new)?;
        for id in (0..self.grid.chunk_count()).map(ChunkId) {
            let name = self.grid.chunk_key(id, Separator::Dot);
            if grid.parse_chunk_key(&name, Separator::Dot).is_some() {
                continue;
            }
            match self.fs.change().unlink(array, &name) {
                Err(e) if e.errno() == libc::ENOENT => {}
                removed => removed?,
            }
            assert!(
                self.fs.lookup(array, &name).is_err(),
                "{name} is there after it was removed"
            );
        }
        Ok(())
    }

    fn document(&self, key: &str) -> Value {
        let mut text = Vec::new();
        self.memory
            .get(&Key::normalize(key).unwrap(), 1 << 20, &mut text)
            .unwrap()
            .unwrap();
        json::parse(&text).unwrap()
    }

    /// Returns for each byte of the flat array its position in an array of shape `new`; `None`
    /// outside of it.
    fn positions(&self, new: &[u64]) -> Vec<Option<usize>> {
        let old = &self.meta.shape;
        let item = self.meta.dtype.size();
        let position = |byte: usize| {
            let mut rest = (byte / item) as u64;
            let mut place = 0;
            let mut stride = 1;
            for (old, new) in old.iter().zip(new).rev() {
                if rest % old >= *new {
                    return None;
                }
                place += rest % old * stride;
                (stride, rest) = (stride * new, rest / old);
            }
            Some(place as usize * item + byte % item)
        };
        (0..self.grid.size() as usize).map(position).collect()
    }

    /// Gives the model the shape that the store has now: elements that were always inside keep
    /// their values, any other holds the fill value or, with `keeps`, what is stored. Padding keeps
    /// its bytes.
    fn take_shape(&mut self, new: &[u64], keeps: bool) -> Result<()> {
        let flat = self.flat();
        let places = self.positions(new);
        let meta = match self.meta.zarr_format {
            2 => ArrayMetadata::parse(json::write(&self.document("a/.zarray")).as_bytes()),
            _ => ArrayMetadata::parse_v3(json::write(&self.document("a/zarr.json")).as_bytes()),
        };
        let meta = meta.unwrap();
        assert_eq!(meta.shape, new);
        let grid = meta.grid(new).unwrap();
        let mut now = self.fill().repeat(new.iter().product::<u64>() as usize);
        let mut is_known = vec![!keeps; now.len()];
        for (byte, place) in flat.into_iter().zip(places) {
            place
                .into_iter()
                .for_each(|place| (now[place], is_known[place]) = (byte, true));
        }
        let stored = Array::new(
            Key::normalize("a")?,
            meta.clone(),
            self.memory.clone(),
            Arc::default(),
        )?;
        let mut chunks = Vec::new();
        let mut there = Vec::new();
        for id in (0..grid.chunk_count()).map(ChunkId) {
            let indices = grid.indices(id);
            let is_old = indices
                .iter()
                .zip(self.grid.counts())
                .all(|(index, count)| index < count);
            let old = is_old.then(|| self.grid.chunk(&indices).0 as usize);
            let blank = || self.fill().repeat(grid.chunk_size(id) / meta.dtype.size());
            let loaded = if keeps {
                stored.load(id, Vec::new(), &mut Default::default())?
            } else {
                None
            };
            there.push(if keeps {
                loaded.is_some()
            } else {
                old.is_some_and(|old| self.there[old])
            });
            let mut chunk = match (loaded, old) {
                (Some(loaded), _) => loaded.bytes,
                (None, Some(old)) if !keeps => self.chunks[old].clone(),
                _ => blank(),
            };
            for (at, run) in grid.chunk_runs(id, 0..u64::MAX) {
                for i in (0..run.len).filter(|i| is_known[at as usize + i]) {
                    chunk[run.offset + i] = now[at as usize + i];
                }
            }
            chunks.push(chunk);
        }
        (self.chunks, self.there, self.dirty) = (chunks, there, vec![false; now.len()]);
        (self.grid, self.meta) = (grid, meta);
        Ok(())
    }
}
