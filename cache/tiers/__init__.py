"""Where pages lie that the device's pool has no room for. A tier knows blobs and block keys, not tensors or engines."""
