"""One command a file; the attribute `command` is what `cli.main` looks for."""
