//! Options of stores on servers. They exist without the feature `remote`, too, since the command
//! line needs them.

use super::TargetPlace;
use std::sync::Arc;
use std::time::Duration;

/// Options of requests to servers.
#[derive(Clone, Debug)]
pub struct ObjectOptions {
    /// Server of the bucket instead of the cloud's own. `http://` is allowed.
    pub endpoint_url: Option<String>,
    /// Region of an S3 bucket; it overrides the environment, the profile and the server.
    pub region: Option<String>,
    /// Whether to send no credentials.
    pub anonymous: bool,
    /// Names and values of additional headers, which are sent only to the hosts of the store.
    pub headers: Vec<(String, String)>,
    /// Maximum duration of a request, with all retries and the pauses between them.
    pub timeout: Duration,
    /// Maximum number of retries per request.
    pub retries: u32,
    /// Whether a refused connection is final while the server has not answered: a command fails at
    /// once, while a mount waits for a server that starts.
    pub refusal_is_final: bool,
    /// Whether status 403 means that the key does not exist.
    pub forbidden_is_missing: bool,
    /// Places to which a web server may redirect; `None` for all.
    pub redirects: Option<Arc<[TargetPlace]>>,
}

impl Default for ObjectOptions {
    fn default() -> Self {
        ObjectOptions {
            endpoint_url: None,
            region: None,
            anonymous: false,
            headers: Vec::new(),
            timeout: Duration::from_secs(30),
            retries: u32::MAX,
            refusal_is_final: false,
            forbidden_is_missing: false,
            redirects: None,
        }
    }
}
