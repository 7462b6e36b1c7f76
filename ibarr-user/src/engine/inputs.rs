// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The inputs of the engine, except the kernel's requests and the timer, for which the engine waits
//! itself.
//!
//! There are some twenty channels, and most of the time all but one are silent. Polling all of them
//! after every request of the kernel would cost more than the answer, so a channel is polled only
//! after something was put into it: each has a waker of its own.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::stream::{self, BoxStream};
use futures_util::task::AtomicWaker;
use futures_util::{Stream, StreamExt as _};
use ibarr_proto::local_view;
use tokio::sync::mpsc;
use tokio::task::yield_now;

use super::acm_sockets::SocketState;
use crate::bpf;
use crate::config::{self, Config};
use crate::control::server::Ask;
use crate::preload::Loaded;
use crate::process::{Command, Signals};
use crate::transport::local_service as ls;
use crate::transport::queries::Incoming;
use crate::transport::rtnetlink::{self, NudgeError, NudgeResult};
use crate::transport::{acm, events, names, ports, server, snapshot, umad};

pub(super) enum Input {
    View(local_view::Input),
    Route(rtnetlink::Answer),
    /// Of the look-ups of sources, for ACM.
    Source(rtnetlink::Answer),
    Server(server::Event),
    Incoming(Incoming),
    Port(ports::Event),
    Event(events::Event),
    Mad(umad::Event),
    Snapshot(snapshot::Event),
    LocalService(ls::Event),
    Nudged(Result<NudgeResult, NudgeError>),
    Responder(bpf::Progress),
    Packets(bpf::Packets),
    Acm(acm::Event),
    AcmServed(SocketState),
    Named(names::Named),
    Preloaded(Box<Loaded>),
    Ask(Ask),
    Loaded(Box<Result<Config, config::Error>>),
    Command(Command),
    /// A core, or a server that is to be opened again, has asked to be called at this time.
    Timeout,
}

/// The receiving ends of the channels.
#[derive(Default)]
pub(super) struct Inputs {
    /// `None` after a channel was closed.
    channels: Vec<Option<Channel>>,
    ready: Arc<ReadyChannels>,
    /// The channel that is polled first if it is ready: they take turns.
    next: u32,
}

struct Channel {
    inputs: BoxStream<'static, Input>,
    waker: Waker,
}

/// The channels that may have something.
#[derive(Default)]
struct ReadyChannels {
    /// A bit for each.
    channels: AtomicU64,
    engine: AtomicWaker,
}

/// Wakes the engine for the channel with this number.
struct ChannelWaker(u32, Arc<ReadyChannels>);

impl Wake for ChannelWaker {
    fn wake(self: Arc<Self>) {
        let Self(number, ready) = &*self;
        ready.channels.fetch_or(1 << number, Ordering::AcqRel);
        ready.engine.wake();
    }
}

impl Inputs {
    /// Adds `channel`, until its other end is dropped.
    pub(super) fn add<T: Send + 'static>(
        &mut self,
        mut channel: mpsc::Receiver<T>,
        input: fn(T) -> Input,
    ) {
        let items = stream::poll_fn(move |context| channel.poll_recv(context));
        self.add_stream(items.map(input));
    }

    /// Adds the inputs of a stream, until it ends.
    pub(super) fn add_stream(&mut self, inputs: impl Stream<Item = Input> + Send + 'static) {
        let number = u32::try_from(self.channels.len()).unwrap_or(u32::MAX);
        assert!(number < u64::BITS, "a bit for each channel");
        let waker = Waker::from(Arc::new(ChannelWaker(number, Arc::clone(&self.ready))));
        self.channels.push(Some(Channel { inputs: inputs.boxed(), waker }));
        self.ready.channels.fetch_or(1 << number, Ordering::AcqRel);
    }

    pub(super) fn add_signals(&mut self, signals: Signals) {
        let commands = stream::unfold(signals, async |mut signals| {
            let command = signals.next().await;
            // Another thread may have received the signal before this one has polled its sockets,
            // and the kernel's requests from before the signal have to be answered.
            yield_now().await;
            Some((Input::Command(command), signals))
        });
        self.add_stream(commands);
    }

    /// Waits for the next input; `None` if all channels are closed. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Input> {
        poll_fn(|context| match self.poll_next(context) {
            Poll::Pending if self.channels.iter().all(Option::is_none) => Poll::Ready(None),
            input => input.map(Some),
        })
        .await
    }

    /// The next input, or the engine is woken when there may be one.
    pub(super) fn poll_next(&mut self, context: &Context<'_>) -> Poll<Input> {
        self.ready.engine.register(context.waker());
        self.poll().map_or(Poll::Pending, Poll::Ready)
    }

    /// The next input, if there is one already.
    pub(super) fn poll(&mut self) -> Option<Input> {
        // Each at most once: one that has used up the time that the runtime gives the engine wakes it at once.
        for _ in 0..self.channels.len() {
            let ready = self.ready.channels.load(Ordering::Acquire);
            if ready == 0 {
                break;
            }
            let number = (ready.rotate_right(self.next).trailing_zeros() + self.next) % u64::BITS;
            self.next = (number + 1) % u64::BITS;
            // It may get something while it is polled.
            self.ready.channels.fetch_and(!(1 << number), Ordering::AcqRel);
            let channel = usize::try_from(number).ok().and_then(|at| self.channels.get_mut(at));
            let Some(slot) = channel else { continue };
            let Some(Channel { inputs, waker }) = slot else { continue };
            match inputs.poll_next_unpin(&mut Context::from_waker(waker)) {
                Poll::Ready(Some(input)) => {
                    // It may have more.
                    self.ready.channels.fetch_or(1 << number, Ordering::AcqRel);
                    return Some(input);
                }
                Poll::Ready(None) => *slot = None,
                Poll::Pending => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(inputs: &mut Inputs) -> mpsc::Sender<()> {
        let (sender, channel) = mpsc::channel(4);
        inputs.add(channel, |()| Input::Timeout);
        sender
    }

    #[tokio::test(flavor = "current_thread")]
    async fn input_before_and_after_an_empty_poll_is_received() {
        let mut inputs = Inputs::default();
        assert!(inputs.next().await.is_none());
        let channels = [heard(&mut inputs), heard(&mut inputs)];
        assert!(inputs.poll().is_none());
        for channel in &channels {
            channel.try_send(()).unwrap();
            channel.try_send(()).unwrap();
        }
        for _ in 0..4 {
            assert!(inputs.poll().is_some());
        }
        assert!(inputs.poll().is_none());
        // A poll registers no waker; the next wait must not depend on one.
        channels[1].try_send(()).unwrap();
        assert!(inputs.next().await.is_some());
        let [left, gone] = channels;
        drop(gone);
        assert!(inputs.poll().is_none());
        let later = tokio::spawn(async move { left.send(()).await });
        assert!(inputs.next().await.is_some());
        later.await.unwrap().unwrap();
        assert!(inputs.next().await.is_none());
    }
}
