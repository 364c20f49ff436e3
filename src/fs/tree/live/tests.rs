use super::*;
use std::time::Duration;

fn value(path: &str) -> Node {
    Node::Value(Key::normalize(path).unwrap())
}

fn directory(path: &str) -> Node {
    Node::Directory(Key::normalize(path).unwrap())
}

#[test]
fn a_renamed_file_keeps_its_number_and_its_successor_gets_another() {
    let live = LiveNodes::default();
    let new = live.remember(value("index.lock"));
    let old = live.remember(value("index"));
    live.renamed(&value("index.lock"), &value("index"));
    assert_eq!(
        (live.get(new).as_deref(), live.get(old)),
        (Some(&value("index")), None)
    );
    assert_eq!(live.number(&value("index")), new);
    let next = live.remember(value("index.lock"));
    assert!(next != new && next != old);
    assert_eq!(live.get(next).as_deref(), Some(&value("index.lock")));
    live.renamed(&value("index.lock"), &value("index"));
    assert_eq!(
        (live.get(next).as_deref(), live.get(new)),
        (Some(&value("index")), None)
    );
    // once the kernel has forgotten all names, nodes have the numbers of a new mount
    for number in [new, old, next] {
        live.forget(number, 1);
    }
    assert_eq!(live.len(), 0);
    assert_eq!(live.number(&value("index")), value("index").inode());
    assert_eq!(
        live.number(&value("index.lock")),
        value("index.lock").inode()
    );
}

#[test]
fn paths_of_one_number_get_two_while_both_are_known() {
    let mut paths = HashMap::new();
    let (first, second) = (0..1 << 18)
        .find_map(|n| {
            let node = value(&format!("a/{n}"));
            assert!(node.inode() <= u32::MAX.into());
            let other = paths.insert(node.inode(), node.clone())?;
            Some((other, node))
        })
        .expect("of 262,144 paths, two have one number of 32 bits");
    let live = LiveNodes::default();
    let number = live.remember(first.clone());
    let other = live.remember(second.clone());
    assert_ne!(number, other);
    assert_eq!(live.get(number).as_deref(), Some(&first));
    assert_eq!(live.get(other).as_deref(), Some(&second));
    assert_eq!(
        [&first, &second].map(|node| live.number(node)),
        [number, other]
    );
    live.forget(number, 1);
    assert_eq!(live.get(other).as_deref(), Some(&second));
}

#[test]
fn a_number_that_is_used_again_has_another_generation() {
    let live = LiveNodes::default();
    let number = live.remember(value("a"));
    let generation = live.generation(number);
    assert_eq!(live.remember(value("a")), number);
    live.forget(number, 1);
    assert_eq!(live.generation(number), generation);
    live.forget(number, 1);
    assert_eq!(live.remember(value("a")), number);
    assert_ne!(live.generation(number), generation);
    // the clock counts on before another mount
    std::thread::sleep(Duration::from_millis(2));
    let other = LiveNodes::default();
    assert_eq!(other.generation(number), 0);
    assert_eq!(other.remember(value("a")), number);
    assert_ne!(other.generation(number), live.generation(number));
}

#[test]
fn a_removed_file_loses_its_node() {
    let live = LiveNodes::default();
    let first = live.remember(value("a"));
    assert_eq!(live.remember(value("a")), first);
    live.removed(&value("a"));
    assert_eq!(live.get(first), None);
    let second = live.remember(value("a"));
    assert_ne!(second, first);
    live.forget(first, 2);
    assert_eq!(
        live.number(&value("a")),
        second,
        "its number stays as long as it is known"
    );
    live.forget(second, 1);
    assert_eq!(live.remember(value("a")), first);
}

#[test]
fn files_below_a_directory_are_renamed_and_removed_with_it() {
    let live = LiveNodes::default();
    let flat = |path: &str| Node::Flat(Key::normalize(path).unwrap());
    let [a, x, aa] = [directory("g/a"), flat("g/a"), value("g/aa")].map(|n| live.remember(n));
    live.renamed(&directory("g/a"), &directory("b"));
    assert_eq!(live.get(a).as_deref(), Some(&directory("b")));
    assert_eq!(live.get(x).as_deref(), Some(&flat("b")));
    assert_eq!(live.get(aa).as_deref(), Some(&value("g/aa")));
    assert_eq!(live.number(&flat("b")), x);
    assert_ne!(live.number(&directory("g/a")), a);
    live.removed(&directory("b"));
    assert_eq!((live.get(a), live.get(x)), (None, None));
}

#[test]
fn names_are_returned_when_there_are_many_and_not_before() {
    let live = LiveNodes::default();
    let count = LIMIT / (NODE_BYTES + 20) + 1000;
    let name = |i: usize| format!("{i:020}");
    let numbers: Vec<u64> = (0..count).map(|i| live.remember(value(&name(i)))).collect();
    assert!(live.take_crowded() && !live.take_crowded());
    // the first name is in use, the second is open
    live.get(numbers[0]);
    let names = live.least_used(&[numbers[1]].into());
    assert_eq!(names.keys().collect::<Vec<_>>(), [&ROOT_INODE]);
    let names: HashSet<&String> = names[&ROOT_INODE].iter().collect();
    assert_eq!(
        names,
        (2..2 + count / 4)
            .map(name)
            .collect::<Vec<_>>()
            .iter()
            .collect()
    );
    // once the kernel has forgotten them, as many names may follow
    (2..2 + count / 4).for_each(|i| live.forget(numbers[i], 1));
    (0..count / 8).for_each(|i| _ = live.remember(value(&format!("x{}", name(i)))));
    assert!(!live.take_crowded());
    (0..count / 4).for_each(|i| _ = live.remember(value(&format!("y{}", name(i)))));
    assert!(live.take_crowded());
}

#[test]
fn directories_are_returned_last_and_only_without_names_in_them() {
    let live = LiveNodes::default();
    let nodes = ["a", "b", "c", "d", "e", "f"]
        .map(directory)
        .map(|node| live.remember(node));
    let [file, other] = ["b/x", "c/x"].map(value).map(|node| live.remember(node));
    assert_eq!(
        live.least_used(&HashSet::new()),
        [(nodes[1], vec!["x".into()]), (nodes[2], vec!["x".into()])].into()
    );
    let mut names = live.least_used(&[file, other, nodes[0]].into());
    names.values_mut().for_each(|names| names.sort());
    assert_eq!(names, [(ROOT_INODE, vec!["d".into(), "e".into()])].into());
}

#[test]
fn bytes_are_counted_until_the_kernel_forgets() {
    let live = LiveNodes::default();
    let numbers =
        [directory("a"), value("a/b"), value("c"), value("d")].map(|node| live.remember(node));
    live.remember(value("c"));
    live.renamed(&directory("a"), &directory("longer"));
    live.removed(&value("d"));
    let bytes = |paths: &[&str]| {
        paths
            .iter()
            .map(|path| NODE_BYTES + path.len())
            .sum::<usize>()
    };
    let known = lock(&live.known).bytes;
    assert_eq!(known, bytes(&["longer", "longer/b", "c", "d"]));
    numbers.iter().for_each(|number| live.forget(*number, 2));
    let left = lock(&live.known).bytes;
    assert_eq!((left, live.len()), (0, 0));
}

#[test]
fn a_path_that_became_something_else_keeps_its_number() {
    let live = LiveNodes::default();
    let chunk = Node::Chunk(Key::root(), "0".into());
    let number = live.remember(value("0"));
    assert_eq!(live.remember(chunk.clone()), number);
    assert_eq!(live.get(number), Some(Arc::new(chunk)));
}
