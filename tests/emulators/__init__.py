"""Stand-ins for kernel interfaces that this machine lacks; each says what it leaves out."""
