"""The models of the comparison in plain PyTorch, as lists of modules that run one after another, so that pipelines can cut them anywhere. Layers are
torchvision's, and transformers' of BERT; initial values are those that PyTorch gives them."""
import torch
from torch import nn


def vgg16(classes):
    parts, channels = [], 3
    for width, layers in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for layer in range(layers):
            pool = [nn.MaxPool2d(2)] if layer == layers - 1 else []
            parts.append(nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True), *pool))
            channels = width
    parts.append(nn.Sequential(nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 4096),
                               nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, classes)))
    return parts


class Bottleneck(nn.Module):
    def __init__(self, channels, middle, stride):
        super().__init__()
        out = 4 * middle
        self.body = nn.Sequential(nn.Conv2d(channels, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(inplace=True),
                                  nn.Conv2d(middle, middle, 3, stride, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(inplace=True),
                                  nn.Conv2d(middle, out, 1, bias=False), nn.BatchNorm2d(out))
        cut = stride != 1 or channels != out
        self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)) if cut else nn.Identity()

    def forward(self, x):
        return nn.functional.relu(self.body(x) + self.shortcut(x))


def resnet50(classes):
    parts = [nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            parts.append(Bottleneck(channels, 64 << stage, 2 if stage > 0 and block == 0 else 1))
            channels = 256 << stage
    parts.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, classes)))
    return parts


HIDDEN, HEADS, FEED_FORWARD, LAYERS, DROPPED, EPSILON = 768, 12, 3072, 6, 0.1, 1e-12


class Embedding(nn.Module):
    def __init__(self, vocabulary, positions):
        super().__init__()
        self.tokens, self.positions, self.kinds = nn.Embedding(vocabulary, HIDDEN), nn.Embedding(positions, HIDDEN), nn.Embedding(2, HIDDEN)
        self.norm, self.drop = nn.LayerNorm(HIDDEN, EPSILON), nn.Dropout(DROPPED)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1])
        return self.drop(self.norm(self.tokens(tokens) + self.positions(places) + self.kinds(torch.zeros_like(places))))


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.wide, self.narrow = nn.Linear(HIDDEN, FEED_FORWARD), nn.Linear(FEED_FORWARD, HIDDEN)
        self.attention_norm, self.norm = nn.LayerNorm(HIDDEN, EPSILON), nn.LayerNorm(HIDDEN, EPSILON)
        self.drop = nn.Dropout(DROPPED)

    def forward(self, x):
        heads = [map(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for map in (self.query, self.key, self.value)]
        attended = nn.functional.scaled_dot_product_attention(*heads, dropout_p=DROPPED if self.training else 0).transpose(1, 2).flatten(2)
        x = self.attention_norm(x + self.drop(self.out(attended)))
        return self.norm(x + self.drop(self.narrow(nn.functional.gelu(self.wide(x)))))


def bert(vocabulary, positions=512):
    head = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.LayerNorm(HIDDEN, EPSILON), nn.Linear(HIDDEN, vocabulary))
    return [Embedding(vocabulary, positions), *(EncoderLayer() for _ in range(LAYERS)), head]


MODELS = {"vgg16": vgg16, "resnet50": resnet50, "bert": bert}
