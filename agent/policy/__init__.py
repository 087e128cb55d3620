"""Pure policies: (snapshot, state, settings) -> (desired, state), one strategy a file."""
