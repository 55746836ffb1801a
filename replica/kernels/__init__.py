"""Native CPU kernels: packed linear layers, paged attention and the fused decoder built from them."""
