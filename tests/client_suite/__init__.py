"""One suite for every API server that the client may meet: the same tests, against the embedded one and a real one."""
