//! Open control files: statistics, metrics, or the errors of a sync. The text is generated when the file is opened.

use super::{NewFile, OpenFile, copy_range};
use crate::error::Result;
use crate::fs::tree::ControlFile;
use crate::fs::{Fs, KernelPages};
use crate::util::json::{self, Map, Value};
use crate::util::memory::{self, Grant};
use chrono::{DateTime, SecondsFormat, Utc};
use std::sync::Arc;

/// A control file open for reading.
struct OpenControl {
    inode: u64,
    text: Vec<u8>,
    /// Grant for the memory of the text.
    _memory: Grant,
}

impl Fs {
    /// Opens a control file.
    pub(in crate::fs) fn open_control(&self, inode: u64, file: ControlFile) -> Result<NewFile> {
        let text = self.control_text(file).into_bytes();
        let _memory = memory::take(text.capacity())?;
        Ok(NewFile::new(Arc::new(OpenControl { inode, text, _memory }), KernelPages::None))
    }

    fn control_text(&self, file: ControlFile) -> String {
        if file == ControlFile::Sync {
            return self.sync_all().map_or_else(|e| format!("{e}\n"), |()| String::new());
        }
        if file == ControlFile::Metrics {
            return self.metrics();
        }
        let mut values = self.tree.state();
        values.extend(self.stats.counters().map(|(name, n)| (name, n.into())));
        if let Some(last) = self.stats.last_error() {
            let at = DateTime::<Utc>::from(last.at).to_rfc3339_opts(SecondsFormat::Secs, true);
            values.extend([("last_error", last.message.into()), ("last_error_time", at.into())]);
        }
        values.extend(self.metrics_address.get().map(|address| ("metrics_address", address.as_str().into())));
        let problems = self.stats.problems();
        match file {
            ControlFile::StatsJson => {
                let mut object: Map<String, Value> = values.into_iter().map(|(n, v)| (n.to_string(), v)).collect();
                object.insert("problems".into(), problems.into());
                json::write(&Value::Object(object)) + "\n"
            }
            _ => {
                let plain = |v: &Value| v.as_str().map_or_else(|| json::write(v), str::to_string);
                let mut text: String = values.iter().map(|(n, v)| format!("{n:<20} {}\n", plain(v))).collect();
                text.extend(problems.iter().map(|p| format!("problem              {p}\n")));
                text
            }
        }
    }
}

impl OpenFile for OpenControl {
    fn inode(&self) -> u64 {
        self.inode
    }

    fn is_use(&self) -> bool {
        false
    }

    fn read(&self, _: &Fs, offset: u64, len: usize, _: bool, out: &mut Vec<u8>) -> Result<bool> {
        copy_range(&self.text, offset, len, out);
        Ok(true)
    }
}
