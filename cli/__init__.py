"""The `slacktide` command."""
