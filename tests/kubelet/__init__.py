"""The agent beside a real kubelet, in an emulated guest."""
