"""What the data commands say of a job that reads images."""

import io
import json
import random
import struct
import tarfile
import zlib

import pytest


@pytest.fixture
def job(tmp_path):
    """Forty images of 8 x 8 whose pixels are their index, the class its last digit."""
    folder = tmp_path / "digits"
    folder.mkdir()
    pixels = b"".join(bytes([i]) * 64 for i in range(40))
    (folder / "train-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, 40, 8, 8) + pixels)
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 40) + bytes(i % 10 for i in range(40)))
    path = tmp_path / "train.yaml"
    path.write_text(
        "model: {arch: resnet18, image: 32, channels: 3, classes: 10}\n"
        "data: {source: digits, split: {train: 0.9}, images: {normalize: {mean: 0.5, std: 0.25}}}\n"
        "train: {steps: 10, global_batch: 12}\n"
    )
    return path


def test_a_batch_is_normalized_images_and_their_labels(tessera, job):
    out = tessera("data", "batch", job, "--json", "--step", 1, "--count", 2).stdout.splitlines()
    first, second = map(json.loads, out)
    assert first["step"] == 1 and len(first["samples"]) == 12
    assert not set(first["samples"]) & set(second["samples"])
    for image, label in zip(first["images"], first["labels"]):
        assert len(image) == 3 * 32 * 32
        index = (image[0] * 0.25 + 0.5) * 255
        assert index == pytest.approx(round(index), abs=1e-3) and round(index) % 10 == label
    assert json.loads(tessera("data", "batch", job, "--json", "--step", 2).stdout) == second


def test_inspect_counts_images_and_pack_refuses_them(tessera, job):
    out = json.loads(tessera("data", "inspect", job, "--json").stdout)
    assert (out["train_images"], out["validation_images"]) == (36, 4)
    result = tessera("data", "pack", job, check=False)
    assert result.returncode == 2 and "the job's model reads images" in result.stderr


def test_too_few_classes_are_refused_with_their_number(tessera, job):
    result = tessera("data", "batch", job, "--set", "model.classes=7", check=False)
    assert result.returncode == 2 and "the source has 10 classes, and model.classes is 7" in result.stderr
    assert "set model.classes to 10" in result.stderr


def png(side, pixels):
    """Of a colour image, `pixels` row by row."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    rows = b"".join(b"\0" + pixels[row * side * 3:(row + 1) * side * 3] for row in range(side))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", side, side, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows))
            + chunk(b"IEND", b""))


def write_shards(folder, shards, images):
    """As webdataset writes them: in each shard so many images of 24 x 24 with their classes, 0 to 3."""
    draw = random.Random(5)
    folder.mkdir()
    for shard in range(shards):
        with tarfile.open(folder / f"flowers-{shard:03}.tar", "w") as tar:
            for index in range(images):
                for ending, content in (("png", png(24, draw.randbytes(24 * 24 * 3))), ("cls", str(index % 4).encode())):
                    member = tarfile.TarInfo(f"{shard}{index:04}.{ending}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def test_training_from_shards_goes_on_where_it_ended(tessera, tmp_path):
    write_shards(tmp_path / "flowers", shards=3, images=20)
    job = tessera.write("train.yaml", """
model: {arch: resnet18, image: 32, channels: 3, classes: 4}
data: {source: flowers, split: {train: 0.8}, images: {crop: random_resized, flip: true, jitter: {brightness: 0.4, hue: 0.1}, mixup: 0.2, normalize: {mean: 0.5, std: 0.25}}}
train: {steps: 14, global_batch: 8, optimizer: {kind: sgd, lr: 0.01, momentum: 0.9}, schedule: {kind: constant}}
cluster: {local: {devices: 2, threads: 1}}
parallel: {dp: 2, pp: 1, tp: 1, micro_batches: 1}
""")
    tessera("train", job, "--no-measure", "--set", "name=whole")
    expected = [line["loss"] for line in tessera.metrics("whole")]
    assert len(expected) == 14 and len(set(expected)) == 14  # more than two epochs of 48 images

    # Within the first epoch, and with a checkpoint in the second.
    tessera("train", job, "--no-measure", "--set", "name=stopped", "--set", "train.steps=5")
    tessera("train", job, "--no-measure", "--set", "name=stopped", "--set", "train.steps=9", "--resume")
    tessera("train", job, "--no-measure", "--set", "name=stopped", "--resume")
    assert [line["loss"] for line in tessera.metrics("stopped")] == expected


def test_unequal_shares_of_batch_norm_by_device_are_warned_of(tessera, job):
    tessera("plan", job, "-o", "plan.json", "--set", "cluster={local: {devices: 2, threads: 1}}", "--set", "parallel={dp: 2, pp: 1, tp: 1, micro_batches: 1}")
    plan = json.loads((tessera.folder / "plan.json").read_text())
    del plan["predicted"]
    plan["stages"][0]["shares"] = [{"ranks": 1, "samples": 8}, {"ranks": 1, "samples": 4}]
    tessera.write("plan.json", plan)
    words = ("--no-measure", "--plan", "plan.json", "--set", "train.steps=1", "--set", "cluster={local: {devices: 2, threads: 1}}", "--set", "name=unequal")
    assert "warning: replicas take 8 and 4 samples of a micro-batch, and batch norm" in tessera("train", job, *words).stderr
