//! The log: lines to standard error or to a file.

use super::Failure;
use env_logger::{Builder, Target};
use log::LevelFilter;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Starts logging at `level`, to `file` or else to standard error.
pub fn start(level: LevelFilter, file: Option<&Path>) -> Result<(), Failure> {
    let mut builder = Builder::new();
    // what the libraries for servers say of requests may hold what gives access
    builder.filter_level(level.min(LevelFilter::Warn)).filter_module("zarrfs", level);
    // fuser warns of every operation that a file system leaves out
    builder.filter_module("fuser", level.min(LevelFilter::Error));
    match file {
        Some(path) => {
            let opened = OpenOptions::new().create(true).append(true).open(path);
            let opened = opened.map_err(|e| Failure::new(1, format!("log file {}: {e}", path.display())))?;
            builder.target(Target::Pipe(Box::new(opened)));
            builder.format(|out, r| writeln!(out, "{} {:<5} {}", out.timestamp_seconds(), r.level(), r.args()));
        }
        None => {
            builder.format(|out, r| writeln!(out, "zarrfs: {}: {}", r.level().as_str().to_lowercase(), r.args()));
        }
    }
    builder.try_init().map_err(|e| Failure::new(1, format!("log: {e}")))
}
