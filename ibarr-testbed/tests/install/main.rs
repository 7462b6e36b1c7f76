// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The Debian package in a container with a systemd of its own. Needs root, a package and a Debian 12 root
//! file system: `cargo xtask test install`.

#![forbid(unsafe_code)]

mod ansible;
mod boot;
mod configuration;
mod container;
mod dnf;
mod documents;
mod faults;
mod health;
mod journal;
mod kernel;
mod metrics;
mod namespaces;
mod node;
mod package;
mod pages;
mod podman;
mod repository;
mod rpm;
mod service;
mod socket;
mod upgrade;
mod way_out;

#[path = "../system/machine.rs"]
#[expect(dead_code, reason = "the system tests use the rest")]
mod machine;
