//! Servers of other hands, on loopback: S3 by moto and by LocalStack, Azure by azurite, HTTP by nginx and by Python. Each
//! ends with its guard, and with the process of the tests however that ends. What is not installed is skipped, and said;
//! scripts/test installs everything.
//!
//! Google is not among them: what PyPI has to stand for it speaks no XML API as clients of buckets do. gcp-storage-emulator
//! (2026.7.19) answers 501 to HEAD, DELETE and listings, sends no ETag or generation and puts whatever
//! `x-goog-if-generation-match` says; gcloud-storage-emulator (0.5.0) knows no HEAD and no preconditions either.

use super::{Mount, ZARRFS, installed, limited, provided};
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

/// How long a server may take until it answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// Seconds that copying stores into a bucket or an archive may take. scripts/soak copies all stores on a machine that may
/// be busy with other things, so this ends only what hangs.
const COPYING: u32 = 1800;

/// The account every azurite has, and its key, which is published.
const ACCOUNT: &str = "devstoreaccount1";
const ACCOUNT_KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A server that runs as long as this is there.
pub struct Server {
    child: Child,
    port: u16,
    /// Its configuration, its log and what else it writes.
    directory: tempfile::TempDir,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    S3,
    Azure,
    Http,
}

/// A store behind a server, and what zarrfs must be told to find it.
#[derive(Clone)]
pub struct Place {
    /// As it is named on the command line.
    pub url: String,
    /// Options of the command line.
    pub args: Vec<String>,
    /// Credentials.
    pub environment: Vec<(&'static str, String)>,
}

/// S3 by moto.
pub fn moto() -> Option<Server> {
    let python = provided("ZARRFS_TEST_SERVERS")?;
    Some(Server::start(Kind::S3, |port, _| {
        let mut command = Command::new(&python);
        command.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()]);
        command
    }))
}

/// S3 by LocalStack.
pub fn localstack() -> Option<Server> {
    let python = provided("ZARRFS_TEST_LOCALSTACK")?;
    Some(Server::start(Kind::S3, |port, directory| {
        let mut command = Command::new(&python);
        command.args(["-m", "localstack.runtime.main"]);
        command.env("SERVICES", "s3").env("GATEWAY_LISTEN", format!("127.0.0.1:{port}"));
        command.env("FILESYSTEM_ROOT", directory).env("EAGER_SERVICE_LOADING", "1");
        // it would tell its makers, fetch a certificate and serve names
        command.env("DISABLE_EVENTS", "1").env("SKIP_SSL_CERT_DOWNLOAD", "1").env("DNS_ADDRESS", "0");
        command
    }))
}

/// Azure's blobs by azurite.
pub fn azurite() -> Option<Server> {
    let program = provided("ZARRFS_TEST_AZURITE")?;
    Some(Server::start(Kind::Azure, |port, directory| {
        let mut command = Command::new(&program);
        command.args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string(), "--inMemoryPersistence"]);
        command.args(["--silent", "--skipApiVersionCheck"]).current_dir(directory);
        command
    }))
}

/// HTTP by nginx, which lists no directories; `directives` are of its `server` block.
pub fn nginx(root: &Path, directives: &str) -> Option<Server> {
    if !Path::new("/usr/sbin/nginx").exists() && !installed("nginx") {
        return None;
    }
    Some(Server::start(Kind::Http, |port, directory| {
        let (shown, root) = (directory.display(), root.display());
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
        command.arg("-c").arg(directory.join("configuration")).arg("-e").arg(directory.join("error"));
        command
    }))
}

/// HTTP by Python's http.server, which has no entity tags and knows no ranges.
pub fn python_http(root: &Path) -> Option<Server> {
    let python = provided("ZARRFS_TEST_PYTHON")?;
    Some(Server::start(Kind::Http, |port, _| {
        let mut command = Command::new(&python);
        command.args(["-m", "http.server", "--bind", "127.0.0.1", "--directory"]).arg(root).arg(port.to_string());
        command
    }))
}

impl Server {
    /// Starts what `command` makes of a port and a directory, and waits until it answers.
    fn start(kind: Kind, command: impl Fn(u16, &Path) -> Command) -> Server {
        for _ in 0..3 {
            let directory = tempfile::tempdir().unwrap();
            // free a moment ago; where somebody else has been faster the server ends, and another port is tried
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let said = File::create(directory.path().join("said")).unwrap();
            let mut command = command(port, directory.path());
            command.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said);
            let mut server = Server { child: spawn(command), port, directory, kind };
            if server.wait_until_it_answers() {
                return server;
            }
            super::say(&format!("a server ended at once: {}", server.said()));
        }
        panic!("no server after three attempts");
    }

    /// False if it has ended instead.
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
        panic!("no answer in {PATIENCE:?}: {}", self.said());
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("said")).unwrap_or_default()
    }

    /// What zarrfs calls `path`: below the root of an HTTP server, else a bucket or container and what is in it.
    pub fn place(&self, path: &str) -> Place {
        let endpoint = self.endpoint();
        let texts = |all: &[&str]| all.iter().map(|a| a.to_string()).collect();
        match self.kind {
            Kind::Http => Place { url: format!("{endpoint}/{path}"), args: Vec::new(), environment: Vec::new() },
            Kind::S3 => Place {
                url: format!("s3://{path}"),
                args: texts(&["--endpoint-url", &endpoint, "--region", "us-east-1"]),
                environment: vec![("AWS_ACCESS_KEY_ID", "tests".into()), ("AWS_SECRET_ACCESS_KEY", "secret".into())],
            },
            Kind::Azure => Place {
                url: format!("az://{path}"),
                args: texts(&["--endpoint-url", &endpoint]),
                environment: vec![
                    ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT.into()),
                    ("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY.into()),
                ],
            },
        }
    }

    /// Where it listens, as its clients name it.
    pub fn endpoint(&self) -> String {
        match self.kind {
            Kind::Azure => format!("http://127.0.0.1:{}/{ACCOUNT}", self.port),
            Kind::S3 | Kind::Http => format!("http://127.0.0.1:{}", self.port),
        }
    }

    /// The requests nginx has answered so far: method, path, status, range and the header x-test.
    pub fn requests(&self) -> Vec<String> {
        // a line is written after its answer
        std::thread::sleep(Duration::from_millis(100));
        let log = std::fs::read_to_string(self.directory.path().join("access")).unwrap_or_default();
        log.lines().map(String::from).collect()
    }

    /// Puts all files of `folder` below `path`, by the maker's own client; makes the bucket or container.
    pub fn upload(&self, folder: &Path, path: &str) {
        self.client(&["upload", folder.to_str().unwrap(), path]);
    }

    /// Gets all objects below `path` into `folder`.
    pub fn download(&self, path: &str, folder: &Path) {
        self.client(&["download", folder.to_str().unwrap(), path]);
    }

    /// Removes one object, behind the back of every mount.
    pub fn remove(&self, path: &str) {
        self.client(&["remove", "", path]);
    }

    fn client(&self, args: &[&str]) {
        let python = provided("ZARRFS_TEST_SERVERS").expect("the server runs by it, or is installed with it");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/buckets.py");
        let kind = if self.kind == Kind::Azure { "azure" } else { "s3" };
        let output = limited(COPYING, python).arg(script).args([kind, &self.endpoint()]).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Place {
    /// The place with something after its name.
    pub fn join(&self, path: &str) -> Place {
        Place { url: format!("{}/{path}", self.url), ..self.clone() }
    }

    /// As [`Server::place`], with more options.
    pub fn with(mut self, args: &[&str]) -> Place {
        self.args.extend(args.iter().map(|a| a.to_string()));
        self
    }

    /// zarrfs with a verb, the options of the place, and its credentials.
    pub fn command(&self, verb: &str) -> Command {
        let mut command = limited(120, ZARRFS);
        command.arg(verb).args(&self.args).envs(self.environment.iter().map(|(name, value)| (name, value)));
        // nobody else's, which may be set on the machine
        command.env("AWS_EC2_METADATA_DISABLED", "true");
        command
    }

    /// Runs zarrfs with a verb on the place.
    pub fn zarrfs(&self, verb: &str, args: &[&str]) -> Output {
        self.command(verb).args(args).arg(&self.url).output().unwrap()
    }

    /// Mounts it.
    pub fn mount(&self, args: &[&str]) -> Mount {
        let mut command = self.command("mount");
        command.args(args);
        Mount::by(command, self.url.as_ref())
    }
}

/// All that is in the folder `from`, as an archive below `folder`: stored as it is, or deflated.
pub fn zip(from: &Path, folder: &Path, name: &str, stored: bool) -> PathBuf {
    let archive = folder.join(name);
    zip_all(&[(from, archive.clone())], stored);
    archive
}

/// As [`zip`], of several folders, each with its archive.
pub fn zip_all(pairs: &[(&Path, PathBuf)], stored: bool) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/zipped.py");
    let mut command = limited(COPYING, "python3");
    command.arg(script).arg(if stored { "stored" } else { "deflated" });
    for (folder, archive) in pairs {
        command.arg(folder).arg(archive);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Whether somebody answers a request, whatever he says.
fn answers(port: u16) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /.nothing HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")?;
    let mut begin = [0; 5];
    stream.read_exact(&mut begin)?;
    Ok(&begin == b"HTTP/")
}

/// Starts a process that the kernel ends with this one. It does so when the thread ends that has started it: here one
/// that never does.
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
    child.recv().expect("it can be started")
}
