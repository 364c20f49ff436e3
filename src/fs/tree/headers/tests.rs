use super::*;
use crate::array::hierarchy::Hierarchy;
use crate::cache::Cache;
use zarrfs_base::stats::Stats;
use zarrfs_store::MemoryStore;

#[test]
fn a_text_is_made_once_for_each_version_of_what_it_describes() {
    let store = Arc::new(MemoryStore::default());
    let array = r#"{"zarr_format":2,"shape":[4],"chunks":[2],"dtype":"<i4","compressor":null,"fill_value":0,
        "order":"C","filters":null}"#;
    store.insert("a/.zarray", array);
    let hierarchy = Hierarchy::new(store.clone(), Default::default(), Arc::default());
    let tree = Tree::new(
        hierarchy,
        Arc::new(Cache::new(1 << 20, Arc::new(Stats::default()))),
    );
    let node = Node::Header(Key::normalize("a").unwrap(), Format::Readme);
    let [first, second] = [(); 2].map(|()| tree.composite(&node).unwrap());
    assert!(Arc::ptr_eq(&first, &second));
    store.insert("a/.zattrs", r#"{"units":"K"}"#);
    assert!(*tree.composite(&node).unwrap() != *first);
}
