"""Node runner: runs the pods bound to this machine as processes in cgroups, as a kubelet would."""
