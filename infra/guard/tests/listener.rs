//! Goal: no caller keeps another from being answered, and wrong requests are refused as the standards say. Method:
//! requests written by hand to a listener with short limits. No test asserts speed: what must happen happens within
//! `PATIENCE`.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{Response, StatusCode};
use axum::routing::{get, post};
use std::net::SocketAddr;
use std::time::Duration;
use stepwarden_guard::listener::{self, Limits, Refusal, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than any test: a limit that no test reaches.
const LONG: Duration = Duration::from_secs(3600);
const MOST_BODY: usize = 1000;

fn limits() -> Limits {
    Limits { connections: 8, head: LONG, body: LONG, stalled: LONG }
}

fn refuse(refusal: Refusal) -> Response<Body> {
    let mut response = Response::new(Body::from(refusal.detail()));
    *response.status_mut() = refusal.status();
    response
}

async fn echo(request: Request) -> Result<Vec<u8>, StatusCode> {
    let read = to_bytes(request.into_body(), usize::MAX).await;
    read.map(|bytes| bytes.to_vec()).map_err(|_| StatusCode::IM_A_TEAPOT)
}

async fn serve(limits: Limits) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new()
        .route("/", get(async || "hello"))
        .route("/echo", post(echo))
        .route("/large", get(async || vec![b'x'; 64 << 20]))
        .fallback(async || StatusCode::NOT_FOUND);
    let settings = Settings { most_body: MOST_BODY, grace: PATIENCE, refuse, limits };
    tokio::spawn(listener::serve(listener, router, settings, std::future::pending()));
    address
}

async fn open(address: SocketAddr, sent: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(sent.as_bytes()).await.unwrap();
    stream
}

/// Everything until the other side closes.
async fn rest(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the connection is closed");
    drop(read);
    String::from_utf8_lossy(&answer).into_owned()
}

async fn ask(address: SocketAddr, sent: &str) -> String {
    rest(open(address, sent).await).await
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{answer:?}"))
}

const GOOD: &str = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

async fn is_answered(address: SocketAddr) {
    assert_eq!(status(&ask(address, GOOD).await), 200);
}

// There are more incomplete requests than places: each new caller gets the place of the one that has waited longest.
#[tokio::test]
async fn half_requests_keep_nobody_out() {
    let address = serve(limits()).await;
    let mut open_ones = Vec::new();
    for n in 0..100 {
        let half = ["", "GE", "GET / HTTP/1.1\r\nhost: localhost\r\n", "GET / HTTP/1.1\r\nhost: loc"][n % 4];
        open_ones.push(open(address, half).await);
        if n % 20 == 19 {
            is_answered(address).await;
        }
    }
    is_answered(address).await;
}

// The same with connections that are kept alive and ask for nothing more.
#[tokio::test]
async fn idle_connections_keep_nobody_out() {
    let address = serve(limits()).await;
    let mut idle = Vec::new();
    for _ in 0..40 {
        let mut stream = open(address, "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        let mut answer = [0; 12];
        timeout(PATIENCE, stream.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        idle.push(stream);
    }
    is_answered(address).await;
}

#[tokio::test]
async fn a_caller_that_says_nothing_is_closed() {
    let address = serve(Limits { head: Duration::from_millis(100), ..limits() }).await;
    for half in ["", "GET / HTTP/1.1\r\nhost: localh", "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"] {
        rest(open(address, half).await).await;
    }
    is_answered(address).await;
}

// Incomplete bodies hold places for a bounded time; their sender gets an answer.
#[tokio::test]
async fn a_body_that_does_not_come_is_given_up() {
    let address = serve(Limits { body: Duration::from_millis(100), ..limits() }).await;
    let head = "POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n";
    let mut halves = Vec::new();
    for _ in 0..50 {
        let stream = timeout(PATIENCE, open(address, head)).await.unwrap();
        halves.push(stream);
    }
    timeout(PATIENCE, is_answered(address)).await.unwrap();
    let answer = rest(halves.remove(0)).await;
    assert_eq!(status(&answer), 408, "{answer}");
    assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
}

#[tokio::test]
async fn an_answer_that_nobody_reads_is_given_up() {
    let address = serve(Limits { stalled: Duration::from_millis(100), ..limits() }).await;
    let mut unread = Vec::new();
    for _ in 0..8 {
        unread.push(open(address, "GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n").await);
    }
    timeout(PATIENCE, is_answered(address)).await.unwrap();
}

#[tokio::test]
async fn a_body_is_bounded_and_read_only_if_somebody_wants_it() {
    let address = serve(limits()).await;
    let post = |path: &str, host: &str, length: usize| {
        format!("POST {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n")
    };
    // Nothing of the body is sent, so an answer can only come from the head.
    assert_eq!(status(&ask(address, &post("/echo", "evil.example", 500)).await), 421);
    assert_eq!(status(&ask(address, &post("/echo", "[::1].evil.example", 500)).await), 400);
    assert_eq!(status(&ask(address, &post("/nowhere", "localhost", 500)).await), 404);
    assert_eq!(status(&ask(address, &post("/echo", "localhost", MOST_BODY + 1)).await), 413);
    let whole = post("/echo", "localhost", MOST_BODY) + &"x".repeat(MOST_BODY);
    assert_eq!(status(&ask(address, &whole).await), 200);
    let chunked = "POST /echo HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = format!("{MOST_BODY:x}\r\n{}\r\n", "x".repeat(MOST_BODY));
    assert_eq!(status(&ask(address, &format!("{chunked}{chunk}0\r\n\r\n")).await), 200);
    assert_eq!(status(&ask(address, &format!("{chunked}{chunk}1\r\nx\r\n0\r\n\r\n")).await), 413);
    for wrong in ["zz\r\nx\r\n0\r\n\r\n", "-1\r\n", "1\r\nxyz\r\n0\r\n\r\n", "ffffffffffffffffff\r\nx"] {
        assert_eq!(status(&ask(address, &format!("{chunked}{wrong}")).await), 400, "{wrong:?}");
    }
}

// RFC 9112, section 3.2; RFC 9110, sections 9.3.2 and 15.6.6.
#[tokio::test]
async fn what_the_standards_say_is_answered() {
    let address = serve(limits()).await;
    for (sent, wanted) in [
        ("GET / HTTP/1.1\r\nconnection: close\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\nconnection: close\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: localhost\r\nHost: evil.example\r\nconnection: close\r\n\r\n", 400),
        ("GET / HTTP/1.0\r\n\r\n", 421),
        ("GET / HTTP/1.0\r\nhost: localhost\r\n\r\n", 200),
        ("GET http://evil.example/ HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", 421),
        ("GET http://localhost/ HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", 200),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        ("nonsense\r\n\r\n", 400),
        (&format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(100_000)), 431),
    ] {
        assert_eq!(status(&ask(address, sent).await), wanted, "{:.80}", sent);
    }
    let whole = ask(address, GOOD).await;
    let head = ask(address, &GOOD.replace("GET", "HEAD")).await;
    let (fields, body) = head.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, "");
    assert!(whole.ends_with("\r\n\r\nhello") && fields.to_lowercase().contains("content-length: 5"), "{head}");
    assert_eq!(status(&ask(address, &GOOD.replace("GET /", "HEAD /nowhere")).await), 404);
}

#[test]
fn three_listeners_leave_files_for_the_rest() {
    assert!(3 * Limits::default().connections < listener::open_files());
}
