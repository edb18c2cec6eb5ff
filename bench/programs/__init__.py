"""What is measured, each program in a process of its own; see `bench.child` for how they talk."""
