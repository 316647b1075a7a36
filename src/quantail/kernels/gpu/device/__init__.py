"""What Triton compiles for the GPU: pointers in, nothing returned; the modules above launch it."""
