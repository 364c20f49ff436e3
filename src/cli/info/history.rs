//! The branches, tags and latest snapshots of an Icechunk repository, in JSON and in lines.

use crate::cli::time::utc;
use zarrfs_base::error::one_line;
use zarrfs_base::json::{Value, json};
use zarrfs_store::{ObjectId, SnapshotHistory};

/// Returns the branches and tags of a repository and its latest snapshots, the first of which is
/// the one that is read, as an object for programs.
pub fn as_json(history: &SnapshotHistory) -> Value {
    let names = |named: &[(String, ObjectId)]| {
        let named = named.iter();
        Value::Object(
            named
                .map(|(name, id)| (name.clone(), id.to_string().into()))
                .collect(),
        )
    };
    let snapshots = history.log.iter().map(|commit| {
        json!({"id": commit.id.to_string(), "time": utc(commit.time), "message": commit.message})
    });
    json!({
        "branches": names(&history.branches),
        "tags": names(&history.tags),
        "snapshots": snapshots.collect::<Vec<_>>(),
    })
}

/// Returns the branches, tags and snapshots as lines.
pub fn as_lines(history: &SnapshotHistory) -> String {
    let mut lines = Vec::new();
    for (kind, names) in [("branch", &history.branches), ("tag", &history.tags)] {
        lines.extend(
            names
                .iter()
                .map(|(name, id)| format!("{kind} {name}: {id}")),
        );
    }
    for commit in &history.log {
        let message = commit.message.lines().next().unwrap_or_default();
        lines.push(format!("{}  {}  {message}", commit.id, utc(commit.time)));
    }
    lines
        .into_iter()
        .map(|line| one_line(line) + "\n")
        .collect()
}
