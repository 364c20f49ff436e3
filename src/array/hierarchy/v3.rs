//! Nodes of Zarr v3: which node a `zarr.json` defines, and the `zarr.json` that a mount shows.
//! Where a prefix has documents of both formats, `zarr.json` takes precedence, as it does for
//! zarr-python.

use super::format::attributes_member;
use super::shown::respelled;
use super::{DocumentFormat, Hierarchy, MetadataDocument, ShownFormat, is_foreign};
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::json;
use zarrfs_base::memory::lock;
use zarrfs_format::metadata::v3::node::{self, GROUP_DOCUMENT_V3, NodeType, node_type};
use zarrfs_format::metadata::v3::shown::shown_array;
use zarrfs_format::metadata::{MAX_CONSOLIDATED, ZARR_JSON, ZGROUP};
use zarrfs_store::{EntryKind, Key, Stat, StoreExt};

/// Number of bytes at each end of a too large `zarr.json` that are searched for its `node_type`.
const LARGE_END: u64 = 4096;

/// A stored `zarr.json`.
pub(super) struct V3Document {
    pub key: Key,
    pub stat: Stat,
    pub outline: V3Outline,
    /// The document, if it was read just now.
    pub read: Option<MetadataDocument>,
}

/// The properties of a `zarr.json` that are known without parsing it.
#[derive(Clone, Copy)]
pub(super) struct V3Outline {
    /// The node it defines: an array if it cannot be read, so that the node is a damaged array.
    pub node_type: NodeType,
    /// Whether it holds consolidated metadata.
    pub is_consolidated: bool,
}

impl V3Outline {
    fn of(text: &[u8]) -> Self {
        let node_type = node_type(text).unwrap_or(NodeType::Array);
        let is_consolidated =
            node_type == NodeType::Group && matches!(DocumentFormat::V3.entries(text), Ok(Some(_)));
        V3Outline {
            node_type,
            is_consolidated,
        }
    }
}

impl Hierarchy {
    /// Returns the `zarr.json` of the node at `key`, if there is one.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub(super) fn v3_document(&self, key: &Key) -> Result<Option<V3Document>> {
        let document = key.join(ZARR_JSON);
        let Some(stat) = self.stat(&document)? else {
            return Ok(None);
        };
        if let Some((version, outline)) = lock(&self.node_types).get(key)
            && *version == stat.version
        {
            return Ok(Some(V3Document {
                key: document,
                stat,
                outline: *outline,
                read: None,
            }));
        }
        let mut read = None;
        let (outline, stat) = match self.stored_within(&document, MAX_CONSOLIDATED) {
            Ok(Some(found)) => {
                let outline = V3Outline::of(&found.text);
                let stat = found.stat.clone();
                read = Some(found);
                (outline, stat)
            }
            // another program has removed it since
            Ok(None) => return Ok(None),
            Err(e) if matches!(e.kind(), Kind::System(_)) => return Err(e),
            Err(_) => (self.outline_of_large(&document, &stat)?, stat),
        };
        lock(&self.node_types).put(key.clone(), (stat.version.clone(), outline));
        Ok(Some(V3Document {
            key: document,
            stat,
            outline,
            read,
        }))
    }

    /// Returns the outline of a `zarr.json` that cannot be read as a whole. Recognizes a group, so
    /// that the nodes below it are found.
    fn outline_of_large(&self, document: &Key, stat: &Stat) -> Result<V3Outline> {
        let mut ends = [Vec::new(), Vec::new()];
        if stat.kind == EntryKind::Value && stat.size > MAX_CONSOLIDATED {
            for (start, bytes) in [0, stat.size - LARGE_END].into_iter().zip(&mut ends) {
                let range = start..start + LARGE_END;
                self.store
                    .get_range(document, range, bytes)
                    .context(document)?;
            }
        }
        let is_group = node::is_group_at_ends(&ends[0], &ends[1]);
        let node_type = if is_group {
            NodeType::Group
        } else {
            NodeType::Array
        };
        Ok(V3Outline {
            node_type,
            is_consolidated: false,
        })
    }

    /// Returns whether the node at `key` is, or would be, of Zarr v3: it has a `zarr.json`, or it
    /// has no document at all and the root of its store has a `zarr.json`.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub fn is_v3(&self, key: &Key) -> Result<bool> {
        if self.v3_document(key)?.is_some() {
            return Ok(true);
        }
        let Some(root) = self.store_root(key).filter(|root| root != key) else {
            return Ok(false);
        };
        if self.array_document(key)?.is_some() || self.stat(&key.join(ZGROUP))?.is_some() {
            return Ok(false);
        }
        self.v3_document(&root).map(|document| document.is_some())
    }

    /// Returns the `zarr.json` as the mount shows it, apart from consolidated metadata
    /// ([`Hierarchy::shown_inline`]): of an array with decoded chunks, that of a group, a generated
    /// one for a prefix without documents in a store of v3, and for a damaged array the stored one.
    /// A tree shown as v2 has none.
    pub fn shown_zarr_json(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        if self.view == ShownFormat::V2 {
            return Ok(None);
        }
        let Some(found) = self.v3_document(key)? else {
            if !self.is_v3(key)? {
                return Ok(None);
            }
            return match self.implicit_group(key, DocumentFormat::V3)? {
                Some(stat) => MetadataDocument::made(GROUP_DOCUMENT_V3.into(), stat).map(Some),
                None => Ok(None),
            };
        };
        if found.outline.node_type == NodeType::Group {
            let Some(document) = self.stored_within(&found.key, MAX_CONSOLIDATED)? else {
                return Ok(None);
            };
            let text = node::without_consolidated(&document.text).context(&found.key)?;
            return MetadataDocument::made(text, document.stat).map(Some);
        }
        let Some(array) = self.find(key)?.and_then(|node| node.array()) else {
            return self.stored_within(&found.key, MAX_CONSOLIDATED);
        };
        let Some(document) = self.stored(&found.key)? else {
            return Ok(None);
        };
        let text = respelled(&found.key, &document.text, |stored| {
            shown_array(stored, array.metadata())
        })?;
        MetadataDocument::made(text, found.stat).map(Some)
    }

    /// Returns the stat of a prefix that is shown as a group without a stored document: not of one
    /// that this mount has made, or that lost its document. Directories of other programs are no
    /// groups: at or below a name that begins with a dot or, in a store of v3, with `__`, which the
    /// specification reserves.
    pub(super) fn implicit_group(&self, key: &Key, stored: DocumentFormat) -> Result<Option<Stat>> {
        let is_reserved = stored == DocumentFormat::V3
            && key.as_str().split('/').any(|name| name.starts_with("__"));
        if is_reserved
            || is_foreign(key)
            || self.is_unmarked(key)
            || self.has_stored_documents_alone(key)
        {
            return Ok(None);
        }
        match self.stat(key)? {
            Some(stat) if self.node_kind(key, stat.kind)? == EntryKind::Prefix => Ok(Some(stat)),
            _ => Ok(None),
        }
    }

    /// Returns the text of the attributes in the `zarr.json` at `document`; `None` if it has none.
    pub(super) fn v3_attributes(&self, document: &Key) -> Result<Option<MetadataDocument>> {
        let Some(MetadataDocument { text, stat, .. }) =
            self.stored_within(document, MAX_CONSOLIDATED)?
        else {
            return Ok(None);
        };
        let attributes = attributes_member(&text).context(document)?;
        let Some(attributes) = attributes else {
            return Ok(None);
        };
        json::check_object(attributes.as_bytes())
            .map_err(|e| e.context(format!("{document}: attributes")))?;
        MetadataDocument::made(attributes.as_bytes().to_vec(), stat).map(Some)
    }

    /// Returns whether programs find stored bytes below `c` in the array at `key`, and not decoded
    /// chunks: the program that created the array encodes its chunks itself, and keeps doing so
    /// after a mount has shown other documents.
    pub fn shows_stored_keys(&self, key: &Key) -> bool {
        let Ok(Some(array)) = self.usable_array(key) else {
            return false;
        };
        let metadata = array.metadata();
        let is_shown =
            metadata.has_key_prefix() && !metadata.is_decoded() && array.readable().is_ok();
        is_shown && self.decoded_below_c.get(key.as_str()).is_none()
    }

    /// Returns an error for the v2 document `document` if the node at `key` is of v3.
    pub(super) fn check_not_v3(&self, key: &Key, document: &Key) -> Result<()> {
        match self.v3_document(key)? {
            Some(found) => {
                let why = format!(
                    "{} stands here, so this is a node of Zarr v3: a v2 document is not read",
                    found.key
                );
                Err(Error::invalid(why).context(document))
            }
            None => Ok(()),
        }
    }
}
