"""PyTorch programs of ATen operators, read into Graphs.

One file an operator family; handlers are found by the operator's name, so that nothing is imported
from PyTorch until a program of it is at hand. `fuser/torch_backend.py` exports, runs and caches.
"""

from __future__ import annotations

from fuser.graph.torch_import.importer import (
    Imported,
    Input,
    check_operators,
    import_fx,
    tensor_array,
)

__all__ = ["Imported", "Input", "check_operators", "import_fx", "tensor_array"]
