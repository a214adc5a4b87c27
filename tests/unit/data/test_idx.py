import gzip

import numpy as np
import pytest

from dtrain import errors
from dtrain.data import idx

IMAGES = np.arange(5 * 784).reshape(5, 28, 28) % 251


def test_checks_and_reads_images_and_labels(tmp_path, write_idx):
    for suffix in ("", ".gz"):
        images = str(write_idx(tmp_path / f"images{suffix}", IMAGES))
        labels = str(write_idx(tmp_path / f"labels{suffix}", [3, 1, 4, 1, 5]))
        assert idx.check(images, idx.IMAGES) == 5
        assert idx.check(labels, idx.LABELS) == 5
        (batch,) = idx.records(images, idx.IMAGES).batch(5)
        np.testing.assert_array_equal(
            idx.decode(batch, idx.IMAGES), IMAGES.reshape(5, 784)
        )
        (batch,) = idx.records(labels, idx.LABELS).batch(5)
        np.testing.assert_array_equal(
            idx.decode(batch, idx.LABELS)[:, 0], [3, 1, 4, 1, 5]
        )


def assert_refused(path, kind, *words):
    with pytest.raises(errors.UsageError) as caught:
        idx.check(str(path), kind)
    message = str(caught.value)
    for word in (str(path), "expected", "found", *words):
        assert word in message
    assert "\n" not in message


def test_labels_in_place_of_images(tmp_path, write_idx):
    path = write_idx(tmp_path / "images.gz", np.zeros(100))
    assert_refused(path, idx.IMAGES, "2051 (28 x 28 images)", "2049 (labels)")


def test_images_in_place_of_labels(tmp_path, write_idx):
    path = write_idx(tmp_path / "labels", IMAGES)
    assert_refused(path, idx.LABELS, "2049 (labels)", "2051 (28 x 28 images)")


def test_images_of_another_size(tmp_path, write_idx):
    path = write_idx(tmp_path / "images", np.zeros((4, 32, 30)))
    assert_refused(path, idx.IMAGES, "28 x 28 images", "32 x 30")


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("change", ["short", "long"])
def test_length_that_the_header_does_not_announce(tmp_path, write_idx, suffix, change):
    content = write_idx(tmp_path / "whole", IMAGES).read_bytes()
    content = content[:-10] if change == "short" else content + b"more"
    path = tmp_path / f"images{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    assert_refused(path, idx.IMAGES, "3,936 bytes", f"{len(content):,} bytes")


def test_truncated_gzip(tmp_path, write_idx):
    path = write_idx(tmp_path / "images.gz", IMAGES)
    path.write_bytes(path.read_bytes()[:-100])
    assert_refused(path, idx.IMAGES, "whole gzip file", "only the first")


def test_gzip_damaged_in_its_middle(tmp_path, write_idx):
    noise = np.random.default_rng(0).integers(256, size=(5, 28, 28))
    path = write_idx(tmp_path / "images.gz", noise)
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)
    assert_refused(path, idx.IMAGES, "gzip file")


def test_not_gzip_but_so_named(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(b"<html>Not found</html>")
    assert_refused(path, idx.IMAGES, "gzip file", "<h")


def test_gzip_but_not_so_named(tmp_path, write_idx):
    path = write_idx(tmp_path / "images.gz", IMAGES).rename(tmp_path / "images")
    assert_refused(path, idx.IMAGES, "2051", "add .gz to its name")


def test_web_page_in_place_of_images(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(b"<!DOCTYPE html><html>Not found</html>")
    assert_refused(path, idx.IMAGES, "2051", "web page")


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_empty_file(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"")
    assert_refused(path, idx.IMAGES, "header of 16 bytes", "0 bytes")


def test_no_records(tmp_path, write_idx):
    path = write_idx(tmp_path / "images", np.zeros((0, 28, 28)))
    assert_refused(path, idx.IMAGES, "at least one", "none")


def test_no_such_file(tmp_path):
    assert_refused(tmp_path / "images", idx.IMAGES, "readable", "No such file")
