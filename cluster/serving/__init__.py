"""What runs under Ray Serve: the application, the ingress, and the ways from it to the replicas."""
