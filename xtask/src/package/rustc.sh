#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#
# rustc, as cargo calls it for a package. cargo's `-C metadata` of a crate outside the workspace is a hash of its absolute path
# (ibarr-common seen from ibtun/), and rustc orders what it emits by that hash. So name and version take its place.
for argument; do
	shift
	case $argument in
	metadata=*) argument="metadata=$CARGO_PKG_NAME-$CARGO_PKG_VERSION" ;;
	esac
	set -- "$@" "$argument"
done
exec "$@"
