# SPDX-License-Identifier: Apache-2.0
"""Gradients of complex tensors are conjugated, as in torch: Thunder takes them for real ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.exactness import with_gradients
from torch import Tensor

from thunder_fuser.explain.jitted import jit

TURNS = torch.polar(torch.ones(5, 4), torch.linspace(0, 3, 20).reshape(5, 4))


def pairs(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))


def real(z: Tensor) -> Tensor:
    return torch.view_as_real(z).flatten(-2)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rotary embedding": lambda x, y: real(pairs(x) * TURNS) * y,
    "product": lambda x, y: real(pairs(x) * pairs(y)),
    "quotient": lambda x, y: real(pairs(x) / (pairs(y) + 3)),
    "a complex number": lambda x, y: real(pairs(x) * (1 - 2j)) + y,
    "conjugate": lambda x, y: real(pairs(x) * pairs(y).conj()),
    "power": lambda x, y: real(pairs(x) ** 2 * pairs(y)),
    "matrix product": lambda x, y: real(pairs(x) @ pairs(y).T),
    "sum": lambda x, y: real((pairs(x) * pairs(y)).sum(0)),
    "functions": lambda x, y: real(torch.exp(pairs(x)).sin() + (pairs(y) + 2).sqrt().tanh()),
    "absolute": lambda x, y: (pairs(x) * pairs(y)).abs(),
    "absolute of zero": lambda x, y: (pairs(x) * 0).abs() + pairs(y).abs(),
    "parts": lambda x, y: (pairs(x) * pairs(y)).real * (pairs(x) / 2).imag,
    "real by complex": lambda x, y: real(x[:, :4] * pairs(y)),
    "slices": lambda x, y: real(pairs(x)[1:3, ::2] * pairs(y)[2:4, 1:3]),
    "padded": lambda x, y: real(torch.nn.functional.pad(pairs(x), (1, 2)) * 2) + y.sum(),
    "convolution by FFT": lambda x, y: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(y)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_eager(name: str) -> None:
    torch.manual_seed(0)
    given = [torch.randn(5, 8), torch.randn(5, 8)]
    jitted = jit(FUNCTIONS[name])
    got, eager = (with_gradients(one, given) for one in (jitted, FUNCTIONS[name]))
    torch.testing.assert_close(got, eager)


def test_a_conjugate_is_a_view() -> None:
    x = torch.randn(6, 7, dtype=torch.complex64)
    y = jit(lambda x: x.conj(), strict=True)(x)
    assert y.data_ptr() == x.data_ptr() and y.is_conj()


def test_an_infinite_gradient_of_an_imaginary_part() -> None:
    x = torch.randn(3, dtype=torch.complex64, requires_grad=True)
    seed = torch.tensor([1.5, torch.inf, torch.nan])
    got, expected = (torch.autograd.grad(f(x), x, seed)[0] for f in (jit(torch.imag), torch.imag))
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
