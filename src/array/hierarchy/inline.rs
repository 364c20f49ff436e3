//! Consolidated metadata of Zarr v3: the documents below a group, inline in its `zarr.json`. Every
//! change made here updates the entries of the changed nodes from the stored documents; other
//! entries stay as they are. The form is that of zarr-python 3; the specification does not define
//! it.

use super::consolidated::{MAX_SHOWN, Stale, is_same_json};
use super::{Hierarchy, MetadataDocument, StoredNode, ViewFormat};
use crate::error::{Error, Kind, Result};
use crate::store::{Key, Permissions};
use crate::util::json::{self, MemberTexts, Value};
use crate::util::memory::{self, Grant, lock};
use crate::zarr::metadata::v3::node::{self, CONSOLIDATED};
use crate::zarr::metadata::{ArrayMetadata, MAX_CONSOLIDATED, ZARR_JSON};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The text of the entries under construction, with its memory counted.
struct InlineText {
    text: Vec<u8>,
    memory: Grant,
}

/// The bytes of an entry in consolidated metadata besides its name and its document.
pub(super) const ENTRY: usize = 16;

/// Checks that consolidated metadata may have `len` bytes.
///
/// # Errors
///
/// [`Kind::TooLarge`] if it may not.
pub(super) fn check_inline_size(len: usize) -> Result<()> {
    let limit = (MAX_CONSOLIDATED as usize).min(memory::limit() / 2);
    if len > limit {
        let why = format!(
            "the documents together have more than {limit} bytes, the most of consolidated metadata"
        );
        return Err(Error::new(Kind::TooLarge, why));
    }
    Ok(())
}

impl InlineText {
    const BEGIN: &[u8] = b"{\"kind\": \"inline\", \"must_understand\": false, \"metadata\": {";

    fn new() -> Self {
        InlineText {
            text: Self::BEGIN.to_vec(),
            memory: Grant::default(),
        }
    }

    /// Adds a document that has not been checked.
    fn add(&mut self, name: &str, document: &[u8]) -> Result<()> {
        if document.len() > MAX_SHOWN {
            let why = format!(
                "{} bytes, more than the {MAX_SHOWN} that are shown there",
                document.len()
            );
            return Err(Error::damaged(why));
        }
        json::check(document)?;
        self.push(name, document)
    }

    /// Adds the document of the node `name`; [`Kind::TooLarge`] if the whole exceeds its limit.
    fn push(&mut self, name: &str, document: &[u8]) -> Result<()> {
        let name = Value::from(name).to_string();
        let document = json::without_mark(document).trim_ascii();
        let more = name.len() + document.len() + ENTRY;
        check_inline_size(self.text.len() + more)?;
        self.memory.grow(more)?;
        memory::check_available()?;
        let before: &[u8] = if self.text.len() == Self::BEGIN.len() {
            b"\n        "
        } else {
            b",\n        "
        };
        for part in [before, name.as_bytes(), b": ", document] {
            self.text.extend_from_slice(part);
        }
        Ok(())
    }

    fn end(mut self) -> (Vec<u8>, Grant) {
        self.text.extend_from_slice(b"\n    }}");
        (self.text, self.memory)
    }
}

impl Hierarchy {
    /// Returns whether the `zarr.json` that the mount shows for the node at `key` has consolidated
    /// metadata: it is a group whose stored document has them.
    pub fn shows_inline(&self, key: &Key) -> Result<bool> {
        let is_shown = self.view == ViewFormat::Stored;
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

    /// Returns the `zarr.json` of a group with consolidated metadata as the mount shows it. They
    /// are made of the documents that the mount shows below the group, since the stored ones may be
    /// stale. Documents are left out that are too large, or that not all readers of the group's
    /// document may read. Without the memory for the rest there is an error; if they exceed their
    /// limit the group is shown without any.
    pub fn inline_view(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        let Some(group) = self.zarr_view(key)? else {
            return Ok(None);
        };
        let granted = group.stat.permissions;
        let may_read = |by: Option<Permissions>| match (granted, by) {
            (Some(granted), Some(by)) => granted.readers_may_read(by),
            (granted, _) => granted.is_none(),
        };
        let mut inline = InlineText::new();
        let mut failed = Ok(());
        let mut hidden = Vec::<Key>::new();
        self.visit_below(key, &mut |place, node| {
            let is_node = matches!(node, StoredNode::Array(_) | StoredNode::Group) && place != key;
            if failed.is_err()
                || !is_node
                || hidden
                    .iter()
                    .any(|above| place.relative_to(above).is_some())
            {
                return;
            }
            let inside = || {
                self.store
                    .stat(place)
                    .ok()
                    .flatten()?
                    .permissions
                    .map(Permissions::inside)
            };
            if granted.is_some() && !may_read(inside()) {
                hidden.push(place.clone());
                return;
            }
            let added = self.zarr_view(place).and_then(|document| match document {
                Some(document) if may_read(document.stat.permissions) => {
                    let path = place.relative_to(key).unwrap_or_default();
                    inline.add(path.as_str(), &document.text)
                }
                _ => Ok(()),
            });
            match added {
                Err(e) if [Kind::System(libc::ENOMEM), Kind::TooLarge].contains(&e.kind()) => {
                    // free the memory for the rest of the traversal
                    (failed, inline) = (Err(e), InlineText::new());
                }
                Err(e) => self
                    .stats
                    .problem(format!("{place}: {e}: left out of {}", key.join(ZARR_JSON))),
                Ok(()) => {}
            }
        });
        match failed {
            Err(e) if e.kind() == Kind::TooLarge => {
                self.stats.problem(format!(
                    "{}: {e}: shown without consolidated metadata",
                    key.join(ZARR_JSON)
                ));
                return Ok(Some(group));
            }
            failed => failed?,
        }
        let (inline, _memory) = inline.end();
        let _copy = memory::take(inline.len() + group.text.len())?;
        let text = node::rewrite(&group.text, CONSOLIDATED, Some(&inline))?;
        drop(inline);
        MetadataDocument::made(text, group.stat).map(Some)
    }

    /// Writes the consolidated metadata into the `zarr.json` of the group at `key`, from the
    /// documents stored below it. Returns the paths of the nodes relative to the group.
    ///
    /// # Errors
    ///
    /// There is no `zarr.json`, or the documents exceed the size limit.
    pub(super) fn make_inline(&self, key: &Key) -> Result<Vec<String>> {
        let document = key.join(ZARR_JSON);
        let names = RefCell::new(Vec::new());
        self.edit(&document, MAX_CONSOLIDATED, &|text| {
            names.borrow_mut().clear();
            let text =
                text.ok_or_else(|| Error::invalid("a group without zarr.json").context(&document))?;
            self.with_inline(key, text, &mut |name| {
                names.borrow_mut().push(name.to_string())
            })
            .map(Some)
        })?;
        Ok(names.into_inner())
    }

    /// Returns the `zarr.json` of the group at `key` with the documents that are stored below it as
    /// its consolidated metadata. Calls `made` with the path of each node.
    pub(super) fn with_inline(
        &self,
        key: &Key,
        text: &[u8],
        made: &mut dyn FnMut(&str),
    ) -> Result<Vec<u8>> {
        self.store.forget(key);
        let mut inline = InlineText::new();
        self.v3_documents(key, &mut |name, text| {
            made(name);
            inline
                .push(name, text)
                .map_err(|e| e.context(key.join(ZARR_JSON)))
        })?;
        let (inline, _memory) = inline.end();
        node::rewrite(text, CONSOLIDATED, Some(&inline))
    }

    /// Replaces the entry of `node`, and with `below` those of all nodes below it, in the
    /// consolidated metadata of every group above.
    pub(super) fn refresh_inline(&self, node: &Key, below: bool) -> Result<()> {
        if node.is_root() {
            return Ok(());
        }
        for group in self.upwards(&node.parent()) {
            let path = node.relative_to(&group).unwrap_or_default();
            let is_changed = |name: &str| match Key::normalize(name) {
                Ok(key) => key == path || below && key.relative_to(&path).is_some(),
                Err(_) => false,
            };
            self.edit_inline(&group, &|entries, new| {
                for entry in entries {
                    let (name, text) = entry?;
                    if !is_changed(&name) {
                        new.push(&name, text.as_bytes())?;
                    }
                }
                self.store.forget(node);
                let mut push = |name: &str, text: &[u8]| match name {
                    "" => new.push(path.as_str(), text),
                    below => new.push(path.join(below).as_str(), text),
                };
                if below {
                    self.v3_documents_from(node, &mut push)
                } else {
                    self.v3_entry(node)?
                        .map_or(Ok(()), |text| push("", &text.text))
                }
            })?;
        }
        Ok(())
    }

    /// Changes the consolidated metadata of `group`, if it has any, by a single put. Unusable ones
    /// stay unchanged and are recorded as a problem.
    fn edit_inline(
        &self,
        group: &Key,
        change: &dyn Fn(MemberTexts, &mut InlineText) -> Result<()>,
    ) -> Result<()> {
        let key = group.join(ZARR_JSON);
        let edited = self.edit(&key, MAX_CONSOLIDATED, &|text| {
            let Some(text) = text else { return Ok(None) };
            let changed = || {
                let Some(entries) = inline_entries(text)? else {
                    return Ok(None);
                };
                let mut new = InlineText::new();
                change(MemberTexts::of(entries.as_bytes())?, &mut new)?;
                let (inline, _memory) = new.end();
                node::rewrite(text, CONSOLIDATED, Some(&inline)).map(Some)
            };
            changed().map_err(|e: Error| e.context(&key))
        });
        edited.or_else(|e| match e.kind() {
            Kind::Damaged | Kind::TooLarge => {
                self.stats
                    .problem(format!("{e}: its consolidated metadata can't be updated"));
                Ok(())
            }
            _ => Err(e),
        })
    }

    /// Returns the paths of the entries in the consolidated metadata of the group at `key` that
    /// [`Hierarchy::write_consolidated`] would change; nothing if it has none.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`] if they cannot be parsed.
    pub fn stale_inline(&self, key: &Key) -> Result<Vec<(String, Stale)>> {
        let document = key.join(ZARR_JSON);
        let Some(stored) = self.stored_within(&document, MAX_CONSOLIDATED)? else {
            return Ok(Vec::new());
        };
        let Some(text) = inline_entries(&stored.text).map_err(|e| e.context(&document))? else {
            return Ok(Vec::new());
        };
        let mut entries = BTreeMap::new();
        let mut memory = Grant::default();
        for entry in MemberTexts::of(text.as_bytes())? {
            let (name, text) = entry?;
            memory
                .grow(128 + name.len())
                .map_err(|e| e.context(&document))?;
            entries.insert(name.into_owned(), text);
        }
        let mut stale = Vec::new();
        self.v3_documents(key, &mut |name, text| {
            match entries.remove(name) {
                None => stale.push((name.to_string(), Stale::Missing)),
                Some(entry) => {
                    let entry = node::without_consolidated(entry.as_bytes())?;
                    if !is_same_node(&entry, text)? {
                        stale.push((name.to_string(), Stale::Different));
                    }
                }
            }
            Ok(())
        })?;
        Ok(entries
            .into_keys()
            .map(|name| (name, Stale::Extra))
            .chain(stale)
            .collect())
    }

    /// Calls `each` with the path and the document of each v3 node below `key`.
    fn v3_documents(
        &self,
        key: &Key,
        each: &mut dyn FnMut(&str, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.v3_documents_from(key, &mut |name, text| {
            if name.is_empty() {
                Ok(())
            } else {
                each(name, text)
            }
        })
    }

    /// Calls `each` with the path and the document of each v3 node at and below `key`. Invalid JSON
    /// is left out and recorded as a problem.
    fn v3_documents_from(
        &self,
        key: &Key,
        each: &mut dyn FnMut(&str, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut done = Ok(());
        if self.find(key)?.is_none() {
            return done;
        }
        self.visit_below(key, &mut |node, found| {
            if matches!(found, StoredNode::Value(_) | StoredNode::Other) || done.is_err() {
                return;
            }
            let path = node.relative_to(key).unwrap_or_default();
            match self.v3_entry(node) {
                Ok(None) => {}
                Ok(Some(document)) => done = each(path.as_str(), &document.text),
                Err(e) => self
                    .stats
                    .problem(format!("{e}: left out of the consolidated metadata")),
            }
        });
        done
    }

    /// Returns the document of the node at `key` in the form of an entry; an error if it is not
    /// valid JSON.
    fn v3_entry(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        let document = key.join(ZARR_JSON);
        let Some(stored) = self.stored_within(&document, MAX_CONSOLIDATED)? else {
            return Ok(None);
        };
        json::check(&stored.text).map_err(|e| e.context(&document))?;
        let text = node::without_consolidated(&stored.text).map_err(|e| e.context(&document))?;
        MetadataDocument::made(text, stored.stat).map(Some)
    }
}

/// Returns whether two documents describe the same node. A writer of consolidated metadata states
/// defaults that the stored document leaves out.
pub(super) fn is_same_node(a: &[u8], b: &[u8]) -> Result<bool> {
    if is_same_json(a, b)? {
        return Ok(true);
    }
    let attributes = |text| {
        Ok(node::member(text, "attributes")?
            .filter(|text| *text != "null")
            .unwrap_or("{}"))
    };
    let [attributes_a, attributes_b]: [Result<&str>; 2] = [attributes(a), attributes(b)];
    if !is_same_json(attributes_a?.as_bytes(), attributes_b?.as_bytes())? {
        return Ok(false);
    }
    Ok(
        match (ArrayMetadata::parse_v3(a), ArrayMetadata::parse_v3(b)) {
            (Ok(a), Ok(b)) => {
                let names =
                    |array: &ArrayMetadata| array.v3.as_ref().map(|v3| v3.dimension_names.clone());
                a.shape == b.shape
                    && a.separator == b.separator
                    && a.encodes_like(&b)
                    && names(&a) == names(&b)
            }
            _ => [a, b].iter().all(|text| node::check_group_v3(text).is_ok()),
        },
    )
}

/// Returns the text of the entries in a group's `zarr.json`: an object of paths and documents;
/// `None` if it has none of the kind `inline`.
///
/// # Errors
///
/// [`Kind::Damaged`] if the document is not JSON.
pub(super) fn inline_entries(text: &[u8]) -> Result<Option<&str>> {
    let Some(consolidated) =
        node::member(text, CONSOLIDATED)?.filter(|value| value.starts_with('{'))
    else {
        return Ok(None);
    };
    json::check(text)?;
    if node::member(consolidated.as_bytes(), "kind")?.is_some_and(|kind| kind != "\"inline\"") {
        return Ok(None);
    }
    Ok(node::member(consolidated.as_bytes(), "metadata")?.filter(|value| value.starts_with('{')))
}
