//! Migrates a store of v1 or v2 to v3 in place: puts a `zarr.json` beside the documents of every
//! node, the root's last, then deletes these documents. Chunks stay where they are. Until the root
//! has its `zarr.json`, readers of v2 find the store unchanged; from then on, readers of v3 find
//! the new one. A migration that was interrupted is finished by the next one.

use super::super::consolidated::{ENTRY, check_consolidated_size};
use super::super::document::check_size;
use super::super::format::is_same_node;
use super::super::{DocumentFormat, DocumentKind, Hierarchy, NodeUse, StoredNode, is_foreign};
use crate::array::Array;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::json;
use zarrfs_base::memory::Grant;
use zarrfs_format::metadata::v3::from_v2;
use zarrfs_format::metadata::{
    ArrayMetadata, MAX_CONSOLIDATED, MAX_DOCUMENT, Separator, V1_ATTRS, V1_META, ZARR_JSON, ZARRAY,
    ZATTRS, ZGROUP, ZMETADATA, check_group,
};
use zarrfs_store::{Key, Replaces, StoreExt};

/// The documents of a node in v2, in the order in which they are deleted: attributes mean nothing
/// without the others.
const V2_DOCUMENTS: [&str; 4] = [ZMETADATA, ZARRAY, ZGROUP, ZATTRS];

/// The documents of an array of v1, in the order in which they are deleted: `meta` marks an
/// unfinished migration.
const V1_DOCUMENTS: [&str; 2] = [V1_ATTRS, V1_META];

/// A group or array that the migration concerns.
pub(super) struct MigratedNode {
    pub key: Key,
    /// The documents of the old format that it has.
    pub documents: Vec<&'static str>,
    /// Whether it has a `zarr.json`, which takes precedence.
    pub has_v3: bool,
    /// Whether its `zarr.json` will be that of a group with consolidated metadata.
    pub is_consolidated: bool,
}

impl MigratedNode {
    /// Returns the name of the old document that defines the array, if it is one.
    fn array_document(&self) -> Option<&'static str> {
        self.documents
            .iter()
            .copied()
            .find(|name| [ZARRAY, V1_META].contains(name))
    }
}

/// The nodes that a migration concerns, groups before their members.
#[derive(Default)]
pub(super) struct MigratedNodes {
    pub nodes: Vec<MigratedNode>,
    memory: Grant,
}

impl Hierarchy {
    /// Migrates a store to v3, or finishes an interrupted migration. Returns false if there is
    /// nothing to do.
    ///
    /// Everything is checked before anything is put: each array has a form in v3 and can be read,
    /// and where a node has documents of both formats, these agree. Once the root is of v3, a node
    /// may have changed, but only in its `zarr.json`.
    ///
    /// # Errors
    ///
    /// Fails with the reason if a node cannot be migrated, or if the store fails.
    pub fn migrate_to_v3(&self) -> Result<bool> {
        let root = Key::root();
        let _lock = self.lock_for_change(&[&root])?;
        let has_begun = self.v3_document(&root)?.is_some();
        let unchanged =
            |e: Error| Error::new(e.kind(), format!("{}; nothing was migrated", e.message()));
        let MigratedNodes {
            nodes,
            memory: _memory,
        } = self.nodes_to_migrate(false).map_err(unchanged)?;
        self.check_migration(&nodes, has_begun).map_err(unchanged)?;
        for node in nodes.iter().rev() {
            if node.key.is_root() {
                // after a power loss, the root's document must not exist without those of the other
                // nodes
                self.store.sync()?;
            }
            self.put_new_document(node)?;
        }
        self.store.sync()?;
        for node in &nodes {
            for name in &node.documents {
                self.delete(&node.key.join(name))?;
            }
        }
        self.store.sync()?;
        self.forget_below(&root);
        Ok(!nodes.is_empty())
    }

    /// Lists the nodes with documents of the old formats, with `includes_v3` also of the new one,
    /// and the groups without any document above them.
    pub(super) fn nodes_to_migrate(&self, includes_v3: bool) -> Result<MigratedNodes> {
        let mut found = MigratedNodes::default();
        self.visit_below(&Key::root(), NodeUse::Chunks, &mut |key, node| {
            self.add_node(key, node, &mut found)
        })?;
        let mut needed: Option<Key> = None;
        let mut kept = Vec::new();
        for node in found.nodes.into_iter().rev() {
            let is_above = needed
                .as_ref()
                .is_some_and(|below| below.relative_to(&node.key).is_some());
            let is_node = !node.documents.is_empty() || includes_v3 && node.has_v3;
            if is_node || is_above && !node.has_v3 && !is_foreign(&node.key) {
                needed = Some(node.key.clone());
                kept.push(node);
            }
        }
        kept.reverse();
        Ok(MigratedNodes {
            nodes: kept,
            memory: found.memory,
        })
    }

    /// Adds a node that was visited.
    fn add_node(&self, key: &Key, node: &StoredNode, found: &mut MigratedNodes) -> Result<()> {
        let mut documents = Vec::new();
        for name in V2_DOCUMENTS
            .iter()
            .chain(V1_DOCUMENTS.iter().filter(|_| key.is_root()))
        {
            if self.stat(&key.join(name))?.is_some() {
                documents.push(*name);
            }
        }
        let has_v3 = self.v3_document(key)?.is_some();
        let is_group = node.is_group();
        if !(has_v3 && documents.is_empty()) {
            node.usable()?;
        }
        let form = self.array_document(key)?.map(|document| document.form);
        if form == Some(DocumentKind::Removed) {
            return Ok(());
        }
        if !self.is_of_v1(key, form)? {
            documents.retain(|name| !V1_DOCUMENTS.contains(name));
        }
        found
            .memory
            .grow(size_of::<MigratedNode>() + 3 * size_of::<Key>() + key.as_str().len())?;
        let is_consolidated = is_group && documents.contains(&ZMETADATA);
        found.nodes.push(MigratedNode {
            key: key.clone(),
            documents,
            has_v3,
            is_consolidated,
        });
        Ok(())
    }

    /// Returns whether `meta` at `key` is the document of the array there, or the one that
    /// `zarr.json` was made from. Other programs may have files of this name.
    fn is_of_v1(&self, key: &Key, form: Option<DocumentKind>) -> Result<bool> {
        if form != Some(DocumentKind::V3) || !key.is_root() {
            return Ok(form == Some(DocumentKind::V1));
        }
        let texts = (
            self.stored(&key.join(V1_META))?,
            self.stored(&key.join(ZARR_JSON))?,
        );
        let (Some(meta), Some(new)) = texts else {
            return Ok(false);
        };
        let Ok(old) = self.metadata(&meta.text, DocumentKind::V1) else {
            return Ok(false);
        };
        let made = from_v2::array_document(&old, Separator::Dot, None);
        Ok(made.is_ok_and(|made| is_like(&made, &new.text)))
    }

    /// Checks that every node can be migrated, and that the consolidated metadata will not be too
    /// large.
    fn check_migration(&self, nodes: &[MigratedNode], has_begun: bool) -> Result<()> {
        let mut consolidated: Vec<(&Key, usize)> = Vec::new();
        for node in nodes {
            let document = node.key.join(ZARR_JSON);
            consolidated.retain(|(group, _)| node.key.relative_to(group).is_some());
            let made = self.new_document(node)?;
            if node.has_v3 {
                self.check_stored(node, &made, has_begun)?;
            }
            let limit = if node.array_document().is_some() {
                MAX_DOCUMENT
            } else {
                MAX_CONSOLIDATED
            };
            check_size(&document, &made, limit)?;
            for (group, len) in &mut consolidated {
                *len += node.key.as_str().len() + made.len() + ENTRY;
                check_consolidated_size(*len).map_err(|e| e.context(group.join(ZMETADATA)))?;
            }
            if node.is_consolidated {
                consolidated.push((&node.key, made.len() + ENTRY));
            }
        }
        Ok(())
    }

    /// Checks that the stored `zarr.json` of a node equals `made`, the one made from its other
    /// documents. After the migration has begun, readers of v3 may have changed it: then it must
    /// describe the same chunks.
    fn check_stored(&self, node: &MigratedNode, made: &[u8], has_begun: bool) -> Result<()> {
        let document = node.key.join(ZARR_JSON);
        let Some(stored) = self.stored_within(&document, MAX_CONSOLIDATED)? else {
            return Ok(());
        };
        let is_made = match (has_begun, node.array_document()) {
            (false, _) => is_same_node(made, &stored.text).context(&document)?,
            (true, Some(_)) => is_like(made, &stored.text),
            (true, None) => true,
        };
        let others = node.documents.join(", ");
        if is_made {
            Ok(())
        } else {
            Err(Error::invalid(format!(
                "says another thing than {others} beside it: remove the wrong one"
            ))
            .context(document))
        }
    }

    /// Makes the `zarr.json` of a node from its documents of the old format.
    pub(super) fn new_document(&self, node: &MigratedNode) -> Result<Vec<u8>> {
        let key = &node.key;
        let attributes = key.join(if node.documents.contains(&V1_META) {
            V1_ATTRS
        } else {
            ZATTRS
        });
        let stored = self.stored(&attributes)?;
        let attributes_text = stored.as_ref().map(|stored| stored.text.as_slice());
        if let Some(text) = attributes_text {
            json::check_object(text).context(&attributes)?;
        }
        match node.array_document() {
            Some(name) => {
                let document = key.join(name);
                self.new_array(key, name, attributes_text)
                    .context(&document)
            }
            None => {
                let document = key.join(ZGROUP);
                if let Some(group) = self.stored(&document)? {
                    let checked = check_group(&group.text)
                        .and_then(|()| from_v2::check_group_fields(&group.text));
                    checked.context(&document)?;
                }
                from_v2::group_document(attributes_text).context(&attributes)
            }
        }
    }

    /// Makes the `zarr.json` of an array from its document `name`.
    fn new_array(&self, key: &Key, name: &str, attributes: Option<&[u8]>) -> Result<Vec<u8>> {
        let stored = self
            .stored(&key.join(name))?
            .ok_or_else(|| Error::not_found("went away"))?;
        let form = if name == V1_META {
            DocumentKind::V1
        } else {
            DocumentKind::V2
        };
        let metadata = self.metadata(&stored.text, form)?;
        from_v2::check_array_fields(&stored.text)?;
        let array = Array::new(
            key.clone(),
            metadata,
            self.store.clone(),
            self.stats.clone(),
        )?;
        array.readable()?;
        from_v2::array_document(array.metadata(), array.separator(), attributes)
    }

    /// Puts the `zarr.json` of a node that has none, and the consolidated metadata into that of a
    /// group.
    fn put_new_document(&self, node: &MigratedNode) -> Result<()> {
        let key = &node.key;
        let document = node.key.join(ZARR_JSON);
        if node.has_v3 {
            return if node.is_consolidated {
                self.make_consolidated(DocumentFormat::V3, key).map(drop)
            } else {
                Ok(())
            };
        }
        let mut text = self.new_document(node)?;
        if node.is_consolidated {
            text = self
                .with_consolidated(DocumentFormat::V3, key, Some(&text))?
                .0;
        }
        match self
            .store
            .put_if(&document, &text, Replaces::Nothing)
            .context(&document)?
        {
            Some(_) => Ok(()),
            None => Err(
                Error::invalid("was made by another program meanwhile: migrate again")
                    .context(document),
            ),
        }
    }
}

/// Returns whether two documents of arrays describe the same chunks. The shape and the fill value
/// may differ.
fn is_like(a: &[u8], b: &[u8]) -> bool {
    let (Ok(a), Ok(b)) = (ArrayMetadata::parse_v3(a), ArrayMetadata::parse_v3(b)) else {
        return false;
    };
    let b = ArrayMetadata {
        fill: a.fill.clone(),
        ..b
    };
    a.separator == b.separator && a.encodes_like(&b)
}
