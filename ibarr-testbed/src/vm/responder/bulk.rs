// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the programs cost other traffic: a TCP stream to the node.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::rig::{N, inside};

/// Address of the node in the same subnet.
const ADDRESS: &str = "10.1.0.2:5001";
const CHUNK: usize = 1 << 17;
const PATIENCE: Duration = Duration::from_secs(20);
/// Time for the TCP window to grow.
const WARM_UP: Duration = Duration::from_millis(250);
const TIME: Duration = Duration::from_millis(800);

/// Received bytes a second.
pub(super) fn stream() -> Result<f64> {
    let listener = inside(N, || TcpListener::bind(ADDRESS).context(ADDRESS))?;
    let sender = TcpStream::connect_timeout(&ADDRESS.parse()?, PATIENCE).context(ADDRESS)?;
    let (receiver, _) = listener.accept()?;
    thread::scope(|scope| {
        let sender = scope.spawn(|| send(sender));
        // The sender ends the stream.
        let rate = receive(receiver);
        let sent = sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        sent.and(rate)
    })
}

fn send(mut stream: TcpStream) -> Result<()> {
    let bytes = vec![0; CHUNK];
    loop {
        if let Err(error) = stream.write_all(&bytes) {
            return match error.kind() {
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Ok(()),
                _ => Err(error).context("cannot send"),
            };
        }
    }
}

fn receive(mut stream: TcpStream) -> Result<f64> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut bytes = vec![0; CHUNK];
    let mut rate = 0.0;
    for time in [WARM_UP, TIME] {
        let (start, mut received) = (Instant::now(), 0.0);
        while start.elapsed() < time {
            let read = stream.read(&mut bytes).context("nothing comes")?;
            received += f64::from(u32::try_from(read)?);
        }
        rate = received / start.elapsed().as_secs_f64();
    }
    Ok(rate)
}
