"""Five steps of momentum SGD of a model of PyTorch's on random images, as FOLDER/model.safetensors.

usage: vision_reference.py MODEL FOLDER. ResNets and ViT are transformers', VGGs are written here as torchvision writes them. Tensors: images and
labels of all steps one after the other, losses, and of each parameter and running statistic initial.NAME and final.NAME, by torchvision's names.
"""
import re
import sys

import torch
import transformers
from safetensors.torch import save_file
from torch import nn

STEPS, BATCH, CLASSES = 5, 8, 10
VGG = {
    "vgg11": [64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"],
    "vgg16": [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"],
}


class Vgg(nn.Module):
    """A sixteenth of torchvision's channels, without dropout: its masks are its own."""

    def __init__(self, layers, norm):
        super().__init__()
        features, channels = [], 3
        for width in layers:
            if width == "M":
                features.append(nn.MaxPool2d(2, 2))
                continue
            features.append(nn.Conv2d(channels, width // 16, 3, padding=1))
            features += [nn.BatchNorm2d(width // 16)] * norm + [nn.ReLU()]
            channels = width // 16
            nn.init.kaiming_normal_(features[-2 - norm].weight, mode="fan_out", nonlinearity="relu")
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(nn.Linear(channels * 49, 256), nn.ReLU(), nn.Identity(), nn.Linear(256, 256), nn.ReLU(), nn.Identity(),
                                        nn.Linear(256, CLASSES))

    def forward(self, images):
        return self.classifier(self.avgpool(self.features(images)).flatten(1))


def resnet(layer, widths, depths):
    """With branches that start small: otherwise the smallest error grows a hundredfold in each step."""
    model = transformers.ResNetForImageClassification(
        transformers.ResNetConfig(layer_type=layer, hidden_sizes=widths, depths=depths, num_labels=CLASSES))
    last = {"basic": "layer.1.normalization.weight", "bottleneck": "layer.2.normalization.weight"}[layer]
    for name, values in model.named_parameters():
        if name.endswith(last):
            nn.init.constant_(values, 0.2)
    return model


def vit():
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(hidden_size=64, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4, image_size=32, patch_size=8,
                               num_labels=CLASSES, layer_norm_eps=1e-6))


MODELS = {
    "resnet18": (lambda: resnet("basic", [64, 128, 256, 512], [2, 2, 2, 2]), 64),
    "resnet50": (lambda: resnet("bottleneck", [256, 512, 1024, 2048], [3, 4, 6, 3]), 96),
    "vgg11": (lambda: Vgg(VGG["vgg11"], False), 64),
    "vgg16_bn": (lambda: Vgg(VGG["vgg16"], True), 64),
    "vit": (vit, 32),
}


def torchvision_name(name):
    """Of a ResNet's parameter as transformers names it; others stay as they are."""
    kinds = {"convolution": "conv", "normalization": "bn"}
    name = re.sub(r"resnet\.embedder\.embedder\.(convolution|normalization)", lambda found: kinds[found[1]] + "1", name)
    name = re.sub(r"resnet\.encoder\.stages\.(\d)\.layers\.", lambda found: f"layer{int(found[1]) + 1}.", name)
    name = re.sub(r"\.layer\.(\d)\.(convolution|normalization)", lambda found: f".{kinds[found[2]]}{int(found[1]) + 1}", name)
    name = name.replace("shortcut.convolution", "downsample.0").replace("shortcut.normalization", "downsample.1")
    return name.replace("classifier.1.", "fc.") if name.startswith("classifier.1.") else name


def state_of(model, prefix):
    return {prefix + torchvision_name(name): value.clone().contiguous() for name, value in model.state_dict().items() if not name.endswith("num_batches_tracked")}


def main(name, folder):
    torch.manual_seed(7)
    make, side = MODELS[name]
    model = make().train()
    images, labels = torch.randn(STEPS * BATCH, 3, side, side), torch.randint(CLASSES, (STEPS * BATCH,))
    tensors = {"images": images, "labels": labels} | state_of(model, "initial.")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0003, momentum=0.9)
    losses = []
    for step in range(STEPS):
        part = slice(step * BATCH, (step + 1) * BATCH)
        logits = model(images[part])
        loss = torch.nn.functional.cross_entropy(getattr(logits, "logits", logits), labels[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    save_file(tensors | state_of(model, "final.") | {"losses": torch.stack(losses)}, f"{folder}/model.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
