//! The `credential_process` of an AWS profile: a program that prints keys as JSON. Its output is a
//! secret and never appears in messages.

use super::renewed_keys::{KeyOrigin, NewKeys};
use chrono::DateTime;
use object_store::aws::AwsCredential;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid,
};
use serde_json::Value;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::timeout;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;

/// Maximum size of the program's output in bytes. Session tokens have up to a few thousand.
const MAX_OUTPUT: u64 = 64 << 10;

/// Maximum number of characters of the program's messages that an error shows.
const MAX_SHOWN: usize = 300;

/// Time after the program's end in which the processes that it started may still write to its
/// output, or close it.
const GRACE: Duration = Duration::from_secs(1);

/// Runs `command` with the shell in `directory`, as the SDKs of AWS do, and returns the keys that
/// it prints. Kills the program and all processes that it started if it takes longer than `limit`,
/// or if they keep its output open after its end.
///
/// # Errors
///
/// EACCES with the end of the program's messages on standard error.
pub(super) async fn run(command: &str, directory: &Path, limit: Duration) -> Result<NewKeys> {
    let output = timeout(limit, output_of(command, directory, GRACE.min(limit / 4))).await;
    let (status, output, said) = output.map_err(|_| {
        Error::denied(format!(
            "it has not ended after {:.1} s (--timeout), and was killed",
            limit.as_secs_f32()
        ))
    })??;
    if status.success() {
        parse(&output, SystemTime::now())
    } else {
        Err(Error::denied(format!("{status}: {}", shown(&said))))
    }
}

async fn output_of(
    command: &str,
    directory: &Path,
    grace: Duration,
) -> Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
    // the shell changes to the directory: a missing one does no harm, and a server that does not
    // answer blocks only the shell
    let mut child = Command::new("/bin/sh")
        .args([
            "-c",
            "cd -- \"$1\" 2>/dev/null; exec /bin/sh -c \"$2\"",
            "sh",
        ])
        .arg(directory)
        .arg(command)
        // a program that asks for a password ends, or is killed at the limit
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let leader = child
        .id()
        .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let mut group = ProcessGroup(leader);
    let mut readers = JoinSet::new();
    let output = read(child.stdout.take(), &mut readers);
    let said = read(child.stderr.take(), &mut readers);
    let mut ended: Option<Instant> = None;
    loop {
        match timeout(grace / 10, readers.join_next()).await {
            Ok(Some(_)) => {}
            Ok(None) => break,
            // a process in the background may keep the pipes open for as long as it runs
            Err(_) => {
                let Some(end) = leader.and_then(end_of) else {
                    continue;
                };
                let is_over = ended.get_or_insert_with(Instant::now).elapsed() >= grace;
                if is_over
                    && (end.exit_status() != Some(0)
                        || parse(&lock(&output), SystemTime::now()).is_ok())
                {
                    group.kill();
                    break;
                }
            }
        }
    }
    let status = child.wait().await?;
    // from now on, another process may have its number
    group.0 = None;
    let output = std::mem::take(&mut *lock(&output));
    let said = std::mem::take(&mut *lock(&said));
    Ok((status, output, said))
}

/// Starts to read a pipe to its end, or up to the limit. Both pipes are read concurrently, since a
/// program that cannot write does not end. Returns the buffer that receives the bytes.
fn read(
    pipe: Option<impl AsyncRead + Send + Unpin + 'static>,
    readers: &mut JoinSet<()>,
) -> Arc<Mutex<Vec<u8>>> {
    let bytes = Arc::<Mutex<Vec<u8>>>::default();
    let received = bytes.clone();
    let Some(pipe) = pipe else { return bytes };
    readers.spawn(async move {
        let mut pipe = pipe.take(MAX_OUTPUT);
        let mut piece = [0; 4096];
        // the bytes before an error are parsed or shown
        while let Ok(len @ 1..) = pipe.read(&mut piece).await {
            lock(&received).extend_from_slice(&piece[..len]);
        }
    });
    bytes
}

/// Returns the state of a process if it has ended. Does not reap it, so no other process can get
/// its number.
fn end_of(process: Pid) -> Option<WaitIdStatus> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(process), options).ok().flatten()
}

/// The processes of the command, which are killed when this is dropped.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn kill(&self) {
        if let Some(group) = self.0 {
            // an error means that they have ended
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Parses the output: an object with `Version` 1, `AccessKeyId`, `SecretAccessKey`, and perhaps
/// `SessionToken` and `Expiration`.
pub(super) fn parse(output: &[u8], now: SystemTime) -> Result<NewKeys> {
    // the error of the parser could quote a secret
    let parsed: Value = serde_json::from_slice(output).map_err(|_| wrong("is not JSON"))?;
    if parsed.get("Version").and_then(Value::as_u64) != Some(1) {
        return Err(wrong("does not have \"Version\": 1"));
    }
    let expires = text_in(&parsed, "Expiration").map(DateTime::parse_from_rfc3339);
    let expires = expires
        .transpose()
        .map_err(|_| wrong("has an Expiration that is not a time"))?
        .map(SystemTime::from);
    if expires.is_some_and(|expires| expires <= now) {
        return Err(wrong("has keys that have expired already"));
    }
    let credential = AwsCredential {
        key_id: needed_in(&parsed, "AccessKeyId")?,
        secret_key: needed_in(&parsed, "SecretAccessKey")?,
        token: text_in(&parsed, "SessionToken").map(str::to_string),
    };
    Ok(NewKeys {
        credential: Arc::new(credential),
        expires,
        origin: KeyOrigin::Program,
    })
}

fn text_in<'a>(parsed: &'a Value, name: &str) -> Option<&'a str> {
    let text = parsed.get(name)?.as_str()?;
    Some(text).filter(|text| !text.is_empty())
}

fn needed_in(parsed: &Value, name: &str) -> Result<String> {
    text_in(parsed, name)
        .map(str::to_string)
        .ok_or_else(|| wrong(&format!("has no {name}")))
}

fn wrong(what: &str) -> Error {
    Error::denied(format!("its output {what}"))
}

/// Returns the end of the program's messages, on one line.
fn shown(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let line = lines.join("; ");
    let cut = line
        .char_indices()
        .rev()
        .take(MAX_SHOWN)
        .last()
        .map_or(0, |(at, _)| at);
    if line.is_empty() {
        "it says nothing".to_string()
    } else {
        line[cut..].to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime;

    fn run_for(command: &str, limit: Duration) -> Result<NewKeys> {
        runtime::block_on(run(command, Path::new("/"), limit))
    }

    /// Maximum time of work on a busy machine. Only what hangs takes longer.
    const PATIENCE: Duration = Duration::from_secs(60);

    const KEYS: &str = r#"{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "secret""#;

    #[test]
    fn keys_and_their_end_are_parsed() {
        let keys = run_for(&format!("echo '{KEYS}}}'"), PATIENCE).ok().unwrap();
        let expected = AwsCredential {
            key_id: "A".into(),
            secret_key: "secret".into(),
            token: None,
        };
        assert!(
            keys == NewKeys {
                credential: Arc::new(expected),
                expires: None,
                origin: KeyOrigin::Program,
            }
        );
        let text =
            format!(r#"{KEYS}, "SessionToken": "T", "Expiration": "2024-02-29T23:59:59Z"}}"#);
        let keys = parse(text.as_bytes(), SystemTime::UNIX_EPOCH).ok().unwrap();
        let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_251_199);
        assert_eq!(
            (keys.credential.token.as_deref(), keys.expires),
            (Some("T"), Some(expires))
        );
        assert!(
            parse(text.as_bytes(), expires)
                .err()
                .unwrap()
                .message()
                .contains("expired")
        );
    }

    #[test]
    fn wrong_output_is_refused_without_its_content() {
        for output in [
            "secret",
            r#"{"Version": 2, "AccessKeyId": "secret", "SecretAccessKey": "secret"}"#,
            r#"{"Version": 1, "AccessKeyId": "secret"}"#,
            r#"{"Version": 1, "AccessKeyId": {"secret": 1}, "SecretAccessKey": "secret"}"#,
            r#"["secret"]"#,
            r#"{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "B", "Expiration": "secret"}"#,
        ] {
            let error = parse(output.as_bytes(), SystemTime::UNIX_EPOCH)
                .err()
                .unwrap();
            assert!(
                error.errno() == libc::EACCES && !error.message().contains("secret"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_failure_shows_the_messages_of_the_program() {
        let error = run_for("echo secret; echo 'token\nmissing' >&2; exit 3", PATIENCE)
            .err()
            .unwrap();
        assert_eq!(error.message(), "exit status: 3: token; missing");
        let error = run_for(
            "head -c 300000 /dev/zero | tr '\\0' x >&2; exit 1",
            PATIENCE,
        )
        .err()
        .unwrap();
        assert!(error.message().len() < 400, "{error}");
    }

    /// Returns the number of a process if it is in the file.
    fn process_in(file: &Path) -> Option<String> {
        let text = std::fs::read_to_string(file).ok()?;
        text.ends_with('\n').then(|| text.trim().to_string())
    }

    /// Returns the number of a process once it is in the file.
    fn process_of(file: &Path) -> String {
        let begun = Instant::now();
        loop {
            if let Some(process) = process_in(file) {
                return process;
            }
            assert!(begun.elapsed() < PATIENCE, "the program did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Checks that a command which does not end is killed after two seconds with the process whose
    /// number it writes to the file. On a busy machine it may be killed before it has begun; then
    /// it runs again.
    #[track_caller]
    fn assert_killed(command: &str, file: &Path) {
        let _ = std::fs::remove_file(file);
        let begun = Instant::now();
        let process = loop {
            let error = run_for(command, Duration::from_secs(2)).err().unwrap();
            assert!(error.message().contains("not ended after 2.0 s"), "{error}");
            if let Some(process) = process_in(file) {
                break process;
            }
            assert!(begun.elapsed() < PATIENCE, "the program did not start");
        };
        assert_ends(&process);
    }

    #[track_caller]
    fn assert_ends(process: &str) {
        let begun = Instant::now();
        let is_running = || {
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            stat.contains("(sleep) S")
        };
        while is_running() {
            assert!(begun.elapsed() < PATIENCE, "its processes are left");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let command = format!("sleep 100 & echo $! > {}; cat; wait", file.display());
        assert_killed(&command, &file);
    }

    #[test]
    fn a_process_in_the_background_does_not_withhold_keys() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let command = |then: &str| format!("sleep 100 & echo $! > {}; {then}", file.display());
        let keys = run_for(&command(&format!("echo '{KEYS}}}'")), PATIENCE)
            .ok()
            .unwrap();
        assert_eq!(keys.credential.key_id, "A");
        assert_ends(&process_of(&file));
        let error = run_for(&command("echo no >&2; exit 3"), PATIENCE)
            .err()
            .unwrap();
        assert_eq!(error.message(), "exit status: 3: no");
        assert_ends(&process_of(&file));
        // keys may still come, until the limit
        assert_killed(&command("true"), &file);
    }

    /// A process that has left the group is not killed, and no task continues to read from it.
    #[test]
    fn pipes_are_closed_when_the_keys_are_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let closed = directory.path().join("closed");
        let background = "trap \"\" PIPE; while echo x >&2; do sleep 0.05; done; echo > \"$1\"";
        let command = format!(
            "setsid sh -c '{background}' sh {} >/dev/null & echo '{KEYS}}}'",
            closed.display()
        );
        assert!(run_for(&command, PATIENCE).is_ok());
        process_of(&closed);
    }

    #[test]
    fn the_program_runs_in_its_directory_while_that_exists() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a 'b");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("keys"), format!("{KEYS}}}")).unwrap();
        let run_in = |command: &str| runtime::block_on(run(command, &path, PATIENCE));
        assert!(run_in("cat ./keys").is_ok());
        std::fs::remove_dir_all(&path).unwrap();
        assert!(run_in(&format!("echo '{KEYS}}}'")).is_ok());
    }

    #[test]
    fn endless_output_is_cut_off() {
        let error = run_for("yes secret", PATIENCE).err().unwrap();
        assert!(
            !error.message().contains("secret") && !error.message().contains("--timeout"),
            "{error}"
        );
    }
}
