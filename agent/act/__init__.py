"""The only code of the agent that writes: executor and journal."""
