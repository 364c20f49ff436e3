//! Failures of connections: which of them no retry can mend, and what to do about them. This module
//! sends nothing.

use super::request_error::Cause;
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::Url;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{AlertDescription, CertificateError, RootCertStore};
use std::env;
use std::error::Error;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use zarrfs_base::error::is_sandboxed;

/// Variables that name the certificates of trusted issuers.
pub(super) const CERTIFICATES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// What the error of hyper-util says if a proxy answers CONNECT with status 407. The type of that
/// error is private.
const LACKS_PASSWORD: &str = "proxy authorization required";

/// Returns the cause for a request to `url` that failed before its answer. `certificates` is the
/// result of [`lack_of_certificates`].
pub(super) fn cause_of(error: &reqwest::Error, url: &Url, certificates: Option<&str>) -> Cause {
    if let Some(why) = find::<rustls::Error>(error).and_then(|e| refusal(e, certificates)) {
        return Cause::Unusable(why);
    }
    let text = text_of(error);
    if !error.is_connect() {
        return Cause::Broken(text);
    }
    if text.contains(LACKS_PASSWORD) {
        return refusal_of_proxy(url);
    }
    let errno = find::<std::io::Error>(error).and_then(std::io::Error::raw_os_error);
    if errno == Some(libc::EACCES) && is_sandboxed() {
        let proxy = proxy_for(url).and_then(|proxy| Url::parse(&proxy).ok());
        let port = proxy.as_ref().unwrap_or(url).port_or_known_default();
        let port = port.unwrap_or_default();
        return Cause::Unusable(format!(
            "{text}: the sandbox permits no connection to port {port}; mount with --sandbox off"
        ));
    }
    let text = match proxy_for(url) {
        Some(proxy) => {
            format!("{text}; through the proxy {proxy} (HTTP_PROXY, HTTPS_PROXY or ALL_PROXY)")
        }
        None => text,
    };
    if errno == Some(libc::ECONNREFUSED) {
        Cause::Refused(text)
    } else {
        Cause::Unreachable(text)
    }
}

/// Returns the cause for a request to `url` that a proxy refused with status 407.
pub(super) fn refusal_of_proxy(url: &Url) -> Cause {
    let proxy = proxy_for(url).unwrap_or_default();
    Cause::Unusable(format!(
        "the proxy {proxy} requires a user and a password; add them to its URL"
    ))
}

/// Returns the proxy that the environment names for requests to `url`, without its password.
fn proxy_for(url: &Url) -> Option<String> {
    let proxy = Matcher::from_env().intercept(&url.as_str().parse().ok()?)?;
    Some(proxy.uri().to_string().trim_end_matches('/').to_string())
}

/// Returns why `https://` cannot work, and what to do: a variable names no certificates that can be
/// used, or the system has none.
pub(super) fn lack_of_certificates(is_any_loaded: bool) -> Option<String> {
    let lacking: Vec<String> = CERTIFICATES
        .iter()
        .filter_map(|name| lack_of(name, &env::var_os(name)?))
        .collect();
    if !lacking.is_empty() {
        let lacking = lacking.join(", ");
        return Some(format!(
            "{lacking}; name PEM certificates of issuers, or unset the variable"
        ));
    }
    if is_any_loaded {
        None
    } else {
        Some("this system has no certificates of issuers; SSL_CERT_FILE can name some".to_string())
    }
}

/// Returns why the value of a variable in [`CERTIFICATES`] names no certificate that can be used.
fn lack_of(name: &str, value: &OsStr) -> Option<String> {
    if name == "SSL_CERT_FILE" {
        let why = lack_of_file(Path::new(value))?;
        return Some(format!("{name}={}: {why}", value.display()));
    }
    let mut why = None;
    for directory in env::split_paths(value) {
        match std::fs::read_dir(&directory) {
            Ok(mut files) => {
                if files.any(|file| file.is_ok_and(|file| lack_of_file(&file.path()).is_none())) {
                    return None;
                }
            }
            Err(e) => why = Some(zarrfs_base::error::Error::from(e).to_string()),
        }
    }
    let why = why.unwrap_or("no file in it has a certificate".to_string());
    Some(format!("{name}={}: {why}", value.display()))
}

/// Returns why a file has no certificate that can be used.
fn lack_of_file(path: &Path) -> Option<String> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(e) => return Some(zarrfs_base::error::Error::from(e).to_string()),
    };
    let mut found = CertificateDer::pem_slice_iter(&text).peekable();
    if found.peek().is_none() {
        return Some("it has no certificate".to_string());
    }
    let mut issuers = RootCertStore::empty();
    let is_any_usable = found.any(|one| one.is_ok_and(|one| issuers.add(one).is_ok()));
    (!is_any_usable).then(|| "its certificates are damaged".to_string())
}

/// Returns why a TLS connection is impossible, and what to do; `None` if another attempt may
/// succeed.
fn refusal(error: &rustls::Error, certificates: Option<&str>) -> Option<String> {
    use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage, PeerIncompatible};
    Some(match error {
        InvalidCertificate(CertificateError::UnknownIssuer) => match certificates {
            Some(lack) => format!("the certificate of the server cannot be checked: {lack}"),
            None => "the issuer of the server's certificate is unknown; SSL_CERT_FILE can name a file with it".to_string(),
        },
        InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "the server's certificate has expired, or the clock of this machine is wrong"
                .to_string()
        }
        InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => "the server's certificate is not valid yet, or the clock of this machine is wrong"
            .to_string(),
        InvalidCertificate(why) => format!("the server's certificate is refused: {why}"),
        InvalidMessage(_) => {
            "the server does not speak TLS on this port; is it http://?".to_string()
        }
        PeerIncompatible(why) => format!("the server supports no TLS that zarrfs knows: {why:?}"),
        AlertReceived(why) if !may_pass(*why) => {
            format!("the server refuses the TLS connection: {why:?}")
        }
        _ => return None,
    })
}

/// Returns whether an alert may be due to a server that starts or ends.
fn may_pass(alert: AlertDescription) -> bool {
    use AlertDescription::{CloseNotify, InternalError, UserCanceled};
    matches!(alert, CloseNotify | InternalError | UserCanceled)
}

/// Finds an error among the sources of another one, also in those of the standard library, which
/// hide theirs.
pub(super) fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = match error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
        {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// Returns an error with its causes on one line, without URLs, which may hold signatures.
pub(super) fn text_of(error: &reqwest::Error) -> String {
    let what = if error.is_connect() {
        "can't connect"
    } else if error.is_body() || error.is_decode() {
        "the answer breaks off"
    } else {
        "the request failed"
    };
    let mut line = what.to_string();
    let mut source = Error::source(error);
    while let Some(cause) = source {
        let text = cause.to_string();
        source = cause.source();
        // most causes repeat the next one
        if source.is_none() || !source.is_some_and(|next| text.contains(&next.to_string())) {
            line = format!("{line}: {text}");
        }
    }
    line
}
