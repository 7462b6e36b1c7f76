// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The inputs of the engine, except the kernel's requests and the timer, for which the engine waits
//! itself.
//!
//! There are some twenty channels, and most of the time all but one are silent. Polling all of them
//! after every request of the kernel would cost more than the answer, so a channel is polled only
//! after something was put into it.

use futures_util::stream::{self, BoxStream, SelectAll};
use futures_util::{FutureExt as _, Stream, StreamExt as _};
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
pub(super) struct Inputs(SelectAll<BoxStream<'static, Input>>);

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
        self.0.push(inputs.boxed());
    }

    pub(super) fn add_signals(&mut self, signals: Signals) {
        let commands = stream::unfold(signals, async |mut signals| {
            let command = signals.next().await;
            // Another thread may have received the signal before this one has polled its sockets,
            // and the kernel's requests from before the signal have to be answered.
            yield_now().await;
            Some((Input::Command(command), signals))
        });
        self.0.push(commands.boxed());
    }

    /// Waits for the next input; `None` if all channels are closed. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Input> {
        self.0.next().await
    }

    /// The next input, if there is one already.
    pub(super) fn poll(&mut self) -> Option<Input> {
        self.next().now_or_never().flatten()
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
