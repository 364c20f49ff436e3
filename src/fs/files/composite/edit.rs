//! Edits of `dataset.nc` and `data.vrt` by other programs. NCO and netCDF-C rewrite the header of `dataset.nc` in
//! place, or write a whole file beside it and rename that onto it. **Both may change attributes, which go to `.zattrs`,
//! and values; in place, the layout must stay the same.** Anything else fails with EPERM and changes nothing. GDAL
//! writes `data.vrt` anew; only its metadata are stored.

use super::CompositeFile;
use crate::array::hierarchy::MetadataFile;
use crate::error::{Error, Kind, Result};
use crate::export::{Format, HeaderEdit, PartContent, VrtContent};
use crate::fs::Fs;
use crate::fs::files::OpenFile;
use crate::fs::tree::Node;
use crate::fs::write::WriteMode;
use crate::store::Key;
use crate::util::json::Value;
use crate::util::memory::lock;

/// Number of bytes of a file that are read first to find its header.
const FIRST_READ: u64 = 64 << 10;

/// Maximum size of a header in bytes: several copies of it are in memory.
const MAX_HEADER: u64 = 8 << 20;

/// Maximum number of bytes of `data.vrt` kept while it is written: everything before the second band.
const MAX_TEXT: u64 = 1 << 20;

/// Changes of attributes, by group or array; `None` removes an attribute.
type AttributeChanges = Vec<(Key, Vec<(String, Option<Value>)>)>;

/// The header of an open file that was written to.
pub struct HeaderDraft {
    /// The header with all writes to it, and the space behind it.
    pub shown: Vec<u8>,
    /// The header that shows the attributes as they were stored last.
    stored: Vec<u8>,
}

impl CompositeFile {
    /// Returns the key of the group and the header as it was when the file was opened, with the space behind it; `None`
    /// for files other than `dataset.nc`.
    fn header(&self) -> Option<(&Key, &[u8])> {
        match (&self.node, self.file.parts().first().map(|part| &part.content)) {
            (Node::Dataset(group), Some(PartContent::Bytes(bytes))) => Some((group, bytes)),
            _ => None,
        }
    }

    /// Keeps `data` if it belongs to the first bytes of `data.vrt`, which GDAL writes from the beginning.
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

    /// Returns whether the header was not written, or was written completely.
    pub(super) fn is_header_whole(&self) -> bool {
        lock(&self.edited).as_ref().is_none_or(|draft| draft.shown == draft.stored)
    }

    /// Returns the header as it would be after a write, and, once it is complete, the changes of attributes that it
    /// asks for.
    ///
    /// # Errors
    ///
    /// EPERM if the header would change anything but attributes.
    pub(super) fn edit_header(&self, fs: &Fs, at: u64, data: &[u8]) -> Result<(HeaderDraft, Option<AttributeChanges>)> {
        let (group, opened) = self.header().ok_or_else(|| refused("describes the array: change its metadata"))?;
        let (mut shown, stored) = match lock(&self.edited).as_ref() {
            Some(draft) => (draft.shown.clone(), draft.stored.clone()),
            None => (opened.to_vec(), opened.to_vec()),
        };
        shown[at as usize..][..data.len()].copy_from_slice(data);
        let changes = match HeaderEdit::compare(&stored, &shown)? {
            // more of the header is still to come
            None => None,
            Some(edited) if !edited.is_in_place() => return Err(refused("the arrays can't be moved in the file")),
            Some(edited) => Some(edited.changes(group, &self.file, |key| fs.tree.hierarchy().attributes(key))?),
        };
        Ok((HeaderDraft { shown, stored }, changes))
    }

    /// Writes to the header. A whole header is stored immediately, because netCDF-C ignores the errors of close.
    pub(super) fn write_header(&self, fs: &Fs, at: u64, data: &[u8]) -> Result<()> {
        let (mut draft, changes) = self.edit_header(fs, at, data)?;
        if let Some(changes) = changes {
            fs.change_attributes(&changes)?;
            draft.stored.clone_from(&draft.shown);
        }
        *lock(&self.edited) = Some(draft);
        Ok(())
    }

    /// Discards the writes to a header that is incomplete.
    ///
    /// # Errors
    ///
    /// EPERM if there was such a header.
    pub(super) fn check_header(&self, fs: &Fs) -> Result<()> {
        if self.is_header_whole() {
            return Ok(());
        }
        *lock(&self.edited) = None;
        let e = refused("what was written in place of the header is no header").context(self.node.path());
        fs.stats.problem(format!("not stored: {e}"));
        Err(e)
    }

    /// Stores the attributes that GDAL has changed in `data.vrt`, and logs its other changes. A text that is not such a
    /// file, or describes another raster, is discarded without an error, so that a directory can be copied over
    /// another.
    pub(super) fn store_text(&self, fs: &Fs) -> Result<()> {
        let Node::Header(key, Format::Vrt) = &self.node else { return Ok(()) };
        let written = std::mem::take(&mut *lock(&self.text));
        let Some(new) = VrtContent::parse(&String::from_utf8_lossy(&written)) else { return Ok(()) };
        let shown = self.file.parts().iter().take(2).map(|part| match &part.content {
            PartContent::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            PartContent::Bands(bands) => bands.text(),
            _ => String::new(),
        });
        let Some(shown) = VrtContent::parse(&shown.collect::<String>()) else { return Ok(()) };
        let Some(edits) = shown.edits(&new, &*fs.tree.hierarchy().attributes(key)?) else { return Ok(()) };
        if !edits.lost.is_empty() {
            let (path, lost) = (self.node.path(), edits.lost.join(", "));
            fs.stats.problem(format!("{path}: not stored: {lost} of what was written: change the array's attributes"));
        }
        match edits.attributes.is_empty() {
            true => Ok(()),
            false => fs.change_attributes(&vec![(key.clone(), edits.attributes)]),
        }
    }

    /// Stores the values and attributes of the file at `from` in the group whose file this is. Everything is checked
    /// before anything is changed.
    ///
    /// # Errors
    ///
    /// EPERM if the file cannot become this one.
    pub(in crate::fs) fn replace(&self, fs: &Fs, from: &Key) -> Result<()> {
        let (group, header) = self.header().ok_or_else(|| refused("has no header"))?;
        let (edited, size) = fs.read_edited(from, header)?;
        let changes = edited.changes(group, &self.file, |key| fs.tree.hierarchy().attributes(key))?;
        let moved = edited.moved(&self.file);
        for part in &moved {
            if size.checked_sub(part.len).is_none_or(|most| part.from > most) {
                return Err(refused("the file ends before its values do"));
            }
        }
        for part in self.file.parts() {
            if let PartContent::Flat { key, .. } = &part.content {
                fs.tree.array(key)?.writable()?;
            }
        }
        for part in moved {
            fs.in_pieces(from, part.from..part.from + part.len, |at, piece| {
                self.write_all(fs, part.to + (at - part.from), piece, WriteMode::internal())
            })?;
        }
        fs.change_attributes(&changes)?;
        self.flush(fs)
    }
}

impl Fs {
    fn change_attributes(&self, changes: &AttributeChanges) -> Result<()> {
        for (key, changes) in changes {
            self.tree.hierarchy().change_attributes(key, changes)?;
            self.tree.document_changed(key, MetadataFile::Attributes, false);
        }
        Ok(())
    }

    /// Reads the header of the file at `from` and compares it with `header`. Returns the comparison and the size of the
    /// file in bytes.
    fn read_edited(&self, from: &Key, header: &[u8]) -> Result<(HeaderEdit, u64)> {
        let (mut bytes, mut len) = (Vec::new(), FIRST_READ);
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
}

fn refused(why: &str) -> Error {
    Error::new(Kind::System(libc::EPERM), why)
}
