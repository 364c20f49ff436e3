//! Access to buckets of S3: credentials, their order and renewal, the region, and the message for a
//! missing bucket. Tests compare the bytes read with those they stored themselves. A server in this
//! process checks the key and the region of each signature; moto, an S3 server of another project,
//! checks whole signatures.

use crate::support;
use crate::support::array::TestArray;
use crate::support::faulty_server::{FaultyServer, Gate, Request};
use crate::support::{
    Mount, ZARRFS, digest, env_path, errno, python_script, servers, sha256, with_timeout,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime};

/// A bucket with an array of chunks of 1000 bytes, and a home directory.
struct Bucket {
    folder: tempfile::TempDir,
    home: tempfile::TempDir,
    array: TestArray,
    server: FaultyServer,
    /// Timeout of all commands.
    timeout: &'static str,
}

impl Bucket {
    fn new() -> Bucket {
        let folder = tempfile::tempdir().unwrap();
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("bucket")).unwrap();
        let array = TestArray::with_chunks(
            folder.path().join("bucket/a.zarr"),
            &[4000],
            &[1000],
            json!({}),
        );
        let server = FaultyServer::new(folder.path());
        Bucket {
            folder,
            home,
            array,
            server,
            timeout: "20s",
        }
    }

    /// Writes a file in `.aws` of the home directory and returns its path.
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.path().join(".aws").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// Returns a command with no other credentials than those in the home directory.
    fn command(&self, verb: &str) -> Command {
        self.command_for(verb, self.server.url("").trim_end_matches('/'))
    }

    fn command_for(&self, verb: &str, endpoint: &str) -> Command {
        let mut command = with_timeout(180, ZARRFS);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
            command.env_remove(name);
        }
        command
            .env("HOME", self.home.path())
            .env("AWS_EC2_METADATA_DISABLED", "true");
        command.args([verb, "--endpoint-url", endpoint]);
        command.args(["--timeout", self.timeout]);
        command
    }

    /// Runs `zarrfs cat` on the array with these environment variables and options.
    fn cat(&self, variables: &[(&str, &str)], args: &[&str]) -> Output {
        let mut command = self.command("cat");
        command
            .args(args)
            .envs(variables.iter().copied())
            .arg("s3://bucket/a.zarr")
            .output()
            .unwrap()
    }

    /// Checks that the array can be read with these environment variables.
    #[track_caller]
    fn assert_readable(&self, variables: &[(&str, &str)]) {
        let output = self.cat(variables, &[]);
        assert!(output.stdout == self.array.flat, "{}", said(&output));
    }

    /// Checks that reading fails with a message of one line that contains all of `parts` and no
    /// secret.
    #[track_caller]
    fn assert_refused(&self, variables: &[(&str, &str)], parts: &[&str]) {
        let output = self.cat(variables, &[]);
        let said = said(&output);
        assert_eq!(
            (output.status.code(), said.lines().count()),
            (Some(1), 1),
            "{said}"
        );
        assert!(
            parts.iter().all(|part| said.contains(part)) && !said.contains("secret"),
            "{said}"
        );
    }

    /// Mounts the array in the background, with the home directory as the working directory.
    fn mount_from_home(&self, variables: &[(&str, &str)]) -> Mount {
        let mut command = self.command("mount");
        command
            .current_dir(self.home.path())
            .envs(variables.iter().copied());
        Mount::with_command(command, "s3://bucket/a.zarr".as_ref())
    }

    fn mount(&self, args: &[&str]) -> Mount {
        let mut command = self.command("mount");
        command.args(args);
        Mount::with_command(command, "s3://bucket/a.zarr".as_ref())
    }

    fn chunk(&self, index: usize) -> PathBuf {
        self.array.file(&[index])
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Repeats `read` until it succeeds, since a mount does not read its keys again at each refusal.
#[track_caller]
fn eventually<T>(mut read: impl FnMut() -> std::io::Result<T>) -> T {
    let begun = Instant::now();
    loop {
        match read() {
            Ok(found) => return found,
            Err(e) => assert!(begun.elapsed() < Duration::from_secs(40), "{e}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Returns the section of a credentials file for one profile.
fn profile(name: &str, id: &str) -> String {
    format!("[{name}]\naws_access_key_id = {id}\naws_secret_access_key = secret-of-{id}\n")
}

/// Returns the key's identifier and the region in the signature of a request.
fn scope(request: &Request) -> (String, String) {
    let header = request
        .headers
        .get("authorization")
        .map(String::as_str)
        .unwrap_or_default();
    let (_, scope) = header.split_once("Credential=").unwrap_or_default();
    let mut parts = scope.split('/').map(String::from);
    let id = parts.next().unwrap_or_default();
    (id, parts.nth(1).unwrap_or_default())
}

fn error(code: &str, more: &str) -> String {
    format!("<Error><Code>{code}</Code><Message>No</Message>{more}</Error>")
}

/// Returns a gate that refuses all keys but `id`.
fn only(id: &str, status: u16, code: &'static str) -> Gate {
    let id = id.to_string();
    Box::new(move |request| (scope(request).0 != id).then(|| (status, Vec::new(), error(code, ""))))
}

#[test]
fn a_mount_reads_a_profile_again_when_its_keys_are_refused() {
    let bucket = Bucket::new();
    for (status, code) in [
        (403, "InvalidAccessKeyId"),
        (400, "ExpiredToken"),
        (403, "SignatureDoesNotMatch"),
    ] {
        bucket.write("credentials", &profile("default", "OLD"));
        bucket.server.set_gate(only("OLD", status, code));
        let mount = bucket.mount(&[
            "--log-level",
            "trace",
            "--log-file",
            bucket.home.path().join("log").to_str().unwrap(),
        ]);
        let read = || digest(&mount.join("data.raw"));
        assert_eq!(read().unwrap().1, sha256(&bucket.array.flat));
        bucket.server.set_gate(only("NEW", status, code));
        let refused = errno(read());
        // an answer to HEAD has no error code, and the first request may be a HEAD
        assert!(
            refused == "EACCES" || status == 400 && refused == "EIO",
            "{code}: {refused}: the file has old keys"
        );
        bucket.write("credentials", &profile("default", "NEW"));
        let mut before = 0;
        let found = eventually(|| {
            before = bucket.server.requests().len();
            read()
        });
        assert_eq!(found.1, sha256(&bucket.array.flat), "{code}");
        let requests = bucket.server.requests().split_off(before);
        let old = requests
            .iter()
            .filter(|request| scope(request).0 == "OLD")
            .count();
        assert!(
            (1..=5).contains(&old),
            "{code}: {old} requests with the old keys"
        );
        let log = fs::read_to_string(bucket.home.path().join("log")).unwrap();
        assert!(
            log.contains("authorization: (hidden)") && !log.contains("secret"),
            "{log}"
        );
    }
}

/// moto issues the keys and checks the signatures.
#[test]
fn a_mount_survives_rotated_keys() {
    let (Some(server), Some(python)) = (servers::moto(), env_path("ZARRFS_TEST_SERVERS")) else {
        return;
    };
    let bucket = Bucket::new();
    let rotate = |args: &[&str]| {
        let mut command = with_timeout(60, &python);
        command
            .arg(python_script("keys.py"))
            .arg(server.endpoint())
            .args(args);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let (id, secret) = text
            .trim()
            .split_once(' ')
            .map(|(id, secret)| (id.to_string(), secret.to_string()))
            .unwrap();
        bucket.write(
            "credentials",
            &format!("[default]\naws_access_key_id={id}\naws_secret_access_key={secret}\n"),
        );
        (id, secret)
    };
    let folder = bucket.folder.path().join("bucket");
    let (id, secret) = rotate(&["start", "bucket", folder.to_str().unwrap()]);
    let mut command = bucket.command_for("mount", &server.endpoint());
    command.args(["--region", "us-east-1"]);
    let mount = Mount::with_command(command, "s3://bucket/a.zarr".as_ref());
    let flat = mount.join("data.raw");
    assert_eq!(digest(&flat).unwrap().1, sha256(&bucket.array.flat));
    rotate(&["rotate", &id, &secret]);
    assert_eq!(eventually(|| digest(&flat)).1, sha256(&bucket.array.flat));
    let file = fs::OpenOptions::new().write(true).open(&flat).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[9; 2000], 500).unwrap();
    support::close(file).unwrap();
}

/// "zarrfs uses the first source that it finds, in the order of the AWS command line."
#[test]
fn credentials_have_the_order_of_the_aws_command_line() {
    let bucket = Bucket::new();
    bucket.write(
        "credentials",
        &(profile("default", "DEFAULT") + &profile("lab", "LAB")),
    );
    bucket.write(
        "config",
        "[profile lab]\nregion = eu-lab-1\n[profile other]\nregion = eu-other-1\n",
    );
    let elsewhere = bucket.write("elsewhere", &profile("lab", "ELSEWHERE"));
    let keys = [
        ("AWS_ACCESS_KEY_ID", "ENV"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ];
    let file = ("AWS_SHARED_CREDENTIALS_FILE", elsewhere.to_str().unwrap());
    let lab = ("AWS_PROFILE", "lab");
    for (variables, id) in [
        (&[][..], "DEFAULT"),
        (&[lab], "LAB"),
        (&[lab, file], "ELSEWHERE"),
        (&[lab, keys[0], keys[1]], "ENV"),
        (
            &[
                ("AWS_PROFILE", "lab"),
                ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/elsewhere"),
            ],
            "ELSEWHERE",
        ),
    ] {
        bucket.server.set_gate(only(id, 403, "AccessDenied"));
        bucket.assert_readable(variables);
    }
    bucket.server.set_gate(Box::new(|request| {
        (scope(request).1 != "eu-lab-1").then(|| (403, vec![], error("No", "")))
    }));
    bucket.assert_readable(&[lab]);
    bucket.assert_refused(
        &[("AWS_PROFILE", "none")],
        &["AWS profile none: there is no such profile"],
    );
    bucket.assert_refused(&[("AWS_ACCESS_KEY_ID", "a b"), keys[1]], &["characters"]);
}

#[test]
fn credential_process_is_run_and_its_failures_are_shown() {
    let mut bucket = Bucket::new();
    let script = bucket.write("keys.sh", "");
    let print = |id: &str, more: &str| {
        let json = format!(
            r#"{{"Version": 1, "AccessKeyId": "{id}", "SecretAccessKey": "secret", "SessionToken": "token"{more}}}"#
        );
        bucket.write(
            "keys.sh",
            &format!("echo x >> '{}.runs'\necho '{json}'\n", script.display()),
        );
    };
    let runs = || {
        fs::read_to_string(format!("{}.runs", script.display()))
            .map_or(0, |text| text.lines().count())
    };
    bucket.write(
        "config",
        &format!(
            "[default]\ncredential_process = sh '{}'\n",
            script.display()
        ),
    );
    let has_token = |request: &Request| {
        request
            .headers
            .get("x-amz-security-token")
            .is_some_and(|token| token == "token")
    };
    bucket.server.set_gate(Box::new(move |request| {
        (scope(request).0 != "FIRST" || !has_token(request))
            .then(|| (403, vec![], error("AccessDenied", "")))
    }));
    print("FIRST", r#", "Expiration": "2100-01-01T00:00:00Z""#);
    let mount = bucket.mount(&[]);
    assert_eq!(
        digest(&mount.join("data.raw")).unwrap().1,
        sha256(&bucket.array.flat)
    );
    assert_eq!(runs(), 1);
    drop(mount);
    bucket.write("keys.sh", "echo secret; echo 'sign in first' >&2; exit 4");
    bucket.assert_refused(
        &[],
        &["AWS profile default: credential_process: exit status: 4: sign in first"],
    );
    bucket.write("keys.sh", "echo secret");
    bucket.assert_refused(&[], &["credential_process: its output is not JSON"]);
    bucket.write("keys.sh", "cat; sleep 600");
    bucket.timeout = "5s";
    let begun = Instant::now();
    bucket.assert_refused(&[], &["credential_process: it has not ended after 5.0 s"]);
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "{:?}",
        begun.elapsed()
    );
}

/// "A mount that a signal ends gives up after `--timeout` without any progress": credentials may be
/// valid again by then.
#[test]
fn a_mount_that_a_signal_ends_waits_for_valid_credentials() {
    let bucket = Bucket::new();
    let script = bucket.write("keys.sh", "");
    let count = format!("echo x >> '{}.runs'\n", script.display());
    let runs = || {
        fs::read_to_string(format!("{}.runs", script.display()))
            .map_or(0, |text| text.lines().count())
    };
    let json =
        r#"{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "secret", "Expiration": "'$at'"}"#;
    let good = format!("{count}at=$(date -u -d '+3 seconds' +%Y-%m-%dT%H:%M:%SZ)\necho '{json}'\n");
    bucket.write("keys.sh", &good);
    bucket.write(
        "config",
        &format!(
            "[default]\ncredential_process = sh '{}'\n",
            script.display()
        ),
    );
    let mut command = with_timeout(120, ZARRFS);
    command
        .env("HOME", bucket.home.path())
        .env("AWS_EC2_METADATA_DISABLED", "true");
    command.args([
        "mount",
        "--endpoint-url",
        bucket.server.url("").trim_end_matches('/'),
        "--timeout",
        "60s",
    ]);
    let mount = Mount::with_command(command, "s3://bucket/a.zarr".as_ref());
    let flat = mount.join("data.raw");
    let file = support::open_for_writing(&flat);
    bucket.write("keys.sh", &format!("{count}exit 1\n"));
    // wait until the mount's keys have expired
    let begun = Instant::now();
    while !fs::read(&flat).is_err_and(|e| e.raw_os_error() == Some(libc::EACCES)) {
        assert!(
            begun.elapsed() < Duration::from_secs(40),
            "the keys stay valid"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    std::os::unix::fs::FileExt::write_all_at(&file, &[9; 1000], 0).unwrap();
    assert_eq!(errno(support::close(file)), "EACCES");
    let process = Pid::from_raw(mount.counter("pid") as i32).unwrap();
    let ended = pidfd_open(process, PidfdFlags::empty()).unwrap();
    let before = runs();
    kill_process(process, Signal::TERM).unwrap();
    // the daemon keeps trying: it runs the program for its keys again
    while runs() < before + 2 {
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        assert_eq!(
            poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&none)),
            Ok(0),
            "the data are given up"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    bucket.write("keys.sh", &good);
    let limit = Timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    assert_eq!(
        poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&limit)),
        Ok(1),
        "the daemon does not end"
    );
    mount.assume_unmounted();
    assert_eq!(fs::read(bucket.chunk(0)).unwrap(), [9; 1000]);
}

#[test]
fn profiles_that_need_the_aws_command_line_are_refused_by_name() {
    let bucket = Bucket::new();
    bucket.write("credentials", &profile("base", "BASE"));
    bucket.write(
        "config",
        "[profile sso]\nsso_session = s\nsso_account_id = 1\nsso_role_name = r\n[sso-session s]\nsso_region = x\n\
         [profile role]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = base\n\
         [profile machine]\nrole_arn = arn:aws:iam::1:role/r\ncredential_source = Ec2InstanceMetadata\n",
    );
    for (name, parts) in [
        ("sso", ["SSO", "aws sso login --profile sso"]),
        ("role", ["role_arn", ""]),
        ("machine", ["role_arn", ""]),
    ] {
        let export =
            format!("credential_process = aws configure export-credentials --profile {name}");
        bucket.assert_refused(
            &[("AWS_PROFILE", name)],
            &[
                &format!("AWS profile {name}: "),
                parts[0],
                parts[1],
                &export,
            ],
        );
    }
    assert!(bucket.server.requests().is_empty());
    // the messages advise these two remedies
    let keys = [
        ("AWS_PROFILE", "sso"),
        ("AWS_ACCESS_KEY_ID", "A"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ];
    bucket.assert_readable(&keys);
    let output = bucket.cat(&[("AWS_PROFILE", "sso")], &["--anon"]);
    assert!(output.stdout == bucket.array.flat, "{}", said(&output));
}

/// Returns a gate that answers requests for the keys of a role, which expire after `seconds`. It
/// refuses other keys.
fn role_for(seconds: u64) -> Gate {
    Box::new(move |request| {
        if !request.path.contains("AssumeRoleWithWebIdentity") {
            return (scope(request).0 != "ROLE").then(|| (403, vec![], error("AccessDenied", "")));
        }
        let is_right = request
            .path
            .contains("WebIdentityToken=token-of-the-cluster")
            && request.path.contains("role%2Fr");
        let keys = "<AccessKeyId>ROLE</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>";
        let end =
            chrono::DateTime::<chrono::Utc>::from(SystemTime::now() + Duration::from_secs(seconds));
        let keys = format!(
            "{keys}<SessionToken>t</SessionToken><Expiration>{}</Expiration>",
            end.to_rfc3339()
        );
        let result = format!(
            "<AssumeRoleWithWebIdentityResult><Credentials>{keys}</Credentials></AssumeRoleWithWebIdentityResult>"
        );
        let answer = format!(
            "<AssumeRoleWithWebIdentityResponse>{result}</AssumeRoleWithWebIdentityResponse>"
        );
        Some(if is_right {
            (200, vec![], answer)
        } else {
            (403, vec![], error("AccessDenied", ""))
        })
    })
}

#[test]
fn a_token_in_a_file_gives_the_keys_of_a_role() {
    let bucket = Bucket::new();
    let token = bucket.write("token", "token-of-the-cluster");
    bucket.server.set_gate(role_for(3600));
    let service = bucket.server.url("");
    let sts = ("AWS_ENDPOINT_URL_STS", service.trim_end_matches('/'));
    let role = "arn:aws:iam::1:role/r";
    bucket.write("credentials", &profile("default", "DEFAULT"));
    bucket.assert_readable(&[
        sts,
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap()),
        ("AWS_ROLE_ARN", role),
    ]);
    let settings = format!(
        "role_arn = {role}\nweb_identity_token_file = {}\n",
        token.display()
    );
    bucket.write("config", &format!("[profile web]\n{settings}"));
    bucket.assert_readable(&[sts, ("AWS_PROFILE", "web")]);
    bucket.write(
        "config",
        &format!(
            "[profile web]\n{}",
            settings.replace(&token.display().to_string(), ".aws/token")
        ),
    );
    bucket.server.set_gate(role_for(2));
    for variables in [
        &[
            sts,
            ("AWS_WEB_IDENTITY_TOKEN_FILE", ".aws/token"),
            ("AWS_ROLE_ARN", role),
        ][..],
        &[sts, ("AWS_PROFILE", "web")],
    ] {
        let asked = || {
            bucket
                .server
                .requests()
                .iter()
                .filter(|request| request.path.contains("AssumeRole"))
                .count()
        };
        let mount = bucket.mount_from_home(variables);
        assert_eq!(
            digest(&mount.join("data.raw")).unwrap().1,
            sha256(&bucket.array.flat)
        );
        let before = asked();
        let found = eventually(|| match digest(&mount.join("data.raw")) {
            Ok(_) if asked() == before => {
                Err(std::io::Error::other("the role was not asked for again"))
            }
            found => found,
        });
        assert_eq!(found.1, sha256(&bucket.array.flat));
    }
}

/// A daemon in the background leaves the directory where it was started.
#[test]
fn relative_paths_stay_valid_in_a_mount_in_the_background() {
    let bucket = Bucket::new();
    let old = bucket.write("file", &profile("default", "OLD"));
    for (variable, settings) in [
        ("AWS_SHARED_CREDENTIALS_FILE", profile("default", "NEW")),
        (
            "AWS_CONFIG_FILE",
            "[default]\ncredential_process = cat .aws/keys\n".to_string(),
        ),
    ] {
        fs::write(&old, profile("default", "OLD")).unwrap();
        let json = r#"{"Version": 1, "AccessKeyId": "NEW", "SecretAccessKey": "secret"}"#;
        bucket.write("keys", json);
        bucket
            .server
            .set_gate(only("OLD", 403, "InvalidAccessKeyId"));
        let mount = bucket.mount_from_home(&[(variable, ".aws/file")]);
        assert_eq!(
            digest(&mount.join("data.raw")).unwrap().1,
            sha256(&bucket.array.flat)
        );
        fs::write(&old, settings).unwrap();
        bucket
            .server
            .set_gate(only("NEW", 403, "InvalidAccessKeyId"));
        let found = eventually(|| digest(&mount.join("data.raw")));
        assert_eq!(found.1, sha256(&bucket.array.flat), "{variable}");
    }
}

/// Returns a gate that gives the keys of a container to requests with `token`. It refuses other
/// keys.
fn container(token: &'static str) -> Gate {
    Box::new(move |request| {
        let header = request
            .headers
            .get("authorization")
            .map(String::as_str)
            .unwrap_or_default();
        if request.path != "/container-keys" {
            return (!header.contains("Credential=CONTAINER/"))
                .then(|| (403, vec![], error("AccessDenied", "")));
        }
        let end = chrono::DateTime::<chrono::Utc>::from(SystemTime::now() + Duration::from_secs(2));
        let keys = json!({
            "AccessKeyId": "CONTAINER", "SecretAccessKey": "secret", "Token": "t", "Expiration": end.to_rfc3339()
        });
        Some(if header == token {
            (200, vec![], keys.to_string())
        } else {
            (403, vec![], String::new())
        })
    })
}

/// A token of a pod is a link, and renewed as Kubernetes does it: by another directory.
#[test]
fn a_token_of_a_pod_is_read_again_in_a_new_directory() {
    let bucket = Bucket::new();
    let renew = |directory: &str, token: &'static str| {
        bucket.write(&format!("pod/{directory}/token"), token);
        let data = bucket.home.path().join(".aws/pod/..data");
        let next = data.with_file_name("..next");
        symlink(directory, &next).unwrap();
        fs::rename(next, data).unwrap();
        bucket.server.set_gate(container(token));
    };
    renew("..1", "first");
    let path = bucket.home.path().join(".aws/pod/token");
    symlink("..data/token", &path).unwrap();
    let mount = bucket.mount_from_home(&[
        (
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            &bucket.server.url("container-keys"),
        ),
        (
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
            path.to_str().unwrap(),
        ),
    ]);
    digest(&mount.join("data.raw")).unwrap();
    renew("..2", "second");
    let asked = || {
        let requests = bucket.server.requests();
        requests
            .iter()
            .filter(|request| request.path == "/container-keys")
            .count()
    };
    let before = asked();
    let found = eventually(|| match digest(&mount.join("data.raw")) {
        Ok(_) if asked() == before => Err(std::io::Error::other("no new keys")),
        found => found,
    });
    assert_eq!(found.1, sha256(&bucket.array.flat));
}

/// The client of each further prefix is made when the daemon is in its sandbox already.
#[test]
fn targets_in_buckets_are_read_with_the_keys_of_a_profile() {
    let bucket = Bucket::new();
    let folder = bucket.folder.path().join("bucket");
    fs::create_dir(folder.join("other")).unwrap();
    fs::copy(bucket.chunk(3), folder.join("other/3")).unwrap();
    let target = |path: &str| json!([format!("s3://bucket/{path}")]);
    let refs = json!({
        ".zarray": bucket.array.text(), "0": target("a.zarr/0"), "1": target("a.zarr/1"),
        "2": target("a.zarr/2"), "3": target("other/3"),
    });
    let text = json!({"version": 1, "refs": refs}).to_string();
    fs::write(folder.join("refs.json"), &text).unwrap();
    let local = bucket.folder.path().join("refs.json");
    fs::write(&local, &text).unwrap();
    bucket.write("credentials", &profile("lab", "LAB"));
    bucket.server.set_gate(only("LAB", 403, "AccessDenied"));
    let [first, second] = ["s3://bucket/a.zarr", "s3://bucket/other"];
    let allow = ["--allow-reference", first, "--allow-reference", second];
    for (store, args) in [
        ("s3://bucket/refs.json", &allow[..2]),
        (local.to_str().unwrap(), &allow[..]),
    ] {
        let mut command = bucket.command("mount");
        command.env("AWS_PROFILE", "lab").args(args);
        let mount = Mount::with_command(command, store.as_ref());
        let found = digest(&mount.join("data.raw")).unwrap().1;
        assert_eq!(found, sha256(&bucket.array.flat), "{store}");
    }
}

#[test]
fn a_client_of_azure_that_starts_programs_has_no_sandbox() {
    let bucket = Bucket::new();
    for (variable, value) in [
        ("AZURE_USE_AZURE_CLI", "yes"),
        ("AZURE_CREDENTIAL_TYPE", "azure_cli"),
    ] {
        let mut command = bucket.command("mount");
        command.env(variable, value);
        command.args(["--allow-reference", "az://container/x"]);
        let mount = Mount::with_command(command, bucket.array.path.as_os_str());
        let stats = mount.stats();
        assert!(stats.contains("off: AZURE_USE_AZURE_CLI"), "{stats}");
    }
}

/// "Relative paths of files and programs, in variables, options and profiles, are those of the
/// directory where zarrfs was started, also in a mount in the background."
#[test]
fn relative_paths_of_the_environment_stay_valid() {
    let bucket = Bucket::new();
    bucket.write("token", "first");
    bucket.server.set_gate(container("first"));
    let service = bucket.server.url("container-keys");
    let named = [
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AZURE_FEDERATED_TOKEN_FILE",
        "AZURE_CONFIG_DIR",
        "TMPDIR",
    ];
    let mut variables: Vec<_> = named.iter().map(|name| (*name, ".aws/token")).collect();
    variables.push(("AWS_CONTAINER_CREDENTIALS_FULL_URI", &service));
    variables.push(("AWS_CONFIG_FILE", "~/.aws/config"));
    let mount = bucket.mount_from_home(&variables);
    assert_eq!(
        digest(&mount.join("data.raw")).unwrap().1,
        sha256(&bucket.array.flat)
    );
    // the mount's keys expire, and new ones need another token
    bucket.write("token", "second");
    bucket.server.set_gate(container("second"));
    let asked = || {
        bucket
            .server
            .requests()
            .iter()
            .filter(|request| request.path == "/container-keys")
            .count()
    };
    let before = asked();
    let found = eventually(|| match digest(&mount.join("data.raw")) {
        Ok(_) if asked() == before => {
            Err(std::io::Error::other("the container was not asked again"))
        }
        found => found,
    });
    assert_eq!(found.1, sha256(&bucket.array.flat));
    let environment = fs::read(format!("/proc/{}/environ", mount.counter("pid"))).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    let value = |name: &str| {
        environment
            .split('\0')
            .find_map(|line| line.strip_prefix(&format!("{name}=")))
    };
    let home = fs::canonicalize(bucket.home.path()).unwrap();
    for name in named {
        assert_eq!(value(name), home.join(".aws/token").to_str(), "{name}");
    }
    assert_eq!(value("AWS_CONFIG_FILE"), Some("~/.aws/config"));
}

/// Returns a gate that redirects requests for other regions and counts them in `away`. S3 names the
/// right region in a header, other servers do so in the body.
fn only_region(region: &'static str, has_header: bool, away: Arc<AtomicUsize>) -> Gate {
    Box::new(move |request| {
        if scope(request).1 == region {
            return None;
        }
        away.fetch_add(1, SeqCst);
        let headers = if has_header {
            vec![("x-amz-bucket-region", region.to_string())]
        } else {
            Vec::new()
        };
        Some(match (has_header, request.method.as_str()) {
            (true, "HEAD") => (400, headers, String::new()),
            (true, _) => (
                301,
                [headers, vec![("Location", "/elsewhere".into())]].concat(),
                error("PermanentRedirect", ""),
            ),
            (false, _) => {
                let region = format!("<Region>{region}</Region>");
                (400, headers, error("AuthorizationHeaderMalformed", &region))
            }
        })
    })
}

#[test]
fn the_region_that_the_server_names_is_used() {
    let bucket = Bucket::new();
    bucket.write("credentials", &profile("default", "A"));
    for has_header in [true, false] {
        let away = Arc::new(AtomicUsize::new(0));
        bucket
            .server
            .set_gate(only_region("eu-test-7", has_header, away.clone()));
        for args in [&[][..], &["--region", "us-west-2"]] {
            let output = bucket.cat(&[], args);
            assert!(output.stdout == bucket.array.flat, "{}", said(&output));
            let count = away.swap(0, SeqCst);
            assert!(
                (1..=2).contains(&count),
                "{count} requests for another region"
            );
        }
        let mount = bucket.mount(&[]);
        fs::write(mount.join("data.raw"), [5; 4000]).unwrap();
        assert_eq!(fs::read(bucket.chunk(2)).unwrap(), [5; 1000]);
        fs::write(mount.join("data.raw"), &bucket.array.flat).unwrap();
        assert!(away.load(SeqCst) <= 4, "{}", away.load(SeqCst));
    }
    // a server that redirects every request
    bucket.server.set_gate(Box::new(|_| {
        let headers = vec![("x-amz-bucket-region", "eu-test-8".to_string())];
        Some((301, headers, error("PermanentRedirect", "")))
    }));
    bucket.assert_refused(&[], &["301", "PermanentRedirect: No"]);
}

/// All verbs exit with code 3 and print one line that names the bucket.
#[test]
fn a_missing_bucket_is_named() {
    let bucket = Bucket::new();
    bucket.write("credentials", &profile("default", "A"));
    // only the body of an answer tells a missing bucket from a missing key
    bucket.server.set_gate(Box::new(|request| {
        request
            .path
            .starts_with("/gone")
            .then(|| (404, vec![], error("NoSuchBucket", "")))
    }));
    let mountpoint = tempfile::tempdir().unwrap();
    let new = ["--shape", "4", "--chunks", "2", "--dtype", "<i4"];
    for (verb, args) in [
        ("info", &[][..]),
        ("ls", &[]),
        ("cat", &[]),
        ("check", &[]),
        ("header", &[]),
        ("put", &[]),
        ("consolidate", &[]),
        ("create", &new),
        ("mount", &[mountpoint.path().to_str().unwrap()]),
    ] {
        for store in ["s3://gone/a.zarr", "s3://gone/a.zip"] {
            let mut command = bucket.command(verb);
            let (before, after) = if verb == "mount" {
                (&[][..], args)
            } else {
                (args, &[][..])
            };
            let output = command
                .args(before)
                .arg(store)
                .args(after)
                .stdin(std::process::Stdio::null())
                .output()
                .unwrap();
            let said = said(&output);
            if verb == "create" && store.ends_with(".zip") {
                continue;
            }
            assert_eq!(
                (output.status.code(), said.lines().count()),
                (Some(3), 1),
                "{verb} {store}: {said}"
            );
            assert!(
                said.contains("no bucket gone;") && said.contains(store),
                "{verb} {store}: {said}"
            );
        }
    }
    let output = bucket
        .command("info")
        .arg("s3://bucket/nothing.zarr")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
}

#[test]
fn wrong_urls_are_refused_before_any_request() {
    let bucket = Bucket::new();
    let wrong = [
        "s3://",
        "s3:///x",
        "s3://bu cket/x",
        "s3://b%20/x",
        "s3://b?x",
        "gs://b\u{e9}/x",
        "az://c@a b/x",
        "s3://b/../x",
    ];
    for url in wrong {
        let output = bucket
            .command("info")
            .args(["--anon", url])
            .output()
            .unwrap();
        assert_eq!(
            (output.status.code(), said(&output).lines().count()),
            (Some(2), 1),
            "{url}: {}",
            said(&output)
        );
    }
    for (option, value) in [
        ("--endpoint-url", "ftp://h/"),
        ("--endpoint-url", "h:1"),
        ("--region", "a\nb"),
        ("--region", ""),
    ] {
        let output = with_timeout(60, ZARRFS)
            .args(["info", "--anon", option, value, "s3://b/x"])
            .output()
            .unwrap();
        assert_eq!(
            (output.status.code(), said(&output).lines().count()),
            (Some(2), 1),
            "{value}: {}",
            said(&output)
        );
    }
    assert!(bucket.server.requests().is_empty());
}

/// A document that may not be read says nothing of what is below it: no store looks empty, and no
/// array missing.
#[test]
fn a_bucket_that_may_be_listed_but_not_read_is_not_empty() {
    let bucket = Bucket::new();
    let root = bucket.folder.path().join("bucket");
    TestArray::with_chunks(root.join("v2.zarr/a"), &[4000], &[1000], json!({}));
    fs::write(
        root.join("v2.zarr/.zgroup"),
        json!({"zarr_format": 2}).to_string(),
    )
    .unwrap();
    let group = json!({"zarr_format": 3, "node_type": "group"}).to_string();
    let array = json!({"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}}, "codecs": [{"name": "bytes"}],
        "chunk_key_encoding": {"name": "default"}});
    fs::create_dir_all(root.join("v3.zarr/g/a/c")).unwrap();
    fs::write(root.join("v3.zarr/zarr.json"), &group).unwrap();
    fs::write(root.join("v3.zarr/g/zarr.json"), &group).unwrap();
    fs::write(root.join("v3.zarr/g/a/zarr.json"), array.to_string()).unwrap();
    fs::write(root.join("v3.zarr/g/a/c/0"), b"data").unwrap();
    let refuse = |below: &'static str| {
        bucket.server.set_gate(Box::new(move |request| {
            let is_refused =
                request.path.starts_with(below) && !request.path.contains("list-type=2");
            is_refused.then(|| (403, Vec::new(), error("AccessDenied", "")))
        }));
    };
    let mountpoint = tempfile::tempdir().unwrap();
    refuse("/bucket/");
    for url in [
        "s3://bucket/a.zarr",
        "s3://bucket/v2.zarr",
        "s3://bucket/v3.zarr",
    ] {
        for verb in ["info", "ls", "check", "mount"] {
            let mut command = bucket.command(verb);
            command
                .args(["--anon", url])
                .args((verb == "mount").then_some(mountpoint.path()));
            let output = command.output().unwrap();
            let said = said(&output);
            assert_eq!(
                (output.status.code(), said.lines().count()),
                (Some(1), 1),
                "{verb} {url}: {said}"
            );
            assert!(
                said.contains("403") && said.contains("AccessDenied"),
                "{verb} {url}: {said}"
            );
        }
    }
    // below the root, each node fails alone
    for (url, array, below) in [
        ("s3://bucket/v2.zarr", "a", "/bucket/v2.zarr/a/"),
        ("s3://bucket/v3.zarr", "g/a", "/bucket/v3.zarr/g/a/"),
        ("s3://bucket/v3.zarr", "g/a", "/bucket/v3.zarr/g/"),
    ] {
        refuse(below);
        let mut command = bucket.command("mount");
        command.arg("--anon");
        let mount = Mount::with_command(command, url.as_ref());
        assert_eq!(
            errno(fs::read(mount.join(array).join("data.raw"))),
            "EACCES",
            "{below}"
        );
        let above = mount.join(array).parent().unwrap().to_path_buf();
        assert!(support::names(&above).contains("a"), "{below}");
        let output = bucket
            .command("info")
            .args(["--anon", url])
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            printed.contains("unreadable: ") && printed.contains("403"),
            "{below}: {printed}"
        );
        assert_eq!(
            (output.status.code(), said(&output).lines().count()),
            (Some(1), 1),
            "{below}"
        );
    }
}
