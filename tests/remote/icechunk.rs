//! Icechunk repositories in a bucket and on a web server, and the number of requests that they
//! take.

use crate::support::faulty_server::FaultyServer;
use crate::support::{Mount, ZARRFS, announce, copy_tree, test_data, with_timeout};
use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use zarrfs_base::json::Value;

/// A bucket with a repository.
struct IceBucket {
    _folder: tempfile::TempDir,
    server: FaultyServer,
    /// The content of `digests.json` about the repository.
    digests: Value,
}

impl IceBucket {
    fn new(repository: &str) -> IceBucket {
        let folder = tempfile::tempdir().unwrap();
        let fixtures = test_data("icechunk");
        copy_tree(
            &fixtures.join(repository),
            &folder.path().join("bucket/repo"),
        );
        let digests = fs::read(fixtures.join("digests.json")).unwrap();
        let mut digests = zarrfs_base::json::parse(&digests).unwrap();
        IceBucket {
            server: FaultyServer::new(folder.path()),
            _folder: folder,
            digests: digests[repository].take(),
        }
    }

    /// Returns the snapshot of the main branch, and an array of it with native chunks.
    fn main(&self) -> (String, String) {
        let id = self.digests["branches"]["main"].as_str().unwrap();
        let arrays = self.digests["snapshots"][id]["arrays"].as_object().unwrap();
        let is_native = |array: &Value| array["chunks"]["native"].as_u64().is_some();
        let (path, _) = arrays.iter().find(|(_, array)| is_native(array)).unwrap();
        (id.to_string(), path.clone())
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = with_timeout(120, ZARRFS);
        command.args([verb, "--anon", "--region", "us-east-1", "--endpoint-url"]);
        command
            .arg(self.server.url("").trim_end_matches('/'))
            .env("AWS_EC2_METADATA_DISABLED", "true");
        command
    }

    /// Returns the first byte of an array in a new mount, and the requests for it.
    fn first_byte(&self, args: &[&str], url: &str, array: &str) -> Vec<String> {
        let before = self.server.requests().len();
        let mut command = self.command("mount");
        // cached metadata lasts longer than a test, on a slow machine too
        command.args(["--metadata-ttl", "1m"]).args(args);
        let mount = Mount::with_command(command, url.as_ref());
        let file = fs::File::open(mount.join(array).join("data.raw")).unwrap();
        let mut byte = [0];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, 0).unwrap();
        let requests = self.server.requests();
        let requests = requests[before..].iter();
        let mut requests: Vec<String> = requests
            .map(|request| format!("{} {}", request.method, request.path))
            .collect();
        // the kernel reads ahead, and so chunks that the byte is not in
        let is_chunk = |request: &String| request.contains("/chunks/");
        let mut chunks = requests.iter().filter(|request| is_chunk(request)).count();
        requests.retain(|request| {
            chunks -= usize::from(is_chunk(request));
            !is_chunk(request) || chunks == 0
        });
        // after a second a mount asks again for its branch, whatever the time to live
        let mut asked = HashSet::new();
        requests.retain(|request| {
            let (method, path) = request.split_once(' ').unwrap();
            asked.insert(path.to_string()) || method != "HEAD"
        });
        requests
    }
}

#[test]
fn the_first_byte_takes_few_requests() {
    for (version, repository) in [(1, "v1-inline"), (2, "v2-inline")] {
        let bucket = IceBucket::new(repository);
        let (id, path) = bucket.main();
        let array = path.trim_start_matches('/');
        let cache = tempfile::tempdir().unwrap();
        let cache = cache.path().join("cache");
        let snapshot = format!("snapshot:{id}");
        let cached = ["--cache-dir", cache.to_str().unwrap()];
        let named = [&cached[..], &["--ref", "branch:main"]].concat();
        let by_id = [&cached[..], &["--ref", &snapshot]].concat();
        let web = bucket.server.url("bucket/repo");
        for (what, args, url, most) in [
            ("main", &[][..], "s3://bucket/repo", 6),
            ("a snapshot", &["--ref", &snapshot], "s3://bucket/repo", 4),
            ("main on a web server", &[], &web, 14),
            ("main, into a cache", &cached, "s3://bucket/repo", 6),
            (
                "main, from a cache",
                &cached,
                "s3://bucket/repo",
                4 - version,
            ),
            (
                "main by name, from a cache",
                &named,
                "s3://bucket/repo",
                3 - version,
            ),
            ("a snapshot, from a cache", &by_id, "s3://bucket/repo", 0),
        ] {
            let requests = bucket.first_byte(args, url, array);
            announce(&format!(
                "{repository}, {what}: {} {requests:?}",
                requests.len()
            ));
            assert!(requests.len() <= most, "{what}: {requests:?}");
        }
    }
}

#[test]
fn arrays_in_buckets_and_on_web_servers_are_read() {
    for repository in ["v1-split", "v2-split"] {
        let bucket = IceBucket::new(repository);
        let id = bucket.digests["branches"]["main"].as_str().unwrap();
        let arrays = bucket.digests["snapshots"][id]["arrays"]
            .as_object()
            .unwrap();
        for url in ["s3://bucket/repo", &bucket.server.url("bucket/repo")] {
            let mount = Mount::with_command(bucket.command("mount"), url.as_ref());
            for (path, array) in arrays {
                let data = mount.join(path.trim_start_matches('/')).join("data.raw");
                assert_eq!(
                    digest_of(&data),
                    array["sha256"].as_str().unwrap(),
                    "{url} {path}"
                );
            }
            mount.assert_no_problem();
        }
        let (path, array) = arrays.iter().next().unwrap();
        let output = bucket
            .command("cat")
            .args(["--ref", "branch:main"])
            .arg(format!("s3://bucket/repo{path}"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &output.stdout).unwrap();
        assert_eq!(digest_of(file.path()), array["sha256"].as_str().unwrap());
    }
}

fn digest_of(path: &Path) -> String {
    crate::support::digest(path).unwrap().1
}
