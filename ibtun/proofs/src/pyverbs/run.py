# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

"""Runs rdma-core's own tests, and writes a line for each test to a file.

Arguments: the directory of the tests, the file, the interface of the device, and arguments of the tests.
"""

import gc
import importlib
import os
import random
import signal
import sys
import unittest

DIRECTORY, FILE, INTERFACE = sys.argv[1:4]
del sys.argv[1:4]

# Modules that test one vendor's device. Each of their tests would say so.
VENDORS = ("test_mlx5_", "test_efa", "test_cuda")

# Some tests choose arguments at random, and skip themselves with this reason when the device does not know one. They
# are run again with other arguments.
UNLUCKY = "extended attrs is not supported"
ATTEMPTS = 16

# Long enough for every test. One that hangs must not hide the tests behind it.
LIMIT = 120

# The collector of Python 3.12 and later closes a device before the resources of a test that has skipped itself, and ends
# with a segmentation fault: rdma-core's pull request 1618.
gc.disable()

sys.path.insert(0, os.path.dirname(DIRECTORY))
sys.path.insert(0, DIRECTORY)
importlib.import_module("args_parser").parser.parse_args()


class Lines(unittest.TestResult):
    """A line for each test: its outcome, its name, and the reason."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def line(self, outcome, test, reason=""):
        reason = reason.strip().splitlines()[-1] if reason.strip() else ""
        name = test.id().removeprefix("tests.")
        line = f"{name}\t{outcome}: {reason}" if reason else f"{name}\t{outcome}"
        print(line, file=self.file, flush=True)

    def startTest(self, test):
        super().startTest(test)
        print("===", test.id(), flush=True)
        signal.alarm(LIMIT)

    def stopTest(self, test):
        signal.alarm(0)
        super().stopTest(test)

    def addSuccess(self, test):
        self.line("passed", test)

    def addSkip(self, test, reason):
        self.skipped.append((test, reason))

    def addFailure(self, test, error):
        super().addFailure(test, error)
        print(self.failures[-1][1], flush=True)
        self.line("failed", test, self.failures[-1][1])

    def addError(self, test, error):
        super().addError(test, error)
        print(self.errors[-1][1], flush=True)
        self.line("failed", test, self.errors[-1][1])


def give_up(_number, _frame):
    raise TimeoutError(f"not done after {LIMIT} s")


def interface(self, device, port, index):
    """The tests look for the interface in the device's PCI directory, which a software HCA does not have."""
    address, hardware = self.get_ip_mac_address(INTERFACE)
    self.args.append([device, port, index, address, hardware])


signal.signal(signal.SIGALRM, give_up)
base = importlib.import_module("tests.base")
base.RDMATestCase._get_ip_mac = interface
tests = []
for name in sorted(os.listdir(DIRECTORY)):
    if name.startswith("test_") and name.endswith(".py") and not name.startswith(VENDORS):
        module = importlib.import_module("tests." + name[:-3])
        for case in unittest.defaultTestLoader.loadTestsFromModule(module):
            tests.extend(case)
with open(FILE, "w") as file:
    lines = Lines(file)
    for test in tests:
        for attempt in range(ATTEMPTS):
            lines.skipped.clear()
            random.seed(f"{test.id()} {attempt}")
            # A test keeps what its first run has found.
            type(test)(test._testMethodName).run(lines)
            if not any(UNLUCKY in reason for _test, reason in lines.skipped):
                break
        for _test, reason in lines.skipped:
            lines.line("skipped", test, reason)
# Python would collect them now.
os._exit(0)
