//! Failures of verbs: an exit code, and a message for people on standard error. With `--json`, the
//! message is also printed on standard output, as an object for programs.

use super::{StoreLocation, logger, stdio};
use crate::array::hierarchy::Hierarchy;
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use zarrfs_base::error::{Error, Kind, lines, one_line};
use zarrfs_base::json::{self, json};

/// The exit codes of failures, as the help lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCode {
    /// An error of the system or of the data, or findings of a check.
    Failed = 1,
    /// A wrong command line.
    WrongUse = 2,
    /// No such store, or no such array in it.
    NotFound = 3,
    /// Not a Zarr store, or one that this version can't read.
    NotZarr = 4,
    /// The mountpoint is missing, not a directory, or in use.
    Mountpoint = 5,
    /// FUSE is not available.
    NoFuse = 6,
    /// A mount without a daemon was left at the mountpoint.
    Stale = 7,
}

/// The outcome of a verb, or of a part of it.
pub type CommandResult<T = ()> = Result<T, CommandFailure>;

/// The exit code of a command that failed, and its message. An empty message was printed already.
pub struct CommandFailure {
    /// An [`ExitCode`], or the code with which the background process of a mount ended.
    pub code: u8,
    pub message: String,
    /// Whether standard error has the message already.
    is_shown: bool,
    /// Whether no object is printed on standard output, because it is broken or has the error
    /// already.
    is_plain: bool,
}

impl CommandFailure {
    pub fn new(code: ExitCode, message: impl Into<String>) -> Self {
        CommandFailure {
            code: code as u8,
            message: message.into(),
            is_shown: false,
            is_plain: false,
        }
    }

    /// Returns the failure of [`ExitCode::Failed`].
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Failed, message)
    }

    /// Returns the failure of [`ExitCode::WrongUse`].
    pub fn wrong_use(message: impl Into<String>) -> Self {
        Self::new(ExitCode::WrongUse, message)
    }

    /// Returns the failure of [`ExitCode::NotFound`].
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ExitCode::NotFound, message)
    }

    /// Returns the failure of [`ExitCode::NotZarr`].
    pub fn not_zarr(message: impl Into<String>) -> Self {
        Self::new(ExitCode::NotZarr, message)
    }

    /// Returns the failure of [`ExitCode::Mountpoint`].
    pub fn mountpoint(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Mountpoint, message)
    }

    /// Returns the failure of a background process that has ended with `code`, and has printed why.
    pub fn of_process(code: i32) -> Self {
        CommandFailure {
            code: u8::try_from(code).unwrap_or(ExitCode::Failed as u8),
            ..Self::failed("")
        }
    }

    /// Returns whether the command ends with `code`.
    pub fn is(&self, code: ExitCode) -> bool {
        self.code == code as u8
    }

    /// Returns the failure of a command line that clap has refused and explained.
    pub fn of_command_line(refusal: &clap::Error) -> Self {
        let text = refusal.to_string();
        let reason = text.split("\n\n").next().unwrap_or_default();
        let message = reason.strip_prefix("error: ").unwrap_or(reason).trim();
        CommandFailure {
            is_shown: true,
            ..CommandFailure::wrong_use(message)
        }
    }

    /// Returns a failure unless a verb printed everything in a store.
    pub fn check_left_out(hierarchy: &Hierarchy, location: &StoreLocation) -> Result<(), Self> {
        match hierarchy.left_out() {
            lines if lines.is_empty() => Ok(()),
            lines => Err(CommandFailure::failed(format!(
                "{location}: {}",
                lines.join("\nerror: ")
            ))
            .plain()),
        }
    }

    /// Returns this failure without its JSON object on standard output.
    pub fn plain(self) -> Self {
        CommandFailure {
            is_plain: true,
            ..self
        }
    }

    /// Prints the message, and with `as_json` an object with it.
    pub fn print(&self, as_json: bool) {
        if self.message.is_empty() {
            return;
        }
        // if a stream can't be written, the exit code still reports the failure
        if !self.is_shown {
            logger::print_error(&lines(&self.message));
        }
        if as_json && !self.is_plain {
            let _ = stdio::print(self.object() + "\n");
        }
    }

    fn object(&self) -> String {
        one_line(json::write(
            &json!({"error": self.message.as_str(), "exit_code": self.code}),
        ))
    }
}

impl From<Error> for CommandFailure {
    fn from(e: Error) -> Self {
        let code = match e.kind() {
            Kind::NoStore => ExitCode::NotFound,
            _ => ExitCode::Failed,
        };
        CommandFailure::new(code, e.to_string())
    }
}

impl From<io::Error> for CommandFailure {
    fn from(e: io::Error) -> Self {
        Error::from(e).into()
    }
}

impl From<Errno> for CommandFailure {
    fn from(e: Errno) -> Self {
        Error::from(e).into()
    }
}

/// Returns whether a command line asks for JSON. The command line may be one that clap refuses.
pub fn wants_json(words: &[OsString]) -> bool {
    words
        .iter()
        .skip(1)
        .take_while(|word| *word != "--")
        .any(|word| word == "--json")
}

#[cfg(test)]
mod tests {
    use super::super::EXIT_CODES;
    use super::*;

    #[test]
    fn a_failure_is_one_object() {
        let failure = CommandFailure::not_found("a\n\"b\": no such store");
        assert_eq!(
            failure.object(),
            r#"{"error":"a\n\"b\": no such store","exit_code":3}"#
        );
    }

    #[test]
    fn the_help_lists_the_exit_codes() {
        let listed = EXIT_CODES.lines().skip(2);
        let codes = [
            ExitCode::Failed,
            ExitCode::WrongUse,
            ExitCode::NotFound,
            ExitCode::NotZarr,
            ExitCode::Mountpoint,
            ExitCode::NoFuse,
            ExitCode::Stale,
        ];
        assert_eq!(listed.clone().count(), codes.len());
        for (line, code) in listed.zip(codes) {
            assert!(
                line.starts_with(&format!("  {}  ", code as u8)),
                "{line}: {code:?}"
            );
        }
    }

    #[test]
    fn json_is_wanted_before_two_dashes() {
        let wants =
            |line: &str| wants_json(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(wants("zarrfs info --json x") && wants("zarrfs info x --json --nonsense"));
        assert!(
            !wants("zarrfs info x") && !wants("zarrfs info -- --json") && !wants("--json info x")
        );
    }
}
