"""The keys of keys.hpp, drawn by NumPy."""
import numpy

DIMENSION, FEATURES = 16, 26
BATCH, BATCHES = 4096 * FEATURES, 20
SMALL_BATCH, SMALL_BATCHES = 64 * FEATURES, 200


def uniform(random, rows, shape):
    return random.integers(rows, size=shape)


def zipf(random, rows, shape):
    """Row k with a probability of 1 / k."""
    return numpy.minimum(rows, numpy.exp(random.random(shape) * numpy.log(rows + 1)).astype(numpy.int64)) - 1


def keys_of(rows):
    """Keys spread over all 64 bits, as signed numbers."""
    return ((rows.astype(numpy.uint64) + numpy.uint64(1)) * numpy.uint64(0xBF58476D1CE4E5B9)).view(numpy.int64)
