// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! In the place of the C `ibarr`, which is not in this project: for a path it makes the system calls that C makes, in two
//! threads as there. One reads the kernel's request and writes a MAD to the port's umad device; the other waits for the
//! answer, and sends it to the kernel. It remembers nothing, and decides nothing.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use ibarr_common::ib::{Lid, Sl};
use ibarr_common::wire::ls::{self, Answer, PathFlags, Paths, Request, Seq, messages};
use ibarr_common::wire::mad::Tid;
use ibarr_common::wire::sa::{self, PathQuestion, Question};
use ibarr_common::wire::umad::{MAX_LEN, PKeyIndex, Received, Send};
use ibarr_user::sys::umad::{Device, Opened};

use crate::ls::socket::Socket;
use crate::subnets::alias::{lid, umad};

/// It says so when it gets the kernel's requests.
pub(crate) const READY: &str = "ready";

/// Answers so many requests of `port`, as sysfs writes it, and ends.
pub(crate) fn run(port: &str, requests: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _entered = runtime.enter();
    let device = Arc::new(Device::adopt(Opened::open(Path::new(&umad(port)?))?)?);
    let socket = Arc::new(Socket::open()?);
    println!("{READY}");
    let to = lid(port, "sm_lid")?;
    let asks = (Arc::clone(&socket), Arc::clone(&device));
    thread::spawn(move || ask(&asks.0, &asks.1, to));
    runtime.block_on(async {
        let mut buffer = [0; MAX_LEN];
        for _ in 0..requests.parse::<usize>()? {
            let length = device.read(&mut buffer).await?;
            let Received::Mad { mad, .. } = Received::parse(&buffer[..length])? else {
                bail!("the SA does not answer");
            };
            answer(&socket, mad)?;
        }
        Ok(())
    })
}

/// The kernel asks, and the SA is asked. The transaction is the number of the kernel's request.
fn ask(socket: &Socket, device: &Device, to: Lid) -> Result<()> {
    const IDLE: Duration = Duration::from_hours(1);
    loop {
        let Some(datagram) = socket.receive(IDLE)? else { continue };
        for message in messages(&datagram) {
            let message = message?;
            let Ok(Request::ResolvePath(path)) = Request::parse(&message) else { continue };
            let question = Question::Path(PathQuestion {
                dgid: path.dgid,
                sgid: path.sgid,
                reversible: true,
                pkey: path.pkey,
                tclass: path.tclass,
                service_id: path.service_id,
                qos_class: path.qos_class,
            });
            let tid = Tid::new(message.seq().0.into());
            let request = Send {
                agent: device.agent(),
                to,
                sl: Sl::default(),
                pkey_index: PKeyIndex(0),
                timeout: Duration::from_secs(2),
                mad: sa::Request { tid, question }.emit(),
            };
            device.write(request.emit().as_ref())?;
        }
    }
}

fn answer(socket: &Socket, mad: &[u8]) -> Result<()> {
    let response = sa::Response::parse(mad)?;
    let sa::Answer::Path(record) = response.answer else { bail!("no path: {response:?}") };
    let paths = Paths::new(&[ls::Path { flags: PathFlags::GMP, record }]).context("a path")?;
    // The kernel has put the agent's number into the upper half.
    let seq = Seq(response.tid.transaction().0);
    let answer = Answer::Paths(paths).emit(seq, socket.port_id());
    Ok(socket.send(answer.as_ref())?)
}
