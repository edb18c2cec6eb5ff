"""Tests mirror the layers; `tests.server` has the types of the fixtures."""
