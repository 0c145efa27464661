"""What `cost` computes against what real networks hold and execute, of every family, and against published figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import timm
import torch
import yaml

from raynas.costs import cost
from raynas.nets import build_supernet
from raynas.space import Space, load_arch, load_space
from raynas.space.load import SPACES
from tests.costs.flop_counter import count_macs
from tests.families.hybrid_spaces import HYBRID
from tests.families.s3_spaces import S3
from tests.families.twins_spaces import TWINS
from tests.families.vit_res_spaces import VIT_RES


def small(size: Any = 16, patches: tuple[int, ...] = (4,), channels: int = 1, **constants: Any) -> Space:
    """A vit space of 1 to 3 blocks."""
    return Space.from_dict(
        {
            "family": "vit",
            "input": {"size": size, "channels": channels},
            "classes": 7,
            "constants": {"head_dim": 8, "pool": "mean", **constants},
            "dimensions": {
                "patch_size": list(patches),
                "width": [13, 24, 40],  # no multiple of anything that matters
                "depth": [1, 2, 3],
                "blocks": {"heads": [1, 2, 4], "mlp_ratio": [0.9, 2, 3.7]},
            },
        }
    )


FREE = {"heads": [1, 2, 4], "query_width": [4, 12, 20], "mlp_width": [9, 31]}


def free(blocks: dict[str, Any], **constants: Any) -> Space:
    """A vit space whose query widths are choices of their own."""
    return Space.from_dict(
        {
            "family": "vit",
            "input": {"size": 12, "channels": 1},
            "classes": 7,
            "constants": {"head_dim": None, **constants},
            "dimensions": {"patch_size": [6, 5, 4], "width": [13, 24, 40], **blocks},
        }
    )


LATE = {"blocks": 2, "heads": 3, "head_dim": 5, "mlp_ratio": 1.3}
VIT = {
    "square": small(),
    "relative": small(relative_position=14),
    "relative_clipped": small(size=32, relative_position=2),
    "relative_without_token": small(relative_position=3, class_token=False),
    "relative_patch_sizes": small(patches=(8, 4), relative_position=3),
    "rectangle": small(size=[12, 20], relative_position=4, channels=3),
    "rectangle_without_token": small(size=[24, 8], class_token=False),
    "padded": small(size=[18, 15], relative_position=4),
    "no_bias": small(qkv_bias="none"),
    "thirds": small(qkv_bias="thirds", relative_position=5),
    "token": small(pool="token", channels=2),
    "patch_sizes": small(patches=(16, 5, 2)),
    "deep": small(size=8, patches=(2,), relative_position=1, head_dim=5, drop_path_depth=9),
    "distilled": small(pool="token", relative_position=2, distillation_token=True, token_head=True),
    "cait": small(pool="token", patches=(8, 5), layer_scale=0.1, class_attention=LATE),
    "cait_distilled": free(
        {"block": FREE}, depth_macs=90_000, max_depth=9, distillation_token=True, qkv_bias="none", class_attention=LATE
    ),
    "vitas": free({"depth": [0, 1, 2, 3], "blocks": FREE}, private_heads="qk", sharing="cyclic"),
    "kept_anywhere": free({"blocks": {"repeat": 3, "kept": [False, True], **FREE}}, private_class_token=False),
    "stacked": free({"depth": [1, 3], "block": FREE}, qkv_bias="none"),
    "stacked_to_a_budget": free({"block": FREE}, depth_macs=60_000, max_depth=9),
}


STAGED = {name: Space.from_dict({"classes": 7, **each}, name) for name, each in (TWINS | VIT_RES | HYBRID | S3).items()}


@pytest.mark.parametrize("space", [*VIT.values(), *STAGED.values()], ids=[*VIT, *STAGED])
def test_params_and_macs_equal_those_of_extracted_subnets(space: Space) -> None:
    """12 archs of each space, smallest and largest among them."""
    archs = [space.smallest(), space.largest(), *space.decode(space.sample_codes(np.random.default_rng(1), 10))]
    supernet = build_supernet(space).eval()
    image = torch.zeros(1, space.channels, *space.input_size)
    computed = cost(space, archs)
    for index, arch in enumerate(archs):
        subnet = supernet.extract(arch)
        assert computed["params"][index] == sum(parameter.numel() for parameter in subnet.parameters()), arch
        assert computed["macs"][index] == count_macs(subnet, image), arch


def test_params_and_macs_of_autoformer_tiny_at_full_size() -> None:
    space = load_space("autoformer/tiny")
    archs = [space.smallest(), space.sample(np.random.default_rng(0)), load_arch("autoformer/published/tiny")]
    for arch in archs:
        subnet = build_supernet(arch.space.fix(arch)).eval()
        computed = cost(arch.space, [arch])
        assert computed["params"][0] == sum(parameter.numel() for parameter in subnet.parameters())
        assert computed["macs"][0] == count_macs(subnet, torch.zeros(1, 3, 224, 224))


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_deit_costs_what_timms_deit_costs(size: str) -> None:
    with torch.device("meta"):
        reference = timm.create_model(f"deit_{size}_patch16_224").eval()
    arch = load_arch(f"autoformer/published/deit_{size}")
    computed = cost(arch.space, [arch])
    assert computed["params"][0] == sum(parameter.numel() for parameter in reference.parameters())
    macs = count_macs(reference, torch.zeros(1, 3, 224, 224, device="meta"))
    assert computed["macs"][0] == computed["paper_macs"][0] == macs


PUBLISHED = {"alphanet": 8, "autoformer": 6, "nasvit": 4, "s3": 6, "vit_resnas": 4, "vitas": 10}


@pytest.mark.parametrize(("system", "count"), PUBLISHED.items())
def test_published_files_say_what_is_computed(system: str, count: int) -> None:
    files = sorted((SPACES / system / "published").glob("*.yaml"))
    assert len(files) == count
    for path in files:
        published, arch = yaml.safe_load(path.read_text())["published"], load_arch(path)
        told = {name: published[name] for name in ("params", "macs", "paper_macs") if name in published}
        assert "params" in told and len(told) > 1, path
        assert {name: cost(arch.space, [arch])[name][0] for name in told} == told, path


def test_counting_leaves_the_module_as_it_was() -> None:
    module = torch.nn.Linear(5, 3).train()
    assert count_macs(module, torch.zeros(2, 5)) == 2 * 5 * 3
    assert module.training and module.weight.grad is None
