"""Ground floor of Slacktide: what agent, predictor, scheduler plugins and the command share."""

__version__ = "0.1.0"
