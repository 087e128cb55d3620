"""Placement check: how far the placement that there is lies from the best that the constraints allow."""
