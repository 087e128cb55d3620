"""Dashboards for Grafana, written as Python and rendered to JSON by `python -m deploy.grafana`."""
