"""The process between the runner and one container; it needs the standard library and nothing else.

One shim a container keeps three things alive that must survive the runner: the parent of the payload (who alone
learns its exit code), the reader of its output, and the right to kill what it leaves behind. It is started as
`python -I -S .../shim DIRECTORY`, so nothing here may import a dependency or anything slow to load.
"""
