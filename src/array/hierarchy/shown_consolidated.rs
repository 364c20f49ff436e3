//! Consolidated metadata as a mount shows it: generated from the documents that exist, since the
//! stored one may be stale.

use super::consolidated::ConsolidatedText;
use super::consolidated_spelling::spelled_like;
use super::{DocumentFormat, Hierarchy, MetadataDocument, NodeUse, ShownFormat};
use zarrfs_base::error::{ErrorContext, Kind, Result};
use zarrfs_base::memory::{self, lock};
use zarrfs_format::metadata::{ZARR_JSON, ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use zarrfs_store::{Key, Permissions, Stat, both};

impl Hierarchy {
    /// Returns the stat of the stored document behind the `.zmetadata` of the mounted tree: a
    /// `.zmetadata` or, in a tree shown as v2, a `zarr.json` with consolidated metadata.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub fn consolidated_stat(&self, key: &Key) -> Result<Option<Stat>> {
        if self.shows_as_v2(key)? {
            return Ok(self
                .v3_document(key)?
                .filter(|found| found.outline.is_consolidated)
                .map(|found| found.stat));
        }
        self.store.stat(&key.join(ZMETADATA)).context(key)
    }

    /// Returns the `.zmetadata` of the mounted tree if the store has one. Documents that exceed the
    /// size limit are left out and recorded as a problem.
    pub fn shown_consolidated(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        let Some(stat) = self.consolidated_stat(key)? else {
            return Ok(None);
        };
        // the view grants no more than every document in it
        let mut granted = stat.permissions;
        let mut consolidated = ConsolidatedText::new(DocumentFormat::V2);
        self.visit_below(key, NodeUse::Description, &mut |place, node| {
            let below = place.relative_to(key).unwrap_or_default();
            if stat.permissions.is_some() {
                let inside = self.permissions_inside(place);
                granted = both(granted, Some(inside.unwrap_or(Permissions::OWNER_ONLY)));
            }
            let defining = match node.usable() {
                Ok(Some(_)) => ZARRAY,
                Ok(None) if node.is_group() => ZGROUP,
                _ => return Ok(()),
            };
            for name in [defining, ZATTRS] {
                let document = match name {
                    ZARRAY => self.shown_array(place),
                    ZGROUP => self.shown_group(place),
                    _ => self.shown_attributes(place),
                };
                let name = below.join(name);
                let added = document.and_then(|document| {
                    let Some(document) = document else {
                        return Ok(());
                    };
                    consolidated.add(name.as_str(), &document.text)?;
                    granted = both(granted, document.stat.permissions);
                    Ok(())
                });
                match added {
                    // transient: a .zmetadata without the document would be wrong
                    Err(e) if e.kind() == Kind::System(libc::ENOMEM) => return Err(e),
                    Err(e) => self.stats.problem(format!(
                        "{}: {e}: left out of .zmetadata",
                        key.join_key(&name)
                    )),
                    Ok(()) => {}
                }
            }
            Ok(())
        })?;
        let (text, memory) = consolidated.end(None)?;
        let text = self.in_stored_words(DocumentFormat::V2, &key.join(ZMETADATA), text);
        drop(memory);
        let stat = Stat {
            permissions: granted,
            ..stat
        };
        MetadataDocument::made(text, stat).map(Some)
    }

    /// Returns the permissions of what lies in a stored directory; `None` if it is missing or the
    /// store has no modes.
    fn permissions_inside(&self, directory: &Key) -> Option<Permissions> {
        let stat = self.store.stat(directory).ok().flatten()?;
        stat.permissions.map(Permissions::inside)
    }

    /// Returns whether the `zarr.json` that the mount shows for the node at `key` has consolidated
    /// metadata: it is a group whose stored document has them.
    pub fn shows_inline(&self, key: &Key) -> Result<bool> {
        let is_shown = self.view == ShownFormat::Stored;
        Ok(is_shown
            && self
                .v3_document(key)?
                .is_some_and(|found| found.outline.is_consolidated))
    }

    /// Returns false if [`Hierarchy::shows_inline`] is known to be false, without asking the store.
    pub fn may_show_inline(&self, key: &Key) -> bool {
        lock(&self.node_types)
            .peek(key)
            .is_none_or(|(_, outline)| outline.is_consolidated)
    }

    /// Returns the `zarr.json` of a group with consolidated metadata as the mount shows it, made of
    /// the documents that the mount shows below the group. Documents are left out that are too
    /// large, or that not all readers of the group's document may read. Without the memory for the
    /// rest there is an error; if they exceed their limit the group is shown without any.
    pub fn shown_inline(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        let Some(group) = self.shown_zarr_json(key)? else {
            return Ok(None);
        };
        let granted = group.stat.permissions;
        let mut inline = ConsolidatedText::new(DocumentFormat::V3);
        let mut hidden = Vec::<Key>::new();
        let added = self.visit_below(key, NodeUse::Description, &mut |place, node| {
            let is_usable = node.is_directory() && node.usable().is_ok();
            if !is_usable
                || place == key
                || hidden
                    .iter()
                    .any(|above| place.relative_to(above).is_some())
            {
                return Ok(());
            }
            if granted.is_some() && !may_read(granted, self.permissions_inside(place)) {
                hidden.push(place.clone());
                return Ok(());
            }
            let added = self
                .shown_zarr_json(place)
                .and_then(|document| match document {
                    Some(document) if may_read(granted, document.stat.permissions) => {
                        let path = place.relative_to(key).unwrap_or_default();
                        inline.add(path.as_str(), &document.text)
                    }
                    _ => Ok(()),
                });
            match added {
                Err(e) if ![Kind::System(libc::ENOMEM), Kind::TooLarge].contains(&e.kind()) => {
                    let document = key.join(ZARR_JSON);
                    self.stats
                        .problem(format!("{place}: {e}: left out of {document}"));
                    Ok(())
                }
                added => added,
            }
        });
        match added {
            Err(e) if e.kind() == Kind::TooLarge => {
                self.stats.problem(format!(
                    "{}: {e}: shown without consolidated metadata",
                    key.join(ZARR_JSON)
                ));
                return Ok(Some(group));
            }
            added => added?,
        }
        let _copy = memory::take(inline.len() + group.text.len())?;
        let (text, _memory) = inline.end(Some(&group.text))?;
        let text = self.in_stored_words(DocumentFormat::V3, &key.join(ZARR_JSON), text);
        MetadataDocument::made(text, group.stat).map(Some)
    }

    /// Returns the text made for the document at `key` in the words of the stored one.
    fn in_stored_words(&self, format: DocumentFormat, key: &Key, made: Vec<u8>) -> Vec<u8> {
        match self.stored(key) {
            Ok(Some(stored)) => spelled_like(format, &stored.text, made),
            _ => made,
        }
    }
}

/// Returns whether all readers of a document that grants `granted` may read what grants `by`;
/// `None` stands for a store without modes.
fn may_read(granted: Option<Permissions>, by: Option<Permissions>) -> bool {
    match (granted, by) {
        (Some(granted), Some(by)) => granted.readers_may_read(by),
        (granted, _) => granted.is_none(),
    }
}
