"""PyTorch programs of ATen operators, read into Graphs.

One file an operator family; handlers are found by the operator's name, so that nothing is imported
from PyTorch until a program of it is at hand. `frontends/torch/backend.py` exports, runs and
caches.
"""

from __future__ import annotations

from fuser.frontends.torch.importer.importer import (
    Imported,
    Input,
    check_operators,
    failed_node,
    import_fx,
    is_ignored,
    tensor_array,
    without_handler,
)

__all__ = [
    "Imported", "Input", "check_operators", "failed_node", "import_fx", "is_ignored",
    "tensor_array", "without_handler",
]  # fmt: skip
