//! Rules of the code that the compiler does not keep, checked in the text of the source files: which
//! crate uses which one is in the manifests, and not here. The libraries of the program and of the
//! format list their modules in layer order: a module imports only from those above it. No modules
//! of a crate form a cycle, only one module of the program names each of fuser and clap, and type
//! names are unique. Test code is exempt.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A source file: its module path below `crate`, and its code without the items that only tests
/// have.
struct Source {
    path: PathBuf,
    module: Vec<String>,
    code: String,
}

/// Returns the folder of the sources of each crate, the program first.
pub fn source_folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<PathBuf> = std::fs::read_dir(root.join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().path().join("src"))
        .collect();
    folders.sort();
    folders.insert(0, root.join("src"));
    folders
}

pub fn files(path: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Returns `text` without comments and without the items under `#[cfg(test)]`, and the names of the
/// modules among these.
fn without_tests(text: &str) -> (String, Vec<String>) {
    let mut code = String::new();
    let mut modules = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        let attribute = line.trim_start();
        if !attribute.starts_with("#[cfg(test)]") && !attribute.starts_with("#[cfg(any(test,") {
            code.push_str(line);
            code.push('\n');
            continue;
        }
        // rustfmt closes an item at the indentation at which it was opened
        let indentation = &line[..line.len() - attribute.len()];
        let mut item = lines.next().unwrap();
        while item.trim_start().starts_with("#[") || item.trim_start().starts_with("//") {
            item = lines.next().unwrap();
        }
        let item_name = item.trim_start();
        if let Some(name) = item_name
            .strip_prefix("pub ")
            .unwrap_or(item_name)
            .strip_prefix("mod ")
            .and_then(|rest| rest.strip_suffix(';'))
        {
            modules.push(name.to_string());
        }
        let is_whole = item.ends_with(';') || item.ends_with('}') || item.ends_with(',');
        if !is_whole {
            let is_end = |line: &str| {
                let rest = line.strip_prefix(indentation);
                rest.is_some_and(|rest| {
                    rest.starts_with('}') || rest.starts_with(')') && rest.ends_with(';')
                })
            };
            for line in lines.by_ref() {
                if is_end(line) {
                    break;
                }
            }
        }
    }
    (code, modules)
}

/// Returns the sources of all crates.
fn sources() -> Vec<Source> {
    source_folders()
        .iter()
        .flat_map(|folder| sources_below(folder))
        .collect()
}

fn sources_below(folder: &Path) -> Vec<Source> {
    let mut paths = Vec::new();
    files(folder, &mut paths);
    paths.sort();
    let mut tests = BTreeSet::new();
    let mut sources = Vec::new();
    for path in paths {
        let relative = path.strip_prefix(folder).unwrap().with_extension("");
        let module: Vec<String> = relative
            .iter()
            .map(|part| part.to_str().unwrap().to_string())
            .collect();
        let (code, modules) = without_tests(&std::fs::read_to_string(&path).unwrap());
        // modules that the root of a crate declares stand beside it
        let parent: &[String] = if relative == Path::new("lib") {
            &[]
        } else {
            &module
        };
        tests.extend(modules.into_iter().map(|name| [parent, &[name]].concat()));
        sources.push(Source { path, module, code });
    }
    sources
        .retain(|source| !(1..=source.module.len()).any(|n| tests.contains(&source.module[..n])));
    sources
}

/// Returns the modules that the library of a crate lists, in its order.
fn listed(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("lib.rs")).unwrap();
    let name = |line: &str| {
        let line = line.strip_prefix("pub ").unwrap_or(line);
        Some(line.strip_prefix("mod ")?.split(';').next()?.to_string())
    };
    text.lines().filter_map(name).collect()
}

/// Splits `text` at the commas outside of braces.
fn alternatives(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let mut start = 0;
    let mut found = Vec::new();
    for (i, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    found.push(&text[start..]);
    found
}

/// Adds the paths that `tail` names below `path`, braces expanded.
fn expand(path: &[String], tail: &str, found: &mut Vec<Vec<String>>) {
    let mut path = path.to_vec();
    let mut rest = tail.trim_start();
    loop {
        if let Some(inner) = rest.strip_prefix('{') {
            let mut depth = 1;
            let end = inner.find(|c| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                depth == 0
            });
            for part in alternatives(&inner[..end.unwrap_or(inner.len())]) {
                expand(&path, part, found);
            }
            return;
        }
        let word: String = rest
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        rest = &rest[word.len()..];
        match word.as_str() {
            "" => break,
            "super" => drop(path.pop()),
            "self" => {}
            _ => path.push(word),
        }
        match rest.strip_prefix("::") {
            Some(below) => rest = below.trim_start(),
            None => break,
        }
    }
    found.push(path);
}

/// Returns the paths below `crate` that a file names.
fn named(source: &Source) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let starts = |word: &'static str| {
        let before = |at: usize| source.code[..at].chars().next_back().unwrap_or(' ');
        let is_word =
            move |at: &usize| !before(*at).is_alphanumeric() && !"_:".contains(before(*at));
        source
            .code
            .match_indices(word)
            .map(|(at, _)| at)
            .filter(is_word)
    };
    for at in starts("crate::") {
        expand(&[], &source.code[at + "crate::".len()..], &mut found);
    }
    for at in starts("super::") {
        expand(&source.module, &source.code[at..], &mut found);
    }
    found
}

/// The libraries of the program and of the format list their modules in layer order.
#[test]
fn a_module_imports_only_from_those_above_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut faults = Vec::new();
    for folder in [root.join("src"), root.join("crates/format/src")] {
        let modules = listed(&folder);
        assert!(modules.len() > 4, "{}: {modules:?}", folder.display());
        let layer =
            |module: &[String]| modules.iter().position(|name| Some(name) == module.first());
        for source in sources_below(&folder) {
            let own = layer(&source.module);
            for path in named(&source) {
                if own
                    .zip(layer(&path))
                    .is_some_and(|(own, other)| other > own)
                {
                    faults.push(format!(
                        "{}: imports {}",
                        source.path.display(),
                        path.join("::")
                    ));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A module and its submodules may use each other; submodules of one module may not form a cycle.
#[test]
fn no_modules_form_a_cycle() {
    let folders = source_folders();
    let faults: Vec<String> = folders.iter().flat_map(|folder| cycles(folder)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Returns the cycles among the modules of a crate.
fn cycles(folder: &Path) -> Vec<String> {
    let sources = sources_below(folder);
    let modules: BTreeSet<&[String]> = sources
        .iter()
        .map(|source| source.module.as_slice())
        .collect();
    let mut edges: BTreeMap<Vec<String>, BTreeSet<Vec<String>>> = BTreeMap::new();
    for source in &sources {
        for path in named(source) {
            let Some(n) = (1..=path.len())
                .rev()
                .find(|n| modules.contains(&path[..*n]))
            else {
                continue;
            };
            let target = &path[..n];
            let common = source
                .module
                .iter()
                .zip(target)
                .take_while(|(a, b)| a == b)
                .count();
            if common < source.module.len() && common < target.len() {
                edges
                    .entry(source.module[..=common].to_vec())
                    .or_default()
                    .insert(target[..=common].to_vec());
            }
        }
    }
    let mut faults = Vec::new();
    for start in edges.keys() {
        let mut seen = BTreeSet::new();
        let mut next = vec![(start, vec![start])];
        while let Some((module, way)) = next.pop() {
            for other in edges.get(module).into_iter().flatten() {
                let way = [way.clone(), vec![other]].concat();
                if other == start {
                    let names: Vec<String> = way.iter().map(|module| module.join("::")).collect();
                    faults.push(names.join(" -> "));
                } else if seen.insert(other) {
                    next.push((other, way));
                }
            }
        }
    }
    faults
}

/// Other crates than the program do not depend on either.
#[test]
fn one_module_names_fuser_and_one_names_clap() {
    for source in sources_below(&source_folders()[0]) {
        let module = source.module[0].as_str();
        assert!(
            module == "fuse" || !source.code.contains("fuser::"),
            "{}",
            source.path.display()
        );
        assert!(
            module == "cli" || !source.code.contains("clap::"),
            "{}",
            source.path.display()
        );
    }
}

/// Verbs print through `cli/stdio`, which reports failed writes.
#[test]
fn one_file_names_the_standard_streams() {
    for source in sources()
        .iter()
        .filter(|source| source.module != ["cli", "stdio"])
    {
        for word in ["std::io::stdout", "std::io::stdin", " println!", " print!"] {
            assert!(
                !source.code.contains(word),
                "{}: {word}",
                source.path.display()
            );
        }
    }
}

/// rustfmt leaves comments as they are.
#[test]
fn lines_of_comments_are_short() {
    for source in sources() {
        for line in std::fs::read_to_string(&source.path).unwrap().lines() {
            // a line of code may end in a longer text
            let is_prose = line.trim_start().starts_with("//") && !line.contains('{');
            assert!(
                !is_prose || line.chars().count() <= 100,
                "{}: {line}",
                source.path.display()
            );
        }
    }
}

/// Returns the names of the types that a file defines outside of functions and other items.
fn types(code: &str) -> impl Iterator<Item = &str> {
    code.lines().filter_map(|line| {
        let item = match line.strip_prefix("pub(") {
            Some(rest) => rest.split_once(") ")?.1,
            None => line.strip_prefix("pub ").unwrap_or(line),
        };
        let kinds = ["struct ", "enum ", "trait ", "union ", "type "];
        let name = kinds.iter().find_map(|kind| item.strip_prefix(kind))?;
        name.split(|c: char| !c.is_alphanumeric() && c != '_')
            .next()
    })
}

#[test]
fn no_two_types_have_the_same_name() {
    let mut defined = BTreeMap::new();
    let mut count = 0;
    for source in sources() {
        for name in types(&source.code) {
            count += 1;
            if let Some(other) = defined.insert(name.to_string(), source.path.clone()) {
                panic!(
                    "{name} is the name of a type in {} and in {}",
                    other.display(),
                    source.path.display()
                );
            }
        }
    }
    assert!(count > 400, "{count} types were found");
}

#[test]
fn items_of_tests_are_left_out() {
    let text = "use a;\n#[cfg(test)]\nmod tests;\n// note\nfn f() {}\n#[cfg(test)]\nfn g() {\n    x();\n}\nfn h() {}\n";
    let (code, modules) = without_tests(text);
    assert_eq!(code, "use a;\nfn f() {}\nfn h() {}\n");
    assert_eq!(modules, ["tests"]);
    let source = Source {
        path: PathBuf::new(),
        module: vec!["a".into(), "b".into()],
        code: "use super::{c, d::{self, E}};".into(),
    };
    let paths: Vec<String> = named(&source).iter().map(|path| path.join("::")).collect();
    assert_eq!(paths, ["a::c", "a::d", "a::d::E"]);
}
