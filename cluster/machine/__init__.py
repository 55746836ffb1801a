"""What this machine has for a cluster: processes, ports, folders, signals."""
