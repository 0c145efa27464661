"""Folders of class folders, written by Pillow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.fs
import pytest
import torch
from PIL import Image
from torchvision import transforms

from raynas.data.config import DataConfig
from raynas.data.images import ImageSet, decode
from raynas.data.load import load_data, load_test
from raynas.errors import UserError
from tests.data.pictures import picture, write_classes


@pytest.fixture
def pets(tmp_path: Path) -> Iterator[str]:
    """30 images of three classes: ant 0..9, bee 10..19, cat 20..29."""
    write_classes(tmp_path / "pets", {"ant": 10, "bee": 10, "cat": 10})
    yield str(tmp_path / "pets")


def numbers(images: ImageSet) -> list[int]:
    return [int(Path(images.where(k)).stem) for k in range(len(images))]


def test_one_level_is_split_by_us(pets: str) -> None:
    data, test = load_data(pets), load_test(pets)
    assert data.class_names == ("ant", "bee", "cat")
    assert np.bincount(test.labels).tolist() == [2, 2, 2]
    assert sorted(np.bincount(data.search.labels)) == [1, 2, 2]
    assert len(data.search) == 5  # a fifth of 24, rounded up
    assert sorted(numbers(data.train) + numbers(data.search) + numbers(test)) == list(range(30))
    for part in (data.train, data.search, test):
        assert part.labels.tolist() == [k // 10 for k in numbers(part)]


def test_another_seed_never_moves_a_test_image(pets: str) -> None:
    test = numbers(load_test(pets))
    for seed in range(5):
        data = load_data(DataConfig(name=pets, seed=seed))
        assert not {*numbers(data.train), *numbers(data.search)} & {*test}
        assert numbers(load_test(data.config)) == test


def test_pixels_are_pillows(pets: str) -> None:
    data = load_data(pets)
    assert (data.size, data.channels) == ((10, 12), 3)  # the images' own, being small
    pixels, labels = decode(data.train)
    expected = [np.asarray(picture(k)).transpose(2, 0, 1) for k in numbers(data.train)]
    assert np.array_equal(pixels.numpy(), np.stack(expected))
    assert labels.tolist() == data.train.labels.tolist()
    image, label = data.train[0]
    assert isinstance(image, Image.Image) and label == labels[0]
    scaled = np.stack(expected).astype(np.float64) / 255
    assert data.mean == pytest.approx(scaled.mean((0, 2, 3)), abs=1e-6)
    assert data.std == pytest.approx(scaled.std((0, 2, 3)), abs=1e-6)


def test_large_images_are_resized_and_cropped_as_the_papers_do(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 4, "b": 4}, size=(320, 280))
    data = load_data(str(tmp_path))
    assert (data.size, data.channels) == ((224, 224), 3)
    assert data.mean == (0.485, 0.456, 0.406) and data.std == (0.229, 0.224, 0.225)
    reference = transforms.Compose(
        [transforms.Resize(256, interpolation=transforms.InterpolationMode.BICUBIC), transforms.CenterCrop(224)]
    )
    pixels, _ = decode(data.search)
    for k, x in zip(numbers(data.search), pixels, strict=True):
        assert np.array_equal(x.numpy(), np.asarray(reference(picture(k, (320, 280)))).transpose(2, 0, 1))


def test_train_and_val_folders(tmp_path: Path) -> None:
    first = write_classes(tmp_path / "train", {"ant": 10, "bee": 10})
    write_classes(tmp_path / "val", {"ant": 3, "bee": 4}, first=first)
    (tmp_path / "test").mkdir()
    picture(99).save(tmp_path / "test" / "unlabelled.png")  # as ImageNet's
    data, test = load_data(str(tmp_path)), load_test(str(tmp_path))
    assert sorted(numbers(data.train) + numbers(data.search)) == list(range(20))
    assert numbers(test) == list(range(20, 27)) and test.labels.tolist() == [0] * 3 + [1] * 4


def test_test_folder_goes_before_val(tmp_path: Path) -> None:
    for start, split in enumerate(("train", "val", "test")):
        write_classes(tmp_path / split, {"ant": 5, "bee": 5}, first=100 * start)
    assert numbers(load_test(str(tmp_path))) == list(range(200, 210))
    assert max(numbers(load_data(str(tmp_path)).train)) < 10


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    write_classes(tmp_path, {"bus": 5, "train": 5})
    assert load_data(str(tmp_path)).class_names == ("bus", "train")


def test_nested_linked_hidden_and_other_files(tmp_path: Path) -> None:
    write_classes(tmp_path / "elsewhere", {"cats": 5})
    write_classes(tmp_path / "pets", {"bees": 5})
    (tmp_path / "pets" / "cats").symlink_to(tmp_path / "elsewhere" / "cats")
    (tmp_path / "pets" / "bees" / "deep" / "er").mkdir(parents=True)
    picture(50).save(tmp_path / "pets" / "bees" / "deep" / "er" / "050.JPG", "JPEG")
    (tmp_path / "pets" / "bees" / "notes.txt").write_text("x")
    (tmp_path / "pets" / "README.md").write_text("x")
    (tmp_path / "pets" / ".git").mkdir()
    picture(51).save(tmp_path / "pets" / "bees" / "._051.png", "PNG")
    data, test = load_data(str(tmp_path / "pets")), load_test(str(tmp_path / "pets"))
    assert data.class_names == ("bees", "cats")
    assert len(data.train) + len(data.search) + len(test) == 11


def test_grey_and_colour_images_together(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 6}, mode="L")
    write_classes(tmp_path, {"b": 6}, first=6, mode="RGBA")
    write_classes(tmp_path, {"c": 6}, first=12, mode="P")
    assert load_data(str(tmp_path)).channels == 3
    grey = load_data(DataConfig(name=str(tmp_path), channels=1))
    assert decode(grey.train)[0].shape[1:] == (1, 10, 12) and len(grey.mean) == 1


def test_grey_images_keep_one_channel_and_16_bits_what_is_said_of_them(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 6, "b": 6}, mode="L")
    deep = (np.arange(120).reshape(10, 12) * 500).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "a" / "000.png")
    data = load_data(DataConfig(name=str(tmp_path), pixel_range=(0, 65535)))
    assert data.channels == 1
    pixels: dict[int, torch.Tensor] = {}
    for part in (data.train, data.search, load_test(data.config)):
        pixels |= dict(zip(numbers(part), decode(part)[0], strict=True))
    assert np.array_equal(pixels[0][0].numpy(), np.rint(deep / 257))


def test_fingerprint_follows_names_and_sizes_not_the_place(tmp_path: Path) -> None:
    for place in ("here", "there"):
        write_classes(tmp_path / place, {"a": 6, "b": 6})
    before = load_data(str(tmp_path / "here")).fingerprint
    assert load_data(str(tmp_path / "there")).fingerprint == before
    picture(77).save(tmp_path / "here" / "a" / "077.png")
    assert load_data(str(tmp_path / "here")).fingerprint != before


def test_on_an_object_store(pets: str, s3_server: Callable[[str], str]) -> None:
    uri = s3_server("data/pets")
    target, path = pyarrow.fs.FileSystem.from_uri(uri)
    pyarrow.fs.copy_files(pets, path, destination_filesystem=target)
    data, local = load_data(uri), load_data(pets)
    assert data.fingerprint == local.fingerprint
    assert torch.equal(decode(data.train)[0], decode(local.train)[0])
    assert data.train.where(0).startswith("s3://raynas/data/pets/ant/") and "secret" not in data.train.where(0)
    with pytest.raises(UserError, match=r"^s3://raynas/data/none: no such file or folder$"):
        load_data(s3_server("data/none"))


def test_file_uri(pets: str) -> None:
    assert load_data(f"file://{pets}").fingerprint == load_data(pets).fingerprint


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    def message(name: str) -> str:
        with pytest.raises(UserError) as caught:
            decode(load_data(str(tmp_path / name)).train)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    (tmp_path / "empty").mkdir()
    assert "no class folders with images; expected <class>/<image>" in message("empty")
    write_classes(tmp_path / "one", {"a": 3})
    assert "only one class folder, 'a'" in message("one")
    write_classes(tmp_path / "hole", {"a": 3, "b": 3, "c": 0})
    assert "class folder 'c' holds no image" in message("hole")
    write_classes(tmp_path / "few", {"a": 9, "b": 1})
    assert "classes with fewer than 2 images left: 'b' (1)" in message("few")
    write_classes(tmp_path / "val" / "train", {"a": 3, "b": 3})
    write_classes(tmp_path / "val" / "val", {"a": 3, "z": 3})
    assert "val/ has classes that train/ has not: z" in message("val")
    (tmp_path / "flat" / "train").mkdir(parents=True)
    (tmp_path / "flat" / "val").mkdir()
    picture(0).save(tmp_path / "flat" / "train" / "0.png")
    picture(1).save(tmp_path / "flat" / "val" / "1.png")
    assert "train/ holds images directly" in message("flat")
    (tmp_path / "notes.txt").write_text("x")
    assert "is neither a folder nor a .parquet file" in message("notes.txt")
    write_classes(tmp_path / "bad", {"a": 9, "b": 9})
    for file in (tmp_path / "bad").rglob("*.png"):
        file.write_bytes(file.read_bytes()[:60])
    assert message("bad").startswith(str(tmp_path / "bad" / "a"))
    assert "cannot be read as an image" in message("bad")


@pytest.mark.parametrize(
    "folders",
    [
        {"training/ant": 4, "training/bee": 4, "validation/ant": 4, "validation/bee": 4},
        {"split=a/ant": 4, "split=b/ant": 4},
    ],
)
def test_folders_of_splits_are_no_classes(tmp_path: Path, folders: dict[str, int]) -> None:
    write_classes(tmp_path / "pets", folders)
    with pytest.raises(UserError, match="are no classes: name the folders of splits train and val"):
        load_data(str(tmp_path / "pets"))
