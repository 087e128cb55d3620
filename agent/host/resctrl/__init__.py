"""Reads and writes /sys/fs/resctrl (RDT: cache and memory bandwidth control), rooted at an injected mount.

Source: Linux Documentation/filesystems/resctrl.rst; reference/kernel.md section 1.
"""
