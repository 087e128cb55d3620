"""The tables of the history and what is done with them; `predictor.history` is the door."""
