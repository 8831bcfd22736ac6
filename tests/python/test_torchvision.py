"""ResNets begin with state dicts of torchvision's and become such."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn


class Block(nn.Module):
    """As torchvision's BasicBlock names its parts."""

    def __init__(self, channels, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, maps):
        out = self.bn2(self.conv2(self.bn1(self.conv1(maps)).relu()))
        return (out + (maps if self.downsample is None else self.downsample(maps))).relu()


class ResNet18(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        for stage, out in enumerate((64, 128, 256, 512)):
            setattr(self, f"layer{stage + 1}", nn.Sequential(Block(channels, out, 1 if stage == 0 else 2), Block(out, out, 1)))
            channels = out
        self.fc = nn.Linear(512, classes)

    def forward(self, images):
        maps = nn.functional.max_pool2d(self.bn1(self.conv1(images)).relu(), 3, 2, 1)
        for stage in range(4):
            maps = getattr(self, f"layer{stage + 1}")(maps)
        return self.fc(maps.mean((2, 3)))


@pytest.fixture
def first_batch(tessera):
    tessera.write("train.yaml", """
name: tuned
model: {arch: resnet18, image: 64, classes: 10}
data: {source: synthetic}
train: {steps: 2, global_batch: 8, init: torchvision.pth, optimizer: {kind: sgd, lr: 0.01}}
parallel: {dp: 1}
""")
    batch = json.loads(tessera("data", "batch", "train.yaml", "--json", "--step", 0).stdout.splitlines()[0])
    return torch.tensor(batch["images"]).view(-1, 3, 64, 64), torch.tensor(batch["labels"])


def loss_of(model, batch):
    with torch.no_grad():
        return nn.functional.cross_entropy(model.train()(batch[0]), batch[1]).item()


def test_a_run_begins_with_a_state_dict_and_its_export_loads_strictly(tessera, first_batch):
    torch.manual_seed(7)
    theirs = ResNet18(10)
    torch.save(theirs.state_dict(), tessera.folder / "torchvision.pth")
    tessera("train", "train.yaml", "--no-measure")
    assert tessera.metrics("tuned")[0]["loss"] == pytest.approx(loss_of(theirs, first_batch), rel=1e-4)

    tessera("export", "tuned", "--to", "torchvision", "tuned.safetensors")
    ours = ResNet18(10)
    ours.load_state_dict(load_file(tessera.folder / "tuned.safetensors"), strict=True)
    assert ours.bn1.num_batches_tracked == 2
    assert not torch.equal(ours.bn1.running_mean, theirs.bn1.running_mean)
    tessera("train", "train.yaml", "--no-measure", "--set", "name=again", "--set", "train.init=tuned.safetensors", "--set", "train.steps=1")
    assert tessera.metrics("again")[0]["loss"] == pytest.approx(loss_of(ours, first_batch), rel=1e-4)


def test_a_head_for_other_classes_begins_anew_and_is_named(tessera, first_batch):
    torch.save(ResNet18(1000).state_dict(), tessera.folder / "torchvision.pth")
    told = tessera("train", "train.yaml", "--no-measure", "--set", "train.steps=1").stderr
    assert "fc.weight, fc.bias begin with initial weights" in told and "10 classes" in told


def test_another_model_is_refused_by_a_tensors_name(tessera, first_batch):
    torch.save(ResNet18(10).state_dict(), tessera.folder / "torchvision.pth")
    result = tessera("train", "train.yaml", "--no-measure", "--set", "model.arch=resnet34", check=False)
    assert result.returncode == 2 and "tensor 'layer1.2.conv1.weight' is missing" in result.stderr and "torchvision.pth" in result.stderr
