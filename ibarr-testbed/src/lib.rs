// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Lab, stand-ins, bench drivers and system tests of ibarr.

#![forbid(unsafe_code)]

pub mod bench;
pub mod capture;
pub mod crowd;
pub mod demo;
pub mod interrupt;
pub mod lab;
pub mod monitor;
pub mod pages;
pub mod standin;
pub mod start;
pub mod stock;
pub mod umad;
