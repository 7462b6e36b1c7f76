// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The objects, loaded.

use std::{env, fs};

use aya::maps::{MapData, MapInfo};
use aya::programs::{SchedClassifier, SocketFilter, Xdp};
use aya::{Ebpf, EbpfLoader};

pub(crate) struct Programs {
    ebpf: Ebpf,
}

impl Programs {
    /// The responder's object for links with headers of `link_header` bytes.
    pub(crate) fn load(link_header: u32) -> Self {
        let object = object("IBARR_BPF_OBJECT", ibarr_ebpf::OBJECT);
        let ebpf = EbpfLoader::new()
            .override_global("LINK_HEADER_LEN", &link_header, true)
            .load(&object)
            .expect("the object loads: these tests need root");
        Self { ebpf }
    }

    pub(crate) fn tc(&mut self) -> &mut SchedClassifier {
        let program = self.ebpf.program_mut("ip2gid_tc").expect("in the object");
        let program: &mut SchedClassifier = program.try_into().expect("of this type");
        if program.fd().is_err() {
            program.load().unwrap_or_else(|error| panic!("ip2gid_tc: {error:?}"));
        }
        program
    }

    pub(crate) fn xdp(&mut self) -> &mut Xdp {
        let program = self.ebpf.program_mut("ip2gid_xdp").expect("in the object");
        let program: &mut Xdp = program.try_into().expect("of this type");
        if program.fd().is_err() {
            program.load().unwrap_or_else(|error| panic!("ip2gid_xdp: {error:?}"));
        }
        program
    }

    pub(crate) fn guard(&mut self) -> &mut SocketFilter {
        let program = self.ebpf.program_mut("ip2gid_guard").expect("in the object");
        let program: &mut SocketFilter = program.try_into().expect("of this type");
        if program.fd().is_err() {
            program.load().unwrap_or_else(|error| panic!("ip2gid_guard: {error:?}"));
        }
        program
    }

    pub(crate) fn map_info(&self, name: &str) -> MapInfo {
        let map = self.ebpf.map(name).unwrap_or_else(|| panic!("no map {name}"));
        let data: &MapData = match map {
            aya::maps::Map::Array(data)
            | aya::maps::Map::HashMap(data)
            | aya::maps::Map::LpmTrie(data)
            | aya::maps::Map::PerCpuArray(data) => data,
            other => panic!("{name} is {other:?}"),
        };
        data.info().expect("readable")
    }
}

/// What `variable` names, else `built_in`.
fn object(variable: &str, built_in: &[u8]) -> Vec<u8> {
    match env::var_os(variable) {
        Some(path) => fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
        None => built_in.to_vec(),
    }
}
