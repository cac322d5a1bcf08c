//! One way to serve HTTP/1.1 on loopback: limits on time, number and size, and the standards' answers to bad requests.
//!
//! | what | at most | then |
//! |---|---|---|
//! | connections | [`Limits::connections`], below the limit of open files | the connection that waited longest is closed |
//! | a head, and the wait for one | [`HEAD`] | closed |
//! | a body | [`BODY`], and the listener's own size | 408, 413 |
//! | an answer that is not read | [`STALLED`] | closed |
//!
//! A request meant for another host is refused before its body is read, and so is whatever a handler refuses without
//! reading it. `HEAD` is `GET` without the body. HTTP/2 is refused with 505.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::host::{self, Wrong};

/// How long a caller may take for the head of a request, and may leave a connection without one.
pub const HEAD: Duration = Duration::from_secs(20);
/// How long a body may take.
pub const BODY: Duration = Duration::from_secs(30);
/// How long a caller may leave unread an answer that does not fit into the system's buffers.
pub const STALLED: Duration = Duration::from_secs(30);
/// Maximum number of connections of one listener, if the limit of open files allows that many.
pub const MOST_CONNECTIONS: usize = 1024;
/// Maximum number of bytes of a head.
const HEAD_BYTES: usize = 64 * 1024;
/// How long a connection that is closed in favour of another may take to send the end of its last answer.
const LAST_BYTES: Duration = Duration::from_millis(100);
/// Pause after the system refused a connection for lack of files or memory.
const OUT_OF_FILES: Duration = Duration::from_millis(100);

/// The settings of one listener.
#[derive(Clone, Copy)]
pub struct Settings {
    /// Maximum number of bytes of a body. A handler may allow less.
    pub most_body: usize,
    /// How long running requests may take after the shutdown has begun.
    pub grace: Duration,
    /// A refusal in the listener's own form.
    pub refuse: fn(Refusal) -> Response<Body>,
    /// Its limits.
    pub limits: Limits,
}

/// Limits that do not depend on what is served.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of connections.
    pub connections: usize,
    /// See [`HEAD`].
    pub head: Duration,
    /// See [`BODY`].
    pub body: Duration,
    /// See [`STALLED`].
    pub stalled: Duration,
}

impl Default for Limits {
    /// A quarter of the files that this process may have open, so that three listeners leave room for the rest.
    fn default() -> Self {
        let connections = (open_files() / 4).clamp(8, MOST_CONNECTIONS);
        Self { connections, head: HEAD, body: BODY, stalled: STALLED }
    }
}

/// Why the listener refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// 400 or 421.
    Host(Wrong),
    /// 400: wrongly chunked, or cut short.
    MalformedBody,
    /// 408: the body did not arrive in time.
    SlowBody,
    /// 413: more than this many bytes.
    TooLarge(usize),
}

impl Refusal {
    /// Its status.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::Host(Wrong::Misdirected) => StatusCode::MISDIRECTED_REQUEST,
            Self::Host(Wrong::Malformed(_)) | Self::MalformedBody => StatusCode::BAD_REQUEST,
            Self::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
        }
    }

    /// What is wrong, and what to do.
    #[must_use]
    pub fn detail(self) -> String {
        match self {
            Self::Host(Wrong::Misdirected) => "this system answers to localhost and 127.0.0.1 only".into(),
            Self::Host(Wrong::Malformed(why)) => why.into(),
            Self::MalformedBody => "the body is incomplete, or its chunks are malformed".into(),
            Self::SlowBody => format!("the body did not arrive within {} s", BODY.as_secs()),
            Self::TooLarge(most) => format!("the body is too large; send at most {most} bytes"),
        }
    }
}

/// Cuts its connection: nothing more is written, and the server closes it. Every request has one in its extensions.
#[derive(Clone, Debug, Default)]
pub struct Cut(Arc<AtomicBool>);

impl Cut {
    /// Cuts.
    pub fn cut(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn check(&self) -> io::Result<()> {
        if self.0.load(Ordering::Acquire) { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}

/// Serves `router` until `shutdown` is ready, then answers running requests, for at most [`Settings::grace`].
///
/// On a loopback address only requests to names of this machine are answered.
///
/// # Errors
/// The listener's address cannot be read.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    settings: Settings,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let loopback_only = listener.local_addr()?.ip().is_loopback();
    let places = Arc::new(Semaphore::new(settings.limits.connections));
    let seats = Arc::new(Seats::default());
    let (close, closing) = watch::channel(false);
    let mut connections = JoinSet::new();
    let accept = async {
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // This may concern one connection or all; the next try shows.
                    tracing::warn!("a connection was not accepted: {error}");
                    sleep(OUT_OF_FILES).await;
                    continue;
                }
            };
            let place = seats.place(&places).await;
            let door = Door { router: router.clone(), settings, loopback_only, seats: Arc::clone(&seats) };
            connections.spawn(connection(stream, place, door, closing.clone()));
            while connections.try_join_next().is_some() {}
        }
    };
    tokio::select! {
        () = accept => {}
        () = shutdown => {}
    }
    drop(listener);
    close.send_replace(true);
    let ended = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(settings.grace, ended).await;
    Ok(())
}

#[derive(Clone)]
struct Door {
    router: Router,
    settings: Settings,
    loopback_only: bool,
    seats: Arc<Seats>,
}

async fn connection(stream: TcpStream, place: OwnedSemaphorePermit, door: Door, mut closing: watch::Receiver<bool>) {
    // Without it, small answers may wait 40 ms for an acknowledgement. If it fails, that is all it costs.
    let _ = stream.set_nodelay(true);
    let limits = door.settings.limits;
    let seat = Seat::new(Arc::clone(&door.seats));
    let cut = Cut::default();
    let stream = Stream { stream, cut: cut.clone(), patience: limits.stalled, stalled: None };
    let own = Arc::clone(&seat.0);
    let service = service_fn(move |request| Box::pin(answer(door.clone(), Arc::clone(&own), cut.clone(), request)));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head).max_header_size(HEAD_BYTES);
    let mut conn = builder.serve_connection(TokioIo::new(stream), service);
    let ended = tokio::select! {
        ended = poll_fn(|cx| conn.poll_without_shutdown(cx)) => ended,
        () = async { drop(closing.wait_for(|closing| *closing).await) } => {
            Pin::new(&mut conn).graceful_shutdown();
            poll_fn(|cx| conn.poll_without_shutdown(cx)).await
        }
        () = seat.0.leave.notified() => {
            Pin::new(&mut conn).graceful_shutdown();
            loop {
                let ended = timeout(LAST_BYTES, poll_fn(|cx| conn.poll_without_shutdown(cx))).await;
                // A request that arrived at the same moment is answered first.
                if ended.is_ok() || !seat.0.is_busy.load(Ordering::Acquire) {
                    break Ok(());
                }
            }
        }
    };
    let mut stream = conn.into_parts().io.into_inner();
    // RFC 9110, section 15.6.6.
    if ended.is_err_and(|error| error.is_parse_version_h2()) {
        let answer = b"HTTP/1.1 505 HTTP Version Not Supported\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let _ = timeout(LAST_BYTES, stream.write_all(answer)).await;
    }
    let _ = timeout(LAST_BYTES, stream.shutdown()).await;
    drop((stream, seat, place));
}

async fn answer(
    door: Door,
    seat: Arc<Waiting>,
    cut: Cut,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let busy = Busy::new(Arc::clone(&door.seats), seat);
    let Settings { refuse, most_body, limits, .. } = door.settings;
    if door.loopback_only
        && let Err(wrong) = host::check(request.version(), request.uri(), request.headers())
    {
        return Ok(busy.with(refuse(Refusal::Host(wrong))));
    }
    let trouble = Arc::new(OnceLock::new());
    let mut request = request.map(|body| {
        if body.is_end_stream() {
            return Body::empty();
        }
        let patience = Box::pin(sleep(limits.body));
        Body::new(Bounded { body, left: most_body, most: most_body, patience, trouble: Arc::clone(&trouble) })
    });
    if request.method() == Method::HEAD {
        // hyper sends only the head of the answer.
        *request.method_mut() = Method::GET;
    }
    request.extensions_mut().insert(cut);
    let Ok(answered) = TowerToHyperService::new(door.router).call(request).await;
    let Some(&refusal) = trouble.get() else { return Ok(busy.with(answered)) };
    let mut refused = refuse(refusal);
    refused.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    Ok(busy.with(refused))
}

/// A body with limits on time and size. If it is cut off, the handler learns why.
struct Bounded {
    body: Incoming,
    left: usize,
    most: usize,
    patience: Pin<Box<Sleep>>,
    trouble: Arc<OnceLock<Refusal>>,
}

impl Bounded {
    fn fail<T>(&self, trouble: Refusal) -> Poll<Option<Result<T, io::Error>>> {
        let _ = self.trouble.set(trouble);
        Poll::Ready(Some(Err(io::Error::other("the body was refused"))))
    }
}

impl HttpBody for Bounded {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        // Before a byte is read of a body that is declared as too large.
        if self.left == self.most && self.body.size_hint().lower() > self.most as u64 {
            return self.fail(Refusal::TooLarge(self.most));
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                match self.left.checked_sub(bytes) {
                    Some(left) => self.left = left,
                    None => return self.fail(Refusal::TooLarge(self.most)),
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(_))) => self.fail(Refusal::MalformedBody),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending if self.patience.as_mut().poll(cx).is_ready() => self.fail(Refusal::SlowBody),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The connections that wait for a request, longest wait first.
#[derive(Default)]
struct Seats {
    waiting: Mutex<VecDeque<Arc<Waiting>>>,
    /// Signals that a connection began to wait.
    changed: Notify,
}

/// One connection.
#[derive(Default)]
struct Waiting {
    /// True between a request's head and the end of its answer.
    is_busy: AtomicBool,
    /// Signals that its place is needed for another.
    leave: Notify,
}

impl Seats {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Waiting>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection. If none is free, the connection that has been idle longest leaves; if all are
    /// busy, the first to finish.
    async fn place(&self, places: &Arc<Semaphore>) -> OwnedSemaphorePermit {
        loop {
            if let Ok(place) = Arc::clone(places).try_acquire_owned() {
                return place;
            }
            let changed = self.changed.notified();
            if let Some(oldest) = self.lock().pop_front() {
                oldest.leave.notify_one();
            }
            tokio::select! {
                place = Arc::clone(places).acquire_owned() => return place.expect("it is never closed"),
                () = changed => {}
            }
        }
    }

    fn waits(&self, seat: &Arc<Waiting>) {
        self.lock().push_back(Arc::clone(seat));
        self.changed.notify_one();
    }

    /// There are at most [`MOST_CONNECTIONS`] to look at.
    fn waits_no_more(&self, seat: &Arc<Waiting>) {
        self.lock().retain(|waiting| !Arc::ptr_eq(waiting, seat));
    }
}

/// A connection waits for a request until this is dropped.
struct Seat(Arc<Waiting>, Arc<Seats>);

impl Seat {
    fn new(seats: Arc<Seats>) -> Self {
        let seat = Arc::new(Waiting::default());
        seats.waits(&seat);
        Self(seat, seats)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.1.waits_no_more(&self.0);
    }
}

/// A running request, until its answer is sent.
struct Busy(Arc<Seats>, Arc<Waiting>);

impl Busy {
    fn new(seats: Arc<Seats>, seat: Arc<Waiting>) -> Self {
        seat.is_busy.store(true, Ordering::Release);
        seats.waits_no_more(&seat);
        Self(seats, seat)
    }

    fn with(self, response: Response<Body>) -> Response<Body> {
        response.map(|body| Body::new(Held { body, _busy: self }))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.1.is_busy.store(false, Ordering::Release);
        self.0.waits(&self.1);
    }
}

/// The body of an answer, whose connection is busy until it is sent.
struct Held {
    body: Body,
    _busy: Busy,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection whose writes fail once it is cut, or once its caller has not read for a while.
struct Stream {
    stream: TcpStream,
    cut: Cut,
    patience: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Stream {
    fn written<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let until = Instant::now() + self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        match stalled.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.cut.check()?;
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.cut.check()?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.cut.check()?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Number of files that this process may have open, after raising the limit as far as the system allows.
#[must_use]
pub fn open_files() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    /// Enough; more would only enlarge tables of the system.
    const ENOUGH: u64 = 8192;
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(ENOUGH).min(ENOUGH);
    let is_raised = limit.current.is_some_and(|current| current < wanted)
        && setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum }).is_ok();
    let files = if is_raised { wanted } else { limit.current.unwrap_or(ENOUGH) };
    usize::try_from(files).unwrap_or(usize::MAX)
}
