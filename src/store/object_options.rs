//! The options of stores on servers. They exist in every build, so that the command line does.

use std::time::Duration;

/// How requests to a server are made.
#[derive(Clone, Debug)]
pub struct ObjectOptions {
    /// The server of the bucket, instead of the cloud's own. `http://` is allowed here.
    pub endpoint_url: Option<String>,
    /// The region of a bucket of S3, instead of what the environment, a profile or the server says.
    pub region: Option<String>,
    /// Send no credentials.
    pub anonymous: bool,
    /// Names and values of further headers; only the host that was asked for gets them.
    pub headers: Vec<(String, String)>,
    /// How long a request may take from its start to the last byte of the answer, repetitions and pauses between them
    /// included.
    pub timeout: Duration,
    /// How often a request is repeated that failed in a way that may pass.
    pub retries: u32,
    /// Take 403 for the answer that there is no such key.
    pub forbidden_is_missing: bool,
}

impl Default for ObjectOptions {
    fn default() -> Self {
        ObjectOptions {
            endpoint_url: None,
            region: None,
            anonymous: false,
            headers: Vec::new(),
            timeout: Duration::from_secs(30),
            retries: 5,
            forbidden_is_missing: false,
        }
    }
}
