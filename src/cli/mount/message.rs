//! The messages between the process that holds a mount and its daemon. This module must not know
//! who sends one.

/// A message: the first byte of what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Message {
    /// The mount: why it has a new daemon, a zero, and what
    /// [`Mountpoint::to_message`](crate::fuse::Mountpoint::to_message) returns.
    Mounted = 1,
    /// The mount answers.
    Ready,
    /// The mount has ended.
    Ending,
    /// To the daemon: pause all changes, and store everything.
    Pause,
    /// All is stored, and nothing changes.
    Paused,
    /// It can't be: the reason.
    Refused,
    /// To the daemon: end the pause.
    Resume,
    /// The mount can't be served: the reason.
    Failed,
    /// The spill file of chunks that wait for their shards.
    Spill,
}

const MESSAGES: [Message; 9] = [
    Message::Mounted,
    Message::Ready,
    Message::Ending,
    Message::Pause,
    Message::Paused,
    Message::Refused,
    Message::Resume,
    Message::Failed,
    Message::Spill,
];

impl Message {
    /// Returns the message that begins with a byte.
    pub fn of_byte(byte: u8) -> Option<Self> {
        MESSAGES.into_iter().find(|known| *known as u8 == byte)
    }
}
