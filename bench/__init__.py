"""Benchmarks: each measures Tailrace beside a reference, in one run, against a floor.

`python -m bench NAME`, or `make bench BENCH=NAME`. What is measured runs in processes of its own
(`bench.programs`); the reference and ours take turns, several rounds, and medians are reported,
because machines are noisy: a single run on a shared machine is easily off by 15 %.
"""
