//! Looking up hosts. It reads files of the system, which a sandbox closes, so a process in one has
//! it done outside.

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::outside::{ANSWER_LIMIT, ask_outside};

/// The service outside a sandbox that runs [`find_host`].
pub const FIND_HOST: &str = "find-host";

/// Looks up the addresses of a host, and returns each on a line.
pub fn find_host(host: &str) -> Result<Vec<u8>> {
    let found = (host, 0)
        .to_socket_addrs()
        .map_err(|e| Error::io(e.to_string()))?;
    let lines: String = found.map(|address| format!("{}\n", address.ip())).collect();
    Ok(lines.into_bytes())
}

/// Looks up hosts for requests.
pub(super) struct Hosts;

impl Resolve for Hosts {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_string();
        Box::pin(async move {
            let found = tokio::task::spawn_blocking(move || {
                match ask_outside(FIND_HOST, host.as_bytes(), ANSWER_LIMIT) {
                    Some(answer) => answer.map(|answer| answer.bytes),
                    None => find_host(&host),
                }
            });
            let lines = String::from_utf8(found.await??)?;
            let addresses: Vec<SocketAddr> = lines
                .lines()
                .filter_map(|line| line.parse::<IpAddr>().ok())
                .map(|address| SocketAddr::new(address, 0))
                .collect();
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}
