//! Mounts with a `--timeout` so short that a test can wait for its end. A slow machine may exceed
//! it, so what has to succeed is repeated until the server has answered in time.

use crate::support::{Mount, ZARRFS, wait_for, with_timeout};
use std::fs::File;
use std::path::Path;

/// Mounts a store.
pub fn mount(store: &str, args: &[&str]) -> Mount {
    let mut command = with_timeout(120, "sh");
    let script = r#"until "$0" mount "$@"; do sleep 0.1; done"#;
    command.args(["-c", script, ZARRFS]).args(args);
    Mount::with_command(command, store.as_ref())
}

/// Opens a file for reading and writing.
pub fn open_for_writing(path: &Path) -> File {
    let mut opened = None;
    wait_for("a file to be opened", || {
        opened = File::options().read(true).write(true).open(path).ok();
        opened.is_some()
    });
    opened.expect("the file is open")
}
