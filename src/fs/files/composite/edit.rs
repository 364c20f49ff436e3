//! Edits of `dataset.nc` and of headers that are texts by other programs. NCO and netCDF-C rewrite
//! the header of `dataset.nc` in place, or write a whole file beside it and rename that onto it.
//! **Both may change attributes, which go to `.zattrs`, and values; in place, the layout must stay
//! the same.** Anything else fails with EPERM and changes nothing. Other programs write a text
//! anew, as GDAL does with `data.vrt`: what can be stored is stored, and any other change is
//! reported as a problem.

use super::CompositeFile;
use crate::fs::resize::HiddenGrowth;
use crate::fs::tree::Tree;
use crate::fs::{Change, Fs};
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::json::Value;
use zarrfs_base::memory::{self, Grant, lock};
use zarrfs_export::{
    EDIT_MEMORY, EditedArray, Format, GroupFormat, HeaderEdit, MAX_TEXT, PartContent,
};
use zarrfs_store::Store;
use zarrfs_store::{Key, StoreExt};

/// Number of bytes of a file that are read first to find its header.
const FIRST_READ: u64 = 64 << 10;

/// Maximum size of a header in bytes: several copies of it are in memory.
const MAX_HEADER: u64 = 8 << 20;

/// Why a header is refused that has the data elsewhere: netCDF-C moves them if its header outgrows
/// the space for it.
const MOVED: &str =
    "the arrays can't be moved in the file: its header has no more room; keep long texts elsewhere";

/// Changes of attributes, by group or array; `None` removes an attribute.
type AttributeChanges = Vec<(Key, Vec<(String, Option<Value>)>)>;

/// What a whole header asks for.
pub struct HeaderRequest {
    attributes: AttributeChanges,
    /// The number of records, if there shall be more.
    more_records: Option<u64>,
}

/// The header of an open file that was written to.
pub struct HeaderDraft {
    /// The header with all writes to it, and the space behind it.
    pub shown: Vec<u8>,
    /// The header that shows the attributes as they were stored last.
    stored: Vec<u8>,
    /// The end of what was written of a header that is not whole; 0 if it is whole.
    written: usize,
}

/// The beginning of a text with all writes to it, at most [`MAX_TEXT`] bytes.
pub struct TextDraft {
    text: Vec<u8>,
    _memory: Grant,
    /// Whether it was changed since it was compared with the shown text.
    is_changed: bool,
}

impl CompositeFile {
    /// Returns the key of the group and the header as it was when the file was opened, with the
    /// space behind it; `None` for other files.
    pub(super) fn header(&self) -> Option<(&Key, &[u8])> {
        match (
            self.node.container(),
            self.file.parts().first().map(|part| &part.content),
        ) {
            (Some((group, GroupFormat::Netcdf)), Some(PartContent::Bytes(bytes))) => {
                Some((group, bytes))
            }
            _ => None,
        }
    }

    /// Keeps what a program writes in place of a text.
    pub(super) fn keep_text(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.change_text(|text| {
            let at = usize::try_from(offset).unwrap_or(usize::MAX).min(MAX_TEXT);
            let end = at.saturating_add(data.len()).min(MAX_TEXT);
            if text.len() < end {
                text.resize(end, 0);
            }
            text[at..end].copy_from_slice(&data[..end - at]);
        })
    }

    /// Cuts what a program writes in place of a text. A program that only makes the file empty
    /// removes nothing.
    pub(super) fn cut_text(&self, len: u64) -> Result<()> {
        self.change_text(|text| text.truncate(usize::try_from(len).unwrap_or(usize::MAX)))
    }

    /// Returns whether a text was changed, and not compared with the shown one since.
    pub(super) fn has_changed_text(&self) -> bool {
        let draft = lock(&self.text);
        draft.as_ref().is_some_and(|draft| draft.is_changed)
    }

    fn change_text(&self, change: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let mut draft = lock(&self.text);
        let draft = match &mut *draft {
            Some(draft) => draft,
            none => {
                let memory = memory::take(MAX_TEXT).map_err(|e| e.context(self.node.path()))?;
                none.insert(TextDraft {
                    text: self.shown_text(),
                    _memory: memory,
                    is_changed: false,
                })
            }
        };
        change(&mut draft.text);
        draft.is_changed = true;
        Ok(())
    }

    /// Returns the beginning of the text that the mount shows.
    fn shown_text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for part in self.file.parts() {
            match &part.content {
                PartContent::Bytes(bytes) => text.extend_from_slice(bytes),
                PartContent::Bands(bands) => text.extend_from_slice(bands.text().as_bytes()),
                _ => {}
            }
            if text.len() >= MAX_TEXT {
                text.truncate(MAX_TEXT);
                break;
            }
        }
        text
    }

    /// Returns whether the header was not written, or was written completely.
    pub(super) fn is_header_whole(&self) -> bool {
        lock(&self.edited)
            .as_ref()
            .is_none_or(|draft| draft.written == 0)
    }

    /// Returns the header as it would be after a write, and, once it is complete, the changes of
    /// attributes that it asks for.
    ///
    /// # Errors
    ///
    /// EPERM if the header would change anything but attributes and the number of records; EFBIG
    /// for more records without `--resize`.
    pub(super) fn edit_header(
        &self,
        fs: &Fs,
        at: u64,
        data: &[u8],
    ) -> Result<(HeaderDraft, Option<HeaderRequest>)> {
        let (group, opened) = self
            .header()
            .ok_or_else(|| refused("describes the array: change its metadata"))?;
        let (mut shown, stored, written) = match lock(&self.edited).as_ref() {
            Some(draft) => (draft.shown.clone(), draft.stored.clone(), draft.written),
            None => (opened.to_vec(), opened.to_vec(), 0),
        };
        let (at, end) = (at as usize, at as usize + data.len());
        shown[at..end].copy_from_slice(data);
        let written = written.max(end);
        // a long header is written in several pieces, in order
        let request = match HeaderEdit::compare(&stored, &shown[..written])? {
            Some(edited) => Some(self.request(fs, group, &edited)?),
            None if written == shown.len() => return Err(refused(MOVED)),
            // the rest may be as it was
            None => match HeaderEdit::compare(&stored, &shown) {
                Ok(Some(edited)) => self.request(fs, group, &edited).ok(),
                _ => None,
            },
        };
        let written = if request.is_some() { 0 } else { written };
        Ok((
            HeaderDraft {
                shown,
                stored,
                written,
            },
            request,
        ))
    }

    /// Returns what a whole header asks for.
    fn request(&self, fs: &Fs, group: &Key, edited: &HeaderEdit) -> Result<HeaderRequest> {
        if !edited.is_in_place() {
            return Err(refused(MOVED));
        }
        if edited.more_records().is_some() {
            self.check_growth(fs)?;
        }
        let attributes =
            edited.changes(group, &self.file, |key| fs.tree.hierarchy().attributes(key))?;
        Ok(HeaderRequest {
            attributes,
            more_records: edited.more_records(),
        })
    }

    /// Writes to the header. A whole header is stored immediately, because netCDF-C ignores the
    /// errors of close. Returns values that hide the new sizes of arrays that became longer.
    pub(super) fn write_header<'a>(
        &self,
        fs: &'a Change,
        at: u64,
        data: &[u8],
    ) -> Result<Vec<HiddenGrowth<'a>>> {
        let (mut draft, request) = self.edit_header(fs, at, data)?;
        let mut growth = Vec::new();
        if let Some(request) = request {
            if let Some(count) = request.more_records {
                growth = self.grow(fs, count)?;
            }
            change_attributes(&fs.tree, &request.attributes)?;
            draft.stored.clone_from(&draft.shown);
        }
        *lock(&self.edited) = Some(draft);
        Ok(growth)
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
        let e = refused("what was written in place of the header is no header")
            .context(self.node.path());
        fs.stats.problem(format!("not stored: {e}"));
        Err(e)
    }

    /// Stores the attributes that a program has changed in a text, and reports its other changes as
    /// a problem. Nothing is an error, so that a directory can be copied over another.
    pub(super) fn store_text(&self, fs: &Fs) -> Result<()> {
        let mut draft = lock(&self.text);
        let Some(draft) = draft.as_mut().filter(|draft| draft.is_changed) else {
            return Ok(());
        };
        draft.is_changed = false;
        if draft.text.is_empty() {
            return Ok(());
        }
        let shown = self.shown_text();
        let _memory = memory::take(EDIT_MEMORY * (shown.len() + draft.text.len()))
            .map_err(|e| e.context(self.node.path()))?;
        let [shown, written] = [&shown, &draft.text].map(|text| String::from_utf8_lossy(text));
        let format = self.node.header().map(|(_, format)| format);
        // the files of a view have no attributes of their own
        let of_array = self.node.header().filter(|_| self.node.view().is_none());
        // the coordinates and the grid mapping of a copied array may follow
        let is_copy = fs.may_be_early(&self.node);
        let edits = match of_array {
            Some((key, Format::Vrt)) => {
                let attributes = fs.tree.hierarchy().attributes(key)?;
                let array = EditedArray {
                    attributes: &attributes,
                    has_place: !is_copy && fs.tree.has_place(key)?,
                };
                zarrfs_export::text_edits(format, &shown, &written, Some(&array))
            }
            _ => zarrfs_export::text_edits(format, &shown, &written, None),
        };
        if !edits.lost.is_empty() && !is_copy {
            fs.stats.problem(format!(
                "{}: not stored: {} of what was written: change the array's attributes",
                self.node.path(),
                edits.lost_names()
            ));
        }
        match of_array {
            Some((key, _)) if !edits.attributes.is_empty() => {
                change_attributes(&fs.tree, &vec![(key.clone(), edits.attributes)])
            }
            _ => Ok(()),
        }
    }
}

/// Stores changes of attributes.
pub(super) fn change_attributes(tree: &Tree, changes: &AttributeChanges) -> Result<()> {
    for (key, changes) in changes {
        tree.hierarchy().change_attributes(key, changes)?;
        tree.document_changed();
    }
    Ok(())
}

/// Reads the header of the file at `from` and compares it with `header`. Returns that and the
/// size of the file.
pub(super) fn read_edited(
    store: &dyn Store,
    from: &Key,
    header: &[u8],
) -> Result<(HeaderEdit, u64)> {
    let mut bytes = Vec::new();
    let mut len = FIRST_READ;
    loop {
        let stat = store.get_range(from, 0..len, &mut bytes).context(from)?;
        let size = stat.ok_or_else(Error::stale)?.size;
        match HeaderEdit::compare(header, &bytes)? {
            Some(edited) => return Ok((edited, size)),
            None if len >= size || len >= MAX_HEADER => {
                return Err(refused("has no whole header"));
            }
            None => len *= 4,
        }
    }
}

pub(super) fn refused(why: &str) -> Error {
    Error::new(Kind::System(libc::EPERM), why)
}
