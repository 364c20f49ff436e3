//! The documents compared with the repository and the program. Files, functions and links that they
//! name exist, their commands print the output that they show, and no document is too long.

use crate::support::{ZARRFS, announce, copy_tree, is_mounted, test_data, with_timeout, zarrfs};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Documents and the maximum number of lines of each.
const DOCUMENTS: [(&str, usize); 45] = [
    ("README.md", 200),
    ("ARCHITECTURE.md", 120),
    ("CONTRIBUTING.md", 120),
    ("CHANGELOG.md", 250),
    ("SECURITY.md", 60),
    ("docs/getting-started.md", 120),
    ("docs/troubleshooting.md", 120),
    ("docs/tree.md", 250),
    ("docs/writing.md", 250),
    ("docs/stores.md", 250),
    ("docs/overlay.md", 120),
    ("docs/references.md", 120),
    ("docs/icechunk.md", 120),
    ("docs/hdf5.md", 120),
    ("docs/ingest.md", 150),
    ("docs/layout.md", 150),
    ("docs/other-programs.md", 250),
    ("docs/fields.md", 120),
    ("docs/conventions.md", 120),
    ("docs/images-and-text.md", 120),
    ("docs/views.md", 120),
    ("docs/desktop.md", 120),
    ("docs/operations.md", 250),
    ("docs/outlive.md", 120),
    ("docs/python.md", 120),
    ("docs/monitoring.md", 120),
    ("docs/privileges.md", 120),
    ("docs/sandbox.md", 120),
    ("docs/checking.md", 120),
    ("docs/killed-writers.md", 120),
    ("docs/batch.md", 120),
    ("docs/why.md", 120),
    ("docs/performance.md", 250),
    ("docs/limits.md", 250),
    ("docs/faq.md", 250),
    ("docs/architecture/array.md", 150),
    ("docs/architecture/base.md", 150),
    ("docs/architecture/cli.md", 150),
    ("docs/architecture/export.md", 150),
    ("docs/architecture/format.md", 150),
    ("docs/architecture/fs.md", 150),
    ("docs/architecture/remote.md", 150),
    ("docs/architecture/store.md", 150),
    ("scripts/README.md", 80),
    ("tests/README.md", 80),
];

/// The folder of the pages that belong to `ARCHITECTURE.md`.
const ARCHITECTURE_PAGES: &str = "docs/architecture/";

/// The page whose claims name their tests.
const CLAIMS: &str = "docs/why.md";

/// Returns whether a document is about the code: the files and functions that it names must exist.
fn is_about_code(document: &str) -> bool {
    let documents = [
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "scripts/README.md",
        CLAIMS,
    ];
    documents.contains(&document) || document.starts_with(ARCHITECTURE_PAGES)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(document: &str) -> String {
    fs::read_to_string(root().join(document)).unwrap_or_else(|e| panic!("{document}: {e}"))
}

/// Returns the lines of a document outside fenced blocks, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push((number, line));
        }
    }
    lines
}

#[test]
fn every_page_is_in_the_list() {
    for folder in ["docs", ARCHITECTURE_PAGES.trim_end_matches('/')] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let page = format!("{folder}/{name}");
            let is_listed = DOCUMENTS.iter().any(|(document, _)| *document == page);
            assert!(is_listed || !name.ends_with(".md"), "{page}");
        }
    }
}

#[test]
fn documents_keep_their_length() {
    for (document, limit) in DOCUMENTS {
        let lines = text(document).lines().count();
        assert!(
            lines <= limit,
            "{document} has {lines} lines; it may have {limit}"
        );
    }
}

/// Returns the anchor that GitHub derives from a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = kept
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn has_anchor(document: &Path, wanted: &str) -> bool {
    let text = fs::read_to_string(document).unwrap_or_default();
    prose(&text)
        .iter()
        .any(|(_, line)| line.starts_with('#') && anchor(line) == wanted)
}

#[test]
fn links_between_documents_lead_to_files_and_headings() {
    for (document, _) in DOCUMENTS {
        let folder = root().join(document).parent().unwrap().to_path_buf();
        for (number, line) in prose(&text(document)) {
            for rest in line.split("](").skip(1) {
                let target = rest.split(')').next().unwrap();
                if target.starts_with("https://") {
                    continue;
                }
                let (file, section) = target.split_once('#').unwrap_or((target, ""));
                let file = if file.is_empty() {
                    root().join(document)
                } else {
                    folder.join(file)
                };
                assert!(file.exists(), "{document}:{number}: {target}: no such file");
                assert!(
                    section.is_empty() || has_anchor(&file, section),
                    "{document}:{number}: {target}: no such heading"
                );
            }
        }
    }
}

/// `docs/operations.md` alone explains each topic of operators, and other pages link there.
#[test]
fn topics_of_operators_are_on_one_page() {
    let page = text("docs/operations.md");
    let topics: [(&str, &[&str], &[&str]); 5] = [
        (
            "Freshness",
            &["docs/tree.md", "docs/stores.md"],
            &["close-to-open", "counted from the answer"],
        ),
        (
            "Retries",
            &["docs/stores.md"],
            &["Retry-After", "answered 408"],
        ),
        (
            "Memory",
            &[
                "docs/faq.md",
                "docs/limits.md",
                "docs/performance.md",
                "SECURITY.md",
            ],
            &["than an idle"],
        ),
        (
            "Limits",
            &["docs/limits.md"],
            &[
                "32 dimensions",
                "the `zarr.json` of a group, or a `.zmetadata`",
            ],
        ),
        ("Metrics", &["docs/tree.md"], &["scrape_configs"]),
    ];
    for (topic, linked_from, phrases) in topics {
        let heading = format!("## {topic}");
        assert_eq!(
            page.lines().filter(|line| *line == heading).count(),
            1,
            "{topic}"
        );
        let section = page
            .split(&format!("\n{heading}\n"))
            .nth(1)
            .unwrap()
            .split("\n## ")
            .next()
            .unwrap();
        for document in linked_from {
            let link = format!("operations.md#{})", topic.to_lowercase());
            assert!(
                text(document).contains(&link),
                "{document} does not link to {topic}"
            );
        }
        for phrase in phrases {
            assert!(section.contains(phrase), "{topic}: {phrase}");
            let others = DOCUMENTS
                .iter()
                .filter(|(d, _)| *d != "docs/operations.md" && !is_about_code(d));
            let also: Vec<_> = others
                .filter(|(document, _)| text(document).contains(phrase))
                .collect();
            assert!(also.is_empty(), "{phrase}: also in {also:?}");
        }
    }
}

/// Finds the file or folder that a document names: relative to the repository, to `src` or to
/// `tests`. The name of a crate stands for the sources of the crate.
fn named_path(name: &str) -> Option<PathBuf> {
    let mut folders = ["", "src", "tests"]
        .map(|folder| root().join(folder))
        .to_vec();
    let mut below = name;
    if let Some((krate, rest)) = name.split_once('/')
        && root().join("crates").join(krate).exists()
    {
        folders = vec![root().join("crates").join(krate).join("src")];
        below = rest;
    }
    let names = [
        below.trim_end_matches('/').to_string(),
        format!("{below}.rs"),
    ];
    folders
        .iter()
        .flat_map(|folder| names.iter().map(|name| folder.join(name)))
        .find(|path| path.exists())
}

/// Returns whether a word in backticks names a file of the repository, perhaps with a function in
/// it.
fn is_file_name(word: &str) -> bool {
    let path = word.split(':').next().unwrap();
    let legal = path
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
    let placeholder = path.contains("NAME")
        || path.starts_with("x")
        || path.starts_with(['/', '.', '-']) && !path.starts_with(".ci");
    let looks_like_one = path.contains('/')
        && path.starts_with(|c: char| c.is_ascii_lowercase() || c == '.')
        || path.ends_with(".rs");
    legal && !placeholder && looks_like_one && !path.starts_with("target/")
}

#[test]
fn named_files_and_functions_exist() {
    let mut missing = BTreeSet::new();
    let documents = DOCUMENTS.map(|(document, _)| document);
    for document in documents.into_iter().filter(|d| is_about_code(d)) {
        for (number, line) in prose(&text(document)) {
            for word in line
                .split('`')
                .skip(1)
                .step_by(2)
                .filter(|word| is_file_name(word))
            {
                let (path, function) = word.split_once(':').unwrap_or((word, ""));
                let function = function.rsplit("::").next().unwrap();
                let Some(found) = named_path(path) else {
                    missing.insert(format!("{document}:{number}: {path}: no such file"));
                    continue;
                };
                if !function.is_empty() {
                    let code = fs::read_to_string(&found).unwrap();
                    let is_there = ["fn", "struct", "enum", "trait", "macro_rules!"]
                        .iter()
                        .any(|kind| {
                            ["(", "<", " ", ";", ":"]
                                .iter()
                                .any(|end| code.contains(&format!("{kind} {function}{end}")))
                        });
                    if !is_there {
                        missing.insert(format!("{document}:{number}: {word}: no such function"));
                    }
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Each row of the first table of the page names tests in its last column.
#[test]
fn claims_about_other_programs_have_tests() {
    let page = text(CLAIMS);
    let table = page.split("\n## ").next().unwrap();
    let rows: Vec<&str> = table
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(1)
        .collect();
    assert!(rows.len() >= 9, "{rows:?}");
    for row in rows {
        let last = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let tests: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "no test: {row}");
        for test in tests {
            let (path, function) = test.split_once(':').unwrap_or_else(|| panic!("{test}"));
            let code = fs::read_to_string(named_path(path).unwrap()).unwrap();
            let is_test = code.contains(&format!("#[test]\nfn {function}() {{"));
            assert!(is_test, "{test} is no test");
        }
    }
}

/// A command that a document shows, and the output it shows below.
struct Step {
    line: usize,
    command: String,
    expected: Vec<String>,
}

/// Returns the commands in the `console` blocks of a document. Leaves out a block that needs a
/// missing program, such as "```console needs=gdalinfo,cdo".
fn steps(document: &str, has: impl Fn(&str) -> bool) -> Vec<Step> {
    let text = text(document);
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let Some(info) = line.strip_prefix("```console") else {
            continue;
        };
        let needs = info.trim().strip_prefix("needs=").unwrap_or("");
        let missing: Vec<&str> = needs
            .split(',')
            .filter(|need| !need.is_empty() && !has(need))
            .collect();
        if !missing.is_empty() {
            announce(&format!(
                "skipped: {document}:{number} needs {}",
                missing.join(", ")
            ));
        }
        let block = lines.by_ref().take_while(|(_, line)| *line != "```");
        if !missing.is_empty() {
            block.for_each(drop);
            continue;
        }
        for (line, shown) in block {
            if let Some(command) = shown.strip_prefix("$ ") {
                steps.push(Step {
                    line,
                    command: command.to_string(),
                    expected: Vec::new(),
                });
            } else {
                let step = steps
                    .last_mut()
                    .unwrap_or_else(|| panic!("{document}:{line}: output without a command"));
                match shown.strip_prefix("> ") {
                    Some(more) if step.expected.is_empty() => {
                        step.command = format!("{}\n{more}", step.command)
                    }
                    _ => step.expected.push(shown.to_string()),
                }
            }
        }
    }
    steps
}

/// Returns whether printed lines are those that a document shows. A shown line `...` stands for any
/// lines.
fn is_as_shown(printed: &[&str], shown: &[&str]) -> bool {
    match (printed, shown) {
        (_, ["..."]) => true,
        (_, ["...", rest @ ..]) => (0..=printed.len()).any(|n| is_as_shown(&printed[n..], rest)),
        ([first, printed @ ..], [wanted, shown @ ..]) => {
            first == wanted && is_as_shown(printed, shown)
        }
        (rest, []) => rest.is_empty(),
        ([], _) => false,
    }
}

/// Returns lines without white space at their ends, and without empty lines at the end.
fn trimmed<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut lines: Vec<&str> = lines.map(str::trim_end).collect();
    while lines.last() == Some(&"") {
        lines.pop();
    }
    lines
}

/// Creates a folder with `work`, where the commands of a document run, and `bin`, which has zarrfs
/// and Python. Returns the folder and the path of `bin`.
fn playground(python: Option<&Path>) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let work = folder.path().join("work");
    let programs = folder.path().join("bin");
    copy_tree(&test_data("sample.zarr"), &work.join("sample.zarr"));
    fs::create_dir(&programs).unwrap();
    std::os::unix::fs::symlink(ZARRFS, programs.join("zarrfs")).unwrap();
    if let Some(python) = python {
        let module = root().join("packaging/python");
        let script = format!(
            "#!/bin/sh\nexport PYTHONPATH='{}' PYTHONDONTWRITEBYTECODE=1\nexec {} \"$@\"\n",
            module.display(),
            python.display()
        );
        fs::write(programs.join("python3"), script).unwrap();
        fs::set_permissions(programs.join("python3"), fs::Permissions::from_mode(0o755)).unwrap();
    }
    (folder, programs)
}

/// Runs the commands of a document in one shell. Returns a message for each output that the
/// document does not show, and for each mount that is left.
fn run(document: &str) -> Vec<String> {
    let python = std::env::var_os("ZARRFS_TEST_PYTHON").map(PathBuf::from);
    let path = std::env::var("PATH").unwrap();
    let has = |program: &str| match program {
        "python3" => python.is_some(),
        _ => std::env::split_paths(&path).any(|folder| folder.join(program).is_file()),
    };
    let steps = steps(document, has);
    let (folder, programs) = playground(python.as_deref());
    let work = folder.path().join("work");
    let mut script = String::from("exec 2>&1\n");
    for step in &steps {
        script.push_str(&format!("{}\nprintf '\\036'\n", step.command));
    }
    script.push_str("jobs -p | xargs -r kill\n");
    fs::write(folder.path().join("script"), script).unwrap();
    let output = with_timeout(600, "bash")
        .arg("../script")
        .current_dir(&work)
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("LC_ALL", "C.UTF-8")
        .env("COLUMNS", "80")
        .env("HOME", folder.path())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut outputs = printed.split('\x1e');
    let mut wrong = Vec::new();
    for step in &steps {
        let printed = trimmed(outputs.next().unwrap_or_default().lines());
        let shown = trimmed(step.expected.iter().map(String::as_str));
        if !is_as_shown(&printed, &shown) {
            let place = format!("{document}:{}", step.line);
            wrong.push(format!(
                "{place}: $ {}\n{}\n  but the document shows\n{}",
                step.command,
                printed.join("\n"),
                shown.join("\n")
            ));
        }
    }
    let mountpoints = fs::read_dir(&work)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    for mountpoint in mountpoints.filter(|path| is_mounted(path)) {
        wrong.push(format!(
            "{document}: {} is still mounted",
            mountpoint.display()
        ));
        zarrfs(&["umount", "--lazy", mountpoint.to_str().unwrap()]);
    }
    wrong
}

#[test]
fn commands_print_the_output_that_documents_show() {
    // `zarrfs stats` asks all mounts: it would be counted in those of other documents, and keep
    // them busy
    const ASKS_ALL: &str = "docs/monitoring.md";
    let documents = DOCUMENTS.map(|(document, _)| document);
    let mut wrong: Vec<String> = std::thread::scope(|scope| {
        let others = documents
            .into_iter()
            .filter(|document| *document != ASKS_ALL);
        let runs: Vec<_> = others
            .map(|document| scope.spawn(move || run(document)))
            .collect();
        runs.into_iter()
            .flat_map(|run| run.join().unwrap())
            .collect()
    });
    wrong.extend(run(ASKS_ALL));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n\n"));
}
