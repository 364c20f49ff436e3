//! Standard input and output, as every verb uses them.
//!
//! Invariant: what can't be written is an error, for every verb and every byte: nobody must take an empty file for a
//! result. Rust's runtime opens /dev/null in place of a descriptor that the process was started without, where
//! everything seems to be written; so the program looks before the runtime does, and tells by [`start`]. No other file of
//! this module names `std::io::stdout` or `stdin`; `tests/layers.rs` checks that.

use super::Failure;
use crate::error::Error;
use std::io::{self, ErrorKind, IsTerminal, StdinLock, StdoutLock, Write};
use std::sync::OnceLock;

/// The standard descriptors that the process was started with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inherited {
    /// Whether standard input was closed.
    pub input_closed: bool,
    /// Whether standard output was closed.
    pub output_closed: bool,
}

static INHERITED: OnceLock<Inherited> = OnceLock::new();

/// Notes what the process was started with.
pub fn start(inherited: Inherited) {
    let _ = INHERITED.set(inherited);
}

fn inherited() -> Inherited {
    INHERITED.get().copied().unwrap_or_default()
}

/// Standard output, whose errors say so.
pub struct Output(StdoutLock<'static>);

/// Returns standard output, locked.
pub fn output() -> Output {
    Output(io::stdout().lock())
}

fn in_output(e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("standard output: {}", Error::from(e)))
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if inherited().output_closed {
            return Err(in_output(io::Error::from_raw_os_error(libc::EBADF)));
        }
        self.0.write(bytes).map_err(in_output)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(in_output)
    }
}

/// Returns standard input, locked.
pub fn input() -> Result<StdinLock<'static>, Failure> {
    match inherited().input_closed {
        true => Err(Error::system(libc::EBADF).context("standard input").into()),
        false => Ok(io::stdin().lock()),
    }
}

/// Returns a verb's success where writing ended as `written` says. A reader that has seen enough (`| head`) is none of
/// its failures.
pub fn ended(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Failure::new(1, e.to_string())),
        _ => Ok(()),
    }
}

/// Prints what a verb has made.
pub fn print(bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut out = output();
    ended(out.write_all(bytes.as_ref()).and_then(|()| out.flush()))
}

/// Prints the help or the version that a command line asks for, in colors where a terminal shows them.
pub fn print_help(help: &clap::Error) -> Result<(), Failure> {
    if !inherited().output_closed && io::stdout().is_terminal() {
        return ended(help.print().map_err(in_output));
    }
    print(help.render().to_string())
}
