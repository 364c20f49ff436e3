//! "The rooms stand on a stair, and a room names only rooms below it": `src/lib.rs` lists the rooms in floor order.

use std::path::{Path, PathBuf};

fn rooms(source: &Path) -> Vec<String> {
    let map = std::fs::read_to_string(source.join("lib.rs")).unwrap();
    map.lines().filter_map(|l| Some(l.strip_prefix("pub mod ")?.trim_end_matches(';').to_string())).collect()
}

fn files(path: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// The room a file belongs to.
fn room_of(file: &Path, source: &Path) -> String {
    let first = file.strip_prefix(source).unwrap().components().next().unwrap();
    first.as_os_str().to_str().unwrap().trim_end_matches(".rs").to_string()
}

#[test]
fn a_room_names_only_rooms_below_it() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let rooms = rooms(&source);
    assert!(rooms.len() > 10, "{rooms:?}");
    let floor = |name: &str| rooms.iter().position(|r| r == name);
    let mut found = Vec::new();
    files(&source, &mut found);
    let mut faults = Vec::new();
    for file in found {
        let room = room_of(&file, &source);
        let Some(own) = floor(&room) else {
            assert!(["lib", "main"].contains(&room.as_str()), "{room} is not in lib.rs");
            continue;
        };
        let text = std::fs::read_to_string(&file).unwrap();
        // what a room's own tests use is no part of the stair
        let code = text.split("\n#[cfg(test)]").next().unwrap();
        let test_file = file.file_name().is_some_and(|n| n == "tests.rs");
        for named in code.split("crate::").skip(1).filter(|_| !test_file) {
            let named: String = named.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            match floor(&named) {
                Some(n) if n > own => faults.push(format!("{}: names {named}, which is above it", file.display())),
                None => faults.push(format!("{}: names {named}, which is no room", file.display())),
                _ => {}
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn only_one_room_names_fuser_and_one_names_clap() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    files(&source, &mut found);
    for file in found {
        let text = std::fs::read_to_string(&file).unwrap();
        let room = room_of(&file, &source);
        assert!(room == "fuse" || !text.contains("fuser::"), "{}", file.display());
        assert!(room == "cli" || !text.contains("clap::"), "{}", file.display());
    }
}

/// What a verb can't write it must report: see `cli/stdio`.
#[test]
fn only_one_file_names_the_standard_streams() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    files(&source, &mut found);
    for file in found.iter().filter(|file| !file.ends_with("cli/stdio.rs")) {
        let text = std::fs::read_to_string(file).unwrap();
        let code = text.split("\n#[cfg(test)]").next().unwrap();
        for word in ["std::io::stdout", "std::io::stdin", " println!", " print!"] {
            let is_test = file.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs");
            assert!(is_test || !code.contains(word), "{}: {word}", file.display());
        }
    }
}

#[test]
fn only_the_store_of_servers_is_async() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let servers = source.join("store/object");
    let mut found = Vec::new();
    files(&source, &mut found);
    assert!(found.iter().any(|file| file.starts_with(&servers)));
    for file in found.iter().filter(|file| !file.starts_with(&servers)) {
        let text = std::fs::read_to_string(file).unwrap();
        for word in ["object_store::", "reqwest::", "tokio::", "async fn", "async move"] {
            assert!(!text.contains(word), "{}: {word}", file.display());
        }
    }
}
