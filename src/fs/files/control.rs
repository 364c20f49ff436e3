//! Open control files: statistics, metrics, or the errors of a sync. The text is generated when the
//! file is opened.
//!
//! Invariant: users other than the owner of the mount read counters, and nothing that quotes the
//! store, since names and values in a problem may come from private documents.

use super::{NewFile, OpenFile, copy_range};
use crate::cache::{FoundBytes, Wait};
use crate::fs::tree::{Audience, ControlFile};
use crate::fs::{Fs, KernelPages};
use chrono::{DateTime, SecondsFormat, Utc};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use zarrfs_base::error::Result;
use zarrfs_base::json::{self, Map, Value, json};
use zarrfs_base::memory::{self, Grant, lock};
use zarrfs_base::stats::Problem;

/// A value that the program adds to the counters.
struct Fact {
    name: &'static str,
    value: String,
    audience: Audience,
}

/// A control file open for reading.
struct OpenControl {
    inode: u64,
    text: Vec<u8>,
    /// Grant for the memory of the text.
    _memory: Grant,
}

/// Values of the program that the control files show, such as its options, in the order in which
/// they were set.
#[derive(Default)]
pub struct Facts {
    /// Protects the list alone.
    known: Mutex<Vec<Fact>>,
}

impl Facts {
    /// Sets a value of the program, such as its options. The control files show it to the audience.
    pub fn set(&self, name: &'static str, value: impl Into<String>, audience: Audience) {
        let value = value.into();
        let mut facts = lock(&self.known);
        match facts.iter_mut().find(|fact| fact.name == name) {
            Some(fact) => fact.value = value,
            None => facts.push(Fact {
                name,
                value,
                audience,
            }),
        }
    }

    /// Returns the values of the program that `audience` may read.
    fn shown_to(&self, audience: Audience) -> Vec<(&'static str, Value)> {
        lock(&self.known)
            .iter()
            .filter(|fact| audience == Audience::Owner || fact.audience == Audience::Everyone)
            .map(|fact| (fact.name, fact.value.as_str().into()))
            .collect()
    }
}

impl Fs {
    /// Returns the values of the program that the control files show.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Opens a control file for a program of the owner or of another user.
    pub(in crate::fs) fn open_control(
        &self,
        inode: u64,
        file: ControlFile,
        audience: Audience,
    ) -> Result<NewFile> {
        let text = self.control_text(file, audience).into_bytes();
        let _memory = memory::take(text.capacity())?;
        Ok(NewFile::new(
            Arc::new(OpenControl {
                inode,
                text,
                _memory,
            }),
            KernelPages::None,
        ))
    }

    fn control_text(&self, file: ControlFile, audience: Audience) -> String {
        if file == ControlFile::Sync {
            return self
                .sync_all()
                .map_or_else(|e| format!("{e}\n"), |()| String::new());
        }
        if file == ControlFile::Metrics {
            return self.metrics();
        }
        for e in self.drafts.refusals() {
            self.stats.problem(format!("not stored: {e}"));
        }
        let mut values = self.tree.state();
        values.push(("store_failing", self.stats.is_failing().into()));
        values.extend(self.facts.shown_to(audience));
        values.extend(self.stats.counters().map(|(name, n)| (name, n.into())));
        let is_owner = audience == Audience::Owner;
        if let Some(last) = self.stats.last_error() {
            values.extend(is_owner.then(|| ("last_error", last.message.into())));
            values.push(("last_error_time", shown(last.at).into()));
        }
        let problems = if is_owner {
            self.stats.counted_problems()
        } else {
            values.push(("problems_shown_to", "the owner of the mount".into()));
            Vec::new()
        };
        match file {
            ControlFile::StatsJson => {
                let mut object: Map<String, Value> = values
                    .into_iter()
                    .map(|(n, v)| (n.to_string(), v))
                    .collect();
                if is_owner {
                    object.insert(
                        "problems".into(),
                        problems.into_iter().map(object_of).collect(),
                    );
                }
                json::write(&Value::Object(object)) + "\n"
            }
            _ => {
                let mut text = String::new();
                for (name, value) in &values {
                    let value = value
                        .as_str()
                        .map_or_else(|| json::write(value), str::to_string);
                    text.push_str(&format!("{name:<20} {value}\n"));
                }
                for problem in &problems {
                    let Problem { at, count, message } = problem;
                    let at = shown(*at);
                    text.push_str(&format!("problem              {at} {count}x {message}\n"));
                }
                text
            }
        }
    }
}

fn object_of(problem: Problem) -> Value {
    json!({"time": shown(problem.at), "count": problem.count, "message": problem.message})
}

fn shown(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).to_rfc3339_opts(SecondsFormat::Secs, true)
}

impl OpenFile for OpenControl {
    fn inode(&self) -> u64 {
        self.inode
    }

    fn is_use(&self) -> bool {
        false
    }

    fn read(
        &self,
        _: &Fs,
        offset: u64,
        len: usize,
        _: Wait,
        out: &mut Vec<u8>,
    ) -> Result<FoundBytes> {
        Ok(copy_range(&self.text, offset, len, out))
    }
}
