"""The same kernels for an NVIDIA GPU, in Triton: imported only where `kernels.roads` found it, by tensors on a GPU."""
