//! The error type of the crate, and the only table from errors to errno. The module knows neither
//! arrays, stores nor FUSE: a module that knows a name adds it with [`Error::context`].

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the process has entered the sandbox.
static SANDBOXED: AtomicBool = AtomicBool::new(false);

/// What an error says that the sandbox causes.
pub const REFUSED: &str = "the sandbox refuses it; mount with --sandbox off, and please report it";

/// Records that the process has entered the sandbox, which then is a possible cause of errors.
pub fn set_sandboxed() {
    SANDBOXED.store(true, Ordering::Relaxed);
}

/// Returns whether the process has entered the sandbox.
pub fn is_sandboxed() -> bool {
    SANDBOXED.load(Ordering::Relaxed)
}

/// The kind of an error, which decides its errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// There is no such key, array or group.
    NotFound,
    /// The store itself is missing, as a bucket that its server does not have.
    NoStore,
    /// A server answers with something that is neither a value nor its absence, such as a page
    /// about a directory.
    NotAValue,
    /// Metadata or chunk bytes break their format.
    Damaged,
    /// The data may be valid, but this build does not support them: an unknown codec or dtype.
    Unsupported,
    /// The store, the mount or the array is read-only.
    ReadOnly,
    /// An argument from a command line or a caller is invalid.
    Invalid,
    /// A document, or a walk through a hierarchy, exceeds its limit.
    TooLarge,
    /// A system call failed with this errno.
    System(i32),
}

/// Errnos by which zarrfs itself refuses a request that a program must not make, or answers it. As
/// the reply of the system, those that are not in [`ANSWERS`] are failures.
const REFUSALS: [i32; 11] = [
    libc::EPERM,
    libc::EBADF,
    libc::EBUSY,
    libc::EINVAL,
    libc::E2BIG,
    libc::EROFS,
    libc::ELOOP,
    libc::EOPNOTSUPP,
    libc::ESTALE,
    libc::EILSEQ,
    libc::ERANGE,
];

/// Errnos that answer a request, also as the reply of the system: they say what is there, or that
/// no file may be as large as asked.
const ANSWERS: [i32; 10] = [
    libc::ENOENT,
    libc::EEXIST,
    libc::ENOTDIR,
    libc::EISDIR,
    libc::ENOTEMPTY,
    libc::ENAMETOOLONG,
    libc::ENODATA,
    libc::ENXIO,
    libc::EXDEV,
    libc::EFBIG,
];

/// Maximum length of a message in bytes. Messages quote stores, and the list of problems keeps
/// them.
const MAX_MESSAGE: usize = 1024;

impl Kind {
    /// Returns whether an error of this kind that zarrfs itself makes is a failure, and neither an
    /// answer nor a refusal.
    fn is_failure(self) -> bool {
        match self {
            Kind::NotFound | Kind::ReadOnly | Kind::Invalid => false,
            Kind::System(errno) => !REFUSALS.contains(&errno) && !ANSWERS.contains(&errno),
            Kind::NoStore
            | Kind::NotAValue
            | Kind::Damaged
            | Kind::Unsupported
            | Kind::TooLarge => true,
        }
    }
}

/// An error: its kind, and a message of one line and bounded length.
///
/// ```
/// use zarrfs_base::error::{Error, Kind};
///
/// let error = Error::damaged("chunk is cut short").context("temperature: chunk 0.1");
/// assert_eq!(error.message(), "temperature: chunk 0.1: chunk is cut short");
/// assert_eq!((error.kind(), error.errno()), (Kind::Damaged, libc::EIO));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    message: String,
    standing: Standing,
}

/// Whether users must be told of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// An answer, or a refusal of what a program asked for.
    Answer,
    /// A failure of a store, a server or the system that is not on record as a problem.
    Unreported,
    /// An error that is on record as a problem.
    OnRecord,
}

impl Standing {
    fn of(is_failure: bool) -> Self {
        if is_failure {
            Standing::Unreported
        } else {
            Standing::Answer
        }
    }
}

/// The result type of the crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Escapes control characters and line breaks in `text` as JSON does, so that JSON stays valid.
/// Without this, names and messages from a store or a server could change what a terminal shows.
///
/// Invariant: every line that is printed, logged or recorded as a problem has passed through this
/// function. [`Error`] passes its messages through it. Output in a form that a format or an array
/// determines does not; [`for_terminal`] escapes it if standard output is a terminal.
pub fn one_line(text: impl Into<String>) -> String {
    let text = text.into();
    if !text.chars().any(is_control) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        push_escaped(&mut out, c);
    }
    out
}

fn push_escaped(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if is_control(c) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        c => out.push(c),
    }
}

/// Escapes what a terminal would obey or cannot show in any bytes, and leaves line breaks and tabs.
pub fn for_terminal(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 16);
    for piece in bytes.utf8_chunks() {
        for c in piece.valid().chars() {
            if matches!(c, '\n' | '\t') {
                out.push(c)
            } else {
                push_escaped(&mut out, c)
            }
        }
        piece
            .invalid()
            .iter()
            .for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
    }
    out
}

/// Escapes each line of a text of several lines as [`one_line`] does.
pub fn lines(text: &str) -> String {
    text.split('\n')
        .map(one_line)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Returns whether a character moves the cursor, changes the terminal, ends the line, or changes
/// the direction of text.
fn is_control(c: char) -> bool {
    let changes_direction = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || changes_direction || matches!(c, '\u{2028}' | '\u{2029}')
}

impl Error {
    /// Creates an error. The message is escaped by [`one_line`] and, if it is long, shortened.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Error {
            kind,
            message: one_line(shortened(message.into())),
            standing: Standing::of(kind.is_failure()),
        }
    }

    /// Creates an error of [`Kind::Damaged`].
    pub fn damaged(message: impl Into<String>) -> Self {
        Self::new(Kind::Damaged, message)
    }

    /// Creates an error of [`Kind::Unsupported`].
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Kind::Unsupported, message)
    }

    /// Creates an error of [`Kind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// Creates an error of [`Kind::NotFound`].
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, message)
    }

    /// Creates an EIO with a message of its own.
    pub fn io(message: impl Into<String>) -> Self {
        Self::new(Kind::System(libc::EIO), message)
    }

    /// Creates an EACCES with a message of its own.
    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(Kind::System(libc::EACCES), message)
    }

    /// Creates an error of [`Kind::System`] with the system's message for `errno`.
    pub fn system(errno: i32) -> Self {
        let text = std::io::Error::from_raw_os_error(errno).to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        Self::new(Kind::System(errno), text)
    }

    /// Creates the error of a system call that failed with `errno`.
    fn of_system(errno: i32) -> Self {
        Error {
            standing: Standing::of(!ANSWERS.contains(&errno)),
            ..Self::system(errno)
        }
    }

    /// Creates the ESTALE of a file that was removed or replaced since it was looked up. The kernel
    /// looks its path up again.
    pub fn stale() -> Self {
        Self::system(libc::ESTALE)
    }

    /// Returns this error with `what: ` before its message.
    pub fn context(self, what: impl fmt::Display) -> Self {
        Error {
            standing: self.standing,
            ..Self::new(self.kind, format!("{what}: {}", self.message))
        }
    }

    /// Returns whether this error is a failure of a store, a server or the system that is not on
    /// record as a problem. An answer, such as ENOENT, and a refusal of what a program asked for
    /// are no failures.
    pub fn is_unreported(&self) -> bool {
        self.standing == Standing::Unreported
    }

    /// Returns whether this error is on record as a problem.
    pub(crate) fn is_on_record(&self) -> bool {
        self.standing == Standing::OnRecord
    }

    /// Returns this error as one that is on record.
    pub(crate) fn reported(self) -> Self {
        Error {
            standing: Standing::OnRecord,
            ..self
        }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the message: one line without a final period.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the errno for a system call. Damage is EIO, as for a bad disk block, which programs
    /// expect. An unsupported codec is EOPNOTSUPP, so that a user can tell it from damage.
    pub fn errno(&self) -> i32 {
        match self.kind {
            Kind::NotFound => libc::ENOENT,
            // a key may exist although its store cannot be found, so this is not ENOENT
            Kind::NoStore | Kind::NotAValue | Kind::Damaged => libc::EIO,
            Kind::Unsupported => libc::EOPNOTSUPP,
            Kind::ReadOnly => libc::EROFS,
            Kind::Invalid => libc::EINVAL,
            Kind::TooLarge => libc::EFBIG,
            Kind::System(errno) => errno,
        }
    }
}

/// Removes the middle of a long message: its beginning says where the error occurred, its end what
/// it was.
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

/// Names what failed in the error of a result.
pub trait ErrorContext<T> {
    /// Returns the result with `what: ` before the message of its error.
    ///
    /// # Errors
    ///
    /// The error of the result.
    fn context(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: Into<Error>> ErrorContext<T> for std::result::Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|e| e.into().context(what))
    }
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
            Some(errno) => Error::of_system(errno),
            None => Error::io(e.to_string()),
        }
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(e: rustix::io::Errno) -> Self {
        Error::of_system(e.raw_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_one_line_and_no_control_characters() {
        let e = Error::damaged("\u{1b}[2J\r\nx\ty\u{9b}\u{7f}").context("\u{202e}txt\u{2028}");
        assert_eq!(
            e.message(),
            r"\u202etxt\u2028: \u001b[2J\r\nx\ty\u009b\u007f"
        );
        assert_eq!(
            one_line("na\u{ef}ve \\n \u{4e16}"),
            "na\u{ef}ve \\n \u{4e16}"
        );
        assert_eq!(lines("a\r\nb\n"), "a\\r\nb\n");
        let raw = b"<a>\t\xc2\x9b2J\x7f\xe2\x80\xaetxt\n\x1b[\xff\xc3\xa9\xc3";
        assert_eq!(
            for_terminal(raw),
            "<a>\t\\u009b2J\\u007f\\u202etxt\n\\u001b[\\xff\u{e9}\\xc3"
        );
    }

    #[test]
    fn failures_are_told_from_answers_and_refusals() {
        let of_system = |errno| Error::from(std::io::Error::from_raw_os_error(errno));
        for errno in [
            libc::EIO,
            libc::EACCES,
            libc::ENOSPC,
            libc::ETIMEDOUT,
            libc::ENOMEM,
        ] {
            assert!(Error::system(errno).is_unreported() && of_system(errno).is_unreported());
        }
        for errno in REFUSALS {
            assert!(!Error::system(errno).is_unreported() && of_system(errno).is_unreported());
        }
        for errno in ANSWERS {
            assert!(!Error::system(errno).is_unreported() && !of_system(errno).is_unreported());
        }
        let denied = of_system(libc::EPERM).context("a");
        assert!(denied.is_unreported() && !denied.reported().context("b").is_unreported());
        for kind in [Kind::NotFound, Kind::ReadOnly, Kind::Invalid] {
            assert!(!Error::new(kind, "x").is_unreported(), "{kind:?}");
        }
        for kind in [
            Kind::NoStore,
            Kind::NotAValue,
            Kind::Damaged,
            Kind::Unsupported,
        ] {
            assert!(Error::new(kind, "x").is_unreported(), "{kind:?}");
        }
    }

    #[test]
    fn long_messages_are_shortened() {
        let e = Error::damaged("é".repeat(1 << 20) + "why").context("x");
        assert!(
            e.message().starts_with("x: é")
                && e.message().contains("é…é")
                && e.message().ends_with("why")
        );
        assert!(e.message().len() < MAX_MESSAGE + 8);
    }

    #[test]
    fn context_precedes_the_message_and_keeps_the_kind() {
        let e = Error::system(libc::ENOSPC).context("a/b: chunk 0.0");
        assert_eq!(e.to_string(), "a/b: chunk 0.0: No space left on device");
        assert_eq!(e.errno(), libc::ENOSPC);
    }
}
