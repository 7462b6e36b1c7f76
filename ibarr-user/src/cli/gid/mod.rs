// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Gives an IPoIB interface another GID of its port's table.

mod change;
