"""Weights in files, and other numbers of classes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_model

from raynas.errors import UserError
from raynas.nets.weights import load_supernet, load_weights, weights_fingerprint
from tests.families.nets_spaces import make_images, make_space, make_supernet


def test_saved_and_loaded_supernets_and_subnets_are_equal(tmp_path: Path) -> None:
    space = make_space("autoformer")
    supernet = make_supernet(space)
    arch = space.smallest()
    images = make_images(space, 2)
    for network, network_space in ((supernet, space), (supernet.extract(arch), space.fix(arch))):
        save_model(network, str(tmp_path / "weights.safetensors"))
        loaded = load_supernet(network_space, tmp_path / "weights.safetensors").eval()
        assert torch.equal(loaded(images, arch), network(images, arch))
        assert weights_fingerprint(loaded.state_dict()) == weights_fingerprint(network.state_dict())


def test_a_state_dict_is_used_without_a_copy() -> None:
    space = make_space("deit")
    state = make_supernet(space).state_dict()
    loaded = load_supernet(space, state)
    for name, parameter in loaded.named_parameters():
        assert parameter.data_ptr() == state[name].data_ptr() and parameter.requires_grad


def test_the_fingerprint_tells_names_types_shapes_and_values() -> None:
    state = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    prints = [
        weights_fingerprint(changed)
        for changed in (
            state,
            {"a": torch.zeros(3, 2), "b": torch.ones(1)},
            {"a": torch.zeros(2, 3).bfloat16(), "b": torch.ones(1)},
            {"a": torch.zeros(2, 3), "c": torch.ones(1)},
            {"a": torch.zeros(2, 3), "b": torch.full((1,), 1 + 1e-6)},
        )
    ]
    assert len(set(prints)) == 5 and all(len(value) == 12 for value in prints)
    assert weights_fingerprint(dict(reversed(state.items()))) == prints[0]


def test_a_head_for_other_classes_is_new_and_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    space = make_space("deit")
    state = make_supernet(space).state_dict()
    loaded = load_supernet(space.with_input(classes=11), state)
    assert "for 7 classes: a new head for 11 classes" in capsys.readouterr().out
    assert loaded(make_images(space, 2), space.largest()).shape == (2, 11)
    assert torch.equal(loaded.state_dict()["norm.weight"], state["norm.weight"])


def test_weights_of_another_space_are_refused(tmp_path: Path) -> None:
    space = make_space("deit")
    state = make_supernet(space).state_dict()
    for broken, message in (
        ({**state, "extra": torch.zeros(1)}, "extra is unknown"),
        ({name: value for name, value in state.items() if name != "norm.bias"}, "norm.bias is missing"),
        ({**state, "norm.bias": torch.zeros(3)}, r"norm.bias is \[3\] instead of \[25\]"),
    ):
        with pytest.raises(UserError, match=message):
            load_supernet(space, broken)
    (tmp_path / "text.safetensors").write_text("no weights")
    for name in ("text.safetensors", "missing.safetensors"):
        with pytest.raises(UserError):
            load_weights(tmp_path / name)
