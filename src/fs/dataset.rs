//! `dataset.nc` and `data.vrt` as other programs edit them. NCO and netCDF-C rewrite the header of `dataset.nc` in place, or
//! write a whole file beside it and rename that onto it. **Either is taken where the layout stays: what changes then are
//! attributes, which go to `.zattrs`, and values**; anything else is EPERM, and changes nothing. GDAL writes `data.vrt`
//! anew, of which its metadata are taken.

use super::Fs;
use super::composite::{CompositeFile, HeaderDraft};
use super::write::WriteMode;
use crate::array::hierarchy::MetadataFile;
use crate::error::{Error, Kind, Result};
use crate::export::{Format, HeaderEdit, PartContent, VrtContent};
use crate::fs::tree::Node;
use crate::store::Key;
use crate::util::json::Value;
use crate::util::memory::lock;

/// Bytes of a file that are looked at first for its header.
const FIRST_LOOK: u64 = 64 << 10;

/// The most bytes of a header that is looked at: it stands in memory several times.
const MAX_HEADER: u64 = 8 << 20;

/// Bytes of `data.vrt` that are kept while it is written: all that stands before the second band.
const MAX_TEXT: u64 = 1 << 20;

/// Bytes of a file that are copied at a time.
const PIECE: u64 = 8 << 20;

/// Attributes to be changed, by the group or array.
type Changes = Vec<(Key, Vec<(String, Option<Value>)>)>;

impl CompositeFile {
    /// The header and the room behind it, as the file was opened, and the group's key. `None` of other files.
    fn header(&self) -> Option<(&Key, &[u8])> {
        match (&self.node, self.file.parts().first().map(|part| &part.content)) {
            (Node::Dataset(group), Some(PartContent::Bytes(bytes))) => Some((group, bytes)),
            _ => None,
        }
    }

    /// Keeps the beginning of what is written in place of `data.vrt`, which GDAL writes from its beginning on.
    pub(super) fn keep_text(&self, offset: u64, data: &[u8]) {
        if !matches!(self.node, Node::Header(_, Format::Vrt)) || offset >= MAX_TEXT {
            return;
        }
        let (mut text, at) = (lock(&self.text), offset as usize);
        let end = (at + data.len()).min(MAX_TEXT as usize);
        if text.len() < end {
            text.resize(end, 0);
        }
        text[at..end].copy_from_slice(&data[..end - at]);
    }

    /// Whether nothing of a header was written, or all of it.
    pub(super) fn is_header_whole(&self) -> bool {
        lock(&self.edited).as_ref().is_none_or(|draft| draft.shown == draft.stored)
    }
}

impl Fs {
    /// Looks at a write to the header of an open file. Returns the header as it would be, and, once it is whole, the
    /// changes that it asks for.
    ///
    /// # Errors
    ///
    /// EPERM if it asks for something else.
    pub(super) fn edit_header(
        &self,
        open: &CompositeFile,
        at: u64,
        data: &[u8],
    ) -> Result<(HeaderDraft, Option<Changes>)> {
        let (group, opened) = open.header().ok_or_else(|| refused("describes the array: change its metadata"))?;
        let (mut shown, stored) = match lock(&open.edited).as_ref() {
            Some(draft) => (draft.shown.clone(), draft.stored.clone()),
            None => (opened.to_vec(), opened.to_vec()),
        };
        shown[at as usize..][..data.len()].copy_from_slice(data);
        let changes = match HeaderEdit::compare(&stored, &shown)? {
            // the rest is still to come
            None => None,
            Some(edited) if !edited.is_in_place() => return Err(refused("the arrays can't be moved in the file")),
            Some(edited) => Some(edited.changes(group, &open.file, |key| self.tree.hierarchy().attributes(key))?),
        };
        Ok((HeaderDraft { shown, stored }, changes))
    }

    /// Writes to the header of an open file, and stores the attributes at once: netCDF-C doesn't look at what close says.
    pub(super) fn write_header(&self, open: &CompositeFile, at: u64, data: &[u8]) -> Result<()> {
        let (mut draft, changes) = self.edit_header(open, at, data)?;
        if let Some(changes) = changes {
            self.change_attributes(&changes)?;
            draft.stored.clone_from(&draft.shown);
        }
        *lock(&open.edited) = Some(draft);
        Ok(())
    }

    /// EPERM if what was written of a header is none, which is forgotten then.
    pub(super) fn check_header(&self, open: &CompositeFile) -> Result<()> {
        if open.is_header_whole() {
            return Ok(());
        }
        *lock(&open.edited) = None;
        let e = refused("what was written in place of the header is no header").context(open.node.path());
        self.stats.problem(format!("not stored: {e}"));
        Err(e)
    }

    /// Stores the attributes that GDAL has changed in `data.vrt`. What else was changed is on record; what is no such file, or
    /// of another raster, is forgotten, so that a directory can be copied over another.
    pub(super) fn store_text(&self, open: &CompositeFile) -> Result<()> {
        let Node::Header(key, Format::Vrt) = &open.node else { return Ok(()) };
        let written = std::mem::take(&mut *lock(&open.text));
        let Some(new) = VrtContent::parse(&String::from_utf8_lossy(&written)) else { return Ok(()) };
        let shown = open.file.parts().iter().take(2).map(|part| match &part.content {
            PartContent::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            PartContent::Bands(bands) => bands.text(),
            _ => String::new(),
        });
        let Some(shown) = VrtContent::parse(&shown.collect::<String>()) else { return Ok(()) };
        let Some(edits) = shown.edits(&new, &*self.tree.hierarchy().attributes(key)?) else { return Ok(()) };
        if !edits.lost.is_empty() {
            let (path, lost) = (open.node.path(), edits.lost.join(", "));
            self.stats
                .problem(format!("{path}: not stored: {lost} of what was written: change the array's attributes"));
        }
        match edits.attributes.is_empty() {
            true => Ok(()),
            false => self.change_attributes(&vec![(key.clone(), edits.attributes)]),
        }
    }

    fn change_attributes(&self, changes: &Changes) -> Result<()> {
        for (key, changes) in changes {
            self.tree.hierarchy().change_attributes(key, changes)?;
            self.tree.document_changed(key, MetadataFile::Attributes, false);
        }
        Ok(())
    }

    /// Takes the values and attributes of the file `from` over into the group whose file is open. Whether that can be is
    /// found out before anything is changed.
    ///
    /// # Errors
    ///
    /// EPERM if it can't.
    pub(super) fn replace_dataset(&self, from: &Key, open: &CompositeFile) -> Result<()> {
        let (group, header) = open.header().ok_or_else(|| refused("has no header"))?;
        let (edited, size) = self.read_edited(from, header)?;
        let changes = edited.changes(group, &open.file, |key| self.tree.hierarchy().attributes(key))?;
        let moved = edited.moved(&open.file);
        for part in &moved {
            if size.checked_sub(part.len).is_none_or(|most| part.from > most) {
                return Err(refused("the file ends before its values do"));
            }
        }
        for part in open.file.parts() {
            if let PartContent::Flat { key, .. } = &part.content {
                self.tree.array(key)?.writable()?;
            }
        }
        for part in moved {
            self.in_pieces(from, part.from..part.from + part.len, |at, piece| {
                self.write_composite(open, part.to + (at - part.from), piece, WriteMode::internal())
            })?;
        }
        self.change_attributes(&changes)?;
        self.flush_composite(open)
    }

    /// The header of the file at `from`, compared with `header`, and the size of the file.
    fn read_edited(&self, from: &Key, header: &[u8]) -> Result<(HeaderEdit, u64)> {
        let (mut bytes, mut len) = (Vec::new(), FIRST_LOOK);
        loop {
            let stat =
                self.tree.hierarchy().store().get_range(from, 0..len, &mut bytes).map_err(|e| e.context(from))?;
            let size = stat.ok_or_else(|| Error::system(libc::ESTALE))?.size;
            match HeaderEdit::compare(header, &bytes)? {
                Some(edited) => return Ok((edited, size)),
                None if len >= size || len >= MAX_HEADER => return Err(refused("has no whole header")),
                None => len *= 4,
            }
        }
    }

    /// Gives the bytes `range` of a plain key to `write`, with where each piece begins.
    pub(super) fn in_pieces(
        &self,
        from: &Key,
        range: std::ops::Range<u64>,
        write: impl Fn(u64, &[u8]) -> Result<usize>,
    ) -> Result<()> {
        let stale = || Error::system(libc::ESTALE);
        let (mut at, mut piece) = (range.start, Vec::new());
        while at < range.end {
            let (store, end) = (self.tree.hierarchy().store(), range.end.min(at + PIECE));
            store.get_range(from, at..end, &mut piece).map_err(|e| e.context(from))?.ok_or_else(stale)?;
            if piece.is_empty() || write(at, &piece)? != piece.len() {
                return Err(stale());
            }
            at += piece.len() as u64;
        }
        Ok(())
    }
}

fn refused(why: &str) -> Error {
    Error::new(Kind::System(libc::EPERM), why)
}

/// Whether a program has made the file `from` only to rename it onto `to`: NCO's `dataset.nc.pid123.ncap2.tmp`.
pub(super) fn is_temporary(from: &Key, to: &Key) -> bool {
    let rest = from.name().strip_prefix(to.name()).and_then(|rest| rest.strip_prefix(".pid"));
    let tool = rest.and_then(|rest| rest.strip_suffix(".tmp")).and_then(|rest| rest.split_once('.'));
    tool.is_some_and(|(pid, tool)| !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit()) && tool.starts_with("nc"))
        && from.parent() == to.parent()
}
