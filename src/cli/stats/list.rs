//! `zarrfs stats` without a mountpoint: all mounts of zarrfs in the mount table, and what the
//! daemon of each says of itself. This module asks through [`read_statistics`] alone, so that no
//! mount can stop it.

use crate::cli::{CommandFailure, CommandResult, list_of, size, stdio};
use crate::fuse::{MountEntry, abort_file, daemons, mounts, read_statistics};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use zarrfs_base::error::{Error, Result, for_terminal, one_line};
use zarrfs_base::json::{self, Map, Value, json};
use zarrfs_base::memory::lock;
use zarrfs_base::pool::on_threads;

/// Maximum number of mounts that are asked at a time. Each takes a process.
const TOGETHER: usize = 64;

/// The columns of the list.
const HEADINGS: [&str; 8] = [
    "MOUNTPOINT",
    "STORE",
    "PID",
    "UID",
    "STATE",
    "DIRTY",
    "OPTIONS",
    "LAST ERROR",
];

/// Maximum width in characters of a column. A longer cell moves those after it.
const MAX_COLUMN: usize = 40;

/// Options that the mount table and the command line both name, as there and here.
const IN_BOTH: [(&str, &str); 3] = [
    ("allow_other", "allow-other"),
    ("noexec", "noexec"),
    ("sync", "sync"),
];

/// What is known of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MountState {
    /// Its daemon answers.
    Answers,
    /// Its daemon answers, and its store does not.
    Failing,
    /// Its daemon does not answer.
    Hangs,
    /// Its daemon has ended.
    Ended,
    /// No path leads to it, since another mount lies over it.
    Covered,
    /// It is of another user.
    Denied,
    /// Its answer can't be read.
    Failed,
}

impl MountState {
    fn name(self) -> &'static str {
        [
            "ok", "failing", "hangs", "ended", "covered", "denied", "failed",
        ][self as usize]
    }

    /// Returns whether an operator has to do something about the mount itself. A store that fails
    /// may be back without it.
    fn is_fault(self) -> bool {
        matches!(
            self,
            MountState::Hangs | MountState::Ended | MountState::Failed
        )
    }
}

/// The answer of the daemon of a file system.
#[derive(Clone)]
struct DaemonAnswer {
    state: MountState,
    /// Its counters, if it has answered.
    values: Map<String, Value>,
    /// Why they are missing.
    error: Option<Error>,
}

impl DaemonAnswer {
    /// Asks the daemon of a mount.
    fn of(mount: &MountEntry) -> Self {
        let text = read_statistics(mount);
        match text.and_then(|text| Ok(json::parse_object(&text)?.into_parts().0)) {
            Ok(values) => DaemonAnswer {
                state: match values.get("store_failing") {
                    Some(Value::Bool(true)) => MountState::Failing,
                    _ => MountState::Answers,
                },
                values,
                error: None,
            },
            Err(e) => DaemonAnswer {
                state: match e.errno() {
                    libc::ETIMEDOUT => MountState::Hangs,
                    libc::ENOTCONN | libc::ECONNABORTED => MountState::Ended,
                    libc::EACCES | libc::EPERM => MountState::Denied,
                    _ => MountState::Failed,
                },
                values: Map::new(),
                error: Some(e),
            },
        }
    }

    /// Returns the answer of a file system that no path leads to.
    fn covered() -> Self {
        DaemonAnswer {
            state: MountState::Covered,
            values: Map::new(),
            error: None,
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).and_then(Value::as_str)
    }
}

/// A mount in the list.
struct ListedMount {
    entry: MountEntry,
    answer: DaemonAnswer,
    pid: Option<u64>,
}

/// Runs the verb.
pub fn run(as_json: bool) -> CommandResult {
    let listed = listed()?;
    stdio::print(if as_json {
        list_of(listed.iter().map(ListedMount::object))
    } else {
        table(&listed)
    })?;
    if listed.iter().any(|mount| mount.answer.state.is_fault()) {
        // the list says which, and why
        return Err(CommandFailure::failed(""));
    }
    Ok(())
}

/// Returns all mounts of zarrfs, in the order of the mount table.
fn listed() -> Result<Vec<ListedMount>> {
    let before = mounts()?;
    let answers = answers(&before)?;
    // one that has ended meanwhile is left out; its path may have led to another one
    let now = mounts()?;
    let known = |entry: &MountEntry| before.iter().any(|m| same(m, entry));
    let mut listed: Vec<_> = now
        .iter()
        .filter(|entry| entry.is_zarrfs() && known(entry))
        .map(|entry| ListedMount::new(entry, &now, &answers))
        .collect();
    if listed.iter().any(|mount| mount.pid.is_none()) {
        let daemons = daemons();
        for mount in listed.iter_mut().filter(|mount| mount.pid.is_none()) {
            let abort = abort_file(&mount.entry.device);
            let found = daemons.iter().find(|(file, _)| file == Path::new(&abort));
            mount.pid = found.map(|(_, pid)| u64::from(*pid));
        }
    }
    Ok(listed)
}

fn same(one: &MountEntry, other: &MountEntry) -> bool {
    one.id == other.id && one.device == other.device
}

/// Asks the daemons of all file systems of zarrfs, each through the first mount that a path leads
/// to. Returns their answers and these mounts by the device.
fn answers(table: &[MountEntry]) -> Result<HashMap<String, (MountEntry, DaemonAnswer)>> {
    let mut asked: Vec<&MountEntry> = Vec::new();
    for mount in table.iter().filter(|mount| mount.is_zarrfs()) {
        let is_whole = mount.root == Path::new("/") && !mount.is_covered(table);
        if is_whole && asked.iter().all(|other| other.device != mount.device) {
            asked.push(mount);
        }
    }
    let threads = asked.len().clamp(1, TOGETHER);
    let left = Mutex::new(asked);
    let answers = Mutex::new(HashMap::new());
    on_threads(threads, &|| {
        loop {
            let Some(mount) = lock(&left).pop() else {
                return Ok(());
            };
            let answer = DaemonAnswer::of(mount);
            lock(&answers).insert(mount.device.clone(), (mount.clone(), answer));
        }
    })?;
    Ok(answers.into_inner().unwrap_or_default())
}

impl ListedMount {
    /// Returns a mount of the mount table `now` with the answer of its file system.
    fn new(
        entry: &MountEntry,
        now: &[MountEntry],
        answers: &HashMap<String, (MountEntry, DaemonAnswer)>,
    ) -> Self {
        // the path of a mount that was covered meanwhile has led to another one
        let known = answers.get(&entry.device).filter(|(asked, _)| {
            now.iter().any(|mount| same(mount, asked)) && !asked.is_covered(now)
        });
        let mut answer = known.map_or_else(DaemonAnswer::covered, |(_, answer)| answer.clone());
        if entry.is_covered(now) {
            answer.state = MountState::Covered;
        }
        ListedMount {
            entry: entry.clone(),
            pid: answer.values.get("pid").and_then(Value::as_u64),
            answer,
        }
    }

    /// Returns why the daemon gives no counters and what to do, or the latest error that it has
    /// met.
    fn last_error(&self) -> Option<String> {
        let path = self.entry.path.display();
        let uid = self.entry.owner.map_or(0, |(uid, _)| uid);
        match (self.answer.state, &self.answer.error) {
            (MountState::Answers | MountState::Failing, _) => {
                let time = self.answer.text("last_error_time")?;
                let message = self.answer.text("last_error").unwrap_or_default();
                Some(format!("{time} {message}").trim_end().to_string())
            }
            (MountState::Hangs, _) => Some(format!(
                "its daemon is stopped or hangs, or waits for its store; zarrfs umount --force {path} ends it, and unstored writes are lost"
            )),
            (MountState::Ended, _) => {
                Some(format!("its daemon has ended; run zarrfs umount {path}"))
            }
            (MountState::Covered, _) => {
                Some("no path leads to it; unmount what lies over it".to_string())
            }
            (MountState::Denied, _) => Some(format!(
                "a mount of user {uid}; that user and root may ask it"
            )),
            (MountState::Failed, e) => e.as_ref().map(Error::to_string),
        }
    }

    /// Returns the options of the mount table that zarrfs sets on request, and those of the command
    /// line.
    fn options(&self) -> String {
        let in_table: Vec<&str> = self.entry.options.split(',').collect();
        let access = if in_table.contains(&"ro") { "ro" } else { "rw" };
        let shared = IN_BOTH.iter().map(|(name, _)| *name);
        let given = self.answer.text("options").unwrap_or_default().split(',');
        let is_new = |given: &&str| {
            !given.is_empty()
                && !["read-only", "defaults"].contains(given)
                && IN_BOTH.iter().all(|(_, long)| long != given)
        };
        std::iter::once(access)
            .chain(shared.filter(|name| in_table.contains(name)))
            .chain(given.filter(is_new))
            .collect::<Vec<_>>()
            .join(",")
    }

    fn cells(&self) -> [String; HEADINGS.len()] {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_string());
        let dirty = self.answer.values.get("dirty_bytes");
        let uid = self.entry.owner.map(|(uid, _)| uid.to_string());
        [
            for_terminal(self.entry.path.as_os_str().as_encoded_bytes()),
            for_terminal(&self.entry.source),
            or_dash(self.pid.map(|pid| pid.to_string())),
            or_dash(uid),
            self.answer.state.name().to_string(),
            or_dash(dirty.and_then(Value::as_u64).map(size::show)),
            self.options(),
            or_dash(self.last_error()),
        ]
        // a daemon may be another user's program
        .map(one_line)
    }

    fn object(&self) -> String {
        let entry = &self.entry;
        let mut object = json!({
            "mountpoint": entry.path.to_string_lossy(),
            "store": String::from_utf8_lossy(&entry.source),
            "device": entry.device.as_str(),
            "uid": entry.owner.map(|(uid, _)| uid),
            "pid": self.pid,
            "state": self.answer.state.name(),
            "mount_options": entry.options.as_str(),
        });
        if self.answer.values.is_empty() {
            object["error"] = self.last_error().into();
        } else {
            object["stats"] = Value::Object(self.answer.values.clone());
        }
        json::write(&object)
    }
}

/// Returns a line of headings and a line for each mount.
fn table(listed: &[ListedMount]) -> String {
    let mut lines = vec![HEADINGS.map(str::to_string)];
    lines.extend(listed.iter().map(ListedMount::cells));
    let width = |column: usize| {
        let widths = lines.iter().map(|line| line[column].chars().count());
        widths
            .filter(|width| *width <= MAX_COLUMN)
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEADINGS.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(widths.iter().copied());
        let cells: Vec<_> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, options: &str) -> MountEntry {
        MountEntry {
            id: 7,
            parent: 1,
            device: "0:57".into(),
            root: "/".into(),
            path: path.into(),
            fs_type: "fuse.zarrfs".into(),
            source: b"/srv/a.zarr".to_vec(),
            options: options.into(),
            owner: Some((1000, 100)),
        }
    }

    fn mount(entry: MountEntry, state: MountState, text: &str) -> ListedMount {
        let values = json::parse_object(text.as_bytes()).unwrap().into_parts().0;
        ListedMount {
            entry,
            pid: values.get("pid").and_then(Value::as_u64),
            answer: DaemonAnswer {
                state,
                values,
                error: None,
            },
        }
    }

    #[test]
    fn each_mount_is_one_line() {
        let answers = r#"{"pid": 12, "dirty_bytes": 2048, "options": "read-only,allow-other,cache-size=1G",
            "last_error_time": "2026-01-01T00:00:00Z", "last_error": "/a/0: bad"}"#;
        let options = "ro,nosuid,noatime,ro,user_id=1000,default_permissions,allow_other";
        let listed = [
            mount(entry("/mnt/a", options), MountState::Answers, answers),
            mount(entry("/mnt/b\n\u{1b}[2J c", "rw"), MountState::Hangs, "{}"),
        ];
        let text = table(&listed);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>().join(" "),
            "/mnt/a /srv/a.zarr 12 1000 ok 2.0 KiB ro,allow_other,cache-size=1G 2026-01-01T00:00:00Z /a/0: bad"
        );
        assert!(
            lines[2].starts_with(r"/mnt/b\n\u001b[2J c  /srv/a.zarr  -"),
            "{text}"
        );
        assert!(
            lines[2].contains("  hangs  ") && lines[2].contains("zarrfs umount --force"),
            "{text}"
        );
        assert_eq!(lines[0].find("STORE"), lines[1].find("/srv"));
    }

    #[test]
    fn only_mounts_that_need_an_operator_are_faults() {
        use MountState::*;
        let all = [Answers, Failing, Hangs, Ended, Covered, Denied, Failed];
        let faults = all.into_iter().filter(|state| state.is_fault());
        assert_eq!(faults.collect::<Vec<_>>(), [Hangs, Ended, Failed]);
    }

    #[test]
    fn an_answer_counts_only_for_the_mount_that_was_asked() {
        let asked = entry("/mnt/a", "rw");
        let answer = DaemonAnswer {
            state: MountState::Answers,
            values: Map::from_iter([("pid".to_string(), 12.into())]),
            error: None,
        };
        let answers = HashMap::from([("0:57".to_string(), (asked.clone(), answer))]);
        let state = |now: &[MountEntry], which: &MountEntry| {
            let listed = ListedMount::new(which, now, &answers);
            (listed.answer.state, listed.pid)
        };
        let bound = MountEntry {
            id: 8,
            root: "/lat".into(),
            ..entry("/mnt/lat", "rw")
        };
        let over = MountEntry {
            id: 9,
            device: "0:58".into(),
            parent: 7,
            ..entry("/mnt/a", "rw")
        };
        let now = [asked.clone(), bound.clone()];
        assert_eq!(state(&now, &asked), (MountState::Answers, Some(12)));
        assert_eq!(state(&now, &bound), (MountState::Answers, Some(12)));
        let now = [asked.clone(), bound.clone(), over];
        assert_eq!(state(&now, &asked), (MountState::Covered, None));
        assert_eq!(state(&now, &bound), (MountState::Covered, None));
    }
}
