//! Standard input and output of every verb.
//!
//! Invariant: a byte that can't be written is an error, so that no caller takes an empty file for a
//! result. Rust's runtime opens /dev/null in place of a descriptor that the process was started
//! without, and writes to it succeed. The program therefore checks the descriptors before the
//! runtime starts, and passes the result to [`start`]. No other file names `std::io::stdout` or
//! `stdin`; `tests/docs/layers.rs` checks that.
//!
//! Invariant: what a terminal gets is escaped, whichever verb prints it. A file or pipe gets the
//! bytes as they are.

use super::{CommandFailure, CommandResult};
use std::io::{self, ErrorKind, IsTerminal, StdinLock, StdoutLock, Write};
use std::sync::OnceLock;
use zarrfs_base::error::{Error, for_terminal};

/// The standard descriptors that the process was started with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inherited {
    /// Whether standard input was closed.
    pub input_closed: bool,
    /// Whether standard output was closed.
    pub output_closed: bool,
}

static INHERITED: OnceLock<Inherited> = OnceLock::new();

/// Records the descriptors that the process was started with.
pub fn start(inherited: Inherited) {
    let _ = INHERITED.set(inherited);
}

fn inherited() -> Inherited {
    INHERITED.get().copied().unwrap_or_default()
}

/// Standard output. Its errors name it.
pub struct Output {
    out: StdoutLock<'static>,
    is_terminal: bool,
}

/// Returns standard output, locked.
pub fn output() -> Output {
    Output {
        out: io::stdout().lock(),
        is_terminal: is_terminal(),
    }
}

fn in_output(e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("standard output: {}", Error::from(e)))
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if inherited().output_closed {
            return Err(in_output(io::Error::from_raw_os_error(libc::EBADF)));
        }
        if self.is_terminal {
            return self
                .out
                .write_all(for_terminal(bytes).as_bytes())
                .map(|()| bytes.len())
                .map_err(in_output);
        }
        self.out.write(bytes).map_err(in_output)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush().map_err(in_output)
    }
}

/// Returns standard input, locked.
pub fn input() -> CommandResult<StdinLock<'static>> {
    if inherited().input_closed {
        Err(Error::system(libc::EBADF).context("standard input").into())
    } else {
        Ok(io::stdin().lock())
    }
}

/// Returns the outcome of a write. A reader that has ended, such as `head`, is no failure.
pub fn unless_ended(written: io::Result<()>) -> io::Result<()> {
    written.or_else(|e| match e.kind() {
        ErrorKind::BrokenPipe => Ok(()),
        _ => Err(e),
    })
}

/// Returns the success of a verb whose output ended with `written`.
pub fn ended(written: io::Result<()>) -> CommandResult {
    unless_ended(written).map_err(|e| CommandFailure::failed(e.to_string()).plain())
}

/// Prints the output of a verb.
pub fn print(bytes: impl AsRef<[u8]>) -> CommandResult {
    let mut out = output();
    ended(out.write_all(bytes.as_ref()).and_then(|()| out.flush()))
}

/// Returns whether standard output is a terminal.
pub fn is_terminal() -> bool {
    !inherited().output_closed && io::stdout().is_terminal()
}

/// Prints the help or the version, in color on a terminal.
pub fn print_help(help: &clap::Error) -> CommandResult {
    if is_terminal() {
        return ended(help.print().map_err(in_output));
    }
    print(help.render().to_string())
}
