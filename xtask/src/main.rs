// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Every command of the ibarr project.

fn main() {}
