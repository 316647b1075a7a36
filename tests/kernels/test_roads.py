"""Where no kernel of a GPU serves, autocast may round what comes in, and nothing inside."""

import pytest
import torch

from kernels.test_recurrent import KERNELS, STATES, inputs
from quantail.errors import InputError
from quantail.kernels import roads


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("kind", KERNELS)
def test_memory_computes_in_its_own_precision_under_autocast(kind: str, share: float) -> None:
    x, *rest = inputs(kind, torch.float32)
    start = torch.rand(x.shape[:2]) < share
    rounded = x.bfloat16()
    expected = KERNELS[kind](rounded.float(), start, *rest)
    with pytest.raises(InputError, match=r"h0 is torch\.float32 and x is torch\.bfloat16"):
        KERNELS[kind](rounded, start, *rest)
    with torch.autocast("cpu", torch.bfloat16):
        found = [KERNELS[kind](given, start, *rest) for given in (rounded, rounded.float())]
        with pytest.raises(InputError, match=r"h0 is torch\.float64"):
            KERNELS[kind](rounded, start, *(part.double() for part in rest[: STATES[kind]]), *rest[STATES[kind] :])
    for each in found:
        torch.testing.assert_close(each, expected, rtol=0, atol=0)


def test_a_tensor_on_the_cpu_takes_no_kernel_of_a_gpu() -> None:
    assert not roads.takes_triton(torch.zeros(1))
    assert roads.product_dtype(torch.zeros(1)) == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert roads.product_dtype(torch.zeros(1)) == torch.bfloat16
        with roads.exactly(torch.zeros(1)):
            assert not torch.is_autocast_enabled("cpu")
