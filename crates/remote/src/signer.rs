//! Signs the requests to a bucket of S3. Signs a request again if the server refuses the
//! credentials and there are others, or if it says that the bucket is in another region. This
//! module does not know where credentials come from.

use super::answer_headers::text;
use super::connector::{Connector, ValueBuffer, element, http_error, url_of};
use super::renewed_keys::{Refusal, RenewedKeys};
use super::request_error::{Cause, RequestError, refusal_of};
use super::transport::{BUCKET_REGION, ServerAnswer};
use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService,
};
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderName};
use std::sync::{Arc, Mutex};
use zarrfs_base::error::Error;
use zarrfs_base::memory::lock;

/// Header with the digest of the body, which `object_store` sets.
const DIGEST: HeaderName = HeaderName::from_static("x-amz-content-sha256");

/// Codes of answers whose body names the region of the bucket. Some servers send only this, and no
/// header.
const ELSEWHERE: [&str; 3] = [
    "AuthorizationHeaderMalformed",
    "PermanentRedirect",
    "IllegalLocationConstraintException",
];

/// Maximum length of the name of a region.
const MAX_REGION: usize = 64;

/// A connector that signs requests. The clients of `object_store` sign with a placeholder, which it
/// replaces.
#[derive(Clone)]
pub(super) struct Signer {
    connector: Connector,
    /// `None` if requests are not signed.
    keys: Option<RenewedKeys>,
    /// The region in the URLs of requests.
    first_region: String,
    /// The region in which the bucket is believed to lie. The lock protects only this name.
    region: Arc<Mutex<String>>,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signer")
    }
}

impl HttpConnector for Signer {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Signer {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let url = url_of(&request)?;
        self.answer(url, &mut request).await.map_err(http_error)
    }
}

impl Signer {
    /// Creates a connector that signs with `keys` for a region.
    pub fn new(connector: Connector, keys: Option<RenewedKeys>, region: String) -> Self {
        Signer {
            connector,
            keys,
            first_region: region.clone(),
            region: Arc::new(Mutex::new(region)),
        }
    }

    /// Returns the placeholder with which the clients of `object_store` sign requests.
    pub fn placeholder() -> AwsCredential {
        AwsCredential {
            key_id: "unsigned".to_string(),
            secret_key: "unsigned".to_string(),
            token: None,
        }
    }

    /// Sends a request, at most once more for another region and once more with other credentials.
    async fn answer(
        &self,
        mut url: Url,
        request: &mut HttpRequest,
    ) -> Result<HttpResponse, RequestError> {
        let mut credential = match &self.keys {
            Some(keys) => {
                let current = keys.current().await;
                Some(current.map_err(|e| unsigned(request, &url, e))?)
            }
            None => None,
        };
        let mut may_move = true;
        let mut may_renew = true;
        let mut body = ValueBuffer::of(request);
        loop {
            let region = lock(&self.region).clone();
            self.enter(&region, &mut url, request)
                .map_err(|e| unsigned(request, &url, e))?;
            if let Some(credential) = &credential {
                sign(request, credential, &region).map_err(|e| unsigned(request, &url, e))?;
            }
            let answer = self
                .connector
                .exchange(&url, request, Some(region.clone()), &mut body)
                .await?;
            if may_move && let Some(other) = other_region(&answer, &body, &region) {
                may_move = false;
                log::info!(
                    "the bucket {} is in the region {other}, not in {region}",
                    self.connector.bucket
                );
                *lock(&self.region) = other;
                continue;
            }
            if let (Some(keys), Some(used)) = (&self.keys, &credential) {
                let refusal = refusal(&answer, &body);
                if may_renew
                    && let Some(refusal) = refusal
                    && let Some(other) = keys.instead_of(used, refusal).await
                {
                    may_renew = false;
                    credential = Some(other);
                    continue;
                }
                if !may_renew && refusal.is_none() {
                    keys.record_use();
                }
            }
            return self.connector.response(&url, request, answer, body);
        }
    }

    /// Addresses a request to the provider's host of a region. Other servers have one host for all.
    fn enter(&self, region: &str, url: &mut Url, request: &mut HttpRequest) -> Result<(), Error> {
        let Some(own) = url.host_str().filter(|_| region != self.first_region) else {
            return Ok(());
        };
        let Some(before) = own.strip_suffix(&host_in(&self.first_region)) else {
            return Ok(());
        };
        let new = format!("{before}{}", host_in(region));
        let uri = match url.set_host(Some(&new)) {
            Ok(()) => url.as_str().parse().ok(),
            Err(_) => None,
        };
        *request.uri_mut() = uri.ok_or_else(|| Error::invalid(format!("{new} is not a host")))?;
        self.connector.transport.add_host(&new);
        Ok(())
    }
}

/// Returns the provider's host of a region.
fn host_in(region: &str) -> String {
    format!("s3.{region}.amazonaws.com")
}

/// Returns the failure of a request that cannot be signed.
fn unsigned(request: &HttpRequest, url: &Url, e: Error) -> RequestError {
    RequestError::new(request.method(), url, Cause::Credentials(e), 1)
}

/// Replaces the signature of a request.
fn sign(request: &mut HttpRequest, credential: &AwsCredential, region: &str) -> Result<(), Error> {
    let headers = request.headers_mut();
    headers.remove(AUTHORIZATION);
    headers.remove("x-amz-security-token");
    let digest = text(headers, &DIGEST).map(str::to_string);
    let hashed = digest.as_deref().and_then(bytes_of_hex);
    let is_hashed = digest.as_deref() != Some("UNSIGNED-PAYLOAD");
    let authorizer = AwsAuthorizer::new(credential, "s3", region).with_sign_payload(is_hashed);
    let signed = authorizer.try_authorize(request, hashed.as_deref());
    signed.map_err(|e| Error::io(super::cloud::line_of(&e)))
}

fn bytes_of_hex(text: &str) -> Option<Vec<u8>> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok())
        .collect()
}

/// Returns the region that an answer names, if the request failed because that is another region.
fn other_region(answer: &ServerAnswer, body: &[u8], region: &str) -> Option<String> {
    if !matches!(answer.status.as_u16(), 301 | 302 | 307 | 308 | 400 | 403) {
        return None;
    }
    let named = text(&answer.headers, &BUCKET_REGION)
        .map(str::to_string)
        .or_else(|| region_in(body))?;
    (is_region(&named) && named != region).then_some(named)
}

/// Returns the region of the bucket, if the body of an error names it.
fn region_in(body: &[u8]) -> Option<String> {
    let code = element(body, "Code")?;
    ELSEWHERE
        .contains(&code.as_str())
        .then(|| element(body, "Region"))?
}

/// Returns whether a text can be the name of a region.
pub(super) fn is_region(text: &str) -> bool {
    (1..=MAX_REGION).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// Returns the kind of refusal, if the server refuses the credentials.
fn refusal(answer: &ServerAnswer, body: &[u8]) -> Option<Refusal> {
    // the body of a success is a value
    let code = (!answer.status.is_success())
        .then(|| element(body, "Code"))
        .flatten();
    refusal_of(answer.status, code.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::StatusCode;
    use reqwest::header::{HeaderMap, HeaderValue};

    fn answer(status: u16, region: Option<&'static str>) -> ServerAnswer {
        let mut headers = HeaderMap::new();
        headers.extend(region.map(|region| (BUCKET_REGION, HeaderValue::from_static(region))));
        let status = StatusCode::from_u16(status).unwrap();
        ServerAnswer {
            tries: 1,
            status,
            headers,
        }
    }

    #[test]
    fn regions_are_taken_only_from_answers_about_regions() {
        let malformed =
            "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>";
        let other = |status, region, body: &str| {
            other_region(&answer(status, region), body.as_bytes(), "us-east-1")
        };
        assert_eq!(
            other(301, Some("eu-west-1"), "").as_deref(),
            Some("eu-west-1")
        );
        assert_eq!(other(400, None, malformed).as_deref(), Some("eu-west-1"));
        assert_eq!(other(400, Some("ap-1"), malformed).as_deref(), Some("ap-1"));
        for (status, region, body) in [
            (301, Some("us-east-1"), ""),
            (200, Some("eu-west-1"), ""),
            (404, Some("eu-west-1"), ""),
            (301, Some("a/b"), ""),
            (
                400,
                None,
                "<Code>InvalidArgument</Code><Region>eu-west-1</Region>",
            ),
        ] {
            assert_eq!(other(status, region, body), None, "{status} {region:?}");
        }
    }

    #[test]
    fn refusals_are_distinguished_from_other_failures() {
        use Refusal::{OfKeys, Unclear};
        let code = |status, code: &str| {
            refusal(
                &answer(status, None),
                format!("<Error><Code>{code}</Code></Error>").as_bytes(),
            )
        };
        for (status, named) in [
            (400, "ExpiredToken"),
            (403, "ExpiredToken"),
            (400, "TokenRefreshRequired"),
            (403, "InvalidAccessKeyId"),
            (403, "SignatureDoesNotMatch"),
            (401, "AccessDenied"),
        ] {
            assert_eq!(code(status, named), Some(OfKeys), "{status} {named}");
        }
        assert_eq!(
            (code(403, "AccessDenied"), code(403, "AllAccessDisabled")),
            (Some(Unclear), Some(Unclear))
        );
        for (status, expected) in [
            (401, Some(OfKeys)),
            (403, Some(Unclear)),
            (400, Some(Unclear)),
            (404, None),
        ] {
            assert_eq!(refusal(&answer(status, None), b""), expected, "{status}");
        }
        assert_eq!(
            (
                code(400, "InvalidArgument"),
                code(403, "RequestTimeTooSkewed")
            ),
            (None, None)
        );
        assert_eq!(
            (code(404, "NoSuchKey"), code(500, "InternalError")),
            (None, None)
        );
    }

    #[test]
    fn hex_digits_are_bytes() {
        assert_eq!(bytes_of_hex("00fFa1"), Some(vec![0, 255, 161]));
        assert_eq!((bytes_of_hex("0"), bytes_of_hex("0g")), (None, None));
    }
}
