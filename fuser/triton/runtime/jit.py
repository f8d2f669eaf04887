"""triton.runtime.jit."""

from __future__ import annotations

from fuser.triton._utils import type_canonicalisation_dict
from fuser.triton.absent import names
from fuser.triton.constexprs import BoundConstexprFunction, ConstexprFunction, constexpr_function
from fuser.triton.jit import JITFunction, JitFunctionInfo, KernelInterface, jit
from fuser.triton.parameters import KernelParam
from fuser.triton.tensors import MockTensor, TensorWrapper, reinterpret

JITCallable = JITFunction
__getattr__ = names(
    __name__,
    "DependenciesFinder GLUON_MODULE TRITON_MODULE compute_cache_key convert_to_tuple_if_list "
    "create_function_from_signature get_def_col_number get_def_line_number get_full_name "
    "mangle_type serialize_specialization_data",
    "fuser has keys and classes of arguments of its own",
)

__all__ = [
    "BoundConstexprFunction", "ConstexprFunction", "JITCallable", "JITFunction",
    "JitFunctionInfo", "KernelInterface", "KernelParam", "MockTensor",
    "TensorWrapper", "constexpr_function", "jit", "reinterpret",
    "type_canonicalisation_dict",
]  # fmt: skip
