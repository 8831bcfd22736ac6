"""A plain DeepFM in PyTorch on a click log in Criteo's format."""
import statistics
import time

import numpy
import torch


def read(path):
    """Labels, numbers as log(1 + max(x, 0)), and of each category the place of its id among those of the file."""
    lines = [line.rstrip("\n").split("\t") for line in open(path, encoding="ascii")]
    labels = torch.tensor([float(line[0]) for line in lines])
    dense = torch.tensor([[numpy.log1p(max(0, int(field))) if field else 0.0 for field in line[1:14]] for line in lines], dtype=torch.float32)
    keys, rows = [], 0
    for column in range(14, 40):
        ids, places = numpy.unique([line[column] for line in lines], return_inverse=True)
        keys.append(torch.from_numpy(places.astype(numpy.int64)) + rows)
        rows += len(ids)
    return labels, dense, torch.stack(keys, 1), rows


class DeepFm(torch.nn.Module):
    def __init__(self, rows, tables, dim, dense, hidden):
        super().__init__()
        self.rows = torch.nn.Embedding(rows, 1 + dim, sparse=True)  # a weight of first order and a vector
        torch.nn.init.uniform_(self.rows.weight, -0.01, 0.01)
        self.first = torch.nn.Linear(dense, 1, bias=False)
        torch.nn.init.normal_(self.first.weight, std=0.02)
        widths, layers = [tables * dim + dense, *hidden, 1], []
        for wide, narrow in zip(widths, widths[1:]):
            layers += [torch.nn.Linear(wide, narrow), torch.nn.ReLU()]
            torch.nn.init.xavier_normal_(layers[-2].weight)
            torch.nn.init.zeros_(layers[-2].bias)
        self.deep = torch.nn.Sequential(*layers[:-1])

    def forward(self, dense, keys):
        rows = self.rows(keys)
        vectors = rows[:, :, 1:]
        pairs = 0.5 * (vectors.sum(1) ** 2 - (vectors**2).sum(1)).sum(1)
        return rows[:, :, 0].sum(1) + pairs + self.first(dense)[:, 0] + self.deep(torch.cat([vectors.flatten(1), dense], 1))[:, 0]


def area_under_curve(scores, labels):
    """Equal scores count half."""
    _, place, count = numpy.unique(scores, return_inverse=True, return_counts=True)
    ranks = (numpy.cumsum(count) - (count - 1) / 2)[place]
    positives = labels.sum()
    return (ranks[labels == 1].sum() - positives * (positives + 1) / 2) / (positives * (len(labels) - positives))


def train_peer(path, validation, model, steps, batch, lr, table, seed, threads):
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    labels, dense, keys, rows = read(path)
    train = len(labels) - validation
    network = DeepFm(rows, model["tables"], model["dim"], model["dense"], model["hidden"])
    rest = [value for name, value in network.named_parameters() if not name.startswith("rows.")]
    optimizers = [torch.optim.Adagrad([network.rows.weight], lr=table["lr"], initial_accumulator_value=table["initial_moment"], eps=1e-8),
                  torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.999), weight_decay=0)]
    warmup = max(1, table["schedule"]["warmup"])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizers[0], lambda step: min(1, (step + 1) / warmup))
    seconds, order = [], torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        while len(order) < batch:
            order = torch.cat([order, torch.randperm(train)])
        begin = time.perf_counter()
        chosen, order = order[:batch], order[batch:]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(network(dense[chosen], keys[chosen]), labels[chosen])
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        schedule.step()
        loss.item()
        seconds.append(time.perf_counter() - begin)
    with torch.no_grad():
        logits = network(dense[train:], keys[train:])
    return {"auc": float(area_under_curve(logits.numpy(), labels[train:].numpy())),
            "loss": float(torch.nn.functional.binary_cross_entropy_with_logits(logits, labels[train:])),
            "samples_per_s": batch / statistics.median(seconds)}
