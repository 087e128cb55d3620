"""KubeSchedulerConfiguration v1: read, checked with every error at once, and turned into profiles and extenders."""
