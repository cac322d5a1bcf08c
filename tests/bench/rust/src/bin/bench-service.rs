//! A remote service: answers each request after five milliseconds. The port is the first argument.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::time::Duration;
use tokio::net::TcpListener;

const TAKES: Duration = Duration::from_millis(5);

async fn answer(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    tokio::time::sleep(TAKES).await;
    let answer = Response::builder().header("content-type", "application/json");
    Ok(answer.body(Full::new(Bytes::from_static(b"{}"))).expect("it is valid"))
}

#[tokio::main]
async fn main() {
    let port: u16 = std::env::args().nth(1).and_then(|port| port.parse().ok()).expect("a port");
    let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("a free port");
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        let _ = stream.set_nodelay(true);
        tokio::spawn(
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)),
        );
    }
}
