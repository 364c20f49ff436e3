//! What requests do while a server fails, and when it is back.

use super::*;
use crate::connector::Connector;
use crate::transport::{ServerRequest, Transport};
use reqwest::Method;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Whether the server has a failure for a request.
type IsWrong = Arc<dyn Fn(&Request) -> bool + Send + Sync>;

/// Starts a server that answers with 503 while `is_wrong`.
fn failing_while(is_wrong: IsWrong) -> Server {
    Server::new(move |request, _| {
        if is_wrong(request) {
            reply(503, &[], b"")
        } else {
            reply(200, &[], b"right")
        }
    })
}

fn transport(host: &str, seconds: u64, retries: u32) -> (Transport, Arc<Stats>) {
    let stats = Arc::new(Stats::default());
    let timeout = Duration::from_secs(seconds);
    (
        Transport::new(
            vec![host.to_string()],
            HeaderMap::new(),
            timeout,
            retries,
            stats.clone(),
        )
        .unwrap(),
        stats,
    )
}

/// Returns the body of the answer and the number of attempts.
async fn send(
    transport: &Transport,
    method: Method,
    url: String,
) -> std::result::Result<(Vec<u8>, u32), String> {
    let request = ServerRequest::new(method, url.parse().unwrap());
    let mut body = Vec::new();
    let answer = transport
        .send(&request, &mut body)
        .await
        .map_err(|e| e.to_string())?;
    Ok((body, answer.tries))
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}

/// Repeats `round`, which returns what is wrong, until nothing is. Only a round that takes `slow`
/// or longer may fail: the machine was too busy for the times on which the round depends.
#[track_caller]
fn assert_right(slow: Duration, round: impl Fn() -> std::result::Result<(), String>) {
    let mut wrong = String::new();
    for _ in 0..20 {
        let begin = Instant::now();
        match round() {
            Ok(()) => return,
            Err(e) => wrong = e,
        }
        assert!(begin.elapsed() >= slow, "{wrong}");
    }
    panic!("again and again: {wrong}");
}

/// "repeated until --timeout": also a request that began during an outage, if the server is back.
#[test]
fn a_request_of_an_outage_is_repeated_when_another_one_was_answered() {
    assert_right(Duration::from_millis(3500), repeat_during_an_outage);
}

/// Sends a request that fails, while another one is answered. This takes less than three seconds.
fn repeat_during_an_outage() -> std::result::Result<(), String> {
    let (is_back, slow): (Arc<AtomicBool>, _) = (Arc::default(), AtomicU32::new(0));
    let back = is_back.clone();
    let server = failing_while(Arc::new(move |request| {
        match request.target.rsplit('/').next().unwrap() {
            "slow" => {
                let is_first = slow.fetch_add(1, Ordering::SeqCst) == 0;
                while is_first && !back.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                is_first
            }
            name => name == "bad",
        }
    }));
    let (transport, _) = transport("127.0.0.1", 6, 2);
    let url = |name: &str| format!("{}/{name}", server.url);
    run(async {
        // a probe is short after a server that took a tenth of a second to fail
        let mut is_quick = false;
        while !is_quick {
            let begin = Instant::now();
            assert!(send(&transport, Method::GET, url("bad")).await.is_err());
            is_quick = begin.elapsed() < Duration::from_millis(100);
        }
        // it waits longer for an answer than a request that only reads
        let slow = send(&transport, Method::POST, url("slow"));
        let other = async {
            let answer = send(&transport, Method::GET, url("other")).await;
            is_back.store(true, Ordering::SeqCst);
            answer
        };
        let (slow, other) = tokio::join!(slow, other);
        let found = (other?.0, slow?.1);
        if found == (b"right".to_vec(), 2) {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
}

/// "An outage takes --timeout once", also of a server that is silent.
#[test]
fn a_silent_server_is_waited_for_once() {
    assert_right(Duration::from_millis(4400), ask_a_silent_server);
}

/// Sends requests to a silent server, which take four seconds together.
fn ask_a_silent_server() -> std::result::Result<(), String> {
    let is_back = Arc::new(AtomicBool::new(false));
    let back = is_back.clone();
    let server = Server::new(move |_, _| {
        if back.load(Ordering::SeqCst) {
            reply(200, &[], b"right")
        } else {
            Reply {
                bytes: Vec::new(),
                after: After::Stall,
            }
        }
    });
    let (transport, stats) = transport("127.0.0.1", 3, 1000);
    let url = |name: usize| format!("{}/{name}", server.url);
    let sent = || stats.requests.get();
    run(async {
        assert!(send(&transport, Method::GET, url(0)).await.is_err());
        // "if the server was silent, later requests within a second get half a second"
        let e = send(&transport, Method::GET, url(1)).await.unwrap_err();
        if !e.contains("no data for 0.5 s") {
            return Err(e);
        }
        let before = sent();
        let all = (0..20).map(|name| send(&transport, Method::GET, url(name)));
        assert!(
            futures_join(all)
                .await
                .iter()
                .all(|outcome| outcome.is_err())
        );
        let together = sent() - before;
        if !(1..=3).contains(&together) {
            return Err(format!("{together} requests at the same time"));
        }
        // a server that is back is used at once
        is_back.store(true, Ordering::SeqCst);
        let (body, _) = send(&transport, Method::GET, url(2)).await?;
        assert_eq!(body, b"right");
        Ok(())
    })
}

/// Waits for all futures at the same time.
async fn futures_join<T>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut all: Vec<_> = all.map(|one| (Box::pin(one), None)).collect();
    std::future::poll_fn(|context| {
        for (one, done) in all.iter_mut().filter(|(_, done)| done.is_none()) {
            if let std::task::Poll::Ready(value) = one.as_mut().poll(context) {
                *done = Some(value);
            }
        }
        if all.iter().all(|(_, done)| done.is_some()) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    all.into_iter().filter_map(|(_, done)| done).collect()
}

/// A service for tokens that fails is no outage of the store: requests to the store are repeated.
#[test]
fn a_failing_service_for_credentials_is_no_outage_of_the_store() {
    let first = AtomicBool::new(true);
    // the pause between two attempts is random, and only an outage of a second counts
    let server = Server::new(move |request, _| {
        if request.target.ends_with("/token") || first.swap(false, Ordering::SeqCst) {
            reply(503, &[("retry-after", "1")], b"")
        } else {
            reply(200, &[], b"right")
        }
    });
    let (transport, stats) = transport("127.0.0.1", 30, 1);
    run(async {
        let token = server.url.replace("127.0.0.1", "localhost") + "/token";
        assert!(send(&transport, Method::GET, token).await.is_err());
        assert!(!stats.is_failing());
        assert_eq!(
            send(&transport, Method::GET, format!("{}/a", server.url))
                .await
                .unwrap()
                .1,
            2
        );
        // the hosts of other regions and zones are found meanwhile
        transport.add_host("localhost");
        let token = server.url.replace("127.0.0.1", "localhost") + "/token";
        assert!(send(&transport, Method::GET, token).await.is_err());
        assert!(stats.is_failing());
    });
}

/// "`gs://` without credentials keeps `--timeout`": each request would wait for the service
/// otherwise.
#[test]
fn a_metadata_service_that_is_silent_is_not_asked_again_at_once() {
    let server = Server::new(|_, number| match number {
        0 => Reply {
            bytes: Vec::new(),
            after: After::Stall,
        },
        _ => reply(200, &[], b"token"),
    });
    let timeout = Duration::from_millis(500);
    let transport =
        Transport::new(Vec::new(), HeaderMap::new(), timeout, 0, Arc::default()).unwrap();
    let connector = Connector::new(Arc::new(transport), "b");
    let url: Url = server.url.parse().unwrap();
    let ask = || {
        let request = ServerRequest::new(reqwest::Method::GET, url.clone());
        let connector = connector.clone();
        let url = url.clone();
        runtime::block_on(async move {
            Ok(connector
                .ask_metadata(&url, &request, &mut Vec::new())
                .await
                .map(|answer| answer.status.as_u16()))
        })
    };
    for _ in 0..5 {
        assert!(ask().unwrap().is_err());
    }
    // the client has not waited for the server to read it
    wait_until("the request", || !server.requests().is_empty());
    assert_eq!(server.requests().len(), 1);
}
