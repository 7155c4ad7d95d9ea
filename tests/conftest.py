"""Tests share one compilation cache, so that each program is compiled once per machine, not once per test."""

from naht.runtime import configure

configure()
