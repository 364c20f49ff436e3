//! The one error of the crate, and the one table from error to errno. It knows nothing of arrays, stores or FUSE: the
//! floor that knows a name adds it with [`Error::context`].

use std::fmt;

/// What went wrong, as far as a system call can tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Definitely no such key, array or group.
    NotFound,
    /// Metadata or chunk bytes that break their format.
    Damaged,
    /// A valid thing this build can't handle: an unknown codec or dtype.
    Unsupported,
    /// The store, the mount or the array can't be written.
    ReadOnly,
    /// An argument that makes no sense, from a command line or a caller.
    Invalid,
    /// Beyond the fixed end of a file.
    TooLarge,
    /// What the system itself answered.
    System(i32),
}

/// Bytes of the longest message. What it quotes comes from a store, and messages are kept: problems are on record.
const MAX_MESSAGE: usize = 1024;

/// An error: its kind, and one line for a person, of at most [`MAX_MESSAGE`] bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    message: String,
}

/// The result type of the crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Returns `text` as people may be shown it: in one line, and without characters that change how a terminal shows the rest,
/// which are escaped as in JSON (so that JSON stays JSON). Names, codecs and messages of a store or a server are not ours.
///
/// Invariant: whatever is printed, logged or recorded as a problem went through this, line by line. Each [`Error`] does.
pub fn one_line(text: impl Into<String>) -> String {
    let text = text.into();
    if !text.chars().any(is_control) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_control(c) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// As [`one_line`], of a text that may have several lines.
pub fn lines(text: &str) -> String {
    text.split('\n').map(one_line).collect::<Vec<_>>().join("\n")
}

/// Whether a character moves the cursor, changes the terminal, ends the line, or changes the direction of the text.
fn is_control(c: char) -> bool {
    let changes_direction =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || changes_direction || matches!(c, '\u{2028}' | '\u{2029}')
}

impl Error {
    /// An error of `kind` with a one-line `message`.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Error { kind, message: one_line(shortened(message.into())) }
    }

    /// Metadata or chunk bytes that break their format ([`Kind::Damaged`]).
    pub fn damaged(message: impl Into<String>) -> Self {
        Self::new(Kind::Damaged, message)
    }

    /// Something this build can't handle ([`Kind::Unsupported`]).
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Kind::Unsupported, message)
    }

    /// A bad argument ([`Kind::Invalid`]).
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// No such key, array or group ([`Kind::NotFound`]).
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, message)
    }

    /// A system error number, in the system's words.
    pub fn system(errno: i32) -> Self {
        let text = std::io::Error::from_raw_os_error(errno).to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        Self::new(Kind::System(errno), text)
    }

    /// The same error with `what: ` before its message.
    pub fn context(self, what: impl fmt::Display) -> Self {
        Self::new(self.kind, format!("{what}: {}", self.message))
    }

    /// What went wrong.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The line for a person, without a final full stop.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The errno a system call answers. Damage is EIO, as for a bad disk block: programs know what to do with it. A
    /// codec we lack is EOPNOTSUPP, so that a user can tell it from damage.
    pub fn errno(&self) -> i32 {
        match self.kind {
            Kind::NotFound => libc::ENOENT,
            Kind::Damaged => libc::EIO,
            Kind::Unsupported => libc::EOPNOTSUPP,
            Kind::ReadOnly => libc::EROFS,
            Kind::Invalid => libc::EINVAL,
            Kind::TooLarge => libc::EFBIG,
            Kind::System(errno) => errno,
        }
    }
}

/// A long message without its middle: the beginning says where, the end what.
fn shortened(message: String) -> String {
    if message.len() <= MAX_MESSAGE {
        return message;
    }
    let mut begin = MAX_MESSAGE / 2;
    let mut end = message.len() - MAX_MESSAGE / 2;
    while !message.is_char_boundary(begin) {
        begin -= 1;
    }
    while !message.is_char_boundary(end) {
        end += 1;
    }
    format!("{}…{}", &message[..begin], &message[end..])
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Self {
        match e.raw_os_error() {
            Some(errno) => Error::system(errno),
            None => Error::new(Kind::System(libc::EIO), e.to_string()),
        }
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(e: rustix::io::Errno) -> Self {
        Error::system(e.raw_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_that_no_terminal_obeys() {
        let e = Error::damaged("\u{1b}[2J\r\nx\ty\u{9b}\u{7f}").context("\u{202e}txt\u{2028}");
        assert_eq!(e.message(), r"\u202etxt\u2028: \u001b[2J\r\nx\ty\u009b\u007f");
        assert_eq!(one_line("na\u{ef}ve \\n \u{4e16}"), "na\u{ef}ve \\n \u{4e16}");
        assert_eq!(lines("a\r\nb\n"), "a\\r\nb\n");
    }

    #[test]
    fn no_message_is_long() {
        let e = Error::damaged("é".repeat(1 << 20) + "why").context("x");
        assert!(e.message().starts_with("x: é") && e.message().contains("é…é") && e.message().ends_with("why"));
        assert!(e.message().len() < MAX_MESSAGE + 8);
    }

    #[test]
    fn context_names_the_place_and_keeps_the_kind() {
        let e = Error::system(libc::ENOSPC).context("a/b: chunk 0.0");
        assert_eq!(e.to_string(), "a/b: chunk 0.0: No space left on device");
        assert_eq!(e.errno(), libc::ENOSPC);
    }
}
