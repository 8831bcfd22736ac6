#!/usr/bin/env python3
"""Writes a click log in Criteo's format: label, 13 whole numbers, 26 categories of 8 hexadecimal digits, between tabs.

Labels are drawn from a hidden model of the line: weights of categories, dot products of hidden vectors of two categories, and curves over
the numbers. Its own probabilities rank the lines as well as anything can; what AUC that is on the last lines is printed, and no trained
model comes above it but by chance. The same seed writes the same file."""

import argparse
import json

import numpy

NUMBERS, CATEGORIES, HIDDEN = 13, 26, 4
# Ids of each category, from a few to many, as in real logs.
IDS = numpy.geomspace(8, 50_000, CATEGORIES).astype(int)
ZIPF = 1.2


def area_under_curve(scores, labels):
    """By ranks; scores are taken to be distinct."""
    ranks = numpy.empty(len(scores))
    ranks[numpy.argsort(scores, kind="stable")] = numpy.arange(1, len(scores) + 1)
    positives = labels.sum()
    return (ranks[labels == 1].sum() - positives * (positives + 1) / 2) / (positives * (len(labels) - positives))


def hexadecimal(column, ids):
    """The same digits for an id everywhere, and others in each column."""
    spread = (numpy.arange(ids, dtype=numpy.uint64) + numpy.uint64(1)) * numpy.uint64(2654435761) + numpy.uint64(column * 40503)
    return numpy.array([f"{number:08x}" for number in (spread & numpy.uint64(0xFFFFFFFF)).tolist()])


def draw(lines, seed):
    """Columns of text, and the probabilities of a click."""
    random = numpy.random.default_rng(seed)
    logits = numpy.full(lines, -1.4)
    columns = []
    for _ in range(NUMBERS):
        scale = random.uniform(0.5, 2.5)
        numbers = numpy.floor(numpy.exp(random.normal(1, scale, lines))).astype(int)
        there = random.random(lines) >= random.choice([0, 0.1, 0.3])
        curve = numpy.log1p(numbers) - numpy.log1p(numbers).mean()
        logits += numpy.where(there, random.normal(0, 0.15) * curve + random.normal(0, 0.03) * curve**2, random.normal(0, 0.1))
        columns.append(numpy.where(there, numbers.astype(str), ""))
    vectors = numpy.zeros((lines, CATEGORIES, HIDDEN), dtype=numpy.float32)
    for column, ids in enumerate(IDS):
        shares = numpy.arange(1, ids + 1) ** -ZIPF
        drawn = numpy.searchsorted(numpy.cumsum(shares / shares.sum()), random.random(lines)).clip(0, ids - 1)
        there = random.random(lines) >= random.choice([0, 0, 0.05])
        logits += numpy.where(there, random.normal(0, 0.25, ids)[drawn], 0)
        vectors[:, column] = random.normal(0, 0.16, (ids, HIDDEN))[drawn] * there[:, None]
        columns.append(numpy.where(there, hexadecimal(column, ids)[drawn], ""))
    total = vectors.sum(1)
    logits += ((total**2).sum(1) - (vectors**2).sum((1, 2))) / 2
    probabilities = 1 / (1 + numpy.exp(-logits))
    labels = (random.random(lines) < probabilities).astype(int)
    return labels, columns, probabilities


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default="clicks.tsv")
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--validation", type=float, default=0.05, help="the share of last lines that the AUC is of")
    arguments = parser.parse_args()
    labels, columns, probabilities = draw(arguments.lines, arguments.seed)
    with open(arguments.file, "w", encoding="ascii") as out:
        out.writelines("\t".join(fields) + "\n" for fields in zip(labels.astype(str), *columns))
    last = arguments.lines - int(arguments.lines * (1 - arguments.validation))
    print(json.dumps({"lines": arguments.lines, "clicks": float(labels.mean()), "validation_lines": last,
                      "best_auc": float(area_under_curve(probabilities[-last:], labels[-last:]))}))


if __name__ == "__main__":
    main()
