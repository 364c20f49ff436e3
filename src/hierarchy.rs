//! The groups and arrays of a store: what stands at a path, its metadata documents as the decoded view shows them, and
//! the walk over everything below a group. Metadata is read when it is asked for, and again when it has changed.

mod arrays;

use crate::array::Array;
use crate::error::{Error, Kind, Result};
use crate::json::{self, Map, Value};
use crate::metadata::{
    ArrayMetadata, GROUP_DOCUMENT, MAX_DOCUMENT, V1_ATTRS, V1_META, V1Order, ZARRAY, ZATTRS, ZGROUP, ZMETADATA,
};
use crate::stats::Stats;
use crate::store::{EntryKind, Key, Listing, Stat, Store};
use arrays::Arrays;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// Arrays whose parsed metadata is kept.
const ARRAYS_KEPT: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Names looked at to tell a store without `.zgroup` from a directory that is none.
const PROBED_NAMES: usize = 1000;

/// What stands at a path of the hierarchy.
#[derive(Clone)]
pub enum Place {
    /// An array whose metadata can be honoured; its codecs may still be unknown.
    Array(Arc<Array>),
    /// Array metadata that can't be honoured, and why.
    Damaged(Error),
    /// A group, also one without `.zgroup`.
    Group,
    /// A key that is neither metadata nor chunk.
    Value(Stat),
    /// Something unreadable: a FIFO, a socket, a device.
    Other,
}

/// A metadata document of the decoded view, and what the store knows of the key it comes from.
pub struct Document {
    /// The document's bytes.
    pub text: Vec<u8>,
    /// Of the stored document, or of the prefix where there is none.
    pub stat: Stat,
}

/// The metadata documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataFile {
    /// `.zarray`
    Array,
    /// `.zgroup`
    Group,
    /// `.zattrs`
    Attributes,
    /// `.zmetadata`
    Consolidated,
}

impl MetadataFile {
    /// The name in a group or array.
    pub fn name(self) -> &'static str {
        match self {
            MetadataFile::Array => ZARRAY,
            MetadataFile::Group => ZGROUP,
            MetadataFile::Attributes => ZATTRS,
            MetadataFile::Consolidated => ZMETADATA,
        }
    }
}

type Parsed = std::result::Result<Arc<Array>, Error>;

/// The hierarchy of a store.
pub struct Hierarchy {
    store: Arc<dyn Store>,
    v1_order: V1Order,
    stats: Arc<Stats>,
    arrays: Arrays,
}

impl Hierarchy {
    /// The hierarchy of `store`.
    pub fn new(store: Arc<dyn Store>, v1_order: V1Order, stats: Arc<Stats>) -> Self {
        Hierarchy { store, v1_order, stats, arrays: Arrays::new(ARRAYS_KEPT) }
    }

    /// The store below.
    pub fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    /// An error, saying what is there instead, unless the store holds a Zarr v1 or v2 hierarchy.
    pub fn check(&self) -> Result<()> {
        let root = Key::root();
        let is_value = |key: &Key| matches!(self.store.stat(key), Ok(Some(stat)) if stat.kind == EntryKind::Value);
        let any = |names: &[&str]| names.iter().any(|name| is_value(&root.join(name)));
        if any(&[ZARRAY, ZGROUP, ZMETADATA]) || (any(&[V1_META]) && any(&[V1_ATTRS])) {
            return Ok(());
        }
        if any(&["zarr.json"]) {
            return Err(Error::unsupported("a Zarr v3 store: this version reads v1 and v2"));
        }
        for entry in self.store.list(&root)?.take(PROBED_NAMES) {
            let entry = entry?;
            let below = root.join(&entry.name);
            if entry.kind == EntryKind::Prefix && (is_value(&below.join(ZARRAY)) || is_value(&below.join(ZGROUP))) {
                return Ok(());
            }
        }
        Err(Error::invalid("not a Zarr store: it has no .zgroup, .zarray, .zmetadata or meta"))
    }

    /// What stands at `key`; None if there is definitely nothing.
    pub fn find(&self, key: &Key) -> Result<Option<Place>> {
        let document = match self.array_document(key) {
            Err(e) if self.hides_metadata(key, &e) => {
                self.stats.problem(e.to_string());
                return Ok(Some(Place::Damaged(e)));
            }
            document => document?,
        };
        if let Some((document, v1)) = document {
            return self.array(key, &document, v1).map(|parsed| match parsed {
                Ok(array) => Some(Place::Array(array)),
                Err(e) => Some(Place::Damaged(e)),
            });
        }
        Ok(self.store.stat(key).map_err(|e| e.context(key))?.map(|stat| match stat.kind {
            EntryKind::Prefix => Place::Group,
            EntryKind::Value => Place::Value(stat),
            EntryKind::Other => Place::Other,
        }))
    }

    /// True if `e` came of the metadata document of a directory that itself can be looked at: a link out of the store.
    fn hides_metadata(&self, key: &Key, e: &Error) -> bool {
        [libc::EACCES, libc::ELOOP].contains(&e.errno())
            && matches!(self.store.stat(key), Ok(Some(stat)) if stat.kind == EntryKind::Prefix)
    }

    /// The key of an array's metadata, and whether it is v1; None if `key` holds no array.
    fn array_document(&self, key: &Key) -> Result<Option<((Key, Stat), bool)>> {
        let value = |key: Key| -> Result<Option<(Key, Stat)>> {
            let stat = self.store.stat(&key).map_err(|e| e.context(&key))?;
            Ok(stat.map(|stat| (key, stat)))
        };
        if let Some(found) = value(key.join(ZARRAY))? {
            return Ok(Some((found, false)));
        }
        // v1 has but one array, at the root; its writers always made both documents
        if !key.is_root() || !matches!(self.store.stat(&key.join(ZGROUP)), Ok(None)) {
            return Ok(None);
        }
        let (meta, attrs) = (value(key.join(V1_META))?, value(key.join(V1_ATTRS))?);
        Ok(meta.filter(|_| attrs.is_some()).map(|found| (found, true)))
    }

    /// The parsed array, from memory if its metadata is still the same.
    fn array(&self, key: &Key, (document, stat): &(Key, Stat), v1: bool) -> Result<Parsed> {
        if let Some(parsed) = self.arrays.get(key, &stat.version) {
            return Ok(parsed.and_then(|array| {
                array.detect_separator().map_err(|e| e.context(key))?;
                Ok(array)
            }));
        }
        let mut text = Vec::new();
        let read = self.store.get(document, MAX_DOCUMENT, &mut text);
        let (version, parsed) = match read {
            Ok(None) => return Err(Error::not_found("went away while it was read").context(document)),
            Ok(Some(version)) => (version, self.parse(key, &text, v1).map_err(|e| e.context(document))),
            Err(e) => (stat.version.clone(), Err(e.context(document))),
        };
        if let Err(e) = &parsed {
            self.stats.problem(e.to_string());
        } else if let Ok(array) = &parsed
            && let Err(e) = array.readable()
        {
            self.stats.problem(e.to_string());
        }
        match parsed {
            // may pass, and says nothing of the metadata
            Err(e) if matches!(e.kind(), Kind::System(_)) => Ok(Err(e)),
            parsed => Ok(self.arrays.insert(key, version, parsed)),
        }
    }

    fn parse(&self, key: &Key, text: &[u8], v1: bool) -> Parsed {
        let metadata = match v1 {
            true => ArrayMetadata::parse_v1(text, self.v1_order)?,
            false => ArrayMetadata::parse(text)?,
        };
        Array::new(key.clone(), metadata, self.store.clone(), self.stats.clone()).map(Arc::new)
    }

    /// The array that stood at `key` when it was last asked for, without asking the store.
    pub fn remembered(&self, key: &Key) -> Option<Arc<Array>> {
        self.arrays.last(key)
    }

    /// The `.zarray` of the decoded view; of a damaged array, the document as it is stored.
    pub fn array_view(&self, key: &Key) -> Result<Option<Document>> {
        let Some((found, v1)) = self.array_document(key)? else { return Ok(None) };
        let text = match self.array(key, &found, v1)? {
            Ok(array) => array.metadata().decoded_view().into_bytes(),
            Err(_) => return self.stored(&found.0),
        };
        Ok(Some(Document { text, stat: found.1 }))
    }

    /// The `.zattrs` of a group or array, as stored.
    pub fn attributes_view(&self, key: &Key) -> Result<Option<Document>> {
        let v1 = matches!(self.array_document(key), Ok(Some((_, true))));
        self.stored(&key.join(if v1 { V1_ATTRS } else { ZATTRS }))
    }

    /// The `.zgroup` of a group: as stored, or made for a group that has none. Directories whose names begin with a dot
    /// are other programs' and get none.
    pub fn group_view(&self, key: &Key) -> Result<Option<Document>> {
        if let Some(document) = self.stored(&key.join(ZGROUP))? {
            return Ok(Some(document));
        }
        let stat = self.store.stat(key).map_err(|e| e.context(key))?;
        let stat = stat.filter(|_| !key.name().starts_with('.'));
        Ok(stat.map(|stat| Document { text: GROUP_DOCUMENT.into(), stat }))
    }

    /// The `.zmetadata` of the decoded view, where the store has one: made of the metadata documents that are really
    /// there, since the stored one may be stale.
    pub fn consolidated_view(&self, key: &Key) -> Result<Option<Document>> {
        let Some(stat) = self.store.stat(&key.join(ZMETADATA)).map_err(|e| e.context(key))? else { return Ok(None) };
        let mut entries: Vec<String> = Vec::new();
        let mut add = |key: Key, document: Result<Option<Document>>| match document {
            Ok(None) => {}
            // a document that is no JSON can't be put inside another
            Ok(Some(d)) => match String::from_utf8(d.text) {
                Ok(text) if json::parse(text.as_bytes()).is_ok() => {
                    entries.push(format!("{}:{}", Value::from(key.as_str()), text.trim()));
                }
                _ => self.stats.problem(format!("{key}: not valid JSON, left out of .zmetadata")),
            },
            Err(e) => self.stats.problem(e.to_string()),
        };
        self.walk(key, &mut |place_key, place| {
            let below = place_key.relative_to(key).unwrap_or_default();
            match place {
                Place::Array(_) => add(below.join(ZARRAY), self.array_view(place_key)),
                Place::Group => add(below.join(ZGROUP), self.group_view(place_key)),
                _ => return,
            }
            add(below.join(ZATTRS), self.attributes_view(place_key));
        });
        let text = format!("{{\"metadata\":{{{}}},\"zarr_consolidated_format\":1}}", entries.join(","));
        Ok(Some(Document { text: text.into_bytes(), stat }))
    }

    /// The attributes of a group or array; none where there is no document, or one that is no JSON object.
    pub fn attributes(&self, key: &Key) -> Result<Map<String, Value>> {
        let parse = |d: Document| json::parse(&d.text).map_err(|e| e.context(key.join(ZATTRS)));
        Ok(match self.attributes_view(key).and_then(|d| d.map(parse).transpose()) {
            Ok(Some(Value::Object(attributes))) => attributes,
            Ok(_) => Map::new(),
            Err(e) => {
                self.stats.problem(e.to_string());
                Map::new()
            }
        })
    }

    fn stored(&self, key: &Key) -> Result<Option<Document>> {
        let Some(stat) = self.store.stat(key).map_err(|e| e.context(key))? else { return Ok(None) };
        let mut text = Vec::new();
        let read = self.store.get(key, MAX_DOCUMENT, &mut text).map_err(|e| e.context(key))?;
        Ok(read.map(|_| Document { text, stat }))
    }

    /// The names below a group, streamed, metadata documents left out, and links that are refused.
    pub fn list(&self, key: &Key) -> Result<Listing> {
        let listing = self.store.list(key).map_err(|e| e.context(key))?;
        let metadata = |name: &str| [ZARRAY, ZGROUP, ZATTRS, ZMETADATA].contains(&name);
        let listing = listing.filter(move |e| !e.as_ref().is_ok_and(|e| metadata(&e.name)));
        let (store, key) = (self.store.clone(), key.clone());
        let is_other =
            move |name: &str| store.stat(&key.join(name)).is_ok_and(|s| s.is_some_and(|s| s.kind == EntryKind::Other));
        Ok(Box::new(
            listing.filter(move |e| !e.as_ref().is_ok_and(|e| e.kind == EntryKind::Other && !is_other(&e.name))),
        ))
    }

    /// Calls `visit` for `key` and every group and array below it, in the order of their names. What can't be looked at
    /// is visited as damaged, its neighbours as ever. Other keys are not visited; what lies below an array is no part
    /// of the hierarchy.
    pub fn walk(&self, key: &Key, visit: &mut dyn FnMut(&Key, &Place)) {
        let mut stack = vec![key.clone()];
        while let Some(key) = stack.pop() {
            let found = self.find(&key).and_then(|place| match place {
                Some(Place::Group) => Ok(Some((Place::Group, self.prefixes(&key)?))),
                place => Ok(place.map(|place| (place, Vec::new()))),
            });
            match found {
                Ok(None) => {}
                Ok(Some((place, below))) => {
                    visit(&key, &place);
                    stack.extend(below);
                }
                Err(e) => {
                    self.stats.problem(e.to_string());
                    visit(&key, &Place::Damaged(e));
                }
            }
        }
    }

    /// The prefixes one level below a group, last name first.
    fn prefixes(&self, key: &Key) -> Result<Vec<Key>> {
        let mut below = Vec::new();
        for entry in self.list(key)? {
            let entry = entry.map_err(|e| e.context(key))?;
            if entry.kind == EntryKind::Prefix {
                below.push(key.child(&entry.name)?);
            }
        }
        below.sort_unstable_by(|a, b| b.cmp(a));
        Ok(below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Fault, FaultyStore, MemoryStore, Operation};

    const ARRAY: &str = r#"{"zarr_format":2,"shape":[4],"chunks":[2],"dtype":"<i4","compressor":{"id":"zlib"},"fill_value":0,
        "order":"C","filters":null}"#;

    fn hierarchy(values: &[(&str, &str)]) -> (Arc<MemoryStore>, Hierarchy) {
        let store = Arc::new(MemoryStore::default());
        for (key, value) in values {
            store.insert(key, *value);
        }
        let hierarchy = Hierarchy::new(store.clone(), V1Order::Zarr1, Arc::default());
        (store, hierarchy)
    }

    #[test]
    fn groups_arrays_and_what_lies_between() {
        let (_, h) = hierarchy(&[
            (".zgroup", "{\"zarr_format\":2}"),
            ("a/b/x/.zarray", ARRAY),
            ("a/b/x/inner/.zarray", ARRAY),
            ("bad/.zarray", "{"),
            ("both/.zgroup", "{}"),
            ("both/.zarray", ARRAY),
            ("notes.txt", "hello"),
        ]);
        let mut seen = Vec::new();
        h.walk(&Key::root(), &mut |key, place| {
            let kind = match place {
                Place::Array(_) => "array",
                Place::Damaged(_) => "damaged",
                Place::Group => "group",
                _ => "other",
            };
            seen.push(format!("{key} {kind}"));
        });
        let expected = ["/ group", "/a group", "/a/b group", "/a/b/x array", "/bad damaged", "/both array"];
        assert_eq!(seen, expected);
        assert!(matches!(h.find(&Key::normalize("notes.txt").unwrap()).unwrap(), Some(Place::Value(_))));
        assert!(h.find(&Key::normalize("none").unwrap()).unwrap().is_none());
    }

    #[test]
    fn consolidated_metadata_is_made_of_what_is_there() {
        let (store, h) =
            hierarchy(&[(".zgroup", "{\"zarr_format\":2}"), ("x/.zarray", ARRAY), (".zmetadata", "stale")]);
        store.insert("x/.zattrs", "{\"scale\": NaN}");
        let view = h.consolidated_view(&Key::root()).unwrap().unwrap().text;
        let view = json::parse(&view).unwrap();
        let names: Vec<&String> = view["metadata"].as_object().unwrap().keys().collect();
        assert_eq!(names, [".zgroup", "x/.zarray", "x/.zattrs"]);
        assert!(view["metadata"]["x/.zarray"]["compressor"].is_null());
        store.remove(".zmetadata");
        assert!(h.consolidated_view(&Key::root()).unwrap().is_none());
    }

    #[test]
    fn changed_metadata_is_read_again() {
        let (store, h) = hierarchy(&[("x/.zarray", ARRAY)]);
        let size = || match h.find(&Key::normalize("x").unwrap()).unwrap() {
            Some(Place::Array(a)) => a.size(),
            _ => panic!(),
        };
        assert_eq!(size(), 16);
        store.insert("x/.zarray", ARRAY.replace("\"shape\":[4]", "\"shape\":[9]"));
        assert_eq!(size(), 36);
    }

    #[test]
    fn a_failure_of_the_system_is_neither_remembered_nor_taken_for_a_change() {
        let (memory, _) = hierarchy(&[("x/.zarray", ARRAY)]);
        let store = Arc::new(FaultyStore::new(memory.clone()));
        let h = Hierarchy::new(store.clone(), V1Order::Zarr1, Arc::default());
        let find = || match h.find(&Key::root().join("x")).unwrap() {
            Some(Place::Array(array)) => Ok(array),
            Some(Place::Damaged(e)) => Err(e.errno()),
            _ => panic!(),
        };
        store.plan(Fault::next(Operation::Get, libc::EMFILE));
        assert_eq!(find().err(), Some(libc::EMFILE));
        let array = find().unwrap();
        memory.insert("x/.zarray", ARRAY);
        store.plan(Fault::next(Operation::Get, libc::EMFILE));
        assert_eq!(find().err(), Some(libc::EMFILE));
        assert!(!array.is_superseded() && Arc::ptr_eq(&array, &find().unwrap()));
    }

    #[test]
    fn metadata_that_cannot_be_looked_at_damages_its_array_alone() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        for name in ["hidden", "sound"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        symlink("/", dir.path().join("hidden/.zarray")).unwrap();
        symlink("/", dir.path().join("out")).unwrap();
        std::fs::write(dir.path().join("sound/.zarray"), ARRAY).unwrap();
        symlink(".zattrs", dir.path().join("sound/.zattrs")).unwrap();
        let stats = Arc::new(Stats::default());
        let store = Arc::new(crate::store::DirectoryStore::open(dir.path()).unwrap());
        let h = Hierarchy::new(store, V1Order::Zarr1, stats.clone());
        let key = |name: &str| Key::normalize(name).unwrap();
        assert!(matches!(h.find(&key("hidden")).unwrap(), Some(Place::Damaged(e)) if e.errno() == libc::EACCES));
        assert!(stats.problems()[0].starts_with("/hidden/.zarray: "), "{:?}", stats.problems());
        assert!(matches!(h.find(&key("sound")).unwrap(), Some(Place::Array(_))));
        assert!(h.attributes(&key("sound")).unwrap().is_empty());
        assert!(h.find(&key("out")).is_err());
        let mut names: Vec<_> = h.list(&Key::root()).unwrap().map(|e| e.unwrap().name).collect();
        names.sort();
        assert_eq!(names, ["hidden", "sound"]);
    }

    #[test]
    fn what_is_a_store() {
        assert!(hierarchy(&[("a/.zarray", ARRAY)]).1.check().is_ok());
        assert!(hierarchy(&[("meta", "{}"), ("attrs", "{}")]).1.check().is_ok());
        // a file of that name makes no v1 store
        assert!(
            hierarchy(&[("meta", "notes"), ("a/.zarray", ARRAY)])
                .1
                .find(&Key::root())
                .is_ok_and(|p| matches!(p, Some(Place::Group)))
        );
        assert_eq!(hierarchy(&[("a/x", "")]).1.check().unwrap_err().kind(), Kind::Invalid);
        assert_eq!(hierarchy(&[("zarr.json", "{}")]).1.check().unwrap_err().kind(), Kind::Unsupported);
    }
}
