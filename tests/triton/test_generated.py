"""Programs that others generate in Triton's language: Inductor's, Helion's, and a package's that
goes through PyTorch's loader of modules as Helion does. On the CPU, where they find no Triton."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

INDUCTOR = """
import fuser.triton

with fuser.triton.imports("torch"):
    import torch
    import torch._inductor.config as config
import torch.nn.functional as F
import torch._inductor.metrics as metrics

config.cpu_backend, config.compile_threads = "triton", 1
config.triton.autotune_pointwise = False
torch.manual_seed(0)
x, y, w = torch.randn(24, 40), torch.randn(24, 40), torch.randn(40)
i, t = torch.randint(0, 24, (12,)), torch.randint(0, 40, (24,))
FUNCTIONS = {
    "elementwise": lambda: torch.tanh(x) * y + torch.erf(x) + x.abs() ** 1.5,
    "gelu": lambda: F.gelu(x),
    "where": lambda: torch.where(x > 0, x, torch.exp(x)),
    "transposed": lambda: x.t() + y.t().contiguous(),
    "softmax": lambda: torch.softmax(x, -1),
    "layer norm": lambda: F.layer_norm(x, (40,), w),
    "total": lambda: (x * y).sum(),
    "columns": lambda: x.mean(0),
    "variance": lambda: torch.var_mean(x, 1)[0],
    "argmax": lambda: x.argmax(1),
    "any": lambda: ((x > 0) & (y < 0)).any(1),
    "product": lambda: (x * 0.1 + 1).prod(1),
    "cumsum": lambda: x.cumsum(1),
    "rows": lambda: x[i] + 1,
    "index_add": lambda: torch.zeros_like(x).index_add(0, i, y[:12]),
    "cat": lambda: torch.cat([x, y * 2], 1),
    "max_pool": lambda: F.max_pool2d(x.view(1, 1, 24, 40), 2),
    "integers": lambda: (t // 3) % 5 << 2,
    "bfloat16": lambda: x.bfloat16().abs().sum(-1),
    "float64": lambda: x.double().abs().log1p().sum(0),
    "matmul": lambda: torch.relu(x @ y.t()),
    "cross entropy": lambda: F.cross_entropy(x, t),
}

def every():
    return {name: f() for name, f in FUNCTIONS.items()}

expected, found = every(), torch.compile(every)()
for name, value in expected.items():
    torch.testing.assert_close(found[name], value, msg=lambda text: f"{name}: {text}")
x.requires_grad_()
w.requires_grad_()

def loss():
    return F.cross_entropy(F.layer_norm(F.gelu(x), (40,), w), t)

(expected, found) = (torch.autograd.grad(f(), (x, w)) for f in (loss, torch.compile(loss)))
torch.testing.assert_close(found, expected)
assert metrics.generated_kernel_count > 0 and "triton" not in __import__("sys").modules
"""

PACKAGE = """
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime.triton_compat import libdevice

TEXT = '''
import torch
import triton
import triton.language as tl
from torch._inductor.runtime.triton_compat import libdevice

@triton.jit
def _double(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, libdevice.rint(tl.load(x + at, at < n) * 2), at < n)

def double(x):
    out = torch.empty_like(x)
    _double[triton.cdiv(x.numel(), 16),](x, out, x.numel(), 16)
    return out
'''

def compiled():
    module = PyCodeCache.load(TEXT)
    assert module.triton.__name__ == "fuser.triton" and libdevice is not None
    return module.double
"""

USER = """
import fuser.triton

with fuser.triton.imports("generator", "torch"):
    import torch
    import generator

found = generator.compiled()(torch.arange(40) / 3)
assert found.tolist() == [round(2 * n / 3) for n in range(40)], found
"""

HELION = """
import fuser.triton

with fuser.triton.imports("helion", "torch"):
    import torch
    import helion
    import helion.language as hl

@helion.kernel(config=helion.Config(block_sizes=[16, 16, 16]))
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    k, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        total = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            total = torch.addmm(total, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = torch.relu(total)
    return out

x, y = torch.randn(40, 70), torch.randn(70, 50)
torch.testing.assert_close(matmul(x, y), torch.relu(x @ y))
"""


def run(script: str, tmp_path: Path) -> None:
    """Run a script in a process where PyTorch is not loaded yet."""
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text(script)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], cwd=tmp_path, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_what_inductor_generates_for_cpus(tmp_path: Path) -> None:
    run(INDUCTOR, tmp_path)


def test_what_a_package_generates_and_pytorch_loads(tmp_path: Path) -> None:
    (tmp_path / "generator.py").write_text(PACKAGE)
    run(USER, tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("helion") is None, reason="helion is not installed")
def test_what_helion_generates(tmp_path: Path) -> None:
    run(HELION, tmp_path)
