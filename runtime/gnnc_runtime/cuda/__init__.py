"""Running compiled sweeps on NVIDIA GPUs: modules, lists of chunks, launches on torch's current stream.

Imported only when a GPU is used; needs cuda-bindings.
"""
