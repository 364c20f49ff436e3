//! Servers of other projects, on loopback: moto and LocalStack for S3, azurite for Azure, nginx and
//! Python for HTTP. Each ends when its [`Server`] is dropped, or with the test process at the
//! latest. A test whose server is not installed is skipped and announces it; scripts/test installs
//! all of them.
//!
//! Google Cloud Storage is not among them: its emulators in Python lack the XML API that clients of
//! buckets use. gcp-storage-emulator (2026.7.19) answers 501 to HEAD, DELETE and listings, sends
//! neither ETag nor generation and ignores `x-goog-if-generation-match`; gcloud-storage-emulator
//! (0.5.0) lacks HEAD and preconditions, too.

use super::{Mount, ZARRFS, env_path, is_installed, python_script, with_timeout};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Maximum time until a new server answers, even while other tests run.
const PATIENCE: Duration = Duration::from_secs(180);

/// Seconds that copying stores into a bucket or an archive may take. scripts/soak copies all
/// stores, perhaps on a busy machine, so only a copy that hangs reaches this limit.
const COPYING: u32 = 1800;

/// The account that every azurite has, and its published key.
const ACCOUNT: &str = "devstoreaccount1";
const ACCOUNT_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A server that runs until this value is dropped.
pub struct Server {
    child: Child,
    port: u16,
    /// Holds the server's configuration, its log and other files it writes.
    directory: tempfile::TempDir,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    S3,
    Azure,
    Http,
}

/// A store behind a server, with the options and credentials that zarrfs needs to reach it.
#[derive(Clone, Debug)]
pub struct RemoteStore {
    /// The store's name on the command line.
    pub url: String,
    /// Command line options.
    pub args: Vec<String>,
    /// Environment variables with the credentials.
    pub environment: Vec<(&'static str, String)>,
}

/// Starts an S3 server, moto.
pub fn moto() -> Option<Server> {
    let python = env_path("ZARRFS_TEST_SERVERS")?;
    Some(Server::start(Kind::S3, |port, _| {
        let mut command = Command::new(&python);
        command.arg(python_script("moto_server.py")).args([
            "-H",
            "127.0.0.1",
            "-p",
            &port.to_string(),
        ]);
        command
    }))
}

/// Starts an S3 server, LocalStack.
pub fn localstack() -> Option<Server> {
    let python = env_path("ZARRFS_TEST_LOCALSTACK")?;
    Some(Server::start(Kind::S3, |port, directory| {
        let mut command = Command::new(&python);
        command.args(["-m", "localstack.runtime.main"]);
        command
            .env("SERVICES", "s3")
            .env("GATEWAY_LISTEN", format!("127.0.0.1:{port}"));
        command
            .env("FILESYSTEM_ROOT", directory)
            .env("EAGER_SERVICE_LOADING", "1");
        // by default it reports usage, fetches a certificate and answers DNS requests
        command
            .env("DISABLE_EVENTS", "1")
            .env("SKIP_SSL_CERT_DOWNLOAD", "1")
            .env("DNS_ADDRESS", "0");
        command
    }))
}

/// Starts an Azure Blob Storage server, azurite.
pub fn azurite() -> Option<Server> {
    let program = env_path("ZARRFS_TEST_AZURITE")?;
    Some(Server::start(Kind::Azure, |port, directory| {
        let mut command = Command::new(&program);
        command.args([
            "--blobHost",
            "127.0.0.1",
            "--blobPort",
            &port.to_string(),
            "--inMemoryPersistence",
        ]);
        command
            .args(["--silent", "--skipApiVersionCheck"])
            .current_dir(directory);
        command
    }))
}

/// Starts nginx for the files below `root`. It lists no directories. `directives` are added to its
/// `server` block.
pub fn nginx(root: &Path, directives: &str) -> Option<Server> {
    if !Path::new("/usr/sbin/nginx").exists() && !is_installed("nginx") {
        return None;
    }
    Some(Server::start(Kind::Http, |port, directory| {
        let shown = directory.display();
        let root = root.display();
        let configuration = format!(
            "daemon off; master_process off; pid {shown}/pid; error_log {shown}/error;\n\
             events {{ worker_connections 512; }}\n\
             http {{ log_format line '$request_method $uri $status [$http_range] [$http_x_test]';\n\
             access_log {shown}/access line; default_type application/octet-stream;\n\
             client_body_temp_path {shown}/body; proxy_temp_path {shown}/proxy; fastcgi_temp_path {shown}/fastcgi;\n\
             uwsgi_temp_path {shown}/uwsgi; scgi_temp_path {shown}/scgi;\n\
             server {{ listen 127.0.0.1:{port}; root \"{root}\"; autoindex off; {directives} }} }}\n"
        );
        std::fs::write(directory.join("configuration"), configuration).unwrap();
        let mut command = Command::new("/usr/sbin/nginx");
        command
            .arg("-c")
            .arg(directory.join("configuration"))
            .arg("-e")
            .arg(directory.join("error"));
        command
    }))
}

/// Starts Python's http.server for the files below `root`. It sends no entity tags and ignores
/// ranges.
pub fn python_http(root: &Path) -> Option<Server> {
    let python = env_path("ZARRFS_TEST_PYTHON")?;
    Some(Server::start(Kind::Http, |port, _| {
        let mut command = Command::new(&python);
        command
            .args(["-m", "http.server", "--bind", "127.0.0.1", "--directory"])
            .arg(root)
            .arg(port.to_string());
        command
    }))
}

impl Server {
    /// Starts the command that `command` returns for a port and a directory, and waits until the
    /// server answers.
    fn start(kind: Kind, command: impl Fn(u16, &Path) -> Command) -> Server {
        for _ in 0..3 {
            let directory = tempfile::tempdir().unwrap();
            // if another process takes the free port first, the server ends and the next port is
            // tried
            let port = TcpListener::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap()
                .port();
            let output = File::create(directory.path().join("output")).unwrap();
            let mut command = command(port, directory.path());
            command
                .stdin(Stdio::null())
                .stdout(output.try_clone().unwrap())
                .stderr(output);
            let mut server = Server {
                child: spawn(command),
                port,
                directory,
                kind,
            };
            if server.wait_until_it_answers() {
                return server;
            }
            super::announce(&format!("a server has ended early: {}", server.output()));
        }
        panic!("no server after three attempts");
    }

    /// Waits until the server answers. Returns false if it has ended.
    fn wait_until_it_answers(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            if answers(self.port).is_ok_and(|yes| yes) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("no answer in {PATIENCE:?}: {}", self.output());
    }

    fn output(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("output")).unwrap_or_default()
    }

    /// Returns the store at `path`: a path below the root of an HTTP server, else a bucket or
    /// container and a key.
    pub fn store(&self, path: &str) -> RemoteStore {
        let endpoint = self.endpoint();
        let texts = |all: &[&str]| all.iter().map(|a| a.to_string()).collect();
        match self.kind {
            Kind::Http => RemoteStore {
                url: format!("{endpoint}/{path}"),
                args: Vec::new(),
                environment: Vec::new(),
            },
            Kind::S3 => RemoteStore {
                url: format!("s3://{path}"),
                args: texts(&["--endpoint-url", &endpoint, "--region", "us-east-1"]),
                environment: vec![
                    ("AWS_ACCESS_KEY_ID", "tests".into()),
                    ("AWS_SECRET_ACCESS_KEY", "secret".into()),
                ],
            },
            Kind::Azure => RemoteStore {
                url: format!("az://{path}"),
                args: texts(&["--endpoint-url", &endpoint]),
                environment: vec![
                    ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT.into()),
                    ("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY.into()),
                ],
            },
        }
    }

    /// Returns the URL at which clients reach the server.
    pub fn endpoint(&self) -> String {
        match self.kind {
            Kind::Azure => format!("http://127.0.0.1:{}/{ACCOUNT}", self.port),
            Kind::S3 | Kind::Http => format!("http://127.0.0.1:{}", self.port),
        }
    }

    /// Returns the requests that nginx has logged so far: method, path, status, range and the
    /// header x-test.
    pub fn requests(&self) -> Vec<String> {
        // nginx logs a request after it has answered
        std::thread::sleep(Duration::from_millis(100));
        let log = std::fs::read_to_string(self.directory.path().join("access")).unwrap_or_default();
        log.lines().map(String::from).collect()
    }

    /// Uploads all files of `folder` below `path` with the vendor's own client. Creates the bucket
    /// or container.
    pub fn upload(&self, folder: &Path, path: &str) {
        self.client(&["upload", folder.to_str().unwrap(), path]);
    }

    /// Downloads all objects below `path` into `folder`.
    pub fn download(&self, path: &str, folder: &Path) {
        self.client(&["download", folder.to_str().unwrap(), path]);
    }

    /// Removes one object with the vendor's own client, so that no mount knows of it.
    pub fn remove(&self, path: &str) {
        self.client(&["remove", "", path]);
    }

    fn client(&self, args: &[&str]) {
        let python =
            env_path("ZARRFS_TEST_SERVERS").expect("the client is installed with the server");
        let script = python_script("buckets.py");
        let kind = if self.kind == Kind::Azure {
            "azure"
        } else {
            "s3"
        };
        let output = with_timeout(COPYING, python)
            .arg(script)
            .args([kind, &self.endpoint()])
            .args(args)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RemoteStore {
    /// Returns the store at `path` below this one.
    pub fn join(&self, path: &str) -> RemoteStore {
        RemoteStore {
            url: format!("{}/{path}", self.url),
            ..self.clone()
        }
    }

    /// Returns the store with additional options.
    pub fn with(mut self, args: &[&str]) -> RemoteStore {
        self.args.extend(args.iter().map(|a| a.to_string()));
        self
    }

    /// Returns a zarrfs command with a verb, the store's options and its credentials.
    pub fn command(&self, verb: &str) -> Command {
        let mut command = with_timeout(120, ZARRFS);
        command
            .arg(verb)
            .args(&self.args)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        // keep credentials of the machine out of the tests
        command.env("AWS_EC2_METADATA_DISABLED", "true");
        command
    }

    /// Runs a verb of zarrfs on the store.
    pub fn zarrfs(&self, verb: &str, args: &[&str]) -> Output {
        self.command(verb)
            .args(args)
            .arg(&self.url)
            .output()
            .unwrap()
    }

    /// Mounts the store.
    pub fn mount(&self, args: &[&str]) -> Mount {
        let mut command = self.command("mount");
        command.args(args);
        Mount::with_command(command, self.url.as_ref())
    }
}

/// Creates the zip archive `name` of `from` in `folder`. Members are uncompressed if `stored` is
/// set, else deflated.
pub fn zip(from: &Path, folder: &Path, name: &str, stored: bool) -> PathBuf {
    let archive = folder.join(name);
    zip_all(&[(from, archive.clone())], stored);
    archive
}

/// Creates a zip archive of the folder in each pair, at the path in the pair.
pub fn zip_all(pairs: &[(&Path, PathBuf)], stored: bool) {
    let script = python_script("zipped.py");
    let mut command = with_timeout(COPYING, "python3");
    command
        .arg(script)
        .arg(if stored { "stored" } else { "deflated" });
    for (folder, archive) in pairs {
        command.arg(folder).arg(archive);
    }
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Returns whether an HTTP server answers a request, with any status.
fn answers(port: u16) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /.nothing HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")?;
    let mut begin = [0; 5];
    stream.read_exact(&mut begin)?;
    Ok(&begin == b"HTTP/")
}

/// Starts a process that the kernel kills when the test process ends. The kernel kills it as soon
/// as the *thread* that started it ends, so one thread that never ends starts all of them.
fn spawn(mut command: Command) -> Child {
    static KEEPER: LazyLock<Sender<(Command, Sender<Child>)>> = LazyLock::new(|| {
        let (orders, taken) = channel::<(Command, Sender<Child>)>();
        std::thread::spawn(move || {
            for (mut command, started) in taken {
                let _ = started.send(command.spawn().unwrap());
            }
        });
        orders
    });
    // SAFETY: one system call, which may be made between fork and exec.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    let (started, child) = channel();
    KEEPER.send((command, started)).unwrap();
    child.recv().expect("the server program can be started")
}
