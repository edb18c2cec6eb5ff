"""Hybrid capture: each table by triggers or from the WAL, and moved from the one to the other."""
