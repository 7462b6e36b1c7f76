#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#
# A prolog for Slurm: before a job starts, each of its nodes asks for the addresses of the others and the paths to them,
# so that the first connections of the job find both in memory.
#
# It always exits with 0, because a prolog that fails drains its node, and ends after some seconds whatever hangs. What
# it has done is in the log: journalctl -t ibarr-prolog
#
#   slurm.conf:  Prolog=/etc/slurm/ibarr-prolog.sh
#                PrologFlags=Alloc
#
# The time that it may take, in seconds, and what names of nodes end with on IPoIB, such as -ib0:
seconds=${IBARR_PROLOG_SECONDS:-5}
suffix=${IBARR_PROLOG_SUFFIX:-}

# slurmd sets none.
PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}
export PATH

say() {
    timeout 1 logger -t ibarr-prolog -- "job ${SLURM_JOB_ID:-?}: $*" 2>/dev/null
}

# Adds the suffix to each name of a list: node[1-2],login1 becomes node[1-2]-ib0,login1-ib0.
with_suffix() {
    printf '%s' "$1" | awk -v suffix="$2" '{
        for (i = 1; i <= length($0); i++) {
            c = substr($0, i, 1)
            if (c == "[") inside = 1
            if (c == "]") inside = 0
            if (c == "," && !inside) printf "%s", suffix
            printf "%s", c
        }
        printf "%s", suffix
    }'
}

nodes=${SLURM_JOB_NODELIST:-${SLURM_NODELIST:-}}
case $nodes in
'')
    say "the job has no list of nodes"
    exit 0
    ;;
@*)
    say "the list of nodes names a file, which no scheduler writes"
    exit 0
    ;;
esac
if [ -n "$suffix" ]; then
    nodes=$(with_suffix "$nodes" "$suffix")
fi

# The last two lines are the summary, or the reason why there is none, and the exit status.
said=$(
    {
        timeout -k 1 "$seconds" ibarr resolve --path --timeout 2s --daemon-timeout 2s -- "$nodes"
        echo "exit status $?"
    } 2>&1 | tail -n 2 | tr '\n' ' '
)
say "$said"
exit 0
