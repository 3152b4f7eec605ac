"""Adapters for programs that drive sandboxes, each in a module of its own that imports the program."""
