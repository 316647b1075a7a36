"""Observations of every space, encoded."""

import pytest
import torch

from nets.cases import FEATURES, MANY, OBS, B, T, observe
from quantail.errors import ConfigError, InputError
from quantail.nets.encoder import ACTIVATIONS, Encoder, mlp
from quantail.types import Box, Discrete, Group, MultiDiscrete


@pytest.mark.parametrize("sizes", [(), (7,), (7, 5)])
@pytest.mark.parametrize(
    ("space", "plain"),
    [
        (OBS, FEATURES),
        (Box((2, 3)), 6),
        (Box(()), 1),
        (Discrete(3), 3),
        (MultiDiscrete((2, 4)), 6),
        (Box((9, 7, 2), 0, 255, "uint8"), 32 * 2 * 1),
        (Group((("a", OBS), ("b", Discrete(3)))), FEATURES + 3),
    ],
)
def test_width_is_what_comes_out(space, plain, sizes) -> None:
    encoder = Encoder(space, sizes, "tanh").double()
    out = encoder(observe(space))
    assert out.dtype == torch.float64
    parts = len(space.parts) if isinstance(space, Group) else 1
    assert out.shape == (T, B, encoder.width)
    assert encoder.width == (sizes[-1] * parts if sizes else plain)


def test_choices_become_ones() -> None:
    one = Encoder(Discrete(3), (), "tanh")(torch.tensor([[0, 2]]))
    assert one.tolist() == [[[1, 0, 0], [0, 0, 1]]]
    several = Encoder(MultiDiscrete((2, 3)), (), "tanh")(torch.tensor([[[1, 0], [0, 2]]]))
    assert several.tolist() == [[[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]]


def test_vector_goes_through_the_layers_of_an_mlp() -> None:
    encoder, obs = Encoder(OBS, (7,), "silu").double(), observe()
    layer = encoder.parts[0].layers[0]
    x = obs @ layer.weight.T + layer.bias
    torch.testing.assert_close(encoder(obs), x * torch.sigmoid(x), rtol=1e-13, atol=1e-13)


def test_image_is_scaled_and_seen_as_channels() -> None:
    space = Box((9, 7, 2), 0, 255, "uint8")
    encoder, obs = Encoder(space, (), "relu").double(), observe(space)
    x = obs.double().reshape(T * B, 9, 7, 2).permute(0, 3, 1, 2) / 255
    for i in (0, 2, 4):
        layer = encoder.parts[0].front.layers[i]
        x = torch.relu(torch.nn.functional.conv2d(x, layer.weight, layer.bias, stride=2, padding=1))
    torch.testing.assert_close(encoder(obs), x.reshape(T, B, -1), rtol=1e-12, atol=1e-12)


def test_parts_lie_side_by_side_in_the_order_of_their_names() -> None:
    obs = observe(MANY)
    backwards = Group(tuple(reversed(MANY.parts)))
    torch.manual_seed(0)
    encoder = Encoder(MANY, (3,), "tanh").double()
    torch.manual_seed(0)
    other = Encoder(backwards, (3,), "tanh").double()
    assert torch.equal(encoder(obs), other(dict(reversed(obs.items()))))
    assert encoder.names == ["image", "orders", "regime", "velocity"]
    for i, name in enumerate(encoder.names):
        changed = encoder({**obs, name: torch.zeros_like(obs[name])})
        differs = (changed != encoder(obs)).any(0).any(0).view(4, 3).any(-1)
        assert differs.tolist() == [j == i for j in range(4)]


def test_activations_differ_and_unknown_ones_are_refused() -> None:
    outputs = set()
    for name in ACTIVATIONS:
        torch.manual_seed(0)
        outputs.add(mlp(3, (5,), name)(torch.linspace(-1, 1, 3)).sum().item())
    assert len(outputs) == len(ACTIVATIONS)
    with pytest.raises(InputError, match="activation='swish'"):
        mlp(3, (5,), "swish")


@pytest.mark.parametrize("space", [OBS, Discrete(3), MultiDiscrete((2, 4)), Box((9, 7, 2), 0, 255, "uint8")])
def test_bad_observations_are_named(space) -> None:
    encoder = Encoder(Group((("part", space),)), (3,), "tanh")
    good = observe(space)
    with pytest.raises(InputError, match=r"obs\['part'\] has shape"):
        encoder({"part": good[0]})
    with pytest.raises(InputError, match=r"obs has the parts \['other'\]; needs \['part'\]"):
        encoder({"other": good})
    with pytest.raises(InputError, match="obs has the parts Tensor"):
        encoder(good)
    with pytest.raises(InputError, match=r"obs\['part'\] is a list"):
        encoder({"part": [good]})
    if not isinstance(space, Box):
        with pytest.raises(InputError, match="whole numbers"):
            encoder({"part": good.float()})


def test_unknown_space_is_refused() -> None:
    with pytest.raises(ConfigError, match="not known"):
        Encoder("Box", (3,), "tanh")
