"""Small PyTorch modules of many kinds, with inputs: what the import of ATen is tested on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Case = tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]


class Function(nn.Module):
    """A module of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.skip = nn.Conv2d(4, 8, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.norm(self.first(x)))) + self.skip(x))


class Inverted(nn.Module):
    """Depthwise convolution with squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(4, 12, 1), nn.BatchNorm2d(12), nn.Hardswish())
        self.depth = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(12, 3, 1), nn.SiLU(), nn.Conv2d(3, 12, 1)
        )
        self.project = nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.depth(self.expand(x)))
        return x + self.project(y * F.hardsigmoid(self.squeeze(y)))


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(2, 4, 3, padding=1)
        self.middle = nn.Conv2d(4, 4, 3, padding=2, dilation=2)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.gelu(self.down(x))
        y = self.up(F.leaky_relu(self.middle(F.max_pool2d(skip, 2)), 0.2))
        y = F.interpolate(y, scale_factor=1.0, mode="nearest")
        return self.out(torch.cat([skip, y], 1)).sigmoid()


class Attention(nn.Module):
    def __init__(self, causal: bool, groups: int = 1) -> None:
        super().__init__()
        self.causal, self.groups = causal, groups
        self.q = nn.Linear(16, 16)
        self.kv = nn.Linear(16, 32 // groups)
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q = self.q(x).view(n, length, 4, 4).transpose(1, 2)
        k, v = self.kv(x).view(n, length, 2, 4 // self.groups, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal, enable_gqa=self.groups > 1
        )
        return self.out(y.transpose(1, 2).reshape(n, length, 16))


class ManualAttention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


class Decoder(nn.Module):
    """An embedding, a pre-norm block with rotary positions, a tied output."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 16)
        self.norm = nn.RMSNorm(16)
        self.qkv = nn.Linear(16, 48, bias=False)
        self.gate, self.up = nn.Linear(16, 24, bias=False), nn.Linear(16, 24, bias=False)
        self.down = nn.Linear(24, 16, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        n, length, _ = x.shape
        place = torch.arange(length)[:, None] / 10 ** (torch.arange(4) / 4)
        cos, sin = place.cos().repeat(1, 2), place.sin().repeat(1, 2)
        q, k, v = self.qkv(self.norm(x)).view(n, length, 3, 2, 8).permute(2, 0, 3, 1, 4)

        def rotate(t: Tensor) -> Tensor:
            a, b = t.chunk(2, -1)
            return t * cos + torch.cat([-b, a], -1) * sin

        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = x + y.transpose(1, 2).flatten(2)
        y = self.norm(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return F.log_softmax(x @ self.table.weight.T, -1)


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(5, 6), nn.GRUCell(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h, c, g = x.new_zeros(2, 6), x.new_zeros(2, 6), x.new_zeros(2, 4)
        for step in x.unbind(1):
            h, c = self.lstm(step, (h, c))
            g = self.gru(h, g)
        return torch.cat([h, c, g], 1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, (h, _) = self.lstm(x)
        return y, h


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = 1
    y[1:, 2:] += 2
    y.mul_(0.5).add_(1)
    y[y > 1] = 0
    y[..., ::2] = x[..., ::2]
    y[[0, 1], [1, 2]] = 7
    return y


def indexing(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    return (
        x[i], x[:, i[:2]], x[i, i], x[..., None, 0], x[1:, ::2], x.flip(0), x.roll(1, 1),
        x.gather(1, i[:, None] % 4), torch.take_along_dim(x, x.argsort(1), 1),
    )  # fmt: skip


def scatters(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    index = i[:, None].expand(-1, 4)
    return (
        torch.zeros(3, 4).scatter_add(0, index, x), x.scatter(1, i[:, None], -1.0),
        x.index_add(0, i, x), x.index_put((i,), x, accumulate=True),
        torch.zeros(4, 3).index_copy(0, i, x.T[:3, :3]), x.index_fill(0, i[:1], 9.0),
    )  # fmt: skip


def losses(x: Tensor, y: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    return (
        F.cross_entropy(x, labels), F.mse_loss(x, y), F.l1_loss(x, y), F.huber_loss(x, y),
        F.binary_cross_entropy_with_logits(x, y.sigmoid()), F.smooth_l1_loss(x, y),
        F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
        F.cross_entropy(x, labels, label_smoothing=0.1), F.cosine_similarity(x, y),
    )  # fmt: skip


def reductions(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.sum(), x.mean((0, 2)), x.var(1), x.std(-1, unbiased=False), x.amax(0), x.min(1).values,
        x.max(1).indices, x.argmin(), x.prod(2), x.logsumexp(1), x.norm(dim=-1), x.cumsum(1),
        x.any(), (x > 0).all(1), (x > 0).sum(), x.softmax(1), *torch.var_mean(x, 0),
    )  # fmt: skip


def sorting(x: Tensor) -> tuple[Tensor, ...]:
    top = x.topk(2, dim=1)
    return (
        *x.sort(1, descending=True),
        x.argsort(0),
        *top,
        x.median(1).values,
        x.kthvalue(2).values,
    )


def elementwise(x: Tensor) -> tuple[Tensor, ...]:
    y = x.abs() + 0.5
    return (
        x.exp(), y.log(), y.rsqrt(), x.sin(), x.tanh(), x.erf(), x.atan(), y.log1p(), x.expm1(),
        x.floor(), x.round(), x.trunc(), x.frac(), x.sign(), x.clamp(-1, 1), x % 0.7, x // 0.3,
        y**1.5, x**3, 2**x, torch.atan2(x, y), torch.where(x > 0, x, -y), x.lerp(y, 0.3),
        torch.addcmul(x, x, y, value=0.5), x.sigmoid(), F.softplus(x), F.elu(x), F.mish(x),
        F.selu(x), F.celu(x), F.softsign(x), F.logsigmoid(x), F.tanhshrink(x), F.hardtanh(x),
        F.gelu(x, approximate="tanh"), F.threshold(x, 0.1, 3.0), torch.maximum(x, y), x.isnan(),
    )  # fmt: skip


def promotion(x: Tensor, i: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    return (
        x + i, i / 2, i * 2, i + 0.5, h + 1, h + x, h * torch.tensor(2.0), i.sum(), i // 2,
        i.float().mean(), (i > 1) & (x[:, 0] > 0), (i > 1) + i, i.to(torch.int8) + i, i << 1,
        i.to(torch.uint8) + i.to(torch.int8), torch.true_divide(i, i + 1), i**2, ~i, -i,
    )  # fmt: skip


def padding(x: Tensor) -> tuple[Tensor, ...]:
    return (
        F.pad(x, (1, 2)), F.pad(x, (1, 1, 2, 0), value=3), F.pad(x, (2, 2, 1, 1), mode="reflect"),
        F.pad(x, (1, 1, 1, 1), mode="replicate"), F.pad(x, (-1, 1)), F.pixel_shuffle(x, 2),
        F.pad(x, (1, 1, 1, 1), mode="circular"),
    )  # fmt: skip


def pooling(x: Tensor) -> tuple[Tensor, ...]:
    return (
        F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), F.adaptive_avg_pool2d(x, (3, 2)),
        F.adaptive_avg_pool2d(x, 1), F.max_pool1d(x[0], 2), F.max_pool2d(x, 2, ceil_mode=True),
        F.lp_pool2d(x.abs(), 2, 2), *F.max_pool2d(x, 3, 2, 1, return_indices=True),
    )  # fmt: skip


def resampling(x: Tensor) -> tuple[Tensor, ...]:
    return (
        F.interpolate(x, scale_factor=2), F.interpolate(x, size=(5, 3)),
        F.interpolate(x, scale_factor=2, mode="bilinear"),
        F.interpolate(x, size=(4, 9), mode="bilinear", align_corners=True),
        F.interpolate(x[:, :, 0], size=9, mode="linear"),
    )  # fmt: skip


def einsums(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (
        torch.einsum("bij,bjk->bik", x, y), torch.einsum("bij,bjk->b", x, y), x @ y[0],
        x.sum(0).T, torch.tensordot(x, y, ([2], [1])), torch.outer(x[0, 0], y[0, 0, :2]),
        torch.baddbmm(x[:, :, :2], x, y[:, :, :2], beta=0.5, alpha=2), torch.diagonal(x, 0, 1, 2),
        x.tril(), torch.linalg.vector_norm(x, 3), torch.cdist(x, x[:, :2]),
    )  # fmt: skip


def shapes(x: Tensor) -> tuple[Tensor, ...]:
    a, b, c = x.split([1, 2, 1], 1)
    return (
        x.reshape(-1), x.permute(2, 0, 1), x.unsqueeze(1).squeeze(), x.expand(2, -1, -1, -1),
        x.repeat(1, 2, 1), torch.stack([x, x], 1), a + b + c, x.chunk(2, 1)[1], x.select(1, -1),
        x.movedim(0, -1), x.unfold(2, 2, 1), x.repeat_interleave(2, 1), torch.tile(x, (2, 1)),
        torch.arange(4)[:, None] + x, x.narrow(1, 1, 2), torch.meshgrid(x[0, 0], x[0, 1])[1],
        x.flatten(1), torch.ones_like(x) * x,
    )  # fmt: skip


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.group, self.layer = nn.GroupNorm(2, 4), nn.LayerNorm((4, 5))
        self.instance, self.rms = nn.InstanceNorm1d(4, affine=True), nn.RMSNorm(5)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.group(x), self.layer(x), self.instance(x), self.rms(x), F.normalize(x, dim=1)


class Nested(nn.Module):
    """Dictionaries and lists in and out, and an option."""

    def forward(self, inputs: dict[str, Any], scale: float) -> dict[str, Any]:
        x, (y, z) = inputs["x"], inputs["pair"]
        return {"sum": [x + y, y * scale], "same": x, "number": 3, "none": None, "z": (z - 1,)}


class Windows(nn.Module):
    """Shifted windows: roll, partition, attention within, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(6, 18)
        self.register_buffer("bias", torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        y = torch.roll(x, (-1, -1), (1, 2)).view(n, h // 2, 2, w // 2, 2, c)
        y = y.permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        q, k, v = self.qkv(y).chunk(3, -1)
        y = (q @ k.mT * c**-0.5 + self.bias).softmax(-1) @ v
        y = y.view(n, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        return torch.roll(y, (1, 1), (1, 2)) + x


class Cover(nn.Module):
    """Pooling windows that reach beyond the image, as large as they come."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (
            F.avg_pool2d(x, 300, ceil_mode=True), F.max_pool2d(x, 300, ceil_mode=True),
            F.max_pool2d(x, (300, 2), ceil_mode=True), F.avg_pool2d(x, 5, 5, 2, ceil_mode=True),
        )  # fmt: skip


def images(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(*shape),)


def of(function: Callable[..., Any]) -> Callable[[], nn.Module]:
    return lambda: Function(function)


MODULES: dict[str, Case] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(), nn.Linear(8, 3)),
            images(5, 6)),
    "residual": (Residual, images(2, 4, 8, 8)),
    "inverted": (Inverted, images(1, 4, 6, 6)),
    "unet": (Unet, images(1, 2, 8, 8)),
    "conv 1d": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3, padding=1, groups=1), nn.PReLU(4),
                nn.ConvTranspose1d(4, 2, 3, stride=2, padding=1, output_padding=1)),
                images(2, 3, 9)),
    "conv 3d": (lambda: nn.Sequential(nn.Conv3d(2, 3, 2), nn.ReLU(), nn.AvgPool3d(2)),
                images(1, 2, 5, 5, 5)),
    "norms": (Norms, images(2, 4, 5)),
    "pooling": (of(pooling), images(1, 2, 7, 7)),
    "large windows": (Cover, images(1, 2, 5, 4)),
    "resampling": (of(resampling), images(1, 2, 4, 4)),
    "padding": (of(padding), images(1, 4, 5, 5)),
    "attention": (lambda: Attention(False), images(2, 6, 16)),
    "causal attention": (lambda: Attention(True), images(2, 6, 16)),
    "grouped attention": (lambda: Attention(True, 2), images(1, 6, 16)),
    "manual attention": (ManualAttention, lambda: (*torch.randn(3, 2, 5, 8),
                         torch.ones(5, 5).tril().bool())),
    "multi-head attention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True),
                             lambda: tuple(torch.randn(3, 2, 4, 8))),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
                      images(2, 4, 8)),
    "decoder": (Decoder, lambda: (torch.randint(0, 11, (2, 7)),)),
    "windows": (Windows, images(1, 4, 4, 6)),
    "cells": (Cells, images(2, 3, 5)),
    "lstm": (Recurrent, images(2, 3, 4)),
    "gru": (lambda: nn.GRU(4, 5, num_layers=2, batch_first=True), images(2, 3, 4)),
    "rnn": (lambda: nn.RNN(4, 5, nonlinearity="relu"), images(3, 2, 4)),
    "losses": (of(losses), lambda: (*torch.randn(2, 4, 5), torch.tensor([0, 2, 4, 1]))),
    "reductions": (of(reductions), images(3, 4, 5)),
    "sorting": (of(sorting), images(3, 5)),
    "elementwise": (of(elementwise), images(4, 6)),
    "promotion": (of(promotion), lambda: (torch.randn(3, 3), torch.tensor([1, 2, 3]),
                  torch.randn(3, 3).half())),
    "in place": (of(in_place), images(3, 5)),
    "indexing": (of(indexing), lambda: (torch.randn(3, 4), torch.tensor([2, 0, 1]))),
    "scatters": (of(scatters), lambda: (torch.randn(3, 4), torch.tensor([2, 0, 1]))),
    "einsums": (of(einsums), lambda: (torch.randn(2, 3, 4), torch.randn(2, 4, 3))),
    "shapes": (of(shapes), images(3, 4, 5)),
    "nested": (Nested, lambda: ({"x": torch.ones(3), "pair": (*torch.randn(2, 3),)}, 2.5)),
    "bfloat16": (lambda: nn.Sequential(
                 nn.Linear(8, 8), nn.LayerNorm(8), nn.Softmax(-1)).bfloat16(),
                 lambda: (torch.randn(4, 8).bfloat16(),)),
    "float64": (lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh()).double(),
                lambda: (torch.randn(4, 8).double(),)),
}  # fmt: skip
