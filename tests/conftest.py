"""Tests share one compilation cache, so that each program is compiled once per machine, not once per test."""

import os

os.environ.setdefault("NAHT_DEVICES", "2")  # on a machine with one core, too

from naht.runtime import configure

configure()
