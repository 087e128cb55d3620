"""Node agent: keeps latency-sensitive pods safe from best-effort pods on this node, and reports usage."""
