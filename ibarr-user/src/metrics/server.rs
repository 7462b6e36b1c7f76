// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Serves the metrics over HTTP, on its own thread. It asks the engine at most once in
//! [`FRESH`], whatever number of clients asks it: no client makes the engine slow.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use ibarr_proto::places::Room;
use ibarr_proto::shares::User;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::{interval, sleep, timeout};
use tracing::{debug, info};

use crate::causes::Fault;
use crate::config::Listen;
use crate::control::messages::{Body, MetricsForm as Form, Request as Question};
use crate::control::places::Connections;
use crate::control::server::Ask;
use crate::sys::{clock, peer};
use crate::transport::socket_file::{self, LOOK, PAUSE, SocketFile};
use crate::transport::{Counter, Counters};

const CONNECTIONS: Room = Room { all: 16, of_user: 4 };

/// A connection is closed after this, whatever it does, or before, if another user has none.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a document is given to other clients, too.
pub(crate) const FRESH: Duration = Duration::from_secs(1);

/// Pause before an address that cannot be had is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// The longest request, with its headers.
const MAX_REQUEST: usize = 8 << 10;

/// The engine's end of the thread.
#[derive(Debug)]
pub(crate) struct Server {
    wanted: watch::Sender<Option<Listen>>,
    failure: watch::Receiver<Option<Fault>>,
}

/// Serves the metrics at `address`, until the other end of `asks` is dropped.
///
/// # Errors
/// If there is no such address here, or another process has it.
pub(super) async fn serve_at(
    address: SocketAddr,
    asks: mpsc::Sender<Ask>,
    ready: impl FnOnce(),
) -> Result<(), Error> {
    let mut socket = Socket::bind(&Listen::Tcp(address))?;
    ready();
    let ended = asks.clone();
    let source = Arc::new(Source { asks, last: Mutex::default() });
    let (places, counters) = (Connections::new(CONNECTIONS), Counters::default());
    let (failing, _) = watch::channel(None);
    tokio::select! {
        () = ended.closed() => {}
        () = socket.accept_all(&places, &source, &failing, &counters) => {}
    }
    Ok(())
}

impl Server {
    /// Starts the thread, which removes its socket and ends when the other end of `asks` is dropped.
    ///
    /// # Errors
    /// If the thread or its event loop cannot be started.
    pub(crate) fn start(
        listen: Option<Listen>,
        asks: mpsc::Sender<Ask>,
        counters: Arc<Counters>,
    ) -> io::Result<(Self, JoinHandle<()>)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (wanted, wish) = watch::channel(listen);
        let (failing, failure) = watch::channel(None);
        let thread = thread::Builder::new().name("metrics".to_owned()).spawn(move || {
            let ended = asks.clone();
            let source = Arc::new(Source { asks, last: Mutex::default() });
            runtime.block_on(async {
                tokio::select! {
                    () = ended.closed() => {}
                    () = serve(wish, failing, source, &counters) => {}
                }
            });
            // Connections end with their event loop.
            runtime.shutdown_background();
        })?;
        Ok((Self { wanted, failure }, thread))
    }

    /// From now on serves there.
    pub(crate) fn listen(&self, listen: Option<Listen>) {
        self.wanted.send_if_modified(|wanted| {
            let has_changed = *wanted != listen;
            *wanted = listen;
            has_changed
        });
    }

    /// Why the metrics are not served where they should be.
    pub(crate) fn failure(&self) -> Option<Fault> {
        self.failure.borrow().clone()
    }

    /// Whether the thread has tried to serve them.
    pub(crate) fn has_tried(&self) -> bool {
        self.failure.has_changed().unwrap_or(true)
    }
}

/// The documents, from the engine.
struct Source {
    asks: mpsc::Sender<Ask>,
    last: Mutex<HashMap<Form, (Instant, Bytes)>>,
}

impl Source {
    /// `None` if the daemon ends.
    async fn document(&self, form: Form) -> Option<Bytes> {
        // Others wait here for the same answer.
        let mut last = self.last.lock().await;
        if let Some((at, document)) = last.get(&form)
            && at.elapsed() < FRESH
        {
            return Some(document.clone());
        }
        let (answer, answered) = oneshot::channel();
        let ask = Ask { request: Question::Metrics { form }, user: User::ROOT, answer, each: None };
        self.asks.send(ask).await.ok()?;
        let Body::Metrics { metrics } = answered.await.ok()?.body else { return None };
        let document = Bytes::from(metrics);
        last.insert(form, (Instant::now(), document.clone()));
        Some(document)
    }
}

async fn serve(
    mut wish: watch::Receiver<Option<Listen>>,
    failing: watch::Sender<Option<Fault>>,
    source: Arc<Source>,
    counters: &Counters,
) {
    let places = Connections::new(CONNECTIONS);
    loop {
        let listen = wish.borrow_and_update().clone();
        let Some(listen) = listen else {
            failing.send_replace(None);
            if wish.changed().await.is_err() {
                return;
            }
            continue;
        };
        match Socket::bind(&listen) {
            Ok(mut socket) => {
                failing.send_replace(None);
                info!(%listen, "metrics are served");
                tokio::select! {
                    changed = wish.changed() => if changed.is_err() { return },
                    () = socket.accept_all(&places, &source, &failing, counters) => {}
                }
            }
            Err(error) => {
                failing.send_replace(Some(error.into()));
                tokio::select! {
                    changed = wish.changed() => if changed.is_err() { return },
                    () = sleep(RETRY) => {}
                }
            }
        }
    }
}

enum Socket {
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener),
}

/// Why the metrics are not served.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("unix:{0}")]
    Unix(#[from] socket_file::Error),
    #[error("{0}")]
    Tcp(SocketAddr, #[source] io::Error),
}

impl Socket {
    fn bind(listen: &Listen) -> Result<Self, Error> {
        match listen {
            // Any user may read, as on the control socket.
            Listen::Unix(path) => {
                let file = SocketFile::bind(path)?;
                Ok(Self::Unix(file.listen()?, file))
            }
            Listen::Tcp(address) => {
                let bind = || {
                    let socket = std::net::TcpListener::bind(address)?;
                    socket.set_nonblocking(true)?;
                    Ok(Self::Tcp(TcpListener::from_std(socket)?))
                };
                bind().map_err(|error| Error::Tcp(*address, error))
            }
        }
    }

    async fn accept_all(
        &mut self,
        places: &Connections,
        source: &Arc<Source>,
        failing: &watch::Sender<Option<Fault>>,
        counters: &Counters,
    ) {
        let mut looks = interval(LOOK);
        loop {
            let accepted = match self {
                Self::Unix(socket, _) => tokio::select! {
                    accepted = socket.accept() => {
                        accepted.map(|(stream, _)| {
                            let user = peer::user(stream.as_fd());
                            seat(stream, user, places, source);
                        })
                    }
                    _ = looks.tick() => {
                        let looked = self.look(counters);
                        failing.send_replace(looked.err().map(Fault::from));
                        Ok(())
                    }
                },
                Self::Tcp(socket) => socket.accept().await.map(|(stream, from)| {
                    let user = of_machine(from.ip());
                    let user = user.unwrap_or_else(|| peer::user(stream.as_fd()));
                    seat(stream, user, places, source);
                }),
            };
            if let Err(error) = accepted {
                debug!(%error, "cannot accept a connection for metrics");
                sleep(PAUSE).await;
            }
        }
    }

    fn look(&mut self, counters: &Counters) -> Result<(), Error> {
        if let Self::Unix(socket, file) = self
            && let Some(again) = file.look(clock::now())?
        {
            counters.count(Counter::FileMadeAgain);
            *socket = again;
        }
        Ok(())
    }
}

/// Another machine is a user of its own, so that it cannot take the places of the others. For IPv6 the user is the
/// network, where one machine may have every address. A bit before each number keeps it apart from user ids, which have
/// 32 bits. Networks of IPv6 that differ in that bit alone share: one of the two is not assigned.
fn of_machine(from: IpAddr) -> Option<User> {
    const IPV4: u64 = 1 << 32;
    const IPV6: u64 = 1 << 63;
    match from.to_canonical() {
        from if from.is_loopback() => None,
        IpAddr::V4(from) => Some(User(IPV4 | u64::from(from.to_bits()))),
        IpAddr::V6(from) => {
            let network = from.segments().into_iter().take(4);
            let bits = network.fold(0, |bits, segment| bits << 16 | u64::from(segment));
            Some(User(IPV6 | bits))
        }
    }
}

/// Serves the connection, or closes it if there are too many.
fn seat<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    user: User,
    places: &Connections,
    source: &Arc<Source>,
) {
    let Ok((place, stays)) = places.take(user) else {
        return debug!("too many connections for metrics");
    };
    let source = Arc::clone(source);
    drop(tokio::spawn(async move {
        tokio::select! {
            () = converse(stream, source) => {}
            _ = stays => debug!("connection for metrics: gives way"),
        }
        drop(place);
    }));
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, source: Arc<Source>) {
    let answer = service_fn(move |request| answer(request, Arc::clone(&source)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(MAX_REQUEST)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer);
    match timeout(PATIENCE, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "connection for metrics"),
        Err(_) => debug!("connection for metrics: too slow"),
    }
}

async fn answer(
    request: Request<Incoming>,
    source: Arc<Source>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let plain = |status, text: &'static str| {
        let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
        *response.status_mut() = status;
        response
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(plain(StatusCode::METHOD_NOT_ALLOWED, "only GET\n"));
    }
    if request.uri().path() != "/metrics" {
        return Ok(plain(StatusCode::NOT_FOUND, "the metrics are at /metrics\n"));
    }
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let form = preferred(accept.unwrap_or_default());
    Ok(match source.document(form).await {
        None => plain(StatusCode::SERVICE_UNAVAILABLE, "the daemon is ending\n"),
        Some(document) => {
            let mut response = Response::new(Full::new(document));
            let content = HeaderValue::from_static(content_type(form));
            response.headers_mut().insert(CONTENT_TYPE, content);
            response
        }
    })
}

/// The type of the document, for HTTP.
fn content_type(form: Form) -> &'static str {
    match form {
        Form::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        Form::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
    }
}

/// The form that a client prefers, by its header `Accept`.
fn preferred(accept: &str) -> Form {
    let accept = accept.to_ascii_lowercase();
    let quality = |media| {
        let of = |range: &str| {
            let mut parts = range.split(';').map(str::trim);
            let is_it = parts.next() == Some(media);
            let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok());
            is_it.then_some(quality.unwrap_or(1.0))
        };
        accept.split(',').filter_map(of).fold(0.0, f32::max)
    };
    let is_open = quality("application/openmetrics-text") > quality("text/plain");
    if is_open { Form::OpenMetrics } else { Form::Prometheus }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_machine_is_a_user_and_this_machine_is_not() {
        let user = |from: &str| of_machine(from.parse().unwrap());
        assert_eq!((user("127.0.0.1"), user("::1"), user("::ffff:127.0.0.1")), (None, None, None));
        assert_eq!(user("10.0.0.1"), Some(User(0x1_0a00_0001)));
        assert_eq!(user("::ffff:10.0.0.1"), user("10.0.0.1"));
        assert_eq!(user("2001:db8::1"), user("2001:db8::2"));
        assert_ne!(user("2001:db8::1"), user("2001:db8:0:1::1"));
        // User ids have 32 bits, and 0 is root's, whose places are its own.
        for from in ["2001:db8:2001:db8::1", "::2", "::10.0.0.1", "0:0:0:1::1", "10.0.0.1"] {
            assert!(user(from).unwrap().0 > u32::MAX.into(), "{from}");
        }
    }

    #[test]
    fn form_is_the_one_that_the_client_prefers() {
        for (accept, form) in [
            ("", Form::Prometheus),
            ("*/*", Form::Prometheus),
            ("text/plain;version=0.0.4", Form::Prometheus),
            ("application/openmetrics-text; version=1.0.0", Form::OpenMetrics),
            ("Application/OpenMetrics-Text;Q=0.5,text/plain;q=0.6", Form::Prometheus),
            ("application/openmetrics-text;q=0", Form::Prometheus),
            // Prometheus 3.
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                 application/openmetrics-text;version=0.0.1;q=0.5,\
                 text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                Form::OpenMetrics,
            ),
        ] {
            assert_eq!(preferred(accept), form, "{accept}");
        }
    }
}
