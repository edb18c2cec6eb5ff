"""The command line: reads the configuration, wires the layers, shows what happens.

`main` holds the application; each sub-command is a module of its own. Nothing heavy is imported
before a command needs it, so that `--help` answers at once.
"""
