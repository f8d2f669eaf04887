"""PyTorch: the importer, `fuser.compile` of modules, the backend of `torch.compile`."""
