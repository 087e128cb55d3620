"""What is deployed: chart, manifests, image, dashboards and rules, and the scripts that write and check them."""
