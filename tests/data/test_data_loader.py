"""Training batches: order, shares of ranks, skipping, and augmentation, against loops written out by hand."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from timm.data.distributed_sampler import RepeatAugSampler
from timm.data.random_erasing import RandomErasing
from torch import Tensor
from torchvision import transforms
from torchvision.transforms.functional import pil_to_tensor, to_pil_image

from raynas.data import loader as loader_module
from raynas.data.augment import AugmentConfig
from raynas.data.config import DataConfig
from raynas.data.images import Geometry, decode
from raynas.data.load import Data, load_data
from raynas.data.loader import TrainLoader, epoch_order
from raynas.data.pixels import normalise
from raynas.data.streams import seed_global_streams
from raynas.data.transforms import _operations, image_transform
from raynas.errors import UserError
from tests.data.pictures import picture, write_classes

GREY = Geometry((8, 8), 1, 1.0, "bicubic")
Batches = list[tuple[Tensor, Tensor]]
PIXELS = AugmentConfig(shift=1, hflip=0.5, vflip=0.3, reprob=0.5, remode="pixel", recount=2)
IMAGES = AugmentConfig(
    scale=(0.3, 1.0), hflip=0.5, color_jitter=0.4, auto_augment="rand-m9-mstd0.5-inc1", reprob=0.5, remode="pixel"
)


@pytest.fixture(scope="module")
def digits() -> Data:
    return load_data("digits")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Data:
    root = tmp_path_factory.mktemp("pets")
    write_classes(root, {"ant": 12, "bee": 12, "cat": 12}, size=(40, 36))
    return load_data(DataConfig(name=str(root), size=16))


def batches(
    data: Data, augment: AugmentConfig, epoch: int = 0, skip: int = 0, batch_size: int = 4, **more: Any
) -> Batches:
    seed = more.pop("seed", 5)
    return list(TrainLoader(data, augment, batch_size=batch_size, seed=seed, workers=0, **more).epoch(epoch, skip))


def same(a: Batches, b: Batches) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b, strict=True)
    )


def test_an_epoch_shows_every_image_once(digits: Data) -> None:
    loader = TrainLoader(digits, batch_size=64, seed=0)
    assert len(loader) == 17  # 1149 // 64
    seen = torch.cat([x for x, _ in loader.epoch(0)]).flatten(1)
    labels = torch.cat([y for _, y in loader.epoch(0)])
    assert len(seen) == 17 * 64
    known = {
        tuple(row): int(label)
        for row, label in zip(
            normalise(decode(digits.train)[0], digits.normalisation).flatten(1).tolist(),
            digits.train.labels,
            strict=True,
        )
    }
    rows = [tuple(row) for row in seen.tolist()]
    assert len(set(rows)) == len(rows)
    assert [known[row] for row in rows] == labels.tolist()


def test_order_is_a_function_of_seed_and_epoch(digits: Data) -> None:
    plain = AugmentConfig()
    first = batches(digits, plain, epoch=3, batch_size=128)
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    assert same(batches(digits, plain, epoch=3, batch_size=128), first)
    assert not same(batches(digits, plain, epoch=4, batch_size=128), first)
    assert not same(batches(digits, plain, epoch=3, seed=6, batch_size=128), first)
    orders = {tuple(epoch_order(50, seed, epoch)) for seed in range(6) for epoch in range(6)}
    assert len(orders) == 36 and all(sorted(order) == list(range(50)) for order in orders)


@pytest.mark.parametrize(("world_size", "size"), [(2, 24), (3, 36), (3, 64), (5, 64)])
def test_ranks_share_the_steps_of_one(digits: Data, world_size: int, size: int) -> None:
    """The r-th of n ranks sees every n-th image of the step that one rank would see, augmented alike."""
    whole = batches(digits, PIXELS, batch_size=size)
    for rank in range(world_size):
        part = batches(digits, PIXELS, batch_size=size, rank=rank, world_size=world_size)
        assert same(part, [(x[rank::world_size], y[rank::world_size]) for x, y in whole])


def test_images_that_are_mixed_are_dealt_in_pieces(digits: Data) -> None:
    """Of 16 pieces of 4 images three ranks get 6, 5 and 5; all images of the step are dealt, and none twice."""
    loaders = [TrainLoader(digits, batch_size=64, seed=5, rank=r, world_size=3, together=4) for r in range(3)]
    dealt = [next(loader.indices(0)).tolist() for loader in loaders]
    assert [len(one) for one in dealt] == [24, 20, 20]
    assert [loader.share for loader in loaders] == [24 / 64, 20 / 64, 20 / 64]
    assert sorted(index for one in dealt for index in one) == sorted(
        next(TrainLoader(digits, batch_size=64, seed=5).indices(0)).tolist()
    )


def test_ranks_of_decoded_images_likewise(folder: Data) -> None:
    whole = batches(folder, IMAGES, batch_size=8)
    assert len(whole) == 2  # 22 images to train on
    for rank in range(2):
        part = batches(folder, IMAGES, batch_size=8, rank=rank, world_size=2)
        assert same(part, [(x[rank::2], y[rank::2]) for x, y in whole])


@pytest.mark.parametrize(("augment", "workers"), [(AugmentConfig(), 0), (PIXELS, 0), (IMAGES, 0), (IMAGES, 2)])
def test_a_resumed_epoch_goes_on_alike(folder: Data, augment: AugmentConfig, workers: int) -> None:
    loader = TrainLoader(folder, augment, batch_size=4, seed=5, workers=workers)
    assert len(loader) == 5
    for epoch in (2, 7):  # the workers live on from the first to the second
        whole = list(loader.epoch(epoch))
        assert same(whole, batches(folder, augment, epoch))
        random.seed(0)
        torch.manual_seed(0)
        for skip in (0, 1, 4, 5):
            assert same(list(loader.epoch(epoch, skip)), whole[skip:])
    next(iterator := loader.epoch(2))  # an epoch that is broken off
    del iterator
    assert same(list(loader.epoch(7)), whole)


def test_skipped_images_are_not_read(tmp_path: Path) -> None:
    write_classes(tmp_path, {"ant": 12, "bee": 12}, size=(20, 20))
    data = load_data(DataConfig(name=str(tmp_path), size=16, channels=3))
    order = epoch_order(len(data.train), 5, 0)
    assert data.mean
    Path(data.train.where(int(order[0]))).write_bytes(b"junk")
    loader = TrainLoader(data, IMAGES, batch_size=4, seed=5, workers=0)
    assert len(list(loader.epoch(0, skip=1))) == len(loader) - 1
    with pytest.raises(UserError, match=r"\.png: cannot be read as an image"):
        next(loader.epoch(0))
    with pytest.raises(UserError, match=r"^[^\n]*\.png: cannot be read as an image[^\n]*$"):
        next(TrainLoader(data, IMAGES, batch_size=4, seed=5, workers=1).epoch(0))


@pytest.mark.parametrize("augment", [PIXELS, IMAGES], ids=["pixels", "images"])
def test_global_streams_are_left_alone(folder: Data, augment: AugmentConfig) -> None:
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
    batches(folder, augment)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
    assert after == states


def test_shifts_and_flips_are_exact_and_per_image(digits: Data) -> None:
    """Every augmented image is one of the 9 x 2 moves of its original, and all of them occur."""
    pixels = decode(digits.train)[0]
    order = epoch_order(len(pixels), 5, 0)
    moves: dict[tuple[int, int, bool], int] = {}
    background = normalise(torch.zeros(1, 8, 8, dtype=torch.uint8), digits.normalisation)[0, 0, 0]
    position = 0
    for images, _ in batches(digits, AugmentConfig(shift=1, hflip=0.5), batch_size=64):
        for image in images:
            original = normalise(pixels[order[position]], digits.normalisation)[0]
            found = []
            for mirrored in (False, True):
                for dy in (-1, 0, 1):
                    for dx in (-1, 0, 1):
                        moved = torch.full((8, 8), background.item())
                        target, origin = slice(max(dy, 0), 8 + min(dy, 0)), slice(max(-dy, 0), 8 + min(-dy, 0))
                        columns, sources = slice(max(dx, 0), 8 + min(dx, 0)), slice(max(-dx, 0), 8 + min(-dx, 0))
                        moved[target, columns] = original[origin, sources]
                        if torch.equal(moved.flip(1) if mirrored else moved, image[0]):
                            found.append((dy, dx, mirrored))
            assert found
            moves[found[0]] = moves.get(found[0], 0) + 1
            position += 1
    assert len(moves) == 18
    assert all(30 <= count <= 95 for count in moves.values())  # 60 expected


def test_erasing_is_timms(digits: Data) -> None:
    plain = torch.cat([x for x, _ in batches(digits, AugmentConfig(), batch_size=64)])
    erased = torch.cat([x for x, _ in batches(digits, AugmentConfig(reprob=0.5), batch_size=64)])
    changed = (plain != erased).flatten(1).any(1)
    zeroed = (erased == 0).flatten(1).any(1)  # timm fills with zeros, after normalising
    assert torch.equal(changed, zeroed) and 0.4 < changed.float().mean() < 0.6
    assert torch.equal(torch.where(erased == 0, plain, erased), plain)
    random.seed(0)
    reference = RandomErasing(1.0, device="cpu")(plain.clone())
    share = (erased == 0).sum() / changed.sum()
    assert share.item() == pytest.approx(((reference == 0).sum() / len(plain)).item(), rel=0.1)


def test_without_augmentation_both_ways_give_the_same(folder: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = batches(folder, AugmentConfig())
    monkeypatch.setattr(loader_module, "DECODED_UP_TO", 0)
    for (x, y), (u, v) in zip(decoded, batches(folder, AugmentConfig()), strict=True):
        assert torch.allclose(x, u, atol=1e-5) and torch.equal(y, v)
    moved = batches(folder, AugmentConfig(shift=2, hflip=1.0))
    assert moved[0][0].shape == (4, 3, 16, 16)


def test_auto_augment_without_a_crop_keeps_the_frame(folder: Data) -> None:
    images = torch.cat([x for x, _ in batches(folder, AugmentConfig(color_jitter=1e-9))])
    plain = torch.cat([x for x, _ in batches(folder, AugmentConfig())])
    assert torch.allclose(images, plain, atol=0.05)
    assert batches(folder, AugmentConfig(auto_augment="rand-m9-mstd0.5-inc1"))[0][0].shape == (4, 3, 16, 16)


def test_grey_images_are_augmented_by_timm_too(digits: Data) -> None:
    x, y = next(TrainLoader(digits, IMAGES, batch_size=200, seed=5, workers=0).epoch(0))
    assert x.shape == (200, 1, 8, 8) and torch.isfinite(x).all() and y.dtype == torch.int64


def test_the_strongest_posterize_is_black(digits: Data) -> None:
    """Pillow 13 refuses the 0 bits that timm asks for; AutoFormer's policy comes there now and then."""
    transform = image_transform(AugmentConfig(auto_augment="rand-m10-n15-p1-t0-inc1"), GREY, (0.5,), (0.5,))
    operations = {op.name: op for op in _operations(transform.transforms[2])}  # type: ignore[attr-defined]
    posterize = operations["PosterizeIncreasing"]
    assert not np.asarray(posterize.aug_fn(picture(1, mode="L"), 0, **posterize.kwargs)).any()
    halved = np.asarray(posterize.aug_fn(picture(1, mode="L"), 1, **posterize.kwargs))
    assert np.array_equal(halved, np.asarray(picture(1, mode="L")) & 128)


def test_repeats_lie_side_by_side_and_keep_the_length() -> None:
    order = epoch_order(10, 0, 0, repeats=3)
    assert len(order) == 10 and (order[:9].reshape(3, 3) == order[:9:3, None]).all()
    assert len({*order.tolist()}) == 4


@pytest.mark.parametrize("repeats", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_repeats_are_timms(digits: Data, repeats: int, ranks: int) -> None:
    """Ranks get the copies that timm's sampler deals them; only which image comes when is our own draw."""
    count = len(digits.train)
    samplers = [
        RepeatAugSampler(range(count), ranks, rank, num_repeats=repeats, selected_round=0) for rank in range(ranks)
    ]
    theirs = torch.tensor([list(each) for each in samplers]).T.flatten().tolist()
    loaders = [
        TrainLoader(digits, AugmentConfig(repeats=repeats), batch_size=60, seed=5, rank=rank, world_size=ranks)
        for rank in range(ranks)
    ]
    ours = torch.stack([torch.cat(list(each.indices(0))) for each in loaders]).T.flatten().tolist()
    assert by_appearance(ours) == by_appearance(theirs[: len(ours)])
    assert len(ours) == count // 60 * 60 and len({*ours}) == -(-len(ours) // repeats)


def by_appearance(images: list[int]) -> list[int]:
    """Images numbered in the order in which they come."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(image, len(numbers)) for image in images]


@pytest.mark.parametrize(("augment", "workers"), [(PIXELS, 0), (IMAGES, 2)], ids=["pixels", "images"])
def test_copies_differ_whatever_the_ranks_the_workers_and_the_entry(
    folder: Data, augment: AugmentConfig, workers: int
) -> None:
    """Uneven steps of 7 images over 3 ranks, begun by one rank and continued by others in mid-epoch."""
    augment = augment.model_copy(update={"repeats": 3})
    whole = batches(folder, augment, epoch=1, batch_size=7)
    assert not torch.equal(whole[0][0][0], whole[0][0][1]) and (whole[0][1][:3] == whole[0][1][0]).all()
    for step, (images, labels) in enumerate(whole):
        parts = []
        for rank in range(3):
            loader = TrainLoader(folder, augment, batch_size=7, seed=5, rank=rank, world_size=3, workers=workers)
            parts.append(next(loader.epoch(1, skip=step)))
        assert [len(part) for part, _ in parts] == [3, 2, 2]
        dealt = [position for rank in range(3) for position in ([*range(rank, 6, 3)] + [6] * (rank == 0))]
        assert torch.equal(torch.cat([part for part, _ in parts]), images[dealt])
        assert torch.equal(torch.cat([label for _, label in parts]), labels[dealt])


def test_colour_jitter_is_torchvisions() -> None:
    image, jitter = picture(3, size=(16, 16)), transforms.ColorJitter(0.4, 0.4, 0.4)
    colours, policy = Geometry((16, 16), 3, 1.0, "bicubic"), "rand-m9-mstd0.5-inc1"

    def changed(**augment: Any) -> Tensor:
        seed_global_streams(11)
        made = image_transform(AugmentConfig(**augment), colours, (0.0,) * 3, (1.0,) * 3)(image)
        return (made * 255).round().to(torch.uint8)

    def jittered(pixels: Tensor) -> Tensor:
        torch.manual_seed(11)
        return pil_to_tensor(jitter(to_pil_image(pixels)))

    assert torch.equal(changed(color_jitter=0.4), jittered(pil_to_tensor(image)))
    assert not torch.equal(changed(color_jitter=0.4), pil_to_tensor(image))
    # Beside a policy, which draws from other streams, it acts if it is forced.
    assert torch.equal(changed(color_jitter=0.4, auto_augment=policy), changed(auto_augment=policy))
    forced = changed(color_jitter=0.4, auto_augment=policy, force_color_jitter=True)
    assert torch.equal(forced, jittered(changed(auto_augment=policy)))
    for more in ({}, {"force_color_jitter": True}):
        with_policy = AugmentConfig(color_jitter=0.4, auto_augment=policy, **more)
        assert with_policy.jitters is bool(more)


def test_grey_images_have_no_saturation_to_jitter() -> None:
    image = picture(3, size=(8, 8), mode="L")
    alone = transforms.ColorJitter(saturation=0.9)(image)
    assert np.array_equal(np.asarray(alone), np.asarray(image))
    transform = image_transform(AugmentConfig(color_jitter=0.9), GREY, (0.0,), (1.0,))
    assert not np.array_equal((transform(image) * 255).round().numpy()[0], np.asarray(image))


def test_a_small_set_is_decoded_once_for_its_normalisation_and_for_training(folder: Data) -> None:
    data = load_data(folder.config)
    known = vars(data.train)
    assert "decoded" not in known
    mean = data.mean
    pixels, labels = known["decoded"]
    assert mean == pytest.approx((pixels.transpose(0, 1).flatten(1).double() / 255).mean(1).tolist())
    loader = TrainLoader(data, batch_size=4, seed=0)
    assert loader._pixels is pixels and loader._labels is labels
    assert "decoded" not in vars(pickle.loads(pickle.dumps(data.train)))


def test_train_and_search_together(digits: Data) -> None:
    loader = TrainLoader(digits, batch_size=64, seed=0, train_on="train+search")
    assert len(loader.images) == 1437 and len(loader) == 22


def test_a_small_set_makes_a_smaller_step(folder: Data) -> None:
    loader = TrainLoader(folder, batch_size=64, seed=0, world_size=4)
    assert loader.shortage == "22 training images are fewer than one step of 64: an epoch is one step of 22"
    assert TrainLoader(folder, batch_size=22, seed=0, world_size=4).shortage is None
    assert (len(loader), loader.batch_size) == (1, 22)
    assert [x.shape[0] for x, _ in loader.epoch(0)] == [6]
    with pytest.raises(UserError, match="22 training images cannot be shared by 23 workers"):
        TrainLoader(folder, batch_size=64, seed=0, world_size=23)
    with pytest.raises(UserError, match="shared by 3 workers in pieces of 8; use fewer workers, or a smaller accum"):
        TrainLoader(folder, batch_size=64, seed=0, world_size=3, together=8)


def test_wrong_augmentations(folder: Data) -> None:
    with pytest.raises(UserError, match="auto_augment: 'random-m9' is not a policy that timm knows"):
        TrainLoader(folder, AugmentConfig(auto_augment="random-m9"), batch_size=4, seed=0)
    with pytest.raises(ValueError, match="shift and scale both move the image"):
        AugmentConfig(shift=1, scale=(0.5, 1.0))
    many = load_data("tests.data.user_datasets:floats")
    with pytest.raises(UserError, match="need images of 1 or 3 channels, not 2"):
        TrainLoader(many, IMAGES, batch_size=4, seed=0)


def test_images_of_a_folder_on_an_object_store(tmp_path: Path, s3_server: Callable[[str], str]) -> None:
    import pyarrow.fs

    write_classes(tmp_path, {"ant": 9, "bee": 9}, size=(20, 20))
    target, path = pyarrow.fs.FileSystem.from_uri(s3_server("data/loader"))
    pyarrow.fs.copy_files(str(tmp_path), path, destination_filesystem=target)
    remote, local = (load_data(DataConfig(name=name, size=16)) for name in (s3_server("data/loader"), str(tmp_path)))
    loader = TrainLoader(remote, IMAGES, batch_size=4, seed=5, workers=1)
    assert same(list(loader.epoch(0)), batches(local, IMAGES))
